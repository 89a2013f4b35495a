/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse run --verify` must find a fault: one byte of a row on the device is spoilt between two steps, and the step,
 * layer and token have to be named. */
#include "arithmetic.h"
#include "run.h"
#include "small_model.h"
#include "tiny_model.h"
#include "with_cmocka.h"

enum { PROMPT = 40, TOTAL = 60, TOP_K = 64, BEFORE = 5 };

static const tiny_shape shape = TINY_SHAPE(9);

/* A run as run_load and run_prefill leave it, after some steps; m is the run's from here on. */
static run start_with(model *m, int32_t block_rows) {
    run r = {.m = m};
    decoder *both[2];
    const char *error;
    int32_t prompt[PROMPT];
    assert_non_null(r.m);
    hsp_config_init(&r.options.cache, sizeof r.options.cache);
    r.options.cache.n_slots = r.options.cache.max_k = r.options.top_k = TOP_K;
    r.options.cache.ring_rows = 3;
    r.options.cache.block_rows = block_rows;
    r.options.cache.n_threads = 1;
    r.cached = kv_open_cache(r.m, &r.options.cache, TOTAL);
    r.resident = kv_open_resident(r.m, TOTAL);
    assert_true(r.cached && r.resident);
    both[0] = r.d = decoder_open(r.m, r.cached, TOP_K, TOTAL);
    both[1] = r.check = decoder_open(r.m, r.resident, TOP_K, TOTAL);
    assert_true(r.d && r.check);
    for (int32_t t = 0; t < PROMPT; t++)
        prompt[t] = (t * 17 + 5) % shape.vocab;
    assert_int_equal(decoder_prefill(both, 2, prompt, PROMPT, NULL, NULL, &error), 0);
    return r;
}

static run start(int32_t block_rows) {
    return start_with(tiny_model(&shape), block_rows);
}

static void step(run *r, int32_t number) {
    assert_int_equal(decoder_step(r->d, number % shape.vocab), 0);
    assert_int_equal(decoder_step(r->check, number % shape.vocab), 0);
    run_compare(r, number);
}

static void stop(run *r) {
    decoder_close(r->d);
    decoder_close(r->check);
    r->cached->close(r->cached);
    r->resident->close(r->resident);
    model_close(r->m);
}

/* Where the row of a token is now: its slot, or its place in the ring. */
static int64_t find_row(const run *r, int32_t layer, int32_t token) {
    int32_t tokens[TOP_K], ring_first, first_id;
    assert_int_equal(hsp_resident(r->cached->cache, r->cached->request, layer, tokens, NULL, &ring_first, &first_id),
                     HSP_OK);
    if (token >= ring_first)
        return first_id + TOP_K + token % r->options.cache.ring_rows;
    for (int32_t s = 0; s < TOP_K; s++)
        if (tokens[s] == token)
            return first_id + s;
    fail_msg("token %d of layer %d is not on the device", token, layer);
    return -1;
}

/* Turn one byte of a row, the high one of a number, into another. */
static void spoil(const run *r, int32_t layer, int32_t token, int plane) {
    hsp_rows_view view = {.struct_size = sizeof view};
    int64_t id = find_row(r, layer, token);
    assert_int_equal(hsp_rows(r->cached->cache, layer, &view), HSP_OK);
    const hsp_plane_view *v = &view.plane[plane];
    char *row = (char *)v->base + (size_t)(id / v->rows_per_block) * v->block_stride +
                (size_t)(id % v->rows_per_block) * v->row_stride;
    row[5] ^= (char)0x81; /* its sign, and four times as large or small */
}

static void spoil_and_find(int32_t block_rows, int32_t layer, int32_t token, int plane) {
    run r = start(block_rows);
    for (int32_t i = 0; i < BEFORE; i++) {
        step(&r, i);
        assert_false(r.difference.found);
    }
    spoil(&r, layer, token, plane);
    step(&r, BEFORE);
    assert_true(r.difference.found);
    assert_int_equal(r.difference.step, BEFORE);
    assert_int_equal(r.difference.layer, layer);
    assert_int_equal(r.difference.token, token);
    assert_true(r.difference.got != r.difference.want);
    assert_true(r.difference.got == r.d->logits[r.difference.vocab_entry]);
    assert_true(r.difference.want == r.check->logits[r.difference.vocab_entry]);
    for (int32_t i = 0; i < r.difference.vocab_entry; i++)
        assert_true(r.d->logits[i] == r.check->logits[i]);
    stop(&r);
}

static void one_byte_is_found(void **state) {
    (void)state;
    for (int32_t layer = 0; layer < shape.layers; layer++)
        for (int plane = 0; plane < 2; plane++) {
            spoil_and_find(1, layer, 0, plane);
            spoil_and_find(16, layer, 17, plane);
            spoil_and_find(1, layer, PROMPT + BEFORE - 4, plane);  /* the newest that is no longer in the ring */
            spoil_and_find(16, layer, PROMPT + BEFORE - 1, plane); /* in the ring */
        }
}

/* Of several wrong rows, the lowest layer's lowest token. */
static void the_first_is_named(void **state) {
    (void)state;
    run r = start(1);
    step(&r, 0);
    spoil(&r, 3, 1, 0);
    spoil(&r, 1, 30, 1);
    spoil(&r, 1, 12, 0);
    step(&r, 1);
    assert_true(r.difference.found);
    assert_int_equal(r.difference.layer, 1);
    assert_int_equal(r.difference.token, 12);
    stop(&r);
}

/* Where every KV head has rows of its own: which one. */
static void the_kv_head_is_named(void **state) {
    static const small_shape nsa = {.architecture = "gqa_nsa",
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
                                    .seed = 2};
    (void)state;
    for (int32_t store = 0; store < 6; store++) {
        small_model *sm = small_open(&nsa);
        run r = start_with(sm->m, 1);
        sm->m = NULL;
        step(&r, 0);
        spoil(&r, store, 7, store % 2);
        step(&r, 1);
        assert_true(r.difference.found);
        assert_int_equal(r.difference.layer, store / 2);
        assert_int_equal(r.difference.kv_head, store % 2);
        assert_int_equal(r.difference.token, 7);
        stop(&r);
        small_close(sm);
    }
}

/* Right rows, wrong arithmetic: no row is blamed. */
static void rows_are_not_blamed_for_arithmetic(void **state) {
    (void)state;
    run r = start(1);
    step(&r, 0);
    r.d->logits[7] += 1;
    run_compare(&r, 3);
    assert_true(r.difference.found);
    assert_int_equal(r.difference.step, 3);
    assert_int_equal(r.difference.vocab_entry, 7);
    assert_int_equal(r.difference.layer, -1);
    assert_int_equal(r.difference.token, -1);
    stop(&r);
}

/* A zero of the other sign is another bit pattern. */
static void bits_count_not_values(void **state) {
    (void)state;
    run r = start(1);
    step(&r, 0);
    r.d->logits[2] = 0.0f;
    r.check->logits[2] = -0.0f;
    run_compare(&r, 0);
    assert_true(r.difference.found);
    assert_int_equal(r.difference.vocab_entry, 2);
    stop(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_byte_is_found),     cmocka_unit_test(the_first_is_named),
        cmocka_unit_test(the_kv_head_is_named),  cmocka_unit_test(rows_are_not_blamed_for_arithmetic),
        cmocka_unit_test(bits_count_not_values),
    };
    math_set_threads(1); /* these matrices are too small to share */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
