/* SPDX-License-Identifier: Apache-2.0
 *
 * The lightning indexer against its definition in double: transform, packing and scores.
 */
#include "dsa_problem.h"

#include <math.h>
#include <omp.h>

/* The numbers and the scale of a packed row. */
static double unpack_row(const hsp_dsa_shape *shape, const char *row, float *values_out) {
    float scale = 1.0f;
    assert_int_equal(hsp_unpack(shape->dtype, row, (size_t)shape->head_dim, values_out), HSP_OK);
    if (shape->dtype == HSP_E4M3)
        memcpy(&scale, row + shape->head_dim, sizeof scale);
    return (double)scale;
}

/* ------------------------------------------------------------------------------------------------------ packing -- */

static void transform_is_its_matrix(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int32_t dim = 16; dim <= 2048; dim *= 2) {
        float *x = random_floats((size_t)dim, &seed), *first = allocate((size_t)dim * 4),
              *y = allocate((size_t)dim * 4);
        for (int32_t c = 0; c < dim; c++)
            x[c] *= c % 7 ? 1.0f : 100.0f;
        FOR_EACH_TARGET(target) {
            memcpy(y, x, (size_t)dim * sizeof *y);
            float greatest = hsp__ops()->dsa->hadamard(y, (size_t)dim, (float)(1.0 / sqrt((double)dim))), most = 0.0f;
            for (int32_t i = 0; i < dim; i++) {
                double sum = 0.0, magnitude = 0.0;
                for (int32_t c = 0; c < dim; c++) {
                    sum += __builtin_parity((unsigned)(i & c)) ? -(double)x[c] : (double)x[c];
                    magnitude += fabs((double)x[c]);
                }
                /* Sixteen sums, then one a doubling, then the factor, itself rounded. */
                assert_true(fabs(sum / sqrt(dim) - (double)y[i]) <= 28 * 0x1p-24 * magnitude / sqrt(dim));
                most = fmaxf(most, fabsf(y[i]));
            }
            assert_true(greatest == most);
            if (target == 0)
                memcpy(first, y, (size_t)dim * sizeof *y);
            assert_memory_equal(first, y, (size_t)dim * sizeof *y);
        }
        free(x);
        free(first);
        free(y);
    }
}

