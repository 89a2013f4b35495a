/* SPDX-License-Identifier: Apache-2.0 */
/* Llama-architecture models out of GGUF files. Quest needs nothing of the model itself: any of them can attend so. */
#include "model_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct loader {
    model *m;
    char *error;
    size_t error_bytes;
    int failed;
} loader;

/* The first failure is the one that is told. */
__attribute__((format(printf, 3, 4))) static int fail(loader *l, const char *what, const char *why, ...) {
    va_list arguments;
    char reason[192];
    va_start(arguments, why);
    vsnprintf(reason, sizeof reason, why, arguments);
    va_end(arguments);
    if (!l->failed)
        snprintf(l->error, l->error_bytes, "%s: %s", what, reason);
    l->failed = 1;
    return -1;
}

/* An integer of the metadata that must be there and in 1..most. */
static int32_t need_int(loader *l, const char *key, int64_t most) {
    int64_t value = 0;
    if (gguf_get_int(l->m->file, key, &value) != 0)
        return fail(l, key, "missing from the file's metadata, or not an integer");
    if (value < 1 || value > most)
        return fail(l, key, "is %lld; it may be 1..%lld", (long long)value, (long long)most);
    return (int32_t)value;
}

static void *grab(loader *l, size_t count, size_t size) {
    void *memory = model__grab(count, size);
    if (!memory)
        fail(l, "model", "not enough memory for the weights");
    return memory;
}

/* A tensor of [rows][columns] as float32; NULL on failure. Rows are turned in parallel. */
static float *load(loader *l, const char *name, int64_t rows, int64_t columns) {
    const gguf_tensor *t = l->failed ? NULL : gguf_find_tensor(l->m->file, name);
    if (!t) {
        fail(l, name, "no such tensor in the file");
        return NULL;
    }
    if (t->dims[0] != columns || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1) {
        fail(l, name, "has shape [%lld, %lld]; the metadata asks for [%lld, %lld]", (long long)t->dims[0],
             (long long)t->dims[1], (long long)columns, (long long)rows);
        return NULL;
    }
    float *weights = grab(l, (size_t)rows * (size_t)columns, sizeof *weights);
    size_t row_bytes = gguf_row_bytes(t->type, columns);
#pragma omp parallel for if (rows > 64)
    for (int64_t r = 0; r < (weights ? rows : 0); r++)
        gguf_dequantize(t->type, (const char *)t->data + (size_t)r * row_bytes, columns, weights + r * columns);
    l->m->weight_bytes += (size_t)rows * (size_t)columns * sizeof *weights;
    return weights;
}

static float *load_of_layer(loader *l, int32_t layer, const char *part, int64_t rows, int64_t columns) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, part);
    return load(l, name, rows, columns);
}

static void load_layer(loader *l, int32_t i) {
    const model *m = l->m;
    int64_t e = m->embedding, q = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    char bias[64];
    snprintf(bias, sizeof bias, "blk.%d.attn_q.bias", i);
    if (gguf_find_tensor(m->file, bias))
        fail(l, bias, "projections with a bias are not part of the Llama architecture");
    m->layer[i] = (model_layer){
        .attention_norm = load_of_layer(l, i, "attn_norm", 1, e),
        .query = load_of_layer(l, i, "attn_q", q, e),
        .key = load_of_layer(l, i, "attn_k", kv, e),
        .value = load_of_layer(l, i, "attn_v", kv, e),
        .output = load_of_layer(l, i, "attn_output", e, q),
        .ffn_norm = load_of_layer(l, i, "ffn_norm", 1, e),
        .gate = load_of_layer(l, i, "ffn_gate", m->ffn, e),
        .up = load_of_layer(l, i, "ffn_up", m->ffn, e),
        .down = load_of_layer(l, i, "ffn_down", e, m->ffn),
    };
}

