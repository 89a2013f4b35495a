/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder.h"

#include "arithmetic.h"

#include <stdlib.h>
#include <string.h>

static int allocate(decoder *d, int32_t top_k, int32_t max_tokens) {
    if (attend_open(&d->attention, d->m, top_k, max_tokens) != 0 || activations_open(&d->attention, 1, &d->x) != 0 ||
        attend_worker_open(&d->attention, &d->worker) != 0)
        return -1;
    d->state_bytes = (size_t)d->m->n_layers * d->attention.sizes.state;
    d->state = attend_grab(d->state_bytes, 1);
    d->logits = attend_grab((size_t)d->m->vocab, sizeof(float));
    return d->state && d->logits ? 0 : -1;
}

static void close_plain(decoder *d) {
    activations_close(&d->x);
    attend_worker_close(&d->worker);
    free(d->state);
    free(d->logits);
    free(d);
}

static int step_plain(decoder *d, int32_t token);
static const decoder_kind plain = {step_plain, decoder__prefill, close_plain};

decoder *decoder_open(const model *m, kv *rows, int32_t top_k, int32_t max_tokens) {
    decoder *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->kind = &plain;
    d->m = m;
    d->rows = rows;
    if (allocate(d, top_k, max_tokens) == 0)
        return d;
    decoder_close(d);
    return NULL;
}

void decoder_close(decoder *d) {
    if (d)
        d->kind->close(d);
}

static int append_rows(decoder *d, int32_t layer) {
    int32_t stores = d->m->stores;
    for (int32_t s = 0; s < stores; s++)
        if (d->rows->append(d->rows, layer * stores + s, d->x.rows + (size_t)s * (size_t)d->rows->row_bytes) != 0)
            return -1;
    return 0;
}

static int run_layer(decoder *d, int32_t layer) {
    const attend *a = &d->attention;
    char *state = d->state + (size_t)layer * a->sizes.state;
    const attend_place place = {layer, 0, state, d->rows};
    layer_begin(a, layer, &d->x);
    if (append_rows(d, layer) != 0)
        return -1;
    a->kind->keep(a, &d->m->layer[layer], state, &d->x);
    if (a->kind->token(a, &place, &d->x, 0, &d->worker) != 0)
        return -1;
    layer_end(a, layer, &d->x);
    return 0;
}

void decoder__finish(decoder *d, const float *x) {
    const model *m = d->m;
    math_rms_norm(x, m->output_norm, m->embedding, 1, m->norm_epsilon, d->x.normed);
    math_project(m->output, m->vocab, m->embedding, d->x.normed, 1, d->logits);
}

static int step_plain(decoder *d, int32_t token) {
    size_t e = (size_t)d->m->embedding;
    if (d->rows->begin(d->rows, d->length) != 0)
        return -1;
    d->x.first = d->length;
    memcpy(d->x.x, d->m->token_embedding + (size_t)token * e, e * sizeof(float));
    for (int32_t layer = 0; layer < d->m->n_layers; layer++)
        if (run_layer(d, layer) != 0)
            return -1;
    decoder__finish(d, d->x.x);
    d->length++;
    d->step++;
    return 0;
}

int decoder_step(decoder *d, int32_t token) {
    return d->kind->step(d, token);
}

int decoder_prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                    void *context, const char **error_out) {
    return ds[0]->kind->prefill(ds, n_decoders, tokens, n, progress, context, error_out);
}
