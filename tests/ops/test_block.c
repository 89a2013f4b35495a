/* SPDX-License-Identifier: Apache-2.0
 *
 * Block-sparse selection against its definition: the greatest index score of a block, in double.
 */
#include "select_common.h"

struct problem {
    hsp_block_shape shape;
    int32_t n_tokens;
    struct keys keys;
    float *query;
    void *scratch;
    size_t n_out, scratch_bytes;
    int32_t *selection;
};

static void make_problem(struct problem *p, hsp_block_shape shape, int32_t n_tokens, size_t pad, uint64_t seed) {
    p->shape = shape;
    p->n_tokens = n_tokens;
    assert_int_equal(hsp_block_scratch(&shape, n_tokens, &p->scratch_bytes), HSP_OK);
    p->keys = make_keys(shape.dtype, n_tokens, shape.n_key_heads * shape.key_dim, pad, 1.0f, seed);
    p->query = make_query(shape.n_heads * shape.key_dim, seed + 1);
    p->scratch = allocate(p->scratch_bytes);
    p->n_out = (size_t)(shape.n_groups * shape.n_blocks * shape.block_tokens);
    p->selection = allocate(p->n_out * sizeof(int32_t));
}

static void free_problem(struct problem *p) {
    free_keys(&p->keys);
    free(p->query);
    free(p->scratch);
    free(p->selection);
}

static void select_tokens(struct problem *p) {
    memset(p->selection, 0x55, p->n_out * sizeof(int32_t));
    assert_int_equal(
        hsp_block_select(&p->shape, p->keys.rows, p->keys.stride, p->n_tokens, p->query, p->selection, p->scratch),
        HSP_OK);
}

static void check_selection(const struct problem *p) {
    const hsp_block_shape *s = &p->shape;
    int32_t n_blocks = (p->n_tokens + s->block_tokens - 1) / s->block_tokens, per_group = s->n_heads / s->n_groups;
    double *best = allocate((size_t)n_blocks * sizeof *best);
    for (int32_t group = 0; group < s->n_groups; group++) {
        for (int32_t block = 0; block < n_blocks; block++)
            best[block] = -INFINITY;
        for (int32_t h = group * per_group; h < (group + 1) * per_group; h++)
            for (int32_t t = 0; t < p->n_tokens; t++) {
                int32_t key_head = h * s->n_key_heads / s->n_heads, block = t / s->block_tokens;
                double score = (double)s->scale * dot(&p->keys, t, key_head * s->key_dim,
                                                      p->query + (size_t)h * (size_t)s->key_dim, s->key_dim);
                best[block] = fmax(best[block], score);
            }
        check_blocks(p->selection + group * s->n_blocks * s->block_tokens, s->block_tokens, p->n_tokens, s->n_blocks,
                     s->n_first, s->n_local, best, 1e-5);
    }
    free(best);
}

/* Heads, groups, key heads, channels, block, blocks wanted, first, local, padding of rows. */
static const int32_t cases[][9] = {
    {4, 4, 1, 128, 128, 3, 0, 1, 0}, {6, 3, 2, 17, 16, 4, 1, 1, 4}, {8, 2, 4, 33, 5, 6, 0, 2, 0},
    {40, 2, 1, 16, 65, 2, 0, 1, 8},  {1, 1, 1, 1, 1, 20, 2, 3, 0},  {6, 2, 3, 24, 64, 5, 0, 1, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static const int32_t lengths[] = {1, 2, 63, 64, 65, 127, 128, 129, 130, 256, 640, 777};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static hsp_block_shape case_shape(int i, int32_t dtype) {
    const int32_t *c = cases[i];
    return (hsp_block_shape){sizeof(hsp_block_shape),  c[0], c[1], c[2], c[3], dtype, c[4], c[5], c[6], c[7],
                             1.0f / sqrtf((float)c[3])};
}

static hsp_block_shape m3_shape(int32_t dtype) {
    return (hsp_block_shape){sizeof(hsp_block_shape), 4, 4, 1, 128, dtype, 128, 16, 0, 1, 0.0883883476f};
}

static void equals_reference(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int length = 0; length < N_LENGTHS; length++)
            for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
                struct problem p;
                make_problem(&p, case_shape(i, dtype), lengths[length], (size_t)cases[i][8], (uint64_t)(i + length));
                FOR_EACH_TARGET(target) {
                    select_tokens(&p);
                    check_selection(&p);
                }
                free_problem(&p);
            }
}

static void same_bits_with_any_threads_and_target(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, m3_shape(HSP_BF16), 128 * 60 - 3, 0, 5);
    int32_t *expected = allocate(p.n_out * sizeof *expected);
    char *scratch = allocate(p.scratch_bytes);
    hsp__ops_force_target("baseline");
    omp_set_num_threads(1);
    select_tokens(&p);
    check_selection(&p);
    memcpy(expected, p.selection, p.n_out * sizeof *expected);
    memcpy(scratch, p.scratch, p.scratch_bytes);
    FOR_EACH_TARGET(target)
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        select_tokens(&p);
        assert_memory_equal(expected, p.selection, p.n_out * sizeof *expected);
        assert_memory_equal(scratch, p.scratch, p.scratch_bytes);
    }
    free(expected);
    free(scratch);
    free_problem(&p);
}

