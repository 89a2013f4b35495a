/* SPDX-License-Identifier: Apache-2.0 */
/* Tiny random models of the three architectures of docs/models.md, by way of a safetensors file, and the numbers that
 * were written. */
#ifndef HISPARSE_TESTS_SMALL_MODEL_H
#define HISPARSE_TESTS_SMALL_MODEL_H

#include "model.h"
#include "safetensors_writer.h"

#include "hisparse_ops.h"
#include <math.h>
#include <unistd.h>

typedef struct small_shape {
    const char *architecture, *dtype; /* dtype: of the tensors */
    int32_t layers, embedding, ffn, heads, kv_heads, head_dim;
    int32_t dense_layers, page_tokens, top_k;
    int32_t compress_tokens, compress_stride, block_tokens, n_blocks, n_first, n_local, window;
    int32_t latent, rope, nope, value, index_heads, index_dim, index_rope;
    const char *index_dtype;
    double theta;
    uint64_t seed;
} small_shape;

typedef struct small_tensor {
    char name[64];
    float *numbers;
} small_tensor;

typedef struct small_model {
    const small_shape *s;
    model *m;
    small_tensor tensor[256];
    int n_tensors;
    safetensors_writer file;
    uint64_t seed;
} small_model;

static inline double small_uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) / 9007199254740992.0;
}

/* A tensor of numbers around `middle`; sets and rows may be 0 for "no such dimension". */
static inline void small_add(small_model *sm, const char *name, int64_t sets, int64_t rows, int64_t columns,
                             double middle, double spread) {
    int64_t dims[3] = {sets, rows, columns}, n = (sets ? sets : 1) * (rows ? rows : 1) * columns;
    int first = sets ? 0 : rows ? 1 : 2;
    int32_t dtype = strcmp(sm->s->dtype, "F32") == 0 ? HSP_F32 : strcmp(sm->s->dtype, "F16") == 0 ? HSP_F16 : HSP_BF16;
    size_t bytes = (size_t)n * (dtype == HSP_F32 ? 4 : 2);
    small_tensor *t = &sm->tensor[sm->n_tensors++];
    void *packed = malloc(bytes);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->numbers = malloc((size_t)n * sizeof *t->numbers);
    if (!packed || !t->numbers || sm->n_tensors > 256)
        abort();
    for (int64_t i = 0; i < n; i++)
        t->numbers[i] = (float)(middle + spread * sqrt(3) * (2 * small_uniform(&sm->seed) - 1));
    hsp_pack(dtype, t->numbers, (size_t)n, packed);
    hsp_unpack(dtype, packed, (size_t)n, t->numbers);
    st_tensor(&sm->file, name, sm->s->dtype, dims + first, 3 - first, bytes);
    write_bytes(&sm->file.data, packed, bytes);
    free(packed);
}

static inline void small_part(small_model *sm, int32_t layer, const char *part, int64_t sets, int64_t rows,
                              int64_t columns, double middle, double spread) {
    char name[64];
    snprintf(name, sizeof name, "layers.%d.%s", layer, part);
    small_add(sm, name, sets, rows, columns, middle, spread);
}

static inline void small_gqa(small_model *sm, int32_t i, double in) {
    const small_shape *s = sm->s;
    int32_t q = s->heads * s->head_dim, kv_dim = s->kv_heads * s->head_dim;
    small_part(sm, i, "query", 0, q, s->embedding, 0, 1.5 * in);
    small_part(sm, i, "key", 0, kv_dim, s->embedding, 0, 1.5 * in);
    small_part(sm, i, "value", 0, kv_dim, s->embedding, 0, in);
    small_part(sm, i, "attention_output", 0, s->embedding, q, 0, 1 / sqrt(q));
    if (!s->window)
        return;
    int32_t g = s->kv_heads, d = s->head_dim, span = s->compress_tokens;
    small_part(sm, i, "branch_gate", 0, s->heads * 3, s->embedding, 0, in);
    small_part(sm, i, "compress_key_mix", g, span, d, 1.0 / span, 1.0 / span);
    small_part(sm, i, "compress_key_projection", g, d, d, 0, 3 / sqrt(d));
    small_part(sm, i, "compress_value_mix", g, span, d, 1.0 / span, 1.0 / span);
    small_part(sm, i, "compress_value_projection", g, d, d, 0, 2 / sqrt(d));
}

