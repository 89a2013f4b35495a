/* SPDX-License-Identifier: Apache-2.0 */
/* Models out of safetensors files: every tensor has to be as the metadata says before memory is taken for it. */
#include "model_safetensors.h"

#include "mapped_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int model__fail(model_loader *l, const char *header_key, const char *what, const char *why, ...) {
    va_list arguments;
    char reason[192];
    if (l->failed)
        return 0;
    va_start(arguments, why);
    vsnprintf(reason, sizeof reason, why, arguments);
    va_end(arguments);
    mapped_file_fail(l->path, safetensors_place(l->file, header_key), l->error, l->error_bytes, "%s: %s", what, reason);
    l->failed = 1;
    return 0;
}

/* The shape a tensor has to have; without a leading dimension that is 0. */
typedef struct shape {
    int64_t dims[3];
} shape;

static int has_shape(const safetensors_tensor *t, const shape *wanted) {
    int32_t n = 0;
    for (int i = 0; i < 3; i++)
        if (wanted->dims[i] && (n == t->n_dims || t->dims[n++] != wanted->dims[i]))
            return 0;
    return n == t->n_dims;
}

static const char *shape_text(const int64_t *dims, int32_t n, char *text_out, size_t bytes) {
    size_t used = 0;
    *text_out = 0;
    for (int32_t i = 0; i < n; i++)
        if (dims[i] && used < bytes)
            used += (size_t)snprintf(text_out + used, bytes - used, "%s%lld", used ? ", " : "", (long long)dims[i]);
    return text_out;
}

/* A tensor as float32; NULL on failure. */
static float *load(model_loader *l, const char *name, shape wanted) {
    const safetensors_tensor *t = l->failed ? NULL : safetensors_find(l->file, name);
    char has[128], asked[64];
    if (!t) {
        model__fail(l, "__metadata__", name, "no such tensor in the file");
        return NULL;
    }
    if (!has_shape(t, &wanted)) {
        model__fail(l, name, name, "has shape [%s]; the metadata asks for [%s]",
                    shape_text(t->dims, t->n_dims, has, sizeof has), shape_text(wanted.dims, 3, asked, sizeof asked));
        return NULL;
    }
    float *weights = model__grab((size_t)t->n_numbers, sizeof *weights);
    if (!weights)
        model__fail(l, name, name, "not enough memory for %lld numbers", (long long)t->n_numbers);
    else if (hsp_unpack(t->dtype, t->data, (size_t)t->n_numbers, weights) != HSP_OK)
        model__fail(l, name, name, "is of whole numbers; a model has F32, F16 and BF16");
    l->m->weight_bytes += (size_t)t->n_numbers * sizeof *weights;
    return weights;
}

static float *of_layer(model_loader *l, int32_t layer, const char *part, int64_t sets, int64_t rows, int64_t columns) {
    char name[64];
    snprintf(name, sizeof name, "layers.%d.%s", layer, part);
    return load(l, name, (shape){{sets, rows, columns}});
}

static void load_gqa(model_loader *l, int32_t i, model_layer *w) {
    const model *m = l->m;
    int64_t e = m->embedding, q = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    w->query = of_layer(l, i, "query", 0, q, e);
    w->key = of_layer(l, i, "key", 0, kv, e);
    w->value = of_layer(l, i, "value", 0, kv, e);
    w->output = of_layer(l, i, "attention_output", 0, e, q);
}

static void load_nsa(model_loader *l, int32_t i, model_layer *w) {
    const model *m = l->m;
    int64_t g = m->n_kv_heads, d = m->head_dim, span = m->nsa.compress_tokens;
    load_gqa(l, i, w);
    w->branch_gate = of_layer(l, i, "branch_gate", 0, (int64_t)m->n_heads * 3, m->embedding);
    w->key_mix = of_layer(l, i, "compress_key_mix", g, span, d);
    w->key_projection = of_layer(l, i, "compress_key_projection", g, d, d);
    w->value_mix = of_layer(l, i, "compress_value_mix", g, span, d);
    w->value_projection = of_layer(l, i, "compress_value_projection", g, d, d);
}

