/* SPDX-License-Identifier: Apache-2.0 */
/* Quest on the GPU: statistics equal to the byte, and selections equal to the CPU's where every sum is exact. */
#include "gpu_select.h"

#include "../ops/select_common.h"

static hsp_quest_shape quest_shape(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim, int32_t page_tokens,
                                   int32_t dtype) {
    return (hsp_quest_shape){sizeof(hsp_quest_shape), n_heads, n_kv_heads, head_dim, page_tokens, dtype};
}

/* -------------------------------------------------------------------------------------------------- statistics -- */

/* To the byte, but for which NaN a NaN is. */
static void same_numbers(int32_t dtype, const char *got, const char *want, size_t n) {
    size_t bytes = bytes_of(dtype);
    for (size_t i = 0; i < n; i++) {
        float x;
        if (memcmp(got + i * bytes, want + i * bytes, bytes) == 0)
            continue;
        assert_int_equal(hsp_unpack(dtype, got + i * bytes, 1, &x), HSP_OK);
        assert_true(isnan(x));
        assert_int_equal(hsp_unpack(dtype, want + i * bytes, 1, &x), HSP_OK);
        assert_true(isnan(x));
    }
}

/* Requests that grow by a few tokens at a time, are cut back to the start of a page, and grow again. */
static void check_updates(hsp_quest_shape shape, uint64_t seed) {
    enum { BATCH = 4, TOKENS = 100, SLOTS = 3, MOST_NEW = 7 };
    size_t stats_bytes, channels = (size_t)(shape.n_kv_heads * shape.head_dim), number = bytes_of(shape.dtype);
    assert_int_equal(hsp_quest_bytes(&shape, TOKENS, &stats_bytes), HSP_OK);
    size_t request_stride = stats_bytes + 8 * number, key_stride = (channels + 3) * number,
           bytes = SLOTS * request_stride;
    int32_t length[SLOTS] = {0};
    char *want = allocate(bytes), *got = allocate(bytes), *stats;
    memset(want, 0x5a, bytes);
    stats = on_device(want, bytes);
    for (int step = 0; step < 40; step++) {
        int32_t n_new = 1 + random_below(&seed, MOST_NEW), slot[BATCH], n_tokens[BATCH];
        struct keys keys = make_keys(shape.dtype, BATCH * n_new, (int32_t)channels, 3 * number, 2.0f, seed + 1);
        if (step % 5 == 0)
            memset(keys.rows, 0xff, number * 3); /* NaN */
        for (int32_t b = 0; b < BATCH; b++) {
            slot[b] = b == 1 ? -1 : b == 0 ? 2 : b - 2;
            n_tokens[b] = 0;
            if (slot[b] < 0)
                continue;
            int32_t *n = &length[slot[b]];
            if (*n + n_new > TOKENS)
                *n = *n / 2 / shape.page_tokens * shape.page_tokens;
            n_tokens[b] = *n + (*n == 0 && step % 3 == 0 ? (n_new + 1) / 2 : n_new); /* fewer: rows are skipped */
            int32_t skipped = n_tokens[b] - *n < n_new ? n_new - (n_tokens[b] - *n) : 0;
            assert_int_equal(hsp_quest_update(&shape, want + (size_t)slot[b] * request_stride,
                                              keys.rows + (size_t)(b * n_new + skipped) * key_stride, key_stride, *n,
                                              n_tokens[b] - *n),
                             HSP_OK);
            *n = n_tokens[b];
        }
        hsp_gpu_batch b = make_batch(BATCH, 1, TOKENS, slot, n_tokens);
        char *device_keys = on_device(keys.rows, (size_t)(BATCH * n_new) * key_stride);
        assert_int_equal(
            hsp_gpu_quest_update(&shape, &b, stats, request_stride, device_keys, key_stride, n_new, test_stream),
            HSP_OK);
        from_device(got, stats, bytes);
        for (int32_t s = 0; s < SLOTS; s++) { /* pages begun; what lies behind the last one is left alone */
            size_t pages = (size_t)((length[s] + shape.page_tokens - 1) / shape.page_tokens);
            const char *mine = got + (size_t)s * request_stride, *right = want + (size_t)s * request_stride;
            same_numbers(shape.dtype, mine, right, pages * 2 * channels);
            assert_memory_equal(mine + stats_bytes, right + stats_bytes, 8 * number);
        }
        free_batch(&b);
        free_device(device_keys);
        free_keys(&keys);
    }
    free_device(stats);
    free(want);
    free(got);
}

