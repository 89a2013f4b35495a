/* SPDX-License-Identifier: Apache-2.0 */
/* The prompt, layer by layer: all of its tokens side by side through the matrix products, then every token attends on
 * its own, as in a step (with Quest to everything), while the rows of the layer are still in the last-level cache. */
#include "decoder.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_AT_ONCE = 256 }; /* between looks at the progress function */

/* The rows of one layer of the prompt, every token at its own place. */
typedef struct prompt_rows {
    kv base;
    const model *m;
    const activations *x;
} prompt_rows;

typedef struct batch {
    const attend *a;
    decoder *const *ds;
    int n_decoders, n_workers;
    activations x;
    attend_worker *workers; /* of the threads */
    prompt_rows rows;
    prefill_progress progress;
    void *context;
    const char *error;
} batch;

static int select_rows(kv *self, int32_t store, const int32_t *selection, int32_t n, int32_t *ids_out) {
    (void)self, (void)store;
    memcpy(ids_out, selection, (size_t)n * sizeof *ids_out);
    return 0;
}

static char *rows_of(const model *m, const activations *x, int32_t store) {
    size_t row_bytes = (size_t)m->plane_bytes[0] + (size_t)m->plane_bytes[1];
    return x->rows + (size_t)(store % m->stores) * (size_t)x->n * row_bytes;
}

static void views(kv *self, int32_t store, hsp_plane_view *planes_out) {
    const prompt_rows *r = (const prompt_rows *)self;
    size_t row_bytes = (size_t)r->base.row_bytes;
    char *plane = rows_of(r->m, r->x, store);
    for (int32_t p = 0; p < r->m->n_planes; plane += r->m->plane_bytes[p++])
        planes_out[p] = (hsp_plane_view){plane, (size_t)r->m->plane_bytes[p], row_bytes, row_bytes, 1, 0};
}

static int allocate(batch *b, int32_t n) {
    const model *m = b->a->m;
    b->rows = (prompt_rows){
        {.row_bytes = m->plane_bytes[0] + m->plane_bytes[1], .most_rows = n, .select = select_rows, .views = views},
        m,
        &b->x};
    b->n_workers = omp_get_max_threads();
    b->workers = calloc((size_t)b->n_workers, sizeof *b->workers);
    int failed = !b->workers || activations_open(b->a, n, &b->x) != 0;
    for (int i = 0; !failed && i < b->n_workers; i++)
        failed = attend_worker_open(b->a, &b->workers[i]) != 0;
    return failed ? -1 : 0;
}

static void release(batch *b) {
    for (int i = 0; b->workers && i < b->n_workers; i++)
        attend_worker_close(&b->workers[i]);
    free(b->workers);
    activations_close(&b->x);
}

/* Share of a prefill that is done after `tokens` tokens of the attention of `layer`; what grows with the prefix is most
 * of it. */
static double share_done(const batch *b, int32_t layer, int32_t tokens) {
    double part = (double)tokens / b->x.n;
    return (layer + part * part) / b->a->m->n_layers;
}

static void *state_of(const decoder *d, int32_t layer) {
    return d->state + (size_t)layer * d->attention.sizes.state;
}

/* Nothing can fail: the rows are at hand. */
static int attend_layer(batch *b, int32_t layer) {
    const attend_place place = {layer, 1, state_of(b->ds[0], layer), &b->rows.base};
    for (int32_t first = 0; first < b->x.n; first += TOKENS_AT_ONCE) {
        int32_t end = b->x.n - first < TOKENS_AT_ONCE ? b->x.n : first + TOKENS_AT_ONCE;
#pragma omp parallel for schedule(dynamic, 4)
        for (int32_t t = first; t < end; t++)
            b->a->kind->token(b->a, &place, &b->x, t, &b->workers[omp_get_thread_num()]);
        if (b->progress && b->progress(b->context, share_done(b, layer, end)))
            return 1;
    }
    return 0;
}

static int keep_layer(batch *b, int32_t layer) {
    const model *m = b->a->m;
    for (int i = 0; i < b->n_decoders; i++) {
        kv *rows = b->ds[i]->rows;
        b->a->kind->keep(b->a, &m->layer[layer], state_of(b->ds[i], layer), &b->x);
        for (int32_t s = 0; s < m->stores; s++)
            if (rows->fill(rows, layer * m->stores + s, 0, b->x.n, rows_of(m, &b->x, s)) != 0) {
                b->error = rows->error;
                return -1;
            }
    }
    return 0;
}

static int run_layers(batch *b) {
    for (int32_t layer = 0; layer < b->a->m->n_layers; layer++) {
        layer_begin(b->a, layer, &b->x);
        if (keep_layer(b, layer) != 0)
            return -1;
        if (attend_layer(b, layer) != 0)
            return 1;
        layer_end(b->a, layer, &b->x);
    }
    return 0;
}

int decoder__prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                     void *context, const char **error_out) {
    batch b = {.a = &ds[0]->attention,
               .ds = ds,
               .n_decoders = n_decoders,
               .progress = progress,
               .context = context,
               .error = "not enough memory for the activations of the prompt"};
    size_t e = (size_t)ds[0]->m->embedding;
    int result = -1;
    if (allocate(&b, n) == 0) {
        for (int32_t t = 0; t < n; t++)
            memcpy(b.x.x + (size_t)t * e, ds[0]->m->token_embedding + (size_t)tokens[t] * e, e * sizeof(float));
        result = run_layers(&b);
    }
    for (int i = 0; result == 0 && i < n_decoders; i++) {
        decoder__finish(ds[i], b.x.x + (size_t)(n - 1) * e);
        ds[i]->length = n;
    }
    release(&b);
    *error_out = b.error;
    return result;
}
