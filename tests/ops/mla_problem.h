/* SPDX-License-Identifier: Apache-2.0
 *
 * A plane or two of MLA rows, queries and ids, and what attention to them must be: rows read byte by byte and summed in
 * double, both from the definitions.
 */
#ifndef HSP_MLA_PROBLEM_H
#define HSP_MLA_PROBLEM_H

#include "ops_common.h"

#include <math.h>

/* As published. */
static const hsp_mla_shape bf16_shape = {sizeof bf16_shape, 1, 512, 64, HSP_MLA_BF16, 1.0f, 0};
static const hsp_mla_shape fp8_shape = {sizeof fp8_shape, 1, 512, 64, HSP_MLA_FP8, 1.0f, 0};
static const hsp_mla_shape v4_shape = {sizeof v4_shape, 1, 448, 64, HSP_MLA_V4, 1.0f, 0};

struct mla_case {
    int32_t format, n_heads, latent_dim, rope_dim, n_queries, n_rows, n_slots, rows_per_block, pad;
};

struct problem {
    hsp_mla_shape shape;
    hsp_plane_view planes[2];
    int32_t n_slots, n_queries, n_rows, key_dim, value_dim;
    float *keys; /* [n_slots][key_dim], as the bytes say */
    float *query, *sink;
    int32_t *row_ids;
    char *memory;
    size_t memory_bytes, scratch_bytes;
    void *scratch;
};

static inline uint8_t *row_at(const hsp_plane_view *plane, int32_t id) {
    return (uint8_t *)plane->base + (size_t)(id / plane->rows_per_block) * plane->block_stride +
           (size_t)(id % plane->rows_per_block) * plane->row_stride;
}

static inline float e4m3_value(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double x = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return (code & 0x7f) == 0x7f ? NAN : (float)(code & 0x80 ? -x : x);
}

