/* SPDX-License-Identifier: Apache-2.0 */
/* Tiny Llama models with random weights, as GGUF files: of any shape, so that no two sizes need be equal. */
#ifndef HISPARSE_TESTS_TINY_MODEL_H
#define HISPARSE_TESTS_TINY_MODEL_H

#include "gguf_writer.h"
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

typedef struct tiny_shape {
    int32_t layers, embedding, ffn, heads, kv_heads, head_dim, vocab;
    int tied;         /* no output matrix: the embedding is used */
    int rope_factors; /* with rope_freqs.weight, as Llama 3.1 files have it */
    uint64_t seed;
} tiny_shape;

/* The shape most tests use; weights differ with the seed. */
#define TINY_SHAPE(seed_)                                                                                              \
    {                                                                                                                  \
        .layers = 4, .embedding = 32, .ffn = 48, .heads = 4, .kv_heads = 2, .head_dim = 8, .vocab = 61, .tied = 1,     \
        .seed = (seed_)                                                                                                \
    }

static inline double tiny_uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) / 9007199254740992.0;
}

typedef struct tiny_file {
    gguf_writer head, data;
    uint64_t n_tensors, seed;
} tiny_file;

/* A tensor of numbers around `middle`. */
static inline void tiny_tensor(tiny_file *f, const char *name, int32_t rows, int32_t columns, double middle,
                               double spread) {
    const uint64_t dims[] = {(uint64_t)columns, (uint64_t)rows};
    write_tensor(&f->head, name, rows > 1 ? 2 : 1, dims, GGUF_F32, f->data.n);
    for (int64_t i = 0; i < (int64_t)rows * columns; i++)
        write_f32(&f->data, (float)(middle + spread * sqrt(3) * (2 * tiny_uniform(&f->seed) - 1)));
    write_padding(&f->data, 32);
    f->n_tensors++;
}

static inline void tiny_keys(gguf_writer *w, const tiny_shape *s) {
    char word[16];
    write_text_key(w, "general.architecture", "llama");
    write_u32_key(w, "llama.block_count", (uint32_t)s->layers);
    write_u32_key(w, "llama.embedding_length", (uint32_t)s->embedding);
    write_u32_key(w, "llama.feed_forward_length", (uint32_t)s->ffn);
    write_u32_key(w, "llama.attention.head_count", (uint32_t)s->heads);
    write_u32_key(w, "llama.attention.head_count_kv", (uint32_t)s->kv_heads);
    write_u32_key(w, "llama.attention.key_length", (uint32_t)s->head_dim);
    write_u32_key(w, "llama.rope.dimension_count", (uint32_t)s->head_dim);
    write_u32_key(w, "llama.context_length", 4096);
    write_key(w, "llama.rope.freq_base", W_F32);
    write_f32(w, 5000);
    write_key(w, "llama.attention.layer_norm_rms_epsilon", W_F32);
    write_f32(w, 1e-5f);
    write_array_key(w, "tokenizer.ggml.tokens", W_STRING, (uint64_t)s->vocab);
    for (int32_t i = 0; i < s->vocab; i++) {
        snprintf(word, sizeof word, "w%d", i);
        write_text(w, word);
    }
}

static inline void tiny_layer(tiny_file *f, const tiny_shape *s, int32_t i) {
    int32_t e = s->embedding, q = s->heads * s->head_dim, kv_dim = s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        int32_t rows, columns;
        double middle, spread;
    } parts[] = {
        {"attn_norm", 1, e, 1, 0.1},
        {"attn_q", q, e, 0, 1.5 / sqrt(e)}, /* larger than usual, so that attention picks a few tokens */
        {"attn_k", kv_dim, e, 0, 1.5 / sqrt(e)},
        {"attn_v", kv_dim, e, 0, 1 / sqrt(e)},
        {"attn_output", e, q, 0, 1 / sqrt(q)},
        {"ffn_norm", 1, e, 1, 0.1},
        {"ffn_gate", s->ffn, e, 0, 1.5 / sqrt(e)},
        {"ffn_up", s->ffn, e, 0, 1.5 / sqrt(e)},
        {"ffn_down", e, s->ffn, 0, 1 / sqrt(s->ffn)},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, parts[p].name);
        tiny_tensor(f, name, parts[p].rows, parts[p].columns, parts[p].middle, parts[p].spread);
    }
}

/* The model of a shape, by way of a file. NULL after a message. */
static inline model *tiny_model(const tiny_shape *s) {
    tiny_file f = {.seed = s->seed};
    gguf_writer w = {0};
    char path[] = "tiny_model_XXXXXX", error[256] = "";
    tiny_tensor(&f, "token_embd.weight", s->vocab, s->embedding, 0, 1 / sqrt(s->embedding));
    tiny_tensor(&f, "output_norm.weight", 1, s->embedding, 1, 0.1);
    if (!s->tied)
        tiny_tensor(&f, "output.weight", s->vocab, s->embedding, 0, 1 / sqrt(s->embedding));
    if (s->rope_factors)
        tiny_tensor(&f, "rope_freqs.weight", 1, s->head_dim / 2, 3, 1);
    for (int32_t i = 0; i < s->layers; i++)
        tiny_layer(&f, s, i);
    write_head(&w, f.n_tensors, 12);
    tiny_keys(&w, s);
    write_bytes(&w, f.head.bytes, f.head.n);
    write_padding(&w, 32);
    write_bytes(&w, f.data.bytes, f.data.n);
    int fd = mkstemp(path);
    int written = fd >= 0 && write(fd, w.bytes, w.n) == (ssize_t)w.n;
    model *m = written ? model_open(path, error, sizeof error) : NULL;
    if (!m)
        fprintf(stderr, "tiny model: %s\n", error);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    free(w.bytes);
    free(f.head.bytes);
    free(f.data.bytes);
    return m;
}

#endif
