/* SPDX-License-Identifier: Apache-2.0 */
/* engine/attend_nsa.c on a GPU. Compressed keys are kept twice: as float32 for the choice of blocks, which then is the
 * CPU's but for ties within rounding, and as bfloat16, like the values, for attention. */
#include "cuda_gpu.h"

enum { KEY, VALUE, ROPED_QUERY, ROPED_KEY, GATES }; /* parts; KEY and the query of a pass are as before rope */

/* What the selector keeps of a layer. */
typedef struct compressor {
    float *keys;                        /* [compressed rows][G * D] */
    float *newest_keys, *newest_values; /* [compress_tokens][G * D]: those of token t at t % compress_tokens */
    uint16_t *rounded_keys, *rounded_values;
} compressor;

/* Never none: attention wants memory even where nothing is in it. */
static int32_t most_compressed(const gpu_pass *p) {
    int32_t n = 0;
    hsp_nsa_compressed(&p->g->m->nsa, p->max_tokens, &n);
    return n > 1 ? n : 1;
}

static compressor compressor_of(const gpu_pass *p, const void *state) {
    size_t numbers = p->part_floats[KEY], all = (size_t)most_compressed(p) * numbers;
    size_t newest = (size_t)p->g->m->nsa.compress_tokens * numbers;
    float *first = (float *)state, *end = first + all + 2 * newest;
    return (compressor){first, first + all, first + all + newest, (uint16_t *)end, (uint16_t *)end + all};
}

static size_t larger(size_t one, size_t other) {
    return one > other ? one : other;
}

/* Of a pass's floats: three branches, and where tokens are many the query and a result, KV head by KV head. */
enum { COMPRESSED, SELECTED, WINDOW, GROUPED_QUERY, GROUPED_RESULT, N_SPACES };

static float *space(const gpu_pass *p, int number) {
    return p->floats + (size_t)number * (size_t)p->n * p->query_floats;
}

static int measure(gpu_pass *p) {
    const model *m = p->g->m;
    size_t compressed = (size_t)most_compressed(p), span = (size_t)m->nsa.compress_tokens;
    if (p->top_k != m->top_k)
        return gpu_fail(p->g, "top-k is %d; the model chooses blocks of %d tokens together", p->top_k, m->top_k);
    if (gpu_check_heads(p->g, "heads", m->head_dim, m->head_dim) != 0)
        return -1;
    p->query_floats = p->attended_floats = p->part_floats[ROPED_QUERY] = (size_t)m->n_heads * (size_t)m->head_dim;
    p->part_floats[KEY] = p->part_floats[VALUE] = p->part_floats[ROPED_KEY] =
        (size_t)m->n_kv_heads * (size_t)m->head_dim;
    p->part_floats[GATES] = (size_t)m->n_heads * 3;
    p->state_bytes = (2 * compressed + 2 * span) * p->part_floats[KEY] * sizeof(float);
    p->selection_numbers = larger(larger((size_t)m->n_kv_heads * (size_t)m->top_k, (size_t)m->window), compressed);
    p->scratch_floats = N_SPACES * p->query_floats;
    return GPU_OPS(p->g, hsp_gpu_nsa_scratch(&m->nsa, 1, p->n, p->max_tokens, &p->scratch_bytes)) ? 0 : -1;
}

static void project(gpu_pass *p, const model_layer *w) {
    gpu *g = p->g;
    const model *m = g->m;
    size_t numbers = p->part_floats[KEY], dim = (size_t)m->head_dim;
    gpu_rotation rotation = {m->n_heads, m->head_dim, m->head_dim, 0, g->rope_frequency};
    gpu_project(g, w->query, (int32_t)p->query_floats, m->embedding, p->normed, p->n, 0, p->query);
    gpu_project(g, w->key, (int32_t)numbers, m->embedding, p->normed, p->n, 0, p->part[KEY]);
    gpu_project(g, w->value, (int32_t)numbers, m->embedding, p->normed, p->n, 0, p->part[VALUE]);
    gpu_project(g, w->branch_gate, m->n_heads * 3, m->embedding, p->normed, p->n, 0, p->part[GATES]);
    GPU_RUN(g, gpu_rope(rotation, p->n_tokens, p->n, p->query, p->part[ROPED_QUERY], g->stream));
    rotation.heads = m->n_kv_heads;
    GPU_RUN(g, gpu_rope(rotation, p->n_tokens, p->n, p->part[KEY], p->part[ROPED_KEY], g->stream));
    for (int32_t s = 0; s < m->stores; s++) {
        gpu_pack_rows(p, s, 0, p->part[ROPED_KEY] + (size_t)s * dim, numbers, dim);
        gpu_pack_rows(p, s, (size_t)m->plane_bytes[0], p->part[VALUE] + (size_t)s * dim, numbers, dim);
    }
}

