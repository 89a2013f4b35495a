/* SPDX-License-Identifier: Apache-2.0
 *
 * The attention kernel for any shape and any GPU from compute capability 8.0 on: mma.sync on 16 x 8 x 16, operands
 * through ldmatrix. Heads go along M, in WM times 16; WN warps share the rows of a tile for the scores, and the
 * channels of the values for the sum.
 *
 * A loader names the number format and brings the rows of a tile into shared memory, as cp.async if it likes.
 */
#ifndef HSP_ATTENTION_MMA_CUH
#define HSP_ATTENTION_MMA_CUH

#include "attention.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define TILE     HSP_ATTENTION_TILE
#define IDS_KEPT 3 /* tiles of row ids in shared memory: this one's, the next one's, and one on its way */

/* Bytes from row to row in shared memory: an odd number of 16 bytes, so that the eight rows that ldmatrix reads at a
 * time are in different banks. */
static __host__ __device__ __forceinline__ uint32_t pitch_of(int32_t dim) {
    return (uint32_t)dim * 2 + 16;
}

/* Where things lie, in bytes. The exchange of results comes over Q and the stages, once nobody reads them any more. */
struct tile_layout {
    uint32_t ids, part, weights, query, stage, stage_bytes, value_offset, n_stages;
};

static inline size_t lay_out_tile(const hsp__attention &a, int heads, int wn, bool value_is_key, int n_stages,
                                  tile_layout *out) {
    tile_layout l;
    l.ids = 0;
    l.part = l.ids + IDS_KEPT * TILE * 4;
    l.weights = l.part + (uint32_t)(wn * heads) * 4;
    l.query = l.weights + (uint32_t)heads * pitch_of(TILE);
    l.stage = l.query + (uint32_t)heads * pitch_of(a.key_dim);
    l.value_offset = value_is_key ? 0 : TILE * pitch_of(a.key_dim);
    l.stage_bytes = TILE * pitch_of(a.key_dim) + (value_is_key ? 0 : TILE * pitch_of(a.value_dim));
    l.n_stages = (uint32_t)n_stages;
    size_t bytes = l.stage + (size_t)n_stages * l.stage_bytes;
    size_t exchange = l.query + hsp__exchange_bytes(heads, a.value_dim);
    *out = l;
    return bytes > exchange ? bytes : exchange;
}

struct mma_call {
    hsp__attention a;
    tile_layout layout;
};

/* ------------------------------------------------------------------------------------------------- instructions -- */

