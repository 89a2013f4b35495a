/* SPDX-License-Identifier: Apache-2.0 */
/* The three architectures out of safetensors files: steps against a plain forward pass in double precision and the
 * choice of tokens against its scores, prefill against steps, rows in a cache against rows kept whole. */
#include "arithmetic.h"
#include "decoder.h"
#include "plain_small.h"
#include "watched_rows.h"
#include "with_cmocka.h"

static const small_shape shapes[] = {
    {.architecture = "gqa_quest",
     .dtype = "BF16",
     .layers = 3,
     .embedding = 32,
     .ffn = 48,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .dense_layers = 1,
     .page_tokens = 8,
     .top_k = 64,
     .theta = 5e5,
     .seed = 1},
    {.architecture = "gqa_nsa",
     .dtype = "BF16",
     .layers = 3,
     .embedding = 32,
     .ffn = 48,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .compress_tokens = 8,
     .compress_stride = 4,
     .block_tokens = 16,
     .n_blocks = 4,
     .n_first = 1,
     .n_local = 2,
     .window = 24,
     .theta = 5e5,
     .seed = 2},
    {.architecture = "gqa_nsa",
     .dtype = "F32",
     .layers = 2,
     .embedding = 36,
     .ffn = 20,
     .heads = 6,
     .kv_heads = 3,
     .head_dim = 6,
     .compress_tokens = 6,
     .compress_stride = 6,
     .block_tokens = 12,
     .n_blocks = 3,
     .n_first = 0,
     .n_local = 1,
     .window = 70,
     .theta = 1e4,
     .seed = 3},
    {.architecture = "mla_dsa",
     .dtype = "BF16",
     .layers = 3,
     .embedding = 32,
     .ffn = 48,
     .heads = 4,
     .latent = 24,
     .rope = 8,
     .nope = 12,
     .value = 10,
     .index_heads = 3,
     .index_dim = 16,
     .index_rope = 8,
     .index_dtype = "e4m3",
     .top_k = 64,
     .theta = 5e5,
     .seed = 4},
    {.architecture = "mla_dsa",
     .dtype = "F16",
     .layers = 2,
     .embedding = 24,
     .ffn = 40,
     .heads = 3,
     .latent = 20,
     .rope = 6,
     .nope = 7,
     .value = 9,
     .index_heads = 5,
     .index_dim = 32,
     .index_rope = 32,
     .index_dtype = "bf16",
     .top_k = 64,
     .theta = 1e4,
     .seed = 5},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0], LENGTH = 200, PROMPT = 40 };

/* As in test_decoder.c. Index keys of the two passes may be rounded to neighbours, which moves a score: by a sixteenth
 * of the product at most in e4m3, of some hundred products that are not all moved the same way. */
static const double CLOSE = 3e-4, CLOSE_TO_ITSELF = 0.03, CLOSE_SCORES = 0.03;

typedef struct bench {
    small_model *sm;
    watched *rows;
    decoder *d;
    int32_t tokens[LENGTH];
} bench;

static bench bench_open(const small_shape *shape) {
    bench b = {.sm = small_open(shape)};
    uint64_t seed = shape->seed * 1000;
    assert_non_null(b.sm->m);
    b.rows = watch(b.sm->m, LENGTH);
    b.d = decoder_open(b.sm->m, &b.rows->base, b.sm->m->top_k, LENGTH);
    assert_non_null(b.d);
    for (int32_t t = 0; t < LENGTH; t++)
        b.tokens[t] = (int32_t)(small_uniform(&seed) * 256);
    return b;
}

static void bench_close(bench *b) {
    decoder_close(b->d);
    b->rows->base.close(&b->rows->base);
    small_close(b->sm);
}

/* ------------------------------------------------------------------------------------------------- what is chosen --
 */

static int is_chosen(const int32_t *tokens, int32_t n, int32_t token) {
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] == token)
            return 1;
    return 0;
}

