/* SPDX-License-Identifier: Apache-2.0
 *
 * What all attention kernels share. The rows of a query are cut into n_chunks runs of whole tiles. A block takes one
 * chunk with some heads, goes through its tiles in ascending order with a running maximum, and leaves its results in
 * shared memory; the blocks of all chunks, which are one cluster, then each combine, in ascending order, those of some
 * of the heads. Which numbers are added in which order therefore depends on the shapes and on n_chunks
 * alone.
 */
#ifndef HSP_ATTENTION_CUH
#define HSP_ATTENTION_CUH

#include "batch.h"

#include <cfloat>
#include <cmath>
#include <cstdint>

#define HSP__MOST_CHUNKS 8 /* blocks of a cluster that every device has */
#define HSP__LOG2E       1.44269504f

struct hsp__plane {
    const char *base;
    uint64_t block_stride, row_stride;
    uint32_t rows_per_block;
};

/* One call, of GQA or MLA. */
struct hsp__attention {
    hsp__plane plane[2]; /* K and V; rows of MLA, scales of HSP_MLA_V4 */
    const int32_t *slot, *row_ids;
    const float *query, *sink;
    float *out, *lse;
    int32_t n_queries, n_rows;
    int32_t n_lists; /* of row ids a query: 1 or n_kv_heads */
    int32_t n_heads, n_kv_heads, key_dim, value_dim;
    int32_t n_chunks, head_blocks; /* blocks that share the heads of one KV head */
    float scale;                   /* times log2(e): exponentials are powers of two */
};

/* What a block does. */
struct hsp__job {
    int64_t query; /* of all queries of the batch */
    const int32_t *ids;
    int32_t kv_head, first_head, n_heads; /* n_heads: that there are of those the block has room for */
    int32_t chunk, tile, end;             /* tiles tile .. end - 1 */
};

/* The grid, along x from the fastest: chunk, block of heads, KV head, query, entry. */
static __device__ __forceinline__ hsp__job hsp__job_of(const hsp__attention &a, int32_t heads) {
    uint32_t x = blockIdx.x, n_tiles = (uint32_t)(a.n_rows + HSP_ATTENTION_TILE - 1) / HSP_ATTENTION_TILE;
    hsp__job j;
    j.chunk = (int32_t)(x % a.n_chunks);
    x /= a.n_chunks;
    int32_t group = a.n_heads / a.n_kv_heads, begin = (int32_t)(x % a.head_blocks) * heads;
    x /= a.head_blocks;
    j.kv_head = (int32_t)(x % a.n_kv_heads);
    j.query = x / a.n_kv_heads;
    j.first_head = j.kv_head * group + begin;
    j.n_heads = min(heads, group - begin);
    j.ids = a.row_ids + (j.query * a.n_lists + (a.n_lists == 1 ? 0 : j.kv_head)) * a.n_rows;
    j.tile = (int32_t)(n_tiles * j.chunk / a.n_chunks);
    j.end = (int32_t)(n_tiles * (j.chunk + 1) / a.n_chunks);
    if (a.slot[j.query / a.n_queries] < 0)
        j.end = j.tile; /* padding */
    return j;
}

/* Row id of place i of the selection, -1 beyond its end. */
static __device__ __forceinline__ int32_t hsp__id_at(const hsp__attention &a, const hsp__job &j, int32_t i) {
    return i < a.n_rows ? __ldg(j.ids + i) : -1;
}

static __device__ __forceinline__ const char *hsp__row_at(const hsp__plane &plane, int32_t id) {
    if (plane.rows_per_block == 1)
        return plane.base + (uint64_t)id * plane.block_stride;
    uint32_t block = (uint32_t)id / plane.rows_per_block, row = (uint32_t)id - block * plane.rows_per_block;
    return plane.base + block * plane.block_stride + row * plane.row_stride;
}

/* ------------------------------------------------------------------------------------------------ small pieces -- */

static __device__ __forceinline__ uint32_t hsp__shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 2^x; 0 below 2^-126, which is a little more than e^-87.4. */
static __device__ __forceinline__ float hsp__power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the four lanes that have one row of a fragment. */
static __device__ __forceinline__ float hsp__row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

