/* SPDX-License-Identifier: Apache-2.0 */
/* engine/attend_quest.c on a GPU. A dense layer takes as many turns through chunks of top_k tokens as the longest text
 * needs, whatever the length now, for a captured step cannot count them; those beyond are of -1 alone. */
#include "cuda_gpu.h"

enum { KEY, VALUE }; /* parts */

static int32_t turns_for(const gpu_pass *p, int32_t n_tokens) {
    return (n_tokens + p->top_k - 1) / p->top_k;
}

static size_t shared_floats(const gpu_pass *p) {
    return p->query_floats + (size_t)p->g->m->n_heads; /* of a turn: what attention gives, and the lse */
}

static int measure(gpu_pass *p) {
    const model *m = p->g->m;
    if (p->top_k < 1 || p->top_k % HSP_ATTENTION_TILE)
        return gpu_fail(p->g, "top-k is %d; it must be a multiple of %d", p->top_k, HSP_ATTENTION_TILE);
    if (gpu_check_heads(p->g, "heads", m->head_dim, m->head_dim) != 0)
        return -1;
    p->query_floats = p->attended_floats = (size_t)m->n_heads * (size_t)m->head_dim;
    p->part_floats[KEY] = p->part_floats[VALUE] = (size_t)m->n_kv_heads * (size_t)m->head_dim;
    p->selection_numbers = (size_t)p->top_k;
    p->scratch_floats = m->dense_layers || p->is_prompt ? (size_t)turns_for(p, p->max_tokens) * shared_floats(p) : 0;
    GPU_OPS(p->g, hsp_quest_bytes(&m->quest, p->max_tokens, &p->state_bytes));
    return GPU_OPS(p->g, hsp_gpu_quest_scratch(&m->quest, 1, p->n, p->max_tokens, &p->scratch_bytes)) ? 0 : -1;
}

static void project(gpu_pass *p, const model_layer *w) {
    gpu *g = p->g;
    const model *m = g->m;
    int32_t q = (int32_t)p->query_floats, numbers = (int32_t)p->part_floats[KEY];
    gpu_rotation rotation = {m->n_heads, m->head_dim, m->head_dim, 0, g->rope_frequency};
    gpu_project(g, w->query, q, m->embedding, p->normed, p->n, 0, p->query);
    gpu_project(g, w->key, numbers, m->embedding, p->normed, p->n, 0, p->part[KEY]);
    gpu_project(g, w->value, numbers, m->embedding, p->normed, p->n, 0, p->part[VALUE]);
    GPU_RUN(g, gpu_rope(rotation, p->n_tokens, p->n, p->query, p->query, g->stream));
    rotation.heads = m->n_kv_heads;
    GPU_RUN(g, gpu_rope(rotation, p->n_tokens, p->n, p->part[KEY], p->part[KEY], g->stream));
    gpu_pack_rows(p, 0, 0, p->part[KEY], p->part_floats[KEY], p->part_floats[KEY]);
    gpu_pack_rows(p, 0, (size_t)m->plane_bytes[0], p->part[VALUE], p->part_floats[VALUE], p->part_floats[VALUE]);
}

static void keep(gpu_pass *p, const model_layer *w, void *state) {
    const model *m = p->g->m;
    size_t row_bytes = (size_t)m->plane_bytes[0] + (size_t)m->plane_bytes[1];
    (void)w;
    GPU_OPS(p->g,
            hsp_gpu_quest_update(&m->quest, &p->batch, state, p->state_bytes, p->rows, row_bytes, p->n, p->g->stream));
}

static void attend_all(gpu_pass *p, int32_t layer, kv *rows, const hsp_plane_view *planes) {
    gpu *g = p->g;
    const model *m = g->m;
    int32_t n_turns = turns_for(p, p->bound);
    size_t parts = (size_t)p->n * p->query_floats, sums = (size_t)p->n * (size_t)m->n_heads;
    float *lse = p->floats + (size_t)n_turns * parts;
    for (int32_t turn = 0; turn < n_turns; turn++) {
        GPU_RUN(g, gpu_take_turn(p->n_tokens, p->n, p->top_k, turn, p->selection, g->stream));
        const int32_t *ids = gpu_select(p, rows, layer, p->selection, p->top_k);
        gpu_attend(p, &m->attention, planes, p->query, ids, p->top_k, p->floats + (size_t)turn * parts,
                   lse + (size_t)turn * sums);
    }
    GPU_RUN(g, gpu_join_turns(p->floats, lse, p->n_tokens, p->n, p->top_k, m->n_heads, m->head_dim, p->attended,
                              g->stream));
}

static void attend_tokens(gpu_pass *p, int32_t layer, const void *state, kv *rows) {
    const model *m = p->g->m;
    hsp_plane_view planes[HSP_MAX_PLANES];
    rows->views(rows, layer, planes);
    if (p->is_prompt || layer < m->dense_layers) {
        attend_all(p, layer, rows, planes);
        return;
    }
    GPU_OPS(p->g, hsp_gpu_quest_select(&m->quest, &p->batch, state, p->state_bytes, p->query, p->top_k, p->selection,
                                       p->scratch, p->g->stream));
    const int32_t *ids = gpu_select(p, rows, layer, p->selection, p->top_k);
    gpu_attend(p, &m->attention, planes, p->query, ids, p->top_k, p->attended, NULL);
}

const gpu_kind gpu__quest = {measure, project, keep, attend_tokens};
