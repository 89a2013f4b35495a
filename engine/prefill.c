/* SPDX-License-Identifier: Apache-2.0 */
/* The prompt, layer by layer: all of its tokens side by side through the matrix products, every token attending to all
 * before it. Keys and values are rounded to bfloat16 first, as they will be read later. */
#include "decoder.h"

#include "arithmetic.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { QUERIES_AT_ONCE = 256 }; /* between looks at the progress function */

typedef struct batch {
    const model *m;
    int32_t n, row_bytes;
    float *x, *normed, *query, *key, *value, *attended, *gate, *up; /* [n][...] */
    char *rows;                                                     /* [n][row_bytes] */
    int32_t *all;                                                   /* 0, 1, 2, ... */
    char *scratch;                                                  /* [threads][scratch_bytes] */
    size_t scratch_bytes;
    prefill_progress progress;
    void *context;
} batch;

static void *grab(size_t count, size_t size) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, count * size + 64) == 0 ? memory : NULL;
}

static int allocate(batch *b, const decoder *d) {
    const model *m = b->m;
    size_t n = (size_t)b->n, q = (size_t)m->n_heads * (size_t)m->head_dim;
    size_t kv_dim = (size_t)m->n_kv_heads * (size_t)m->head_dim;
    size_t wide = q > (size_t)m->embedding ? q : (size_t)m->embedding;
    if (hsp_gqa_scratch(&d->attention, b->n, &b->scratch_bytes) != HSP_OK)
        return -1;
    b->scratch_bytes = (b->scratch_bytes + 63) / 64 * 64;
    void *parts[] = {b->x = grab(n * (size_t)m->embedding, sizeof(float)),
                     b->normed = grab(n * wide, sizeof(float)),
                     b->query = grab(n * q, sizeof(float)),
                     b->key = grab(n * kv_dim, sizeof(float)),
                     b->value = grab(n * kv_dim, sizeof(float)),
                     b->attended = grab(n * q, sizeof(float)),
                     b->gate = grab(n * (size_t)m->ffn, sizeof(float)),
                     b->up = grab(n * (size_t)m->ffn, sizeof(float)),
                     b->rows = grab(n, (size_t)b->row_bytes),
                     b->all = grab(n, sizeof(int32_t)),
                     b->scratch = grab((size_t)omp_get_max_threads(), b->scratch_bytes)};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!parts[i])
            return -1;
    return 0;
}

static void release(batch *b) {
    void *parts[] = {b->x,    b->normed, b->query, b->key, b->value,  b->attended,
                     b->gate, b->up,     b->rows,  b->all, b->scratch};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        free(parts[i]);
}

static void pack_rows(const batch *b) {
    size_t kv_dim = (size_t)b->m->n_kv_heads * (size_t)b->m->head_dim;
#pragma omp parallel for
    for (int32_t t = 0; t < b->n; t++) {
        char *row = b->rows + (size_t)t * (size_t)b->row_bytes;
        hsp_pack(HSP_BF16, b->key + (size_t)t * kv_dim, kv_dim, row);
        hsp_pack(HSP_BF16, b->value + (size_t)t * kv_dim, kv_dim, row + b->row_bytes / 2);
    }
}

static void attend_to_prefix(const batch *b, const decoder *d, int32_t token) {
    size_t q = (size_t)b->m->n_heads * (size_t)b->m->head_dim, row = (size_t)b->row_bytes;
    hsp_plane_view keys = {b->rows, row / 2, row, row, 1, 0}, values = keys;
    void *scratch = b->scratch + (size_t)omp_get_thread_num() * b->scratch_bytes;
    values.base = b->rows + row / 2;
    hsp_gqa_tiles(&d->attention, &keys, &values, b->query + (size_t)token * q, b->all, token + 1, 0, scratch);
    hsp_gqa_combine(&d->attention, scratch, (token + HSP_ATTENTION_TILE) / HSP_ATTENTION_TILE, NULL,
                    b->attended + (size_t)token * q, NULL);
}

/* Share of a prefill that is done after `tokens` tokens of the attention of `layer`; attention grows with the prefix.
 */
static double share_done(const batch *b, int32_t layer, int32_t tokens) {
    double part = (double)tokens / b->n;
    return (layer + part * part) / b->m->n_layers;
}