/* Of n candidates, candidate c begins at token c * size: those chosen score no less than those left out. Candidates
 * before n_first and from first_local on are in whatever they score. */
static void assert_best(const int32_t *tokens, int32_t k, int32_t n, int32_t size, int32_t n_first, int32_t first_local,
                        const double *score, double close) {
    double worst_in = INFINITY, best_out = -INFINITY;
    for (int32_t c = 0; c < n; c++) {
        int chosen = is_chosen(tokens, k, c * size), forced = c < n_first || c >= first_local;
        assert_true(chosen || !forced);
        if (!chosen)
            best_out = fmax(best_out, score[c]);
        else if (!forced)
            worst_in = fmin(worst_in, score[c]);
    }
    if (!(worst_in >= best_out - close))
        fail_msg("chosen %g, left out %g", worst_in, best_out);
}

/* Ascending, without repetitions, -1 only at the end, the right number. */
static void assert_ascending(const int32_t *tokens, int32_t k, int32_t n, int32_t length) {
    for (int32_t i = 0; i < k; i++)
        assert_true(i < n ? tokens[i] < length && tokens[i] > (i ? tokens[i - 1] : -1) : tokens[i] == -1);
}

static void check_dsa(const bench *b, const plain_small *p, int32_t layer) {
    int32_t k = b->sm->m->top_k, length = p->length;
    assert_int_equal(b->rows->n[layer], k);
    assert_ascending(b->rows->tokens[layer], k, length < k ? length : k, length);
    assert_best(b->rows->tokens[layer], k, length, 1, 0, length, p->score[layer], CLOSE_SCORES);
}

static void check_nsa(const bench *b, const plain_small *p, int32_t store) {
    const small_shape *s = b->sm->s;
    const int32_t *tokens = b->rows->tokens[store];
    int32_t k = b->sm->m->top_k, length = p->length, n_blocks = (length + s->block_tokens - 1) / s->block_tokens;
    assert_int_equal(b->rows->n[store], k + s->window);
    assert_best(tokens, k, n_blocks, s->block_tokens, s->n_first, n_blocks - s->n_local, p->score[store], 1e-5);
    for (int32_t i = 0; i < s->window; i++) {
        int32_t first = length > s->window ? length - s->window : 0;
        assert_int_equal(tokens[k + i], first + i < length ? first + i : -1);
    }
}

/* A dense layer asks for every token once; the others for whole pages of the size the file says, the newest in. */
static void check_quest(const bench *b, const plain_small *p, int32_t layer) {
    const small_shape *s = b->sm->s;
    const int32_t *tokens = b->rows->tokens[layer];
    int32_t length = p->length;
    assert_int_equal(b->rows->n[layer], layer < s->dense_layers ? length : s->top_k);
    assert_true(is_chosen(tokens, b->rows->n[layer], length - 1));
    for (int32_t t = 0; t < length; t++) {
        int32_t page_first = t / s->page_tokens * s->page_tokens;
        int chosen = is_chosen(tokens, b->rows->n[layer], t);
        assert_true(layer < s->dense_layers ? chosen : chosen == is_chosen(tokens, s->top_k, page_first));
    }
}

/* ----------------------------------------------------------------------------------------------------- the passes --
 */

