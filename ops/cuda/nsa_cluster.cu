/* SPDX-License-Identifier: Apache-2.0
 *
 * Importances of NSA's blocks in one launch. A cluster of blocks has one query of a request and one KV head: each block
 * scores a stretch of the keys and keeps the scores of all heads of the group in shared memory, so that keys are read
 * once and scores never leave the multiprocessor. Greatest scores, sums of exponentials and sums over heads go from
 * block to block through distributed shared memory.
 *
 * Two blocks fit a multiprocessor at the sizes that matter: while one waits for the others of its cluster, the other
 * one reads.
 */
#include "key_products.cuh"
#include "nsa.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    MOST_BLOCKS = 8,    /* of a cluster */
    KEYS_A_BLOCK = 128, /* so many to a block, 16 a warp, until the cluster is as large as it may be */
    MOST_SHARED = 220 << 10
};

/* Of a block; the others of the cluster read tops and sums. */
struct shared_statistics {
    float warp_top[WARPS][HSP__MOST_HEADS];
    float top[HSP__MOST_HEADS], sum[HSP__MOST_HEADS];           /* of the block's keys */
    float whole_top[HSP__MOST_HEADS], inverse[HSP__MOST_HEADS]; /* of all keys: greatest score, 1 / sum */
};

/* What a block works on. */
struct stretch {
    int32_t n_all, each; /* keys of the request, keys of a block: a multiple of 16 */
    int32_t n;           /* keys of this block, 0 or more */
    int32_t n_heads;     /* of the group */
    int32_t row;         /* floats from head to head */
    float *scores;       /* shared, [n_heads][row]; then weights; row 0: then sums over heads */
};

/* Rows of eight consecutive keys for four pairs of heads touch all banks. */
static __host__ __device__ __forceinline__ int32_t row_of(int32_t each) {
    return each + 4;
}

static __host__ __device__ __forceinline__ int32_t keys_each(int32_t n_keys, int32_t n_blocks) {
    return ((n_keys + n_blocks - 1) / n_blocks + 15) / 16 * 16;
}

/* ------------------------------------------------------------------------------------------------------- scoring -- */

/* Scores of 16 keys from `first` on into shared memory; top: of the thread's heads 8 j + 2 quad + e, at 2 j + e. */
template <int TILES>
static __device__ __forceinline__ void keep_scores(const stretch &w, float scale, int32_t first, float d[TILES][4],
                                                   float top[2 * TILES]) {
    int lane = threadIdx.x & 31;
    int32_t key = first + lane / 4;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        int32_t head = i / 2 * 8 + lane % 4 * 2 + i % 2;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            if (key + 8 * n >= w.n || head >= w.n_heads)
                continue;
            float score = bounded(scale * d[i / 2][i % 2 + 2 * n]);
            w.scores[head * w.row + key + 8 * n] = score;
            top[i] = fmaxf(top[i], score);
        }
    }
}

/* Warps take 16 keys in turn; as soon as a piece of these is used, that of the warp's next 16 is on its way. The first
 * are on theirs while the query is taken apart. */
template <int PIECES, int TILES>
static __device__ __forceinline__ void score_stretch(const hsp__gpu_keys &p, const stretch &w,
                                                     const unsigned char *keys, const float *query,
                                                     unsigned char *parts, float warp_top[HSP__MOST_HEADS]) {
    int lane = threadIdx.x & 31;
    uint64_t policy = read_once();
    float top[2 * TILES], d[TILES][4];
    key_pieces<PIECES> k;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++)
        top[i] = -INFINITY;
    int32_t first = threadIdx.x / 32 * 16;
    if (first < w.n)
        take_keys<PIECES>(keys, p.key_stride, first, w.n - 1, k);
    load_query(query, 32 * PIECES, w.n_heads, 8 * TILES, THREADS, parts);
    __syncthreads();
