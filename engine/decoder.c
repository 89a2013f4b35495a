/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder.h"

#include "arithmetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *grab(size_t count, size_t size) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, count * size + 64) != 0)
        return NULL;
    return memset(memory, 0, count * size);
}

static float *floats(int32_t n) {
    return grab((size_t)n, sizeof(float));
}

static int allocate(decoder *d) {
    const model *m = d->m;
    int32_t q = m->n_heads * m->head_dim, kv_dim = m->n_kv_heads * m->head_dim;
    int32_t most =
        d->max_tokens > d->top_k ? d->max_tokens : d->top_k; /* a selection is top_k long, however few tokens */
    size_t select_bytes = 0, attention_bytes = 0;
    if (hsp_quest_bytes(&d->quest, d->max_tokens, &d->page_stats_bytes) != HSP_OK ||
        hsp_quest_scratch(&d->quest, d->max_tokens, &select_bytes) != HSP_OK ||
        hsp_gqa_scratch(&d->attention, most, &attention_bytes) != HSP_OK)
        return -1;
    void *parts[] = {d->x = floats(m->embedding),
                     d->normed = floats(m->embedding),
                     d->query = floats(q),
                     d->key = floats(kv_dim),
                     d->value = floats(kv_dim),
                     d->attended = floats(q),
                     d->gate = floats(m->ffn),
                     d->up = floats(m->ffn),
                     d->logits = floats(m->vocab),
                     d->row = grab((size_t)d->rows->row_bytes, 1),
                     d->selection = grab((size_t)most, sizeof(int32_t)),
                     d->ids = grab((size_t)most, sizeof(int32_t)),
                     d->page_stats = grab((size_t)m->n_layers, d->page_stats_bytes),
                     d->select_scratch = grab(1, select_bytes),
                     d->attention_scratch = grab(1, attention_bytes)};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!parts[i])
            return -1;
    return 0;
}

decoder *decoder_open(const model *m, kv *rows, int32_t top_k, int32_t max_tokens) {
    decoder *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->m = m;
    d->rows = rows;
    d->top_k = top_k;
    d->max_tokens = max_tokens;
    d->quest =
        (hsp_quest_shape){sizeof d->quest, m->n_heads, m->n_kv_heads, m->head_dim, DECODER_PAGE_TOKENS, HSP_BF16};
    d->attention =
        (hsp_gqa_shape){sizeof d->attention,          m->n_heads, m->n_kv_heads, m->head_dim, m->head_dim, HSP_BF16,
                        1 / sqrtf((float)m->head_dim)};
    if (allocate(d) == 0)
        return d;
    decoder_close(d);
    return NULL;
}

void decoder_close(decoder *d) {
    if (!d)
        return;
    void *parts[] = {d->x,
                     d->normed,
                     d->query,
                     d->key,
                     d->value,
                     d->attended,
                     d->gate,
                     d->up,
                     d->logits,
                     d->row,
                     d->selection,
                     d->ids,
                     d->page_stats,
                     d->select_scratch,
                     d->attention_scratch};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        free(parts[i]);
    free(d);
}

/* Rows of one chunk of a selection, as tiles of the current query. */
static int attend_rows(decoder *d, int32_t layer, const int32_t *selection, int32_t n, int32_t first_tile) {
    hsp_plane_view keys, values;
    if (d->rows->select(d->rows, layer, selection, n, d->ids) != 0)
        return -1;
    d->rows->views(d->rows, layer, &keys, &values);
    hsp_gqa_tiles(&d->attention, &keys, &values, d->query, d->ids, n, first_tile, d->attention_scratch);
    return 0;
}

/* Everything, in chunks of top_k tokens, since no more rows may be asked for at once. Every other step goes through the
 * chunks backwards: what the last step read last is still resident then. Tiles are combined in the same order either
 * way. */
