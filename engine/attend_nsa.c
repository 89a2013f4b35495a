/* SPDX-License-Identifier: Apache-2.0 */
/* Native sparse attention: compressed, selected and window branches, added with gates. Every KV head selects on its own
 * and so has a store of rows of its own. Compressed keys and values stay with the selector, as float32. */
#include "arithmetic.h"
#include "attend.h"

#include <string.h>

enum { KEY, VALUE, ROPED_QUERY, ROPED_KEY, GATES }; /* parts; KEY and the query of x are as before rope */

/* What the selector keeps of a layer. */
typedef struct compressor {
    float *keys, *values;               /* [compressed rows][G * D] */
    float *newest_keys, *newest_values; /* [compress_tokens][G * D]: those of token t at t % compress_tokens */
} compressor;

static int32_t most_compressed(const attend *a) {
    int32_t n = 0;
    hsp_nsa_compressed(&a->m->nsa, a->max_tokens, &n);
    return n;
}

static compressor compressor_of(const attend *a, const void *state) {
    size_t numbers = a->sizes.part[KEY], all = (size_t)most_compressed(a) * numbers;
    size_t newest = (size_t)a->m->nsa.compress_tokens * numbers;
    float *first = (float *)state;
    return (compressor){first, first + all, first + 2 * all, first + 2 * all + newest};
}

static size_t larger(size_t one, size_t other) {
    return one > other ? one : other;
}

static int measure(attend *a) {
    const model *m = a->m;
    attend_sizes *s = &a->sizes;
    size_t heads = (size_t)m->n_heads, window = (size_t)m->window, k = (size_t)m->top_k, of_rows = 0, of_compressed = 0;
    size_t compressed = (size_t)most_compressed(a);
    if (a->top_k != m->top_k)
        return HSP_EINVAL;
    s->query = s->attended = s->part[ROPED_QUERY] = heads * (size_t)m->head_dim;
    s->part[KEY] = s->part[VALUE] = s->part[ROPED_KEY] = (size_t)m->n_kv_heads * (size_t)m->head_dim;
    s->part[GATES] = heads * 3;
    s->state = 2 * (compressed + (size_t)m->nsa.compress_tokens) * s->part[KEY] * sizeof(float);
    s->selection = larger((size_t)m->n_kv_heads * k, window);
    s->ids = larger(larger(k, window), compressed);
    s->floats = 3 * s->attended;
    int status = hsp_nsa_scratch(&m->nsa, a->max_tokens, &s->select_bytes);
    if (status == HSP_OK)
        status = hsp_gqa_scratch(&m->attention, (int32_t)larger(k, window), &of_rows);
    if (status == HSP_OK)
        status = hsp_gqa_scratch(&m->compressed, (int32_t)compressed, &of_compressed);
    s->attention_bytes = larger(of_rows, of_compressed);
    return status;
}

static void rotate(const attend *a, const float *from, int32_t heads, const activations *x, float *out) {
    const math_rotation rotation = {heads, a->m->head_dim, a->m->head_dim, 0, a->m->rope_frequency};
    memcpy(out, from, (size_t)x->n * (size_t)heads * (size_t)a->m->head_dim * sizeof *out);
    math_rope(&rotation, out, x->n, x->first);
}

static void project(const attend *a, const model_layer *w, const activations *x) {
    const model *m = a->m;
    size_t numbers = a->sizes.part[KEY], dim = (size_t)m->head_dim;
    math_project(w->query, (int32_t)a->sizes.query, m->embedding, x->normed, x->n, x->query);
    math_project(w->key, (int32_t)numbers, m->embedding, x->normed, x->n, x->part[KEY]);
    math_project(w->value, (int32_t)numbers, m->embedding, x->normed, x->n, x->part[VALUE]);
    math_project(w->branch_gate, m->n_heads * 3, m->embedding, x->normed, x->n, x->part[GATES]);
    rotate(a, x->query, m->n_heads, x, x->part[ROPED_QUERY]);
    rotate(a, x->part[KEY], m->n_kv_heads, x, x->part[ROPED_KEY]);
    for (int32_t g = 0; g < m->stores; g++) {
        attend_pack(a, x, g, 0, x->part[ROPED_KEY] + (size_t)g * dim, numbers, dim);
        attend_pack(a, x, g, (size_t)m->plane_bytes[0], x->part[VALUE] + (size_t)g * dim, numbers, dim);
    }
}

/* projection of the sum over a span of mix * newest, head by head; `first` is the span's first token. */
static void compress(const model *m, const float *mix, const float *projection, const float *newest, int32_t first,
                     float *out) {
    int32_t span = m->nsa.compress_tokens, dim = m->head_dim, numbers = m->n_kv_heads * dim;
    float mixed[1024]; /* the most a head may have */
    for (int32_t g = 0; g < m->n_kv_heads; g++) {
        memset(mixed, 0, (size_t)dim * sizeof *mixed);
        for (int32_t t = 0; t < span; t++) {
            const float *number = newest + (int64_t)((first + t) % span) * numbers + g * dim;
            const float *weight = mix + ((int64_t)g * span + t) * dim;
            for (int32_t c = 0; c < dim; c++)
                mixed[c] += weight[c] * number[c];
        }
        math_project(projection + (int64_t)g * dim * dim, dim, dim, mixed, 1, out + g * dim);
    }
}

