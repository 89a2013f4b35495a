/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of a large batch: p.window requests fetch at once, in the order in which they know their misses. Rows of one
 * request lie near each other in host memory and share the GPU's translations of it, which are what bounds the fetch;
 * rows of many requests push each other's out (lab/swap_in.md).
 *
 * A block that has rows to fetch draws a ticket, and waits until all but the last `window` before it are done: those
 * run already, whatever the order in which blocks start. The last block of a launch to end sets everything to zero for
 * the next. */
#ifndef HSP_CUDA_TURNS_CUH
#define HSP_CUDA_TURNS_CUH

#include "params.h"

static __device__ __forceinline__ void wait_for_turn(const hsp__cuda_swap_in &p) {
    if (p.window == 0)
        return;
    if (threadIdx.x == 0) {
        uint32_t ticket = atomicAdd(&p.turns->ticket, 1u), done = 0;
        while (done + p.window <= ticket)
            asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(done) : "l"(&p.turns->done) : "memory");
    }
    __syncthreads();
}

/* After a barrier behind the fetch. */
static __device__ __forceinline__ void end_turn(const hsp__cuda_swap_in &p) {
    if (p.window > 0 && threadIdx.x == 0)
        asm volatile("red.relaxed.gpu.add.u32 [%0], 1;" ::"l"(&p.turns->done) : "memory");
}

#define NOT_LEFT 0xffffffffu

/* One thread of a block that has nothing to fetch, as soon as it knows: how many blocks have left before it. */
static __device__ __forceinline__ uint32_t leave_turns(const hsp__cuda_swap_in &p) {
    return p.window > 0 ? atomicAdd(&p.turns->left, 1u) : NOT_LEFT;
}

/* The same of any other block, at its end. Release: that it has fetched is counted before the last block sets the
 * counters to zero. */
static __device__ __forceinline__ uint32_t leave_turns_late(const hsp__cuda_swap_in &p) {
    uint32_t before = NOT_LEFT;
    if (p.window > 0)
        asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(&p.turns->left) : "memory");
    return before;
}

/* The same thread, at the end. */
static __device__ __forceinline__ void close_turns(const hsp__cuda_swap_in &p, uint32_t left_before) {
    if (p.window > 0 && left_before == gridDim.x - 1) {
        p.turns->ticket = 0;
        p.turns->done = 0;
        p.turns->left = 0;
    }
}

#endif
