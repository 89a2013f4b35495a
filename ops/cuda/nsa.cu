/* SPDX-License-Identifier: Apache-2.0
 *
 * NSA: blocks by the attention that compressed keys receive; the window; the gates.
 */
#include "nsa.h"
#include "shapes.h"
#include "top.h"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) nsa_importance_kernel(const __grid_constant__ hsp__gpu_nsa p) {
    const hsp__gpu_keys &k = p.softmax.keys;
    int32_t entry = blockIdx.z / k.batch.n_queries;
    int32_t n_tokens = hsp__gpu_tokens(k.batch, entry, blockIdx.z % k.batch.n_queries);
    int32_t n_compressed = n_tokens < k.span ? 0 : (n_tokens - k.span) / k.step + 1;
    int32_t n_blocks = n_tokens / p.block_tokens + (n_tokens % p.block_tokens != 0);
    size_t row = (size_t)blockIdx.z * p.softmax.n_groups + blockIdx.y;
    const float *sums = p.softmax.sums + row * k.most_keys;
    if (k.batch.slot[entry] < 0)
        return;
    for (int32_t block = blockIdx.x * THREADS + threadIdx.x; block < n_blocks; block += gridDim.x * THREADS)
        p.importance[row * p.most_blocks + block] =
            importance_of(p, n_compressed, block, [&](int32_t key) { return sums[key]; });
}

struct window {
    hsp_gpu_batch batch;
    int32_t size, *selection_out;
};

static __global__ void __launch_bounds__(THREADS) nsa_window_kernel(const __grid_constant__ window p) {
    int32_t entry = blockIdx.z, query = blockIdx.y;
    int32_t n = p.batch.slot[entry] < 0 ? 0 : hsp__gpu_tokens(p.batch, entry, query);
    int32_t first = n > p.size ? n - p.size : 0;
    int32_t *out = p.selection_out + ((size_t)entry * p.batch.n_queries + query) * p.size;
    for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < p.size; i += gridDim.x * THREADS)
        out[i] = i < n - first ? first + (int32_t)i : -1;
}

struct gate {
    hsp_gpu_batch batch;
    const float *logits, *branches[3];
    float *out;
    int32_t n_heads, value_dim;
};

