/* SPDX-License-Identifier: Apache-2.0
 *
 * NSA against its definition: importance by tokens shared, in double; counts of compressed keys; window and gates.
 */
#include "select_common.h"

static hsp_nsa_shape shape_of(int32_t n_heads, int32_t n_kv_heads, int32_t dim, int32_t dtype) {
    return (hsp_nsa_shape){sizeof(hsp_nsa_shape), n_heads, n_kv_heads, dim, dtype, 32, 16, 64, 16, 1, 2, 0.5f};
}

struct problem {
    hsp_nsa_shape shape;
    int32_t n_tokens, n_compressed;
    struct keys keys;
    float *query;
    void *scratch;
    size_t n_out, scratch_bytes;
    int32_t *selection;
};

static void make_problem(struct problem *p, hsp_nsa_shape shape, int32_t n_tokens, size_t pad, uint64_t seed) {
    p->shape = shape;
    p->n_tokens = n_tokens;
    assert_int_equal(hsp_nsa_compressed(&shape, n_tokens, &p->n_compressed), HSP_OK);
    assert_int_equal(hsp_nsa_scratch(&shape, n_tokens, &p->scratch_bytes), HSP_OK);
    p->keys = make_keys(shape.dtype, p->n_compressed, shape.n_kv_heads * shape.key_dim, pad, 2.0f, seed);
    p->query = make_query(shape.n_heads * shape.key_dim, seed + 1);
    p->scratch = allocate(p->scratch_bytes);
    p->n_out = (size_t)(shape.n_kv_heads * shape.n_blocks * shape.block_tokens);
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
        hsp_nsa_select(&p->shape, p->keys.rows, p->keys.stride, p->n_tokens, p->query, p->selection, p->scratch),
        HSP_OK);
}

/* Tokens that compressed row i has in common with a block, in strides: what equation 9 counts. */
static int32_t strides_shared(const hsp_nsa_shape *s, int32_t i, int32_t block) {
    int32_t shared = 0;
    for (int32_t t = i * s->compress_stride; t < i * s->compress_stride + s->compress_tokens; t++)
        shared += t / s->block_tokens == block;
    return shared / s->compress_stride;
}

static void check_selection(const struct problem *p) {
    const hsp_nsa_shape *s = &p->shape;
    int32_t group = s->n_heads / s->n_kv_heads, n_blocks = (p->n_tokens + s->block_tokens - 1) / s->block_tokens;
    double *sums = allocate((size_t)p->n_compressed * sizeof *sums), *importance;
    importance = allocate((size_t)n_blocks * sizeof *importance);
    for (int32_t kv_head = 0; kv_head < s->n_kv_heads; kv_head++) {
        for (int32_t i = 0; i < p->n_compressed; i++)
            sums[i] = 0.0;
        for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
            add_probabilities(&p->keys, kv_head * s->key_dim, p->query + (size_t)h * (size_t)s->key_dim, s->key_dim,
                              (double)s->scale, sums);
        for (int32_t block = 0; block < n_blocks; block++) {
            importance[block] = 0.0;
            for (int32_t i = 0; i < p->n_compressed; i++)
                importance[block] += strides_shared(s, i, block) * sums[i];
        }
        check_blocks(p->selection + kv_head * s->n_blocks * s->block_tokens, s->block_tokens, p->n_tokens, s->n_blocks,
                     s->n_first, s->n_local, importance, 1e-5);
    }
    free(sums);
    free(importance);
}

