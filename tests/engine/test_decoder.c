/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder against a plain forward pass in double precision, on tiny random models. */
#include "arithmetic.h"
#include "decoder.h"
#include "plain_forward.h"
#include "tiny_model.h"
#include "watched_rows.h"
#include "with_cmocka.h"

/* Logits are of size 3 and float32 is good to 1e-4 here, with keys and values rounded to bfloat16 the same way on both
 * sides. Where the engine is held against itself, a key or value near the middle of two bfloat16 numbers may go to the
 * other one, 2^-8 of itself away, and move a logit by a hundredth. A wrong row, position or mask moves it by 0.1. */
static const double CLOSE = 3e-4, CLOSE_TO_ITSELF = 0.03;

enum { MOST_TOKENS = 256, TOP_K = 64, PAGE = 16 };

static const tiny_shape shapes[] = {
    TINY_SHAPE(1),
    {.layers = 3, .embedding = 36, .ffn = 20, .heads = 3, .kv_heads = 1, .head_dim = 10, .vocab = 50, .seed = 2},
    {.layers = 5,
     .embedding = 24,
     .ffn = 64,
     .heads = 6,
     .kv_heads = 6,
     .head_dim = 4,
     .vocab = 40,
     .tied = 1,
     .rope_factors = 1,
     .seed = 3},
    {.layers = 1, .embedding = 16, .ffn = 16, .heads = 2, .kv_heads = 2, .head_dim = 16, .vocab = 30, .seed = 4},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* --------------------------------------------------------------------------------------------------------- one model
 */

typedef struct bench {
    model *m;
    watched *rows;
    decoder *d;
    plain_forward plain;
    int32_t tokens[MOST_TOKENS];
} bench;

static bench bench_open(const tiny_shape *shape, int32_t top_k) {
    bench b = {.m = tiny_model(shape)};
    uint64_t seed = shape->seed * 1000;
    assert_non_null(b.m);
    b.rows = watch(b.m, MOST_TOKENS);
    b.d = decoder_open(b.m, &b.rows->base, top_k, MOST_TOKENS);
    assert_non_null(b.d);
    b.plain = plain_open(b.m, MOST_TOKENS, b.rows->inner);
    for (int32_t t = 0; t < MOST_TOKENS; t++)
        b.tokens[t] = (int32_t)(tiny_uniform(&seed) * b.m->vocab);
    return b;
}

static void bench_close(bench *b) {
    plain_close(&b->plain);
    decoder_close(b->d);
    b->rows->base.close(&b->rows->base);
    model_close(b->m);
}

static void prefill(decoder *d, const int32_t *tokens, int32_t n) {
    const char *error;
    assert_int_equal(decoder_prefill(&d, 1, tokens, n, NULL, NULL, &error), 0);
    assert_int_equal(d->length, n);
}

static void assert_close(const bench *b, const char *what) {
    for (int32_t i = 0; i < b->m->vocab; i++)
        if (!(fabs((double)b->d->logits[i] - b->plain.logits[i]) < CLOSE))
            fail_msg("%s, %d tokens: logit %d is %g, plain %g", what, b->d->length, i, (double)b->d->logits[i],
                     b->plain.logits[i]);
}

/* With a selection that is everything. Two threads here; one elsewhere, as these matrices are too small to share. */
static void prefill_equals_plain(void **state) {
    static const int32_t lengths[] = {1, 2, 63, 64, 65, 130};
    (void)state;
    math_set_threads(2);
    for (int s = 0; s < N_SHAPES; s++) {
        bench b = bench_open(&shapes[s], 192);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            prefill(b.d, b.tokens, lengths[i]);
            for (b.plain.length = 0; b.plain.length < lengths[i];)
                plain_step(&b.plain, b.tokens[b.plain.length], NULL);
            assert_close(&b, "prefill");
        }
        bench_close(&b);
    }
    math_set_threads(1);
}

/* ------------------------------------------------------------------------------------------------------------- steps
 */