#pragma unroll 1
    for (; first < w.n; first += 16 * WARPS) {
        const unsigned char *next[2];
        next[0] = place_of_key(keys, p.key_stride, first + 16 * WARPS, w.n - 1, 0);
        next[1] = place_of_key(keys, p.key_stride, first + 16 * WARPS, w.n - 1, 1);
        multiply_keys<PIECES, TILES>(k, parts, d, [&](int t) {
            k.of[0][t] = load_once(next[0] + 64 * t, policy);
            k.of[1][t] = load_once(next[1] + 64 * t, policy);
        });
        keep_scores<TILES>(w, p.scale, first, d, top);
    }
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        top[i] = greatest_of(top[i]);
        if (lane < 4)
            warp_top[i / 2 * 8 + lane * 2 + i % 2] = top[i];
    }
}

/* ------------------------------------------------------------------------------------------------------- softmax -- */

/* The greatest score of each head, in all blocks. */
static __device__ __forceinline__ void find_tops(shared_statistics &s, int32_t n_heads) {
    cg::cluster_group cluster = cg::this_cluster();
    int head = threadIdx.x;
    float top = -INFINITY;
    __syncthreads();
    if (head < n_heads) {
        for (int i = 0; i < WARPS; i++)
            top = fmaxf(top, s.warp_top[i][head]);
        s.top[head] = top;
    }
    cluster.sync();
    if (head < n_heads) {
        for (uint32_t block = 0; block < cluster.num_blocks(); block++)
            top = fmaxf(top, *cluster.map_shared_rank(&s.top[head], block));
        s.whole_top[head] = top;
    }
    __syncthreads();
}

/* Scores of a head become weights; their sum, NaN left out, by lanes and then by the butterfly. */
static __device__ __forceinline__ float weigh_head(float *scores, int32_t n, float top) {
    float sum = 0.0f;
#pragma unroll 4
    for (int32_t key = threadIdx.x & 31; key < n; key += 32) {
        float weight = exponential_of(scores[key] - top);
        scores[key] = weight;
        sum += fmaxf(weight, 0.0f);
    }
    for (int span = 16; span > 0; span /= 2)
        sum += __shfl_xor_sync(~0u, sum, span);
    return sum;
}

/* Weights, and what makes probabilities of them: blocks are added in ascending order. */
static __device__ __forceinline__ void weigh_keys(shared_statistics &s, const stretch &w) {
    cg::cluster_group cluster = cg::this_cluster();
    int head = threadIdx.x;
    for (int32_t h = threadIdx.x / 32; h < w.n_heads; h += WARPS) {
        float sum = weigh_head(w.scores + h * w.row, w.n, s.whole_top[h]);
        if (threadIdx.x % 32 == 0)
            s.sum[h] = sum;
    }
    cluster.sync();
    if (head < w.n_heads) {
        float sum = 0.0f;
        for (uint32_t block = 0; block < cluster.num_blocks(); block++)
            sum += *cluster.map_shared_rank(&s.sum[head], block);
        s.inverse[head] = 1.0f / sum;
    }
    __syncthreads();
}

/* A thread a key: heads one after the other. NaN of any head stays. */
static __device__ __forceinline__ void sum_heads(const shared_statistics &s, const stretch &w) {
    for (int32_t key = threadIdx.x; key < w.n; key += THREADS) {
        float sum = 0.0f;
#pragma unroll 4
        for (int32_t h = 0; h < w.n_heads; h++)
            sum = fmaf(w.scores[h * w.row + key], s.inverse[h], sum);
        w.scores[key] = sum;
    }
}

/* -------------------------------------------------------------------------------------------------------- kernel -- */

static __device__ __forceinline__ void write_importances(const hsp__gpu_nsa &p, const stretch &w, int32_t n_tokens,
                                                         float *importance) {
    cg::cluster_group cluster = cg::this_cluster();
    int32_t n_blocks = n_tokens / p.block_tokens + (n_tokens % p.block_tokens != 0), step = cluster.num_blocks();
    int32_t each = (n_blocks + step - 1) / step, first = cluster.block_rank() * each;
    for (int32_t block = first + threadIdx.x; block < min(first + each, n_blocks); block += THREADS)
        importance[block] = importance_of(p, w.n_all, block, [&](int32_t key) {
            return *cluster.map_shared_rank(&w.scores[key % w.each], key / w.each);
        });
}

