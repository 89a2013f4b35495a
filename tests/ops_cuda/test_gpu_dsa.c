/* SPDX-License-Identifier: Apache-2.0 */
/* The lightning indexer on the GPU: packed keys against the CPU's bytes, scores against sums in double, selections
 * against a sort of the scores. */
#include "gpu_dsa.h"

#include "../../ops/select.h"
#include "../../ops/top.h"

/* ---------------------------------------------------------------------------------------------------------- keys -- */

/* Numbers of every size, whole rows of zeros, and rows that end at exactly 448 times a power of two. */
static void fill_keys(float *keys, size_t n, size_t dim, uint64_t *seed) {
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < dim; c++) {
            float x = random_float(seed);
            keys[i * dim + c] = i % 5 == 3   ? 0.0f
                                : i % 5 == 4 ? (c == 0 ? 448.0f * sqrtf((float)dim) : 0.0f)
                                             : ldexpf(x, (int)(i % 37) - 18);
        }
}

/* New keys of a batch, where some have tokens below 0; every byte of the storage must be that of the CPU. */
static void check_packing(hsp_dsa_shape shape, int32_t n_new, size_t pad, uint64_t seed) {
    enum { BATCH = 4, TOKENS = 9 };
    const int32_t slot[BATCH] = {2, -1, 0, 1}, n_tokens[BATCH * 2] = {8, 9, 5, 5, 1, 2, 0, 0};
    size_t dim = (size_t)shape.head_dim, key_bytes, n = (size_t)(BATCH * n_new);
    assert_int_equal(hsp_dsa_key_bytes(&shape, &key_bytes), HSP_OK);
    size_t row_stride = key_bytes + pad, request_stride = row_stride * TOKENS + 20, bytes = request_stride * 3;
    float *keys = allocate(n * dim * sizeof *keys);
    char *want = allocate(bytes), *got = allocate(bytes);
    fill_keys(keys, n, dim, &seed);
    memset(want, 0x5a, bytes);
    for (int32_t b = 0; b < BATCH; b++)
        for (int32_t i = 0; i < n_new; i++) {
            int32_t token = n_tokens[b * 2 + 1] - n_new + i;
            if (slot[b] >= 0 && token >= 0)
                assert_int_equal(hsp_dsa_pack_keys(&shape, keys + (size_t)(b * n_new + i) * dim, dim * sizeof *keys, 1,
                                                   want + (size_t)slot[b] * request_stride + (size_t)token * row_stride,
                                                   row_stride),
                                 HSP_OK);
        }
    hsp_gpu_batch b = make_batch(BATCH, 2, TOKENS, slot, n_tokens);
    float *device_keys = on_device(keys, n * dim * sizeof *keys);
    char *rows = on_device(NULL, bytes);
    assert_int_equal(
        hsp_gpu_dsa_pack_keys(&shape, &b, device_keys, n_new, rows, request_stride, row_stride, test_stream), HSP_OK);
    from_device(got, rows, bytes);
    assert_memory_equal(got, want, bytes);
    free_batch(&b);
    free_device(device_keys);
    free_device(rows);
    free(keys);
    free(want);
    free(got);
}

static void packed_keys_are_those_of_the_cpu(void **state) {
    (void)state;
    need_device();
    for (int32_t dim = 16; dim <= 512; dim *= 2)
        for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
            for (int32_t n_new = 1; n_new <= 5; n_new++)
                check_packing(dsa_shape(4, dim, dtype), n_new, (size_t)(n_new % 3) * 4, (uint64_t)(dim + n_new));
}

/* -------------------------------------------------------------------------------------------------------- scores -- */

static void check_scores(const struct index_case *c, const float *scores) {
    size_t heads = (size_t)c->shape.n_heads, dim = (size_t)c->shape.head_dim;
    float *key = allocate(dim * sizeof *key), untouched;
    memset(&untouched, 0x77, sizeof untouched);
    for (int32_t i = 0; i < c->batch * c->n_queries; i++) {
        int32_t slot = c->slot[i / c->n_queries], n = slot < 0 ? 0 : c->n_tokens[i];
        float *plain = plain_query(&c->shape, c->query + (size_t)i * heads * dim, c->weights + (size_t)i * heads);
        for (int32_t t = 0; t < c->max_tokens; t++) {
            float got = scores[(size_t)i * (size_t)c->max_tokens + (size_t)t];
            double error, want;
            if (t >= n) {
                assert_memory_equal(&got, &untouched, sizeof got);
                continue;
            }
            want = score_in_double(&c->shape, c->rows + (size_t)slot * c->request_stride + (size_t)t * c->row_stride,
                                   plain, key, &error);
            if (!(fabs((double)got - want) <= error) && !(isnan(want) && isnan(got)))
                fail_msg("entry %d token %d: %.9g, not %.9g within %.3g", i, t, (double)got, want, error);
        }
        free(plain);
    }
    free(key);
}

