/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA attention by row ids against a plain double-precision reference, and its promise of equal bits.
 */
#include "mla_problem.h"

#include <omp.h>

static const struct mla_case cases[] = {
    /* format, heads, latent, rope, queries, rows, slots, rows in a block, padding */
    {HSP_MLA_BF16, 16, 512, 64, 1, 2048, 2500, 64, 0}, {HSP_MLA_FP8, 16, 512, 64, 1, 2048, 2500, 64, 0},
    {HSP_MLA_V4, 16, 448, 64, 1, 2048, 2500, 64, 0},   {HSP_MLA_BF16, 3, 512, 64, 3, 63, 80, 64, 0},
    {HSP_MLA_FP8, 17, 512, 64, 2, 65, 50, 1, 0},       {HSP_MLA_V4, 37, 448, 64, 3, 130, 128, 64, 0},
    {HSP_MLA_V4, 5, 448, 64, 2, 64, 30, 64, 0},        {HSP_MLA_V4, 1, 448, 64, 1, 1, 1, 1, 0},
    {HSP_MLA_FP8, 2, 512, 64, 4, 1, 2, 2, 0},          {HSP_MLA_BF16, 4, 512, 64, 2, 0, 2, 1, 0},
    {HSP_MLA_FP8, 4, 512, 64, 2, 0, 2, 1, 0},          {HSP_MLA_V4, 4, 448, 64, 2, 0, 2, 1, 0},
    {HSP_MLA_BF16, 6, 33, 7, 2, 150, 90, 7, 3},        {HSP_MLA_FP8, 6, 128, 3, 2, 150, 90, 7, 3},
    {HSP_MLA_V4, 6, 64, 10, 2, 150, 90, 7, 3},         {HSP_MLA_V4, 2, 640, 1, 1, 100, 300, 5, 1},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* A score is a sum of at most 641 products, each below 4 and rounded at 2^-24 of itself, over 16 chains, times
 * key_dim^-1/2. Were all errors of one sign it could be off by 4e-5; they are not, and the sums stay near
 * key_dim^1/2, so a tenth of that is left. A weight carries the score's error as a relative one, and values are at
 * most 1. Unpacking adds nothing: e4m3 times a power of two is exact. A bf16 rounding anywhere on the way would show
 * as 1e-3, a scale that is off by one place as 1. */
static void check(const struct problem *p, const float *sink, const float *got) {
    double *expected = allocate((size_t)p->value_dim * sizeof *expected);
    for (int32_t i = 0; i < p->n_queries * p->shape.n_heads; i++) {
        double lse = reference_head(p, i / p->shape.n_heads, i % p->shape.n_heads, sink, expected);
        double got_lse = (double)got[n_values(p) + (size_t)i];
        assert_true(lse == got_lse || fabs(got_lse - lse) < 1e-5);
        for (int32_t c = 0; c < p->value_dim; c++) {
            double x = (double)got[(size_t)i * (size_t)p->value_dim + (size_t)c];
            if (!(fabs(x - expected[c]) < 5e-6))
                fail_msg("%s format %d head %d channel %d: %.9g, not %.9g", hsp_ops_target(), p->shape.format, i, c, x,
                         expected[c]);
        }
    }
    free(expected);
}

/* Every target gives the first one's bits, so the reference is asked once. */
static void equals_reference_on_every_target(void **state) {
    (void)state;
    for (int i = 0; i < 2 * N_CASES; i++) {
        struct problem p;
        make_problem(&p, &cases[i / 2], (uint64_t)i / 2 + 3);
        const float *sink = i % 2 ? p.sink : NULL;
        hsp__ops_force_target("baseline");
        float *expected = attend(&p, sink);
        check(&p, sink, expected);
        FOR_EACH_TARGET(target) {
            memset(p.scratch, 0xff, p.scratch_bytes);
            float *got = attend(&p, sink);
            assert_memory_equal(got, expected, result_bytes(&p));
            free(got);
        }
        free(expected);
        free_problem(&p);
    }
}

/* Packing too: the rows are packed anew with every number of threads. */
static void same_bits_with_any_threads(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct problem one, some;
        omp_set_num_threads(1);
        make_problem(&one, &cases[i], 5);
        float *expected = attend(&one, one.sink);
        for (int threads = 2; threads <= 3; threads++) {
            omp_set_num_threads(threads);
            make_problem(&some, &cases[i], 5);
            float *got = attend(&some, some.sink);
            assert_memory_equal(some.memory, one.memory, one.memory_bytes);
            assert_memory_equal(got, expected, result_bytes(&one));
            free(got);
            free_problem(&some);
        }
        free(expected);
        free_problem(&one);
    }
}