static __device__ __forceinline__ float hsp__row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* 16 bytes to shared memory; zeros, and nothing is read, unless `there`. */
static __device__ __forceinline__ void hsp__copy16(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

static __device__ __forceinline__ void hsp__copy4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void hsp__store16(uint32_t to, uint4 value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

static __device__ __forceinline__ void hsp__copies_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT>
static __device__ __forceinline__ void hsp__copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* All threads of all blocks of the cluster; what was stored before is seen behind it. */
static __device__ __forceinline__ void hsp__cluster_sync(void) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same where nothing needs to be seen: it does not wait for stores. */
static __device__ __forceinline__ void hsp__cluster_meet(void) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* The same place in shared memory, in another block of the cluster. */
static __device__ __forceinline__ uint32_t hsp__in_block(uint32_t address, uint32_t block) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}

static __device__ __forceinline__ float2 hsp__load8(uint32_t from) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}

static __device__ __forceinline__ float4 hsp__load16(uint32_t from) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* ---------------------------------------------------------------------------------------------------- combining -- */

/* What a chunk leaves of a head: maximum and sum of the exponentials (0: nothing had weight), and weighted values. In
 * shared memory they lie as float values [heads][pitch], then float2 sums [heads]. */
static __host__ __device__ __forceinline__ int32_t hsp__pitch(int32_t value_dim) {
    return value_dim + 8; /* rows of a fragment in different banks, value_dim being a multiple of 16 */
}

static inline size_t hsp__exchange_bytes(int32_t heads, int32_t value_dim) {
    return (size_t)heads * (size_t)(hsp__pitch(value_dim) + 2) * sizeof(float);
}

/* Where this block's values and sums of a head go to, and whether there is such a head. */
struct hsp__place {
    float *values;
    float2 *sums;
    bool wanted;
};

static __device__ __forceinline__ hsp__place hsp__place_of(const hsp__attention &a, const hsp__job &j, int32_t heads,
                                                           void *exchange, int32_t head) {
    float *values = (float *)exchange, *sums = values + heads * hsp__pitch(a.value_dim);
    return {values + head * hsp__pitch(a.value_dim), (float2 *)sums + head, head < j.n_heads};
}

/* A lane's part of one head in one chunk: channels 128 i + 4 lane and on, of CHANNELS at most. */
template <int CHANNELS>
struct hsp__part {
    static const int QUADS = (CHANNELS + 127) / 128;
    float4 values[QUADS];
};

template <int CHANNELS>
static __device__ __forceinline__ hsp__part<CHANNELS> hsp__load_part(const hsp__attention &a, uint32_t values,
                                                                     int32_t chunk) {
    const uint32_t lane = threadIdx.x % 32, from = hsp__in_block(values, (uint32_t)chunk) + 16u * lane;
    hsp__part<CHANNELS> part = {};
#pragma unroll
    for (int32_t i = 0; i < part.QUADS; i++)
        if (i * 128 + (int32_t)lane * 4 < a.value_dim)
            part.values[i] = hsp__load16(from + 512 * i);
    return part;
}

template <int CHANNELS>
static __device__ __forceinline__ void hsp__add_part(hsp__part<CHANNELS> &out, float weight,
                                                     const hsp__part<CHANNELS> &part) {
#pragma unroll
    for (int i = 0; i < part.QUADS; i++) {
        const float4 v = part.values[i];
        float4 &to = out.values[i];
        to.x += weight * v.x, to.y += weight * v.y, to.z += weight * v.z, to.w += weight * v.w;
    }
}

/* One head, by one warp, of which lane c knows the sums of chunk c: weights of the chunks, the sink, the sum. values:
 * the head's, in the first block. Two chunks are on their way at a time, the first two before the weights are known. */
