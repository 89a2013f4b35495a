/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include <stdlib.h>
#include <string.h>

typedef struct resident {
    kv base;
    const model *m;
    char *rows; /* [store][max_tokens][row_bytes] */
    int32_t max_tokens, token;
} resident;

static char *row_of(const resident *r, int32_t store, int32_t token) {
    return r->rows + ((size_t)store * (size_t)r->max_tokens + (size_t)token) * (size_t)r->base.row_bytes;
}

static int fill(kv *self, int32_t store, int32_t first, int32_t n, const void *rows) {
    resident *r = (resident *)self;
    memcpy(row_of(r, store, first), rows, (size_t)n * (size_t)r->base.row_bytes);
    return 0;
}

static int begin(kv *self, int32_t token) {
    ((resident *)self)->token = token;
    return 0;
}

static int append(kv *self, int32_t store, const void *row) {
    resident *r = (resident *)self;
    memcpy(row_of(r, store, r->token), row, (size_t)r->base.row_bytes);
    return 0;
}

/* Every token lies at its own place. */
static int select_rows(kv *self, int32_t store, const int32_t *selection, int32_t n, int32_t *ids_out) {
    (void)self, (void)store;
    memcpy(ids_out, selection, (size_t)n * sizeof *ids_out);
    return 0;
}

static void views(kv *self, int32_t store, hsp_plane_view *planes_out) {
    resident *r = (resident *)self;
    size_t row = (size_t)r->base.row_bytes;
    char *plane = row_of(r, store, 0);
    for (int32_t p = 0; p < r->m->n_planes; plane += r->m->plane_bytes[p++])
        planes_out[p] = (hsp_plane_view){plane, (size_t)r->m->plane_bytes[p], row, row, 1, 0};
}

static void close_resident(kv *self) {
    if (self)
        free(((resident *)self)->rows);
    free(self);
}

kv *kv_open_resident(const model *m, int32_t max_tokens) {
    resident *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->base = (kv){.row_bytes = m->plane_bytes[0] + m->plane_bytes[1],
                   .most_rows = max_tokens,
                   .error = "",
                   .fill = fill,
                   .begin = begin,
                   .append = append,
                   .select = select_rows,
                   .views = views,
                   .close = close_resident,
                   .copy = kv_copy_plain};
    r->m = m;
    r->max_tokens = max_tokens;
    r->rows = calloc((size_t)m->n_layers * (size_t)m->stores * (size_t)max_tokens, (size_t)r->base.row_bytes);
    if (!r->rows) {
        close_resident(&r->base);
        return NULL;
    }
    return &r->base;
}

const void *kv_resident_row(const kv *self, int32_t store, int32_t token) {
    return row_of((const resident *)self, store, token);
}
