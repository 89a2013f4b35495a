/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of a decoder as files give them, and the figures of a plan that follow from them. */
#ifndef HISPARSE_PLAN_SHAPE_H
#define HISPARSE_PLAN_SHAPE_H

#include "plan.h"

/* 0: the file does not say. */
typedef struct plan_shape {
    double layers, dense_layers, hidden, vocab;
    double heads, kv_heads, head_dim, nope, rope, value, query_rank, latent; /* latent > 0: MLA */
    double index_heads, index_dim, k, block_tokens, indexers, followers;
    double sharing; /* a selection serves that many layers at most */
    double experts, active, expert_width, shared_experts, dense_width;
} plan_shape;

/* Where a field stands: a path of a preset, a key of a config.json (NULL: not there). */
typedef struct plan_field {
    size_t offset;
    const char *preset, *config;
    double least, most;
} plan_field;
extern const plan_field plan_fields[];
extern const int plan_n_fields;

/* The number at a path like "attention.heads"; `otherwise` when nothing or no number stands there. */
double plan_number(const json_t *object, const char *path, double otherwise);

/* All fields of an object, by preset paths or by config keys. Out of bounds: an exit code, with `where` in the text. */
int plan_shape_read(const json_t *object, int config, const char *where, plan_shape *out);

/* After plan_shape_read, once all fields are set. */
int plan_shape_check(const char *where, const plan_shape *s);

/* Rows of a token, all KV heads, in bytes. */
void plan_shape_rows(const plan_shape *s, double row_bytes[PLAN_FORMATS]);
/* All parameters but norms, biases and the layers that predict more tokens. */
double plan_shape_parameters(const plan_shape *s);
/* Everything of a model that follows from its shape; entry_tokens, rows and parameters are set before. */
void plan_shape_finish(const plan_shape *s, plan_model *m);

#endif