static void bf16_gives_the_bits_of_gqa(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, &(struct mla_case){HSP_MLA_BF16, 21, 512, 64, 1, 200, 150, 64, 0}, 7);
    const hsp_gqa_shape gqa = {sizeof gqa, 21, 1, 576, 512, HSP_BF16, p.shape.scale};
    size_t bytes;
    assert_int_equal(hsp_gqa_scratch(&gqa, 200, &bytes), HSP_OK);
    void *scratch = allocate(bytes);
    float *got = attend(&p, p.sink), *expected = allocate(result_bytes(&p));
    assert_int_equal(hsp_gqa_tiles(&gqa, p.planes, p.planes, p.query, p.row_ids, 200, 0, scratch), HSP_OK);
    assert_int_equal(hsp_gqa_combine(&gqa, scratch, 4, p.sink, expected, expected + n_values(&p)), HSP_OK);
    assert_memory_equal(got, expected, result_bytes(&p));
    free(scratch);
    free(got);
    free(expected);
    free_problem(&p);
}

static void queries_do_not_mix(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, &cases[5], 8);
    float *together = attend(&p, p.sink);
    size_t heads = (size_t)p.shape.n_heads, values = heads * (size_t)p.value_dim;
    float *out = allocate(values * sizeof *out), *lse = allocate(heads * sizeof *lse);
    for (size_t q = 0; q < (size_t)p.n_queries; q++) {
        assert_int_equal(hsp_mla_attend(&p.shape, p.planes, p.query + q * heads * (size_t)p.key_dim,
                                        p.row_ids + q * (size_t)p.n_rows, 1, p.n_rows, p.sink, out, lse, p.scratch),
                         HSP_OK);
        assert_memory_equal(out, together + q * values, values * sizeof *out);
        assert_memory_equal(lse, together + n_values(&p) + q * heads, heads * sizeof *lse);
    }
    assert_int_equal(hsp_mla_attend(&p.shape, p.planes, p.query, p.row_ids, 1, p.n_rows, p.sink, out, NULL, p.scratch),
                     HSP_OK);
    assert_memory_equal(out, together, values * sizeof *out);
    assert_int_equal(hsp_mla_attend(&p.shape, p.planes, NULL, NULL, 0, p.n_rows, NULL, NULL, NULL, NULL), HSP_OK);
    free(together);
    free(out);
    free(lse);
    free_problem(&p);
}

static void all_masked_gives_zeros(void **state) {
    (void)state;
    const float sinks[3] = {0.0f, -INFINITY, INFINITY};
    for (int format = HSP_MLA_BF16; format <= HSP_MLA_V4; format++)
        for (int32_t rows = 0; rows <= 130; rows += 65) {
            struct problem p;
            make_problem(&p, &(struct mla_case){format, 3, 128, 64, 2, rows, 10, 1, 0}, 9);
            for (int32_t i = 0; i < 2 * rows; i++)
                p.row_ids[i] = i % 2 ? -1 : INT32_MIN;
            for (int with_sink = 0; with_sink < 2; with_sink++) {
                float *got = attend(&p, with_sink ? sinks : NULL);
                for (size_t i = 0; i < n_values(&p); i++)
                    assert_true(got[i] == 0.0f);
                for (size_t i = n_values(&p); i < n_values(&p) + 6; i++)
                    assert_true(isinf(got[i]) && got[i] < 0.0f);
                free(got);
            }
            free_problem(&p);
        }
}