static __device__ __forceinline__ void load_matrix(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

template <typename number>
struct numbers;

#define MMA(type)                                                                                                      \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "    \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                                         \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

template <>
struct numbers<__nv_bfloat16> {
    static __device__ __forceinline__ uint32_t pair(float x, float y) {
        __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
        return *(uint32_t *)&both;
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        MMA("bf16");
    }
};

template <>
struct numbers<__half> {
    static __device__ __forceinline__ uint32_t pair(float x, float y) {
        __half2 both = __floats2half2_rn(x, y);
        return *(uint32_t *)&both;
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        MMA("f16");
    }
};
#undef MMA

/* Eight floats, rounded. */
template <typename number>
static __device__ __forceinline__ uint4 round_eight(const float4 *from) {
    float4 x = from[0], y = from[1];
    return {numbers<number>::pair(x.x, x.y), numbers<number>::pair(x.z, x.w), numbers<number>::pair(y.x, y.y),
            numbers<number>::pair(y.z, y.w)};
}

/* ------------------------------------------------------------------------------------------------------- a tile -- */

/* What a thread knows of the tile loop. Fragments: rows lane / 4 and lane / 4 + 8 of 16 heads, columns 2 (lane % 4) and
 * one more of every 8. */
template <int WM, int WN>
struct mma_block {
    static const int HEADS = 16 * WM, THREADS = 32 * WM * WN, ROWS = TILE / WN;
    const mma_call &call;
    const hsp__job &job;
    unsigned char *memory;
    int lane, wm, wn;
    float top[2], sum[2]; /* of its two heads; the sum is of the columns this thread has seen */

    __device__ __forceinline__ mma_block(const mma_call &c, const hsp__job &j, unsigned char *m)
        : call(c), job(j), memory(m), lane(threadIdx.x % 32), wm(threadIdx.x / 32 % WM), wn(threadIdx.x / 32 / WM) {
        top[0] = top[1] = -FLT_MAX;
        sum[0] = sum[1] = 0.0f;
    }
    __device__ __forceinline__ int32_t *ids(int32_t tile) const {
        return (int32_t *)(memory + call.layout.ids) + tile % IDS_KEPT * TILE;
    }
    __device__ __forceinline__ uint32_t stage(int32_t i) const {
        return hsp__shared(memory) + call.layout.stage + (uint32_t)i % call.layout.n_stages * call.layout.stage_bytes;
    }
};

template <typename number, int THREADS>
static __device__ __forceinline__ void load_query(const mma_call &c, const hsp__job &j, int heads,
                                                  unsigned char *memory) {
    const int32_t pieces = c.a.key_dim / 8;
    const float *query = c.a.query + (j.query * c.a.n_heads + j.first_head) * c.a.key_dim;
    for (int32_t i = threadIdx.x; i < heads * pieces; i += THREADS) {
        int32_t head = i / pieces, piece = i % pieces;
        uint4 value = {0, 0, 0, 0};
        if (head < j.n_heads)
            value = round_eight<number>((const float4 *)(query + (int64_t)head * c.a.key_dim + piece * 8));
        *(uint4 *)(memory + c.layout.query + head * pitch_of(c.a.key_dim) + piece * 16) = value;
    }
}

static __device__ __forceinline__ void load_ids(const hsp__attention &a, const hsp__job &j, int32_t tile, int32_t *to) {
    const int32_t at = tile * TILE + (int32_t)threadIdx.x;
    if (threadIdx.x >= TILE || tile >= j.end)
        return;
    if (at < a.n_rows)
        hsp__copy4(hsp__shared(to + threadIdx.x), j.ids + at);
    else
        to[threadIdx.x] = -1;
}

/* scores: 16 heads against the warp's rows, in fragments of 8 rows. */
template <typename number, int WM, int WN>
static __device__ __forceinline__ void score_rows(const mma_block<WM, WN> &b, uint32_t stage,
                                                  float (&scores)[TILE / WN / 8][4]) {
    const int rows = mma_block<WM, WN>::ROWS;
    const uint32_t pitch = pitch_of(b.call.a.key_dim), at8 = b.lane % 8, half = b.lane / 8 % 2, quarter = b.lane / 16;
    uint32_t q = hsp__shared(b.memory) + b.call.layout.query + (b.wm * 16 + at8 + half * 8) * pitch + quarter * 16;
    uint32_t k = stage + (b.wn * rows + at8 + quarter * 8) * pitch + half * 16;
#pragma unroll
    for (int n = 0; n < rows / 8; n++)
        scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
#pragma unroll 4
    for (int32_t step = 0; step < b.call.a.key_dim / 16; step++) {
        uint32_t heads[4], keys[4];
        load_matrix(heads, q + step * 32);
#pragma unroll
        for (int n = 0; n < rows / 16; n++) {
            load_matrix(keys, k + n * 16 * pitch + step * 32);
            numbers<number>::mma(scores[2 * n], heads, keys[0], keys[1]);
            numbers<number>::mma(scores[2 * n + 1], heads, keys[2], keys[3]);
        }
    }
}

/* Scale the scores, take out what is masked, and leave the maxima of the warp's rows for the others. */
template <int WM, int WN>
static __device__ __forceinline__ void mask_rows(const mma_block<WM, WN> &b, const int32_t *ids,
                                                 float (&scores)[TILE / WN / 8][4]) {
    float most[2] = {-FLT_MAX, -FLT_MAX};
#pragma unroll
    for (int n = 0; n < TILE / WN / 8; n++) {
        int2 id = *(const int2 *)(ids + b.wn * (TILE / WN) + n * 8 + b.lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scores[n][i] = (i % 2 ? id.y : id.x) < 0 ? -INFINITY : scores[n][i] * b.call.a.scale;
            most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
        }
    }
    float *part = (float *)(b.memory + b.call.layout.part) + b.wn * b.HEADS + b.wm * 16 + b.lane / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i] = hsp__row_max(most[i]);
        if (b.lane % 4 == 0)
            part[i * 8] = most[i];
    }
}

