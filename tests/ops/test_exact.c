/* SPDX-License-Identifier: Apache-2.0
 *
 * The exact selection against softmax in double, and Quest per KV group against Quest on each KV head alone.
 */
#include "select_common.h"

struct problem {
    hsp_exact_shape shape;
    int32_t n_tokens;
    struct keys keys;
    float *query;
    void *scratch;
    size_t scratch_bytes;
};

static void make_problem(struct problem *p, hsp_exact_shape shape, int32_t n_tokens, size_t pad, uint64_t seed) {
    p->shape = shape;
    p->n_tokens = n_tokens;
    assert_int_equal(hsp_exact_scratch(&shape, n_tokens, &p->scratch_bytes), HSP_OK);
    p->keys = make_keys(shape.dtype, n_tokens, shape.n_kv_heads * shape.key_dim, pad, 2.0f, seed);
    p->query = make_query(shape.n_heads * shape.key_dim, seed + 1);
    p->scratch = allocate(p->scratch_bytes);
}

static void free_problem(struct problem *p) {
    free_keys(&p->keys);
    free(p->query);
    free(p->scratch);
}

static void select_tokens(struct problem *p, int32_t k, int32_t *selection_out) {
    assert_int_equal(
        hsp_exact_select(&p->shape, p->keys.rows, p->keys.stride, p->n_tokens, p->query, k, selection_out, p->scratch),
        HSP_OK);
}

static void check_selection(const struct problem *p, int32_t k, const int32_t *selection) {
    const hsp_exact_shape *s = &p->shape;
    int32_t heads = s->n_heads / s->n_selections;
    double *sums = allocate((size_t)p->n_tokens * sizeof *sums);
    for (int32_t i = 0; i < s->n_selections; i++) {
        for (int32_t t = 0; t < p->n_tokens; t++)
            sums[t] = 0.0;
        for (int32_t h = i * heads; h < (i + 1) * heads; h++)
            add_probabilities(&p->keys, h * s->n_kv_heads / s->n_heads * s->key_dim,
                              p->query + (size_t)h * (size_t)s->key_dim, s->key_dim, (double)s->scale, sums);
        check_blocks(selection + i * k, 1, p->n_tokens, k, 0, 0, sums, 1e-6);
    }
    free(sums);
}

/* Heads, KV heads, channels, padding of rows. */
static const int32_t cases[][4] = {{8, 2, 128, 0}, {3, 3, 17, 4}, {5, 1, 40, 8}, {6, 2, 1, 0}, {1, 1, 16, 0}};
enum { N_CASES = sizeof cases / sizeof *cases };

static const int32_t lengths[] = {1, 15, 16, 17, 64, 65, 300, 4097};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void equals_reference(void **state) {
    (void)state;
    int32_t selection[3 * 100];
    for (int i = 0; i < 2 * N_CASES; i++)
        for (int length = 0; length < N_LENGTHS; length++)
            for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
                const int32_t *c = cases[i / 2];
                hsp_exact_shape shape = {
                    sizeof shape, c[0], c[1], c[2], dtype, i % 2 ? c[1] : 1, 1.0f / sqrtf((float)c[2])};
                struct problem p;
                make_problem(&p, shape, lengths[length], (size_t)c[3], (uint64_t)(i + length));
                FOR_EACH_TARGET(target) for (int32_t k = 1; k <= 100; k += 33) {
                    select_tokens(&p, k, selection);
                    check_selection(&p, k, selection);
                }
                free_problem(&p);
            }
}

static void same_bits_with_any_threads_and_target(void **state) {
    (void)state;
    for (int32_t n_selections = 1; n_selections <= 4; n_selections += 3) {
        hsp_exact_shape shape = {sizeof shape, 8, 4, 96, HSP_BF16, n_selections, 0.1f};
        int32_t expected[4 * 500], got[4 * 500];
        struct problem p;
        make_problem(&p, shape, 70003, 0, 5);
        char *scratch = allocate(p.scratch_bytes); /* probabilities, too, to the last bit */
        hsp__ops_force_target("baseline");
        omp_set_num_threads(1);
        select_tokens(&p, 500, expected);
        memcpy(scratch, p.scratch, p.scratch_bytes - 16 * sizeof(float)); /* the last row's padding is free */
        FOR_EACH_TARGET(target)
        for (int threads = 1; threads <= 3; threads++) {
            omp_set_num_threads(threads);
            select_tokens(&p, 500, got);
            assert_memory_equal(expected, got, (size_t)n_selections * 500 * sizeof *got);
            assert_memory_equal(scratch, p.scratch, p.scratch_bytes - 16 * sizeof(float));
        }
        free(scratch);
        free_problem(&p);
    }
}