/* Rows that are not named are not read: they are NaN. */
static void a_row_named_twice_counts_twice(void **state) {
    (void)state;
    for (int format = HSP_MLA_BF16; format <= HSP_MLA_V4; format++) {
        struct problem once, twice;
        make_problem(&once, &(struct mla_case){format, 2, 128, 64, 1, 1, 3, 1, 0}, 10);
        make_problem(&twice, &(struct mla_case){format, 2, 128, 64, 1, 70, 3, 1, 0}, 10);
        memset(row_at(&twice.planes[0], 0), 0xff, twice.planes[0].row_bytes);
        memset(row_at(&twice.planes[0], 2), 0xff, twice.planes[0].row_bytes);
        memcpy(twice.query, once.query, (size_t)(2 * once.key_dim) * sizeof(float));
        for (int i = 0; i < 70; i++)
            twice.row_ids[i] = i == 3 || i == 68 ? 1 : -1; /* in two tiles */
        once.row_ids[0] = 1;
        float *a = attend(&once, NULL), *b = attend(&twice, NULL);
        assert_memory_equal(a, b, n_values(&once) * sizeof *a);
        for (size_t h = n_values(&once); h < n_values(&once) + 2; h++)
            assert_true(fabs((double)b[h] - (double)a[h] - log(2.0)) < 1e-6);
        free(a);
        free(b);
        free_problem(&once);
        free_problem(&twice);
    }
}

static void sink_takes_its_share(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, &(struct mla_case){HSP_MLA_V4, 4, 448, 64, 1, 100, 128, 64, 0}, 11);
    float *without = attend(&p, NULL);
    size_t dim = (size_t)p.value_dim;
    const float sinks[4] = {-INFINITY, without[4 * dim + 1], INFINITY, NAN}; /* the second: as much as all rows */
    float *with = attend(&p, sinks);
    assert_memory_equal(with + 4 * dim, without + 4 * dim, 4 * sizeof *with);
    assert_memory_equal(with, without, dim * sizeof *with);
    for (size_t c = 0; c < dim; c++) {
        assert_true(with[dim + c] == without[dim + c] / 2.0f);
        assert_true(with[2 * dim + c] == 0.0f);
        assert_true(isnan(with[3 * dim + c]));
    }
    free(without);
    free(with);
    free_problem(&p);
}