/* Llama 3.1 files divide each frequency by a factor of their own. */
static void set_rope(loader *l) {
    model *m = l->m;
    int64_t dims = m->head_dim;
    double base = 10000;
    gguf_string scaling;
    gguf_get_int(m->file, "llama.rope.dimension_count", &dims);
    gguf_get_float(m->file, "llama.rope.freq_base", &base);
    if (dims != m->head_dim || dims % 2)
        fail(l, "llama.rope.dimension_count", "is %lld; it must be the head size, which is %d, and even",
             (long long)dims, m->head_dim);
    if (!(base > 0))
        fail(l, "llama.rope.freq_base", "is %g; it must be positive", base);
    if (gguf_get_string(m->file, "llama.rope.scaling.type", &scaling) == 0 &&
        !(scaling.length == 4 && memcmp(scaling.bytes, "none", 4) == 0))
        fail(l, "llama.rope.scaling.type", "is '%.*s'; only 'none' is known",
             (int)(scaling.length < 40 ? scaling.length : 40), scaling.bytes);
    if (l->failed)
        return;
    m->rope_frequency = model__rope_frequency(base, m->head_dim);
    if (!m->rope_frequency)
        return (void)fail(l, "model", "not enough memory for the angles");
    float *factor = gguf_find_tensor(m->file, "rope_freqs.weight") ? load(l, "rope_freqs.weight", 1, dims / 2) : NULL;
    for (int64_t i = 0; factor && i < dims / 2; i++)
        m->rope_frequency[i] /= factor[i];
    free(factor);
}

static void read_shape(loader *l) {
    model *m = l->m;
    gguf_string name;
    double epsilon = 0;
    int64_t head_dim, vocab = gguf_array_length(m->file, "tokenizer.ggml.tokens");
    if (gguf_get_string(m->file, "general.architecture", &name) != 0 || name.length != 5 ||
        memcmp(name.bytes, "llama", 5) != 0)
        fail(l, "general.architecture", "missing or not 'llama'; only models of that architecture can be run");
    m->n_layers = need_int(l, "llama.block_count", 1024);
    m->embedding = need_int(l, "llama.embedding_length", 1 << 17);
    m->ffn = need_int(l, "llama.feed_forward_length", 1 << 20);
    m->n_heads = need_int(l, "llama.attention.head_count", 1024);
    m->n_kv_heads = need_int(l, "llama.attention.head_count_kv", 1024);
    m->context = need_int(l, "llama.context_length", 4194304);
    if (!l->failed && (m->embedding % m->n_heads || m->n_heads % m->n_kv_heads))
        fail(l, "llama.attention.head_count",
             "is %d; it must divide the embedding, %d, and be a multiple of the KV heads, %d", m->n_heads, m->embedding,
             m->n_kv_heads);
    if (l->failed)
        return;
    m->head_dim = m->embedding / m->n_heads;
    if (gguf_get_int(m->file, "llama.attention.key_length", &head_dim) == 0) {
        if (head_dim < 1 || head_dim > 1024)
            return (void)fail(l, "llama.attention.key_length", "is %lld; it may be 1..1024", (long long)head_dim);
        m->head_dim = (int32_t)head_dim;
    }
    if (gguf_get_float(m->file, "llama.attention.layer_norm_rms_epsilon", &epsilon) != 0 || !(epsilon > 0))
        fail(l, "llama.attention.layer_norm_rms_epsilon", "missing, or not positive");
    if (vocab < 1 || vocab > 1 << 22)
        fail(l, "tokenizer.ggml.tokens", "has %lld tokens; it may have 1..4194304", (long long)vocab);
    m->norm_epsilon = (float)epsilon;
    m->vocab = (int32_t)vocab;
}

static void load_weights(loader *l) {
    model *m = l->m;
    m->layer = grab(l, (size_t)m->n_layers, sizeof *m->layer);
    m->token_embedding = load(l, "token_embd.weight", m->vocab, m->embedding);
    m->output_norm = load(l, "output_norm.weight", 1, m->embedding);
    m->output = m->token_embedding;
    if (gguf_find_tensor(m->file, "output.weight"))
        m->output = load(l, "output.weight", m->vocab, m->embedding);
    for (int32_t i = 0; i < m->n_layers && !l->failed; i++)
        load_layer(l, i);
}

/* What the Quest paper takes; no GGUF file says. */
static void set_quest(model *m) {
    m->kind = MODEL_QUEST;
    m->dense_layers = 2;
    m->quest.page_tokens = 16;
    model__set_gqa(m);
}

model *model__open_gguf(const char *path, char *error, size_t error_bytes) {
    gguf *file = gguf_open(path, error, error_bytes);
    model *m = file ? calloc(1, sizeof *m) : NULL;
    char why[256];
    if (!m) {
        gguf_close(file);
        return NULL;
    }
    m->file = file;
    loader l = {m, why, sizeof why, 0};
    read_shape(&l);
    if (!l.failed)
        set_rope(&l);
    if (!l.failed)
        load_weights(&l);
    if (!l.failed) {
        set_quest(m);
        return m;
    }
    snprintf(error, error_bytes, "%s: %s", path, why);
    model_close(m);
    return NULL;
}
