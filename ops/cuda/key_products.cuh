/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of bf16 keys with float32 query heads by tensor cores: sixteen keys of a warp, straight from memory into
 * registers, times eight or sixteen heads. The query counts as three bf16 numbers, the parts of its 24 bits, so that
 * every product is exact.
 *
 * Which channels go together in a step of 16 is free as long as key and query agree: a thread reads 16-byte pieces
 * quad + 4 t of a row, and each is two steps, of words 0 and 1, and 2 and 3.
 */
#ifndef HSP_OPS_CUDA_KEY_PRODUCTS_CUH
#define HSP_OPS_CUDA_KEY_PRODUCTS_CUH

#include "score_keys.h"
#include "tensor.cuh"

#include <float.h>

enum { HSP__MOST_HEADS = 16, HSP__QUERY_PARTS = 3 };

/* An infinite score counts as the greatest number; NaN stays. */
static __device__ __forceinline__ float bounded(float score) {
    return score > FLT_MAX ? FLT_MAX : score < -FLT_MAX ? -FLT_MAX : score;
}

/* Bytes from head to head of one part of the query: eight rows and four pieces touch all banks. */
static __host__ __device__ __forceinline__ int head_stride(int key_dim) {
    return 2 * key_dim + (key_dim % 64 == 0 ? 64 : 0);
}

static __host__ __device__ __forceinline__ int query_parts_bytes(int heads, int key_dim) {
    return HSP__QUERY_PARTS * heads * head_stride(key_dim);
}

/* The first 8 bits of x, and what is left in *rest. */
static __device__ __forceinline__ uint16_t take_part(float x, float *rest) {
    uint32_t bits = __float_as_uint(x) & 0xffff0000;
    *rest = isfinite(x) ? x - __uint_as_float(bits) : 0.0f;
    return x == x ? (uint16_t)(bits >> 16) : (uint16_t)0x7fc0;
}

/* parts: [HSP__QUERY_PARTS][heads][head_stride] bytes; query: [n_heads][key_dim]; heads beyond n_heads are 0. */
static __device__ __forceinline__ void load_query(const float *query, int key_dim, int n_heads, int heads, int threads,
                                                  unsigned char *parts) {
    int stride = head_stride(key_dim);
    for (int i = threadIdx.x; i < heads * key_dim; i += threads) {
        int head = i / key_dim, c = i % key_dim;
        float rest = head < n_heads ? query[i] : 0.0f;
#pragma unroll
        for (int part = 0; part < HSP__QUERY_PARTS; part++)
            *(uint16_t *)(parts + (part * heads + head) * stride + 2 * c) = take_part(rest, &rest);
    }
}

/* What a thread has of 16 keys: of key lane / 4 and of the one eight on; PIECES: 16-byte pieces of a row that are a
 * thread's. */
template <int PIECES>
struct key_pieces {
    uint4 of[2][PIECES];
};

/* Where the thread's piece 0 is, for keys first .. first + 15, of which none is beyond `last`. */
static __device__ __forceinline__ const unsigned char *place_of_key(const unsigned char *keys, uint64_t key_stride,
                                                                    int32_t first, int32_t last, int eight) {
    int lane = threadIdx.x & 31;
    return keys + (size_t)min(first + lane / 4 + 8 * eight, last) * key_stride + 16 * (lane % 4);
}

template <int PIECES>
static __device__ __forceinline__ void take_keys(const unsigned char *keys, uint64_t key_stride, int32_t first,
                                                 int32_t last, key_pieces<PIECES> &k) {
    uint64_t policy = read_once();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned char *from = place_of_key(keys, key_stride, first, last, i);
#pragma unroll
        for (int t = 0; t < PIECES; t++)
            k.of[i][t] = load_once(from + 64 * t, policy);
    }
}

/* Products with 8 * TILES heads: of heads 8 j + 2 quad + e in d[j][e] for key lane / 4, in d[j][2 + e] for the one
 * eight on. Every part of the query has sums of its own: chains of products that wait for each other are that much
 * shorter. `used` is called when piece t is no longer needed. */
template <int PIECES, int TILES, class Used>
static __device__ __forceinline__ void multiply_keys(key_pieces<PIECES> &k, const unsigned char *parts,
                                                     float d[TILES][4], Used used) {
    int lane = threadIdx.x & 31, stride = head_stride(64 * PIECES / 2);
    float sum[HSP__QUERY_PARTS][TILES][4] = {};
#pragma unroll
    for (int t = 0; t < PIECES; t++) {
        uint4 a = k.of[0][t], b = k.of[1][t];
        uint32_t low[4] = {a.x, b.x, a.y, b.y}, high[4] = {a.z, b.z, a.w, b.w};
#pragma unroll
        for (int part = 0; part < HSP__QUERY_PARTS; part++) {
            uint4 q[TILES];
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                q[j] = *((const uint4 *)(parts + ((part * TILES + j) * 8 + lane / 4) * stride) + lane % 4 + 4 * t);
                multiply_warp<false>(sum[part][j], low, q[j].x, q[j].y);
            }
#pragma unroll
            for (int j = 0; j < TILES; j++)
                multiply_warp<false>(sum[part][j], high, q[j].z, q[j].w);
        }
        used(t);
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            d[j][e] = sum[2][j][e] + sum[1][j][e] + sum[0][j][e];
}

/* Over the lanes that have the same heads. */
static __device__ __forceinline__ float greatest_of(float x) {
    for (int span = 4; span < 32; span *= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, span));
    return x;
}

#endif