static int attend(const batch *b, const decoder *d, int32_t layer) {
    for (int32_t first = 0; first < b->n; first += QUERIES_AT_ONCE) {
        int32_t end = b->n - first < QUERIES_AT_ONCE ? b->n : first + QUERIES_AT_ONCE;
#pragma omp parallel for schedule(dynamic, 4)
        for (int32_t t = first; t < end; t++)
            attend_to_prefix(b, d, t);
        if (b->progress && b->progress(b->context, share_done(b, layer, end)))
            return 1;
    }
    return 0;
}

static int keep_rows(const batch *b, decoder *const *ds, int n_decoders, int32_t layer, const char **error_out) {
    for (int i = 0; i < n_decoders; i++) {
        decoder *d = ds[i];
        hsp_quest_update(&d->quest, d->page_stats + (size_t)layer * d->page_stats_bytes, b->rows, (size_t)b->row_bytes,
                         0, b->n);
        if (d->rows->fill(d->rows, layer, 0, b->n, b->rows) != 0) {
            *error_out = d->rows->error;
            return -1;
        }
    }
    return 0;
}

static void project_in(const batch *b, const model_layer *w) {
    const model *m = b->m;
    int32_t q = m->n_heads * m->head_dim, kv_dim = m->n_kv_heads * m->head_dim;
    math_rms_norm(b->x, w->attention_norm, m->embedding, b->n, m->norm_epsilon, b->normed);
    math_project(w->query, q, m->embedding, b->normed, b->n, b->query);
    math_project(w->key, kv_dim, m->embedding, b->normed, b->n, b->key);
    math_project(w->value, kv_dim, m->embedding, b->normed, b->n, b->value);
    math_rope(b->query, m->n_heads, m->head_dim, b->n, 0, m->rope_frequency);
    math_rope(b->key, m->n_kv_heads, m->head_dim, b->n, 0, m->rope_frequency);
}

static void project_out(const batch *b, const model_layer *w) {
    const model *m = b->m;
    int64_t numbers = (int64_t)b->n * m->embedding;
    math_project(w->output, m->embedding, m->n_heads * m->head_dim, b->attended, b->n, b->normed);
    math_add(b->x, b->normed, numbers);
    math_rms_norm(b->x, w->ffn_norm, m->embedding, b->n, m->norm_epsilon, b->normed);
    math_project(w->gate, m->ffn, m->embedding, b->normed, b->n, b->gate);
    math_project(w->up, m->ffn, m->embedding, b->normed, b->n, b->up);
    math_swiglu(b->gate, b->up, (int64_t)b->n * m->ffn);
    math_project(w->down, m->embedding, m->ffn, b->gate, b->n, b->normed);
    math_add(b->x, b->normed, numbers);
}

static int run_layers(batch *b, decoder *const *ds, int n_decoders, const char **error_out) {
    for (int32_t layer = 0; layer < b->m->n_layers; layer++) {
        project_in(b, &b->m->layer[layer]);
        pack_rows(b);
        if (keep_rows(b, ds, n_decoders, layer, error_out) != 0)
            return -1;
        if (attend(b, ds[0], layer) != 0)
            return 1;
        project_out(b, &b->m->layer[layer]);
    }
    return 0;
}

static void finish(const batch *b, decoder *d) {
    const model *m = b->m;
    math_rms_norm(b->x + (size_t)(b->n - 1) * (size_t)m->embedding, m->output_norm, m->embedding, 1, m->norm_epsilon,
                  d->normed);
    math_project(m->output, m->vocab, m->embedding, d->normed, 1, d->logits);
    d->length = b->n;
}

int decoder_prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                    void *context, const char **error_out) {
    batch b = {.m = ds[0]->m, .n = n, .row_bytes = ds[0]->rows->row_bytes, .progress = progress, .context = context};
    size_t e = (size_t)b.m->embedding;
    int result = -1;
    *error_out = "not enough memory for the activations of the prompt";
    if (allocate(&b, ds[0]) == 0) {
        for (int32_t t = 0; t < n; t++) {
            b.all[t] = t;
            memcpy(b.x + (size_t)t * e, b.m->token_embedding + (size_t)tokens[t] * e, e * sizeof(float));
        }
        result = run_layers(&b, ds, n_decoders, error_out);
    }
    for (int i = 0; result == 0 && i < n_decoders; i++)
        finish(&b, ds[i]);
    release(&b);
    return result;
}
