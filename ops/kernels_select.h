/* SPDX-License-Identifier: Apache-2.0
 *
 * The inner loops of the selectors NSA, block and exact, and of Quest per KV group: compiled once per instruction set
 * (kernels_select.c), a table of functions reached through that of kernels.h. Every table gives the same bits. Rows of
 * scores are a whole number of vectors long (hsp__padded); what is beyond the last score is -infinity.
 */
#ifndef HSP_KERNELS_SELECT_H
#define HSP_KERNELS_SELECT_H

#include "hisparse_ops.h"

#define HSP__SCORE_TILE 64 /* keys scored together; a multiple of 16 */

static inline size_t hsp__padded(int32_t n) {
    return ((size_t)n + 15) / 16 * 16;
}

/* Query heads that share keys, against n_keys keys that lie one every key_stride bytes. */
struct hsp__score_item {
    int32_t n_heads, n_keys, key_dim;
    float scale;
    const float *query; /* [n_heads][key_dim] */
    const void *keys;
    size_t key_stride;
    float *scores_out; /* head h from h * score_stride on, hsp__padded(n_keys) of them */
    size_t score_stride;
};

struct hsp__select_kernels {
    /* scale * q . k, never -0; enum hsp_dtype is the index. */
    void (*scores[3])(const struct hsp__score_item *item);
    /* The greatest of n scores; NaN counts as -infinity. n is a multiple of 16, here and below. */
    float (*top)(const float *scores, size_t n);
    /* Turn scores into e^(score - top), in place; the sum, without those that are NaN. */
    float (*exponentials)(float *scores, size_t n, float top);
    /* sums[i] += weights[i] / total */
    void (*add_quotients)(const float *weights, size_t n, float total, float *sums);

    /* Quest: a page is `channels` minima at `pages` and as many maxima `half` bytes on, the next page page_stride on.
     */
    void (*page_scores[3])(const float *query, const void *pages, size_t half, size_t page_stride, int32_t n_pages,
                           int32_t channels, float *scores_out);

    /* One head of three branches: out = sum over b of sigmoid(logits[b]) * branches[b], added from left to right. */
    void (*gate)(const float logits[3], const float *const branches[3], int32_t value_dim, float *out);
};

#endif