static __device__ __forceinline__ float sigmoid(float x) {
    float e = expf(-fabsf(x)); /* which cannot overflow */
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static __global__ void __launch_bounds__(THREADS) nsa_gate_kernel(const __grid_constant__ gate p) {
    int32_t entry = blockIdx.z, query = blockIdx.y, head = blockIdx.x;
    if (p.batch.slot[entry] < 0)
        return;
    size_t at = ((size_t)entry * p.batch.n_queries + query) * p.n_heads + head, first = at * p.value_dim;
    float g[3];
    for (int b = 0; b < 3; b++)
        g[b] = sigmoid(p.logits[at * 3 + b]);
    for (int32_t c = threadIdx.x; c < p.value_dim; c += THREADS) {
        float sum = g[0] * p.branches[0][first + c];
        sum = fmaf(g[1], p.branches[1][first + c], sum);
        p.out[first + c] = fmaf(g[2], p.branches[2][first + c], sum);
    }
}

/* -------------------------------------------------------------------------------------------------- entry points -- */

/* Everything but keys and query, and the bytes of scratch. */
static size_t nsa_of(const hsp_nsa_shape *shape, const hsp_gpu_batch *batch, void *scratch, hsp__gpu_nsa *p) {
    hsp__gpu_keys *k = &p->softmax.keys;
    *p = {};
    k->batch = *batch;
    k->n_heads = shape->n_heads;
    k->n_key_heads = shape->n_kv_heads;
    k->key_dim = shape->key_dim;
    k->dtype = shape->dtype;
    k->scale = shape->scale;
    k->span = shape->compress_tokens;
    k->step = shape->compress_stride;
    p->softmax.n_groups = shape->n_kv_heads;
    p->block_tokens = shape->block_tokens;
    p->most_blocks = (int32_t)hsp__gpu_pieces(batch->max_tokens, shape->block_tokens);
    size_t bytes = hsp__gpu_softmax_layout(&p->softmax, scratch);
    p->importance = (float *)((char *)scratch + bytes);
    return bytes + (size_t)batch->batch * batch->n_queries * shape->n_kv_heads * p->most_blocks * sizeof(float);
}

/* Scores through memory. */
static int importances_launch(const hsp__gpu_nsa *p, void *stream) {
    const hsp__gpu_keys *k = &p->softmax.keys;
    int status = hsp__gpu_softmax_launch(&p->softmax, stream);
    int64_t blocks = hsp__gpu_pieces(p->most_blocks, THREADS);
    dim3 grid((unsigned)(blocks < 1024 ? blocks : 1024), (unsigned)k->n_key_heads,
              (unsigned)((int64_t)k->batch.batch * k->batch.n_queries));
    return status ? status : hsp__gpu_launch((const void *)nsa_importance_kernel, grid, THREADS, 1, 0, p, stream);
}

extern "C" int hsp_gpu_nsa_scratch(const hsp_nsa_shape *shape, int32_t max_batch, int32_t n_queries, int32_t max_tokens,
                                   size_t *bytes_out) {
    int status = hsp__check_nsa(shape);
    if (status)
        return status;
    if (max_batch < 0 || n_queries < 1 || max_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    hsp_gpu_batch batch = {sizeof batch, max_batch, n_queries, max_tokens, NULL, NULL};
    hsp__gpu_nsa p;
    *bytes_out = nsa_of(shape, &batch, NULL, &p);
    return HSP_OK;
}

extern "C" int hsp_gpu_nsa_select(const hsp_nsa_shape *shape, const hsp_gpu_batch *batch, const void *compressed_keys,
                                  uint64_t request_stride, uint64_t key_stride, const float *query,
                                  int32_t *selection_out, void *scratch, void *stream) {
    int status = hsp__check_nsa(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (!selection_out || (batch->max_tokens && !scratch) || (uintptr_t)scratch % 16)
        return HSP_EINVAL;
    hsp__gpu_nsa p;
    nsa_of(shape, batch, scratch, &p);
    hsp__gpu_keys *k = &p.softmax.keys;
    k->keys = (const unsigned char *)compressed_keys;
    k->request_stride = request_stride;
    k->key_stride = key_stride;
    k->query = query;
    size_t row_bytes = (size_t)shape->n_kv_heads * shape->key_dim * hsp__gpu_number_bytes(shape->dtype);
    if (k->most_keys && (!compressed_keys || !query || key_stride < row_bytes || !hsp__gpu_keys_aligned(k)))
        return HSP_EINVAL;
    status = hsp__gpu_nsa_cluster_can(&p) ? hsp__gpu_nsa_cluster(&p, stream) : importances_launch(&p, stream);
    hsp__gpu_choice choice = {*batch,
                              p.importance,
                              (uint64_t)p.most_blocks,
                              shape->n_kv_heads,
                              shape->block_tokens,
                              shape->n_first,
                              shape->n_local,
                              shape->n_blocks,
                              0,
                              selection_out};
    return status ? status : hsp__gpu_choose(&choice, stream);
}

extern "C" int hsp_gpu_nsa_window(const hsp_gpu_batch *batch, int32_t size, int32_t *selection_out, void *stream) {
    int status = hsp__gpu_check(batch);
    if (status)
        return status;
    if (size < 1 || !selection_out)
        return HSP_EINVAL;
    window p = {*batch, size, selection_out};
    int64_t blocks = hsp__gpu_pieces(size, THREADS);
    dim3 grid((unsigned)(blocks < 64 ? blocks : 64), (unsigned)batch->n_queries, (unsigned)batch->batch);
    return hsp__gpu_launch((const void *)nsa_window_kernel, grid, THREADS, 1, 0, &p, stream);
}

extern "C" int hsp_gpu_nsa_gate(const hsp_gpu_batch *batch, int32_t n_heads, int32_t value_dim,
                                const float *gate_logits, const float *compressed, const float *selected,
                                const float *newest, float *out, void *stream) {
    int status = hsp__gpu_check(batch);
    if (status)
        return status;
    if (n_heads < 1 || value_dim < 1 || !gate_logits || !compressed || !selected || !newest || !out)
        return HSP_EINVAL;
    if (n_heads > HSP__MAX_DIM || value_dim > HSP__MAX_DIM)
        return HSP_ELIMIT;
    gate p = {*batch, gate_logits, {compressed, selected, newest}, out, n_heads, value_dim};
    dim3 grid((unsigned)n_heads, (unsigned)batch->n_queries, (unsigned)batch->batch);
    return hsp__gpu_launch((const void *)nsa_gate_kernel, grid, THREADS, 1, 0, &p, stream);
}
