/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HISPARSE_GPU_CHECK_H
#define HISPARSE_GPU_CHECK_H

#include <cuda_runtime_api.h>

/* Was the call fine? When not, its name and reason become the sentence of gpu_memory's error(). */
bool gpu_fine(cudaError_t status, const char *call);
#define FINE(call) gpu_fine((call), #call)

#endif