/* Turn scores into weights against the new maximum, which goes to shared memory for the sum of values; `fade` is what
 * earlier sums are to be multiplied with. */
template <typename number, int WM, int WN>
static __device__ __forceinline__ void weigh_rows(mma_block<WM, WN> &b, float (&scores)[TILE / WN / 8][4],
                                                  float (&fade)[2]) {
    const float *part = (const float *)(b.memory + b.call.layout.part) + b.wm * 16 + b.lane / 4;
    unsigned char *weights = b.memory + b.call.layout.weights;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = b.top[i];
#pragma unroll
        for (int w = 0; w < WN; w++)
            most = fmaxf(most, part[w * b.HEADS + i * 8]);
        fade[i] = hsp__power(b.top[i] - most);
        b.top[i] = most;
        b.sum[i] *= fade[i];
    }
#pragma unroll
    for (int n = 0; n < TILE / WN / 8; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float x = hsp__power(scores[n][2 * i] - b.top[i]), y = hsp__power(scores[n][2 * i + 1] - b.top[i]);
            b.sum[i] += x + y;
            *(uint32_t *)(weights + (b.wm * 16 + b.lane / 4 + i * 8) * pitch_of(TILE) +
                          (b.wn * (TILE / WN) + n * 8 + b.lane % 4 * 2) * 2) = numbers<number>::pair(x, y);
        }
    }
}

/* Add weights times values: of every 16 * WN channels the warp takes 16. */
template <typename number, int WM, int WN, int VT>
static __device__ __forceinline__ void sum_values(const mma_block<WM, WN> &b, uint32_t stage, const float (&fade)[2],
                                                  float (&values)[VT][4]) {
    const uint32_t at8 = b.lane % 8, half = b.lane / 8 % 2, quarter = b.lane / 16;
    const uint32_t pitch = pitch_of(b.call.layout.value_offset ? b.call.a.value_dim : b.call.a.key_dim);
    uint32_t p =
        hsp__shared(b.memory) + b.call.layout.weights + (b.wm * 16 + at8 + half * 8) * pitch_of(TILE) + quarter * 16;
    uint32_t v = stage + b.call.layout.value_offset + (at8 + half * 8) * pitch + (b.wn * 16 + quarter * 8) * 2;
#pragma unroll
    for (int n = 0; n < VT; n++) {
        values[n][0] *= fade[0], values[n][1] *= fade[0];
        values[n][2] *= fade[1], values[n][3] *= fade[1];
    }
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        uint32_t weights[4], rows[4];
        load_matrix(weights, p + step * 32);
#pragma unroll
        for (int n = 0; n < VT / 2; n++) {
            if ((n * WN + b.wn) * 16 >= b.call.a.value_dim)
                continue;
            load_transposed(rows, v + step * 16 * pitch + n * WN * 32);
            numbers<number>::mma(values[2 * n], weights, rows[0], rows[1]);
            numbers<number>::mma(values[2 * n + 1], weights, rows[2], rows[3]);
        }
    }
}

/* Values and sums, for the blocks that combine them. */
template <int WM, int WN, int VT>
static __device__ __forceinline__ void leave_results(mma_block<WM, WN> &b, const float (&values)[VT][4]) {
    const hsp__attention &a = b.call.a;
    float *part = (float *)(b.memory + b.call.layout.part) + b.wm * 16 + b.lane / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        b.sum[i] = hsp__row_sum(b.sum[i]);
        if (b.lane % 4 == 0)
            part[b.wn * b.HEADS + i * 8] = b.sum[i];
    }
    __syncthreads(); /* nobody reads Q and the stages any more */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        hsp__place to =
            hsp__place_of(a, b.job, b.HEADS, b.memory + b.call.layout.query, b.wm * 16 + b.lane / 4 + i * 8);
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < WN; w++)
            total += part[w * b.HEADS + i * 8];
        if (to.wanted && b.wn == 0 && b.lane % 4 == 0)
            *to.sums = {b.top[i], total};
