/* SPDX-License-Identifier: Apache-2.0
 *
 * libhisparse_ops_cuda: the selectors and sparse attention of hisparse_ops.h on a CUDA device. Shapes, formats and rules
 * are those of that header; here is what differs.
 *
 * All pointers but those to shapes, batches and views are device memory, aligned as a GPU needs it: floats and int32 to
 * 4 bytes, packed rows, statistics and strides as the function says. A call serves the whole batch of a decode step. It
 * checks its arguments, launches on `stream` (a cudaStream_t) and returns: it allocates nothing, never waits, and may be
 * captured into a graph. What changes from step to step is read on the device, so one captured graph serves all steps.
 * Scratch belongs to one call until that has run; its size comes from a function that takes the greatest numbers there
 * will be. Statuses are those of the sibling on the CPU, and HSP_EDEVICE where CUDA refuses a launch.
 *
 * The same inputs give the same bits whatever the size of the batch, the place in it, the GPU's number of
 * multiprocessors, and where rows lie. The bits are not those of the CPU, for sums are made in another order.
 */
#ifndef HISPARSE_OPS_GPU_H
#define HISPARSE_OPS_GPU_H

#include "hisparse_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whom a call serves. HSP_EINVAL: struct_size is wrong, a pointer is NULL, n_queries is below 1, or batch or max_tokens
 * below 0; HSP_ELIMIT: batch or n_queries is above 65535. */
typedef struct hsp_gpu_batch {
    size_t struct_size;      /* sizeof(hsp_gpu_batch) */
    int32_t batch;           /* entries */
    int32_t n_queries;       /* query tokens an entry, newest last */
    int32_t max_tokens;      /* bounds grids and scratch; greater counts below are taken as this one */
    const int32_t *slot;     /* device [batch]: request slot of each entry. -1: padding; its selections are -1, its
                              * attention outputs 0 and -inf in lse, and nothing of it is read or written beside them */
    const int32_t *n_tokens; /* device [batch][n_queries]: tokens each query may see; negative counts as 0 */
} hsp_gpu_batch;

#ifdef __cplusplus
}
#endif

#endif
