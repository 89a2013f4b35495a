/* SPDX-License-Identifier: Apache-2.0 */
/* A query and some keys for the lightning indexer, packed at odd addresses. */
#ifndef HSP_DSA_PROBLEM_H
#define HSP_DSA_PROBLEM_H

#include "ops_common.h"

struct problem {
    hsp_dsa_shape shape;
    int32_t n_tokens;
    size_t key_bytes, row_stride;
    float *keys, *query, *weights; /* [n_tokens][head_dim], [n_heads][head_dim], [n_heads]; after rope, as projected */
    char *memory, *rows;           /* packed keys, at an odd address */
    char *query_memory, *packed;   /* packed query, at an odd address */
    void *scratch;
};

static inline hsp_dsa_shape shape_of(int32_t n_heads, int32_t head_dim, int32_t dtype) {
    return (hsp_dsa_shape){sizeof(hsp_dsa_shape), n_heads, head_dim, dtype, 0};
}

static inline void pack(struct problem *p) {
    size_t key_stride = (size_t)p->shape.head_dim * sizeof(float);
    assert_int_equal(hsp_dsa_pack_keys(&p->shape, p->keys, key_stride, p->n_tokens, p->rows, p->row_stride), HSP_OK);
    assert_int_equal(hsp_dsa_pack_query(&p->shape, p->query, p->weights, p->packed), HSP_OK);
}

static inline float *random_floats(size_t n, uint64_t *seed) {
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(seed);
    return x;
}

static inline void make_problem(struct problem *p, hsp_dsa_shape shape, int32_t n_tokens, size_t pad, uint64_t seed) {
    size_t query_bytes, scratch_bytes;
    p->shape = shape;
    p->n_tokens = n_tokens;
    assert_int_equal(hsp_dsa_key_bytes(&shape, &p->key_bytes), HSP_OK);
    assert_int_equal(hsp_dsa_query_bytes(&shape, &query_bytes), HSP_OK);
    assert_int_equal(hsp_dsa_scratch(&shape, n_tokens, &scratch_bytes), HSP_OK);
    p->row_stride = p->key_bytes + pad;
    p->keys = random_floats((size_t)n_tokens * (size_t)shape.head_dim, &seed);
    p->query = random_floats((size_t)(shape.n_heads * shape.head_dim), &seed);
    p->weights = random_floats((size_t)shape.n_heads, &seed);
    p->memory = allocate((size_t)n_tokens * p->row_stride + 1);
    p->rows = p->memory + 1;
    p->query_memory = allocate(query_bytes + 1);
    p->packed = p->query_memory + 1;
    p->scratch = allocate(scratch_bytes);
    pack(p);
}

static inline void free_problem(struct problem *p) {
    free(p->keys);
    free(p->query);
    free(p->weights);
    free(p->memory);
    free(p->query_memory);
    free(p->scratch);
}

static inline void get_scores(const struct problem *p, int32_t first, int32_t n, float *scores_out) {
    assert_int_equal(hsp_dsa_scores(&p->shape, p->rows, p->row_stride, first, n, p->packed, scores_out), HSP_OK);
}

static inline void get_selection(const struct problem *p, int32_t k, int32_t *selection_out) {
    int status =
        hsp_dsa_select(&p->shape, p->rows, p->row_stride, p->n_tokens, p->packed, k, selection_out, p->scratch);
    assert_int_equal(status, HSP_OK);
}

#endif
