/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores of the indexer with tensor cores. A block of four warps takes one tile of 64 keys after another: the copy
 * engine brings tiles into a ring, every thread takes the numbers of its fragment out of it (dsa_layout.h), and the
 * product with a group of heads stays in registers, where relu, weights and the sum over heads are applied. Everything
 * waits for memory; several blocks a multiprocessor keep enough of it under way.
 *
 * Rows that do not lie one directly after the other at addresses that are multiples of 16 are copied by the threads.
 */
#include "dsa.h"
#include "dsa_layout.h"
#include "tensor.cuh"

#include <cuda_fp16.h>

enum { THREADS = 128, TILE = 64, STAGES = 3, STEPS = HSP__DSA_STEPS };

template <int DTYPE>
struct format {
    enum {
        KEY_BYTES = DTYPE == HSP_E4M3 ? HSP__DSA_DIM + 4 : 2 * HSP__DSA_DIM,
        KEY_WORDS = KEY_BYTES / 4,
        TILE_BYTES = TILE * KEY_BYTES
    };
};

/* What a thread holds of two keys of the tile, `row` of its warp's sixteen and the one eight on. */
struct fragment {
    uint32_t a[STEPS][4];
    float scale[2];
};

/* What a block does; the images and the ring are shared memory. */
struct work {
    const unsigned char *keys; /* of the request */
    unsigned char *images, *ring;
    uint64_t *full; /* [STAGES] */
    int32_t entry, first_query, n_images;
    int32_t n_tokens; /* the most that one of the queries sees */
};

/* ---------------------------------------------------------------------------------------------------- fragments -- */

static __device__ __forceinline__ void unpack_two(uint32_t word, uint32_t *low, uint32_t *high) {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
        : "=r"(*low), "=r"(*high)
        : "r"(word));
}

/* e4m3: word 8 * quad + s of the key is step s. */
static __device__ __forceinline__ void take_e4m3(const uint32_t *tile, int row, int quad, fragment &f) {
    const uint32_t *key = tile + row * format<HSP_E4M3>::KEY_WORDS;
#pragma unroll
    for (int i = 0; i < 2; i++, key += 8 * format<HSP_E4M3>::KEY_WORDS) {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            unpack_two(key[8 * quad + s], &f.a[s][i], &f.a[s][2 + i]);
        f.scale[i] = __uint_as_float(key[HSP__DSA_DIM / 4]);
    }
}

static __device__ __forceinline__ void take_piece(const uint4 &piece, int t, int i, fragment &f) {
    f.a[2 * t][i] = piece.x;
    f.a[2 * t][2 + i] = piece.y;
    f.a[2 * t + 1][i] = piece.z;
    f.a[2 * t + 1][2 + i] = piece.w;
}

