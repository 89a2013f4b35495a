/* SPDX-License-Identifier: Apache-2.0 */
/* The small parts of a swap-in that do not depend on its size: counters, and turns of a large batch. */
#ifndef HSP_CUDA_TURNS_CUH
#define HSP_CUDA_TURNS_CUH

#include "resolve.cuh"

/* Relaxed: it orders what was read before it, and those values are in registers already. A release would wait for
 * memory. */
static __device__ __forceinline__ void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* What a launch adds to the counters, by threads of different warps, without waiting for what is there. */
static __device__ __forceinline__ void count(const hsp__cuda_swap_in &p, const request_view &v, const uint32_t *odd,
                                             uint32_t n_miss) {
    if (threadIdx.x == 0 && p.warm_slot < 0)
        add_to(&v.counters->hits, p.n - odd[0] - odd[1] - n_miss);
    if (n_miss > 0 && threadIdx.x == 32)
        add_to(p.warm_slot < 0 ? &v.counters->misses : &v.counters->warmed, n_miss);
    if (n_miss > 0 && threadIdx.x == 64)
        add_to(&v.counters->fetched_bytes, (uint64_t)n_miss * (p.rows.row_pieces.by * p.rows.piece_bytes));
    if (odd[0] && threadIdx.x == 96 && p.warm_slot < 0)
        add_to(&v.counters->none, odd[0]);
    if (odd[1] && threadIdx.x == 128 && p.warm_slot < 0)
        add_to(&v.counters->invalid, odd[1]);
}

/* With a large batch only p.window requests fetch at once, in the order of the batch: rows of one request share the
 * GPU's translations of host memory. Block `part` of entry b waits for the same block of entry b - window, which was
 * scheduled before it and gives its turn in any case, so nobody waits for ever; each flag has one reader. The flags
 * only order the work: one that nobody waited for, left over for the next launch, costs time, never bytes. */
static __device__ __forceinline__ uint32_t *turn_of(const hsp__cuda_swap_in &p, uint32_t b, uint32_t part) {
    return &p.done[b * HSP__CUDA_MOST_PARTS + part];
}

static __device__ __forceinline__ void wait_for_turn(const hsp__cuda_swap_in &p, uint32_t b, uint32_t part) {
    if (p.window == 0 || b < (uint32_t)p.window)
        return;
    if (threadIdx.x == 0) {
        uint32_t *flag = turn_of(p, b - p.window, part), seen = 0;
        while (seen == 0)
            asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        *flag = 0;
    }
    __syncthreads();
}

static __device__ __forceinline__ void give_turn(const hsp__cuda_swap_in &p, uint32_t b, uint32_t part) {
    if (p.window == 0)
        return;
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(turn_of(p, b, part)), "r"(1u) : "memory");
}

#endif
