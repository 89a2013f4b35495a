/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of a Llama model in double precision and the most obvious loops, to hold the decoder against. It
 * shares the model's numbers with the engine and nothing else. Keys and values are rounded to bfloat16 where they are
 * kept; where one lies so near the middle of two such numbers that the error of float32 decides, the engine's choice is
 * taken. */
#ifndef HISPARSE_TESTS_PLAIN_FORWARD_H
#define HISPARSE_TESTS_PLAIN_FORWARD_H

#include "kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct plain_forward {
    const model *m;
    int32_t max_tokens, length;
    double *keys, *values; /* [layer][max_tokens][kv_heads * head_dim] */
    double *logits;
    const kv *rows; /* the engine's, resident; filled as far as this pass goes */
} plain_forward;

/* Which tokens a layer attends to: `n` of them, -1 is none; NULL: all up to the newest. */
typedef struct plain_selection {
    const int32_t *tokens;
    int32_t n;
} plain_selection;

static inline double *plain_numbers(size_t n) {
    double *numbers = calloc(n, sizeof *numbers);
    if (!numbers)
        abort();
    return numbers;
}

static inline plain_forward plain_open(const model *m, int32_t max_tokens, const kv *rows) {
    size_t n = (size_t)m->n_layers * (size_t)max_tokens * (size_t)(m->n_kv_heads * m->head_dim);
    return (plain_forward){m, max_tokens, 0, plain_numbers(n), plain_numbers(n), plain_numbers((size_t)m->vocab), rows};
}

static inline void plain_close(plain_forward *p) {
    free(p->keys);
    free(p->values);
    free(p->logits);
}

/* Nearest number of 8 significant bits, the even one of two. */
static inline double plain_bfloat16(double x) {
    int exponent;
    double mantissa = frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(mantissa, 8)), exponent - 8);
}

static inline double plain_from_bfloat16(const uint8_t *bytes) {
    uint32_t bits = (uint32_t)(bytes[0] | bytes[1] << 8) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* x rounded; the engine's number instead if x might, by the error of float32, have been rounded to it. */
static inline double plain_kept(double x, const uint8_t *engine) {
    double rounded = plain_bfloat16(x), other = plain_from_bfloat16(engine);
    return fabs(other - x) <= fabs(rounded - x) + 1e-5 ? other : rounded;
}

static inline void plain_norm(const double *x, const float *weight, int32_t n, double epsilon, double *y) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + epsilon) * (double)weight[i];
}

static inline void plain_project(const float *weights, int32_t outputs, int32_t inputs, const double *x, double *y) {
    for (int32_t o = 0; o < outputs; o++) {
        y[o] = 0;
        for (int32_t i = 0; i < inputs; i++)
            y[o] += (double)weights[(size_t)o * (size_t)inputs + (size_t)i] * x[i];
    }
}

static inline void plain_rope(const model *m, double *x, int32_t heads, int32_t position) {
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = 0; i < m->head_dim / 2; i++) {
            double angle = position * (double)m->rope_frequency[i], *pair = x + h * m->head_dim + 2 * i, a = pair[0];
            pair[0] = a * cos(angle) - pair[1] * sin(angle);
            pair[1] = a * sin(angle) + pair[1] * cos(angle);
        }
}

static inline size_t plain_row(const plain_forward *p, int32_t layer, int32_t token) {
    return ((size_t)layer * (size_t)p->max_tokens + (size_t)token) * (size_t)(p->m->n_kv_heads * p->m->head_dim);
}

