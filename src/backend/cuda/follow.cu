/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of one follower for a whole batch, by the plan that the swap-in of its group left. A few blocks go through the
 * rows together, request after request: they are enough for the link, leave the multiprocessors to the attention that
 * runs beside them, and share the translations of one request's part of the host pool. */
#include "fetch.cuh"
#include "launch.h"

#define THREADS 1024
enum { IN_FLIGHT = 4 };

/* Rows of entries b .. b + THREADS - 1 of the batch before each of them, in first[0 .. THREADS]; returns all of them.
 */
static __device__ uint32_t sum_entries(const hsp__cuda_follow &p, uint32_t b, uint32_t *first, uint32_t *warp_total) {
    uint32_t mine = b + threadIdx.x < (uint32_t)p.batch ? p.n_fetched[b + threadIdx.x] : 0, upto = mine, total;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        uint32_t other = __shfl_up_sync(~0u, upto, d);
        upto += threadIdx.x % 32 >= d ? other : 0;
    }
    uint32_t before = sum_of_earlier_warps<THREADS>(__shfl_sync(~0u, upto, 31), warp_total, &total);
    first[threadIdx.x] = before + upto - mine;
    if (threadIdx.x == 0)
        first[THREADS] = total;
    __syncthreads();
    return total;
}

/* Entries from b on, whose rows start at first[]. A thread's pieces come in ascending order, so that the entry of a row
 * is found by going on from the last; rounds, because pieces are counted in 31 bits. */
template <typename piece, bool PLAIN>
static __device__ __forceinline__ void fetch_entries(const hsp__cuda_follow &p, uint32_t b, const uint32_t *first) {
    const uint32_t pieces = p.rows.layer_pieces.by, most = 0x7fffffffu / pieces, stride = gridDim.x * THREADS;
    uint32_t entry = 0;
    for (uint32_t round = 0; round < first[THREADS]; round += most) {
        const uint32_t total = min(first[THREADS] - round, most) * pieces;
        for (uint32_t c = blockIdx.x * THREADS + threadIdx.x; c < total; c += stride * IN_FLIGHT) {
            piece value[IN_FLIGHT], *to[IN_FLIGHT];
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++)
                if (c + u * stride < total) {
                    uint32_t i = c + u * stride, r = divide(i, p.rows.layer_pieces), q = i - r * pieces;
                    r += round;
                    while (r >= first[entry + 1])
                        entry++;
                    hsp__cuda_fetched row = p.fetched[(uint64_t)(b + entry) * p.most_fetched + (r - first[entry])];
                    to[u] =
                        PLAIN ? plain_piece<piece>(p.rows, row.id, q) : device_piece<piece>(p.rows, p.layer, row.id, q);
                    value[u] = load_host((const piece *)host_row_at(p.rows, row.host_row) + q);
                }
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++)
                if (c + u * stride < total)
                    *to[u] = value[u];
        }
    }
}

template <typename piece, bool PLAIN>
__global__ void __launch_bounds__(THREADS, 1) follow_kernel(const __grid_constant__ hsp__cuda_follow p) {
    __shared__ uint32_t first[THREADS + 1], warp_total[32];
    if (p.no_io)
        return;
    for (uint32_t b = 0; b < (uint32_t)p.batch; b += THREADS) {
        if (sum_entries(p, b, first, warp_total) > 0)
            fetch_entries<piece, PLAIN>(p, b, first);
        __syncthreads(); /* all have read what the next round writes */
    }
}

cudaError_t hsp__cuda_follow_launch(const hsp__cuda_follow *p, int blocks, cudaStream_t stream) {
    const void *kernel = p->plain                    ? (const void *)follow_kernel<uint4, true>
                         : p->rows.piece_bytes == 16 ? (const void *)follow_kernel<uint4, false>
                         : p->rows.piece_bytes == 8  ? (const void *)follow_kernel<uint2, false>
                                                     : (const void *)follow_kernel<uint32_t, false>;
    return hsp__cuda_launch(kernel, {blocks, THREADS, 1, 0, 0}, p, stream);
}