/* One channel, one head, query 1: the score of a token is its key. Blocks of two. */
static void select_from(const float *keys, int32_t n, float scale, int32_t n_blocks, int32_t *selection_out) {
    hsp_block_shape shape = {sizeof shape, 1, 1, 1, 1, HSP_F32, 2, n_blocks, 0, 1, scale};
    float query = 1.0f, scratch[64];
    assert_int_equal(hsp_block_select(&shape, keys, sizeof *keys, n, &query, selection_out, scratch), HSP_OK);
}

static void ties_go_to_the_lower_block(void **state) {
    (void)state;
    static const float keys[] = {1, 0, 0, 2, 2, 0, 1, 2, 0, 0, 0};
    static const float zeros[] = {-1e-40f, -1e-40f, 0, 0, -0.0f, -0.0f, 0};
    int32_t got[6];
    FOR_EACH_TARGET(target) {
        static const int32_t expected[] = {2, 3, 4, 5, 10, -1}, of_zeros[] = {0, 1, 2, 3, 6, -1};
        select_from(keys, 11, 1.0f, 3, got);
        assert_memory_equal(got, expected, sizeof got);
        select_from(zeros, 7, 1e-10f, 3, got); /* a score that underflows to -0 is the same as 0 */
        assert_memory_equal(got, of_zeros, sizeof got);
    }
}

static void newest_block_is_always_in(void **state) {
    (void)state;
    static const float keys[] = {5, 5, 6, 6, 7, 7, -9};
    static const int32_t expected[] = {4, 5, 6, -1};
    int32_t got[4];
    FOR_EACH_TARGET(target) {
        select_from(keys, 7, 1.0f, 2, got);
        assert_memory_equal(got, expected, sizeof got);
        select_from(keys, 7, 1.0f, 1, got);
        assert_true(got[0] == 6 && got[1] == -1);
    }
}

/* NaN in a block counts for nothing beside a number, and a block of nothing else is last. */
static void nan_ranks_lowest(void **state) {
    (void)state;
    static const float keys[] = {NAN, NAN, NAN, 3, -1e30f, NAN, 2, 2, 0};
    static const int32_t expected[] = {2, 3, 4, 5, 6, 7, 8, -1};
    int32_t got[8];
    FOR_EACH_TARGET(target) {
        select_from(keys, 9, 1.0f, 4, got);
        assert_memory_equal(got, expected, sizeof got);
    }
}

static void refuses_shapes(void **state) {
    (void)state;
    enum { N_BAD = 20 };
    hsp_block_shape bad[N_BAD];
    int32_t selection[1] = {77};
    size_t bytes = 4321;
    float query[64] = {0};
    for (int i = 0; i < N_BAD; i++)
        bad[i] = (hsp_block_shape){sizeof(hsp_block_shape), 4, 2, 1, 8, HSP_F32, 16, 4, 0, 1, 1.0f};
    bad[0].struct_size++;
    bad[17].scale = 0.0f;
    bad[18].scale = -1.0f;
    bad[19].scale = NAN;
    bad[1].n_heads = 5;
    bad[2].n_groups = 0;
    bad[3].n_key_heads = 3;
    bad[4].n_key_heads = 0;
    bad[5].key_dim = 0;
    bad[6].dtype = HSP_E4M3;
    bad[7].dtype = -1;
    bad[8].block_tokens = 0;
    bad[9].n_blocks = -4;
    bad[10].n_first = -1;
    bad[11].n_local = 0;
    bad[12].n_local = 5;
    bad[13].n_first = INT32_MAX;
    bad[14].key_dim = 1 << 20;
    bad[15].n_blocks = 1 << 28;
    bad[16].n_heads = 1 << 15;
    for (int i = 0; i < N_BAD; i++) {
        int expected = i >= 14 && i < 17 ? HSP_ELIMIT : HSP_EINVAL;
        assert_int_equal(hsp_block_scratch(&bad[i], 16, &bytes), expected);
        assert_int_equal(hsp_block_select(&bad[i], query, 64, 4, query, selection, query), expected);
    }
    assert_int_equal(hsp_block_scratch(NULL, 16, &bytes), HSP_EINVAL);
    assert_true(bytes == 4321 && selection[0] == 77);
}

static void refuses_counts(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, m3_shape(HSP_F32), 300, 0, 9);
    const hsp_block_shape *s = &p.shape;
    size_t stride = p.keys.stride, bytes = 5;
    p.selection[0] = 77;
    assert_int_equal(hsp_block_select(s, NULL, stride, 300, p.query, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_block_select(s, p.keys.rows, stride - 1, 300, p.query, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_block_select(s, p.keys.rows, stride, -1, p.query, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_block_select(s, p.keys.rows, stride, 300, NULL, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_block_select(s, p.keys.rows, stride, 300, p.query, NULL, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_block_select(s, p.keys.rows, stride, 300, p.query, p.selection, NULL), HSP_EINVAL);
    assert_int_equal(hsp_block_scratch(s, -1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_block_scratch(s, 1, NULL), HSP_EINVAL);
    assert_true(bytes == 5 && p.selection[0] == 77);
    assert_int_equal(hsp_block_select(s, NULL, 0, 0, NULL, p.selection, NULL), HSP_OK);
    for (size_t i = 0; i < p.n_out; i++)
        assert_int_equal(p.selection[i], -1);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(same_bits_with_any_threads_and_target),
        cmocka_unit_test(ties_go_to_the_lower_block),
        cmocka_unit_test(newest_block_is_always_in),
        cmocka_unit_test(nan_ranks_lowest),
        cmocka_unit_test(refuses_shapes),
        cmocka_unit_test(refuses_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
