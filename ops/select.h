/* SPDX-License-Identifier: Apache-2.0
 *
 * What the selectors share: scores of keys, softmax over them, sums over heads, and a selection out of ranks.
 */
#ifndef HSP_SELECT_H
#define HSP_SELECT_H

#include "kernels_select.h"

/* Query heads against keys; head h reads key head h * n_key_heads / n_heads. */
struct hsp__scoring {
    int32_t n_heads, n_key_heads, key_dim, dtype;
    float scale;
    const float *query; /* [n_heads][key_dim] */
    const void *keys;   /* n_keys rows of [n_key_heads][key_dim] */
    size_t key_stride;
    int32_t n_keys;
};

static inline size_t hsp__key_bytes(int32_t dtype, int32_t channels) {
    return (size_t)channels * (dtype == HSP_F32 ? 4 : 2);
}

/* How many `each` hold n. */
static inline int32_t hsp__pieces(int32_t n, int32_t each) {
    return n / each + (n % each != 0);
}

/* The part of the scoring that is keys first .. first + n - 1 against n_heads heads from first_head on, which share a
 * key head. */
struct hsp__score_item hsp__score_part(const struct hsp__scoring *s, int32_t first_head, int32_t n_heads, int32_t first,
                                       int32_t n, float *scores_out, size_t score_stride);

/* weights_out: [n_heads][hsp__padded(n_keys)], e^(score - greatest score of the head); totals_out: [n_heads], their
 * sums. A score that is NaN leaves NaN and is in no sum. */
void hsp__weigh_keys(const struct hsp__scoring *s, float *weights_out, float *totals_out);

/* sums_out: [hsp__padded(n_keys)], attention probabilities added over heads first_head .. first_head + n_heads - 1. */
void hsp__sum_heads(const struct hsp__scoring *s, const float *weights, const float *totals, int32_t first_head,
                    int32_t n_heads, float *sums_out);

/* Ranks of the first n_first and the last n_local of n blocks become the greatest there is. */
void hsp__force_blocks(uint32_t *ranks, int32_t n, int32_t n_first, int32_t n_local);

/* Tokens of the n_chosen blocks of greatest rank, ties to the lower block, ascending, then -1; selection_out:
 * int32 [n_chosen * block_tokens]. */
void hsp__emit_blocks(const uint32_t *ranks, int32_t block_tokens, int32_t n_tokens, int32_t n_chosen,
                      int32_t *selection_out);

/* A selection of no tokens: n times -1. */
void hsp__emit_none(size_t n, int32_t *selection_out);

#endif
