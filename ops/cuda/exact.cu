/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick: tokens by the attention probability they really have. */
#include "score_keys.h"
#include "shapes.h"
#include "top.h"

/* Everything but keys and query, and the bytes of scratch. */
static size_t exact_of(const hsp_exact_shape *shape, const hsp_gpu_batch *batch, void *scratch, hsp__gpu_softmax *p) {
    hsp__gpu_keys *k = &p->keys;
    *p = {};
    k->batch = *batch;
    k->n_heads = shape->n_heads;
    k->n_key_heads = shape->n_kv_heads;
    k->key_dim = shape->key_dim;
    k->dtype = shape->dtype;
    k->scale = shape->scale;
    k->span = k->step = 1;
    p->n_groups = shape->n_selections;
    return hsp__gpu_softmax_layout(p, scratch);
}

extern "C" int hsp_gpu_exact_scratch(const hsp_exact_shape *shape, int32_t max_batch, int32_t n_queries,
                                     int32_t max_tokens, size_t *bytes_out) {
    int status = hsp__check_exact(shape);
    if (status)
        return status;
    if (max_batch < 0 || n_queries < 1 || max_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    hsp_gpu_batch batch = {sizeof batch, max_batch, n_queries, max_tokens, NULL, NULL};
    hsp__gpu_softmax p;
    *bytes_out = exact_of(shape, &batch, NULL, &p);
    return HSP_OK;
}

extern "C" int hsp_gpu_exact_select(const hsp_exact_shape *shape, const hsp_gpu_batch *batch, const void *keys,
                                    uint64_t request_stride, uint64_t key_stride, const float *query, int32_t k,
                                    int32_t *selection_out, void *scratch, void *stream) {
    int status = hsp__check_exact(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (k < 1 || !selection_out || (uintptr_t)scratch % 16)
        return HSP_EINVAL;
    hsp__gpu_softmax p;
    exact_of(shape, batch, scratch, &p);
    p.keys.keys = (const unsigned char *)keys;
    p.keys.request_stride = request_stride;
    p.keys.key_stride = key_stride;
    p.keys.query = query;
    size_t row_bytes = (size_t)shape->n_kv_heads * shape->key_dim * hsp__gpu_number_bytes(shape->dtype);
    if (batch->max_tokens && (!keys || !query || !scratch || key_stride < row_bytes || !hsp__gpu_keys_aligned(&p.keys)))
        return HSP_EINVAL;
    status = hsp__gpu_softmax_launch(&p, stream);
    hsp__gpu_choice choice = {*batch, p.sums, (uint64_t)p.keys.most_keys, p.n_groups, 1, 0, 0, k, 0, selection_out};
    return status ? status : hsp__gpu_choose(&choice, stream);
}
