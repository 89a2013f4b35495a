/* SPDX-License-Identifier: Apache-2.0
 *
 * The inner loops, compiled once per instruction set (kernels*.c) and reached through a table of functions. Every table
 * gives the same bits. Where an array has three or four entries, enum hsp_dtype is the index.
 */
#ifndef HSP_KERNELS_H
#define HSP_KERNELS_H

#include "hisparse_ops.h"
#include "shapes.h"

/* One tile of one KV head: the query heads that share it against the rows named. */
struct hsp__gqa_item {
    int32_t n_heads; /* that share the KV head */
    int32_t n_rows;  /* at most HSP_ATTENTION_TILE */
    int32_t key_dim, value_dim;
    float scale;
    const float *query;        /* [n_heads][key_dim] */
    const int32_t *row_ids;    /* [n_rows] */
    hsp_plane_view key, value; /* base moved to the channels of this KV head */
    float *partial_out;        /* n_heads partials */
};

/* What a tile leaves per query head: the maximum score, the sum of exponentials (0: every row masked), the rest of one
 * vector unused, then the values weighted by the exponentials, to a whole number of vectors. */
enum { HSP__MAXIMUM = 0, HSP__SUM = 1, HSP__VALUES = 16 };

static inline size_t hsp__partial_floats(int32_t value_dim) {
    return HSP__VALUES + ((size_t)value_dim + 15) / 16 * 16;
}

/* Some keys of the indexer against one query. */
struct hsp__dsa_item {
    int32_t n_heads, head_dim, n_keys;
    const char *query; /* packed: float [groups][head_dim][16 heads], then weights [groups][16 heads]; any alignment */
    const char *keys;  /* packed rows; any alignment */
    size_t key_stride;
    float *scores_out; /* [n_keys] */
};

/* Groups of sixteen heads; the last one is filled up with heads that count for nothing. */
static inline size_t hsp__dsa_groups(int32_t n_heads) {
    return ((size_t)n_heads + 15) / 16;
}

struct hsp__dsa_kernels {
    /* Transform row [dim] in place, times `scale`; returns the greatest magnitude (any number where one is NaN). */
    float (*hadamard)(float *row, size_t dim, float scale);
    void (*scores[4])(const struct hsp__dsa_item *item); /* HSP_BF16 and HSP_E4M3 only */
};

struct hsp__select_kernels;

struct hsp__kernels {
    const char *name;
    const struct hsp__dsa_kernels *dsa;       /* kernels_dsa.c */
    const struct hsp__select_kernels *select; /* kernels_select.h */

    void (*pack[4])(const float *values, size_t n, void *packed_out);
    void (*unpack[4])(const void *packed, size_t n, float *values_out);

    void (*gqa_tile[3])(const struct hsp__gqa_item *item);
    /* Combine partials of one head, one every `stride` floats, into out[value_dim] and, unless NULL, *lse_out. */
    void (*gqa_combine)(const float *partials, size_t stride, int32_t n_tiles, int32_t value_dim, float *out,
                        float *lse_out);

    /* Take n_rows keys into the minima and maxima [channels] of a page; `fresh`: forget what these were. */
    void (*quest_page[3])(const void *keys, size_t key_stride, int32_t n_rows, int32_t channels, int fresh,
                          void *minima, void *maxima);
};

/* The table for this machine, chosen at the first call. */
const struct hsp__kernels *hsp__ops(void);

/* For tests: use the table of that name from now on; NULL: choose anew. -1: not here, nothing changed. */
int hsp__ops_force_target(const char *name);

#endif
