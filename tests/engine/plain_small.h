/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of the models of docs/models.md in double precision and the most obvious loops, out of the numbers a
 * test wrote into the file: nothing of the engine takes part, but that rows are rounded as it rounded them where that
 * is a matter of its float32 error (plain_kept), and that every layer attends to the tokens the engine chose. Whether
 * those were the right ones is checked apart, against scores computed here. */
#ifndef HISPARSE_TESTS_PLAIN_SMALL_H
#define HISPARSE_TESTS_PLAIN_SMALL_H

#include "plain_forward.h"
#include "small_model.h"

enum { SMALL_MOST = 256 }; /* tokens */

typedef struct plain_small {
    const small_model *sm;
    const kv *rows; /* the engine's, resident; filled as far as this pass goes */
    int32_t length;
    double logits[256];
    /* [layer][token][...], as wide as the widest */
    double (*raw_key)[SMALL_MOST][64], (*raw_value)[SMALL_MOST][64]; /* before rope and rounding */
    double (*row)[SMALL_MOST][64];                                   /* rounded: K then V, or latent then rope */
    double (*index_key)[SMALL_MOST][64];                             /* transformed and rounded */
    double (*score)[SMALL_MOST]; /* of the newest token, [store]: DSA: of tokens; NSA: of blocks */
} plain_small;

static inline plain_small *plain_small_open(const small_model *sm, const kv *rows) {
    plain_small *p = calloc(1, sizeof *p);
    size_t layers = (size_t)sm->s->layers, bytes = sizeof p->row[0];
    if (!p)
        abort();
    *p = (plain_small){.sm = sm,
                       .rows = rows,
                       .raw_key = calloc(layers, bytes),
                       .raw_value = calloc(layers, bytes),
                       .row = calloc(layers, bytes),
                       .index_key = calloc(layers, bytes),
                       .score = calloc(layers * 8, sizeof p->score[0])};
    return p;
}

static inline void plain_small_close(plain_small *p) {
    free(p->raw_key);
    free(p->raw_value);
    free(p->row);
    free(p->index_key);
    free(p->score);
    free(p);
}

static inline void small_project(const plain_small *p, int32_t layer, const char *part, int32_t outputs, int32_t inputs,
                                 const double *x, double *y) {
    plain_project(small_numbers(p->sm, layer, part), outputs, inputs, x, y);
}

/* One head; pairs (2i, 2i + 1), or with `apart` (i, i + apart). */
static inline void small_rope(const plain_small *p, double *x, int32_t dims, int32_t apart) {
    for (int32_t i = 0; i < dims / 2; i++) {
        double angle = p->length * pow(p->sm->s->theta, -2.0 * i / dims);
        double *one = x + (apart ? i : 2 * i), *other = apart ? one + apart : one + 1, a = *one, b = *other;
        *one = a * cos(angle) - b * sin(angle);
        *other = a * sin(angle) + b * cos(angle);
    }
}

/* softmax(weight) of n scores in place; -INFINITY is none. */
static inline void small_softmax(double *weight, int32_t n) {
    double most = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        most = fmax(most, weight[i]);
    for (int32_t i = 0; i < n; i++)
        sum += weight[i] = most == -INFINITY ? 0 : exp(weight[i] - most);
    for (int32_t i = 0; i < n; i++)
        weight[i] /= sum > 0 ? sum : 1;
}

/* One query head over n tokens (-1: none) of rows that hold the key at `key_at` and the value at `value_at`. */
static inline void small_head(const plain_small *p, int32_t layer, const double *query, int32_t dim, int32_t key_at,
                              int32_t value_at, const int32_t *tokens, int32_t n, double *out) {
    double weight[SMALL_MOST + 128];
    for (int32_t i = 0; i < n; i++) {
        weight[i] = tokens[i] < 0 ? -INFINITY : 0;
        for (int32_t c = 0; tokens[i] >= 0 && c < dim; c++)
            weight[i] += query[c] * p->row[layer][tokens[i]][key_at + c] / sqrt(dim);
    }
    small_softmax(weight, n);
    for (int32_t c = 0; c < dim; c++) {
        out[c] = 0;
        for (int32_t i = 0; i < n; i++)
            if (tokens[i] >= 0)
                out[c] += weight[i] * p->row[layer][tokens[i]][value_at + c];
    }
}

/* ----------------------------------------------------------------------------------------------------- Quest, NSA --
 */

