/* SPDX-License-Identifier: Apache-2.0
 *
 * Importances of NSA's blocks in one launch. A cluster of blocks has one query of a request and one KV head: each block
 * weighs a stretch of the keys and keeps the weights of all heads of the group in shared memory, so that keys are read
 * once and nothing of all heads leaves the multiprocessor. Greatest scores, sums of exponentials and sums over heads go
 * from block to block through distributed shared memory. Exponentials are taken while keys are on their way: what comes
 * after the last key is short.
 *
 * Two blocks fit a multiprocessor at the sizes that matter. They start together and so read and wait together: before
 * a cluster waits, it has the L2 fetch the first keys of the one that will take its place.
 */
#include "nsa.h"
#include "nsa_products.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    MOST_BLOCKS = 8,    /* of a cluster */
    KEYS_A_BLOCK = 128, /* so many to a block, 16 a warp, until the cluster is as large as it may be */
    MOST_SHARED = 220 << 10,
    AHEAD_BYTES = 96 << 10 /* of a block: with two on each of 132 multiprocessors half of the L2 */
};

/* Greatest scores of some keys, and sums of exponentials of the differences from them, NaN in neither. */
struct statistics {
    float top[HSP__MOST_HEADS], sum[HSP__MOST_HEADS];
};

/* Of a block; the others of the cluster read `block`. */
struct shared_statistics {
    statistics of_warp[WARPS]; /* then of the cluster's blocks */
    statistics block;
    float top[HSP__MOST_HEADS], inverse[HSP__MOST_HEADS]; /* of all keys: greatest score, 1 / sum */
};

/* What a block works on. */
struct stretch {
    int32_t n_tokens;          /* of the request */
    int32_t n_all, each;       /* keys of the request, keys of a block: a multiple of 16 */
    int32_t first, n;          /* keys of this block: n of them, 0 or more */
    int32_t n_heads;           /* of the group */
    int32_t row;               /* floats from head to head */
    const unsigned char *keys; /* from the first of this block on */
    /* Shared. A weight is e to the difference of a score from the greatest that its warp had seen by then. */
    float *weights; /* [n_heads][row]; row 0: then sums over heads */
    float *tops;    /* [each / 16][HSP__MOST_HEADS], those greatest scores; then what makes probabilities of weights */
};

/* Rows of eight consecutive keys for four pairs of heads touch all banks. */
static __host__ __device__ __forceinline__ int32_t row_of(int32_t each) {
    return each + 4;
}

static __host__ __device__ __forceinline__ int32_t keys_each(int32_t n_keys, int32_t n_blocks) {
    return ((n_keys + n_blocks - 1) / n_blocks + 15) / 16 * 16;
}

/* ------------------------------------------------------------------------------------------------------- scoring -- */

/* e^x, which may be 0 below e^-87; NaN stays. */
static __device__ __forceinline__ float power(float x) {
    float y, z = x * 1.44269504f;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(z));
    return y;
}

/* What a sum is to be multiplied with when the greatest score becomes another. */
static __device__ __forceinline__ float factor_of(float top, float new_top) {
    return top == new_top ? 1.0f : power(top - new_top);
}

/* Of the thread's heads 8 j + 2 quad + e, at 2 j + e: greatest score of its warp so far, sum over its own keys. */
template <int TILES>
struct running {
    float top[2 * TILES], sum[2 * TILES];
};

/* Weights of 16 keys from `first` on, which may be beyond the last. There is no branch to skip them: the next keys'
 * registers are put in order at the end of a stretch without branches, and that waits for the keys. */
template <int TILES>
static __device__ __forceinline__ void keep_weights(const stretch &w, float scale, int32_t first, float d[TILES][4],
                                                    running<TILES> &r) {
    int lane = threadIdx.x & 31;
    int32_t key = first + lane / 4;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        int32_t head = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float score[2];
#pragma unroll
        for (int n = 0; n < 2; n++)
            score[n] = key + 8 * n < w.n ? bounded(scale * d[i / 2][i % 2 + 2 * n]) : -INFINITY;
        float top = fmaxf(r.top[i], greatest_of(fmaxf(score[0], score[1])));
        r.sum[i] *= factor_of(r.top[i], top);
        r.top[i] = top;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float weight = power(score[n] - top);
            r.sum[i] += fmaxf(weight, 0.0f);
            if (key + 8 * n < w.n && head < w.n_heads)
                w.weights[head * w.row + key + 8 * n] = weight;
        }
        if (lane < 4 && first < w.n)
            w.tops[first + head] = top; /* first / 16 rows of 16 */
    }
}

/* Warps take 16 keys in turn, four warps together; as soon as these are used, the warps' next are on their way. The
 * first are on theirs while the query is taken apart. */
