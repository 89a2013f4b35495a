/* SPDX-License-Identifier: Apache-2.0 */
/* n tokens side by side: their memory, and what every layer does around its attention. */
#include "cuda_gpu.h"

#include <string.h>

static size_t row_bytes_of(const model *m) {
    return (size_t)m->plane_bytes[0] + (size_t)m->plane_bytes[1];
}

/* Token, length and slot lie together, so that a step sends what is new in one piece. */
static void grab_batch(gpu_pass *p, size_t n) {
    p->token = gpu_grab(p->g, &p->memory, 2 * n + 1, sizeof(int32_t));
    if (!p->token)
        return;
    p->n_tokens = p->token + n;
    p->slot = p->n_tokens + n; /* 0: the one request */
    p->batch = (hsp_gpu_batch){sizeof p->batch, 1, (int32_t)n, p->max_tokens, p->slot, p->n_tokens};
}

static void grab_all(gpu_pass *p, size_t n) {
    gpu *g = p->g;
    const model *m = g->m;
    size_t e = (size_t)m->embedding, ffn = (size_t)m->ffn;
    grab_batch(p, n);
    p->x = gpu_grab(g, &p->memory, n * e, sizeof(float));
    p->normed = gpu_grab(g, &p->memory, n * e, sizeof(float));
    p->gate = gpu_grab(g, &p->memory, n * ffn, sizeof(float));
    p->up = gpu_grab(g, &p->memory, n * ffn, sizeof(float));
    p->query = gpu_grab(g, &p->memory, n * p->query_floats, sizeof(float));
    p->attended = gpu_grab(g, &p->memory, n * p->attended_floats, sizeof(float));
    for (int i = 0; i < GPU_PARTS; i++)
        p->part[i] = gpu_grab(g, &p->memory, n * p->part_floats[i], sizeof(float));
    p->rows = gpu_grab(g, &p->memory, n * (size_t)m->stores, row_bytes_of(m));
    p->selection = gpu_grab(g, &p->memory, n * p->selection_numbers, sizeof(int32_t));
    p->ids = gpu_grab(g, &p->memory, n * p->selection_numbers, sizeof(int32_t));
    p->floats = gpu_grab(g, &p->memory, n * p->scratch_floats, sizeof(float));
    p->scratch = gpu_grab(g, &p->memory, p->scratch_bytes, 1);
}

int gpu_pass_open(gpu_pass *p, gpu *g, int32_t top_k, int32_t max_tokens, int32_t n, int is_prompt) {
    static const gpu_kind *const kinds[] = {
        [MODEL_QUEST] = &gpu__quest, [MODEL_NSA] = &gpu__nsa, [MODEL_DSA] = &gpu__dsa};
    *p = (gpu_pass){
        .g = g, .top_k = top_k, .max_tokens = max_tokens, .n = n, .is_prompt = is_prompt, .bound = max_tokens};
    p->kind = kinds[g->m->kind];
    if (g->failed || p->kind->measure(p) != 0)
        return -1;
    p->state_bytes = (p->state_bytes + 255) / 256 * 256; /* every layer's is as aligned as memory of the GPU is */
    grab_all(p, (size_t)n);
    return gpu_wait(g) ? 0 : -1;
}

void gpu_pass_close(gpu_pass *p) {
    gpu_release(&p->memory);
}

void gpu_pass_set(gpu_pass *p, int32_t n) {
    p->n = p->batch.n_queries = n;
}

int gpu_check_heads(gpu *g, const char *what, int32_t key_dim, int32_t value_dim) {
    if (key_dim % 16 || value_dim % 16 || key_dim > 576 || value_dim > 512)
        return gpu_fail(g,
                        "%s of %d and %d channels: on the GPU keys have a multiple of 16 up to 576, values up to 512",
                        what, key_dim, value_dim);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- the layers -- */

void gpu_layer_begin(gpu_pass *p, int32_t layer) {
    const model *m = p->g->m;
    const model_layer *w = &p->g->layer[layer];
    GPU_RUN(p->g, gpu_rms_norm(p->x, w->attention_norm, m->embedding, p->n, m->norm_epsilon, p->normed, p->g->stream));
    p->kind->project(p, w);
}

void gpu_layer_end(gpu_pass *p, int32_t layer) {
    gpu *g = p->g;
    const model *m = g->m;
    const model_layer *w = &g->layer[layer];
    gpu_project(g, w->output, m->embedding, (int32_t)p->attended_floats, p->attended, p->n, 1, p->x);
    GPU_RUN(g, gpu_rms_norm(p->x, w->ffn_norm, m->embedding, p->n, m->norm_epsilon, p->normed, g->stream));
    gpu_project(g, w->gate, m->ffn, m->embedding, p->normed, p->n, 0, p->gate);
    gpu_project(g, w->up, m->ffn, m->embedding, p->normed, p->n, 0, p->up);
    GPU_RUN(g, gpu_swiglu(p->gate, p->up, (int64_t)p->n * m->ffn, g->stream));
    gpu_project(g, w->down, m->embedding, m->ffn, p->gate, p->n, 1, p->x);
}

void gpu_logits(gpu_pass *p, const float *x, float *logits) {
    const model *m = p->g->m;
    GPU_RUN(p->g, gpu_rms_norm(x, p->g->output_norm, m->embedding, 1, m->norm_epsilon, p->normed, p->g->stream));
    gpu_project(p->g, p->g->output, m->vocab, m->embedding, p->normed, 1, 0, logits);
}

/* ---------------------------------------------------------------------------------------------------- for kinds -- */

char *gpu_rows_of(const gpu_pass *p, int32_t store) {
    return p->rows + (size_t)store * (size_t)p->n * row_bytes_of(p->g->m);
}

void gpu_pack_rows(gpu_pass *p, int32_t store, size_t offset, const float *numbers, size_t stride, size_t count) {
    GPU_RUN(p->g, gpu_pack(numbers, (int64_t)stride, (int32_t)count, p->n, gpu_rows_of(p, store) + offset,
                           row_bytes_of(p->g->m), p->g->stream));
}

const int32_t *gpu_select(gpu_pass *p, kv *rows, int32_t store, const int32_t *selection, int32_t k) {
    if (!rows->cache)
        return selection;
    if (rows->select(rows, store, selection, k, p->ids) != 0)
        gpu_fail(p->g, "%s", rows->error);
    return p->ids;
}

/* One request is served fastest by all blocks of a cluster; the tokens of a prompt fill the GPU by themselves. */
void gpu_attend(gpu_pass *p, const hsp_gqa_shape *shape, const hsp_plane_view *planes, const float *query,
                const int32_t *ids, int32_t k, float *out, float *lse_out) {
    int32_t n_chunks = p->n == 1 ? 8 : 1;
    GPU_OPS(p->g, hsp_gpu_gqa_attend(shape, &planes[0], &planes[1], &p->batch, query, ids, 1, k, n_chunks, NULL, out,
                                     lse_out, p->g->stream));
}