static void keep(gpu_pass *p, const model_layer *w, void *state) {
    const model *m = p->g->m;
    const compressor c = compressor_of(p, state);
    gpu_compression keys = {.n_tokens = p->n_tokens,
                            .n = p->n,
                            .span = m->nsa.compress_tokens,
                            .step = m->nsa.compress_stride,
                            .groups = m->n_kv_heads,
                            .dim = m->head_dim},
                    values = keys;
    keys.fresh = p->part[KEY], keys.newest = c.newest_keys, keys.mix = w->key_mix;
    keys.projection = w->key_projection, keys.rows = c.keys, keys.rounded = c.rounded_keys;
    values.fresh = p->part[VALUE], values.newest = c.newest_values, values.mix = w->value_mix;
    values.projection = w->value_projection, values.rounded = c.rounded_values;
    GPU_RUN(p->g, gpu_compress(&keys, p->g->stream));
    GPU_RUN(p->g, gpu_compress(&values, p->g->stream));
}

/* ------------------------------------------------------------------------------------------------------ branches -- */

static void attend_compressed(gpu_pass *p, const compressor *c) {
    gpu *g = p->g;
    const model *m = g->m;
    hsp_gqa_shape shape = m->compressed;
    size_t row_bytes = p->part_floats[KEY] * sizeof(uint16_t);
    const hsp_plane_view planes[2] = {{c->rounded_keys, row_bytes, row_bytes, row_bytes, 1, 0},
                                      {c->rounded_values, row_bytes, row_bytes, row_bytes, 1, 0}};
    int32_t most = most_compressed(p);
    shape.dtype = HSP_BF16;
    GPU_RUN(g, gpu_compressed_ids(p->n_tokens, p->n, m->nsa.compress_tokens, m->nsa.compress_stride, most, p->selection,
                                  g->stream));
    gpu_attend(p, &shape, planes, p->query, p->selection, most, space(p, COMPRESSED), NULL);
}

/* Every KV head over k tokens of its own store. query: KV head by KV head; selections are `apart` from each other, 0
 * where all have the same. With one token that is the order in which everything else wants the result, too. */
static void attend_heads(gpu_pass *p, int32_t layer, kv *rows, const float *query, const int32_t *selection,
                         size_t apart, int32_t k, float *out) {
    const model *m = p->g->m;
    size_t head = (size_t)m->attention.n_heads * (size_t)m->head_dim, of_tokens = (size_t)p->n * head;
    float *result = p->n == 1 ? out : space(p, GROUPED_RESULT);
    hsp_plane_view planes[HSP_MAX_PLANES];
    for (int32_t s = 0; s < m->stores; s++) {
        int32_t store = layer * m->stores + s;
        const int32_t *ids = gpu_select(p, rows, store, selection + (size_t)s * apart, k);
        rows->views(rows, store, planes);
        gpu_attend(p, &m->attention, planes, query + (size_t)s * of_tokens, ids, k, result + (size_t)s * of_tokens,
                   NULL);
    }
    if (result != out)
        GPU_RUN(p->g, gpu_regroup(result, m->stores, p->n, (int32_t)head, out, p->g->stream));
}

/* Query and selections as attend_heads takes them. ids is free: only rows of a cache need it, and those a token at a
 * time. */
static void group(gpu_pass *p, const float **query_out, const int32_t **selection_out) {
    gpu *g = p->g;
    const model *m = g->m;
    *query_out = p->part[ROPED_QUERY];
    *selection_out = p->selection;
    if (p->n == 1)
        return;
    int32_t head = m->attention.n_heads * m->head_dim;
    GPU_RUN(g, gpu_regroup(*query_out, p->n, m->stores, head, space(p, GROUPED_QUERY), g->stream));
    GPU_RUN(g, gpu_regroup(*selection_out, p->n, m->stores, m->top_k, p->ids, g->stream));
    *query_out = space(p, GROUPED_QUERY);
    *selection_out = p->ids;
}

static void attend_tokens(gpu_pass *p, int32_t layer, const void *state, kv *rows) {
    gpu *g = p->g;
    const model *m = g->m;
    const compressor c = compressor_of(p, state);
    const float *query;
    const int32_t *selection;
    attend_compressed(p, &c);
    GPU_OPS(g, hsp_gpu_nsa_select(&m->nsa, &p->batch, c.keys, p->state_bytes, p->part_floats[KEY] * sizeof(float),
                                  p->query, p->selection, p->scratch, g->stream));
    group(p, &query, &selection);
    attend_heads(p, layer, rows, query, selection, (size_t)p->n * (size_t)m->top_k, m->top_k, space(p, SELECTED));
    GPU_OPS(g, hsp_gpu_nsa_window(&p->batch, m->window, p->selection, g->stream));
    attend_heads(p, layer, rows, query, p->selection, 0, m->window, space(p, WINDOW));
    GPU_OPS(g, hsp_gpu_nsa_gate(&p->batch, m->n_heads, m->head_dim, p->part[GATES], space(p, COMPRESSED),
                                space(p, SELECTED), space(p, WINDOW), p->attended, g->stream));
}

const gpu_kind gpu__nsa = {measure, project, keep, attend_tokens};
