/* SPDX-License-Identifier: Apache-2.0
 *
 * The lightning indexer: the choice of tokens against a full sort, and what is refused.
 */
#include "dsa_problem.h"

#include <math.h>

struct scored {
    float score;
    int32_t token;
};

static int better_first(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score))
        return isnan(x->score) ? 1 : -1;
    if (x->score != y->score && !isnan(x->score))
        return x->score > y->score ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* A full sort of the scores, NaN last. */
static void check_selection(const struct problem *p, int32_t k) {
    size_t n = (size_t)p->n_tokens, n_chosen = n < (size_t)k ? n : (size_t)k;
    struct scored *order = allocate(n * sizeof *order);
    float *scores = allocate(n * sizeof *scores);
    int32_t *got = allocate((size_t)k * sizeof *got), *expected = allocate((size_t)k * sizeof *expected);
    get_scores(p, 0, p->n_tokens, scores);
    for (size_t t = 0; t < n; t++) {
        assert_true(isnan(scores[t]) || scores[t] != 0.0f || !signbit(scores[t]));
        order[t] = (struct scored){scores[t], (int32_t)t};
    }
    qsort(order, n, sizeof *order, better_first);
    for (size_t i = 0; i < (size_t)k; i++)
        expected[i] = i < n_chosen ? order[i].token : -1;
    qsort(expected, n_chosen, sizeof *expected, by_number);
    memset(got, 0x77, (size_t)k * sizeof *got);
    get_selection(p, k, got);
    assert_memory_equal(got, expected, (size_t)k * sizeof *got);
    free(order);
    free(scores);
    free(got);
    free(expected);
}

static void selection_equals_a_sort(void **state) {
    (void)state;
    for (int32_t n = 0; n <= 40; n++)
        for (int32_t k = 1; k <= n + 2; k += 1 + n / 8)
            FOR_EACH_TARGET(target) {
                struct problem p;
                make_problem(&p, shape_of(4, 16, HSP_BF16 + n % 2), n, (size_t)n % 5, (uint64_t)(n * 64 + k));
                check_selection(&p, k);
                free_problem(&p);
            }
}

/* Few keys, often repeated, some of zeros and some with a number that is none; a weight that makes sums underflow. */
static void ties_zeros_and_nan(void **state) {
    (void)state;
    const float weights[4] = {1.0f, -1.0f, -1e-38f, NAN};
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
        for (int w = 0; w < 4; w++)
            for (int32_t k = 1; k < 500; k += 23) {
                struct problem p;
                make_problem(&p, shape_of(1, 16, dtype), 500, 0, (uint64_t)k);
                p.weights[0] = weights[w];
                for (int32_t t = 0; t < 500; t++) {
                    uint64_t seed = (uint64_t)((t * 7919 + k) % 6);
                    for (int32_t c = 0; c < 16; c++)
                        p.keys[t * 16 + c] = seed ? random_float(&seed) * (t % 2 ? 1.0f : 1e-8f) : 0.0f;
                    if (t % 50 == 9)
                        p.keys[t * 16 + t % 16] = t % 100 == 9 ? NAN : INFINITY;
                }
                pack(&p);
                check_selection(&p, k);
                float score;
                get_scores(&p, 109, 1, &score);
                assert_true(isnan(score));
                get_scores(&p, 59, 1, &score);
                assert_true(isnan(score));
                free_problem(&p);
            }
}

static void a_million_tokens(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(1, 16, HSP_E4M3), (1 << 20) + 3, 0, 11);
    check_selection(&p, 2048);
    p.weights[0] = 0.0f; /* all alike */
    pack(&p);
    check_selection(&p, 512);
    free_problem(&p);
}

/* ----------------------------------------------------------------------------------------------------- refusals -- */

