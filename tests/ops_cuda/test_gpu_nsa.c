/* SPDX-License-Identifier: Apache-2.0 */
/* NSA on the GPU: blocks against importances in double, window and gate against the CPU. */
#include "gpu_keys.h"

static int32_t compressed_of(const hsp_nsa_shape *shape, int32_t n_tokens) {
    int32_t n;
    assert_int_equal(hsp_nsa_compressed(shape, n_tokens, &n), HSP_OK);
    return n;
}

static int call_nsa(const struct selector *s, const hsp_gpu_batch *b) {
    return hsp_gpu_nsa_select(s->shape, b, s->device_rows, s->request_stride, s->row_stride, s->device_query,
                              s->device_out, s->scratch, test_stream);
}

/* Every piece of a block adds the rows it is part of. */
static void importances(const hsp_nsa_shape *shape, const double *sums, int32_t n, int32_t n_blocks, double *out) {
    int32_t per_block = shape->block_tokens / shape->compress_stride;
    int32_t per_key = shape->compress_tokens / shape->compress_stride;
    for (int32_t block = 0; block < n_blocks; block++) {
        out[block] = 0.0;
        for (int32_t piece = block * per_block; piece < (block + 1) * per_block; piece++)
            for (int32_t i = piece - per_key + 1; i <= piece; i++)
                out[block] += i >= 0 && i < n ? sums[i] : 0.0;
    }
}

static void right_in_double(const struct selector *s, const char *rows, int32_t n_tokens, const float *query,
                            const int32_t *got) {
    const hsp_nsa_shape *shape = s->shape;
    int32_t n = compressed_of(shape, n_tokens), group = shape->n_heads / shape->n_kv_heads, dim = shape->key_dim;
    int32_t n_blocks = (n_tokens + shape->block_tokens - 1) / shape->block_tokens;
    struct keys keys = keys_of(s, rows, n);
    double *sums = allocate((size_t)n * sizeof *sums), *importance = allocate((size_t)n_blocks * sizeof *importance);
    for (int32_t kv_head = 0; kv_head < shape->n_kv_heads; kv_head++) {
        memset(sums, 0, (size_t)n * sizeof *sums);
        for (int32_t h = kv_head * group; n && h < (kv_head + 1) * group; h++)
            add_probabilities(&keys, kv_head * dim, query + (size_t)(h * dim), dim, (double)shape->scale, sums);
        importances(shape, sums, n, n_blocks, importance);
        check_blocks(got + kv_head * shape->n_blocks * shape->block_tokens, shape->block_tokens, n_tokens,
                     shape->n_blocks, shape->n_first, shape->n_local, importance, 1e-5);
    }
    free(sums);
    free(importance);
}

static void equal_to_cpu(const struct selector *s, const char *rows, int32_t n_tokens, const float *query,
                         const int32_t *got) {
    size_t bytes, out = (size_t)s->n_out * sizeof(int32_t);
    assert_int_equal(hsp_nsa_scratch(s->shape, n_tokens, &bytes), HSP_OK);
    void *scratch = allocate(bytes);
    int32_t *want = allocate(out);
    assert_int_equal(hsp_nsa_select(s->shape, rows, s->row_stride, n_tokens, query, want, scratch), HSP_OK);
    assert_memory_equal(got, want, out);
    free(scratch);
    free(want);
}

static struct selector make_selector(const hsp_nsa_shape *shape, struct keys keys[KEY_SLOTS], int32_t max_tokens,
                                     size_t pad) {
    struct selector s = {.shape = shape,
                         .max_tokens = max_tokens,
                         .k = shape->n_blocks * shape->block_tokens,
                         .n_out = shape->n_kv_heads * shape->n_blocks * shape->block_tokens,
                         .query_floats = (size_t)(shape->n_heads * shape->key_dim),
                         .call = call_nsa,
                         .check = right_in_double};
    int32_t n = compressed_of(shape, max_tokens);
    make_requests(&s, keys, shape->dtype, n ? n : 1, shape->n_kv_heads * shape->key_dim, pad, 0, 3);
    assert_int_equal(hsp_gpu_nsa_scratch(shape, MOST_ENTRIES, MOST_QUERIES, max_tokens, &s.scratch_bytes), HSP_OK);
    return s;
}