/* The code nearest to x, to the even one where two are; by trying all. */
static uint8_t nearest_code(double x) {
    uint8_t best = 0;
    double best_error = INFINITY;
    for (int code = 0; code < 0x7f; code++) {
        double value = code < 8 ? ldexp(code, -9) : ldexp(8 + (code & 7), (code >> 3) - 10);
        double error = fabs(fabs(x) - value);
        if (error < best_error || (error == best_error && code % 2 == 0)) {
            best = (uint8_t)code;
            best_error = error;
        }
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

/* The least power of two that brings max(amax, 1e-4) to 448 or below. */
static double scale_of(const float *row, int32_t dim) {
    double amax = 1e-4, scale = 0x1p-60;
    for (int32_t c = 0; c < dim; c++)
        amax = fmax(amax, fabs((double)row[c]));
    while (amax / scale > 448.0)
        scale *= 2.0;
    return scale;
}

static void check_row(const hsp_dsa_shape *shape, const float *key, const char *row) {
    float values[512];
    char expected[2 * 512];
    size_t dim = (size_t)shape->head_dim;
    memcpy(values, key, dim * sizeof *values);
    hsp__ops()->dsa->hadamard(values, dim, (float)(1.0 / sqrt((double)dim)));
    if (shape->dtype == HSP_BF16) {
        assert_int_equal(hsp_pack(HSP_BF16, values, dim, expected), HSP_OK);
        assert_memory_equal(expected, row, 2 * dim);
        return;
    }
    float scale;
    memcpy(&scale, row + dim, sizeof scale);
    assert_true((double)scale == scale_of(values, shape->head_dim));
    for (size_t c = 0; c < dim; c++)
        assert_int_equal((uint8_t)row[c], nearest_code((double)values[c] / (double)scale));
}

static void keys_are_packed_by_the_rule(void **state) {
    (void)state;
    const float magnitudes[6] = {1.0f, 1e-7f, 3e-5f, 1e4f, 1e-30f, 1e30f};
    for (int32_t dim = 16; dim <= 512; dim *= 2)
        for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
            FOR_EACH_TARGET(target) {
                struct problem p;
                make_problem(&p, shape_of(1, dim, dtype), 60, 3, (uint64_t)dim);
                for (int32_t i = 0; i < 60 * dim; i++)
                    p.keys[i] *= magnitudes[i / dim % 6] * (i % 11 ? 1.0f : 20.0f);
                memset(p.rows, 0x5a, 60 * p.row_stride);
                pack(&p);
                for (int32_t t = 0; t < 60; t++) {
                    const char *row = p.rows + (size_t)t * p.row_stride;
                    check_row(&p.shape, p.keys + t * dim, row);
                    assert_memory_equal(row + p.key_bytes, "\x5a\x5a\x5a", 3);
                }
                free_problem(&p);
            }
}

/* Sixteen channels of which one is 4 x: all are x after the transform. */
static float scale_where_all_are(float x) {
    float key[16] = {4.0f * x}, scale;
    char row[20];
    hsp_dsa_shape shape = shape_of(1, 16, HSP_E4M3);
    assert_int_equal(hsp_dsa_pack_keys(&shape, key, sizeof key, 1, row, sizeof row), HSP_OK);
    memcpy(&scale, row + 16, sizeof scale);
    for (int c = 0; c < 16 && x < 1e30f; c++)
        assert_int_equal(row[c], (char)nearest_code((double)x / (double)scale));
    return scale;
}

static void scale_at_its_bounds(void **state) {
    (void)state;
    FOR_EACH_TARGET(target) {
        for (int n = -21; n < 100; n++) {
            float most = ldexpf(448.0f, n);
            assert_true(scale_where_all_are(most) == ldexpf(1.0f, n));
            assert_true(scale_where_all_are(-most) == ldexpf(1.0f, n));
            assert_true(scale_where_all_are(nextafterf(most, INFINITY)) == ldexpf(1.0f, n + 1));
        }
        assert_true(scale_where_all_are(0.0f) == 0x1p-22f);
        assert_true(scale_where_all_are(1e-4f) == 0x1p-22f);
        assert_true(scale_where_all_are(3e-5f) == 0x1p-22f);
        assert_true(scale_where_all_are(1e-20f) == 0x1p-22f);
        assert_true(isnan(scale_where_all_are(INFINITY)));
    }
}

/* ------------------------------------------------------------------------------------------------------- scores -- */

/* The score of a token from packed numbers, and how far sums in float32 may be from it. The query is packed as keys
 * are, head by head: nothing here knows what a packed query looks like. */
static double reference_score(const struct problem *p, int32_t token, double *bound_out) {
    float key[512], query[512];
    char packed[2 * 512];
    int32_t dim = p->shape.head_dim, heads = p->shape.n_heads;
    double key_scale = unpack_row(&p->shape, p->rows + (size_t)token * p->row_stride, key), score = 0.0, sum = 0.0;
    for (int32_t h = 0; h < heads; h++) {
        size_t bytes = (size_t)dim * sizeof(float);
        assert_int_equal(hsp_dsa_pack_keys(&p->shape, p->query + h * dim, bytes, 1, packed, sizeof packed), HSP_OK);
        double weight = unpack_row(&p->shape, packed, query) * (double)p->weights[h] / sqrt(heads) / sqrt(dim);
        double dot = 0.0, magnitude = 0.0;
        for (int32_t c = 0; c < dim; c++) {
            dot += (double)query[c] * (double)key[c];
            magnitude += fabs((double)query[c] * (double)key[c]);
        }
        score += fmax(dot, 0.0) * weight;
        sum += magnitude * fabs(weight);
    }
    /* Every number goes through at most dim + heads / 16 + 4 sums of lanes and 7 roundings of factors. */
    *bound_out = (dim + heads / 16 + 12) * 0x1p-24 * sum * key_scale;
    return score * key_scale;
}

static void check_scores(const struct problem *p, float *scores, float *first_scores) {
    size_t bytes = (size_t)p->n_tokens * sizeof *scores;
    FOR_EACH_TARGET(target) {
        get_scores(p, 0, p->n_tokens, scores);
        if (target == 0)
            memcpy(first_scores, scores, bytes);
        assert_memory_equal(scores, first_scores, bytes);
    }
    for (int32_t t = 0; t < p->n_tokens; t++) {
        double bound, expected = reference_score(p, t, &bound);
        assert_true(fabs(expected - (double)scores[t]) <= bound);
    }
    for (int32_t t = 0; t < p->n_tokens; t += 3) { /* from any token on: the same */
        float part[40];
        get_scores(p, t, p->n_tokens - t, part);
        assert_memory_equal(part, scores + t, (size_t)(p->n_tokens - t) * sizeof *part);
    }
}

static void scores_equal_reference(void **state) {
    (void)state;
    const int32_t shapes[][2] = {{64, 128}, {32, 128}, {1, 16}, {5, 32}, {16, 64}, {17, 16}, {70, 512}, {48, 128}};
    float scores[41], first_scores[41];
    for (int i = 0; i < 8; i++)
        for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
            for (int32_t n = 0; n <= 40; n += i == 2 || i == 5 || n >= 37 ? 1 : 12 + i) {
                struct problem p;
                make_problem(&p, shape_of(shapes[i][0], shapes[i][1], dtype), n, (size_t)n % 8, (uint64_t)(n + i));
                check_scores(&p, scores, first_scores);
                free_problem(&p);
            }
}

/* Packed by one table, scored by another, with any threads: all the same. */
static void same_bits_with_any_threads_and_target(void **state) {
    (void)state;
    enum { N = 3001, K = 512 };
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++) {
        struct problem p, first;
        float *scores = allocate(N * sizeof *scores), *expected = allocate(N * sizeof *expected);
        int32_t chosen[K], expected_chosen[K];
        hsp__ops_force_target("baseline");
        omp_set_num_threads(1);
        make_problem(&first, shape_of(32, 128, dtype), N, 0, 77);
        get_scores(&first, 0, N, expected);
        get_selection(&first, K, expected_chosen);
        FOR_EACH_TARGET(target)
        for (int threads = 1; threads <= 3; threads++) {
            omp_set_num_threads(threads);
            make_problem(&p, shape_of(32, 128, dtype), N, 0, 77);
            assert_memory_equal(p.rows, first.rows, N * p.row_stride);
            get_scores(&p, 0, N, scores);
            get_selection(&p, K, chosen);
            assert_memory_equal(scores, expected, N * sizeof *scores);
            assert_memory_equal(chosen, expected_chosen, sizeof chosen);
            free_problem(&p);
        }
        free_problem(&first);
        free(scores);
        free(expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transform_is_its_matrix),
        cmocka_unit_test(keys_are_packed_by_the_rule),
        cmocka_unit_test(scale_at_its_bounds),
        cmocka_unit_test(scores_equal_reference),
        cmocka_unit_test(same_bits_with_any_threads_and_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