template <int PIECES, int TILES>
static __global__ void __launch_bounds__(THREADS, PIECES > 6 - (TILES == 1) ? 1 : 2)
    nsa_cluster_kernel(const __grid_constant__ hsp__gpu_nsa p) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ shared_statistics s;
    cg::cluster_group cluster = cg::this_cluster();
    const hsp__gpu_keys &k = p.softmax.keys;
    int32_t entry = blockIdx.z / k.batch.n_queries, slot = k.batch.slot[entry], key_head = blockIdx.y;
    int32_t n_tokens = hsp__gpu_tokens(k.batch, entry, blockIdx.z % k.batch.n_queries);
    size_t row = (size_t)blockIdx.z * k.n_key_heads + key_head; /* of queries and KV heads */
    if (slot < 0)
        return;
    stretch w;
    w.n_all = n_tokens < k.span ? 0 : (n_tokens - k.span) / k.step + 1;
    w.each = keys_each(w.n_all, cluster.num_blocks());
    int32_t first = cluster.block_rank() * w.each;
    w.n = max(min(w.each, w.n_all - first), 0);
    w.n_heads = k.n_heads / k.n_key_heads;
    w.row = row_of(keys_each(k.most_keys, cluster.num_blocks()));
    w.scores = (float *)(memory + query_parts_bytes(8 * TILES, 32 * PIECES));
    const unsigned char *keys =
        k.keys + (uint64_t)slot * k.request_stride + (size_t)key_head * 64 * PIECES + (size_t)first * k.key_stride;
    score_stretch<PIECES, TILES>(k, w, keys, k.query + row * w.n_heads * k.key_dim, memory,
                                 s.warp_top[threadIdx.x / 32]);
    find_tops(s, w.n_heads);
    weigh_keys(s, w);
    sum_heads(s, w);
    cluster.sync();
    write_importances(p, w, n_tokens, p.importance + row * p.most_blocks);
    cluster.sync(); /* no block ends while another reads its sums */
}

/* ------------------------------------------------------------------------------------------------------- launch -- */

/* Blocks of a cluster, by the shape alone: they decide in which order sums are added. */
static int32_t blocks_of(int32_t most_keys) {
    int32_t blocks = 1;
    while (blocks < MOST_BLOCKS && most_keys > blocks * KEYS_A_BLOCK)
        blocks *= 2;
    return blocks;
}

static size_t shared_bytes(const hsp__gpu_keys *k) {
    int32_t group = k->n_heads / k->n_key_heads;
    return (size_t)query_parts_bytes(group > 8 ? 16 : 8, k->key_dim) +
           (size_t)group * row_of(keys_each(k->most_keys, blocks_of(k->most_keys))) * sizeof(float);
}

template <int PIECES>
static const void *kernel_of(bool wide) {
    return wide ? (const void *)nsa_cluster_kernel<PIECES, 2> : (const void *)nsa_cluster_kernel<PIECES, 1>;
}

int hsp__gpu_nsa_cluster_can(const hsp__gpu_nsa *nsa) {
    const hsp__gpu_keys *k = &nsa->softmax.keys;
    return k->dtype == HSP_BF16 && k->key_dim % 64 == 0 && k->key_dim <= 256 &&
           ((uintptr_t)k->keys | k->request_stride | k->key_stride) % 16 == 0 &&
           k->n_heads / k->n_key_heads <= HSP__MOST_HEADS && shared_bytes(k) <= MOST_SHARED;
}

int hsp__gpu_nsa_cluster(const hsp__gpu_nsa *nsa, void *stream) {
    const hsp__gpu_keys *k = &nsa->softmax.keys;
    int32_t blocks = blocks_of(k->most_keys);
    int64_t queries = (int64_t)k->batch.batch * k->batch.n_queries;
    bool wide = k->n_heads / k->n_key_heads > 8;
    const void *kernel = k->key_dim == 64    ? kernel_of<2>(wide)
                         : k->key_dim == 128 ? kernel_of<4>(wide)
                         : k->key_dim == 192 ? kernel_of<6>(wide)
                                             : kernel_of<8>(wide);
    if (queries > 65535)
        return HSP_ELIMIT;
    dim3 grid((unsigned)blocks, (unsigned)k->n_key_heads, (unsigned)queries);
    return hsp__gpu_launch(kernel, grid, THREADS, blocks, shared_bytes(k), nsa, stream);
}