static void steps_equal_plain(void **state) {
    plain_selection chosen[WATCHED_STORES];
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        bench b = bench_open(&shapes[i]);
        plain_small *p = plain_small_open(b.sm, b.rows->inner);
        int32_t stores = b.sm->m->n_layers * b.sm->m->stores;
        while (b.d->length < LENGTH) {
            int32_t token = b.tokens[b.d->length];
            assert_int_equal(decoder_step(b.d, token), 0);
            for (int32_t s = 0; s < stores; s++)
                chosen[s] = (plain_selection){b.rows->tokens[s], b.rows->n[s]};
            plain_small_step(p, token, chosen);
            for (int32_t v = 0; v < 256; v++)
                if (!(fabs((double)b.d->logits[v] - p->logits[v]) < CLOSE))
                    fail_msg("shape %d, %d tokens: logit %d is %g, plain %g", i, b.d->length, v, (double)b.d->logits[v],
                             p->logits[v]);
            for (int32_t s = 0; s < stores; s++)
                (b.sm->m->kind == MODEL_DSA   ? check_dsa
                 : b.sm->m->kind == MODEL_NSA ? check_nsa
                                              : check_quest)(&b, p, s);
        }
        plain_small_close(p);
        bench_close(&b);
    }
}

/* A rounding that turns a choice near a tie changes the rows of some tokens after it; a wrong choice, a wrong position
 * or a compressed row too many would change them all. */
static void prefill_equals_steps(void **state) {
    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int threads = 1; threads <= 2; threads++) {
            bench steps = bench_open(&shapes[i]), whole = bench_open(&shapes[i]);
            if (steps.sm->m->kind == MODEL_QUEST) { /* a prompt attends to everything: test_decoder.c */
                bench_close(&steps);
                bench_close(&whole);
                continue;
            }
            const char *error;
            int32_t far = 0, numbers = 0, stores = whole.sm->m->n_layers * whole.sm->m->stores;
            while (steps.d->length < LENGTH - 1)
                assert_int_equal(decoder_step(steps.d, steps.tokens[steps.d->length]), 0);
            math_set_threads(threads);
            assert_int_equal(decoder_prefill(&whole.d, 1, whole.tokens, LENGTH - 1, NULL, NULL, &error), 0);
            math_set_threads(1);
            assert_int_equal(whole.d->length, LENGTH - 1);
            for (int32_t s = 0; s < stores; s++)
                for (int32_t t = 0; t < LENGTH - 1; t++)
                    for (int32_t at = 0; at < whole.rows->base.row_bytes; at += 2, numbers++) {
                        const uint8_t *got = kv_resident_row(whole.rows->inner, s, t);
                        const uint8_t *want = kv_resident_row(steps.rows->inner, s, t);
                        far += fabs(plain_from_bfloat16(got + at) - plain_from_bfloat16(want + at)) > CLOSE_TO_ITSELF;
                    }
            if (far > numbers / 100)
                fail_msg("shape %d: %d of %d numbers differ", i, far, numbers);
            /* What the selectors keep is as good for the steps that follow. */
            assert_int_equal(decoder_step(whole.d, whole.tokens[LENGTH - 1]), 0);
            assert_int_equal(decoder_step(steps.d, steps.tokens[LENGTH - 1]), 0);
            for (int32_t v = 0; v < 256; v++)
                assert_true(fabsf(whole.d->logits[v] - steps.d->logits[v]) < 0.3f);
            bench_close(&steps);
            bench_close(&whole);
        }
}

/* ----------------------------------------------------------------------------------------------------- the stores --
 */

static hsp_config cache_config(const model *m, const char *backend, int32_t n_slots, int threads) {
    hsp_config c;
    hsp_config_init(&c, sizeof c);
    assert_int_equal(hsp_config_set(&c, "backend", backend), HSP_OK);
    c.n_slots = n_slots;
    c.max_k = m->top_k;
    c.n_threads = threads;
    c.ring_rows = 3;
    c.block_rows = n_slots % 2 ? 16 : 1;
    return c;
}

/* Prefill, then steps; every logit. */
static float *tell(const bench *b, kv *rows) {
    const char *error;
    float *logits = malloc(sizeof *logits * 256 * LENGTH);
    assert_non_null(rows);
    assert_non_null(logits);
    decoder *d = decoder_open(b->sm->m, rows, b->sm->m->top_k, LENGTH);
    assert_non_null(d);
    assert_int_equal(decoder_prefill(&d, 1, b->tokens, PROMPT, NULL, NULL, &error), 0);
    for (int32_t t = PROMPT; t < LENGTH; t++) {
        assert_int_equal(decoder_step(d, b->tokens[t]), 0);
        memcpy(logits + 256 * t, d->logits, sizeof *logits * 256);
    }
    decoder_close(d);
    rows->close(rows);
    return logits;
}