static int attend_all(decoder *d, int32_t layer, int32_t n_tokens) {
    int32_t n_chunks = (n_tokens + d->top_k - 1) / d->top_k;
    for (int32_t i = 0; i < n_chunks; i++) {
        int32_t first = (d->step % 2 ? n_chunks - 1 - i : i) * d->top_k;
        int32_t n = n_tokens - first < d->top_k ? n_tokens - first : d->top_k;
        for (int32_t t = 0; t < n; t++)
            d->selection[t] = first + t;
        if (attend_rows(d, layer, d->selection, n, first / HSP_ATTENTION_TILE) != 0)
            return -1;
    }
    return (n_tokens + HSP_ATTENTION_TILE - 1) / HSP_ATTENTION_TILE;
}

static int attend_selected(decoder *d, int32_t layer, int32_t n_tokens) {
    const void *stats = d->page_stats + (size_t)layer * d->page_stats_bytes;
    hsp_quest_select(&d->quest, stats, n_tokens, d->query, d->top_k, d->selection, d->select_scratch);
    if (attend_rows(d, layer, d->selection, d->top_k, 0) != 0)
        return -1;
    return d->top_k / HSP_ATTENTION_TILE;
}

/* d->query, d->key, d->value of the newest token in, d->attended out. */
static int attend(decoder *d, int32_t layer) {
    const model *m = d->m;
    int32_t plane = d->rows->row_bytes / 2, token = d->length, numbers = m->n_kv_heads * m->head_dim;
    hsp_pack(HSP_BF16, d->key, (size_t)numbers, d->row);
    hsp_pack(HSP_BF16, d->value, (size_t)numbers, (char *)d->row + plane);
    if (d->rows->append(d->rows, layer, d->row) != 0)
        return -1;
    hsp_quest_update(&d->quest, d->page_stats + (size_t)layer * d->page_stats_bytes, d->row, (size_t)plane, token, 1);
    int32_t n_tiles =
        layer < DECODER_DENSE_LAYERS ? attend_all(d, layer, token + 1) : attend_selected(d, layer, token + 1);
    if (n_tiles < 0)
        return -1;
    hsp_gqa_combine(&d->attention, d->attention_scratch, n_tiles, NULL, d->attended, NULL);
    return 0;
}

static int run_layer(decoder *d, int32_t layer) {
    const model *m = d->m;
    const model_layer *w = &m->layer[layer];
    int32_t e = m->embedding, q = m->n_heads * m->head_dim, kv_dim = m->n_kv_heads * m->head_dim;
    math_rms_norm(d->x, w->attention_norm, e, 1, m->norm_epsilon, d->normed);
    math_project(w->query, q, e, d->normed, 1, d->query);
    math_project(w->key, kv_dim, e, d->normed, 1, d->key);
    math_project(w->value, kv_dim, e, d->normed, 1, d->value);
    math_rope(d->query, m->n_heads, m->head_dim, 1, d->length, m->rope_frequency);
    math_rope(d->key, m->n_kv_heads, m->head_dim, 1, d->length, m->rope_frequency);
    if (attend(d, layer) != 0)
        return -1;
    math_project(w->output, e, q, d->attended, 1, d->normed);
    math_add(d->x, d->normed, e);
    math_rms_norm(d->x, w->ffn_norm, e, 1, m->norm_epsilon, d->normed);
    math_project(w->gate, m->ffn, e, d->normed, 1, d->gate);
    math_project(w->up, m->ffn, e, d->normed, 1, d->up);
    math_swiglu(d->gate, d->up, m->ffn);
    math_project(w->down, e, m->ffn, d->gate, 1, d->normed);
    math_add(d->x, d->normed, e);
    return 0;
}

int decoder_step(decoder *d, int32_t token) {
    const model *m = d->m;
    if (d->rows->begin(d->rows, d->length) != 0)
        return -1;
    memcpy(d->x, m->token_embedding + (size_t)token * (size_t)m->embedding, (size_t)m->embedding * sizeof(float));
    for (int32_t layer = 0; layer < m->n_layers; layer++)
        if (run_layer(d, layer) != 0)
            return -1;
    math_rms_norm(d->x, m->output_norm, m->embedding, 1, m->norm_epsilon, d->normed);
    math_project(m->output, m->vocab, m->embedding, d->normed, 1, d->logits);
    d->length++;
    d->step++;
    return 0;
}