template <int PIECES, int TILES>
static __device__ __forceinline__ void weigh_stretch(const hsp__gpu_keys &p, const stretch &w, const float *query,
                                                     unsigned char *parts, statistics &s) {
    int lane = threadIdx.x & 31;
    uint64_t policy = read_once();
    running<TILES> r;
    float d[TILES][4];
    key_pieces<PIECES> k;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        r.top[i] = -INFINITY;
        r.sum[i] = 0.0f;
    }
    int32_t of_warp = threadIdx.x / 32 % 4 * 16, together = threadIdx.x / 128 * 64; /* the first key of four warps */
    if (together < w.n)
        take_keys<PIECES>(w.keys, p.key_stride, together + of_warp, w.n - 1, k);
    lay_out_query<PIECES, TILES, THREADS>(query, w.n_heads, parts);
    __syncthreads();
#pragma unroll 1
    for (; together < w.n; together += 16 * WARPS) {
        int32_t first = together + of_warp; /* may be beyond the last key: then these are that key's */
        const unsigned char *next[2];
        next[0] = place_of_key(w.keys, p.key_stride, first + 16 * WARPS, w.n - 1, 0);
        next[1] = place_of_key(w.keys, p.key_stride, first + 16 * WARPS, w.n - 1, 1);
        multiply_together<PIECES, TILES>(k, parts, d, [&](int t) {
            k.of[0][t] = load_once(next[0] + 64 * t, policy);
            k.of[1][t] = load_once(next[1] + 64 * t, policy);
        });
        keep_weights<TILES>(w, p.scale, first, d, r);
    }
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        float sum = r.sum[i];
        for (int span = 4; span < 32; span *= 2)
            sum += __shfl_xor_sync(~0u, sum, span);
        if (lane < 4) {
            s.top[i / 2 * 8 + lane * 2 + i % 2] = r.top[i];
            s.sum[i / 2 * 8 + lane * 2 + i % 2] = sum;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- softmax -- */

/* Of a head out of of_warp, added in ascending order. */
static __device__ __forceinline__ void merge(const shared_statistics &s, int head, float *top_out, float *sum_out) {
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        top = fmaxf(top, s.of_warp[i].top[head]);
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += s.of_warp[i].sum[head] * factor_of(s.of_warp[i].top[head], top);
    *top_out = top;
    *sum_out = sum;
}

/* Statistics of all blocks of the cluster, read at once; there are as many places as warps. */
static __device__ __forceinline__ void gather_blocks(shared_statistics &s) {
    cg::cluster_group cluster = cg::this_cluster();
    static_assert((int)MOST_BLOCKS == (int)WARPS, "a place for every block");
    int block = threadIdx.x / HSP__MOST_HEADS, head = threadIdx.x % HSP__MOST_HEADS;
    bool there = block < (int)cluster.num_blocks();
    const statistics *from = cluster.map_shared_rank(&s.block, there ? block : 0);
    if (block < WARPS) {
        s.of_warp[block].top[head] = there ? from->top[head] : -INFINITY;
        s.of_warp[block].sum[head] = there ? from->sum[head] : 0.0f;
    }
}

/* Warps, then blocks of the cluster; and what makes probabilities of the weights of 16 keys. */
static __device__ __forceinline__ void find_factors(shared_statistics &s, const stretch &w) {
    cg::cluster_group cluster = cg::this_cluster();
    int head = threadIdx.x;
    __syncthreads();
    if (head < w.n_heads)
        merge(s, head, &s.block.top[head], &s.block.sum[head]);
    cluster.sync();
    gather_blocks(s);
    __syncthreads();
    if (head < w.n_heads) {
        float sum;
        merge(s, head, &s.top[head], &sum);
        s.inverse[head] = 1.0f / sum;
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < (w.n + 15) / 16 * HSP__MOST_HEADS; i += THREADS) {
        head = i % HSP__MOST_HEADS;
        if (head < w.n_heads)
            w.tops[i] = power(w.tops[i] - s.top[head]) * s.inverse[head];
    }
    __syncthreads();
}

/* A thread a key: heads one after the other. NaN of any head stays. */
static __device__ __forceinline__ void sum_heads(const stretch &w) {
    for (int32_t key = threadIdx.x; key < w.n; key += THREADS) {
        const float *factor = w.tops + key / 16 * HSP__MOST_HEADS;
        float sum = 0.0f;
#pragma unroll 4
        for (int32_t h = 0; h < w.n_heads; h++)
            sum = fmaf(w.weights[h * w.row + key], factor[h], sum);
        w.weights[key] = sum;
    }
}

/* -------------------------------------------------------------------------------------------------------- kernel -- */

static __device__ __forceinline__ void write_importances(const hsp__gpu_nsa &p, const stretch &w, float *importance) {
    cg::cluster_group cluster = cg::this_cluster();
    int32_t n_blocks = w.n_tokens / p.block_tokens + (w.n_tokens % p.block_tokens != 0), step = cluster.num_blocks();
    int32_t each = (n_blocks + step - 1) / step, first = cluster.block_rank() * each;
    for (int32_t block = first + threadIdx.x; block < min(first + each, n_blocks); block += THREADS)
        importance[block] = importance_of(p, w.n_all, block, [&](int32_t key) {
            if ((uint32_t)(key - w.first) < (uint32_t)w.n) /* as nearly all are */
                return w.weights[key - w.first];
            return *cluster.map_shared_rank(&w.weights[key % w.each], key / w.each);
        });
}

/* Keys of this block for one query and KV head, `row` of them all. Is there such a request? */
static __device__ __forceinline__ bool find_stretch(const hsp__gpu_keys &k, int32_t row, int key_bytes, stretch &w) {
    cg::cluster_group cluster = cg::this_cluster();
    int32_t of_queries = row / k.n_key_heads, entry = of_queries / k.batch.n_queries, slot = k.batch.slot[entry];
    int32_t n_tokens = hsp__gpu_tokens(k.batch, entry, of_queries % k.batch.n_queries);
    w.n_tokens = n_tokens;
    w.n_all = n_tokens < k.span ? 0 : (n_tokens - k.span) / k.step + 1;
    w.each = keys_each(w.n_all, cluster.num_blocks());
    w.first = cluster.block_rank() * w.each;
    w.n = max(min(w.each, w.n_all - w.first), 0);
    w.keys = k.keys + (uint64_t)max(slot, 0) * k.request_stride + (size_t)(row % k.n_key_heads) * key_bytes +
             (size_t)w.first * k.key_stride;
    return slot >= 0;
}

/* The cluster that takes this one's place finds its first keys in the L2: while the blocks of this one wait for each
 * other, memory is not idle. */
static __device__ __forceinline__ void fetch_ahead(const hsp__gpu_nsa &p, int64_t row, int64_t n_rows, int key_bytes) {
    const hsp__gpu_keys &k = p.softmax.keys;
    stretch w;
    if (p.n_resident == 0 || row + p.n_resident >= n_rows ||
        !find_stretch(k, (int32_t)(row + p.n_resident), key_bytes, w))
        return;
    for (int32_t key = threadIdx.x; key < min(w.n, AHEAD_BYTES / key_bytes); key += THREADS)
        fetch_to_l2(w.keys + (size_t)key * k.key_stride, key_bytes);
}

template <int PIECES, int TILES>
static __global__ void __launch_bounds__(THREADS, PIECES > 6 - (TILES == 1) ? 1 : 2)
    nsa_cluster_kernel(const __grid_constant__ hsp__gpu_nsa p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ shared_statistics s;
    cg::cluster_group cluster = cg::this_cluster();
    const hsp__gpu_keys &k = p.softmax.keys;
    int32_t row = blockIdx.z * k.n_key_heads + blockIdx.y; /* of queries and KV heads */
    stretch w;
    if (!find_stretch(k, row, 64 * PIECES, w))
        return;
    w.n_heads = k.n_heads / k.n_key_heads;
    int32_t most_each = keys_each(k.most_keys, cluster.num_blocks());
    w.row = row_of(most_each);
    w.tops = (float *)(memory + query_parts_bytes(8 * TILES, 32 * PIECES));
    w.weights = w.tops + most_each;
    weigh_stretch<PIECES, TILES>(k, w, k.query + (size_t)row * w.n_heads * k.key_dim, memory,
                                 s.of_warp[threadIdx.x / 32]);
    fetch_ahead(p, row, (int64_t)gridDim.z * gridDim.y, 64 * PIECES);
    find_factors(s, w);
    sum_heads(w);
    cluster.sync();
    write_importances(p, w, p.importance + (size_t)row * p.most_blocks);
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
    int32_t group = k->n_heads / k->n_key_heads, each = keys_each(k->most_keys, blocks_of(k->most_keys));
    return (size_t)query_parts_bytes(group > 8 ? 16 : 8, k->key_dim) +
           ((size_t)each + (size_t)group * row_of(each)) * sizeof(float);
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
    if (queries == 0)
        return HSP_OK;
    hsp__gpu_nsa p = *nsa;
    void *arguments[] = {&p};
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attribute = {};
    dim3 grid((unsigned)blocks, (unsigned)k->n_key_heads, (unsigned)queries);
    int status = hsp__gpu_prepare(kernel, grid, THREADS, blocks, shared_bytes(k), stream, &attribute, &config);
    if (status == HSP_OK && blocks == MOST_BLOCKS) /* fewer: requests are short, and nothing is worth fetching ahead */
        status = hsp__gpu_status(cudaOccupancyMaxActiveClusters(&p.n_resident, kernel, &config));
    return status ? status : hsp__gpu_status(cudaLaunchKernelExC(&config, kernel, arguments));
}