static void check_shape(hsp_nsa_shape shape, int32_t max_tokens, size_t pad) {
    struct keys keys[KEY_SLOTS];
    struct selector s = make_selector(&shape, keys, max_tokens, pad);
    open_selector(&s, NULL, 4);
    lengths(&s, 8,
            (const int32_t[]){0, 1, shape.compress_tokens - 1, shape.compress_tokens, s.k < max_tokens ? s.k : 2,
                              s.k + 1 < max_tokens ? s.k + 1 : 3, max_tokens - 1, max_tokens});
    random_batches(&s, 6, 5);
    alone_as_together(&s, 6);
    replays(&s, 2, 4, 7);
    close_selector(&s);
    free_requests(keys);
}

/* heads, KV heads, key_dim, dtype, compress tokens and stride, block_tokens, n_blocks, n_first, n_local, scale */
static const hsp_nsa_shape shapes[] = {
    {sizeof(hsp_nsa_shape), 64, 4, 192, HSP_BF16, 32, 16, 64, 16, 1, 2, 0.5f}, /* the paper's */
    {sizeof(hsp_nsa_shape), 16, 2, 128, HSP_BF16, 32, 16, 64, 6, 1, 2, 1.0f},
    {sizeof(hsp_nsa_shape), 20, 1, 64, HSP_BF16, 24, 8, 40, 5, 0, 0, 1.0f}, /* more heads than go together */
    {sizeof(hsp_nsa_shape), 3, 3, 256, HSP_BF16, 16, 16, 16, 9, 2, 1, 0.3f},
    {sizeof(hsp_nsa_shape), 4, 2, 128, HSP_F32, 32, 16, 64, 4, 1, 1, 0.5f},
    {sizeof(hsp_nsa_shape), 4, 2, 40, HSP_F16, 32, 16, 64, 4, 1, 1, 0.5f},
    {sizeof(hsp_nsa_shape), 4, 4, 24, HSP_BF16, 8, 8, 24, 4, 0, 1, 0.5f},
};

static void blocks_are_right(void **state) {
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape(shapes[i], 4000, 0);
        check_shape(shapes[i], 900, 32);
        check_shape(shapes[i], 500, 4);
        check_shape(shapes[i], 7, 0); /* nothing is ever compressed */
    }
}

/* Clusters of all sizes, more of them than a GPU holds at once, and more keys than a cluster keeps scores of. */
static void long_requests(void **state) {
    (void)state;
    need_device();
    static const hsp_nsa_shape every_token = {
        sizeof every_token, 8, 1, 64, HSP_BF16, 2, 1, 16, 8, 1, 2, 1.0f,
    };
    static const struct {
        const hsp_nsa_shape *shape;
        int32_t max_tokens;
    } cases[] = {{&shapes[0], 20000}, {&shapes[1], 8000}, {&shapes[3], 16400}, {&every_token, 60000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hsp_nsa_shape shape = *cases[i].shape;
        struct keys keys[KEY_SLOTS];
        struct selector s = make_selector(&shape, keys, cases[i].max_tokens, 0);
        open_selector(&s, NULL, 4);
        lengths(&s, 5, (const int32_t[]){s.max_tokens, 300, s.max_tokens / 3, 15, s.max_tokens - 1});
        if (cases[i].max_tokens < 30000) {
            alone_as_together(&s, 6);
            random_batches(&s, 3, 8);
        }
        close_selector(&s);
        free_requests(keys);
    }
}

/* A head that is NaN spoils all blocks of its KV head alike, a key those it is part of. Large scores make the greatest
 * key nearly all of a head's weight, so that the CPU's choice does not hang on rounding. */
static void nan_ranks_low(void **state) {
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        hsp_nsa_shape shape = shapes[i];
        struct keys keys[KEY_SLOTS];
        float nan = NAN;
        shape.n_blocks = shape.n_first + shape.n_local + 1;
        struct selector s = make_selector(&shape, keys, 2000, 0);
        s.check = equal_to_cpu;
        assert_int_equal(hsp_pack(shape.dtype, &nan, 1, s.rows + 20 * s.row_stride), HSP_OK);
        open_selector(&s, NULL, 4);
        for (int32_t h = 0; h < shape.n_heads; h++)
            s.query[s.query_floats + (size_t)(h * shape.key_dim)] = NAN; /* entry 1: every head */
        for (size_t c = 0; c < s.query_floats; c++)
            s.query[c] *= 1.0f + (float)(c % 3);
        to_device(s.device_query, s.query, s.query_floats * MOST_ENTRIES * sizeof(float));
        lengths(&s, 2, (const int32_t[]){2000, 2000});
        close_selector(&s);
        free_requests(keys);
    }
}

