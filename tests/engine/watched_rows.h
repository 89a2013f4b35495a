/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are watched: where a decoder looks is what a test wants to know. */
#ifndef HISPARSE_TESTS_WATCHED_ROWS_H
#define HISPARSE_TESTS_WATCHED_ROWS_H

#include "kv.h"

#include <stdlib.h>
#include <string.h>

enum { WATCHED_STORES = 12, WATCHED_TOKENS = 384 };

/* All rows resident, and a note of every token a step asked for. */
typedef struct watched {
    kv base;
    kv *inner;
    int32_t tokens[WATCHED_STORES][WATCHED_TOKENS], n[WATCHED_STORES]; /* in the order asked for, this step */
    int fails;                                                         /* the next call */
} watched;

static inline int fails(kv *self) {
    self->error = "told to";
    return ((watched *)self)->fails ? -1 : 0;
}

static inline int watched_fill(kv *self, int32_t store, int32_t first, int32_t n, const void *rows) {
    kv *inner = ((watched *)self)->inner;
    return fails(self) || inner->fill(inner, store, first, n, rows);
}

static inline int watched_begin(kv *self, int32_t token) {
    watched *w = (watched *)self;
    memset(w->n, 0, sizeof w->n);
    return w->inner->begin(w->inner, token);
}

static inline int watched_append(kv *self, int32_t store, const void *row) {
    kv *inner = ((watched *)self)->inner;
    return inner->append(inner, store, row);
}

static inline int watched_select(kv *self, int32_t store, const int32_t *selection, int32_t n, int32_t *ids_out) {
    watched *w = (watched *)self;
    memcpy(w->tokens[store] + w->n[store], selection, (size_t)n * sizeof *selection);
    w->n[store] += n;
    return fails(self) ? -1 : w->inner->select(w->inner, store, selection, n, ids_out);
}

static inline void watched_views(kv *self, int32_t store, hsp_plane_view *planes_out) {
    kv *inner = ((watched *)self)->inner;
    inner->views(inner, store, planes_out);
}

static inline void watched_close(kv *self) {
    kv *inner = ((watched *)self)->inner;
    inner->close(inner);
    free(self);
}

/* max_tokens and what a step asks for beyond the tokens there are: at most WATCHED_TOKENS. */
static inline watched *watch(const model *m, int32_t max_tokens) {
    watched *w = calloc(1, sizeof *w);
    if (!w || !(w->inner = kv_open_resident(m, max_tokens)) || m->n_layers * m->stores > WATCHED_STORES)
        abort();
    w->base = (kv){.row_bytes = w->inner->row_bytes,
                   .most_rows = max_tokens,
                   .error = "",
                   .fill = watched_fill,
                   .begin = watched_begin,
                   .append = watched_append,
                   .select = watched_select,
                   .views = watched_views,
                   .close = watched_close,
                   .copy = kv_copy_plain};
    return w;
}

#endif