/* Query, keys and values of the newest token; query, roped: [heads][head_dim]. */
static inline void small_gqa_project(plain_small *p, int32_t layer, const double *x, double *query, double *roped) {
    const small_shape *s = p->sm->s;
    int32_t d = s->head_dim, kv_dim = s->kv_heads * d, t = p->length, stores = p->sm->m->stores;
    double *key = p->raw_key[layer][t], *value = p->raw_value[layer][t], *row = p->row[layer][t];
    small_project(p, layer, "query", s->heads * d, s->embedding, x, query);
    small_project(p, layer, "key", kv_dim, s->embedding, x, key);
    small_project(p, layer, "value", kv_dim, s->embedding, x, value);
    memcpy(roped, query, sizeof *roped * (size_t)(s->heads * d));
    memcpy(row, key, sizeof *row * (size_t)kv_dim);
    memcpy(row + kv_dim, value, sizeof *row * (size_t)kv_dim);
    for (int32_t h = 0; h < s->heads; h++)
        small_rope(p, roped + h * d, d, 0);
    for (int32_t g = 0; g < s->kv_heads; g++)
        small_rope(p, row + g * d, d, 0);
    for (int32_t i = 0; i < 2 * kv_dim; i++) {
        int32_t is_value = i >= kv_dim, g = i % kv_dim / d, in_head = i % d; /* a store's row is its K, then its V */
        const uint8_t *kept = kv_resident_row(p->rows, layer * stores + (stores > 1 ? g : 0), t);
        int32_t at = stores > 1 ? is_value * d + in_head : i;
        row[i] = plain_kept(row[i], kept + 2 * at);
    }
}

static inline void small_quest(plain_small *p, int32_t layer, const double *x, const plain_selection *chosen,
                               double *out) {
    const small_shape *s = p->sm->s;
    int32_t d = s->head_dim, kv_dim = s->kv_heads * d;
    double query[64], roped[64];
    small_gqa_project(p, layer, x, query, roped);
    for (int32_t h = 0; h < s->heads; h++) {
        int32_t g = h * s->kv_heads / s->heads;
        small_head(p, layer, roped + h * d, d, g * d, kv_dim + g * d, chosen->tokens, chosen->n, out + h * d);
    }
}

/* Compressed row i of a KV head, of keys or values. */
static inline void small_compress(const plain_small *p, int32_t layer, const char *what, int32_t g, int32_t i,
                                  double (*raw)[64], double *out) {
    const small_shape *s = p->sm->s;
    int32_t d = s->head_dim, span = s->compress_tokens;
    char name[64];
    double mixed[64] = {0};
    snprintf(name, sizeof name, "compress_%s_mix", what);
    const float *mix = small_numbers(p->sm, layer, name) + g * span * d;
    for (int32_t t = 0; t < span; t++)
        for (int32_t c = 0; c < d; c++)
            mixed[c] += (double)mix[t * d + c] * raw[i * s->compress_stride + t][g * d + c];
    snprintf(name, sizeof name, "compress_%s_projection", what);
    plain_project(small_numbers(p->sm, layer, name) + g * d * d, d, d, mixed, out);
}

/* The compressed branch of one head; its probabilities go into the importance of the blocks they overlap. */
static inline void small_compressed(plain_small *p, int32_t layer, int32_t g, const double *query, double *out) {
    const small_shape *s = p->sm->s;
    int32_t d = s->head_dim, stride = s->compress_stride, span = s->compress_tokens, tokens = p->length + 1;
    int32_t n = tokens < span ? 0 : (tokens - span) / stride + 1;
    double weight[SMALL_MOST], key[64], value[64];
    for (int32_t i = 0; i < n; i++) {
        small_compress(p, layer, "key", g, i, p->raw_key[layer], key);
        weight[i] = 0;
        for (int32_t c = 0; c < d; c++)
            weight[i] += query[c] * key[c] / sqrt(d);
    }
    small_softmax(weight, n);
    memset(out, 0, sizeof *out * (size_t)d);
    for (int32_t i = 0; i < n; i++) {
        small_compress(p, layer, "value", g, i, p->raw_value[layer], value);
        for (int32_t c = 0; c < d; c++)
            out[c] += weight[i] * value[c];
        for (int32_t t = i * stride; t < i * stride + span; t += stride) /* piece by piece */
            p->score[layer * s->kv_heads + g][t / s->block_tokens] += weight[i];
    }
}

