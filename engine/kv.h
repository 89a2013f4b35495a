/* SPDX-License-Identifier: Apache-2.0 */
/* Where a decoder keeps the KV rows of its one request: in a libhisparse cache, or all in one array. A row is its
 * planes one after the other, in bfloat16: K and V, or the latent and its rope channels in one. Both give attention the
 * same rows in the same order. A `store` is a layer of rows: model.h says how many a layer of the model has. */
#ifndef HISPARSE_KV_H
#define HISPARSE_KV_H

#include "hisparse.h"
#include "model.h"

/* What the selector ranked just behind a selection, for those who ask; the engine fills it in before it asks for the
 * selected rows of a step. */
typedef struct kv_next {
    int32_t n;       /* tokens wanted */
    float *work;     /* [max_tokens of the decoder] */
    int32_t *tokens; /* [n], best first, those of a page in ascending order; -1: there are no more */
    float *scores;   /* [n], in the selector's scale; 0 for none */
} kv_next;

typedef struct kv kv;
struct kv {
    int32_t row_bytes;      /* all planes */
    int32_t most_rows;      /* rows that may be asked for at once */
    const char *error;      /* of the last failure */
    double *select_seconds; /* [stores of all layers]: spent in `select` so far, NULL where it costs nothing */

    /* Each returns 0, or -1 with `error` set. */
    int (*fill)(kv *self, int32_t store, int32_t first, int32_t n, const void *rows); /* packed rows of the prompt */
    int (*begin)(kv *self, int32_t token);                                            /* a step that adds this token */
    int (*append)(kv *self, int32_t store, const void *row);
    /* Row ids of selected tokens, [n], -1 for -1. */
    int (*select)(kv *self, int32_t store, const int32_t *selection, int32_t n, int32_t *ids_out);
    void (*views)(kv *self, int32_t store, hsp_plane_view *planes_out); /* [n_planes of the model] */
    void (*close)(kv *self);

    /* Bytes of rows, from where a view says, into ordinary memory; after what was queued. */
    int (*copy)(kv *self, void *to, const void *from, size_t bytes);
    void *stream;     /* what all of these queue their work on; NULL in ordinary memory */
    hsp_cache *cache; /* NULL: every row is resident, and its id is its token */
    int32_t request;
    kv_next *next; /* NULL: nobody asks. Not asked for by NSA, and on a GPU */
};

/* Rows in a cache. config: everything but the model's shape, which is set here; for NSA the ring is made to hold the
 * window, so that only the selection is fetched. NULL on failure, reason in
 * hsp_last_error (NULL). */
kv *kv_open_cache(const model *m, hsp_config *config, int32_t max_tokens);

/* Of a kv whose rows lie in ordinary memory. */
int kv_copy_plain(kv *self, void *to, const void *from, size_t bytes);

/* All rows resident, no cache involved. NULL when out of memory. */
kv *kv_open_resident(const model *m, int32_t max_tokens);
/* Address of a token's row; self must come from kv_open_resident. */
const void *kv_resident_row(const kv *self, int32_t store, int32_t token);

#endif