static __device__ __forceinline__ uint4 choose(bool first, const uint4 &a, const uint4 &b) {
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/* bf16: pieces 2 * quad and the next, and those eight on; odd rows read a pair in the other order. */
static __device__ __forceinline__ void take_bf16(const uint32_t *tile, int row, int quad, fragment &f) {
    const uint4 *key = (const uint4 *)(tile + row * format<HSP_BF16>::KEY_WORDS) + 2 * quad;
    bool odd = row & 1;
#pragma unroll
    for (int i = 0; i < 2; i++, key += 8 * format<HSP_BF16>::KEY_BYTES / 16) {
        f.scale[i] = 1.0f;
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            uint4 x = key[8 * pair + odd], y = key[8 * pair + !odd];
            take_piece(choose(odd, y, x), 2 * pair, i, f);
            take_piece(choose(odd, x, y), 2 * pair + 1, i, f);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ products -- */

/* Products of the tile with a group of heads; d: of head 8 j + 2 quad + e in 4 j + e for the first key, + 2 for the
 * second. */
template <bool F16, int HEADS>
static __device__ __forceinline__ void multiply(const fragment &f, const unsigned char *image, float d[HEADS / 2]) {
#pragma unroll
    for (int i = 0; i < HEADS / 2; i++)
        d[i] = 0.0f;
#if WGMMA
    uint32_t address = shared_address(image);
    hold<HEADS / 2>(d);
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        multiply_group<F16, HEADS>(d, f.a[s], panel_descriptor(address + hsp__dsa_place(HEADS, 0, s, 0, 0, 0)));
    wgmma_end();
    hold<HEADS / 2>(d);
#else
    int lane = threadIdx.x & 31, row = lane / 4, quad = lane % 4;
#pragma unroll
    for (int j = 0; j < HEADS / 8; j++)
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            uint32_t low = *(const uint32_t *)(image + hsp__dsa_place(HEADS, 8 * j + row, s, 0, quad, 0));
            uint32_t high = *(const uint32_t *)(image + hsp__dsa_place(HEADS, 8 * j + row, s, 1, quad, 0));
            multiply_warp<F16>(d + 4 * j, f.a[s], low, high);
        }
#endif
}

/* relu; NaN stays. */
static __device__ __forceinline__ float positive(float x) {
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
}

template <int HEADS>
static __device__ __forceinline__ void add_heads(const float d[HEADS / 2], const float *weights, float sum[2]) {
    const float2 *pair = (const float2 *)weights + (threadIdx.x & 3);
#pragma unroll
    for (int j = 0; j < HEADS / 8; j++) {
        float2 w = pair[4 * j];
        for (int i = 0; i < 2; i++)
            sum[i] = fmaf(w.y, positive(d[4 * j + 2 * i + 1]), fmaf(w.x, positive(d[4 * j + 2 * i]), sum[i]));
    }
}

/* Scores of the tile's keys for one query. */
template <int DTYPE, int HEADS>
static __device__ __forceinline__ void score_query(const hsp__gpu_dsa &p, const work &w, const fragment &f, int image,
                                                   int32_t first) {
    const unsigned char *numbers = w.images + (size_t)image * p.image_bytes;
    int groups = hsp__dsa_group_count(p.n_heads), lane = threadIdx.x & 31;
    const float *weights = (const float *)(numbers + groups * hsp__dsa_group_bytes(HEADS));
    float d[HEADS / 2], sum[2] = {0.0f, 0.0f};
    for (int g = 0; g < groups; g++) {
        multiply<DTYPE == HSP_E4M3, HEADS>(f, numbers + g * hsp__dsa_group_bytes(HEADS), d);
        add_heads<HEADS>(d, weights + g * HEADS, sum);
    }
    int32_t query = w.first_query + image, n = hsp__gpu_tokens(p.batch, w.entry, query);
    float *scores = p.scores + ((size_t)w.entry * p.batch.n_queries + query) * p.batch.max_tokens;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        int32_t token = first + (int32_t)threadIdx.x / 32 * 16 + lane / 4 + 8 * i;
        if (lane % 4 == 0 && token < n)
            scores[token] = f.scale[i] * sum[i] + 0.0f; /* -0, which would rank below 0, becomes 0 */
    }
}

/* ---------------------------------------------------------------------------------------------------------- ring -- */

/* One thread sets off the copy of a tile. What a tile's end leaves over of 16 bytes it copies by itself. */
template <int DTYPE>
static __device__ __forceinline__ void fetch(const work &w, int32_t tile, int stage) {
    int32_t left = w.n_tokens - tile * TILE, n = left < TILE ? left : TILE;
    uint32_t bytes = n * format<DTYPE>::KEY_BYTES, whole = bytes & ~15u;
    const unsigned char *from = w.keys + (size_t)tile * format<DTYPE>::TILE_BYTES;
    unsigned char *to = w.ring + stage * format<DTYPE>::TILE_BYTES;
    for (uint32_t at = whole; at < bytes; at += 4)
        *(uint32_t *)(to + at) = *(const uint32_t *)(from + at);
    barrier_expect(&w.full[stage], whole); /* after the stores, which it makes visible */
    copy_bulk_once(to, from, whole, &w.full[stage]);
}

/* All threads copy a tile. */
template <int DTYPE>
static __device__ __forceinline__ void copy_rows(const hsp__gpu_dsa &p, const work &w, int32_t tile) {
    int32_t left = w.n_tokens - tile * TILE, n = (left < TILE ? left : TILE) * format<DTYPE>::KEY_WORDS;
    uint32_t *to = (uint32_t *)w.ring;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        int32_t row = i / format<DTYPE>::KEY_WORDS, word = i % format<DTYPE>::KEY_WORDS;
        const unsigned char *key = w.keys + (uint64_t)(tile * TILE + row) * p.rows.row_stride;
        to[i] = __ldg((const uint32_t *)key + word);
    }
}