/* One channel, one head, query 1: tokens are ordered as their keys. */
static void select_from(const float *keys, int32_t n, int32_t k, int32_t *selection_out) {
    hsp_exact_shape shape = {sizeof shape, 1, 1, 1, HSP_F32, 1, 1.0f};
    float query = 1.0f, scratch[64];
    assert_int_equal(hsp_exact_select(&shape, keys, sizeof *keys, n, &query, k, selection_out, scratch), HSP_OK);
}

static void ties_go_to_the_lower_token(void **state) {
    (void)state;
    static const float keys[] = {1, 3, 2, 2, 3, 2, 2, 0};
    static const int32_t expected[] = {1, 2, 3, 4};
    int32_t got[4];
    FOR_EACH_TARGET(target) {
        select_from(keys, 8, 4, got);
        assert_memory_equal(got, expected, sizeof got);
    }
}

static void nan_ranks_lowest(void **state) {
    (void)state;
    static const float keys[] = {NAN, -3, NAN, 2, -1e30f, 2};
    static const int32_t expected[] = {1, 3, 4, 5}, with_one[] = {0, 1, 3, 4, 5};
    int32_t got[5];
    FOR_EACH_TARGET(target) {
        select_from(keys, 6, 4, got);
        assert_memory_equal(got, expected, sizeof expected);
        select_from(keys, 6, 5, got);
        assert_memory_equal(got, with_one, sizeof with_one);
    }
}

/* Heads are added as probabilities: one head sure of a token outweighs two that hardly prefer another. */
static void heads_add_probabilities(void **state) {
    (void)state;
    static const float keys[] = {8, 0, 0.1f, 0}; /* token 0 is (8, 0), token 1 (0.1, 0) */
    static const float query[] = {1, 0, -0.01f, 0, -0.01f, 0};
    hsp_exact_shape shape = {sizeof shape, 3, 1, 2, HSP_F32, 1, 1.0f};
    float scratch[128];
    int32_t got = -1;
    FOR_EACH_TARGET(target) {
        assert_int_equal(hsp_exact_select(&shape, keys, 8, 2, query, 1, &got, scratch), HSP_OK);
        assert_int_equal(got, 0);
    }
}

