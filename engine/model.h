/* SPDX-License-Identifier: Apache-2.0 */
/* A Llama-architecture model out of a GGUF file, weights turned into float32 for the matrix products. */
#ifndef HISPARSE_MODEL_H
#define HISPARSE_MODEL_H

#include "gguf.h"

/* Matrices are row-major [outputs][inputs]. */
typedef struct model_layer {
    float *attention_norm, *query, *key, *value, *output; /* output: [embedding][heads * head_dim] */
    float *ffn_norm, *gate, *up, *down;
} model_layer;

typedef struct model {
    int32_t n_layers, embedding, ffn, n_heads, n_kv_heads, head_dim, vocab, context;
    float norm_epsilon;
    float *rope_frequency;                         /* [head_dim / 2], radians a token */
    float *token_embedding, *output_norm, *output; /* output is token_embedding where the file ties them */
    model_layer *layer;
    size_t weight_bytes;
    gguf *file; /* for the tokenizer */
} model;

/* NULL on failure, with file, place and reason in `error`. */
model *model_open(const char *path, char *error, size_t error_bytes);
void model_close(model *m);

#endif
