/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek sparse attention: an indexer scores every token by a small key of its own, and MLA attends to the best. A
 * row is [latent | rope]; a head's key_up goes into its query and its value_up comes after, so rows are never expanded.
 * Index keys stay with the selector. */
#include "arithmetic.h"
#include "attend.h"

#include <string.h>

enum { LATENT, ROPE_KEY, INDEX_QUERY, INDEX_KEY, INDEX_WEIGHT }; /* parts */

static const float INDEX_NORM_EPSILON = 1e-6f;

/* Of a worker's floats: the query over a row's channels, its latent result, the packed query of the indexer. */
static size_t absorbed_floats(const model *m) {
    return (size_t)m->n_heads * (size_t)(m->mla.latent_dim + m->mla.rope_dim);
}

static size_t result_floats(const model *m) {
    return (size_t)m->n_heads * (size_t)m->mla.latent_dim;
}

static int measure(attend *a) {
    const model *m = a->m;
    attend_sizes *s = &a->sizes;
    size_t key_bytes = 0, query_bytes = 0;
    s->query = (size_t)m->n_heads * (size_t)(m->nope_dim + m->mla.rope_dim);
    s->attended = (size_t)m->n_heads * (size_t)m->value_dim;
    s->part[LATENT] = (size_t)m->mla.latent_dim;
    s->part[ROPE_KEY] = (size_t)m->mla.rope_dim;
    s->part[INDEX_QUERY] = (size_t)m->index.n_heads * (size_t)m->index.head_dim;
    s->part[INDEX_KEY] = (size_t)m->index.head_dim;
    s->part[INDEX_WEIGHT] = (size_t)m->index.n_heads;
    s->selection = s->ids = (size_t)a->top_k;
    int status = a->top_k < 1 ? HSP_EINVAL : hsp_dsa_key_bytes(&m->index, &key_bytes);
    if (status == HSP_OK)
        status = hsp_dsa_query_bytes(&m->index, &query_bytes);
    if (status == HSP_OK)
        status = hsp_dsa_scratch(&m->index, a->max_tokens, &s->select_bytes);
    s->state = key_bytes * (size_t)a->max_tokens;
    s->floats = absorbed_floats(m) + result_floats(m) + query_bytes / sizeof(float) + 1;
    return status == HSP_OK ? hsp_mla_scratch(&m->mla, a->top_k, &s->attention_bytes) : status;
}

static void project_index(const attend *a, const model_layer *w, const activations *x) {
    const model *m = a->m;
    int32_t heads = m->index.n_heads, dim = m->index.head_dim;
    math_rotation rotation = {heads, dim, m->index_rope_dim, 1, m->index_rope_frequency};
    math_project(w->index_query, heads * dim, m->embedding, x->normed, x->n, x->part[INDEX_QUERY]);
    math_project(w->index_key, dim, m->embedding, x->normed, x->n, x->part[INDEX_KEY]);
    math_project(w->index_weight, heads, m->embedding, x->normed, x->n, x->part[INDEX_WEIGHT]);
    math_layer_norm(x->part[INDEX_KEY], w->index_norm_weight, w->index_norm_bias, dim, x->n, INDEX_NORM_EPSILON);
    math_rope(&rotation, x->part[INDEX_QUERY], x->n, x->first);
    rotation.heads = 1;
    math_rope(&rotation, x->part[INDEX_KEY], x->n, x->first);
}

