/* SPDX-License-Identifier: Apache-2.0 */
/* What the host side of the backend asks of the kernels. All launches are asynchronous and may be captured. */
#ifndef HSP_CUDA_LAUNCH_H
#define HSP_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "params.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hsp__cuda_shape {
    int blocks, threads;
    int parts; /* blocks of a cluster */
    int shared_bytes;
    int overlaps; /* may start before the kernel ahead in the stream is done, and waits for it by itself */
} hsp__cuda_shape;

/* Launch a kernel whose one argument is a struct. */
cudaError_t hsp__cuda_launch(const void *kernel, hsp__cuda_shape shape, const void *params, cudaStream_t stream);
/* A number for the capture a stream is in; 0: it is not captured. */
unsigned long long hsp__cuda_capture_of(cudaStream_t stream);

/* Allow a kernel its shared memory. */
cudaError_t hsp__cuda_prepare(const void *kernel, int shared_bytes);

/* LRU, up to 8192 entries and slots; parts: blocks a request, a power of two up to HSP__CUDA_MOST_PARTS. */
int hsp__cuda_swap_in_fits(int policy, int n, int n_slots);
/* For selections of up to n_slots entries; with_late: also for groups whose followers come later. */
cudaError_t hsp__cuda_swap_in_prepare(int n_slots, int with_late);
cudaError_t hsp__cuda_swap_in_launch(const hsp__cuda_swap_in *p, int parts, int overlaps, cudaStream_t stream);

/* Anything else; needs scratch of so many words an entry of the batch. */
cudaError_t hsp__cuda_swap_in_big_prepare(void);
cudaError_t hsp__cuda_swap_in_big_launch(const hsp__cuda_swap_in *p, cudaStream_t stream);
uint64_t hsp__cuda_swap_in_big_words(int n_slots);

/* The rows that the swap-in before it fetched, for one follower; by so many blocks. */
cudaError_t hsp__cuda_follow_launch(const hsp__cuda_follow *p, int blocks, cudaStream_t stream);

cudaError_t hsp__cuda_append_launch(const hsp__cuda_write *p, int batch, cudaStream_t stream);
cudaError_t hsp__cuda_fill_launch(const hsp__cuda_write *p, cudaStream_t stream);

/* A new request in a slot: nothing resident, nothing written, ring cleared, counters at zero. */
cudaError_t hsp__cuda_admit_launch(const hsp__cuda_admit *p, cudaStream_t stream);
/* Add the counters of a request that goes to those of its groups. */
cudaError_t hsp__cuda_retire_launch(const hsp__cuda_admit *p, cudaStream_t stream);
/* Forget tokens n_tokens and later; tags only when they reach that far (with_tags). */
cudaError_t hsp__cuda_truncate_launch(const hsp__cuda_admit *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
