/* SPDX-License-Identifier: Apache-2.0 */
#include "model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void *model__grab(size_t count, size_t size) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, count * size + 64) != 0)
        return NULL;
    return memset(memory, 0, count * size);
}

float *model__rope_frequency(double theta, int32_t dims) {
    float *frequency = model__grab((size_t)dims, sizeof *frequency);
    for (int32_t i = 0; frequency && i < dims / 2; i++)
        frequency[i] = (float)pow(theta, -2.0 * i / dims);
    return frequency;
}

void model__set_gqa(model *m) {
    int32_t kv_heads = m->kind == MODEL_NSA ? 1 : m->n_kv_heads, heads = m->n_heads / m->n_kv_heads * kv_heads;
    float scale = 1 / sqrtf((float)m->head_dim);
    m->stores = m->n_kv_heads / kv_heads;
    m->n_planes = 2;
    m->plane_bytes[0] = m->plane_bytes[1] = kv_heads * m->head_dim * 2;
    m->attention = (hsp_gqa_shape){sizeof m->attention, heads, kv_heads, m->head_dim, m->head_dim, HSP_BF16, scale};
    m->quest =
        (hsp_quest_shape){sizeof m->quest, m->n_heads, m->n_kv_heads, m->head_dim, m->quest.page_tokens, HSP_BF16};
}

static int ends_in(const char *text, const char *end) {
    size_t n = strlen(text), length = strlen(end);
    return n >= length && strcmp(text + n - length, end) == 0;
}

model *model_open(const char *path, char *error, size_t error_bytes) {
    return ends_in(path, ".safetensors") ? model__open_safetensors(path, error, error_bytes)
                                         : model__open_gguf(path, error, error_bytes);
}

static int32_t larger(int32_t one, int32_t other) {
    return one > other ? one : other;
}

/* Units of `size` that n tokens touch. */
static int32_t units(int32_t n, int32_t size) {
    return n / size + (n % size != 0);
}

void model_attend_to_all(model *m, int32_t n_tokens) {
    switch (m->kind) {
    case MODEL_QUEST:
        m->dense_layers = m->n_layers;
        break;
    case MODEL_NSA:
        m->nsa.n_blocks = larger(m->nsa.n_blocks, units(n_tokens, m->nsa.block_tokens));
        m->top_k = m->nsa.n_blocks * m->nsa.block_tokens;
        break;
    case MODEL_DSA:
        m->top_k = larger(m->top_k, units(n_tokens, HSP_ATTENTION_TILE) * HSP_ATTENTION_TILE);
        break;
    }
}

void model_close(model *m) {
    if (!m)
        return;
    for (int32_t i = 0; m->layer && i < m->n_layers; i++) {
        float *const *parts = (float *const *)&m->layer[i]; /* it is pointers and nothing else */
        for (size_t p = 0; p < sizeof m->layer[i] / sizeof parts[0]; p++)
            free(parts[p]);
    }
    if (m->output != m->token_embedding)
        free(m->output);
    free(m->token_embedding);
    free(m->output_norm);
    free(m->rope_frequency);
    free(m->index_rope_frequency);
    free(m->layer);
    gguf_close(m->file);
    free(m);
}
