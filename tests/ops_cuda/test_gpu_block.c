/* SPDX-License-Identifier: Apache-2.0 */
/* Block selection on the GPU: equal to the CPU's where every product is exact, and right within rounding elsewhere. */
#include "gpu_keys.h"

static int call_block(const struct selector *s, const hsp_gpu_batch *b) {
    return hsp_gpu_block_select(s->shape, b, s->device_rows, s->request_stride, s->row_stride, s->device_query,
                                s->device_out, s->scratch, test_stream);
}

static void equal_to_cpu(const struct selector *s, const char *rows, int32_t n_tokens, const float *query,
                         const int32_t *got) {
    size_t bytes, out = (size_t)s->n_out * sizeof(int32_t);
    assert_int_equal(hsp_block_scratch(s->shape, n_tokens, &bytes), HSP_OK);
    void *scratch = allocate(bytes);
    int32_t *want = allocate(out);
    assert_int_equal(hsp_block_select(s->shape, rows, s->row_stride, n_tokens, query, want, scratch), HSP_OK);
    assert_memory_equal(got, want, out);
    free(scratch);
    free(want);
}

static void right_in_double(const struct selector *s, const char *rows, int32_t n_tokens, const float *query,
                            const int32_t *got) {
    const hsp_block_shape *shape = s->shape;
    struct keys keys = keys_of(s, rows, n_tokens);
    int32_t n_blocks = (n_tokens + shape->block_tokens - 1) / shape->block_tokens, dim = shape->key_dim;
    double *top = allocate((size_t)n_blocks * sizeof *top);
    for (int32_t group = 0; group < shape->n_groups; group++) {
        for (int32_t block = 0; block < n_blocks; block++)
            top[block] = -INFINITY;
        for (int32_t h = 0; h < shape->n_heads; h++)
            for (int32_t t = 0; h * shape->n_groups / shape->n_heads == group && t < n_tokens; t++) {
                double score = (double)shape->scale * dot(&keys, t, h * shape->n_key_heads / shape->n_heads * dim,
                                                          query + (size_t)(h * dim), dim);
                top[t / shape->block_tokens] = fmax(top[t / shape->block_tokens], score);
            }
        check_blocks(got + group * (s->n_out / shape->n_groups), shape->block_tokens, n_tokens, shape->n_blocks,
                     shape->n_first, shape->n_local, top, 1e-5);
    }
    free(top);
}

static void check_shape(hsp_block_shape shape, int32_t max_tokens, size_t pad, int whole) {
    struct keys keys[KEY_SLOTS];
    struct selector s = {.shape = &shape,
                         .max_tokens = max_tokens,
                         .k = shape.n_blocks * shape.block_tokens,
                         .n_out = shape.n_groups * shape.n_blocks * shape.block_tokens,
                         .query_floats = (size_t)(shape.n_heads * shape.key_dim),
                         .call = call_block,
                         .check = whole ? equal_to_cpu : right_in_double};
    make_requests(&s, keys, shape.dtype, max_tokens, shape.n_key_heads * shape.key_dim, pad, whole, 3);
    assert_int_equal(hsp_gpu_block_scratch(&shape, MOST_ENTRIES, MOST_QUERIES, max_tokens, &s.scratch_bytes), HSP_OK);
    open_selector(&s, whole ? whole_numbers : NULL, 4);
    lengths(&s, 7,
            (const int32_t[]){0, 1, s.k < max_tokens ? s.k : 2, s.k + 1 < max_tokens ? s.k + 1 : 3, max_tokens - 1,
                              max_tokens, 17});
    random_batches(&s, 6, 5);
    alone_as_together(&s, 6);
    replays(&s, 2, 4, 7);
    close_selector(&s);
    free_requests(keys);
}