static inline void small_dsa(small_model *sm, int32_t i, double in) {
    const small_shape *s = sm->s;
    small_part(sm, i, "query", 0, s->heads * (s->nope + s->rope), s->embedding, 0, 1.5 * in);
    small_part(sm, i, "latent", 0, s->latent, s->embedding, 0, in);
    small_part(sm, i, "latent_norm", 0, 0, s->latent, 1, 0.2);
    small_part(sm, i, "rope_key", 0, s->rope, s->embedding, 0, 1.5 * in);
    small_part(sm, i, "key_up", s->heads, s->nope, s->latent, 0, 1 / sqrt(s->latent));
    small_part(sm, i, "value_up", s->heads, s->value, s->latent, 0, 1 / sqrt(s->latent));
    small_part(sm, i, "attention_output", 0, s->embedding, s->heads * s->value, 0, 1 / sqrt(s->heads * s->value));
    small_part(sm, i, "index_query", 0, s->index_heads * s->index_dim, s->embedding, 0, 1.5 * in);
    small_part(sm, i, "index_key", 0, s->index_dim, s->embedding, 0, in);
    small_part(sm, i, "index_key_norm_weight", 0, 0, s->index_dim, 1, 0.2);
    small_part(sm, i, "index_key_norm_bias", 0, 0, s->index_dim, 0, 0.2);
    small_part(sm, i, "index_weight", 0, s->index_heads, s->embedding, 0, in);
}

static inline void small_layer(small_model *sm, int32_t i) {
    const small_shape *s = sm->s;
    double in = 1 / sqrt(s->embedding);
    small_part(sm, i, "attention_norm", 0, 0, s->embedding, 1, 0.1);
    (s->latent ? small_dsa : small_gqa)(sm, i, in);
    small_part(sm, i, "ffn_norm", 0, 0, s->embedding, 1, 0.1);
    small_part(sm, i, "gate", 0, s->ffn, s->embedding, 0, 1.5 * in);
    small_part(sm, i, "up", 0, s->ffn, s->embedding, 0, 1.5 * in);
    small_part(sm, i, "down", 0, s->embedding, s->ffn, 0, 1 / sqrt(s->ffn));
}

/* More keys than any of them needs: what does not belong to an architecture is not looked at. */
static inline void small_metadata(small_model *sm) {
    const small_shape *s = sm->s;
    char text[1024];
    snprintf(
        text, sizeof text,
        "{\"architecture\":\"%s\",\"n_layers\":%d,\"embedding\":%d,\"ffn\":%d,\"vocab\":256,\"context\":4096,"
        "\"norm_epsilon\":1e-5,\"rope_theta\":%.17g,\"n_heads\":%d,\"n_kv_heads\":%d,\"head_dim\":%d,"
        "\"dense_layers\":%d,\"page_tokens\":%d,\"top_k\":%d,\"compress_tokens\":%d,\"compress_stride\":%d,"
        "\"block_tokens\":%d,\"n_blocks\":%d,\"n_first\":%d,\"n_local\":%d,\"window\":%d,\"latent_dim\":%d,"
        "\"rope_dim\":%d,\"nope_dim\":%d,\"value_dim\":%d,\"index_heads\":%d,\"index_dim\":%d,\"index_rope_dim\":%d,"
        "\"index_dtype\":\"%s\"}",
        s->architecture, s->layers, s->embedding, s->ffn, s->theta, s->heads, s->kv_heads, s->head_dim, s->dense_layers,
        s->page_tokens, s->top_k, s->compress_tokens, s->compress_stride, s->block_tokens, s->n_blocks, s->n_first,
        s->n_local, s->window, s->latent, s->rope, s->nope, s->value, s->index_heads, s->index_dim, s->index_rope,
        s->index_dtype ? s->index_dtype : "");
    st_metadata(&sm->file, "hisparse", text);
}

/* sm->m is NULL after a message. */
static inline small_model *small_open(const small_shape *s) {
    small_model *sm = calloc(1, sizeof *sm);
    char path[] = "small_model_XXXXXX.safetensors", error[512] = "";
    if (!sm)
        abort();
    *sm = (small_model){.s = s, .seed = s->seed};
    small_metadata(sm);
    small_add(sm, "embedding", 0, 256, s->embedding, 0, 1 / sqrt(s->embedding));
    small_add(sm, "norm", 0, 0, s->embedding, 1, 0.1);
    small_add(sm, "output", 0, 256, s->embedding, 0, 1 / sqrt(s->embedding));
    for (int32_t i = 0; i < s->layers; i++)
        small_layer(sm, i);
    gguf_writer file = st_finish(&sm->file);
    int fd = mkstemps(path, 12);
    int written = fd >= 0 && write(fd, file.bytes, file.n) == (ssize_t)file.n;
    sm->m = written ? model_open(path, error, sizeof error) : NULL;
    if (!sm->m)
        fprintf(stderr, "small model: %s\n", error);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    free(file.bytes);
    return sm;
}

static inline void small_close(small_model *sm) {
    for (int i = 0; i < sm->n_tensors; i++)
        free(sm->tensor[i].numbers);
    model_close(sm->m);
    free(sm);
}

/* What was written for a name; a layer of -1 for names without one. */
static inline const float *small_numbers(const small_model *sm, int32_t layer, const char *part) {
    char name[96];
    snprintf(name, sizeof name, "layers.%d.%s", layer, part);
    part = layer < 0 ? part : name;
    for (int i = 0; i < sm->n_tensors; i++)
        if (strcmp(sm->tensor[i].name, part) == 0)
            return sm->tensor[i].numbers;
    fprintf(stderr, "no tensor %s\n", part);
    abort();
}

#endif