static void refuses_shapes(void **state) {
    (void)state;
    hsp_dsa_shape bad[11];
    for (int i = 0; i < 11; i++)
        bad[i] = shape_of(4, 16, HSP_E4M3);
    bad[0].struct_size--;
    bad[1].n_heads = 0;
    bad[2].n_heads = INT32_MIN;
    bad[3].head_dim = 8;
    bad[4].head_dim = 48;
    bad[5].head_dim = INT32_MIN;
    bad[6].dtype = HSP_F32;
    bad[7].dtype = 4;
    bad[8].reserved = 1;
    bad[9].n_heads = 16385;
    bad[10].head_dim = 1 << 15;
    for (int i = 0; i < 11; i++) {
        int expected = i >= 9 ? HSP_ELIMIT : HSP_EINVAL;
        char memory[512], before[512];
        float x[64] = {0};
        size_t bytes = 4321;
        int32_t selection = 77;
        memset(memory, 3, sizeof memory);
        memcpy(before, memory, sizeof memory);
        assert_int_equal(hsp_dsa_key_bytes(&bad[i], &bytes), expected);
        assert_int_equal(hsp_dsa_query_bytes(&bad[i], &bytes), expected);
        assert_int_equal(hsp_dsa_scratch(&bad[i], 1, &bytes), expected);
        assert_int_equal(hsp_dsa_pack_keys(&bad[i], x, 64, 1, memory, 64), expected);
        assert_int_equal(hsp_dsa_pack_query(&bad[i], x, x, memory), expected);
        assert_int_equal(hsp_dsa_scores(&bad[i], x, 64, 0, 1, x, (float *)(void *)memory), expected);
        assert_int_equal(hsp_dsa_select(&bad[i], x, 64, 2, x, 1, &selection, memory), expected);
        assert_memory_equal(memory, before, sizeof memory);
        assert_true(bytes == 4321 && selection == 77);
    }
    assert_int_equal(hsp_dsa_key_bytes(NULL, &(size_t){0}), HSP_EINVAL);
}

static void refuses_arguments(void **state) {
    (void)state;
    struct problem p;
    int32_t selection[4] = {77, 77, 77, 77}, same[4] = {77, 77, 77, 77};
    float scores[4] = {7.0f};
    size_t bytes;
    make_problem(&p, shape_of(4, 16, HSP_E4M3), 4, 0, 3);
    const hsp_dsa_shape *s = &p.shape;
    assert_int_equal(hsp_dsa_key_bytes(s, NULL), HSP_EINVAL);
    assert_int_equal(hsp_dsa_query_bytes(s, NULL), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scratch(s, 4, NULL), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scratch(s, -1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_keys(s, p.keys, 64, -1, p.rows, 20), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_keys(s, p.keys, 63, 4, p.rows, 20), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_keys(s, p.keys, 64, 4, p.rows, 19), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_keys(s, NULL, 64, 4, p.rows, 20), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_keys(s, p.keys, 64, 4, NULL, 20), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_keys(s, NULL, 0, 0, NULL, 0), HSP_OK);
    assert_int_equal(hsp_dsa_pack_query(s, NULL, p.weights, p.packed), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_query(s, p.query, NULL, p.packed), HSP_EINVAL);
    assert_int_equal(hsp_dsa_pack_query(s, p.query, p.weights, NULL), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scores(s, p.rows, 20, -1, 1, p.packed, scores), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scores(s, p.rows, 20, 0, -1, p.packed, scores), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scores(s, p.rows, 19, 0, 1, p.packed, scores), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scores(s, NULL, 20, 0, 1, p.packed, scores), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scores(s, p.rows, 20, 0, 1, NULL, scores), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scores(s, p.rows, 20, 0, 1, p.packed, NULL), HSP_EINVAL);
    assert_int_equal(hsp_dsa_scores(s, p.rows, 20, INT32_MAX, 1, p.packed, scores), HSP_ELIMIT);
    assert_int_equal(hsp_dsa_scores(s, NULL, 0, INT32_MAX, 0, NULL, NULL), HSP_OK);
    assert_int_equal(hsp_dsa_select(s, p.rows, 20, 4, p.packed, 0, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_dsa_select(s, p.rows, 20, 4, p.packed, -1, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_dsa_select(s, p.rows, 20, -4, p.packed, 2, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_dsa_select(s, p.rows, 19, 4, p.packed, 2, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_dsa_select(s, NULL, 20, 4, p.packed, 2, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_dsa_select(s, p.rows, 20, 4, NULL, 2, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_dsa_select(s, p.rows, 20, 4, p.packed, 2, selection, NULL), HSP_EINVAL);
    assert_int_equal(hsp_dsa_select(s, p.rows, 20, 4, p.packed, 2, NULL, p.scratch), HSP_EINVAL);
    assert_memory_equal(selection, same, sizeof same);
    assert_true(scores[0] == 7.0f);
    assert_int_equal(hsp_dsa_select(s, NULL, 0, 0, NULL, 2, selection, NULL), HSP_OK);
    assert_true(selection[0] == -1 && selection[1] == -1 && selection[2] == 77);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selection_equals_a_sort), cmocka_unit_test(ties_zeros_and_nan),
        cmocka_unit_test(a_million_tokens),        cmocka_unit_test(refuses_shapes),
        cmocka_unit_test(refuses_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
