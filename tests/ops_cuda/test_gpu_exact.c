/* SPDX-License-Identifier: Apache-2.0 */
/* Exact selection on the GPU against probabilities in double. */
#include "gpu_keys.h"

static int call_exact(const struct selector *s, const hsp_gpu_batch *b) {
    return hsp_gpu_exact_select(s->shape, b, s->device_rows, s->request_stride, s->row_stride, s->device_query, s->k,
                                s->device_out, s->scratch, test_stream);
}

static void right_in_double(const struct selector *s, const char *rows, int32_t n_tokens, const float *query,
                            const int32_t *got) {
    const hsp_exact_shape *shape = s->shape;
    int32_t heads = shape->n_heads / shape->n_selections, dim = shape->key_dim;
    struct keys keys = keys_of(s, rows, n_tokens);
    double *sums = allocate((size_t)n_tokens * sizeof *sums);
    for (int32_t i = 0; i < shape->n_selections; i++) {
        memset(sums, 0, (size_t)n_tokens * sizeof *sums);
        for (int32_t h = i * heads; n_tokens && h < (i + 1) * heads; h++)
            add_probabilities(&keys, h * shape->n_kv_heads / shape->n_heads * dim, query + (size_t)(h * dim), dim,
                              (double)shape->scale, sums);
        check_blocks(got + i * s->k, 1, n_tokens, s->k, 0, 0, sums, 1e-6);
    }
    free(sums);
}

static struct selector make_selector(const hsp_exact_shape *shape, struct keys keys[KEY_SLOTS], int32_t max_tokens,
                                     int32_t k, size_t pad) {
    struct selector s = {.shape = shape,
                         .max_tokens = max_tokens,
                         .k = k,
                         .n_out = shape->n_selections * k,
                         .query_floats = (size_t)(shape->n_heads * shape->key_dim),
                         .call = call_exact,
                         .check = right_in_double};
    make_requests(&s, keys, shape->dtype, max_tokens, shape->n_kv_heads * shape->key_dim, pad, 0, 3);
    assert_int_equal(hsp_gpu_exact_scratch(shape, MOST_ENTRIES, MOST_QUERIES, max_tokens, &s.scratch_bytes), HSP_OK);
    return s;
}

static void check_shape(hsp_exact_shape shape, int32_t max_tokens, int32_t k, size_t pad) {
    struct keys keys[KEY_SLOTS];
    struct selector s = make_selector(&shape, keys, max_tokens, k, pad);
    open_selector(&s, NULL, 4);
    lengths(&s, 8, (const int32_t[]){0, 1, 15, 64, 65, k, k + 1, max_tokens});
    random_batches(&s, 6, 5);
    alone_as_together(&s, 6);
    replays(&s, 2, 4, 7);
    close_selector(&s);
    free_requests(keys);
}

/* heads, KV heads, key_dim, dtype, selections, scale */
static const hsp_exact_shape shapes[] = {
    {sizeof(hsp_exact_shape), 8, 2, 128, HSP_BF16, 1, 0.5f},  {sizeof(hsp_exact_shape), 8, 2, 128, HSP_BF16, 2, 0.5f},
    {sizeof(hsp_exact_shape), 17, 1, 64, HSP_BF16, 1, 0.3f},  {sizeof(hsp_exact_shape), 12, 3, 192, HSP_BF16, 3, 2.0f},
    {sizeof(hsp_exact_shape), 4, 4, 256, HSP_BF16, 1, 0.06f}, {sizeof(hsp_exact_shape), 4, 2, 128, HSP_F32, 2, 0.5f},
    {sizeof(hsp_exact_shape), 4, 2, 128, HSP_F16, 1, 0.5f},   {sizeof(hsp_exact_shape), 4, 2, 33, HSP_BF16, 2, 0.5f},
};

static void tokens_are_right(void **state) {
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape(shapes[i], 700, 100, 0);
        check_shape(shapes[i], 300, 33, 32);
        check_shape(shapes[i], 200, 64, 4);
    }
}

/* A key with a NaN is never chosen before one without, and where a head is NaN the lowest tokens are chosen. */
static void nan_ranks_low(void **state) {
    (void)state;
    need_device();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        hsp_exact_shape shape = shapes[i];
        struct keys keys[KEY_SLOTS];
        struct selector s = make_selector(&shape, keys, 300, 290, 0);
        const int32_t slot[2] = {0, 0}, n_tokens[2] = {300, 300};
        int32_t *got = allocate(out_bytes(&s, 2, 1));
        float nan = NAN;
        for (int32_t t = 5; t < 300; t += 20)
            for (int32_t c = 0; c < shape.n_kv_heads * shape.key_dim; c++)
                assert_int_equal(hsp_pack(shape.dtype, &nan, 1,
                                          s.rows + (size_t)t * s.row_stride + (size_t)c * bytes_of(shape.dtype)),
                                 HSP_OK);
        open_selector(&s, NULL, 4);
        for (int32_t h = 0; h < shape.n_heads; h++)
            s.query[s.query_floats + (size_t)(h * shape.key_dim)] = NAN;
        to_device(s.device_query, s.query, s.query_floats * 2 * sizeof(float));
        run_batch(&s, 2, 1, slot, n_tokens);
        from_device(got, s.device_out, out_bytes(&s, 2, 1));
        for (int32_t j = 0; j < shape.n_selections; j++) { /* 285 without NaN, then the lowest five of fifteen */
            const int32_t *mine = got + j * s.k, *spoilt = got + s.n_out + j * s.k;
            for (int32_t t = 0, at = 0; t < 300; t++)
                if (t % 20 != 5 || t <= 85)
                    assert_int_equal(mine[at++], t);
            for (int32_t t = 0; t < s.k; t++)
                assert_int_equal(spoilt[t], t);
        }
        free(got);
        close_selector(&s);
        free_requests(keys);
    }
}

static void refusals(void **state) {
    (void)state;
    float x[64] = {0};
    int32_t n[2] = {0};
    size_t bytes = 4321;
    hsp_gpu_batch b = {sizeof b, 1, 1, 100, n, n};
    hsp_exact_shape good = shapes[0], bad = shapes[0];
    bad.n_selections = 3;
    assert_int_equal(hsp_gpu_exact_scratch(&bad, 1, 1, 1, &bytes), HSP_EINVAL);
    assert_int_equal(bytes, 4321);
    assert_int_equal(hsp_gpu_exact_select(&bad, &b, x, 0, 512, x, 1, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_exact_select(&good, &b, x, 0, 512, x, 0, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_exact_select(&good, &b, x, 0, 510, x, 1, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_exact_select(&good, &b, x, 1, 512, x, 1, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_exact_select(&good, &b, x, 0, 512, NULL, 1, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_exact_select(&good, &b, x, 0, 512, x, 1, NULL, x, NULL), HSP_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_right),
        cmocka_unit_test(nan_ranks_low),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