/* Heads, KV heads, channels, l, d, l', blocks wanted, first, local, padding of rows. */
static const int32_t cases[][10] = {
    {8, 2, 192, 32, 16, 64, 4, 1, 2, 0}, {3, 1, 17, 32, 16, 64, 3, 1, 2, 4}, {4, 4, 40, 16, 16, 16, 5, 0, 0, 8},
    {6, 3, 16, 64, 16, 32, 6, 2, 1, 0},  {5, 1, 33, 8, 2, 6, 7, 1, 0, 4},    {2, 2, 1, 1, 1, 1, 9, 0, 3, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static const int32_t lengths[] = {1, 15, 31, 32, 33, 47, 48, 63, 64, 65, 128, 191, 192, 193, 640, 777, 1024};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static hsp_nsa_shape case_shape(int i, int32_t dtype) {
    const int32_t *c = cases[i];
    return (hsp_nsa_shape){sizeof(hsp_nsa_shape),    c[0], c[1], c[2], dtype, c[3], c[4], c[5], c[6], c[7], c[8],
                           1.0f / sqrtf((float)c[2])};
}

static void equals_reference(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int length = 0; length < N_LENGTHS; length++)
            for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
                struct problem p;
                make_problem(&p, case_shape(i, dtype), lengths[length], (size_t)cases[i][9], (uint64_t)(i + length));
                FOR_EACH_TARGET(target) {
                    select_tokens(&p);
                    check_selection(&p);
                }
                free_problem(&p);
            }
}

static void same_bits_with_any_threads_and_target(void **state) {
    (void)state;
    hsp_nsa_shape shape = shape_of(16, 2, 192, HSP_BF16);
    struct problem p;
    make_problem(&p, shape, 70001, 0, 5);
    int32_t *expected = allocate(p.n_out * sizeof *expected);
    char *scratch = allocate(p.scratch_bytes); /* scores and ranks, too, to the last bit */
    hsp__ops_force_target("baseline");
    omp_set_num_threads(1);
    select_tokens(&p);
    memcpy(expected, p.selection, p.n_out * sizeof *expected);
    memcpy(scratch, p.scratch, p.scratch_bytes);
    FOR_EACH_TARGET(target)
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        memset(p.scratch, 0x77, p.scratch_bytes);
        select_tokens(&p);
        assert_memory_equal(expected, p.selection, p.n_out * sizeof *expected);
        assert_memory_equal(scratch, p.scratch, p.scratch_bytes);
    }
    free(expected);
    free(scratch);
    free_problem(&p);
}

static void counts_complete_spans(void **state) {
    (void)state;
    hsp_nsa_shape shape = shape_of(4, 2, 16, HSP_F32);
    for (int32_t n = 0; n < 300; n++) {
        int32_t count = -1, expected = 0;
        while (expected * 16 + 32 <= n)
            expected++;
        assert_int_equal(hsp_nsa_compressed(&shape, n, &count), HSP_OK);
        assert_int_equal(count, expected);
    }
}

/* Row 4 j + 3 straddles blocks j and j + 1: alone in having all the attention, it makes both important, j first. */
static void overlap_counts_for_both_blocks(void **state) {
    (void)state;
    hsp_nsa_shape shape = shape_of(1, 1, 1, HSP_F32);
    shape.n_blocks = 4;
    struct problem p;
    make_problem(&p, shape, 64 * 20, 0, 1);
    for (int32_t i = 0; i < p.n_compressed; i++) {
        p.keys.floats[i] = i == 4 * 9 + 3 ? 40.0f : 0.0f;
        pack_key(&p.keys, i);
    }
    p.query[0] = 1.0f;
    FOR_EACH_TARGET(target) {
        select_tokens(&p);
        assert_int_equal(p.selection[64], 9 * 64); /* 1 first, 2 local; one is free */
        p.shape.n_local = 1;
        select_tokens(&p);
        assert_int_equal(p.selection[64], 9 * 64);
        assert_int_equal(p.selection[128], 10 * 64);
        p.shape.n_local = 2;
    }
    free_problem(&p);
}

static void ties_go_to_the_lower_block(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(4, 2, 16, HSP_F16), 64 * 40 + 5, 0, 1);
    memset(p.query, 0, 4 * 16 * sizeof *p.query); /* every inner block has the same importance */
    FOR_EACH_TARGET(target) {
        select_tokens(&p);
        for (int32_t block = 1; block < 14; block++) /* block 0 has one compressed row less, but is forced */
            assert_int_equal(p.selection[block * 64], block * 64);
        assert_int_equal(p.selection[14 * 64], 39 * 64);
        assert_int_equal(p.selection[15 * 64], 40 * 64);
        assert_int_equal(p.selection[15 * 64 + 5], -1);
    }
    free_problem(&p);
}