/* chosen: of the KV heads; every one the selection and then the window. */
static inline void small_nsa(plain_small *p, int32_t layer, const double *x, const plain_selection *chosen,
                             double *out) {
    const small_shape *s = p->sm->s;
    int32_t d = s->head_dim, kv_dim = s->kv_heads * d, window[SMALL_MOST], n = 0;
    double query[64], roped[64], gates[64], branch[3][64];
    memset(p->score[layer * s->kv_heads], 0, sizeof p->score[0] * (size_t)s->kv_heads);
    small_gqa_project(p, layer, x, query, roped);
    small_project(p, layer, "branch_gate", s->heads * 3, s->embedding, x, gates);
    for (int32_t t = p->length - s->window + 1; t <= p->length; t++)
        if (t >= 0)
            window[n++] = t;
    for (int32_t h = 0; h < s->heads; h++) {
        int32_t g = h * s->kv_heads / s->heads;
        small_compressed(p, layer, g, query + h * d, branch[0]);
        small_head(p, layer, roped + h * d, d, g * d, kv_dim + g * d, chosen[g].tokens, chosen[g].n - s->window,
                   branch[1]);
        small_head(p, layer, roped + h * d, d, g * d, kv_dim + g * d, window, n, branch[2]);
        for (int32_t c = 0; c < d; c++) {
            out[h * d + c] = 0;
            for (int b = 0; b < 3; b++)
                out[h * d + c] += branch[b][c] / (1 + exp(-gates[h * 3 + b]));
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ DSA --
 */

/* Nearest number of e4m3, the even one of two. */
static inline double small_e4m3(double x) {
    int exponent;
    frexp(x, &exponent);
    int step = exponent - 4 < -9 ? -9 : exponent - 4; /* four significant bits; multiples of 2^-9 below 2^-6 */
    return ldexp(nearbyint(ldexp(x, -step)), step);
}

/* Hadamard transform, then the rounding of the format; the scale is multiplied back. */
static inline void small_transform(const small_shape *s, const double *x, double *out) {
    double most = 0, scale = 1;
    int e4m3 = strcmp(s->index_dtype, "e4m3") == 0;
    for (int32_t i = 0; i < s->index_dim; i++) {
        out[i] = 0;
        for (int32_t c = 0; c < s->index_dim; c++)
            out[i] += (__builtin_popcount((unsigned)(i & c)) % 2 ? -x[c] : x[c]) / sqrt(s->index_dim);
        most = fmax(most, fabs(out[i]));
    }
    if (e4m3)
        scale = exp2(ceil(log2(fmax(most, 1e-4) / 448)));
    for (int32_t i = 0; i < s->index_dim; i++)
        out[i] = e4m3 ? scale * small_e4m3(out[i] / scale) : plain_bfloat16(out[i]);
}

static inline void small_index(plain_small *p, int32_t layer, const double *x) {
    const small_shape *s = p->sm->s;
    int32_t d = s->index_dim;
    double key[64], query[256], weight[16], packed[64], mean = 0, variance = 0;
    const float *norm = small_numbers(p->sm, layer, "index_key_norm_weight");
    const float *bias = small_numbers(p->sm, layer, "index_key_norm_bias");
    small_project(p, layer, "index_query", s->index_heads * d, s->embedding, x, query);
    small_project(p, layer, "index_key", d, s->embedding, x, key);
    small_project(p, layer, "index_weight", s->index_heads, s->embedding, x, weight);
    for (int32_t c = 0; c < d; c++)
        mean += key[c] / d;
    for (int32_t c = 0; c < d; c++)
        variance += (key[c] - mean) * (key[c] - mean) / d;
    for (int32_t c = 0; c < d; c++)
        key[c] = (key[c] - mean) / sqrt(variance + 1e-6) * (double)norm[c] + (double)bias[c];
    small_rope(p, key, s->index_rope, s->index_rope / 2);
    small_transform(s, key, p->index_key[layer][p->length]);
    memset(p->score[layer], 0, sizeof p->score[layer]);
    for (int32_t h = 0; h < s->index_heads; h++) {
        small_rope(p, query + h * d, s->index_rope, s->index_rope / 2);
        small_transform(s, query + h * d, packed);
        for (int32_t t = 0; t <= p->length; t++) {
            double dot = 0;
            for (int32_t c = 0; c < d; c++)
                dot += packed[c] * p->index_key[layer][t][c];
            p->score[layer][t] += weight[h] * fmax(0, dot) / sqrt(s->index_heads * d);
        }
    }
}

/* One head, keys and values expanded from every row. */
static inline void small_mla_head(const plain_small *p, int32_t layer, int32_t h, const double *query,
                                  const plain_selection *chosen, double *out) {
    const small_shape *s = p->sm->s;
    const float *key_up = small_numbers(p->sm, layer, "key_up") + h * s->nope * s->latent;
    const float *value_up = small_numbers(p->sm, layer, "value_up") + h * s->value * s->latent;
    double weight[SMALL_MOST], key[64], value[64];
    for (int32_t i = 0; i < chosen->n; i++) {
        weight[i] = chosen->tokens[i] < 0 ? -INFINITY : 0;
        if (chosen->tokens[i] < 0)
            continue;
        const double *row = p->row[layer][chosen->tokens[i]];
        plain_project(key_up, s->nope, s->latent, row, key);
        for (int32_t c = 0; c < s->nope; c++)
            weight[i] += query[c] * key[c] / sqrt(s->nope + s->rope);
        for (int32_t c = 0; c < s->rope; c++)
            weight[i] += query[s->nope + c] * row[s->latent + c] / sqrt(s->nope + s->rope);
    }
    small_softmax(weight, chosen->n);
    memset(out, 0, sizeof *out * (size_t)s->value);
    for (int32_t i = 0; i < chosen->n; i++) {
        if (chosen->tokens[i] < 0)
            continue;
        plain_project(value_up, s->value, s->latent, p->row[layer][chosen->tokens[i]], value);
        for (int32_t c = 0; c < s->value; c++)
            out[c] += weight[i] * value[c];
    }
}

static inline void small_dsa_layer(plain_small *p, int32_t layer, const double *x, const plain_selection *chosen,
                                   double *out) {
    const small_shape *s = p->sm->s;
    int32_t wide = s->nope + s->rope, t = p->length;
    double query[256], latent[64], *row = p->row[layer][t];
    const uint8_t *kept = kv_resident_row(p->rows, layer, t);
    small_project(p, layer, "query", s->heads * wide, s->embedding, x, query);
    small_project(p, layer, "latent", s->latent, s->embedding, x, latent);
    small_project(p, layer, "rope_key", s->rope, s->embedding, x, row + s->latent);
    plain_norm(latent, small_numbers(p->sm, layer, "latent_norm"), s->latent, 1e-5, row);
    small_rope(p, row + s->latent, s->rope, 0);
    for (int32_t i = 0; i < s->latent + s->rope; i++)
        row[i] = plain_kept(row[i], kept + 2 * i);
    small_index(p, layer, x);
    for (int32_t h = 0; h < s->heads; h++) {
        small_rope(p, query + h * wide + s->nope, s->rope, 0);
        small_mla_head(p, layer, h, query + h * wide, chosen, out + h * s->value);
    }
}

/* ----------------------------------------------------------------------------------------------------- everything --
 */

static inline void small_ffn(const plain_small *p, int32_t layer, double *x) {
    const small_shape *s = p->sm->s;
    double normed[64], gate[64], up[64];
    plain_norm(x, small_numbers(p->sm, layer, "ffn_norm"), s->embedding, 1e-5, normed);
    small_project(p, layer, "gate", s->ffn, s->embedding, normed, gate);
    small_project(p, layer, "up", s->ffn, s->embedding, normed, up);
    for (int32_t i = 0; i < s->ffn; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    small_project(p, layer, "down", s->embedding, s->ffn, gate, normed);
    for (int32_t i = 0; i < s->embedding; i++)
        x[i] += normed[i];
}

/* One more token; chosen: what the engine asked for, of every store. */
static inline void plain_small_step(plain_small *p, int32_t token, const plain_selection *chosen) {
    const small_shape *s = p->sm->s;
    int32_t heads_out = s->heads * (s->latent ? s->value : s->head_dim);
    double x[64], normed[64], attended[128];
    for (int32_t i = 0; i < s->embedding; i++)
        x[i] = (double)small_numbers(p->sm, -1, "embedding")[token * s->embedding + i];
    for (int32_t layer = 0; layer < s->layers; layer++) {
        plain_norm(x, small_numbers(p->sm, layer, "attention_norm"), s->embedding, 1e-5, normed);
        (s->latent   ? small_dsa_layer
         : s->window ? small_nsa
                     : small_quest)(p, layer, normed, chosen + layer * p->sm->m->stores, attended);
        small_project(p, layer, "attention_output", s->embedding, heads_out, attended, normed);
        for (int32_t i = 0; i < s->embedding; i++)
            x[i] += normed[i];
        small_ffn(p, layer, x);
    }
    plain_norm(x, small_numbers(p->sm, -1, "norm"), s->embedding, 1e-5, normed);
    small_project(p, -1, "output", 256, s->embedding, normed, p->logits);
    p->length++;
}

#endif