/* Attention of one head: out [head_dim]. */
static inline void plain_head(const plain_forward *p, int32_t layer, int32_t kv_head, const double *query,
                              plain_selection s, double *out) {
    int32_t dim = p->m->head_dim, n = s.tokens ? s.n : p->length + 1;
    double *weight = plain_numbers((size_t)n), most = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t token = s.tokens ? s.tokens[i] : i;
        weight[i] = token < 0 ? -INFINITY : 0;
        for (int32_t c = 0; token >= 0 && c < dim; c++)
            weight[i] += query[c] * p->keys[plain_row(p, layer, token) + (size_t)(kv_head * dim + c)] / sqrt(dim);
        most = fmax(most, weight[i]);
    }
    for (int32_t i = 0; i < n; i++)
        sum += weight[i] = exp(weight[i] - most);
    for (int32_t c = 0; c < dim; c++) {
        out[c] = 0;
        for (int32_t i = 0; i < n; i++) {
            int32_t token = s.tokens ? s.tokens[i] : i;
            if (token >= 0)
                out[c] += weight[i] / sum * p->values[plain_row(p, layer, token) + (size_t)(kv_head * dim + c)];
        }
    }
    free(weight);
}

static inline void plain_attention(plain_forward *p, int32_t layer, double *x, double *normed, plain_selection s) {
    const model *m = p->m;
    const model_layer *w = &m->layer[layer];
    int32_t e = m->embedding, q = m->n_heads * m->head_dim, kv_dim = m->n_kv_heads * m->head_dim;
    double *query = plain_numbers((size_t)q), *attended = plain_numbers((size_t)q);
    double *key = p->keys + plain_row(p, layer, p->length), *value = p->values + plain_row(p, layer, p->length);
    const uint8_t *row = kv_resident_row(p->rows, layer, p->length);
    plain_norm(x, w->attention_norm, e, (double)m->norm_epsilon, normed);
    plain_project(w->query, q, e, normed, query);
    plain_project(w->key, kv_dim, e, normed, key);
    plain_project(w->value, kv_dim, e, normed, value);
    plain_rope(m, query, m->n_heads, p->length);
    plain_rope(m, key, m->n_kv_heads, p->length);
    for (int32_t i = 0; i < kv_dim; i++) {
        key[i] = plain_kept(key[i], row + 2 * i);
        value[i] = plain_kept(value[i], row + 2 * (kv_dim + i));
    }
    for (int32_t h = 0; h < m->n_heads; h++)
        plain_head(p, layer, h / (m->n_heads / m->n_kv_heads), query + h * m->head_dim, s, attended + h * m->head_dim);
    plain_project(w->output, e, q, attended, normed);
    for (int32_t i = 0; i < e; i++)
        x[i] += normed[i];
    free(query);
    free(attended);
}

static inline void plain_ffn(const model *m, const model_layer *w, double *x, double *normed) {
    double *gate = plain_numbers((size_t)m->ffn), *up = plain_numbers((size_t)m->ffn);
    plain_norm(x, w->ffn_norm, m->embedding, (double)m->norm_epsilon, normed);
    plain_project(w->gate, m->ffn, m->embedding, normed, gate);
    plain_project(w->up, m->ffn, m->embedding, normed, up);
    for (int32_t i = 0; i < m->ffn; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    plain_project(w->down, m->embedding, m->ffn, gate, normed);
    for (int32_t i = 0; i < m->embedding; i++)
        x[i] += normed[i];
    free(gate);
    free(up);
}

/* One more token; selections: [n_layers], or NULL for everything everywhere. Logits of the token in p->logits. */
static inline void plain_step(plain_forward *p, int32_t token, const plain_selection *selections) {
    const model *m = p->m;
    const plain_selection everything = {NULL, 0};
    double *x = plain_numbers((size_t)m->embedding), *normed = plain_numbers((size_t)m->embedding);
    for (int32_t i = 0; i < m->embedding; i++)
        x[i] = (double)m->token_embedding[(size_t)token * (size_t)m->embedding + (size_t)i];
    for (int32_t layer = 0; layer < m->n_layers; layer++) {
        plain_attention(p, layer, x, normed, selections ? selections[layer] : everything);
        plain_ffn(m, &m->layer[layer], x, normed);
    }
    plain_norm(x, m->output_norm, m->embedding, (double)m->norm_epsilon, normed);
    plain_project(m->output, m->vocab, m->embedding, normed, p->logits);
    p->length++;
    free(x);
    free(normed);
}

#endif
