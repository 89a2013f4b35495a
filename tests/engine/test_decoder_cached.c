/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder whose rows live in a cache gives the bits of one whose rows are all resident; and what a sampler makes of
 * logits. */
#include "arithmetic.h"
#include "decoder.h"
#include "sampler.h"
#include "tiny_model.h"
#include "with_cmocka.h"

enum { PROMPT = 70, STEPS = 110, TOTAL = PROMPT + STEPS, TOP_K = 64 };

static const tiny_shape shape = TINY_SHAPE(5);
static model *tiny;
static int32_t prompt[PROMPT];

static int set_up(void **state) {
    uint64_t seed = 77;
    (void)state;
    tiny = tiny_model(&shape);
    for (int32_t t = 0; t < PROMPT; t++)
        prompt[t] = (int32_t)(tiny_uniform(&seed) * shape.vocab);
    return tiny ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    model_close(tiny);
    math_set_threads(1);
    return 0;
}

/* What a decoder said: logits and token of every step. */
typedef struct story {
    float *logits; /* [STEPS][vocab] */
    int32_t tokens[STEPS];
} story;

static story tell(kv *rows, double temperature, uint64_t seed) {
    story s = {.logits = malloc(sizeof(float) * STEPS * (size_t)tiny->vocab)};
    const char *error;
    assert_non_null(rows);
    assert_non_null(s.logits);
    decoder *d = decoder_open(tiny, rows, TOP_K, TOTAL);
    assert_non_null(d);
    assert_int_equal(decoder_prefill(&d, 1, prompt, PROMPT - 1, NULL, NULL, &error), 0);
    int32_t token = prompt[PROMPT - 1];
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(decoder_step(d, token), 0);
        memcpy(s.logits + (size_t)step * (size_t)tiny->vocab, d->logits, sizeof(float) * (size_t)tiny->vocab);
        token = s.tokens[step] = sampler_next(d->logits, tiny->vocab, temperature, &seed);
    }
    decoder_close(d);
    rows->close(rows);
    return s;
}

static void assert_same_story(const story *a, const story *b, const char *what) {
    for (int step = 0; step < STEPS; step++)
        if (memcmp(a->logits + (size_t)step * (size_t)tiny->vocab, b->logits + (size_t)step * (size_t)tiny->vocab,
                   sizeof(float) * (size_t)tiny->vocab) != 0 ||
            a->tokens[step] != b->tokens[step])
            fail_msg("%s: step %d differs", what, step);
}

static hsp_config cache_config(const char *backend, int32_t policy, int32_t n_slots, int threads) {
    hsp_config c;
    hsp_config_init(&c, sizeof c);
    assert_int_equal(hsp_config_set(&c, "backend", backend), HSP_OK);
    c.policy = policy;
    c.n_slots = n_slots;
    c.max_k = TOP_K;
    c.n_threads = threads;
    c.ring_rows = 1 + n_slots % 3;
    c.block_rows = n_slots == TOP_K ? 1 : 16;
    return c;
}

/* Slots as few as may be, somewhat more, and more than there are tokens. */
static void cached_equals_resident(void **state) {
    static const int32_t slots[] = {TOP_K, TOP_K + 17, TOTAL + 20};
    const char *backend = *state;
    char what[96];
    for (int threads = 1; threads <= 3; threads++) {
        math_set_threads(threads);
        story want = tell(kv_open_resident(tiny, TOTAL), 0, 0);
        for (int32_t policy = HSP_LRU; policy <= HSP_CLOCK; policy++)
            for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
                hsp_config c = cache_config(backend, policy, slots[i], threads);
                story got = tell(kv_open_cache(tiny, &c, TOTAL), 0, 0);
                snprintf(what, sizeof what, "%s, policy %d, %d slots, %d threads", backend, policy, slots[i], threads);
                assert_same_story(&got, &want, what);
                free(got.logits);
            }
        free(want.logits);
    }
}

static void cached_in_a_file_equals_resident(void **state) {
    hsp_config c = cache_config("cpu", HSP_LRU, TOP_K, 2);
    (void)state;
    math_set_threads(2);
    snprintf(c.host_file, sizeof c.host_file, "test_decoder_rows_%d", (int)getpid());
    story want = tell(kv_open_resident(tiny, TOTAL), 0, 0), got = tell(kv_open_cache(tiny, &c, TOTAL), 0, 0);
    assert_same_story(&got, &want, "host file");
    assert_int_not_equal(access(c.host_file, F_OK), 0);
    free(got.logits);
    free(want.logits);
}