/* Take a tile's keys out of shared memory, score them; `refill` may be called as soon as they are out. */
template <int DTYPE, int HEADS, class Refill>
static __device__ __forceinline__ void score_tile(const hsp__gpu_dsa &p, const work &w, const unsigned char *keys,
                                                  int32_t tile, Refill refill) {
    int lane = threadIdx.x & 31, row = threadIdx.x / 32 * 16 + lane / 4;
    fragment f;
    if constexpr (DTYPE == HSP_E4M3)
        take_e4m3((const uint32_t *)keys, row, lane % 4, f);
    else
        take_bf16((const uint32_t *)keys, row, lane % 4, f);
    __syncthreads();
    refill();
    for (int image = 0; image < w.n_images; image++)
        score_query<DTYPE, HEADS>(p, w, f, image, tile * TILE);
}

template <int DTYPE, int HEADS>
static __device__ __forceinline__ void score_ring(const hsp__gpu_dsa &p, const work &w) {
    int32_t n_tiles = (w.n_tokens + TILE - 1) / TILE, step = gridDim.x;
    int stage = 0, parity = 0;
    for (int32_t tile = blockIdx.x; tile < n_tiles; tile += step) {
        barrier_wait(&w.full[stage], parity);
        score_tile<DTYPE, HEADS>(p, w, w.ring + stage * format<DTYPE>::TILE_BYTES, tile, [&]() {
            if (threadIdx.x == 0 && tile + (int64_t)STAGES * step < n_tiles)
                fetch<DTYPE>(w, tile + STAGES * step, stage);
        });
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        parity ^= stage == 0;
    }
}

/* -------------------------------------------------------------------------------------------------------- kernel -- */

/* Which tokens and queries the block has; false: none. */
static __device__ __forceinline__ bool find_work(const hsp__gpu_dsa &p, work &w) {
    w.entry = blockIdx.y;
    w.first_query = blockIdx.z * p.queries_together;
    int32_t left = p.batch.n_queries - w.first_query, slot = p.batch.slot[w.entry];
    w.n_images = left < p.queries_together ? left : p.queries_together;
    w.n_tokens = 0;
    for (int i = 0; i < w.n_images; i++)
        w.n_tokens = max(w.n_tokens, hsp__gpu_tokens(p.batch, w.entry, w.first_query + i));
    w.keys = p.rows.base + (uint64_t)(slot < 0 ? 0 : slot) * p.rows.request_stride;
    return slot >= 0 && (int32_t)blockIdx.x < (w.n_tokens + TILE - 1) / TILE;
}

