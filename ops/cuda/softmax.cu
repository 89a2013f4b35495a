/* SPDX-License-Identifier: Apache-2.0
 *
 * From scores and partial sums to attention probabilities, added over heads.
 */
#include "score_keys.h"

enum { THREADS = 256 };

/* A warp a head: pieces in the order of lanes, then lanes in the order of the butterfly, in double. */
static __global__ void __launch_bounds__(THREADS) total_kernel(const __grid_constant__ hsp__gpu_softmax p) {
    const hsp__gpu_keys &k = p.keys;
    int64_t head = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, at = head / k.n_heads;
    int32_t lane = threadIdx.x & 31, entry = at / k.batch.n_queries;
    if (entry >= k.batch.batch || k.batch.slot[entry] < 0)
        return;
    int32_t n_tokens = hsp__gpu_tokens(k.batch, entry, at % k.batch.n_queries);
    int32_t n_keys = n_tokens < k.span ? 0 : (n_tokens - k.span) / k.step + 1;
    int32_t n_pieces = (n_keys + HSP__SOFTMAX_PIECE - 1) / HSP__SOFTMAX_PIECE;
    const float2 *partials = k.partials + head * k.n_pieces;
    float top = -INFINITY;
    double sum = 0.0;
    for (int32_t i = lane; i < n_pieces; i += 32)
        top = fmaxf(top, partials[i].x);
    for (int span = 16; span > 0; span /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, span));
    for (int32_t i = lane; i < n_pieces; i += 32)
        if (partials[i].y > 0.0f && partials[i].x - top >= -87.0f)
            sum += (double)partials[i].y * (double)expf(partials[i].x - top);
    for (int span = 16; span > 0; span /= 2)
        sum += __shfl_xor_sync(~0u, sum, span);
    if (lane == 0)
        p.totals[head] = make_float2(top, (float)sum);
}

/* A thread a key: heads of the group one after the other. NaN of any head stays. */
static __device__ __forceinline__ float sum_heads(const hsp__gpu_softmax &p, size_t first_head, int32_t n_heads,
                                                  int32_t key) {
    float sum = 0.0f;
#pragma unroll 8
    for (int32_t h = 0; h < n_heads; h++) {
        float2 total = __ldg(&p.totals[first_head + h]);
        float x = __ldcs(&p.keys.scores[(first_head + h) * p.keys.most_keys + key]) - total.x;
        sum += (x < -87.0f ? 0.0f : expf(x)) / total.y;
    }
    return sum;
}

static __global__ void __launch_bounds__(THREADS) sum_heads_kernel(const __grid_constant__ hsp__gpu_softmax p) {
    const hsp__gpu_keys &k = p.keys;
    int32_t entry = blockIdx.z / k.batch.n_queries, heads = k.n_heads / p.n_groups;
    int32_t n_tokens = hsp__gpu_tokens(k.batch, entry, blockIdx.z % k.batch.n_queries);
    int32_t n_keys = n_tokens < k.span ? 0 : (n_tokens - k.span) / k.step + 1;
    size_t row = (size_t)blockIdx.z * p.n_groups + blockIdx.y;
    if (k.batch.slot[entry] < 0)
        return;
    for (int32_t key = blockIdx.x * THREADS + threadIdx.x; key < n_keys; key += gridDim.x * THREADS)
        p.sums[row * k.most_keys + key] = sum_heads(p, row * heads, heads, key);
}

size_t hsp__gpu_softmax_layout(hsp__gpu_softmax *p, void *scratch) {
    hsp__gpu_keys *k = &p->keys;
    size_t queries = (size_t)k->batch.batch * k->batch.n_queries, heads = queries * k->n_heads, at = 0;
    k->piece = HSP__SOFTMAX_PIECE;
    k->most_keys = hsp__gpu_count_keys(k->span, k->step, k->batch.max_tokens);
    k->n_pieces = (int32_t)hsp__gpu_pieces(k->most_keys, k->piece);
    const size_t bytes[4] = {heads * k->most_keys * sizeof(float), heads * k->n_pieces * sizeof(float2),
                             heads * sizeof(float2), queries * p->n_groups * k->most_keys * sizeof(float)};
    void **const places[4] = {(void **)&k->scores, (void **)&k->partials, (void **)&p->totals, (void **)&p->sums};
    for (int i = 0; i < 4; i++) {
        *places[i] = (char *)scratch + at;
        at += (bytes[i] + 15) / 16 * 16;
    }
    return at;
}

int hsp__gpu_softmax_launch(const hsp__gpu_softmax *p, void *stream) {
    int64_t queries = (int64_t)p->keys.batch.batch * p->keys.batch.n_queries, heads = queries * p->keys.n_heads;
    int64_t blocks = hsp__gpu_pieces(p->keys.most_keys, THREADS);
    dim3 grid((unsigned)(blocks < 1024 ? blocks : 1024), (unsigned)p->n_groups, (unsigned)queries);
    int status = hsp__gpu_score_keys(&p->keys, stream);
    if (status == HSP_OK && blocks)
        status = hsp__gpu_launch((const void *)total_kernel, dim3((unsigned)hsp__gpu_pieces(heads, THREADS / 32)),
                                 THREADS, 1, 0, p, stream);
    if (status == HSP_OK)
        status = hsp__gpu_launch((const void *)sum_heads_kernel, grid, THREADS, 1, 0, p, stream);
    return status;
}