static void scores_of(hsp_dsa_shape shape, int32_t n_tokens, int32_t n_queries, size_t pad, size_t gap, uint64_t seed) {
    struct index_case c;
    open_case(&c, shape, n_tokens, 4, n_queries, pad, gap, seed);
    float *scores = get_device_scores(&c);
    check_scores(&c, scores);
    free(scores);
    close_case(&c);
}

static void scores_of_every_count_of_heads(void **state) {
    (void)state;
    need_device();
    static const int32_t heads[] = {1, 16, 31, 32, 33, 64, 65, 100, 128, 192, 256, 257};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
            scores_of(dsa_shape(heads[i], 128, dtype), 150, 1 + (int32_t)i % 2, 0, 0, i);
}

static void scores_of_every_length(void **state) {
    (void)state;
    need_device();
    static const int32_t lengths_[] = {1, 2, 3, 5, 63, 64, 65, 127, 700};
    for (size_t i = 0; i < sizeof lengths_ / sizeof *lengths_; i++)
        for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
            scores_of(dsa_shape(i % 2 ? 64 : 32, 128, dtype), lengths_[i], 1, 0, 0, i);
}

static void scores_of_rows_apart(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++) {
        scores_of(dsa_shape(64, 128, dtype), 300, 2, 4, 0, 1);
        scores_of(dsa_shape(64, 128, dtype), 300, 1, 124, 4, 2);
        scores_of(dsa_shape(64, 128, dtype), 300, 1, 0, 4, 3); /* packed, but no multiple of 16 */
        scores_of(dsa_shape(32, 128, dtype), 70, 1, (size_t)1 << 18, 16, 4);
    }
}

static void scores_of_many_queries(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
        for (int32_t n_queries = 3; n_queries <= 9; n_queries += 3)
            scores_of(dsa_shape(n_queries == 6 ? 128 : 64, 128, dtype), 200, n_queries, 0, 0, 5);
}

static void scores_of_other_dims(void **state) {
    (void)state;
    need_device();
    for (int32_t dim = 16; dim <= 256; dim *= 2)
        for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
            scores_of(dsa_shape(5, dim, dtype), 100, 2, 0, 0, (uint64_t)dim);
}

/* A key, a weight or a query that is no number; the scores beside them do not change. */
static void nan_spoils_its_score_alone(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
        for (int32_t heads = 33; heads <= 64; heads += 31) {
            struct index_case c;
            open_case(&c, dsa_shape(heads, 128, dtype), 200, 4, 2, 0, 0, 11);
            float row[128];
            uint64_t seed = 3;
            for (int i = 0; i < 128; i++)
                row[i] = random_float(&seed);
            row[77] = NAN;
            assert_int_equal(hsp_dsa_pack_keys(&c.shape, row, sizeof row, 1, c.rows + 100 * c.row_stride, c.row_stride),
                             HSP_OK);
            row[77] = INFINITY;
            assert_int_equal(hsp_dsa_pack_keys(&c.shape, row, sizeof row, 1, c.rows + 7 * c.row_stride, c.row_stride),
                             HSP_OK);
            to_device(c.device_rows, c.rows, (size_t)c.n_slots * c.request_stride);
            c.weights[1 * heads + 2] = NAN;                       /* entry 0, query 1 */
            c.query[(size_t)(4 * heads + heads - 1) * 128] = NAN; /* entry 2, query 0 */
            pack_queries(&c);
            float *scores = get_device_scores(&c);
            check_scores(&c, scores);
            assert_true(isnan(scores[100]) && isnan(scores[7]) && !isnan(scores[8]) && isnan(scores[200 + 8]));
            free(scores);
            close_case(&c);
        }
}