#pragma unroll
        for (int n = 0; n < VT; n++) {
            int32_t channel = (n / 2 * WN + b.wn) * 16 + n % 2 * 8 + b.lane % 4 * 2;
            if (to.wanted && channel < a.value_dim)
                *(float2 *)(to.values + channel) = {values[n][2 * i], values[n][2 * i + 1]};
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- kernel -- */

/* loader: number; VALUE_IS_KEY; load<THREADS>(a, job, ids of the tile, stage, layout). VT: fragments of 8 channels a
 * warp has of the values, enough for value_dim. */
template <typename loader, int WM, int WN, int VT>
__global__ void __launch_bounds__(32 * WM * WN) attend_kernel(const __grid_constant__ mma_call call) {
    extern __shared__ __align__(128) unsigned char memory[];
    typedef typename loader::number number;
    const int THREADS = 32 * WM * WN, HEADS = 16 * WM;
    const hsp__attention &a = call.a;
    const hsp__job job = hsp__job_of(a, HEADS);
    mma_block<WM, WN> b(call, job, memory);
    float values[VT][4] = {}, scores[TILE / WN / 8][4], fade[2];
    const bool ahead = call.layout.n_stages == 2;
    load_query<number, THREADS>(call, job, HEADS, memory);
    load_ids(a, job, job.tile, b.ids(job.tile));
    load_ids(a, job, job.tile + 1, b.ids(job.tile + 1));
    hsp__copies_commit();
    hsp__copies_wait<0>();
    __syncthreads();
    if (ahead && job.tile < job.end)
        loader::template load<THREADS>(a, job, b.ids(job.tile), b.stage(job.tile), call.layout);
    for (int32_t tile = job.tile; tile < job.end; tile++) {
        if (!ahead) {
            __syncthreads(); /* the sum of the tile before is done */
            loader::template load<THREADS>(a, job, b.ids(tile), b.stage(tile), call.layout);
        }
        hsp__copies_commit();
        hsp__copies_wait<0>();
        __syncthreads();
        load_ids(a, job, tile + 2, b.ids(tile + 2));
        if (ahead && tile + 1 < job.end)
            loader::template load<THREADS>(a, job, b.ids(tile + 1), b.stage(tile + 1), call.layout);
        score_rows<number>(b, b.stage(tile), scores);
        mask_rows(b, b.ids(tile), scores);
        __syncthreads();
        weigh_rows<number>(b, scores, fade);
        __syncthreads();
        sum_values<number>(b, b.stage(tile), fade, values);
    }
    leave_results(b, values);
    hsp__combine<VT * WN * 8>(a, job, HEADS, memory + call.layout.query, threadIdx.x / 32, WM * WN);
}

/* As many stages as fit, two at most. */
template <typename loader, int WM, int WN, int VT>
static int attend_launch(const hsp__attention &a, const hsp_gpu_batch *batch, void *stream) {
    mma_call call;
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return HSP_EDEVICE;
    call.a = a;
    size_t bytes = lay_out_tile(a, 16 * WM, WN, loader::VALUE_IS_KEY, 2, &call.layout);
    if (bytes > (size_t)most)
        bytes = lay_out_tile(a, 16 * WM, WN, loader::VALUE_IS_KEY, 1, &call.layout);
    unsigned blocks;
    int status = hsp__attention_blocks(a, batch, &blocks);
    return status ? status
                  : hsp__gpu_launch((const void *)attend_kernel<loader, WM, WN, VT>, dim3(blocks), 32 * WM * WN,
                                    a.n_chunks, bytes, &call, stream);
}

#endif