/* One prefill may serve both. */
static void two_decoders_share_a_prefill(void **state) {
    hsp_config c = cache_config("cpu", HSP_CLOCK, TOP_K, 1);
    const char *error;
    kv *rows[2] = {kv_open_cache(tiny, &c, TOTAL), kv_open_resident(tiny, TOTAL)};
    decoder *both[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_non_null(rows[i]);
        both[i] = decoder_open(tiny, rows[i], TOP_K, TOTAL);
        assert_non_null(both[i]);
    }
    assert_int_equal(decoder_prefill(both, 2, prompt, PROMPT, NULL, NULL, &error), 0);
    for (int step = 0; step < STEPS; step++) {
        assert_memory_equal(both[0]->logits, both[1]->logits, sizeof(float) * (size_t)tiny->vocab);
        for (int i = 0; i < 2; i++)
            assert_int_equal(decoder_step(both[i], step % tiny->vocab), 0);
    }
    assert_int_equal(decoder_step(both[0], 0), -1); /* beyond what was admitted */
    assert_non_null(strstr(rows[0]->error, "180"));
    for (int i = 0; i < 2; i++) {
        decoder_close(both[i]);
        rows[i]->close(rows[i]);
    }
}

static void a_bad_cache_is_refused(void **state) {
    hsp_config c = cache_config("cpu", HSP_LRU, TOP_K - 1, 1);
    (void)state;
    assert_null(kv_open_cache(tiny, &c, TOTAL));
    assert_non_null(strstr(hsp_last_error(NULL), "n_slots is 63"));
}

/* ----------------------------------------------------------------------------------------------------------- sampler
 */

static void draws_repeat_with_their_seed(void **state) {
    story s[5];
    const double temperature[] = {0, 0, 1, 1, 1};
    const uint64_t seed[] = {1, 2, 7, 7, 8};
    (void)state;
    math_set_threads(1);
    for (int i = 0; i < 5; i++)
        s[i] = tell(kv_open_resident(tiny, TOTAL), temperature[i], seed[i]);
    assert_same_story(&s[0], &s[1], "greedy, whatever the seed");
    assert_same_story(&s[2], &s[3], "same seed");
    assert_memory_not_equal(s[2].tokens, s[4].tokens, sizeof s[2].tokens);
    assert_memory_not_equal(s[2].tokens, s[0].tokens, sizeof s[2].tokens);
    for (int i = 0; i < 5; i++)
        free(s[i].logits);
}

static void draws_have_the_right_distribution(void **state) {
    enum { VOCAB = 8, DRAWS = 200000 };
    const float logits[VOCAB] = {1, -2, 0.5f, 3, -INFINITY, 2.9f, 0, -1};
    static const double temperatures[] = {0.5, 1, 4};
    (void)state;
    for (int t = 0; t < 3; t++) {
        uint64_t seed = 42 + (uint64_t)t;
        double sum = 0, chi_square = 0;
        int count[VOCAB] = {0};
        for (int i = 0; i < VOCAB; i++)
            sum += exp((double)logits[i] / temperatures[t]);
        for (int i = 0; i < DRAWS; i++)
            count[sampler_next(logits, VOCAB, temperatures[t], &seed)]++;
        for (int i = 0; i < VOCAB; i++) {
            double want = DRAWS * exp((double)logits[i] / temperatures[t]) / sum;
            chi_square += want > 0 ? (count[i] - want) * (count[i] - want) / want : 0;
        }
        assert_int_equal(count[4], 0);
        assert_true(chi_square < 27); /* six degrees of freedom: one seed in ten thousand exceeds it */
    }
}

static void awkward_logits(void **state) {
    const float equal[] = {1, 2, 2, 2}, with_nan[] = {1, NAN, 3, 2}, infinite[] = {1, INFINITY, 0, 0};
    uint64_t seed = 0;
    (void)state;
    assert_int_equal(sampler_next(equal, 4, 0, &seed), 1);
    assert_int_equal(seed, 0); /* the likeliest needs no draw */
    assert_int_equal(sampler_next(with_nan, 4, 0, &seed), 2);
    assert_int_equal(sampler_next(infinite, 4, 0, &seed), 1);
    assert_int_equal(sampler_next(infinite, 4, 1, &seed), 1);
    assert_int_not_equal(seed, 0);
    assert_int_equal(sampler_next(equal, 1, 1, &seed), 0);
    assert_int_equal(sampler_next(infinite + 2, 1, 1e-300, &seed), 0);
    for (int i = 0; i < 100; i++)
        assert_in_range(sampler_next(equal, 4, 1e-300, &seed), 1, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"cached_equals_resident on ref", cached_equals_resident, NULL, NULL, (void *)(uintptr_t) "ref"},
        {"cached_equals_resident on cpu", cached_equals_resident, NULL, NULL, (void *)(uintptr_t) "cpu"},
        cmocka_unit_test(cached_in_a_file_equals_resident),
        cmocka_unit_test(two_decoders_share_a_prefill),
        cmocka_unit_test(a_bad_cache_is_refused),
        cmocka_unit_test(draws_repeat_with_their_seed),
        cmocka_unit_test(draws_have_the_right_distribution),
        cmocka_unit_test(awkward_logits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
