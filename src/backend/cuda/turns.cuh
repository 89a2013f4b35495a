/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of a large batch: p.window blocks fetch at once, in the order in which they know their misses. Rows of one
 * request lie near each other in host memory and share the GPU's translations of it, which are what bounds the fetch;
 * rows of many requests push each other's out (lab/swap_in.md).
 *
 * A block that has rows to fetch draws a ticket, and waits until all but the last `window` before it have had their
 * turn: those run already, whatever the order in which blocks start. Both counters run freely, equal between launches,
 * so that nothing is set back. */
#ifndef HSP_CUDA_TURNS_CUH
#define HSP_CUDA_TURNS_CUH

#include "params.h"

static __device__ __forceinline__ void wait_for_turn(const hsp__cuda_swap_in &p) {
    if (p.window == 0)
        return;
    if (threadIdx.x == 0) {
        uint32_t ticket = atomicAdd(&p.turns->ticket, 1u), done;
        do
            asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(done) : "l"(&p.turns->done) : "memory");
        while (ticket - done >= (uint32_t)p.window);
    }
    __syncthreads();
}

/* One thread, once. */
static __device__ __forceinline__ void end_turn(const hsp__cuda_swap_in &p) {
    if (p.window > 0)
        asm volatile("red.relaxed.gpu.add.u32 [%0], 1;" ::"l"(&p.turns->done) : "memory");
}

#endif