static void statistics_are_those_of_the_cpu(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
        check_updates(quest_shape(4, 2, 24, 16, dtype), 1);
        check_updates(quest_shape(2, 1, 5, 3, dtype), 2);
        check_updates(quest_shape(8, 4, 128, 1, dtype), 3);
    }
}

/* --------------------------------------------------------------------------------------------------- selections -- */

static int call_pages(const struct selector *s, const hsp_gpu_batch *b) {
    return hsp_gpu_quest_select(s->shape, b, s->device_rows, s->request_stride, s->device_query, s->k, s->device_out,
                                s->scratch, test_stream);
}

static int call_groups(const struct selector *s, const hsp_gpu_batch *b) {
    return hsp_gpu_quest_select_groups(s->shape, b, s->device_rows, s->request_stride, s->device_query, s->k,
                                       s->device_out, s->scratch, test_stream);
}

static void check_quest(const struct selector *s, const char *rows, int32_t n_tokens, const float *query,
                        const int32_t *got) {
    size_t bytes, out = (size_t)s->n_out * sizeof(int32_t);
    assert_int_equal(hsp_quest_scratch(s->shape, n_tokens, &bytes), HSP_OK);
    void *scratch = allocate(bytes);
    int32_t *want = allocate(out);
    assert_int_equal((s->call == call_pages ? hsp_quest_select : hsp_quest_select_groups)(s->shape, rows, n_tokens,
                                                                                          query, s->k, want, scratch),
                     HSP_OK);
    assert_memory_equal(got, want, out);
    free(scratch);
    free(want);
}

/* Statistics of whole numbers: minima of -4 to 4, maxima no less. gap: bytes after those of a request. */
static char *make_statistics(const hsp_quest_shape *shape, int32_t n_slots, int32_t max_tokens, uint64_t request_stride,
                             uint64_t seed) {
    size_t channels = (size_t)(shape->n_kv_heads * shape->head_dim), half = channels * bytes_of(shape->dtype);
    size_t pages = (size_t)((max_tokens + shape->page_tokens - 1) / shape->page_tokens);
    char *rows = allocate((size_t)n_slots * request_stride);
    float *low = allocate(channels * sizeof *low), *high = allocate(channels * sizeof *high);
    for (size_t i = 0; i < (size_t)n_slots * pages; i++) {
        char *page = rows + i / pages * request_stride + i % pages * 2 * half;
        whole_numbers(low, channels, seed + 2 * i);
        whole_numbers(high, channels, seed + 2 * i + 1);
        for (size_t c = 0; c < channels; c++)
            high[c] = fmaxf(low[c], high[c]);
        assert_int_equal(hsp_pack(shape->dtype, low, channels, page), HSP_OK);
        assert_int_equal(hsp_pack(shape->dtype, high, channels, page + half), HSP_OK);
    }
    free(low);
    free(high);
    return rows;
}

static struct selector make_selector(const hsp_quest_shape *shape, int groups, int32_t max_tokens, int32_t k,
                                     size_t gap, uint64_t seed) {
    size_t stats_bytes;
    assert_int_equal(hsp_quest_bytes(shape, max_tokens, &stats_bytes), HSP_OK);
    struct selector s = {.shape = shape,
                         .n_slots = 3,
                         .max_tokens = max_tokens,
                         .k = k,
                         .n_out = groups ? k * shape->n_kv_heads : k,
                         .query_floats = (size_t)(shape->n_heads * shape->head_dim),
                         .request_stride = (stats_bytes + 15) / 16 * 16 + gap,
                         .call = groups ? call_groups : call_pages,
                         .check = check_quest};
    assert_int_equal(hsp_gpu_quest_scratch(shape, MOST_ENTRIES, MOST_QUERIES, max_tokens, &s.scratch_bytes), HSP_OK);
    s.rows = make_statistics(shape, s.n_slots, max_tokens, s.request_stride, seed);
    return s;
}

