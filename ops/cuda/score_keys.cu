/* SPDX-License-Identifier: Apache-2.0
 *
 * With bf16 keys of the usual sizes the products are the tensor cores' (key_products.cuh). Anything else is a lane a
 * key.
 */
#include "key_products.cuh"
#include "numbers.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, MOST_HEADS = HSP__MOST_HEADS };

/* What a block works on. */
struct item {
    int32_t entry, query, key_head, first_head, n_heads, n_keys;
    const unsigned char *keys; /* of the request and the key head */
    const float *heads;        /* [n_heads][key_dim] */
    size_t row;                /* of the first head, in scores and partials */
};

static __device__ __forceinline__ bool find_item(const hsp__gpu_keys &p, item &w) {
    int32_t group = p.n_heads / p.n_key_heads, chunks = (group + MOST_HEADS - 1) / MOST_HEADS;
    w.entry = blockIdx.z / p.batch.n_queries;
    w.query = blockIdx.z % p.batch.n_queries;
    w.key_head = blockIdx.y / chunks;
    int32_t within = blockIdx.y % chunks * MOST_HEADS, slot = p.batch.slot[w.entry];
    int32_t n_tokens = hsp__gpu_tokens(p.batch, w.entry, w.query);
    w.first_head = w.key_head * group + within;
    w.n_heads = min(group - within, (int32_t)MOST_HEADS);
    w.n_keys = n_tokens < p.span ? 0 : (n_tokens - p.span) / p.step + 1;
    w.keys = p.keys + (uint64_t)(slot < 0 ? 0 : slot) * p.request_stride +
             (size_t)w.key_head * p.key_dim * (p.dtype == HSP_F32 ? 4 : 2);
    w.row = (size_t)blockIdx.z * p.n_heads + w.first_head;
    w.heads = p.query + w.row * p.key_dim;
    return slot >= 0 && (int64_t)blockIdx.x * WARPS * p.piece < w.n_keys;
}

/* e^x, 0 below e^-87; NaN counts for nothing in a sum. */
static __device__ __forceinline__ float weight_of(float x) {
    return x < -87.0f ? 0.0f : fmaxf(expf(x), 0.0f);
}

/* ------------------------------------------------------------------------------------------------- tensor cores -- */

/* Products of keys first .. first + 15, as multiply_keys gives them. */
template <int PIECES, int TILES>
static __device__ __forceinline__ void multiply(const hsp__gpu_keys &p, const item &w, const unsigned char *parts,
                                                int32_t first, float d[TILES][4]) {
    key_pieces<PIECES> keys;
    take_keys<PIECES>(w.keys, p.key_stride, first, w.n_keys - 1, keys);
    multiply_keys<PIECES, TILES>(keys, parts, d, [](int) {});
}

static __device__ __forceinline__ float sum_of(float x) {
    for (int span = 4; span < 32; span *= 2)
        x += __shfl_xor_sync(~0u, x, span);
    return x;
}

/* The greatest of some scores and the sum of their exponentials, NaN in neither; grows by two at a time. */
struct partial {
    float top, sum;
};

/* What a sum is to be multiplied with when the greatest score becomes another. */
static __device__ __forceinline__ float factor_of(float top, float new_top) {
    return top == new_top ? 1.0f : weight_of(top - new_top);
}

static __device__ __forceinline__ void grow(partial &p, float score0, float score1) {
    float top = fmaxf(p.top, fmaxf(score0, score1));
    p.sum = p.sum * factor_of(p.top, top) + (weight_of(score0 - top) + weight_of(score1 - top));
    p.top = top;
}

/* Scores of 16 keys from `first` on into memory, and into the partials of their heads. */
template <int TILES>
static __device__ __forceinline__ void take_scores(const hsp__gpu_keys &p, const item &w, int32_t first,
                                                   float d[TILES][4], partial of_heads[TILES * 2]) {
    int lane = threadIdx.x & 31;
    int32_t key = first + lane / 4;
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        int32_t head = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float *to = p.scores + (w.row + head) * p.most_keys + key, score[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            bool there = key + 8 * n < w.n_keys;
            score[n] = there ? bounded(p.scale * d[i / 2][i % 2 + 2 * n]) : -INFINITY;
            if (there && head < w.n_heads)
                to[8 * n] = score[n];
        }
        grow(of_heads[i], score[0], score[1]);
    }
}

