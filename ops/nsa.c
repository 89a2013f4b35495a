/* SPDX-License-Identifier: Apache-2.0
 *
 * NSA: blocks of tokens by the attention that compressed keys of overlapping blocks receive; the window; the gates.
 */
#include "kernels.h"
#include "select.h"
#include "shapes.h"
#include "top.h"

/* Multiply-adds below which waking threads costs more than it saves. */
#define ENOUGH_WORK (1 << 19)

static int32_t compressed_of(const hsp_nsa_shape *shape, int32_t n_tokens) {
    return n_tokens < shape->compress_tokens ? 0 : (n_tokens - shape->compress_tokens) / shape->compress_stride + 1;
}

int hsp_nsa_compressed(const hsp_nsa_shape *shape, int32_t n_tokens, int32_t *n_compressed_out) {
    int status = hsp__check_nsa(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !n_compressed_out)
        return HSP_EINVAL;
    *n_compressed_out = compressed_of(shape, n_tokens);
    return HSP_OK;
}

/* Per head a row of weights and a total; per KV head their sums over its heads, and ranks of its blocks. */
int hsp_nsa_scratch(const hsp_nsa_shape *shape, int32_t n_tokens, size_t *bytes_out) {
    int status = hsp__check_nsa(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    size_t row = hsp__padded(compressed_of(shape, n_tokens)), n_heads = (size_t)shape->n_heads;
    size_t n_blocks = (size_t)hsp__pieces(n_tokens, shape->block_tokens);
    *bytes_out = (n_heads * (row + 1) + (size_t)shape->n_kv_heads * (row + n_blocks)) * sizeof(float);
    return HSP_OK;
}

/* Equation 9. A block is block_tokens / stride pieces of `stride` tokens; compressed key i is made of
 * compress_tokens / stride of them, from piece i on. Every piece of the block adds the keys it is part of. */
static float block_importance(const hsp_nsa_shape *shape, const float *sums, int32_t n_compressed, int32_t block) {
    int64_t per_block = shape->block_tokens / shape->compress_stride;
    int64_t per_key = shape->compress_tokens / shape->compress_stride;
    int64_t first = block * per_block, after = first + per_block;
    int64_t from = first - (per_key - 1) > 0 ? first - (per_key - 1) : 0,
            to = after < n_compressed ? after : n_compressed;
    float importance = 0.0f;
    for (int64_t i = from; i < to; i++) {
        int64_t shared_from = i > first ? i : first, shared_to = i + per_key < after ? i + per_key : after;
        importance += (float)(shared_to - shared_from) * sums[i];
    }
    return importance;
}

static void rank_blocks(const hsp_nsa_shape *shape, const float *sums, int32_t n_compressed, int32_t n_blocks,
                        uint32_t *ranks_out) {
    for (int32_t block = 0; block < n_blocks; block++)
        ranks_out[block] = hsp__rank_of(block_importance(shape, sums, n_compressed, block));
    hsp__force_blocks(ranks_out, n_blocks, shape->n_first, shape->n_local);
}

static int check_select(const hsp_nsa_shape *shape, const void *keys, size_t key_stride, int32_t n_tokens,
                        const float *query, const int32_t *selection_out, const void *scratch) {
    int status = hsp__check_nsa(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !selection_out || (n_tokens && !scratch))
        return HSP_EINVAL;
    if (compressed_of(shape, n_tokens) == 0)
        return HSP_OK;
    size_t row_bytes = (size_t)shape->n_kv_heads * hsp__key_bytes(shape->dtype, shape->key_dim);
    return keys && query && key_stride >= row_bytes ? HSP_OK : HSP_EINVAL;
}

int hsp_nsa_select(const hsp_nsa_shape *shape, const void *compressed_keys, size_t key_stride, int32_t n_tokens,
                   const float *query, int32_t *selection_out, void *scratch) {
    int status = check_select(shape, compressed_keys, key_stride, n_tokens, query, selection_out, scratch);
    if (status)
        return status;
    size_t n_out = (size_t)shape->n_blocks * (size_t)shape->block_tokens;
    if (n_tokens == 0) {
        hsp__emit_none((size_t)shape->n_kv_heads * n_out, selection_out);
        return HSP_OK;
    }
    const struct hsp__scoring s = {shape->n_heads,  shape->n_kv_heads, shape->key_dim,
                                   shape->dtype,    shape->scale,      query,
                                   compressed_keys, key_stride,        compressed_of(shape, n_tokens)};
    int32_t group = shape->n_heads / shape->n_kv_heads, n_blocks = hsp__pieces(n_tokens, shape->block_tokens);
    size_t row = hsp__padded(s.n_keys);
    float *weights = scratch, *totals = weights + (size_t)shape->n_heads * row, *sums = totals + shape->n_heads;
    uint32_t *ranks = (uint32_t *)(void *)(sums + (size_t)shape->n_kv_heads * row);
    if (s.n_keys)
        hsp__weigh_keys(&s, weights, totals);
    int64_t work = (int64_t)row * shape->n_heads;
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t kv_head = 0; kv_head < shape->n_kv_heads; kv_head++) {
        float *sum = sums + (size_t)kv_head * row;
        uint32_t *rank = ranks + (size_t)kv_head * (size_t)n_blocks;
        hsp__sum_heads(&s, weights, totals, kv_head * group, group, sum);
        rank_blocks(shape, sum, s.n_keys, n_blocks, rank);
        hsp__emit_blocks(rank, shape->block_tokens, n_tokens, shape->n_blocks, selection_out + (size_t)kv_head * n_out);
    }
    return HSP_OK;
}

int hsp_nsa_window(int32_t window, int32_t n_tokens, int32_t *selection_out) {
    if (window < 1 || n_tokens < 0 || !selection_out)
        return HSP_EINVAL;
    int32_t first = n_tokens > window ? n_tokens - window : 0;
    for (int32_t i = 0; i < window; i++)
        selection_out[i] = i < n_tokens - first ? first + i : -1;
    return HSP_OK;
}

int hsp_nsa_gate(int32_t n_heads, int32_t value_dim, const float *gate_logits, const float *compressed,
                 const float *selected, const float *window, float *out) {
    if (n_heads < 1 || value_dim < 1 || !gate_logits || !compressed || !selected || !window || !out)
        return HSP_EINVAL;
    if (n_heads > HSP__MAX_DIM || value_dim > HSP__MAX_DIM)
        return HSP_ELIMIT;
    const struct hsp__select_kernels *kernels = hsp__ops()->select;
    for (int32_t h = 0; h < n_heads; h++) {
        size_t at = (size_t)h * (size_t)value_dim;
        const float *const branches[3] = {compressed + at, selected + at, window + at};
        kernels->gate(gate_logits + (size_t)h * 3, branches, value_dim, out + at);
    }
    return HSP_OK;
}
