/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of selectors share: rows of keys, probabilities from the definition in double, and what a selection
 * of blocks must be like.
 */
#ifndef HSP_SELECT_COMMON_H
#define HSP_SELECT_COMMON_H

#include "ops_common.h"

#include <math.h>
#include <omp.h>

struct keys {
    int32_t n, channels, dtype;
    float *floats; /* [n][channels], after rounding to dtype */
    char *rows;    /* the same in dtype, stride apart */
    size_t stride;
};

static inline void pack_key(struct keys *keys, int32_t i) {
    float *row = keys->floats + (size_t)i * (size_t)keys->channels;
    char *packed = keys->rows + (size_t)i * keys->stride;
    assert_int_equal(hsp_pack(keys->dtype, row, (size_t)keys->channels, packed), HSP_OK);
    assert_int_equal(hsp_unpack(keys->dtype, packed, (size_t)keys->channels, row), HSP_OK);
}

static inline struct keys make_keys(int32_t dtype, int32_t n, int32_t channels, size_t pad, float spread,
                                    uint64_t seed) {
    struct keys keys = {n, channels, dtype, NULL, NULL, (size_t)channels * bytes_of(dtype) + pad};
    keys.floats = allocate((size_t)n * (size_t)channels * sizeof(float));
    keys.rows = allocate((size_t)n * keys.stride);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t c = 0; c < channels; c++)
            keys.floats[(size_t)i * (size_t)channels + (size_t)c] = spread * random_float(&seed);
        pack_key(&keys, i);
    }
    return keys;
}

static inline void free_keys(struct keys *keys) {
    free(keys->floats);
    free(keys->rows);
}

static inline float *make_query(int32_t n, uint64_t seed) {
    float *query = allocate((size_t)n * sizeof *query);
    for (int32_t i = 0; i < n; i++)
        query[i] = random_float(&seed);
    return query;
}

/* query . key i, the key's channels from `first` on. */
static inline double dot(const struct keys *keys, int32_t i, int32_t first, const float *query, int32_t dim) {
    const float *key = keys->floats + (size_t)i * (size_t)keys->channels + (size_t)first;
    double sum = 0.0;
    for (int32_t c = 0; c < dim; c++)
        sum += (double)query[c] * (double)key[c];
    return sum;
}

/* Add softmax(scale * q . keys) of one head to sums[n]. */
static inline void add_probabilities(const struct keys *keys, int32_t first, const float *query, int32_t dim,
                                     double scale, double *sums) {
    double *scores = allocate((size_t)keys->n * sizeof *scores), most = -INFINITY, total = 0.0;
    for (int32_t i = 0; i < keys->n; i++) {
        scores[i] = scale * dot(keys, i, first, query, dim);
        most = fmax(most, scores[i]);
    }
    for (int32_t i = 0; i < keys->n; i++)
        total += exp(scores[i] - most);
    for (int32_t i = 0; i < keys->n; i++)
        sums[i] += exp(scores[i] - most) / total;
    free(scores);
}

/* `selection` is whole blocks, ascending, as many as there can be, those forced among them; no block left out beats one
 * chosen by more than `error`. */
static inline void check_blocks(const int32_t *selection, int32_t block_tokens, int32_t n_tokens, int32_t n_chosen,
                                int32_t n_first, int32_t n_local, const double *importance, double error) {
    int32_t n_blocks = (n_tokens + block_tokens - 1) / block_tokens, n = 0, taken = 0, k = n_chosen * block_tokens;
    double worst_in = INFINITY, best_out = -INFINITY;
    char *in = allocate((size_t)n_blocks);
    memset(in, 0, (size_t)n_blocks);
    for (int32_t last = -1; n < k && selection[n] >= 0; taken++) {
        int32_t block = selection[n] / block_tokens;
        assert_true(block > last && block < n_blocks);
        for (int32_t t = block * block_tokens; t < n_tokens && t < (block + 1) * block_tokens; t++)
            assert_int_equal(selection[n++], t);
        in[block] = 1;
        last = block;
    }
    while (n < k)
        assert_int_equal(selection[n++], -1);
    assert_int_equal(taken, n_chosen < n_blocks ? n_chosen : n_blocks);
    for (int32_t block = 0; block < n_blocks; block++) {
        if (block < n_first || block >= n_blocks - n_local) {
            assert_true(in[block]);
            continue;
        }
        worst_in = in[block] ? fmin(worst_in, importance[block]) : worst_in;
        best_out = in[block] ? best_out : fmax(best_out, importance[block]);
    }
    assert_true(best_out <= worst_in + error);
    free(in);
}

#endif
