/* SPDX-License-Identifier: Apache-2.0
 *
 * The yardstick: tokens by the attention probability they really have.
 */
#include "kernels.h"
#include "select.h"
#include "shapes.h"
#include "top.h"

/* Numbers to rank below which waking threads costs more than it saves. */
#define ENOUGH_WORK (1 << 16)

/* Per head a row of weights and a total; per selection their sums, which become ranks in place. */
int hsp_exact_scratch(const hsp_exact_shape *shape, int32_t n_tokens, size_t *bytes_out) {
    int status = hsp__check_exact(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    size_t row = hsp__padded(n_tokens), n_heads = (size_t)shape->n_heads;
    *bytes_out = (n_heads * (row + 1) + (size_t)shape->n_selections * row) * sizeof(float);
    return HSP_OK;
}

static int check_select(const hsp_exact_shape *shape, const void *keys, size_t key_stride, int32_t n_tokens,
                        const float *query, int32_t k, const int32_t *selection_out, const void *scratch) {
    int status = hsp__check_exact(shape);
    if (status)
        return status;
    if (n_tokens < 0 || k < 1 || !selection_out)
        return HSP_EINVAL;
    if (n_tokens == 0)
        return HSP_OK;
    size_t row_bytes = (size_t)shape->n_kv_heads * hsp__key_bytes(shape->dtype, shape->key_dim);
    return keys && query && scratch && key_stride >= row_bytes ? HSP_OK : HSP_EINVAL;
}

int hsp_exact_select(const hsp_exact_shape *shape, const void *keys, size_t key_stride, int32_t n_tokens,
                     const float *query, int32_t k, int32_t *selection_out, void *scratch) {
    int status = check_select(shape, keys, key_stride, n_tokens, query, k, selection_out, scratch);
    if (status)
        return status;
    int32_t n_selections = shape->n_selections, heads = shape->n_heads / n_selections;
    if (n_tokens == 0) {
        hsp__emit_none((size_t)n_selections * (size_t)k, selection_out);
        return HSP_OK;
    }
    const struct hsp__scoring s = {shape->n_heads, shape->n_kv_heads, shape->key_dim, shape->dtype, shape->scale, query,
                                   keys,           key_stride,        n_tokens};
    size_t row = hsp__padded(n_tokens);
    float *weights = scratch, *totals = weights + (size_t)shape->n_heads * row, *sums = totals + shape->n_heads;
    hsp__weigh_keys(&s, weights, totals);
    for (int32_t i = 0; i < n_selections; i++)
        hsp__sum_heads(&s, weights, totals, i * heads, heads, sums + (size_t)i * row);
    int64_t work = (int64_t)row * n_selections;
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t i = 0; i < n_selections; i++) {
        float *sum = sums + (size_t)i * row;
        uint32_t *ranks = (uint32_t *)(void *)sum;
        for (int32_t token = 0; token < n_tokens; token++)
            ranks[token] = hsp__rank_of(sum[token]);
        hsp__emit_blocks(ranks, 1, n_tokens, k, selection_out + (size_t)i * (size_t)k);
    }
    return HSP_OK;
}