static void nan_ranks_lowest(void **state) {
    (void)state;
    hsp_nsa_shape shape = shape_of(2, 1, 8, HSP_F32);
    shape.n_local = 1;
    struct problem p;
    make_problem(&p, shape, 64 * 17, 0, 1);
    p.keys.floats[8 * (4 * 7 + 1)] = NAN; /* of block 7 alone */
    pack_key(&p.keys, 4 * 7 + 1);
    FOR_EACH_TARGET(target) {
        select_tokens(&p);
        for (int32_t i = 0; i < 16; i++)
            assert_int_equal(p.selection[i * 64], (i + (i >= 7)) * 64);
    }
    free_problem(&p);
}

static void window_is_the_newest(void **state) {
    (void)state;
    int32_t got[7];
    for (int32_t n = 0; n < 20; n++) {
        assert_int_equal(hsp_nsa_window(7, n, got), HSP_OK);
        for (int32_t i = 0; i < 7; i++)
            assert_int_equal(got[i], n >= 7 ? n - 7 + i : i < n ? i : -1);
    }
    assert_int_equal(hsp_nsa_window(0, 5, got), HSP_EINVAL);
    assert_int_equal(hsp_nsa_window(7, -1, got), HSP_EINVAL);
    assert_int_equal(hsp_nsa_window(7, 5, NULL), HSP_EINVAL);
}

static void gates_are_sigmoids(void **state) {
    (void)state;
    enum { HEADS = 5, DIM = 37 };
    static const float extremes[] = {0.0f, -0.0f, 90.0f, -90.0f, 1e30f, -1e30f, INFINITY, -INFINITY, 3.0f, -3.0f};
    float *branch[3], out[HEADS * DIM], expected[HEADS * DIM], logits[HEADS * 3];
    uint64_t seed = 3;
    for (int b = 0; b < 3; b++)
        branch[b] = make_query(HEADS * DIM, (uint64_t)b);
    for (int i = 0; i < HEADS * 3; i++)
        logits[i] = i < 10 ? extremes[i] : 10.0f * random_float(&seed);
    hsp__ops_force_target("baseline");
    assert_int_equal(hsp_nsa_gate(HEADS, DIM, logits, branch[0], branch[1], branch[2], expected), HSP_OK);
    FOR_EACH_TARGET(target) {
        assert_int_equal(hsp_nsa_gate(HEADS, DIM, logits, branch[0], branch[1], branch[2], out), HSP_OK);
        assert_memory_equal(out, expected, sizeof out);
        for (int i = 0; i < HEADS * DIM; i++) {
            double sum = 0.0;
            for (int b = 0; b < 3; b++)
                sum += (double)branch[b][i] / (1.0 + exp(-(double)logits[i / DIM * 3 + b]));
            assert_true(fabs(sum - (double)out[i]) < 1e-6);
        }
    }
    logits[0] = NAN;
    assert_int_equal(hsp_nsa_gate(HEADS, DIM, logits, branch[0], branch[1], branch[2], branch[1]), HSP_OK);
    for (int i = 0; i < HEADS * DIM; i++)
        assert_true(i < DIM ? isnan(branch[1][i]) : branch[1][i] == expected[i]);
    assert_int_equal(hsp_nsa_gate(0, DIM, logits, branch[0], branch[1], branch[2], out), HSP_EINVAL);
    assert_int_equal(hsp_nsa_gate(HEADS, 1 << 15, logits, branch[0], branch[1], branch[2], out), HSP_ELIMIT);
    assert_int_equal(hsp_nsa_gate(HEADS, DIM, NULL, branch[0], branch[1], branch[2], out), HSP_EINVAL);
    for (int b = 0; b < 3; b++)
        free(branch[b]);
}