template <int CHANNELS>
static __device__ __forceinline__ void hsp__combine_head(const hsp__attention &a, uint32_t values, float2 sums,
                                                         int64_t head_row, float sink) {
    const int32_t lane = threadIdx.x % 32, last = a.n_chunks - 1;
    hsp__part<CHANNELS> first = hsp__load_part<CHANNELS>(a, values, 0), out = {};
    hsp__part<CHANNELS> second = hsp__load_part<CHANNELS>(a, values, min(1, last));
    const bool live = lane < a.n_chunks && sums.y != 0.0f;
    float top = live ? fmaxf(-FLT_MAX, sums.x) : -FLT_MAX, total = 0.0f;
#pragma unroll
    for (int other = 1; other < HSP__MOST_CHUNKS; other *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
    top = __shfl_sync(~0u, top, 0);
    const float weight = live ? hsp__power(sums.x - top) : 0.0f, share = live ? weight * sums.y : 0.0f;
    const uint32_t alive = __ballot_sync(~0u, live); /* of the others the values may be anything */
    for (int32_t c = 0; c < a.n_chunks; c += 2) {
        if (c > 0)
            first = hsp__load_part<CHANNELS>(a, values, c), second = hsp__load_part<CHANNELS>(a, values, c + 1);
        const float w[2] = {__shfl_sync(~0u, weight, c), __shfl_sync(~0u, weight, c + 1)};
        total += __shfl_sync(~0u, share, c);
        total += __shfl_sync(~0u, share, c + 1); /* 0 beyond the last chunk */
        if (alive >> c & 1)
            hsp__add_part(out, w[0], first);
        if (alive >> c & 2)
            hsp__add_part(out, w[1], second);
    }
    const float denominator = total + hsp__power(sink - top), inverse = 1.0f / denominator;
    const bool nothing = total == 0.0f || denominator == INFINITY;
#pragma unroll
    for (int i = 0; i < out.QUADS; i++) {
        float4 v = out.values[i];
        v = nothing ? float4{} : float4{v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse};
        if (i * 128 + lane * 4 < a.value_dim)
            ((float4 *)(a.out + head_row * a.value_dim))[i * 32 + lane] = v;
    }
    if (a.lse && lane == 0)
        a.lse[head_row] = total == 0.0f ? -INFINITY : (top + log2f(total)) * 0.693147181f;
}

/* Of the heads of a block each block of the cluster combines heads / n_chunks, warp `warp` of n_warps every n_warps-th.
 * Between the two barriers: results are there, and nobody leaves whose results are asked for. */
template <int CHANNELS>
static __device__ __forceinline__ void hsp__combine(const hsp__attention &a, const hsp__job &j, int32_t heads,
                                                    const void *exchange, int32_t warp, int32_t n_warps) {
    const int32_t each = heads / a.n_chunks, lane = threadIdx.x % 32;
    const uint32_t values = hsp__shared(exchange), sums = values + 4u * (uint32_t)(heads * hsp__pitch(a.value_dim));
    hsp__cluster_sync();
    for (int32_t i = warp; i < each && j.chunk * each + i < j.n_heads; i += n_warps) {
        const int32_t head = j.chunk * each + i;
        const float sink = a.sink ? __ldg(a.sink + j.first_head + head) * HSP__LOG2E : -INFINITY;
        const uint32_t chunk = (uint32_t)(lane < a.n_chunks ? lane : 0);
        const float2 sum = hsp__load8(hsp__in_block(sums + 8u * (uint32_t)head, chunk));
        hsp__combine_head<CHANNELS>(a, values + 4u * (uint32_t)(head * hsp__pitch(a.value_dim)), sum,
                                    j.query * a.n_heads + j.first_head + head, sink);
    }
    hsp__cluster_meet();
}

/* ---------------------------------------------------------------------------------------------------- host side -- */

static inline hsp__plane hsp__plane_of(const hsp_plane_view *view) {
    return {(const char *)view->base, view->block_stride, view->row_stride, (uint32_t)view->rows_per_block};
}

/* Loads are this wide. */
static inline bool hsp__plane_aligned(const hsp_plane_view *view, size_t bytes) {
    return (((size_t)view->base | view->block_stride | (view->rows_per_block > 1 ? view->row_stride : 0)) % bytes) == 0;
}

/* n_chunks: a power of two. The rows, and pointers of a call that has any work. */
static inline int hsp__attention_check(const hsp_gpu_batch *batch, const hsp__attention &a) {
    if (a.n_rows < 0 || a.n_chunks < 1 || a.n_chunks > HSP__MOST_CHUNKS || (a.n_chunks & (a.n_chunks - 1)))
        return HSP_EINVAL;
    if (batch->batch && (!a.query || !a.out || (a.n_rows && !a.row_ids) || ((size_t)a.query | (size_t)a.out) % 16))
        return HSP_EINVAL;
    return a.n_rows > INT32_MAX / 16 ? HSP_ELIMIT : HSP_OK;
}

/* Blocks of a call; HSP_ELIMIT where a grid has no room for them. */
static inline int hsp__attention_blocks(const hsp__attention &a, const hsp_gpu_batch *batch, unsigned *blocks_out) {
    int64_t blocks = (int64_t)batch->batch * batch->n_queries * a.n_kv_heads * a.head_blocks * a.n_chunks;
    *blocks_out = (unsigned)blocks;
    return blocks > INT32_MAX ? HSP_ELIMIT : HSP_OK;
}

#endif
