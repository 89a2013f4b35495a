/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of a large batch: about p.window requests fetch at once, in the order of the batch; more where requests further
 * on have nothing to fetch, for they count as done. Rows of one request lie near each other in host memory and share
 * the GPU's translations of it, which are what bounds the fetch; rows of many requests push each other's out
 * (lab/swap_in.md).
 *
 * Block b waits until b - window + 1 blocks are done. Blocks start in the order of their numbers, so those before it
 * run already, and they end in any case. The last one to be done sets the other counter to zero, which nobody uses any
 * more, and makes it the one of the next launch. */
#ifndef HSP_CUDA_TURNS_CUH
#define HSP_CUDA_TURNS_CUH

#include "params.h"

static __device__ __forceinline__ uint32_t turns_counter(const hsp__cuda_swap_in &p) {
    return p.window > 0 ? p.turns->counter : 0;
}

static __device__ __forceinline__ void wait_for_turn(const hsp__cuda_swap_in &p, uint32_t counter) {
    if (p.window == 0 || blockIdx.x < (uint32_t)p.window)
        return;
    if (threadIdx.x == 0) {
        uint32_t done, enough = blockIdx.x - p.window + 1;
        do
            asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(done) : "l"(&p.turns->done[counter]) : "memory");
        while (done < enough);
    }
    __syncthreads();
}

#define STILL_ON 0xffffffffu

/* One thread, as soon as the block has nothing left to fetch: how many were done before it. */
static __device__ __forceinline__ uint32_t end_turn(const hsp__cuda_swap_in &p, uint32_t counter) {
    return p.window > 0 ? atomicAdd(&p.turns->done[counter], 1u) : 0;
}

/* The same thread, at the end. */
static __device__ __forceinline__ void close_turns(const hsp__cuda_swap_in &p, uint32_t counter, uint32_t done_before) {
    if (p.window > 0 && done_before == gridDim.x - 1) {
        p.turns->done[counter ^ 1] = 0;
        p.turns->counter = counter ^ 1;
    }
}

#endif
