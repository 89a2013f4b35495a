/* SPDX-License-Identifier: Apache-2.0 */
#include "select.h"

#include "kernels.h"
#include "top.h"

#include <string.h>

/* Numbers read below which waking threads costs more than it saves: some ten microseconds of one core. */
#define ENOUGH_WORK (1 << 19)

/* Weights that are summed in float before the sum goes on in double. The result must not depend on threads, so this is
 * also what a thread takes. */
#define CHUNK 4096

struct hsp__score_item hsp__score_part(const struct hsp__scoring *s, int32_t first_head, int32_t n_heads, int32_t first,
                                       int32_t n, float *scores_out, size_t score_stride) {
    int32_t key_head = first_head / (s->n_heads / s->n_key_heads);
    return (struct hsp__score_item){.n_heads = n_heads,
                                    .n_keys = n,
                                    .key_dim = s->key_dim,
                                    .scale = s->scale,
                                    .query = s->query + (size_t)first_head * (size_t)s->key_dim,
                                    .keys = (const char *)s->keys + (size_t)first * s->key_stride +
                                            (size_t)key_head * hsp__key_bytes(s->dtype, s->key_dim),
                                    .key_stride = s->key_stride,
                                    .scores_out = scores_out,
                                    .score_stride = score_stride};
}

static void score_keys(const struct hsp__scoring *s, float *scores_out) {
    const struct hsp__select_kernels *kernels = hsp__ops()->select;
    size_t stride = hsp__padded(s->n_keys);
    int32_t group = s->n_heads / s->n_key_heads;
    int64_t n_items = (int64_t)hsp__pieces(s->n_keys, HSP__SCORE_TILE) * s->n_key_heads;
    int64_t work = (int64_t)s->n_keys * s->n_heads * s->key_dim;
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int64_t i = 0; i < n_items; i++) {
        int32_t first = (int32_t)(i / s->n_key_heads) * HSP__SCORE_TILE, left = s->n_keys - first;
        int32_t head = (int32_t)(i % s->n_key_heads) * group;
        struct hsp__score_item item =
            hsp__score_part(s, head, group, first, left < HSP__SCORE_TILE ? left : HSP__SCORE_TILE,
                            scores_out + (size_t)head * stride + (size_t)first, stride);
        kernels->scores[s->dtype](&item);
    }
}

void hsp__weigh_keys(const struct hsp__scoring *s, float *weights_out, float *totals_out) {
    const struct hsp__select_kernels *kernels = hsp__ops()->select;
    size_t stride = hsp__padded(s->n_keys);
    int64_t work = (int64_t)stride * s->n_heads;
    score_keys(s, weights_out);
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t h = 0; h < s->n_heads; h++) {
        float *weights = weights_out + (size_t)h * stride, top = kernels->top(weights, stride);
        double total = 0.0;
        for (size_t i = 0; i < stride; i += CHUNK)
            total += (double)kernels->exponentials(weights + i, stride - i < CHUNK ? stride - i : CHUNK, top);
        totals_out[h] = (float)total;
    }
}

void hsp__sum_heads(const struct hsp__scoring *s, const float *weights, const float *totals, int32_t first_head,
                    int32_t n_heads, float *sums_out) {
    const struct hsp__select_kernels *kernels = hsp__ops()->select;
    size_t stride = hsp__padded(s->n_keys);
    int64_t n_chunks = (int64_t)((stride + CHUNK - 1) / CHUNK), work = (int64_t)stride * n_heads;
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        size_t at = (size_t)chunk * CHUNK, n = stride - at < CHUNK ? stride - at : CHUNK;
        memset(sums_out + at, 0, n * sizeof *sums_out);
        for (int32_t h = first_head; h < first_head + n_heads; h++)
            kernels->add_quotients(weights + (size_t)h * stride + at, n, totals[h], sums_out + at);
    }
}

void hsp__force_blocks(uint32_t *ranks, int32_t n, int32_t n_first, int32_t n_local) {
    for (int32_t block = 0; block < n_first && block < n; block++)
        ranks[block] = UINT32_MAX;
    for (int32_t block = n_local < n ? n - n_local : 0; block < n; block++)
        ranks[block] = UINT32_MAX;
}

void hsp__emit_blocks(const uint32_t *ranks, int32_t block_tokens, int32_t n_tokens, int32_t n_chosen,
                      int32_t *selection_out) {
    int32_t n = hsp__pieces(n_tokens, block_tokens), n_equal = n, n_out = 0;
    uint32_t least = 0;
    if (n_chosen < n)
        least = hsp__kth_rank(ranks, n, n_chosen, &n_equal);
    for (int32_t block = 0; block < n; block++) {
        if (ranks[block] < least || (ranks[block] == least && n_equal-- <= 0))
            continue;
        int32_t token = block * block_tokens, left = n_tokens - token;
        for (int32_t i = 0; i < block_tokens && i < left; i++)
            selection_out[n_out++] = token + i;
    }
    while (n_out < n_chosen * block_tokens)
        selection_out[n_out++] = -1;
}

void hsp__emit_none(size_t n, int32_t *selection_out) {
    for (size_t i = 0; i < n; i++)
        selection_out[i] = -1;
}