static void project(const attend *a, const model_layer *w, const activations *x) {
    const model *m = a->m;
    int32_t latent = m->mla.latent_dim, rope = m->mla.rope_dim;
    math_rotation of_query = {m->n_heads, m->nope_dim + rope, rope, 0, m->rope_frequency},
                  of_key = {1, rope, rope, 0, m->rope_frequency};
    math_project(w->query, (int32_t)a->sizes.query, m->embedding, x->normed, x->n, x->query);
    math_project(w->latent, latent, m->embedding, x->normed, x->n, x->part[LATENT]);
    math_project(w->rope_key, rope, m->embedding, x->normed, x->n, x->part[ROPE_KEY]);
    math_rms_norm(x->part[LATENT], w->latent_norm, latent, x->n, m->norm_epsilon, x->part[LATENT]);
    math_rope(&of_query, x->query + m->nope_dim, x->n, x->first);
    math_rope(&of_key, x->part[ROPE_KEY], x->n, x->first);
    project_index(a, w, x);
    attend_pack(a, x, 0, 0, x->part[LATENT], (size_t)latent, (size_t)latent);
    attend_pack(a, x, 0, (size_t)latent * 2, x->part[ROPE_KEY], (size_t)rope, (size_t)rope);
}

static void keep(const attend *a, const model_layer *w, void *state, const activations *x) {
    size_t key_bytes = a->sizes.state / (size_t)a->max_tokens;
    (void)w;
    hsp_dsa_pack_keys(&a->m->index, x->part[INDEX_KEY], a->sizes.part[INDEX_KEY] * sizeof(float), x->n,
                      (char *)state + (size_t)x->first * key_bytes, key_bytes);
}

/* q_nope . (key_up c) is (key_up's transpose q_nope) . c. */
static void absorb(const model *m, const float *key_up, const float *query, float *out) {
    int32_t latent = m->mla.latent_dim, rope = m->mla.rope_dim, nope = m->nope_dim;
    for (int32_t h = 0; h < m->n_heads; h++, query += nope + rope, out += latent + rope) {
        math_project_back(key_up + (int64_t)h * nope * latent, nope, latent, query, out);
        memcpy(out + latent, query + nope, (size_t)rope * sizeof *out);
    }
}

static void expand(const model *m, const float *value_up, const float *result, float *out) {
    int32_t latent = m->mla.latent_dim, value = m->value_dim;
    for (int32_t h = 0; h < m->n_heads; h++)
        math_project(value_up + (int64_t)h * value * latent, value, latent, result + (int64_t)h * latent, 1,
                     out + (int64_t)h * value);
}

static void rank_next(const attend *a, const void *keys, int32_t n_tokens, const void *query, const int32_t *selection,
                      kv_next *next) {
    hsp_dsa_scores(&a->m->index, keys, a->sizes.state / (size_t)a->max_tokens, 0, n_tokens, query, next->work);
    attend_rank_next(next, n_tokens, 1, selection, a->top_k);
}

static int token(const attend *a, const attend_place *place, const activations *x, int32_t t, const attend_worker *w) {
    const model *m = a->m;
    const model_layer *weights = &m->layer[place->layer];
    float *absorbed = w->floats, *result = absorbed + absorbed_floats(m), *packed = result + result_floats(m);
    hsp_plane_view plane[HSP_MAX_PLANES];
    hsp_dsa_pack_query(&m->index, x->part[INDEX_QUERY] + (size_t)t * a->sizes.part[INDEX_QUERY],
                       x->part[INDEX_WEIGHT] + (size_t)t * a->sizes.part[INDEX_WEIGHT], packed);
    hsp_dsa_select(&m->index, place->state, a->sizes.state / (size_t)a->max_tokens, x->first + t + 1, packed, a->top_k,
                   w->selection, w->select_scratch);
    if (attend_next(place))
        rank_next(a, place->state, x->first + t + 1, packed, w->selection, attend_next(place));
    if (place->rows->select(place->rows, place->layer, w->selection, a->top_k, w->ids) != 0)
        return -1;
    place->rows->views(place->rows, place->layer, plane);
    absorb(m, weights->key_up, x->query + (size_t)t * a->sizes.query, absorbed);
    hsp_mla_attend(&m->mla, plane, absorbed, w->ids, 1, a->top_k, NULL, result, NULL, w->attention_scratch);
    expand(m, weights->value_up, result, x->attended + (size_t)t * a->sizes.attended);
    return 0;
}

const attend_kind attend__dsa = {measure, project, keep, token};
