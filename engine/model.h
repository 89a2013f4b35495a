/* SPDX-License-Identifier: Apache-2.0 */
/* A model out of a file, weights turned into float32 for the matrix products: a Llama-architecture GGUF file, whose
 * attention is Quest's, or a safetensors file that says in its metadata what it is (docs/models.md). */
#ifndef HISPARSE_MODEL_H
#define HISPARSE_MODEL_H

#include "gguf.h"
#include "hisparse_ops.h"

/* Kinds of attention. What is the same in all of them is in the decoder, what differs in attend_*.c. */
enum model_kind { MODEL_QUEST, MODEL_NSA, MODEL_DSA };

/* Matrices are row-major [outputs][inputs]; H heads, G KV heads, D channels a head. NULL where a kind has none. */
typedef struct model_layer {
    float *attention_norm, *query, *output; /* output: [embedding][what attention gives] */
    float *ffn_norm, *gate, *up, *down;
    float *key, *value;                            /* Quest and NSA: [G * D][embedding] */
    float *branch_gate;                            /* NSA: [H * 3][embedding] */
    float *key_mix, *key_projection;               /* NSA: [G][compress_tokens][D], [G][D][D] */
    float *value_mix, *value_projection;           /* NSA: likewise */
    float *latent, *latent_norm, *rope_key;        /* DSA: [latent][embedding], [latent], [rope][embedding] */
    float *key_up, *value_up;                      /* DSA: [H][nope][latent], [H][value][latent] */
    float *index_query, *index_key, *index_weight; /* DSA: [Hi * Di][embedding], [Di][embedding], [Hi][embedding] */
    float *index_norm_weight, *index_norm_bias;    /* DSA: [Di] */
} model_layer;

typedef struct model {
    enum model_kind kind;
    int32_t n_layers, embedding, ffn, vocab, context;
    int32_t n_heads, n_kv_heads, head_dim; /* Quest and NSA; of DSA only n_heads, and n_kv_heads is 1 */
    int32_t top_k;                         /* tokens a layer attends to; 0: the file does not say */
    float norm_epsilon;
    float *rope_frequency;                         /* [rope channels / 2], radians a token */
    float *token_embedding, *output_norm, *output; /* output is token_embedding where the file ties them */
    model_layer *layer;
    size_t weight_bytes;
    gguf *file; /* for the tokenizer; NULL: tokens are bytes */

    /* Rows as they are kept: planes of bfloat16. A layer is `stores` layers of rows, one for each KV head in NSA, where
     * each has a selection of its own, else one; store s of layer i is layer i * stores + s of a cache. */
    int32_t stores, n_planes, plane_bytes[2];

    int32_t dense_layers; /* Quest: layers from 0 on that attend to everything */
    hsp_quest_shape quest;
    hsp_gqa_shape attention; /* Quest; in NSA of one KV head with its query heads */

    hsp_nsa_shape nsa;
    int32_t window;           /* NSA: newest tokens that are attended to besides */
    hsp_gqa_shape compressed; /* NSA: attention to compressed rows */

    hsp_dsa_shape index; /* DSA */
    hsp_mla_shape mla;
    int32_t nope_dim, value_dim, index_rope_dim;
    float *index_rope_frequency; /* [index_rope_dim / 2] */
} model;

/* NULL on failure, with file, place and reason in `error`. A name that ends in .safetensors is such a file. */
model *model_open(const char *path, char *error, size_t error_bytes);
void model_close(model *m);

/* From here on every layer attends to every token before it and to itself, in texts of up to n_tokens: Quest's layers
 * are all dense, NSA's selected branch takes every block, DSA's indexer every token. It changes top_k, so it comes
 * before caches and decoders of the model. */
void model_attend_to_all(model *m, int32_t n_tokens);

#endif