static void window_and_gate(void **state) {
    (void)state;
    need_device();
    enum { BATCH = 3, QUERIES = 2, HEADS = 5, DIM = 37, WINDOW = 70, N = BATCH * QUERIES };
    const int32_t slot[BATCH] = {0, -1, 1}, n_tokens[N] = {69, 70, 5, 6, 0, 1000};
    uint64_t seed = 9;
    float x[4][N * HEADS * DIM], out[N * HEADS * DIM], want[HEADS * DIM], *device[4];
    int32_t window[N * WINDOW], expected[WINDOW];
    hsp_gpu_batch b = make_batch(BATCH, QUERIES, 1000, slot, n_tokens);
    int32_t *device_window = on_device(NULL, sizeof window);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < N * HEADS * DIM; j++)
            x[i][j] = random_float(&seed) * (i == 0 ? 30.0f : 1.0f);
        device[i] = on_device(x[i], sizeof x[i]);
    }
    assert_int_equal(hsp_gpu_nsa_window(&b, WINDOW, device_window, test_stream), HSP_OK);
    assert_int_equal(
        hsp_gpu_nsa_gate(&b, HEADS, DIM, device[0], device[1], device[2], device[3], device[1], test_stream), HSP_OK);
    from_device(window, device_window, sizeof window);
    from_device(out, device[1], sizeof out);
    for (int i = 0; i < N; i++) {
        const float *mine = out + i * HEADS * DIM;
        assert_int_equal(hsp_nsa_window(WINDOW, slot[i / 2] < 0 ? 0 : n_tokens[i], expected), HSP_OK);
        assert_memory_equal(window + i * WINDOW, expected, sizeof expected);
        if (slot[i / 2] < 0) {
            assert_memory_equal(mine, x[1] + i * HEADS * DIM, sizeof want);
            continue;
        }
        assert_int_equal(hsp_nsa_gate(HEADS, DIM, x[0] + i * HEADS * 3, x[1] + i * HEADS * DIM, x[2] + i * HEADS * DIM,
                                      x[3] + i * HEADS * DIM, want),
                         HSP_OK);
        for (int j = 0; j < HEADS * DIM; j++)
            assert_true(fabsf(mine[j] - want[j]) <= 1e-6f);
    }
    for (int i = 0; i < 4; i++)
        free_device(device[i]);
    free_device(device_window);
    free_batch(&b);
}

static void refusals(void **state) {
    (void)state;
    float x[64] = {0};
    int32_t n[2] = {0};
    size_t bytes = 4321;
    hsp_gpu_batch b = {sizeof b, 1, 1, 100, n, n};
    hsp_nsa_shape good = shapes[1], bad = shapes[1];
    bad.block_tokens = 40;
    assert_int_equal(hsp_gpu_nsa_scratch(&bad, 1, 1, 1, &bytes), HSP_EINVAL);
    assert_int_equal(bytes, 4321);
    assert_int_equal(hsp_gpu_nsa_select(&bad, &b, x, 0, 512, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_select(&good, &b, x, 0, 510, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_select(&good, &b, x, 3, 512, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_select(&good, &b, NULL, 0, 512, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_select(&good, &b, x, 0, 512, x, NULL, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_select(&good, &b, x, 0, 512, x, n, NULL, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_window(&b, 0, n, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_window(&b, 1, NULL, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_gate(&b, 0, 1, x, x, x, x, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_nsa_gate(&b, 1, 16385, x, x, x, x, x, NULL), HSP_ELIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_right), cmocka_unit_test(long_requests), cmocka_unit_test(nan_ranks_low),
        cmocka_unit_test(window_and_gate),  cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