static void refuses_shapes(void **state) {
    (void)state;
    enum { N_BAD = 13 };
    hsp_mla_shape bad[N_BAD];
    for (int i = 0; i < N_BAD; i++)
        bad[i] = i == 11 ? v4_shape : fp8_shape;
    bad[0].struct_size += 1;
    bad[1].n_heads = 0;
    bad[2].latent_dim = 0;
    bad[3].rope_dim = -1;
    bad[4].format = 3;
    bad[5].format = -1;
    bad[6].reserved = 1;
    bad[7].latent_dim = 500;
    bad[8].n_heads = 1 << 15;
    bad[9].latent_dim = 1 << 20;
    bad[10].rope_dim = INT32_MAX;
    bad[11].latent_dim = 440;
    bad[12].latent_dim = 64;
    char row[4096] = {0};
    float numbers[1024] = {0};
    const int32_t id = 0;
    const hsp_plane_view planes[2] = {{row, 4096, 4096, 4096, 1, 0}, {row, 4096, 4096, 4096, 1, 0}};
    size_t bytes = 12345;
    for (int i = 0; i < N_BAD; i++) {
        int expected = i >= 8 && i <= 10 ? HSP_ELIMIT : HSP_EINVAL;
        assert_int_equal(hsp_mla_scratch(&bad[i], 64, &bytes), expected);
        assert_int_equal(hsp_mla_pack_rows(&bad[i], numbers, 0, 1, planes), expected);
        assert_int_equal(hsp_mla_attend(&bad[i], planes, numbers, &id, 1, 1, NULL, numbers, NULL, numbers), expected);
    }
    assert_int_equal(hsp_mla_scratch(NULL, 64, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_mla_scratch(&fp8_shape, -1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_mla_scratch(&fp8_shape, 1, NULL), HSP_EINVAL);
    assert_int_equal(bytes, 12345);
}

static void refuses_planes(void **state) {
    (void)state;
    const hsp_mla_shape *shapes[4] = {&bf16_shape, &fp8_shape, &v4_shape, &v4_shape};
    const size_t needed[4] = {1152, 656, 576, 8}; /* the last: of plane 1 */
    char row[2048] = {0};
    float numbers[576] = {0};
    for (int i = 0; i < 4; i++)
        for (int flaw = 0; flaw < 4; flaw++) {
            hsp_plane_view planes[2] = {{row, 1152, 1152, 1152, 1, 0}, {row + 1152, 8, 8, 8, 1, 0}};
            hsp_plane_view *plane = &planes[i == 3];
            plane->row_bytes = needed[i] - (flaw == 1);
            plane->base = flaw == 2 ? NULL : plane->base;
            plane->rows_per_block = flaw != 3;
            assert_int_equal(hsp_mla_pack_rows(shapes[i], numbers, 0, 1, planes), flaw ? HSP_EINVAL : HSP_OK);
            assert_int_equal(hsp_mla_attend(shapes[i], planes, numbers, NULL, 1, 0, NULL, numbers, NULL, NULL),
                             flaw ? HSP_EINVAL : HSP_OK);
        }
    assert_int_equal(hsp_mla_pack_rows(&fp8_shape, numbers, 0, 1, NULL), HSP_EINVAL);
}

static void refuses_counts_and_nulls(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, &(struct mla_case){HSP_MLA_FP8, 2, 128, 64, 1, 4, 4, 1, 0}, 13);
    float out[256], before[256];
    memset(out, 0x11, sizeof out);
    memcpy(before, out, sizeof out);
#define ATTEND(query, ids, n_queries, n_rows, out, scratch)                                                            \
    hsp_mla_attend(&p.shape, p.planes, query, ids, n_queries, n_rows, NULL, out, NULL, scratch)
    assert_int_equal(ATTEND(p.query, p.row_ids, -1, 4, out, p.scratch), HSP_EINVAL);
    assert_int_equal(ATTEND(p.query, p.row_ids, 1, -4, out, p.scratch), HSP_EINVAL);
    assert_int_equal(ATTEND(NULL, p.row_ids, 1, 4, out, p.scratch), HSP_EINVAL);
    assert_int_equal(ATTEND(p.query, NULL, 1, 4, out, p.scratch), HSP_EINVAL);
    assert_int_equal(ATTEND(p.query, p.row_ids, 1, 4, NULL, p.scratch), HSP_EINVAL);
    assert_int_equal(ATTEND(p.query, p.row_ids, 1, 4, out, NULL), HSP_EINVAL);
    assert_memory_equal(out, before, sizeof out);
    assert_int_equal(hsp_mla_pack_rows(&p.shape, p.keys, -1, 1, p.planes), HSP_EINVAL);
    assert_int_equal(hsp_mla_pack_rows(&p.shape, p.keys, 0, -1, p.planes), HSP_EINVAL);
    assert_int_equal(hsp_mla_pack_rows(&p.shape, NULL, 0, 1, p.planes), HSP_EINVAL);
    assert_int_equal(hsp_mla_pack_rows(&p.shape, p.keys, 2, INT32_MAX - 1, p.planes), HSP_ELIMIT);
    assert_int_equal(hsp_mla_pack_rows(&p.shape, NULL, INT32_MAX, 0, p.planes), HSP_OK);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference_on_every_target),
        cmocka_unit_test(same_bits_with_any_threads),
        cmocka_unit_test(bf16_gives_the_bits_of_gqa),
        cmocka_unit_test(queries_do_not_mix),
        cmocka_unit_test(all_masked_gives_zeros),
        cmocka_unit_test(a_row_named_twice_counts_twice),
        cmocka_unit_test(sink_takes_its_share),
        cmocka_unit_test(refuses_shapes),
        cmocka_unit_test(refuses_planes),
        cmocka_unit_test(refuses_counts_and_nulls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