/* Images of the queries, which lie one after the other, and the first tiles of the ring. */
template <int DTYPE, bool FLAT>
static __device__ __forceinline__ void begin(const hsp__gpu_dsa &p, const work &w, uint64_t *images_here) {
    if (threadIdx.x == 0) {
        barrier_init(images_here, 1);
        for (int i = 0; i < STAGES; i++)
            barrier_init(&w.full[i], 1);
        barriers_ready();
        int32_t n_tiles = (w.n_tokens + TILE - 1) / TILE;
        if (FLAT)
            for (int i = 0; i < STAGES && blockIdx.x + (int64_t)i * gridDim.x < n_tiles; i++)
                fetch<DTYPE>(w, blockIdx.x + i * gridDim.x, i);
        const unsigned char *query = p.query + ((size_t)w.entry * p.batch.n_queries + w.first_query) * p.image_bytes;
        uint32_t bytes = w.n_images * (uint32_t)p.image_bytes;
        barrier_expect(images_here, bytes);
        copy_bulk(w.images, query, bytes, images_here);
    }
    __syncthreads();
    barrier_wait(images_here, 0);
}

template <int DTYPE, int HEADS, bool FLAT>
static __global__ void __launch_bounds__(THREADS) dsa_scores_kernel(const __grid_constant__ hsp__gpu_dsa p) {
    extern __shared__ unsigned char memory[];
    __shared__ uint64_t full[STAGES], images_here;
    work w;
    if (!find_work(p, w))
        return;
    w.images = memory + (-shared_address(memory) & 1023);
    w.ring = w.images + (size_t)p.queries_together * p.image_bytes;
    w.full = full;
    begin<DTYPE, FLAT>(p, w, &images_here);
    if constexpr (FLAT)
        score_ring<DTYPE, HEADS>(p, w);
    else
        for (int32_t tile = blockIdx.x; tile < (w.n_tokens + TILE - 1) / TILE; tile += gridDim.x) {
            copy_rows<DTYPE>(p, w, tile);
            __syncthreads();
            score_tile<DTYPE, HEADS>(p, w, w.ring, tile, []() {});
        }
}

/* ------------------------------------------------------------------------------------------------------- launch -- */

template <int DTYPE, int HEADS>
static const void *kernel_of(bool flat) {
    return flat ? (const void *)dsa_scores_kernel<DTYPE, HEADS, true>
                : (const void *)dsa_scores_kernel<DTYPE, HEADS, false>;
}

/* Blocks of a request: enough to fill the largest GPU a few times with the whole batch, at most one a tile. */
static int64_t blocks_of(const hsp_gpu_batch *b) {
    int64_t tiles = hsp__gpu_pieces(b->max_tokens, TILE), wanted = b->batch ? 4096 / b->batch : 1;
    wanted = wanted < 32 ? 32 : wanted;
    return tiles < wanted ? tiles : wanted;
}

int hsp__gpu_dsa_scores_fast(const hsp__gpu_dsa *dsa, int32_t dtype, void *stream) {
    hsp__gpu_dsa p = *dsa;
    int heads = hsp__dsa_group_heads(p.n_heads), groups = hsp__dsa_group_count(p.n_heads);
    size_t key_bytes = dtype == HSP_E4M3 ? (size_t)format<HSP_E4M3>::KEY_BYTES : (size_t)format<HSP_BF16>::KEY_BYTES;
    bool flat = p.rows.row_stride == key_bytes && ((uintptr_t)p.rows.base | p.rows.request_stride) % 16 == 0;
    int together = HSP__DSA_MOST_GROUPS / groups;
    p.queries_together = p.batch.n_queries < together ? p.batch.n_queries : together;
    size_t shared_bytes = 1024 + p.queries_together * p.image_bytes + (flat ? STAGES : 1) * TILE * key_bytes;
    dim3 grid((unsigned)blocks_of(&p.batch), (unsigned)p.batch.batch,
              (unsigned)hsp__gpu_pieces(p.batch.n_queries, p.queries_together));
    const void *kernel = dtype == HSP_E4M3
                             ? (heads == 64 ? kernel_of<HSP_E4M3, 64>(flat) : kernel_of<HSP_E4M3, 32>(flat))
                             : (heads == 64 ? kernel_of<HSP_BF16, 64>(flat) : kernel_of<HSP_BF16, 32>(flat));
    return hsp__gpu_launch(kernel, grid, THREADS, 1, shared_bytes, &p, stream);
}