/* Bits of an entry alone and of the same in a batch; and of rows that lie apart. */
static void bits_do_not_depend_on_the_batch(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
        for (int32_t heads = 32; heads <= 128; heads *= 2) {
            struct index_case together, alone, apart;
            open_case(&together, dsa_shape(heads, 128, dtype), 999, 7, 2, 0, 0, 21);
            open_case(&alone, dsa_shape(heads, 128, dtype), 999, 1, 2, 0, 0, 21);
            open_case(&apart, dsa_shape(heads, 128, dtype), 999, 1, 2, 36, 4, 21);
            size_t floats = (size_t)(2 * heads * 128), bytes = 2 * 999 * sizeof(float);
            memcpy(alone.query, together.query, floats * sizeof(float));
            memcpy(apart.query, together.query, floats * sizeof(float));
            memcpy(alone.weights, together.weights, (size_t)(2 * heads) * sizeof(float));
            memcpy(apart.weights, together.weights, (size_t)(2 * heads) * sizeof(float));
            pack_queries(&alone);
            pack_queries(&apart);
            float *x = get_device_scores(&together), *y = get_device_scores(&alone), *z = get_device_scores(&apart);
            assert_memory_equal(x, y, bytes);
            assert_memory_equal(x, z, bytes);
            free(x);
            free(y);
            free(z);
            close_case(&together);
            close_case(&alone);
            close_case(&apart);
        }
}

/* ----------------------------------------------------------------------------------------------------- selection -- */

/* Of its own scores exactly; of those of the CPU no token left out beats one chosen by more than both are off. */
static void check_selection(const struct index_case *c, int32_t k) {
    size_t bytes, ints = (size_t)(c->batch * c->n_queries) * (size_t)k;
    assert_int_equal(hsp_gpu_dsa_scratch(&c->shape, c->batch, c->n_queries, c->max_tokens, &bytes), HSP_OK);
    void *scratch = on_device(NULL, bytes);
    int32_t *out = on_device(NULL, ints * sizeof *out), *got = allocate(ints * sizeof *got);
    int32_t *want = allocate((size_t)k * sizeof *want);
    float *scores = get_device_scores(c);
    uint32_t *ranks = (uint32_t *)(void *)scores;
    assert_int_equal(hsp_gpu_dsa_select(&c->shape, &c->b, c->device_rows, c->request_stride, c->row_stride,
                                        c->device_image, k, out, scratch, test_stream),
                     HSP_OK);
    from_device(got, out, ints * sizeof *got);
    for (int32_t i = 0; i < c->batch * c->n_queries; i++) {
        size_t at = (size_t)i * (size_t)c->max_tokens;
        int32_t n = c->slot[i / c->n_queries] < 0 ? 0 : c->n_tokens[i];
        for (int32_t t = 0; t < n; t++)
            ranks[at + (size_t)t] = hsp__rank_of(scores[at + (size_t)t]);
        hsp__emit_blocks(ranks + at, 1, n, k, want);
        assert_memory_equal(got + (size_t)i * (size_t)k, want, (size_t)k * sizeof *want);
    }
    free_device(scratch);
    free_device(out);
    free(got);
    free(want);
    free(scores);
}

static void selection_is_that_of_the_scores(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++) {
        struct index_case c;
        open_case(&c, dsa_shape(64, 128, dtype), 5001, 5, 2, 0, 0, 31);
        static const int32_t ks[] = {1, 31, 512, 1000, 2048, 5000, 5001, 8192};
        for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
            check_selection(&c, ks[i]);
        close_case(&c);
    }
}

/* The harness of all selectors, with a check against the CPU: hsp_dsa_select's choice but for what rounding decides. */
static int call_dsa(const struct selector *s, const hsp_gpu_batch *b) {
    const struct index_case *c = s->more;
    int status = hsp_gpu_dsa_pack_query(s->shape, b, s->device_query, c->device_weights, c->device_image, test_stream);
    return status ? status
                  : hsp_gpu_dsa_select(s->shape, b, s->device_rows, s->request_stride, s->row_stride, c->device_image,
                                       s->k, s->device_out, s->scratch, test_stream);
}

static void check_dsa(const struct selector *s, const char *rows, int32_t n_tokens, const float *query,
                      const int32_t *got) {
    const struct index_case *c = s->more;
    const hsp_dsa_shape *shape = s->shape;
    size_t n_chosen = (size_t)(n_tokens < s->k ? n_tokens : s->k), at = 0;
    float *plain = plain_query(shape, query, c->weights), *key = allocate((size_t)shape->head_dim * sizeof *key);
    double worst_in = INFINITY, best_out = -INFINITY, off = 0.0, error;
    for (int32_t t = 0; t < n_tokens; t++) {
        double score = score_in_double(shape, rows + (size_t)t * s->row_stride, plain, key, &error);
        off = fmax(off, error);
        if (at < n_chosen && got[at] == t) {
            at++;
            worst_in = fmin(worst_in, score);
        } else {
            best_out = fmax(best_out, score);
        }
    }
    assert_int_equal(at, n_chosen); /* ascending, no token twice, none beyond n_tokens */
    for (size_t i = n_chosen; i < (size_t)s->k; i++)
        assert_int_equal(got[i], -1);
    assert_true(best_out <= worst_in + 2.0 * off);
    free(plain);
    free(key);
}