/* Every token once: chunks may come in any order. */
static void assert_everything(const watched *w, int32_t layer, int32_t length) {
    char seen[MOST_TOKENS] = {0};
    assert_int_equal(w->n[layer], length);
    for (int32_t i = 0; i < length; i++) {
        assert_in_range(w->tokens[layer][i], 0, length - 1);
        assert_int_equal(seen[w->tokens[layer][i]]++, 0);
    }
}

/* Whole pages in ascending order, the newest token among them, as many as top_k allows. */
static void assert_pages(const watched *w, int32_t layer, int32_t length) {
    const int32_t *tokens = w->tokens[layer];
    int32_t n = 0;
    assert_int_equal(w->n[layer], TOP_K);
    while (n < TOP_K && tokens[n] >= 0)
        n++;
    for (int32_t i = n; i < TOP_K; i++)
        assert_int_equal(tokens[i], -1);
    assert_int_equal(tokens[n - 1], length - 1);
    for (int32_t i = 0; i < n; i++)
        if (i % PAGE == 0)
            assert_true(tokens[i] % PAGE == 0 && (i == 0 || tokens[i] > tokens[i - 1]));
        else
            assert_int_equal(tokens[i], tokens[i - 1] + 1);
    assert_true(length <= TOP_K ? n == length : n > TOP_K - PAGE);
}

static void steps_equal_plain(void **state) {
    plain_selection selections[8];
    (void)state;
    for (int s = 0; s < N_SHAPES; s++) {
        bench b = bench_open(&shapes[s], TOP_K);
        prefill(b.d, b.tokens, 40);
        while (b.plain.length < 40)
            plain_step(&b.plain, b.tokens[b.plain.length], NULL);
        while (b.d->length < 200) {
            int32_t token = b.tokens[b.d->length];
            assert_int_equal(decoder_step(b.d, token), 0);
            for (int32_t layer = 0; layer < b.m->n_layers; layer++) {
                selections[layer] = (plain_selection){b.rows->tokens[layer], b.rows->n[layer]};
                (layer < b.m->dense_layers ? assert_everything : assert_pages)(b.rows, layer, b.d->length);
            }
            plain_step(&b.plain, token, selections);
            assert_close(&b, "step");
        }
        assert_int_equal(b.d->step, 160);
        bench_close(&b);
    }
}

static void steps_equal_a_longer_prefill(void **state) {
    (void)state;
    for (int s = 0; s < N_SHAPES; s++) {
        bench b = bench_open(&shapes[s], 192), longer = bench_open(&shapes[s], 192);
        prefill(b.d, b.tokens, 3);
        while (b.d->length < 190) {
            assert_int_equal(decoder_step(b.d, b.tokens[b.d->length]), 0);
            if (b.d->length % 11)
                continue;
            prefill(longer.d, b.tokens, b.d->length);
            for (int32_t i = 0; i < b.m->vocab; i++)
                assert_true(fabsf(b.d->logits[i] - longer.d->logits[i]) < (float)CLOSE_TO_ITSELF);
        }
        bench_close(&b);
        bench_close(&longer);
    }
}

/* Whatever top_k is: the rows of a prompt are those of a decoder that selects everything. */
static void a_prompt_attends_to_everything(void **state) {
    (void)state;
    for (int s = 0; s < N_SHAPES; s++) {
        bench sparse = bench_open(&shapes[s], TOP_K), dense = bench_open(&shapes[s], 256);
        int32_t length = 250, n_bytes = dense.rows->base.row_bytes;
        prefill(sparse.d, sparse.tokens, length);
        prefill(dense.d, dense.tokens, length);
        for (int32_t layer = 0; layer < dense.m->n_layers; layer++)
            for (int32_t t = 0; t < length; t++)
                assert_memory_equal(kv_resident_row(sparse.rows->inner, layer, t),
                                    kv_resident_row(dense.rows->inner, layer, t), (size_t)n_bytes);
        bench_close(&sparse);
        bench_close(&dense);
    }
}