static void check_shape(hsp_quest_shape shape, int32_t max_tokens, int32_t k, size_t gap) {
    for (int groups = 0; groups < 2; groups++) {
        struct selector s = make_selector(&shape, groups, max_tokens, k, gap, 5);
        open_selector(&s, whole_numbers, 6);
        lengths(&s, 8, (const int32_t[]){0, 1, k - 1, k, k + 1, max_tokens - 1, max_tokens, 2});
        random_batches(&s, 10, 7);
        alone_as_together(&s, 8);
        replays(&s, 2, 5, 9);
        close_selector(&s);
    }
}

/* Groups of 1, 2, 4 and 8 heads, so that means are exact; rows that are read 16 bytes at a time and rows that are not.
 */
static void selections_are_those_of_the_cpu(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
        check_shape(quest_shape(32, 8, 128, 16, dtype), 5000, 512, 0);
        check_shape(quest_shape(8, 1, 64, 16, dtype), 3000, 256, 16);
        check_shape(quest_shape(4, 4, 5, 7, dtype), 900, 70, 0);
        check_shape(quest_shape(2, 1, 24, 1, dtype), 600, 33, 4);
        check_shape(quest_shape(4, 2, 8, 64, dtype), 2000, 128, 0);
        check_shape(quest_shape(16, 8, 16, 16, dtype), 300, 16, 0);
    }
}

/* More pages than one block takes. */
static void many_pages(void **state) {
    (void)state;
    need_device();
    hsp_quest_shape shape = quest_shape(1, 1, 8, 2, HSP_BF16);
    struct selector s = make_selector(&shape, 0, 150001, 2048, 0, 15);
    open_selector(&s, whole_numbers, 16);
    lengths(&s, 3, (const int32_t[]){150001, 40000, 2049});
    close_selector(&s);
}

/* A NaN in the query, in every statistic of a page, and infinite ones. */
static void nan_and_infinity(void **state) {
    (void)state;
    need_device();
    hsp_quest_shape shape = quest_shape(4, 2, 16, 16, HSP_BF16);
    for (int groups = 0; groups < 2; groups++) {
        struct selector s = make_selector(&shape, groups, 1000, 160, 0, 25);
        size_t half = 2 * 16 * 2;
        const uint16_t nan = 0x7fc0, infinity = 0x7f80;
        memcpy(s.rows + 3 * 2 * half + 6, &nan, 2);
        memcpy(s.rows + 3 * 2 * half + half + 6, &nan, 2);
        memcpy(s.rows + 20 * 2 * half + half + 40, &infinity, 2);
        open_selector(&s, whole_numbers, 26);
        s.query[64 * 3 + 5] = NAN; /* entry 3: every page alike */
        to_device(s.device_query, s.query, s.query_floats * MOST_ENTRIES * sizeof(float));
        lengths(&s, 6, (const int32_t[]){1000, 1000, 1000, 1000, 500, 161});
        close_selector(&s);
    }
}

static void refusals(void **state) {
    (void)state;
    float x[64] = {0};
    int32_t n[2] = {0};
    size_t bytes = 4321;
    hsp_gpu_batch b = {sizeof b, 1, 1, 4, n, n};
    hsp_quest_shape good = quest_shape(4, 2, 8, 16, HSP_BF16), bad = quest_shape(3, 2, 8, 16, HSP_BF16);
    assert_int_equal(hsp_gpu_quest_scratch(&bad, 1, 1, 1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_scratch(&good, 1, 1, 1, NULL), HSP_EINVAL);
    assert_int_equal(bytes, 4321);
    assert_int_equal(hsp_gpu_quest_update(&bad, &b, x, 64, x, 32, 1, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_update(&good, &b, x, 63, x, 32, 1, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_update(&good, &b, x, 64, NULL, 32, 1, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_update(&good, &b, x, 64, x, 32, -1, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_select(&good, &b, x, 64, x, 15, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_select(&good, &b, x, 64, x, 0, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_select(&good, &b, NULL, 64, x, 16, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_select_groups(&good, &b, x, 64, NULL, 16, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_select_groups(&good, &b, x, 64, x, 16, n, NULL, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_quest_select_groups(&good, &b, x, 64, x, 16, NULL, x, NULL), HSP_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_are_those_of_the_cpu),
        cmocka_unit_test(selections_are_those_of_the_cpu),
        cmocka_unit_test(many_pages),
        cmocka_unit_test(nan_and_infinity),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
