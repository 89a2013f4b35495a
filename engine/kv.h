/* SPDX-License-Identifier: Apache-2.0 */
/* Where a decoder keeps the KV rows of its one request: in a libhisparse cache, or all in one array. A row is K
 * [n_kv_heads][head_dim], then V, in bfloat16. Both give attention the same rows in the same order. */
#ifndef HISPARSE_KV_H
#define HISPARSE_KV_H

#include "hisparse.h"
#include "model.h"

typedef struct kv kv;
struct kv {
    int32_t row_bytes;      /* K and V */
    int32_t most_rows;      /* rows that may be asked for at once */
    const char *error;      /* of the last failure */
    double *select_seconds; /* [n_layers]: spent in `select` so far, NULL where it costs nothing */

    /* Each returns 0, or -1 with `error` set. */
    int (*fill)(kv *self, int32_t layer, int32_t first, int32_t n,
                const void *rows);         /* packed K, V rows of the prompt */
    int (*begin)(kv *self, int32_t token); /* a step that adds this token */
    int (*append)(kv *self, int32_t layer, const void *row);
    /* Row ids of selected tokens, [n], -1 for -1. */
    int (*select)(kv *self, int32_t layer, const int32_t *selection, int32_t n, int32_t *ids_out);
    void (*views)(kv *self, int32_t layer, hsp_plane_view *keys_out, hsp_plane_view *values_out);
    void (*close)(kv *self);
};

/* Rows in a cache. config: everything but the model's shape, which is set here. NULL on failure, reason in
 * hsp_last_error (NULL). kv_cache gives the cache for statistics. */
kv *kv_open_cache(const model *m, hsp_config *config, int32_t max_tokens);
hsp_cache *kv_cache(const kv *self);
int32_t kv_request(const kv *self);

/* All rows resident, no cache involved. NULL when out of memory. */
kv *kv_open_resident(const model *m, int32_t max_tokens);
/* Address of a token's row (K, then V); self must come from kv_open_resident. */
const void *kv_resident_row(const kv *self, int32_t layer, int32_t token);

#endif
