/* SPDX-License-Identifier: Apache-2.0 */
/* Block-sparse attention: blocks of tokens by the greatest index score in them. */
#include "score_keys.h"
#include "shapes.h"
#include "top.h"

enum { THREADS = 256 };

struct block {
    hsp__gpu_keys keys;
    float *scores; /* [entries * queries * n_groups][n_pieces] */
    int32_t n_groups;
};

/* The greatest over the heads of a group. */
static __global__ void __launch_bounds__(THREADS) block_groups_kernel(const __grid_constant__ block p) {
    const hsp__gpu_keys &k = p.keys;
    int32_t entry = blockIdx.z / k.batch.n_queries, heads = k.n_heads / p.n_groups;
    int32_t n_tokens = hsp__gpu_tokens(k.batch, entry, blockIdx.z % k.batch.n_queries);
    int32_t n_blocks = n_tokens / k.piece + (n_tokens % k.piece != 0);
    size_t row = (size_t)blockIdx.z * p.n_groups + blockIdx.y;
    if (k.batch.slot[entry] < 0)
        return;
    for (int32_t i = blockIdx.x * THREADS + threadIdx.x; i < n_blocks; i += gridDim.x * THREADS) {
        float top = -INFINITY;
        for (int32_t h = 0; h < heads; h++)
            top = fmaxf(top, k.greatest[(row * heads + h) * k.n_pieces + i]);
        p.scores[row * k.n_pieces + i] = top;
    }
}

/* Everything but keys and query, and the bytes of scratch. Where a group has one head its scores need no second step.
 */
static size_t block_of(const hsp_block_shape *shape, const hsp_gpu_batch *batch, void *scratch, block *p) {
    hsp__gpu_keys *k = &p->keys;
    size_t queries = (size_t)batch->batch * batch->n_queries;
    *p = {};
    k->batch = *batch;
    k->n_heads = shape->n_heads;
    k->n_key_heads = shape->n_key_heads;
    k->key_dim = shape->key_dim;
    k->dtype = shape->dtype;
    k->scale = shape->scale;
    k->span = k->step = 1;
    k->piece = shape->block_tokens;
    k->most_keys = batch->max_tokens;
    k->n_pieces = (int32_t)hsp__gpu_pieces(batch->max_tokens, shape->block_tokens);
    k->greatest = (float *)scratch;
    p->n_groups = shape->n_groups;
    p->scores = k->greatest + (shape->n_heads == shape->n_groups ? 0 : queries * shape->n_heads * k->n_pieces);
    return (size_t)((char *)(p->scores + queries * shape->n_groups * k->n_pieces) - (char *)scratch);
}

extern "C" int hsp_gpu_block_scratch(const hsp_block_shape *shape, int32_t max_batch, int32_t n_queries,
                                     int32_t max_tokens, size_t *bytes_out) {
    int status = hsp__check_block(shape);
    if (status)
        return status;
    if (max_batch < 0 || n_queries < 1 || max_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    hsp_gpu_batch batch = {sizeof batch, max_batch, n_queries, max_tokens, NULL, NULL};
    block p;
    *bytes_out = block_of(shape, &batch, NULL, &p);
    return HSP_OK;
}

extern "C" int hsp_gpu_block_select(const hsp_block_shape *shape, const hsp_gpu_batch *batch, const void *index_keys,
                                    uint64_t request_stride, uint64_t key_stride, const float *index_query,
                                    int32_t *selection_out, void *scratch, void *stream) {
    int status = hsp__check_block(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (!selection_out || (uintptr_t)scratch % 16)
        return HSP_EINVAL;
    block p;
    block_of(shape, batch, scratch, &p);
    p.keys.keys = (const unsigned char *)index_keys;
    p.keys.request_stride = request_stride;
    p.keys.key_stride = key_stride;
    p.keys.query = index_query;
    size_t row_bytes = (size_t)shape->n_key_heads * shape->key_dim * hsp__gpu_number_bytes(shape->dtype);
    if (batch->max_tokens &&
        (!index_keys || !index_query || !scratch || key_stride < row_bytes || !hsp__gpu_keys_aligned(&p.keys)))
        return HSP_EINVAL;
    status = hsp__gpu_score_keys(&p.keys, stream);
    int64_t blocks = hsp__gpu_pieces(p.keys.n_pieces, THREADS);
    dim3 grid((unsigned)(blocks < 1024 ? blocks : 1024), (unsigned)p.n_groups,
              (unsigned)((int64_t)batch->batch * batch->n_queries));
    if (status == HSP_OK && p.scores != p.keys.greatest)
        status = hsp__gpu_launch((const void *)block_groups_kernel, grid, THREADS, 1, 0, &p, stream);
    hsp__gpu_choice choice = {
        *batch,         p.scores,       (uint64_t)p.keys.n_pieces, p.n_groups, shape->block_tokens,
        shape->n_first, shape->n_local, shape->n_blocks,           0,          selection_out};
    return status ? status : hsp__gpu_choose(&choice, stream);
}
