/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory for a GPU to read, as the cuda backend takes its pool: aligned to 2 MiB, in large pages where there are
 * some, on the GPU's own node. */
#ifndef HISPARSE_HOST_PAGES_H
#define HISPARSE_HOST_PAGES_H

#include <stdint.h>

#define HOST_PAGE ((uint64_t)2 << 20)

/* bytes: a multiple of HOST_PAGE; every page is touched. node: of the GPU, -1 when nobody knows. NULL, and errno says
 * why, when there is none. */
char *host_pages_take(uint64_t bytes, int node);
void host_pages_give_back(char *base, uint64_t bytes);

#endif