template <int PIECES, int TILES>
static __device__ __forceinline__ void weigh_piece(const hsp__gpu_keys &p, const item &w, const unsigned char *parts,
                                                   int32_t piece) {
    int lane = threadIdx.x & 31;
    int32_t first = piece * HSP__SOFTMAX_PIECE;
    partial of_heads[TILES * 2];
    float d[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES * 2; i++)
        of_heads[i] = {-INFINITY, 0.0f};
#pragma unroll 1
    for (int32_t from = first; from < min(first + HSP__SOFTMAX_PIECE, w.n_keys); from += 16) {
        multiply<PIECES, TILES>(p, w, parts, from, d);
        take_scores<TILES>(p, w, from, d, of_heads);
    }
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        int32_t head = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float top = greatest_of(of_heads[i].top), sum = sum_of(of_heads[i].sum * factor_of(of_heads[i].top, top));
        if (lane < 4 && head < w.n_heads)
            p.partials[(w.row + head) * p.n_pieces + piece] = make_float2(top, sum);
    }
}

/* The greatest score of each head in a piece. */
template <int PIECES, int TILES>
static __device__ __forceinline__ void top_piece(const hsp__gpu_keys &p, const item &w, const unsigned char *parts,
                                                 int32_t piece) {
    int lane = threadIdx.x & 31;
    int32_t first = piece * p.piece, end = min(w.n_keys - first, p.piece) + first;
    float top[TILES * 2], d[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES * 2; i++)
        top[i] = -INFINITY;
#pragma unroll 1
    for (int32_t from = first; from < end; from += 16) {
        multiply<PIECES, TILES>(p, w, parts, from, d);
        int32_t key = from + lane / 4;
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) {
            top[i] = fmaxf(top[i], key < end ? bounded(p.scale * d[i / 2][i % 2]) : -INFINITY);
            top[i] = fmaxf(top[i], key + 8 < end ? bounded(p.scale * d[i / 2][i % 2 + 2]) : -INFINITY);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        int32_t head = i / 2 * 8 + lane % 4 * 2 + i % 2;
        top[i] = greatest_of(top[i]);
        if (lane < 4 && head < w.n_heads)
            p.greatest[(w.row + head) * p.n_pieces + piece] = top[i];
    }
}

template <int PIECES, int TILES, bool SOFTMAX>
static __global__ void __launch_bounds__(THREADS, PIECES > 4 ? 3 : 4)
    score_keys_kernel(const __grid_constant__ hsp__gpu_keys p) {
    extern __shared__ __align__(16) unsigned char parts[];
    item w;
    if (!find_item(p, w))
        return;
    load_query(w.heads, p.key_dim, w.n_heads, 8 * TILES, THREADS, parts);
    __syncthreads();
    int32_t n_pieces = (w.n_keys - 1) / p.piece + 1;
    for (int32_t piece = blockIdx.x * WARPS + threadIdx.x / 32; piece < n_pieces; piece += gridDim.x * WARPS) {
        if (SOFTMAX)
            weigh_piece<PIECES, TILES>(p, w, parts, piece);
        else
            top_piece<PIECES, TILES>(p, w, parts, piece);
    }
}

/* ------------------------------------------------------------------------------------------------------- a lane a key
 * -- */

template <int DTYPE>
static __device__ __forceinline__ float score_one(const hsp__gpu_keys &p, const item &w, const float *query,
                                                  int32_t key) {
    const unsigned char *row = w.keys + (size_t)key * p.key_stride;
    float dot = 0.0f;
    for (int c = 0; c < p.key_dim; c++)
        dot = fmaf(query[c], number_at<DTYPE>(row, c), dot);
    return bounded(p.scale * dot);
}

static __device__ __forceinline__ float greatest_of_warp(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return greatest_of(fmaxf(x, __shfl_xor_sync(~0u, x, 2)));
}

static __device__ __forceinline__ float sum_of_warp(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    x += __shfl_xor_sync(~0u, x, 2);
    return sum_of(x);
}

