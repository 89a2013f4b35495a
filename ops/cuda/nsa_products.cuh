/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of 16 bf16 keys a warp with a float32 query, as key_products.cuh has them, by warpgroups where there are
 * such. The three parts of all heads are columns of one product of 64 keys: the query is read from shared memory once
 * for four warps. A warp alone reads 18 KB of it for 16 keys of 6 KB, which keeps shared memory busier than the
 * device's.
 */
#ifndef HSP_OPS_CUDA_NSA_PRODUCTS_CUH
#define HSP_OPS_CUDA_NSA_PRODUCTS_CUH

#include "key_products.cuh"

/* Where channels c and c + 1, c even, of column `row` lie, in bytes: panels of 64 channels, [rows][128 bytes], swizzled
 * as the descriptor says. A thread's 16-byte piece of a key is two steps of four channels of its own, as in
 * multiply_keys. */
static __device__ __forceinline__ int place_in_panels(int rows, int row, int c) {
    int step = c / 32 * 2 + c / 4 % 2, quad = c / 8 % 4, piece = 2 * (step % 4) + c / 2 % 2;
    return (step / 4 * rows + row) * 128 + (piece ^ (row & 7)) * 16 + 4 * quad;
}

/* query: [n_heads][32 * PIECES]. memory: query_parts_bytes, at a multiple of 1024. A barrier must follow. */
template <int PIECES, int TILES, int THREADS>
static __device__ __forceinline__ void lay_out_query(const float *query, int n_heads, unsigned char *memory) {
    enum { DIM = 32 * PIECES, HEADS = 8 * TILES };
#if WGMMA
#pragma unroll
    for (int i = threadIdx.x; i < HEADS * DIM / 2; i += THREADS) {
        int head = i / (DIM / 2);
        float low = head < n_heads ? query[2 * i] : 0.0f, high = head < n_heads ? query[2 * i + 1] : 0.0f;
        unsigned char *to = memory + place_in_panels(HSP__QUERY_PARTS * HEADS, head, 2 * i % DIM);
#pragma unroll
        for (int part = 0; part < HSP__QUERY_PARTS; part++) { /* HEADS rows further on, which is a multiple of 8 */
            uint32_t first = take_part(low, &low);
            *(uint32_t *)(to + part * HEADS * 128) = first | (uint32_t)take_part(high, &high) << 16;
        }
    }
    shared_written();
#else
    load_query(query, DIM, n_heads, HEADS, THREADS, memory);
#endif
}

/* multiply_keys, by all warps of a warpgroup together. `used` is called for every piece no longer needed. */
template <int PIECES, int TILES, class Used>
static __device__ __forceinline__ void multiply_together(key_pieces<PIECES> &k, const unsigned char *memory,
                                                         float d[TILES][4], Used used) {
#if WGMMA
    enum { COLUMNS = HSP__QUERY_PARTS * 8 * TILES, OF_PART = 4 * TILES };
    uint32_t address = shared_address(memory);
    float sum[COLUMNS / 2] = {};
    hold<COLUMNS / 2>(sum);
    wgmma_begin();
#pragma unroll
    for (int t = 0; t < PIECES; t++) {
        uint4 a = k.of[0][t], b = k.of[1][t];
        const uint32_t low[4] = {a.x, b.x, a.y, b.y}, high[4] = {a.z, b.z, a.w, b.w};
        uint32_t at = address + t / 2 * COLUMNS * 128 + t % 2 * 64;
        multiply_group<false, COLUMNS>(sum, low, panel_descriptor(at));
        multiply_group<false, COLUMNS>(sum, high, panel_descriptor(at + 32));
    }
    wgmma_end();
    hold<COLUMNS / 2>(sum);
#pragma unroll
    for (int t = 0; t < PIECES; t++)
        used(t);
#pragma unroll
    for (int i = 0; i < OF_PART; i++)
        d[i / 4][i % 4] = sum[2 * OF_PART + i] + sum[OF_PART + i] + sum[i];
#else
    multiply_keys<PIECES, TILES>(k, memory, d, used);
#endif
}

#endif