static void refuses_hostile_arguments(void **state) {
    (void)state;
    enum { N_BAD = 11 };
    hsp_exact_shape bad[N_BAD], good = {sizeof good, 4, 2, 8, HSP_F32, 2, 1.0f};
    int32_t selection[8] = {77};
    size_t bytes = 4321;
    float numbers[512] = {0};
    for (int i = 0; i < N_BAD; i++)
        bad[i] = good;
    bad[0].struct_size = 0;
    bad[1].n_heads = 5;
    bad[2].n_kv_heads = 0;
    bad[3].key_dim = 0;
    bad[4].dtype = HSP_E4M3;
    bad[5].n_selections = 0;
    bad[6].n_selections = 4;
    bad[7].n_selections = -1;
    bad[8].n_heads = -4;
    bad[9].n_heads = 1 << 15;
    bad[10].key_dim = 1 << 15;
    for (int i = 0; i < N_BAD; i++) {
        int expected = i >= 9 ? HSP_ELIMIT : HSP_EINVAL;
        assert_int_equal(hsp_exact_scratch(&bad[i], 4, &bytes), expected);
        assert_int_equal(hsp_exact_select(&bad[i], numbers, 64, 4, numbers, 4, selection, numbers), expected);
    }
    assert_int_equal(hsp_exact_scratch(&good, -1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_exact_select(&good, numbers, 63, 4, numbers, 4, selection, numbers), HSP_EINVAL);
    assert_int_equal(hsp_exact_select(&good, numbers, 64, -4, numbers, 4, selection, numbers), HSP_EINVAL);
    assert_int_equal(hsp_exact_select(&good, numbers, 64, 4, numbers, 0, selection, numbers), HSP_EINVAL);
    assert_int_equal(hsp_exact_select(&good, NULL, 64, 4, numbers, 4, selection, numbers), HSP_EINVAL);
    assert_int_equal(hsp_exact_select(&good, numbers, 64, 4, NULL, 4, selection, numbers), HSP_EINVAL);
    assert_int_equal(hsp_exact_select(&good, numbers, 64, 4, numbers, 4, NULL, numbers), HSP_EINVAL);
    assert_int_equal(hsp_exact_select(&good, numbers, 64, 4, numbers, 4, selection, NULL), HSP_EINVAL);
    assert_true(bytes == 4321 && selection[0] == 77);
    assert_int_equal(hsp_exact_select(&good, NULL, 0, 0, NULL, 4, selection, NULL), HSP_OK);
    for (int i = 0; i < 8; i++)
        assert_int_equal(selection[i], -1);
}

/* Group by group the selection is what a model of that KV head alone would get. */
static void quest_groups_equal_single_heads(void **state) {
    (void)state;
    enum { GROUPS = 3, DIM = 33, K = 5 * 16 };
    for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
        hsp_quest_shape all = {sizeof all, 2 * GROUPS, GROUPS, DIM, 16, dtype},
                        one = {sizeof one, 2, 1, DIM, 16, dtype};
        struct keys keys = make_keys(dtype, 1000, GROUPS * DIM, 4, 1.0f, (uint64_t)dtype);
        float *query = make_query(2 * GROUPS * DIM, 8);
        size_t bytes, scratch_bytes;
        assert_int_equal(hsp_quest_bytes(&all, keys.n, &bytes), HSP_OK);
        assert_int_equal(hsp_quest_scratch(&all, keys.n, &scratch_bytes), HSP_OK);
        void *stats = allocate(bytes), *stats_of_one = allocate(bytes), *scratch = allocate(scratch_bytes);
        int32_t got[GROUPS * K], expected[K];
        FOR_EACH_TARGET(target) {
            assert_int_equal(hsp_quest_update(&all, stats, keys.rows, keys.stride, 0, keys.n), HSP_OK);
            assert_int_equal(hsp_quest_select_groups(&all, stats, keys.n, query, K, got, scratch), HSP_OK);
            for (int32_t g = 0; g < GROUPS; g++) {
                const char *rows = keys.rows + (size_t)g * DIM * bytes_of(dtype);
                assert_int_equal(hsp_quest_update(&one, stats_of_one, rows, keys.stride, 0, keys.n), HSP_OK);
                assert_int_equal(
                    hsp_quest_select(&one, stats_of_one, keys.n, query + g * 2 * DIM, K, expected, scratch), HSP_OK);
                assert_memory_equal(expected, got + g * K, sizeof expected);
            }
        }
        assert_int_equal(hsp_quest_select_groups(&all, stats, keys.n, query, K + 1, got, scratch), HSP_EINVAL);
        assert_int_equal(hsp_quest_select_groups(&all, NULL, 0, NULL, K, got, NULL), HSP_OK);
        for (int32_t i = 0; i < GROUPS * K; i++)
            assert_int_equal(got[i], -1);
        free(stats);
        free(stats_of_one);
        free(scratch);
        free(query);
        free_keys(&keys);
    }
}

/* A product beyond the greatest float must not make the softmax of its head NaN, which would choose the lowest. */
static void infinite_scores_win(void **state) {
    (void)state;
    const hsp_exact_shape shape = {sizeof shape, 1, 1, 1, HSP_F32, 1, 1.0f};
    const float keys[8] = {0, 1, 2, 3, 4, 3e38f, 6, 7}, low[8] = {-3e38f, -3e38f, -3e38f, 0, -3e38f, -3e38f, 0, 0};
    const float query = 2.0f;
    float scratch[64];
    size_t bytes;
    int32_t got[2];
    assert_int_equal(hsp_exact_scratch(&shape, 8, &bytes), HSP_OK);
    assert_true(bytes <= sizeof scratch);
    FOR_EACH_TARGET(target) {
        assert_int_equal(hsp_exact_select(&shape, keys, sizeof(float), 8, &query, 1, got, scratch), HSP_OK);
        assert_int_equal(got[0], 5);
        assert_int_equal(hsp_exact_select(&shape, low, sizeof(float), 8, &query, 2, got, scratch), HSP_OK);
        assert_int_equal(got[0], 3);
        assert_int_equal(got[1], 6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(infinite_scores_win),
        cmocka_unit_test(same_bits_with_any_threads_and_target),
        cmocka_unit_test(ties_go_to_the_lower_token),
        cmocka_unit_test(nan_ranks_lowest),
        cmocka_unit_test(heads_add_probabilities),
        cmocka_unit_test(refuses_hostile_arguments),
        cmocka_unit_test(quest_groups_equal_single_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