static inline float bf16_value(const uint8_t *p) {
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void read_row(const struct problem *p, int32_t id, float *key) {
    const uint8_t *row = row_at(&p->planes[0], id), *scales = row + p->shape.latent_dim, *rope = scales;
    int32_t latent = p->shape.latent_dim, n_scales = latent / 128;
    for (int32_t c = 0; c < latent; c++) {
        float scale;
        if (p->shape.format == HSP_MLA_FP8)
            memcpy(&scale, scales + c / 128 * 4, sizeof scale);
        else if (p->shape.format == HSP_MLA_V4)
            scale = (float)ldexp(1.0, row_at(&p->planes[1], id)[c / 64] - 127);
        key[c] = p->shape.format == HSP_MLA_BF16 ? bf16_value(row + 2 * c) : e4m3_value(row[c]) * scale;
    }
    if (p->shape.format != HSP_MLA_V4)
        rope += p->shape.format == HSP_MLA_FP8 ? n_scales * 4 : latent;
    for (int32_t c = 0; c < p->shape.rope_dim; c++)
        key[latent + c] = bf16_value(rope + 2 * c);
}

/* Planes one after the other in each block; `pad` odd bytes between rows, so that nothing is aligned. */
static inline void lay_out(struct problem *p, int32_t rows_per_block, int32_t pad) {
    size_t latent = (size_t)p->shape.latent_dim, bytes[2] = {latent + 2 * (size_t)p->shape.rope_dim, 0};
    bytes[0] += p->shape.format == HSP_MLA_BF16 ? latent : p->shape.format == HSP_MLA_FP8 ? latent / 128 * 4 : 0;
    bytes[1] = p->shape.format == HSP_MLA_V4 ? (latent / 64 + 7) / 8 * 8 : 0;
    size_t rows = (size_t)rows_per_block, stride = bytes[0] + (size_t)pad, block = rows * (stride + bytes[1]);
    if (p->shape.format == HSP_MLA_V4 && pad == 0) /* as published */
        block = (block + 575) / 576 * 576;
    int32_t n_blocks = (p->n_slots + rows_per_block - 1) / rows_per_block;
    p->n_slots = n_blocks * rows_per_block;
    p->memory_bytes = (size_t)n_blocks * block;
    p->memory = allocate(p->memory_bytes);
    memset(p->memory, 0xff, p->memory_bytes);
    p->planes[0] = (hsp_plane_view){p->memory, bytes[0], stride, block, rows_per_block, 0};
    p->planes[1] = (hsp_plane_view){p->memory + rows * stride, bytes[1], bytes[1], block, rows_per_block, 0};
}

static inline float *random_floats(size_t n, float size, uint64_t *seed) {
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = size * random_float(seed);
    return x;
}

static inline void make_problem(struct problem *p, const struct mla_case *c, uint64_t seed) {
    memset(p, 0, sizeof *p);
    p->n_slots = c->n_slots;
    p->n_queries = c->n_queries;
    p->n_rows = c->n_rows;
    p->key_dim = c->latent_dim + c->rope_dim;
    p->value_dim = c->format == HSP_MLA_V4 ? p->key_dim : c->latent_dim;
    p->shape = (hsp_mla_shape){
        sizeof p->shape, c->n_heads, c->latent_dim, c->rope_dim, c->format, 1.0f / sqrtf((float)p->key_dim), 0};
    lay_out(p, c->rows_per_block, c->pad);
    p->keys = random_floats((size_t)p->n_slots * (size_t)p->key_dim, 1.0f, &seed);
    assert_int_equal(hsp_mla_pack_rows(&p->shape, p->keys, 0, p->n_slots, p->planes), HSP_OK);
    for (int32_t id = 0; id < p->n_slots; id++)
        read_row(p, id, p->keys + (size_t)id * (size_t)p->key_dim);
    p->query = random_floats((size_t)(c->n_queries * c->n_heads) * (size_t)p->key_dim, 4.0f, &seed);
    p->sink = random_floats((size_t)c->n_heads, 4.0f, &seed);
    size_t n_ids = (size_t)c->n_queries * (size_t)c->n_rows;
    p->row_ids = allocate(n_ids * sizeof *p->row_ids);
    for (size_t i = 0; i < n_ids; i++) /* one in eight masked, duplicates by chance */
        p->row_ids[i] = random_below(&seed, 8) ? random_below(&seed, p->n_slots) : -1;
    assert_int_equal(hsp_mla_scratch(&p->shape, c->n_rows, &p->scratch_bytes), HSP_OK);
    p->scratch = allocate(p->scratch_bytes);
    memset(p->scratch, 0xff, p->scratch_bytes);
}

static inline void free_problem(struct problem *p) {
    free(p->memory);
    free(p->keys);
    free(p->query);
    free(p->sink);
    free(p->row_ids);
    free(p->scratch);
}

/* [n_queries][n_heads][value_dim] values, then n_queries * n_heads logarithms. */
static inline size_t n_values(const struct problem *p) {
    return (size_t)(p->n_queries * p->shape.n_heads) * (size_t)p->value_dim;
}

static inline size_t result_bytes(const struct problem *p) {
    return (n_values(p) + (size_t)(p->n_queries * p->shape.n_heads)) * sizeof(float);
}

static inline float *attend(const struct problem *p, const float *sink) {
    float *out = allocate(result_bytes(p));
    assert_int_equal(hsp_mla_attend(&p->shape, p->planes, p->query, p->row_ids, p->n_queries, p->n_rows, sink, out,
                                    out + n_values(p), p->scratch),
                     HSP_OK);
    return out;
}

static inline double score_of(const struct problem *p, const float *query, int32_t id) {
    const float *key = p->keys + (size_t)id * (size_t)p->key_dim;
    double dot = 0.0;
    for (int32_t c = 0; c < p->key_dim; c++)
        dot += (double)query[c] * (double)key[c];
    return dot * (double)p->shape.scale;
}

/* One head of one query; returns the logarithm of the sum without the sink. */
static inline double reference_head(const struct problem *p, int32_t q, int32_t head, const float *sink, double *out) {
    const float *query = p->query + (size_t)(q * p->shape.n_heads + head) * (size_t)p->key_dim;
    const int32_t *ids = p->row_ids + (size_t)q * (size_t)p->n_rows;
    double top = -INFINITY, sum = 0.0, *scores = allocate((size_t)p->n_rows * sizeof *scores);
    memset(out, 0, (size_t)p->value_dim * sizeof *out);
    for (int32_t i = 0; i < p->n_rows; i++)
        if (ids[i] >= 0)
            top = fmax(top, scores[i] = score_of(p, query, ids[i]));
    for (int32_t i = 0; i < p->n_rows; i++) {
        if (ids[i] < 0)
            continue;
        double weight = exp(scores[i] - top);
        sum += weight;
        for (int32_t c = 0; c < p->value_dim; c++)
            out[c] += weight * (double)p->keys[(size_t)ids[i] * (size_t)p->key_dim + (size_t)c];
    }
    free(scores);
    double denominator = sum + (sink && sum > 0.0 ? exp((double)sink[head] - top) : 0.0);
    for (int32_t c = 0; c < p->value_dim && sum > 0.0; c++)
        out[c] /= denominator;
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

#endif