static void steps_and_graphs(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++) {
        struct index_case c;
        open_case(&c, dsa_shape(dtype == HSP_E4M3 ? 64 : 32, 128, dtype), 700, MOST_ENTRIES, MOST_QUERIES, 0, 0, 41);
        size_t heads = (size_t)c.shape.n_heads;
        for (size_t i = heads; i < heads * MOST_ENTRIES * MOST_QUERIES; i++)
            c.weights[i] = c.weights[i % heads]; /* the check knows one set */
        to_device(c.device_weights, c.weights, heads * MOST_ENTRIES * MOST_QUERIES * sizeof(float));
        struct selector s = {.shape = &c.shape,
                             .n_slots = c.n_slots,
                             .max_tokens = 700,
                             .k = 64,
                             .n_out = 64,
                             .query_floats = heads * 128,
                             .request_stride = c.request_stride,
                             .row_stride = c.row_stride,
                             .call = call_dsa,
                             .check = check_dsa,
                             .more = &c};
        assert_int_equal(hsp_gpu_dsa_scratch(&c.shape, MOST_ENTRIES, MOST_QUERIES, 700, &s.scratch_bytes), HSP_OK);
        s.rows = allocate((size_t)c.n_slots * c.request_stride);
        memcpy(s.rows, c.rows, (size_t)c.n_slots * c.request_stride);
        open_selector(&s, NULL, 43);
        lengths(&s, 7, (const int32_t[]){0, 1, 63, 64, 65, 66, 700});
        random_batches(&s, 10, 44);
        alone_as_together(&s, 45);
        replays(&s, 2, 10, 46);
        close_selector(&s);
        close_case(&c);
    }
}

/* ----------------------------------------------------------------------------------------------------- refusals -- */

static void refusals(void **state) {
    (void)state;
    float x[64] = {0};
    int32_t n[2] = {0};
    size_t bytes = 4321;
    hsp_gpu_batch b = {sizeof b, 1, 1, 4, n, n};
    hsp_dsa_shape good = dsa_shape(4, 16, HSP_E4M3), bad = good, large = dsa_shape(16385, 16, HSP_E4M3);
    bad.head_dim = 48;
    assert_int_equal(hsp_gpu_dsa_query_bytes(&bad, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_query_bytes(&large, &bytes), HSP_ELIMIT);
    assert_int_equal(hsp_gpu_dsa_query_bytes(&good, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_scratch(&good, -1, 1, 1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_scratch(&good, 1, 0, 1, &bytes), HSP_EINVAL);
    assert_int_equal(bytes, 4321);
    assert_int_equal(hsp_gpu_dsa_pack_keys(&bad, &b, x, 1, x, 0, 20, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_pack_keys(&good, NULL, x, 1, x, 0, 20, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_pack_keys(&good, &b, x, -1, x, 0, 20, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_pack_keys(&good, &b, x, 1, x, 0, 16, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_pack_keys(&good, &b, x, 1, x, 2, 20, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_pack_keys(&good, &b, NULL, 1, x, 0, 20, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_pack_query(&good, &b, x, NULL, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_scores(&good, &b, x, 0, 20, NULL, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_scores(&good, &b, x, 0, 22, x, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_scores(&large, &b, x, 0, 20, x, x, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_gpu_dsa_select(&good, &b, x, 0, 20, x, 0, n, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_select(&good, &b, x, 0, 20, x, 1, NULL, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_select(&good, &b, x, 0, 20, x, 1, n, NULL, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_dsa_select(&large, &b, x, 0, 20, x, 1, n, x, NULL), HSP_ELIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_keys_are_those_of_the_cpu),
        cmocka_unit_test(scores_of_every_count_of_heads),
        cmocka_unit_test(scores_of_every_length),
        cmocka_unit_test(scores_of_rows_apart),
        cmocka_unit_test(scores_of_many_queries),
        cmocka_unit_test(scores_of_other_dims),
        cmocka_unit_test(nan_spoils_its_score_alone),
        cmocka_unit_test(bits_do_not_depend_on_the_batch),
        cmocka_unit_test(selection_is_that_of_the_scores),
        cmocka_unit_test(steps_and_graphs),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