static void refuses_shapes(void **state) {
    (void)state;
    enum { N_BAD = 18 };
    hsp_nsa_shape bad[N_BAD];
    int32_t selection[1] = {77}, count = 77;
    size_t bytes = 4321;
    float query[64] = {0};
    for (int i = 0; i < N_BAD; i++)
        bad[i] = shape_of(4, 2, 16, HSP_BF16);
    bad[0].struct_size--;
    bad[1].n_heads = 5;
    bad[2].n_kv_heads = 0;
    bad[3].key_dim = -1;
    bad[4].dtype = HSP_E4M3;
    bad[5].compress_tokens = 24;
    bad[6].block_tokens = 72;
    bad[7].compress_stride = 0;
    bad[8].compress_tokens = 0;
    bad[9].block_tokens = 0;
    bad[10].n_blocks = 0;
    bad[11].n_first = -1;
    bad[12].n_local = 16;
    bad[13].n_first = INT32_MAX;
    bad[14].n_local = INT32_MIN;
    bad[15].key_dim = 1 << 20;
    bad[16].n_blocks = 1 << 26;
    bad[17].n_heads = 1 << 15;
    for (int i = 0; i < N_BAD; i++) {
        int expected = i >= 15 ? HSP_ELIMIT : HSP_EINVAL;
        assert_int_equal(hsp_nsa_compressed(&bad[i], 16, &count), expected);
        assert_int_equal(hsp_nsa_scratch(&bad[i], 16, &bytes), expected);
        assert_int_equal(hsp_nsa_select(&bad[i], query, 64, 40, query, selection, query), expected);
    }
    assert_int_equal(hsp_nsa_scratch(NULL, 16, &bytes), HSP_EINVAL);
    assert_true(bytes == 4321 && selection[0] == 77 && count == 77);
}

static void refuses_counts(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(4, 2, 16, HSP_F32), 200, 0, 9);
    const hsp_nsa_shape *s = &p.shape;
    size_t stride = p.keys.stride, bytes = 5;
    p.selection[0] = 77;
    assert_int_equal(hsp_nsa_select(s, NULL, stride, 200, p.query, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_nsa_select(s, p.keys.rows, stride - 1, 200, p.query, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_nsa_select(s, p.keys.rows, stride, -1, p.query, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_nsa_select(s, p.keys.rows, stride, 200, NULL, p.selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_nsa_select(s, p.keys.rows, stride, 200, p.query, NULL, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_nsa_select(s, p.keys.rows, stride, 200, p.query, p.selection, NULL), HSP_EINVAL);
    assert_int_equal(hsp_nsa_scratch(s, -1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_nsa_compressed(s, 200, NULL), HSP_EINVAL);
    assert_true(bytes == 5 && p.selection[0] == 77);
    assert_int_equal(hsp_nsa_scratch(s, INT32_MAX, &bytes), HSP_OK);
    assert_int_equal(hsp_nsa_select(s, NULL, 0, 31, NULL, p.selection, p.scratch), HSP_OK); /* nothing compressed */
    for (int32_t i = 0; i < 64; i++)
        assert_int_equal(p.selection[i], i < 31 ? i : -1);
    assert_int_equal(hsp_nsa_select(s, NULL, 0, 0, NULL, p.selection, NULL), HSP_OK);
    for (size_t i = 0; i < p.n_out; i++)
        assert_int_equal(p.selection[i], -1);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(same_bits_with_any_threads_and_target),
        cmocka_unit_test(counts_complete_spans),
        cmocka_unit_test(overlap_counts_for_both_blocks),
        cmocka_unit_test(ties_go_to_the_lower_block),
        cmocka_unit_test(nan_ranks_lowest),
        cmocka_unit_test(window_is_the_newest),
        cmocka_unit_test(gates_are_sigmoids),
        cmocka_unit_test(refuses_shapes),
        cmocka_unit_test(refuses_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