/* heads, groups, key heads, key_dim, dtype, block_tokens, n_blocks, n_first, n_local */
static const hsp_block_shape shapes[] = {
    {sizeof(hsp_block_shape), 4, 4, 1, 128, HSP_BF16, 128, 5, 0, 1, 0.0883f}, /* MiniMax-M3 but for the count */
    {sizeof(hsp_block_shape), 32, 2, 2, 64, HSP_BF16, 16, 7, 1, 2, 0.125f},
    {sizeof(hsp_block_shape), 6, 3, 2, 192, HSP_BF16, 33, 4, 0, 1, 0.1f}, /* groups across key heads */
    {sizeof(hsp_block_shape), 20, 1, 1, 256, HSP_BF16, 64, 3, 1, 1, 0.06f},
    {sizeof(hsp_block_shape), 4, 4, 1, 128, HSP_F32, 16, 5, 0, 1, 0.0883f},
    {sizeof(hsp_block_shape), 4, 2, 2, 128, HSP_F16, 16, 5, 0, 1, 0.0883f},
    {sizeof(hsp_block_shape), 18, 3, 1, 24, HSP_BF16, 5, 9, 2, 3, 0.2f},
};

static void equal_where_products_are_exact(void **state) {
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape(shapes[i], 2000, 0, 1);
        check_shape(shapes[i], 700, 32, 1);
        check_shape(shapes[i], 300, 4, 1); /* no multiple of 16: a lane a key */
    }
}

static void right_within_rounding(void **state) {
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(shapes[i], 600, 0, 0);
}

/* Keys and heads that are NaN count as -infinity, as on the CPU. */
static void nan_ranks_low(void **state) {
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        hsp_block_shape shape = shapes[i];
        struct keys keys[KEY_SLOTS];
        struct selector s = {.shape = &shape,
                             .max_tokens = 800,
                             .k = shape.n_blocks * shape.block_tokens,
                             .n_out = shape.n_groups * shape.n_blocks * shape.block_tokens,
                             .query_floats = (size_t)(shape.n_heads * shape.key_dim),
                             .call = call_block,
                             .check = equal_to_cpu};
        float nan = NAN;
        make_requests(&s, keys, shape.dtype, 800, shape.n_key_heads * shape.key_dim, 0, 1, 3);
        for (int32_t t = 0; t < 800; t += 3 + t % 40)
            assert_int_equal(hsp_pack(shape.dtype, &nan, 1, s.rows + (size_t)t * s.row_stride), HSP_OK);
        for (int32_t t = 300; t < 300 + 2 * shape.block_tokens; t++) /* a whole block */
            assert_int_equal(hsp_pack(shape.dtype, &nan, 1, s.rows + (size_t)t * s.row_stride), HSP_OK);
        assert_int_equal(hsp_gpu_block_scratch(&shape, MOST_ENTRIES, MOST_QUERIES, 800, &s.scratch_bytes), HSP_OK);
        open_selector(&s, whole_numbers, 4);
        s.query[s.query_floats * 3 + 1] = NAN; /* entry 3, head 0 */
        to_device(s.device_query, s.query, s.query_floats * MOST_ENTRIES * sizeof(float));
        lengths(&s, 5, (const int32_t[]){800, 800, 800, 800, 600});
        close_selector(&s);
        free_requests(keys);
    }
}

static void refusals(void **state) {
    (void)state;
    float x[64] = {0};
    int32_t n[2] = {0};
    size_t bytes = 4321;
    hsp_gpu_batch b = {sizeof b, 1, 1, 4, n, n};
    hsp_block_shape good = shapes[0], bad = shapes[0];
    bad.n_local = 0;
    assert_int_equal(hsp_gpu_block_scratch(&bad, 1, 1, 1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_gpu_block_scratch(&good, 1, 1, 1, NULL), HSP_EINVAL);
    assert_int_equal(bytes, 4321);
    assert_int_equal(hsp_gpu_block_select(&bad, &b, x, 0, 256, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_block_select(&good, &b, x, 0, 254, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_block_select(&good, &b, x, 1, 256, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_block_select(&good, &b, NULL, 0, 256, x, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_block_select(&good, &b, x, 0, 256, NULL, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_block_select(&good, &b, x, 0, 256, x, NULL, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_block_select(&good, &b, x, 0, 256, x, n, NULL, NULL), HSP_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_where_products_are_exact),
        cmocka_unit_test(right_within_rounding),
        cmocka_unit_test(nan_ranks_low),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
