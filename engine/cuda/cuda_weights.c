/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on the GPU, float32 as in model.h: products then differ from the CPU's by the order of their sums alone. */
#include "cuda_gpu.h"

#include <stdlib.h>

static float *load(gpu *g, const float *weights, int64_t rows, int64_t columns) {
    size_t numbers = (size_t)(rows * columns);
    float *memory = weights ? gpu_grab(g, &g->memory, numbers, sizeof *memory) : NULL;
    if (memory) /* on the stream, after the clearing; from pageable memory it has been read on return */
        GPU_RUN(g, cudaMemcpyAsync(memory, weights, numbers * sizeof *memory, cudaMemcpyHostToDevice, g->stream));
    return memory;
}

static void load_gqa(gpu *g, const model_layer *from, model_layer *to) {
    const model *m = g->m;
    int64_t e = m->embedding, q = (int64_t)m->n_heads * m->head_dim, kv_dim = (int64_t)m->n_kv_heads * m->head_dim;
    to->query = load(g, from->query, q, e);
    to->key = load(g, from->key, kv_dim, e);
    to->value = load(g, from->value, kv_dim, e);
    to->output = load(g, from->output, e, q);
}

static void load_nsa(gpu *g, const model_layer *from, model_layer *to) {
    const model *m = g->m;
    int64_t groups = m->n_kv_heads, dim = m->head_dim, span = m->nsa.compress_tokens;
    load_gqa(g, from, to);
    to->branch_gate = load(g, from->branch_gate, (int64_t)m->n_heads * 3, m->embedding);
    to->key_mix = load(g, from->key_mix, groups * span, dim);
    to->key_projection = load(g, from->key_projection, groups * dim, dim);
    to->value_mix = load(g, from->value_mix, groups * span, dim);
    to->value_projection = load(g, from->value_projection, groups * dim, dim);
}

static void load_dsa(gpu *g, const model_layer *from, model_layer *to) {
    const model *m = g->m;
    int64_t e = m->embedding, heads = m->n_heads, latent = m->mla.latent_dim, rope = m->mla.rope_dim;
    int64_t index_heads = m->index.n_heads, index_dim = m->index.head_dim;
    to->query = load(g, from->query, heads * (m->nope_dim + rope), e);
    to->latent = load(g, from->latent, latent, e);
    to->latent_norm = load(g, from->latent_norm, 1, latent);
    to->rope_key = load(g, from->rope_key, rope, e);
    to->key_up = load(g, from->key_up, heads * m->nope_dim, latent);
    to->value_up = load(g, from->value_up, heads * m->value_dim, latent);
    to->output = load(g, from->output, e, heads * m->value_dim);
    to->index_query = load(g, from->index_query, index_heads * index_dim, e);
    to->index_key = load(g, from->index_key, index_dim, e);
    to->index_norm_weight = load(g, from->index_norm_weight, 1, index_dim);
    to->index_norm_bias = load(g, from->index_norm_bias, 1, index_dim);
    to->index_weight = load(g, from->index_weight, index_heads, e);
}

static void load_layer(gpu *g, const model_layer *from, model_layer *to) {
    static void (*const load_attention[])(gpu *, const model_layer *, model_layer *) = {
        [MODEL_QUEST] = load_gqa, [MODEL_NSA] = load_nsa, [MODEL_DSA] = load_dsa};
    int64_t e = g->m->embedding, ffn = g->m->ffn;
    load_attention[g->m->kind](g, from, to);
    to->attention_norm = load(g, from->attention_norm, 1, e);
    to->ffn_norm = load(g, from->ffn_norm, 1, e);
    to->gate = load(g, from->gate, ffn, e);
    to->up = load(g, from->up, ffn, e);
    to->down = load(g, from->down, e, ffn);
}

void gpu__load(gpu *g) {
    const model *m = g->m;
    int64_t e = m->embedding, rope = m->kind == MODEL_DSA ? m->mla.rope_dim : m->head_dim;
    g->layer = calloc((size_t)m->n_layers, sizeof *g->layer);
    if (!g->layer)
        gpu_fail(g, "not enough memory for %d layers", m->n_layers);
    g->token_embedding = load(g, m->token_embedding, m->vocab, e);
    g->output_norm = load(g, m->output_norm, 1, e);
    g->output = m->output == m->token_embedding ? g->token_embedding : load(g, m->output, m->vocab, e);
    g->rope_frequency = load(g, m->rope_frequency, 1, rope / 2);
    g->index_rope_frequency = load(g, m->index_rope_frequency, 1, m->index_rope_dim / 2);
    for (int32_t i = 0; i < m->n_layers && !g->failed; i++)
        load_layer(g, &m->layer[i], &g->layer[i]);
}
