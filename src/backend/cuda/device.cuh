/* SPDX-License-Identifier: Apache-2.0 */
/* Small device functions that several kernels use. */
#ifndef HSP_CUDA_DEVICE_CUH
#define HSP_CUDA_DEVICE_CUH

#include <stdint.h>

/* Host memory is read once: it must not settle in the L1. */
static __device__ __forceinline__ uint4 load_host(const uint4 *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

static __device__ __forceinline__ uint2 load_host(const uint2 *from) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}

static __device__ __forceinline__ uint32_t load_host(const uint32_t *from) {
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
}

/* Sum of the earlier warps, and of all in *total, over a block of THREADS; mine is the sum of this warp. Fields of a
 * packed number are summed side by side. warp_total: [THREADS / 32], shared; one barrier, and the caller must put
 * another between two calls that use the same array. */
template <int THREADS>
static __device__ __forceinline__ uint32_t sum_of_earlier_warps(uint32_t mine, uint32_t *warp_total, uint32_t *total) {
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0)
        warp_total[warp] = mine;
    __syncthreads();
    uint32_t other = THREADS == 1024 || lane < THREADS / 32 ? warp_total[lane] : 0;
    *total = __reduce_add_sync(~0u, other);
    return __reduce_add_sync(~0u, lane < warp ? other : 0);
}

/* Bits of the lanes below this one. */
static __device__ __forceinline__ uint32_t lanes_below(void) {
    uint32_t mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    return mask;
}

/* Threads before this one whose flag is set, and all of them in *total, over a block of THREADS. As above. */
template <int THREADS>
static __device__ __forceinline__ uint32_t count_before(bool flag, uint32_t *warp_total, uint32_t *total) {
    uint32_t votes = __ballot_sync(~0u, flag);
    uint32_t earlier = sum_of_earlier_warps<THREADS>(__popc(votes), warp_total, total);
    return earlier + __popc(votes & lanes_below());
}

/* The same value, which the compiler does not know to be the same. */
static __device__ __forceinline__ uint32_t hidden(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

static __device__ __forceinline__ void add_to(uint64_t *counter, uint64_t amount) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(amount) : "memory");
}

#endif