template <int DTYPE>
static __device__ __forceinline__ void weigh_head(const hsp__gpu_keys &p, const item &w, int32_t head, int32_t piece) {
    int32_t key = piece * HSP__SOFTMAX_PIECE + (threadIdx.x & 31);
    float *scores = p.scores + (w.row + head) * p.most_keys, score[2], top, sum;
    for (int i = 0; i < 2; i++) {
        score[i] = key + 32 * i < w.n_keys ? score_one<DTYPE>(p, w, w.heads + (size_t)head * p.key_dim, key + 32 * i)
                                           : -INFINITY;
        if (key + 32 * i < w.n_keys)
            scores[key + 32 * i] = score[i];
    }
    top = greatest_of_warp(fmaxf(score[0], score[1]));
    sum = sum_of_warp(weight_of(score[0] - top) + weight_of(score[1] - top));
    if (threadIdx.x % 32 == 0)
        p.partials[(w.row + head) * p.n_pieces + piece] = make_float2(top, sum);
}

template <int DTYPE>
static __device__ __forceinline__ void top_head(const hsp__gpu_keys &p, const item &w, int32_t head, int32_t piece) {
    int32_t first = piece * p.piece, end = min(w.n_keys - first, p.piece) + first;
    float top = -INFINITY;
    for (int32_t key = first + (threadIdx.x & 31); key < end; key += 32)
        top = fmaxf(top, score_one<DTYPE>(p, w, w.heads + (size_t)head * p.key_dim, key));
    top = greatest_of_warp(top);
    if (threadIdx.x % 32 == 0)
        p.greatest[(w.row + head) * p.n_pieces + piece] = top;
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) score_plainly_kernel(const __grid_constant__ hsp__gpu_keys p) {
    item w;
    if (!find_item(p, w))
        return;
    int32_t n_pieces = (w.n_keys - 1) / p.piece + 1;
    for (int32_t piece = blockIdx.x * WARPS + threadIdx.x / 32; piece < n_pieces; piece += gridDim.x * WARPS)
        for (int32_t head = 0; head < w.n_heads; head++) {
            if (p.scores)
                weigh_head<DTYPE>(p, w, head, piece);
            else
                top_head<DTYPE>(p, w, head, piece);
        }
}

/* ------------------------------------------------------------------------------------------------------- launch -- */

template <int PIECES>
static const void *kernel_of(bool wide, bool softmax) {
    if (softmax)
        return wide ? (const void *)score_keys_kernel<PIECES, 2, true>
                    : (const void *)score_keys_kernel<PIECES, 1, true>;
    return wide ? (const void *)score_keys_kernel<PIECES, 2, false> : (const void *)score_keys_kernel<PIECES, 1, false>;
}

/* NULL: not with tensor cores. */
static const void *tensor_kernel(const hsp__gpu_keys *p, bool wide) {
    if (p->dtype != HSP_BF16 || ((uintptr_t)p->keys | p->request_stride | p->key_stride) % 16)
        return NULL;
    switch (p->key_dim) {
    case 64:
        return kernel_of<2>(wide, p->scores != NULL);
    case 128:
        return kernel_of<4>(wide, p->scores != NULL);
    case 192:
        return kernel_of<6>(wide, p->scores != NULL);
    case 256:
        return kernel_of<8>(wide, p->scores != NULL);
    }
    return NULL;
}

int hsp__gpu_score_keys(const hsp__gpu_keys *p, void *stream) {
    static const void *const plain[] = {(const void *)score_plainly_kernel<HSP_F32>,
                                        (const void *)score_plainly_kernel<HSP_F16>,
                                        (const void *)score_plainly_kernel<HSP_BF16>};
    int64_t group = p->n_heads / p->n_key_heads, chunks = hsp__gpu_pieces(group, MOST_HEADS) * p->n_key_heads;
    int64_t queries = (int64_t)p->batch.batch * p->batch.n_queries, blocks = hsp__gpu_pieces(p->n_pieces, WARPS);
    if (queries > 65535)
        return HSP_ELIMIT;
    if (queries == 0 || blocks == 0)
        return HSP_OK;
    int64_t wanted = 2304 / (queries * chunks) + 4; /* blocks: a few times what is resident; each packs the query */
    dim3 grid((unsigned)(blocks < wanted ? blocks : wanted), (unsigned)chunks, (unsigned)queries);
    bool wide = group > 8;
    const void *kernel = tensor_kernel(p, wide);
    if (!kernel)
        return hsp__gpu_launch(plain[p->dtype], grid, THREADS, 1, 0, p, stream);
    size_t shared_bytes = (size_t)query_parts_bytes(wide ? 16 : 8, p->key_dim);
    return hsp__gpu_launch(kernel, grid, THREADS, 1, shared_bytes, p, stream);
}
