/* SPDX-License-Identifier: Apache-2.0
 *
 * Block-sparse attention: blocks of tokens by the greatest index score in them.
 */
#include "kernels.h"
#include "select.h"
#include "shapes.h"
#include "top.h"

#include <math.h>

/* Multiply-adds below which waking threads costs more than it saves. */
#define ENOUGH_WORK (1 << 19)

#define HEADS 16 /* index heads whose scores of a tile are held at a time */

/* Per group the score of every block, which becomes a rank in place. */
int hsp_block_scratch(const hsp_block_shape *shape, int32_t n_tokens, size_t *bytes_out) {
    int status = hsp__check_block(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    *bytes_out = (size_t)shape->n_groups * (size_t)hsp__pieces(n_tokens, shape->block_tokens) * sizeof(float);
    return HSP_OK;
}

/* Raise the scores of the groups of heads first_head .. by what keys first .. first + n - 1 score. */
static void raise_scores(const struct hsp__scoring *s, int32_t heads_per_group, int32_t first_head, int32_t n_heads,
                         int32_t first, int32_t n, float *scores, size_t n_blocks) {
    const struct hsp__select_kernels *kernels = hsp__ops()->select;
    float tile[HEADS][HSP__SCORE_TILE];
    struct hsp__score_item item = hsp__score_part(s, first_head, n_heads, first, n, tile[0], HSP__SCORE_TILE);
    kernels->scores[s->dtype](&item);
    for (int32_t h = 0; h < n_heads; h++) {
        float *score = scores + (size_t)((first_head + h) / heads_per_group) * n_blocks;
        float top = kernels->top(tile[h], hsp__padded(n));
        *score = top > *score ? top : *score;
    }
}

/* All groups' scores of the block of tokens first .. end - 1; scores: of group 0, n_blocks from group to group. */
static void score_block(const hsp_block_shape *shape, const struct hsp__scoring *s, int32_t first, int32_t end,
                        float *scores, size_t n_blocks) {
    int32_t per_key_head = shape->n_heads / shape->n_key_heads, per_group = shape->n_heads / shape->n_groups;
    for (int32_t group = 0; group < shape->n_groups; group++)
        scores[(size_t)group * n_blocks] = -INFINITY;
    for (int32_t from = first, n; from < end; from += n) {
        n = end - from < HSP__SCORE_TILE ? end - from : HSP__SCORE_TILE;
        for (int32_t h = 0; h < shape->n_heads;) {
            int32_t shared = per_key_head - h % per_key_head, heads = shared < HEADS ? shared : HEADS;
            raise_scores(s, per_group, h, heads, from, n, scores, n_blocks);
            h += heads;
        }
    }
}

static void score_blocks(const hsp_block_shape *shape, const struct hsp__scoring *s, int32_t n_blocks, float *scores) {
    int64_t work = (int64_t)s->n_keys * s->n_heads * s->key_dim;
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t block = 0; block < n_blocks; block++) {
        int32_t first = block * shape->block_tokens, left = s->n_keys - first;
        int32_t end = first + (left < shape->block_tokens ? left : shape->block_tokens);
        score_block(shape, s, first, end, scores + block, (size_t)n_blocks);
    }
}

int hsp_block_select(const hsp_block_shape *shape, const void *index_keys, size_t key_stride, int32_t n_tokens,
                     const float *index_query, int32_t *selection_out, void *scratch) {
    int status = hsp__check_block(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !selection_out || (n_tokens && (!index_keys || !index_query || !scratch)))
        return HSP_EINVAL;
    if (n_tokens && key_stride < (size_t)shape->n_key_heads * hsp__key_bytes(shape->dtype, shape->key_dim))
        return HSP_EINVAL;
    size_t n_out = (size_t)shape->n_blocks * (size_t)shape->block_tokens;
    if (n_tokens == 0) {
        hsp__emit_none((size_t)shape->n_groups * n_out, selection_out);
        return HSP_OK;
    }
    const struct hsp__scoring s = {shape->n_heads, shape->n_key_heads, shape->key_dim, shape->dtype, shape->scale,
                                   index_query,    index_keys,         key_stride,     n_tokens};
    int32_t n_blocks = hsp__pieces(n_tokens, shape->block_tokens);
    float *scores = scratch;
    score_blocks(shape, &s, n_blocks, scores);
    for (int32_t group = 0; group < shape->n_groups; group++) {
        float *score = scores + (size_t)group * (size_t)n_blocks;
        uint32_t *ranks = (uint32_t *)(void *)score;
        for (int32_t block = 0; block < n_blocks; block++)
            ranks[block] = hsp__rank_of(score[block]);
        hsp__force_blocks(ranks, n_blocks, shape->n_first, shape->n_local);
        hsp__emit_blocks(ranks, shape->block_tokens, n_tokens, shape->n_blocks, selection_out + (size_t)group * n_out);
    }
    return HSP_OK;
}
