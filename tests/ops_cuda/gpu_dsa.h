/* SPDX-License-Identifier: Apache-2.0 */
/* Some requests with packed index keys and queries, on the device and on the host, and scores in double. */
#ifndef HSP_GPU_DSA_H
#define HSP_GPU_DSA_H

#include "gpu_select.h"

#include <math.h>

struct index_case {
    hsp_dsa_shape shape;
    int32_t n_slots, max_tokens, batch, n_queries;
    size_t key_bytes, row_stride, request_stride, image_bytes;
    float *query, *weights;   /* [batch][n_queries] of them */
    char *rows, *device_rows; /* packed on the host */
    void *device_image;       /* packed on the device */
    float *device_query, *device_weights;
    int32_t *slot, *n_tokens;
    hsp_gpu_batch b;
};

static inline hsp_dsa_shape dsa_shape(int32_t n_heads, int32_t head_dim, int32_t dtype) {
    return (hsp_dsa_shape){sizeof(hsp_dsa_shape), n_heads, head_dim, dtype, 0};
}

static inline float *randoms(size_t n, uint64_t *seed) {
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(seed);
    return x;
}

static inline void pack_queries(struct index_case *c) {
    size_t n = (size_t)(c->batch * c->n_queries), heads = (size_t)c->shape.n_heads;
    to_device(c->device_query, c->query, n * heads * (size_t)c->shape.head_dim * sizeof(float));
    to_device(c->device_weights, c->weights, n * heads * sizeof(float));
    assert_int_equal(
        hsp_gpu_dsa_pack_query(&c->shape, &c->b, c->device_query, c->device_weights, c->device_image, test_stream),
        HSP_OK);
    need(cudaStreamSynchronize(test_stream));
}

/* Keys of slot s, packed from random ones. */
static inline void fill_slot(struct index_case *c, int32_t s, uint64_t *seed) {
    float *keys = randoms((size_t)c->max_tokens * (size_t)c->shape.head_dim, seed);
    assert_int_equal(hsp_dsa_pack_keys(&c->shape, keys, (size_t)c->shape.head_dim * sizeof *keys, c->max_tokens,
                                       c->rows + (size_t)s * c->request_stride, c->row_stride),
                     HSP_OK);
    free(keys);
}

/* pad: bytes between rows; gap: bytes between requests. Entry b has slot b % (n_slots + 1), the last of which is
 * padding; lengths fall from max_tokens. */
static inline void open_case(struct index_case *c, hsp_dsa_shape shape, int32_t max_tokens, int32_t batch,
                             int32_t n_queries, size_t pad, size_t gap, uint64_t seed) {
    size_t n = (size_t)(batch * n_queries), heads = (size_t)shape.n_heads, dim = (size_t)shape.head_dim;
    *c = (struct index_case){
        .shape = shape, .n_slots = 3, .max_tokens = max_tokens, .batch = batch, .n_queries = n_queries};
    assert_int_equal(hsp_dsa_key_bytes(&shape, &c->key_bytes), HSP_OK);
    assert_int_equal(hsp_gpu_dsa_query_bytes(&shape, &c->image_bytes), HSP_OK);
    c->row_stride = c->key_bytes + pad;
    c->request_stride = ((size_t)max_tokens * c->row_stride + 15) / 16 * 16 + gap;
    c->rows = allocate((size_t)c->n_slots * c->request_stride);
    memset(c->rows, 0x5a, (size_t)c->n_slots * c->request_stride);
    for (int32_t s = 0; s < c->n_slots; s++)
        fill_slot(c, s, &seed);
    c->query = randoms(n * heads * dim, &seed);
    c->weights = randoms(n * heads, &seed);
    c->slot = allocate((size_t)batch * sizeof *c->slot);
    c->n_tokens = allocate(n * sizeof *c->n_tokens);
    for (int32_t b = 0; b < batch; b++) {
        c->slot[b] = b % (c->n_slots + 1) < c->n_slots ? b % (c->n_slots + 1) : -1;
        for (int32_t q = 0; q < n_queries; q++) {
            int32_t left = max_tokens - b * (max_tokens / 7) - (n_queries - 1 - q);
            c->n_tokens[b * n_queries + q] = left > 0 ? left : 0;
        }
    }
    c->b = make_batch(batch, n_queries, max_tokens, c->slot, c->n_tokens);
    c->device_rows = on_device(c->rows, (size_t)c->n_slots * c->request_stride);
    c->device_query = on_device(c->query, n * heads * dim * sizeof(float));
    c->device_weights = on_device(c->weights, n * heads * sizeof(float));
    c->device_image = on_device(NULL, n * c->image_bytes);
    pack_queries(c);
}

