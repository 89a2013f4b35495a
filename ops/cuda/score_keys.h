/* SPDX-License-Identifier: Apache-2.0
 *
 * Query heads against keys, for the selectors whose score is a plain product: NSA, block and exact. Keys go in pieces,
 * a warp a piece; of every head and piece is left what softmax needs, or the greatest score.
 */
#ifndef HSP_OPS_CUDA_SCORE_KEYS_H
#define HSP_OPS_CUDA_SCORE_KEYS_H

#include "batch.h"

enum { HSP__SOFTMAX_PIECE = 64 };

typedef struct hsp__gpu_keys {
    hsp_gpu_batch batch;
    const unsigned char
        *keys; /* key i of slot s at keys + s * request_stride + i * key_stride, [n_key_heads][key_dim] */
    uint64_t request_stride, key_stride;
    const float *query; /* [batch][n_queries][n_heads][key_dim] */
    int32_t n_heads, n_key_heads, key_dim, dtype;
    float scale;
    int32_t span, step; /* a key stands for `span` tokens, the next begins `step` later */
    int32_t piece;      /* keys of a piece */
    int32_t n_pieces;   /* of max_tokens */
    int32_t most_keys;  /* of max_tokens */
    /* Softmax: per head (entry, query, head) a row of most_keys scores, and of n_pieces greatest scores and sums of
     * exponentials. Greatest: scores NULL, and n_pieces greatest scores. */
    float *scores;
    float2 *partials;
    float *greatest;
} hsp__gpu_keys;

static inline int32_t hsp__gpu_count_keys(int32_t span, int32_t step, int32_t n_tokens) {
    return n_tokens < span ? 0 : (n_tokens - span) / step + 1;
}

static inline size_t hsp__gpu_number_bytes(int32_t dtype) {
    return dtype == HSP_F32 ? 4 : 2;
}

/* Are keys where a thread can read its numbers? */
static inline int hsp__gpu_keys_aligned(const hsp__gpu_keys *p) {
    return ((uintptr_t)p->keys | p->request_stride | p->key_stride) % hsp__gpu_number_bytes(p->dtype) == 0;
}

int hsp__gpu_score_keys(const hsp__gpu_keys *keys, void *stream);

/* The rest of the softmax: attention probabilities added over the heads of each of n_groups groups. */
typedef struct hsp__gpu_softmax {
    hsp__gpu_keys keys;
    float2 *totals; /* [entries * queries * heads]: greatest score and sum of exponentials */
    float *sums;    /* [entries * queries * n_groups][most_keys] */
    int32_t n_groups;
} hsp__gpu_softmax;

/* Where a softmax has what in its scratch; returns the bytes, all of them multiples of 16. */
size_t hsp__gpu_softmax_layout(hsp__gpu_softmax *softmax, void *scratch);
int hsp__gpu_softmax_launch(const hsp__gpu_softmax *softmax, void *stream);

#endif
