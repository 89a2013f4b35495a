/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands need of a GPU beyond the library. It lives in libhisparse_gpu.so, opened when somebody asks, so
 * that one `hisparse` runs with and without a driver. Each of its files exports one table of functions, a `gpu_...`
 * struct declared in the header of that name under tools/gpu. */
#ifndef HISPARSE_GPU_H
#define HISPARSE_GPU_H

/* The table exported as `symbol`, or NULL after saying why there is none. */
const void *gpu_table(const char *symbol);

/* The same of another library, which exports its version as `version`. */
const void *gpu_table_of(const char *library, const char *version, const char *symbol);

#endif
