/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of `hisparse calibrate`. */
#ifndef HISPARSE_GPU_CALIBRATE_KERNELS_CUH
#define HISPARSE_GPU_CALIBRATE_KERNELS_CUH

#include <stdint.h>

struct transfer_params {
    char *pool, *rows;   /* host memory; the GPU's, packed */
    const uint32_t *row; /* numbers of the rows in the pool */
    uint32_t n_pieces, row_pieces;
    uint32_t magic; /* floor(2^32 / row_pieces) + 1; 0: row_pieces is 1 */
    uint32_t stride;
};

/* As the cuda backend reads host rows: once, so they must not settle in the L1. */
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

/* Which row piece i of all belongs to. Exact for i below 2^31: the estimate is the quotient or one more. */
static __device__ __forceinline__ uint32_t row_of(const transfer_params &p, uint32_t i) {
    uint32_t r = p.magic ? __umulhi(i, p.magic) : i;
    return r - (r * p.row_pieces > i);
}

template <typename piece>
static __device__ __forceinline__ piece *pool_piece(const transfer_params &p, uint32_t i, uint32_t number) {
    return (piece *)(p.pool + (uint64_t)number * p.stride) + (i - row_of(p, i) * p.row_pieces);
}

/* Numbers of the rows first: the loads that are measured must not wait for them one by one. */
template <typename piece, int IN_FLIGHT, bool TO_HOST>
static __global__ void __launch_bounds__(1024) transfer_kernel(transfer_params p) {
    const uint32_t stride = gridDim.x * blockDim.x;
    piece *rows = (piece *)p.rows;
    for (uint32_t c = blockIdx.x * blockDim.x + threadIdx.x; c < p.n_pieces; c += stride * IN_FLIGHT) {
        uint32_t number[IN_FLIGHT];
        piece value[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            number[u] = c + u * stride < p.n_pieces ? p.row[row_of(p, c + u * stride)] : 0;
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (c + u * stride < p.n_pieces)
                value[u] = TO_HOST ? rows[c + u * stride] : load_host(pool_piece<piece>(p, c + u * stride, number[u]));
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (c + u * stride < p.n_pieces)
                *(TO_HOST ? pool_piece<piece>(p, c + u * stride, number[u]) : rows + c + u * stride) = value[u];
    }
}

static __global__ void empty_kernel() {}

/* Keeps the stream busy while the host queues what is to be timed. */
static __global__ void wait_kernel(uint64_t ns) {
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}

static __global__ void __launch_bounds__(1024) sweep_kernel(uint4 *memory, uint64_t n) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        uint4 v = memory[i];
        sum.x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum.x == 0x12345678) /* never, but the compiler must not know */
        memory[0] = sum;
}

#endif