/* A span is compressed once its last token is there. */
static void keep(const attend *a, const model_layer *w, void *state, const activations *x) {
    const hsp_nsa_shape *nsa = &a->m->nsa;
    const compressor c = compressor_of(a, state);
    size_t numbers = a->sizes.part[KEY], row_bytes = numbers * sizeof(float);
    for (int32_t t = 0; t < x->n; t++) {
        int32_t token = x->first + t, first = token + 1 - nsa->compress_tokens;
        size_t place = (size_t)(token % nsa->compress_tokens) * numbers;
        memcpy(c.newest_keys + place, x->part[KEY] + (size_t)t * numbers, row_bytes);
        memcpy(c.newest_values + place, x->part[VALUE] + (size_t)t * numbers, row_bytes);
        if (first < 0 || first % nsa->compress_stride)
            continue;
        size_t row = (size_t)(first / nsa->compress_stride) * numbers;
        compress(a->m, w->key_mix, w->key_projection, c.newest_keys, first, c.keys + row);
        compress(a->m, w->value_mix, w->value_projection, c.newest_values, first, c.values + row);
    }
}

/* ------------------------------------------------------------------------------------------------------ branches -- */

static void attend_compressed(const attend *a, const compressor *c, const float *query, int32_t n_rows,
                              const attend_worker *w, float *out) {
    size_t row_bytes = a->sizes.part[KEY] * sizeof(float);
    const hsp_plane_view keys = {c->keys, row_bytes, row_bytes, row_bytes, 1, 0},
                         values = {c->values, row_bytes, row_bytes, row_bytes, 1, 0};
    for (int32_t i = 0; i < n_rows; i++)
        w->ids[i] = i;
    hsp_gqa_tiles(&a->m->compressed, &keys, &values, query, w->ids, n_rows, 0, w->attention_scratch);
    hsp_gqa_combine(&a->m->compressed, w->attention_scratch, (n_rows + HSP_ATTENTION_TILE - 1) / HSP_ATTENTION_TILE,
                    NULL, out, NULL);
}

/* KV head g over n selected tokens. query, out: of all heads. */
static int attend_head(const attend *a, const attend_place *place, int32_t g, const float *query,
                       const int32_t *selection, int32_t n, const attend_worker *w, float *out) {
    const hsp_gqa_shape *shape = &a->m->attention;
    size_t head = (size_t)g * (size_t)shape->n_heads * (size_t)shape->key_dim;
    if (attend_rows(a, place->rows, place->layer * a->m->stores + g, query + head, selection, n, 0, w) != 0)
        return -1;
    hsp_gqa_combine(shape, w->attention_scratch, (n + HSP_ATTENTION_TILE - 1) / HSP_ATTENTION_TILE, NULL, out + head,
                    NULL);
    return 0;
}

/* The same for every KV head; selections are `apart` from each other, 0 where all have the same. */
static int attend_heads(const attend *a, const attend_place *place, const float *query, int32_t apart, int32_t n,
                        const attend_worker *w, float *out) {
    for (int32_t g = 0; g < a->m->stores; g++)
        if (attend_head(a, place, g, query, w->selection + (size_t)g * (size_t)apart, n, w, out) != 0)
            return -1;
    return 0;
}

static int token(const attend *a, const attend_place *place, const activations *x, int32_t t, const attend_worker *w) {
    const model *m = a->m;
    const compressor c = compressor_of(a, place->state);
    size_t numbers = a->sizes.query;
    const float *query = x->query + (size_t)t * numbers, *roped = x->part[ROPED_QUERY] + (size_t)t * numbers;
    float *compressed = w->floats, *selected = compressed + numbers, *window = selected + numbers;
    int32_t n_tokens = x->first + t + 1, n_rows = 0;
    hsp_nsa_compressed(&m->nsa, n_tokens, &n_rows);
    attend_compressed(a, &c, query, n_rows, w, compressed);
    hsp_nsa_select(&m->nsa, c.keys, a->sizes.part[KEY] * sizeof(float), n_tokens, query, w->selection,
                   w->select_scratch);
    if (attend_heads(a, place, roped, m->top_k, m->top_k, w, selected) != 0)
        return -1;
    hsp_nsa_window(m->window, n_tokens, w->selection);
    if (attend_heads(a, place, roped, 0, m->window, w, window) != 0)
        return -1;
    hsp_nsa_gate(m->n_heads, m->head_dim, x->part[GATES] + (size_t)t * a->sizes.part[GATES], compressed, selected,
                 window, x->attended + (size_t)t * numbers);
    return 0;
}

const attend_kind attend__nsa = {measure, project, keep, token};