/* A prompt shorter than a page, a selection far longer than the context. */
static void top_k_may_exceed_the_context(void **state) {
    (void)state;
    bench b = bench_open(&shapes[0], TOP_K);
    decoder_close(b.d);
    b.d = decoder_open(b.m, &b.rows->base, TOP_K, 5);
    assert_non_null(b.d);
    for (int32_t t = 0; t < 5; t++) {
        assert_int_equal(decoder_step(b.d, b.tokens[t]), 0);
        plain_step(&b.plain, b.tokens[t], NULL);
        assert_close(&b, "short context");
    }
    bench_close(&b);
}

/* ------------------------------------------------------------------------------------------------------------- Quest
 */

/* Upper bound of query . key over a page, summed over KV heads, the queries of a head averaged. */
static double page_score(const bench *b, int32_t layer, int32_t page) {
    const model *m = b->m;
    int32_t shared = m->n_heads / m->n_kv_heads, first = page * PAGE;
    double score = 0;
    for (int32_t c = 0; c < m->n_kv_heads * m->head_dim; c++) {
        double query = 0, least = INFINITY, most = -INFINITY;
        for (int32_t h = 0; h < shared; h++)
            query += (double)b->d->x.query[(c / m->head_dim * shared + h) * m->head_dim + c % m->head_dim] / shared;
        for (int32_t t = first; t < first + PAGE && t < b->d->length; t++) {
            double key = plain_from_bfloat16((const uint8_t *)kv_resident_row(b->rows->inner, layer, t) + 2 * c);
            least = fmin(least, key);
            most = fmax(most, key);
        }
        score += fmax(query * least, query * most);
    }
    return score;
}

/* The last layer's query is still there after a step. */
static void the_best_pages_are_chosen(void **state) {
    (void)state;
    bench b = bench_open(&shapes[0], TOP_K);
    int32_t layer = b.m->n_layers - 1;
    prefill(b.d, b.tokens, 100);
    while (b.d->length < 250) {
        double worst_in = INFINITY, best_out = -INFINITY;
        assert_int_equal(decoder_step(b.d, b.tokens[b.d->length]), 0);
        for (int32_t page = 0; page <= (b.d->length - 1) / PAGE; page++) {
            double score = page_score(&b, layer, page);
            int chosen = 0;
            for (int32_t i = 0; i < TOP_K; i += PAGE)
                chosen |= b.rows->tokens[layer][i] == page * PAGE;
            if (!chosen)
                best_out = fmax(best_out, score);
            else if (page != (b.d->length - 1) / PAGE)
                worst_in = fmin(worst_in, score);
        }
        assert_true(worst_in > best_out - 1e-4);
    }
    bench_close(&b);
}

/* ------------------------------------------------------------------------------------------- stopping and failing */

static int stop_at_half(void *context, double share) {
    double *last = context;
    assert_true(share > *last && share <= 1);
    *last = share;
    return share >= 0.5;
}

static void a_prefill_can_be_stopped(void **state) {
    const char *error;
    double share = 0;
    (void)state;
    bench b = bench_open(&shapes[0], TOP_K);
    assert_int_equal(decoder_prefill(&b.d, 1, b.tokens, 100, stop_at_half, &share, &error), 1);
    assert_int_equal(b.d->length, 0);
    assert_true(share < 1);
    bench_close(&b);
}

static void failures_of_rows_are_passed_up(void **state) {
    const char *error;
    (void)state;
    bench b = bench_open(&shapes[0], TOP_K);
    b.rows->fails = 1;
    assert_int_equal(decoder_prefill(&b.d, 1, b.tokens, 100, NULL, NULL, &error), -1);
    assert_string_equal(error, "told to");
    assert_int_equal(decoder_step(b.d, 0), -1);
    assert_int_equal(b.d->length, 0);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_equals_plain),         cmocka_unit_test(steps_equal_plain),
        cmocka_unit_test(steps_equal_a_longer_prefill), cmocka_unit_test(a_prompt_attends_to_everything),
        cmocka_unit_test(top_k_may_exceed_the_context), cmocka_unit_test(the_best_pages_are_chosen),
        cmocka_unit_test(a_prefill_can_be_stopped),     cmocka_unit_test(failures_of_rows_are_passed_up),
    };
    math_set_threads(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
