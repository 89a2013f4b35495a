/* SPDX-License-Identifier: Apache-2.0 */
/* engine/attend_dsa.c on a GPU. MLA with other sizes than the published ones is GQA with one KV head whose value is the
 * beginning of its key. */
#include "cuda_gpu.h"

enum { LATENT, ROPE_KEY, INDEX_QUERY, INDEX_KEY, INDEX_WEIGHT }; /* parts */

static const float INDEX_NORM_EPSILON = 1e-6f;

/* Of a pass's floats: the packed query of the indexer, the query over a row's channels, its latent result. */
static size_t packed_bytes(const model *m) {
    size_t bytes = 0;
    hsp_gpu_dsa_query_bytes(&m->index, &bytes);
    return bytes;
}

static size_t absorbed_floats(const model *m) {
    return (size_t)m->n_heads * (size_t)(m->mla.latent_dim + m->mla.rope_dim);
}

static size_t result_floats(const model *m) {
    return (size_t)m->n_heads * (size_t)m->mla.latent_dim;
}

static size_t key_bytes(const model *m) {
    size_t bytes = 0;
    hsp_dsa_key_bytes(&m->index, &bytes);
    return bytes;
}

static int measure(gpu_pass *p) {
    const model *m = p->g->m;
    int32_t latent = m->mla.latent_dim, rope = m->mla.rope_dim;
    if (gpu_check_heads(p->g, "MLA rows", latent + rope, latent) != 0)
        return -1;
    p->query_floats = (size_t)m->n_heads * (size_t)(m->nope_dim + rope);
    p->attended_floats = (size_t)m->n_heads * (size_t)m->value_dim;
    p->part_floats[LATENT] = (size_t)latent;
    p->part_floats[ROPE_KEY] = (size_t)rope;
    p->part_floats[INDEX_QUERY] = (size_t)m->index.n_heads * (size_t)m->index.head_dim;
    p->part_floats[INDEX_KEY] = (size_t)m->index.head_dim;
    p->part_floats[INDEX_WEIGHT] = (size_t)m->index.n_heads;
    p->selection_numbers = (size_t)p->top_k;
    p->state_bytes = key_bytes(m) * (size_t)p->max_tokens;
    p->scratch_floats = (packed_bytes(m) + 15) / 16 * 4 + absorbed_floats(m) + result_floats(m);
    return GPU_OPS(p->g, hsp_gpu_dsa_scratch(&m->index, 1, p->n, p->max_tokens, &p->scratch_bytes)) ? 0 : -1;
}

static void project_index(gpu_pass *p, const model_layer *w) {
    gpu *g = p->g;
    const model *m = g->m;
    int32_t heads = m->index.n_heads, dim = m->index.head_dim;
    gpu_rotation rotation = {heads, dim, m->index_rope_dim, 1, g->index_rope_frequency};
    gpu_project(g, w->index_query, heads * dim, m->embedding, p->normed, p->n, 0, p->part[INDEX_QUERY]);
    gpu_project(g, w->index_key, dim, m->embedding, p->normed, p->n, 0, p->part[INDEX_KEY]);
    gpu_project(g, w->index_weight, heads, m->embedding, p->normed, p->n, 0, p->part[INDEX_WEIGHT]);
    GPU_RUN(g, gpu_layer_norm(p->part[INDEX_KEY], w->index_norm_weight, w->index_norm_bias, dim, p->n,
                              INDEX_NORM_EPSILON, g->stream));
    GPU_RUN(g, gpu_rope(rotation, p->n_tokens, p->n, p->part[INDEX_QUERY], p->part[INDEX_QUERY], g->stream));
    rotation.heads = 1;
    GPU_RUN(g, gpu_rope(rotation, p->n_tokens, p->n, p->part[INDEX_KEY], p->part[INDEX_KEY], g->stream));
}