static void load_dsa(model_loader *l, int32_t i, model_layer *w) {
    const model *m = l->m;
    int64_t e = m->embedding, h = m->n_heads, latent = m->mla.latent_dim, rope = m->mla.rope_dim;
    int64_t index_heads = m->index.n_heads, index_dim = m->index.head_dim;
    w->query = of_layer(l, i, "query", 0, h * (m->nope_dim + rope), e);
    w->latent = of_layer(l, i, "latent", 0, latent, e);
    w->latent_norm = of_layer(l, i, "latent_norm", 0, 0, latent);
    w->rope_key = of_layer(l, i, "rope_key", 0, rope, e);
    w->key_up = of_layer(l, i, "key_up", h, m->nope_dim, latent);
    w->value_up = of_layer(l, i, "value_up", h, m->value_dim, latent);
    w->output = of_layer(l, i, "attention_output", 0, e, h * m->value_dim);
    w->index_query = of_layer(l, i, "index_query", 0, index_heads * index_dim, e);
    w->index_key = of_layer(l, i, "index_key", 0, index_dim, e);
    w->index_norm_weight = of_layer(l, i, "index_key_norm_weight", 0, 0, index_dim);
    w->index_norm_bias = of_layer(l, i, "index_key_norm_bias", 0, 0, index_dim);
    w->index_weight = of_layer(l, i, "index_weight", 0, index_heads, e);
}

static void load_layer(model_loader *l, int32_t i) {
    static void (*const load_attention[])(model_loader *, int32_t, model_layer *) = {
        [MODEL_QUEST] = load_gqa, [MODEL_NSA] = load_nsa, [MODEL_DSA] = load_dsa};
    const model *m = l->m;
    model_layer *w = &m->layer[i];
    w->attention_norm = of_layer(l, i, "attention_norm", 0, 0, m->embedding);
    load_attention[m->kind](l, i, w);
    w->ffn_norm = of_layer(l, i, "ffn_norm", 0, 0, m->embedding);
    w->gate = of_layer(l, i, "gate", 0, m->ffn, m->embedding);
    w->up = of_layer(l, i, "up", 0, m->ffn, m->embedding);
    w->down = of_layer(l, i, "down", 0, m->embedding, m->ffn);
}

static void load_weights(model_loader *l) {
    model *m = l->m;
    m->layer = model__grab((size_t)m->n_layers, sizeof *m->layer);
    if (!m->layer)
        return (void)model__fail(l, "hisparse", "n_layers", "not enough memory for %d", m->n_layers);
    m->token_embedding = load(l, "embedding", (shape){{0, m->vocab, m->embedding}});
    m->output_norm = load(l, "norm", (shape){{0, 0, m->embedding}});
    m->output = load(l, "output", (shape){{0, m->vocab, m->embedding}});
    for (int32_t i = 0; i < m->n_layers && !l->failed; i++)
        load_layer(l, i);
}

model *model__read_safetensors(safetensors *file, const char *path, char *error, size_t error_bytes) {
    model_loader l = {calloc(1, sizeof *l.m), file, path, error, error_bytes, 0};
    if (!l.m)
        model__fail(&l, "__metadata__", "model", "not enough memory");
    if (!l.failed)
        model__read_shape(&l);
    if (!l.failed)
        load_weights(&l);
    safetensors_close(file);
    if (!l.failed)
        return l.m;
    model_close(l.m);
    return NULL;
}

model *model__open_safetensors(const char *path, char *error, size_t error_bytes) {
    safetensors *file = safetensors_open(path, error, error_bytes);
    return file ? model__read_safetensors(file, path, error, error_bytes) : NULL;
}