static void cached_equals_resident(void **state) {
    const char *backend = *state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int threads = 1; threads <= 2; threads++) {
            bench b = bench_open(&shapes[i]);
            const model *m = b.sm->m;
            int32_t least = m->top_k > m->window ? m->top_k : m->window;
            const int32_t slots[] = {least, least + 17, 2 * least, 4 * least};
            math_set_threads(threads);
            float *want = tell(&b, kv_open_resident(m, LENGTH));
            for (size_t s = 0; s < sizeof slots / sizeof slots[0]; s++) {
                hsp_config c = cache_config(m, backend, slots[s], threads);
                float *got = tell(&b, kv_open_cache(m, &c, LENGTH));
                assert_memory_equal(got + 256 * PROMPT, want + 256 * PROMPT, sizeof *got * 256 * (LENGTH - PROMPT));
                assert_true(c.ring_rows >= m->window);
                free(got);
            }
            math_set_threads(1);
            free(want);
            bench_close(&b);
        }
}

/* Once as many tokens as the window have been decoded, none of it is fetched: only what the selection asks for. */
static void the_window_stays_in_the_ring(void **state) {
    const char *error;
    int32_t ring_first;
    hsp_counters before, after;
    (void)state;
    bench b = bench_open(&shapes[1]);
    const model *m = b.sm->m;
    hsp_config c = cache_config(m, "cpu", 4 * m->top_k, 1);
    kv *rows = kv_open_cache(m, &c, LENGTH);
    decoder *d = decoder_open(m, rows, m->top_k, LENGTH);
    assert_int_equal(decoder_prefill(&d, 1, b.tokens, PROMPT, NULL, NULL, &error), 0);
    for (int32_t t = PROMPT; t < PROMPT + m->window; t++)
        assert_int_equal(decoder_step(d, b.tokens[t]), 0);
    assert_int_equal(hsp_resident(rows->cache, rows->request, 0, NULL, NULL, &ring_first, NULL), HSP_OK);
    assert_int_equal(ring_first, d->length - m->window);
    int32_t newest[64];
    assert_int_equal(hsp_nsa_window(m->window, d->length, newest), HSP_OK);
    hsp_request_counters(rows->cache, rows->request, &before);
    assert_int_equal(rows->select(rows, 0, newest, m->window, b.rows->tokens[0]), 0);
    hsp_request_counters(rows->cache, rows->request, &after);
    assert_int_equal(after.misses, before.misses);
    assert_int_equal(after.hits, before.hits + (uint64_t)m->window);
    decoder_close(d);
    rows->close(rows);
    bench_close(&b);
}

static void an_unsuitable_top_k_is_refused(void **state) {
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        bench b = bench_open(&shapes[i]);
        assert_null(decoder_open(b.sm->m, &b.rows->base, 0, LENGTH));
        if (b.sm->m->kind != MODEL_DSA)
            assert_null(decoder_open(b.sm->m, &b.rows->base, b.sm->m->top_k + 1, LENGTH));
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_plain),
        cmocka_unit_test(prefill_equals_steps),
        {"cached_equals_resident on ref", cached_equals_resident, NULL, NULL, (void *)(uintptr_t) "ref"},
        {"cached_equals_resident on cpu", cached_equals_resident, NULL, NULL, (void *)(uintptr_t) "cpu"},
        cmocka_unit_test(the_window_stays_in_the_ring),
        cmocka_unit_test(an_unsuitable_top_k_is_refused),
    };
    math_set_threads(1); /* these matrices are too small to share */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