static void project(gpu_pass *p, const model_layer *w) {
    gpu *g = p->g;
    const model *m = g->m;
    int32_t latent = m->mla.latent_dim, rope = m->mla.rope_dim;
    gpu_rotation of_query = {m->n_heads, m->nope_dim + rope, rope, 0, g->rope_frequency},
                 of_key = {1, rope, rope, 0, g->rope_frequency};
    gpu_project(g, w->query, (int32_t)p->query_floats, m->embedding, p->normed, p->n, 0, p->query);
    gpu_project(g, w->latent, latent, m->embedding, p->normed, p->n, 0, p->part[LATENT]);
    gpu_project(g, w->rope_key, rope, m->embedding, p->normed, p->n, 0, p->part[ROPE_KEY]);
    GPU_RUN(g,
            gpu_rms_norm(p->part[LATENT], w->latent_norm, latent, p->n, m->norm_epsilon, p->part[LATENT], g->stream));
    GPU_RUN(g, gpu_rope(of_query, p->n_tokens, p->n, p->query + m->nope_dim, p->query + m->nope_dim, g->stream));
    GPU_RUN(g, gpu_rope(of_key, p->n_tokens, p->n, p->part[ROPE_KEY], p->part[ROPE_KEY], g->stream));
    project_index(p, w);
    gpu_pack_rows(p, 0, 0, p->part[LATENT], (size_t)latent, (size_t)latent);
    gpu_pack_rows(p, 0, (size_t)latent * 2, p->part[ROPE_KEY], (size_t)rope, (size_t)rope);
}

static void keep(gpu_pass *p, const model_layer *w, void *state) {
    const model *m = p->g->m;
    (void)w;
    GPU_OPS(p->g, hsp_gpu_dsa_pack_keys(&m->index, &p->batch, p->part[INDEX_KEY], p->n, state, p->state_bytes,
                                        key_bytes(m), p->g->stream));
}

/* key_up's transpose times q_nope, then the rope channels as they are. */
static void absorb(gpu_pass *p, const float *key_up, float *absorbed) {
    const model *m = p->g->m;
    int32_t latent = m->mla.latent_dim, rope = m->mla.rope_dim, nope = m->nope_dim;
    const gpu_heads heads = {m->n_heads, latent, nope, 1, nope + rope, latent + rope};
    size_t from = (size_t)(nope + rope) * sizeof(float), to = (size_t)(latent + rope) * sizeof(float);
    gpu_project_heads(p->g, &heads, key_up, p->query, p->n, absorbed);
    GPU_RUN(p->g, cudaMemcpy2DAsync(absorbed + latent, to, p->query + nope, from, (size_t)rope * sizeof(float),
                                    (size_t)p->n * (size_t)m->n_heads, cudaMemcpyDeviceToDevice, p->g->stream));
}

static void attend_tokens(gpu_pass *p, int32_t layer, const void *state, kv *rows) {
    gpu *g = p->g;
    const model *m = g->m;
    int32_t latent = m->mla.latent_dim, value = m->value_dim;
    const hsp_gqa_shape shape = {sizeof shape, m->n_heads, 1, latent + m->mla.rope_dim, latent, HSP_BF16, m->mla.scale};
    const gpu_heads expand = {m->n_heads, value, latent, 0, latent, value};
    size_t n = (size_t)p->n, packed_floats = n * ((packed_bytes(m) + 15) / 16 * 4);
    float *absorbed = p->floats + packed_floats, *result = absorbed + n * absorbed_floats(m);
    hsp_plane_view planes[HSP_MAX_PLANES];
    GPU_OPS(g, hsp_gpu_dsa_pack_query(&m->index, &p->batch, p->part[INDEX_QUERY], p->part[INDEX_WEIGHT], p->floats,
                                      g->stream));
    GPU_OPS(g, hsp_gpu_dsa_select(&m->index, &p->batch, state, p->state_bytes, key_bytes(m), p->floats, p->top_k,
                                  p->selection, p->scratch, g->stream));
    const int32_t *ids = gpu_select(p, rows, layer, p->selection, p->top_k);
    rows->views(rows, layer, planes);
    planes[1] = planes[0];
    absorb(p, g->layer[layer].key_up, absorbed);
    gpu_attend(p, &shape, planes, absorbed, ids, p->top_k, result, NULL);
    gpu_project_heads(g, &expand, g->layer[layer].value_up, result, p->n, p->attended);
}

const gpu_kind gpu__dsa = {measure, project, keep, attend_tokens};