static inline void close_case(struct index_case *c) {
    free_batch(&c->b);
    free_device(c->device_rows);
    free_device(c->device_query);
    free_device(c->device_weights);
    free_device(c->device_image);
    free(c->rows);
    free(c->query);
    free(c->weights);
    free(c->slot);
    free(c->n_tokens);
}

/* [batch][n_queries][max_tokens], NaN bytes of 0x77 where nothing was written. */
static inline float *get_device_scores(const struct index_case *c) {
    size_t bytes = (size_t)(c->batch * c->n_queries) * (size_t)c->max_tokens * sizeof(float);
    float *scores = allocate(bytes), *device_scores = on_device(NULL, bytes);
    need(cudaMemset(device_scores, 0x77, bytes));
    need(cudaDeviceSynchronize());
    assert_int_equal(hsp_gpu_dsa_scores(&c->shape, &c->b, c->device_rows, c->request_stride, c->row_stride,
                                        c->device_image, device_scores, test_stream),
                     HSP_OK);
    from_device(scores, device_scores, bytes);
    free_device(device_scores);
    return scores;
}

/* The packed query of the CPU as plain numbers: heads [n_heads][head_dim], then factors [n_heads]. */
static inline float *plain_query(const hsp_dsa_shape *shape, const float *query, const float *weights) {
    size_t bytes, heads = (size_t)shape->n_heads, dim = (size_t)shape->head_dim, groups = (heads + 15) / 16;
    assert_int_equal(hsp_dsa_query_bytes(shape, &bytes), HSP_OK);
    float *packed = allocate(bytes), *plain = allocate(heads * (dim + 1) * sizeof *plain);
    assert_int_equal(hsp_dsa_pack_query(shape, query, weights, packed), HSP_OK);
    for (size_t h = 0; h < heads; h++) {
        for (size_t c = 0; c < dim; c++)
            plain[h * dim + c] = packed[(h / 16 * dim + c) * 16 + h % 16];
        plain[heads * dim + h] = packed[groups * dim * 16 + h];
    }
    free(packed);
    return plain;
}

/* The score of a packed key, and in *error_out what it may be off by. */
static inline double score_in_double(const hsp_dsa_shape *shape, const char *row, const float *plain, float *key,
                                     double *error_out) {
    size_t heads = (size_t)shape->n_heads, dim = (size_t)shape->head_dim;
    float scale = 1.0f;
    double score = 0.0, most = 0.0;
    assert_int_equal(hsp_unpack(shape->dtype, row, dim, key), HSP_OK);
    if (shape->dtype == HSP_E4M3)
        memcpy(&scale, row + dim, sizeof scale);
    for (size_t h = 0; h < heads; h++) {
        double dot = 0.0, size = 0.0, weight = (double)plain[heads * dim + h];
        for (size_t c = 0; c < dim; c++) {
            double product = (double)plain[h * dim + c] * (double)key[c];
            dot += product;
            size += fabs(product);
        }
        score += isnan(dot) ? dot : weight * (dot > 0.0 ? dot : 0.0);
        most += fabs(weight) * size;
    }
    *error_out = (double)(shape->head_dim + shape->n_heads + 16) * 0x1p-23 * most * (double)scale;
    return score * (double)scale;
}

#endif
