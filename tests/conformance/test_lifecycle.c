/* SPDX-License-Identifier: Apache-2.0 */
/* Lives of requests, on every backend: growth, roll-back, reuse of pages and slots, refusals. */
#include "check.h"

static const int one_new[4] = {1, 1, 1, 1};

static void select_all_groups(toy *t, const int32_t *selection, int k) {
    for (int g = 0; g < t->n_groups; g++)
        toy_swap_in(t, g, selection, 1, k);
}

/* The newest `k` tokens of request 0, in a step of that request alone. */
static void step_newest(toy *t, int k) {
    int rs[1] = {0};
    int32_t selection[64];
    assert_int_equal(toy_step(t, rs, one_new, 1), HSP_OK);
    for (int i = 0; i < k; i++)
        selection[i] = t->request[0].length - 1 - i;
    select_all_groups(t, selection, k);
}

static void length_crosses_every_border(void **state) {
    static const int starts[] = {0, 1, 4, 5, 31, 32, 33, 34, 37, 38, 39, 63, 64, 65, 96, 97};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        hsp_config c = small_config(*state);
        toy t;
        toy_open(&t, &c);
        assert_int_equal(toy_admit(&t, 0, 400), HSP_OK);
        assert_int_equal(toy_fill(&t, 0, starts[i]), HSP_OK);
        for (int s = 0; s < 12; s++) {
            step_newest(&t, 31);
            toy_check(&t);
        }
        toy_close(&t);
    }
}

/* One request longer than the device slots of all requests together. */
static void longer_than_all_slots(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    uint64_t seed = 3;
    int rs[1] = {0};
    int32_t selection[31];
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, 400), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 390), HSP_OK);
    for (int s = 0; s < 10; s++) {
        assert_int_equal(toy_step(&t, rs, one_new, 1), HSP_OK);
        for (int e = 0; e < 31; e++)
            selection[e] = (int)draw(&seed, (uint32_t)t.request[0].length);
        select_all_groups(&t, selection, 31);
        toy_check(&t);
    }
    assert_int_equal(toy_step(&t, rs, one_new, 1), HSP_ELIMIT); /* 400 admitted, 400 used */
    toy_check(&t);
    toy_close(&t);
}

/* Drafts are appended, selected, rejected, and other rows take their positions: inside the ring, and far behind it. */
static void rejected_drafts(void **state) {
    static const int back[] = {0, 1, 2, 4, 5, 6, 9, 40, 100};
    hsp_config c = small_config(*state);
    toy t;
    int rs[1] = {0}, three[1] = {3};
    c.max_queries = 3;
    c.max_k = 11;
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, 400), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 150), HSP_OK);
    for (size_t i = 0; i < sizeof back / sizeof back[0]; i++)
        for (int again = 0; again < 4; again++) {
            int32_t selection[3 * 11];
            assert_int_equal(toy_step(&t, rs, three, 1), HSP_OK);
            for (int e = 0; e < 33; e++)
                selection[e] = t.request[0].length - 1 - e % 31;
            for (int g = 0; g < 3; g++)
                toy_swap_in(&t, g, selection, 3, 11);
            toy_check(&t);
            int left = t.request[0].length - back[i];
            assert_int_equal(toy_truncate(&t, 0, left > 0 ? left : 0), HSP_OK);
            toy_check(&t);
        }
    assert_int_equal(toy_truncate(&t, 0, t.request[0].length + 1), HSP_ELIMIT);
    assert_int_equal(toy_truncate(&t, 0, -1), HSP_ELIMIT);
    assert_int_equal(toy_truncate(&t, 0, 0), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 70), HSP_OK);
    step_newest(&t, 11);
    toy_check(&t);
    toy_close(&t);
}

/* Another turn of a conversation: decode, then fill again, then decode. */
static void fill_between_steps(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, 400), HSP_OK);
    for (int turn = 0; turn < 4; turn++) {
        assert_int_equal(toy_fill(&t, 0, 40 + turn), HSP_OK);
        for (int s = 0; s < 9; s++)
            step_newest(&t, 31);
        toy_check(&t);
    }
    toy_close(&t);
}

/* A recycled page and a recycled slot show their new owner nothing of the old one. */
static void recycled_pages_are_unreadable(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    c.host_tokens = 128;
    c.max_requests = 1;
    c.max_context = 128;
    toy_open(&t, &c);
    for (int round = 0; round < 6; round++) {
        int rs[1] = {0}, none[1] = {0};
        int32_t old[31];
        for (int i = 0; i < 31; i++)
            old[i] = 10 + 3 * i;
        assert_int_equal(toy_admit(&t, 0, 128), HSP_OK);
        assert_int_equal(toy_step(&t, rs, none, 1), HSP_OK);
        select_all_groups(&t, old, 31); /* length 0: every one is -1 and counted */
        assert_int_equal(t.request[0].counters.invalid, 3 * 31);
        assert_int_equal(toy_fill(&t, 0, 60 + round), HSP_OK);
        for (int s = 0; s < 5; s++)
            step_newest(&t, 31);
        toy_check(&t);
        assert_int_equal(toy_retire(&t, 0), HSP_OK);
    }
    toy_close(&t);
}

/* Tokens that are cut between a step's begin and its append: what is appended late must not come back. */
static void truncate_before_the_append(void **state) {
    hsp_config c = small_config(*state);
    const toy_device *device = toy_device_of(*state);
    static const int32_t map[3] = {0, 0, 1};
    int32_t request, two = 2, *ids = device->alloc(8), *tokens = device->alloc(8);
    hsp_cache *cache;
    unsigned char *rows = device->alloc(20 * 152), seen[152];
    c.layer_group = map;
    c.max_queries = 2;
    c.max_k = 2;
    assert_int_equal(hsp_open(&c, &cache), HSP_OK);
    assert_int_equal(hsp_admit(cache, 100, &request), HSP_OK);
    hsp_row_source source = {{rows, rows + 20}, {152, 152}};
    memset(rows, 1, 20 * 152);
    for (int layer = 0; layer < 3; layer++)
        assert_int_equal(hsp_fill(cache, request, layer, 0, 10, &source, NULL), HSP_OK);
    assert_int_equal(hsp_step_begin(cache, &request, &two, 1, NULL), HSP_OK);
    device->wait();
    memset(rows, 2, 20 * 152); /* the draft: tokens 10 and 11, of which 11 is rejected at once */
    assert_int_equal(hsp_append(cache, 0, &source, 2, NULL), HSP_OK);
    assert_int_equal(hsp_truncate(cache, request, 11, NULL), HSP_OK);
    assert_int_equal(hsp_append(cache, 1, &source, 2, NULL), HSP_OK);
    assert_int_equal(hsp_append(cache, 2, &source, 2, NULL), HSP_OK);
    tokens[0] = 10, tokens[1] = 11;
    for (int layer = 0; layer < 3; layer += 2) {
        assert_int_equal(hsp_swap_in(cache, layer, tokens, 1, 2, ids, NULL), HSP_OK);
        device->wait();
        assert_true(ids[0] >= 0);
        assert_int_equal(ids[1], -1);
    }
    hsp_row_sink sink = {{seen, seen + 20}, {0}};
    for (int layer = 0; layer < 3; layer++) {
        assert_int_equal(hsp_read(cache, request, layer, 10, 1, &sink), HSP_OK);
        assert_int_equal(hsp_read(cache, request, layer, 11, 1, &sink), HSP_ELIMIT);
    }
    memset(rows, 3, 20 * 152); /* other bytes take the position */
    for (int layer = 0; layer < 3; layer++)
        assert_int_equal(hsp_fill(cache, request, layer, 11, 1, &source, NULL), HSP_OK);
    assert_int_equal(hsp_swap_in(cache, 0, tokens, 1, 2, ids, NULL), HSP_OK);
    device->wait();
    for (int layer = 0; layer < 2; layer++) {
        hsp_rows_view view = {.struct_size = sizeof view};
        assert_int_equal(hsp_rows(cache, layer, &view), HSP_OK);
        device->read(seen, (char *)view.plane[0].base + (size_t)ids[1] * view.plane[0].row_stride, 20);
        assert_int_equal(seen[0], 3);
    }
    hsp_close(cache);
    device->release(rows);
    device->release(ids);
    device->release(tokens);
}

/* A fill that comes before the rows of the step have been appended would leave a hole: refused. */
static void fill_before_the_append(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    unsigned char row[152] = {0};
    hsp_row_source rows = {{row, row}, {0}};
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, 100), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 20), HSP_OK);
    int32_t handle = t.request[0].handle;
    assert_int_equal(hsp_step_begin(t.cache, &handle, NULL, 1, NULL), HSP_OK);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 21, 1, &rows, NULL), HSP_ESTATE);
    assert_int_equal(hsp_append(t.cache, 1, &rows, 1, NULL), HSP_OK);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 21, 1, &rows, NULL), HSP_OK);
    toy_close(&t);
}

/* A follower whose append was forgotten must not show the ring of the slot's former owner. */
static void forgotten_append_shows_nothing(void **state) {
    hsp_config c = small_config(*state);
    const toy_device *device = toy_device_of(*state);
    int32_t group[3] = {0, 0, 0}, request, *id = device->alloc(4), *token = device->alloc(4);
    hsp_cache *cache;
    unsigned char *secret = device->alloc(152), row[20];
    hsp_row_source rows = {{secret, secret}, {0}};
    c.layer_group = group;
    memset(secret, 0xab, 152);
    assert_int_equal(hsp_open(&c, &cache), HSP_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(hsp_admit(cache, 100, &request), HSP_OK);
        assert_int_equal(hsp_step_begin(cache, &request, NULL, 1, NULL), HSP_OK);
        for (int layer = 0; layer < (round ? 1 : 3); layer++)
            assert_int_equal(hsp_append(cache, layer, &rows, 1, NULL), HSP_OK);
        assert_int_equal(hsp_swap_in(cache, 0, token, 1, 1, id, NULL), HSP_OK);
        if (round == 0)
            assert_int_equal(hsp_retire(cache, request), HSP_OK);
    }
    hsp_rows_view view = {.struct_size = sizeof view};
    assert_int_equal(hsp_rows(cache, 2, &view), HSP_OK);
    device->wait();
    device->read(row, (const char *)view.plane[0].base + (size_t)*id * view.plane[0].row_stride, sizeof row);
    for (size_t i = 0; i < sizeof row; i++)
        assert_int_equal(row[i], 0);
    hsp_close(cache);
    device->release(secret);
    device->release(id);
    device->release(token);
}

static void retire_in_a_step(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    int rs[2] = {0, 1};
    int32_t selection[62];
    toy_open(&t, &c);
    for (int e = 0; e < 62; e++)
        selection[e] = e;
    for (int round = 0; round < 5; round++) {
        assert_int_equal(toy_admit(&t, 0, 200), HSP_OK);
        assert_int_equal(toy_fill(&t, 0, 100), HSP_OK);
        if (round == 0) {
            assert_int_equal(toy_admit(&t, 1, 400), HSP_OK);
            assert_int_equal(toy_fill(&t, 1, 100), HSP_OK);
        }
        assert_int_equal(toy_step(&t, rs, one_new, 2), HSP_OK);
        toy_swap_in(&t, 0, selection, 1, 31);
        assert_int_equal(toy_retire(&t, 0), HSP_OK);
        assert_int_equal(toy_admit(&t, 0, 200), HSP_OK); /* takes the slot at once, is not in the step */
        toy_swap_in(&t, 1, selection, 1, 31);
        toy_check(&t);
        assert_int_equal(toy_retire(&t, 0), HSP_OK);
    }
    toy_check(&t);
    toy_close(&t);
}

/* Growth is counted at admission: the last page is given, one more is refused, and after a retire the next goes on. */
static void pool_to_the_last_page(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    c.max_requests = 20;
    c.host_tokens = 64 * 12;
    toy_open(&t, &c);
    for (int r = 0; r < 4; r++)
        assert_int_equal(toy_admit(&t, r, 64 * 3 - r), HSP_OK);
    assert_int_equal(toy_admit(&t, 4, 1), HSP_EHOSTFULL);
    assert_non_null(strstr(hsp_last_error(t.cache), "0 of 12 are free"));
    assert_int_equal(toy_retire(&t, 1), HSP_OK);
    assert_int_equal(toy_retire(&t, 3), HSP_OK);
    assert_int_equal(toy_admit(&t, 4, 64 * 6 + 1), HSP_EHOSTFULL);
    assert_int_equal(toy_admit(&t, 4, 64 * 6), HSP_OK); /* in two pieces */
    assert_int_equal(toy_fill(&t, 4, 64 * 6 - 12), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 100), HSP_OK);
    for (int s = 0; s < 12; s++) {
        int rs[2] = {4, 0};
        int32_t selection[62];
        assert_int_equal(toy_step(&t, rs, one_new, 2), HSP_OK);
        for (int e = 0; e < 62; e++)
            selection[e] = (e * 37 + s) % 90;
        select_all_groups(&t, selection, 31);
    }
    toy_check(&t);
    toy_close(&t);
}

static void request_slots_run_out(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    toy_open(&t, &c);
    for (int r = 0; r < 3; r++)
        assert_int_equal(toy_admit(&t, r, 64), HSP_OK);
    toy_request *spare = t.request; /* a fourth has no place in the toy either */
    int32_t handle = -7;
    assert_int_equal(hsp_admit(t.cache, 64, &handle), HSP_EBUSY);
    assert_int_equal(handle, -7);
    assert_int_equal(toy_retire(&t, 2), HSP_OK);
    assert_int_equal(toy_admit(&t, 2, 64), HSP_OK);
    assert_true(spare->live);
    toy_check(&t);
    toy_close(&t);
}

static void refusals_change_nothing(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    int rs[1] = {0};
    int32_t selection[31] = {0}, ids[31], twice[2], stranger[2], too_many[1] = {2};
    const toy_device *device = toy_device_of(*state);
    unsigned char *row = device->alloc(400);
    hsp_row_source rows = {{row, row}, {0}}, short_rows = {{row, row}, {19, 0}}, no_plane = {{row, NULL}, {0}};
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, 100), HSP_OK);
    int32_t handle = t.request[0].handle;
    assert_int_equal(hsp_append(t.cache, 0, &rows, 1, NULL), HSP_ESTATE);
    assert_int_equal(hsp_swap_in(t.cache, 0, selection, 1, 31, ids, NULL), HSP_ESTATE);
    assert_int_equal(toy_fill(&t, 0, 50), HSP_OK);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 49, 1, &rows, NULL), HSP_ESTATE);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 51, 1, &rows, NULL), HSP_ESTATE);
    assert_int_equal(hsp_fill(t.cache, handle, 3, 50, 1, &rows, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 50, -1, &rows, NULL), HSP_EINVAL);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 50, 1, &short_rows, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 50, 1, &no_plane, NULL), HSP_EINVAL);
    assert_int_equal(hsp_fill(t.cache, handle, 1, 50, 1, NULL, NULL), HSP_EINVAL);
    assert_int_equal(hsp_fill(t.cache, handle + 1, 1, 50, 1, &rows, NULL), HSP_EREQUEST);
    assert_int_equal(hsp_step_begin(t.cache, &handle, too_many, 1, NULL), HSP_ELIMIT);
    twice[0] = twice[1] = handle;
    assert_int_equal(hsp_step_begin(t.cache, twice, NULL, 2, NULL), HSP_EINVAL);
    stranger[0] = handle, stranger[1] = handle + 65536;
    assert_int_equal(hsp_step_begin(t.cache, stranger, NULL, 2, NULL), HSP_EREQUEST);
    assert_int_equal(hsp_step_begin(t.cache, stranger, NULL, 5, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_step_begin(t.cache, NULL, NULL, 1, NULL), HSP_EINVAL);
    toy_check(&t);
    assert_int_equal(toy_step(&t, rs, one_new, 1), HSP_OK);
    assert_int_equal(hsp_swap_in(t.cache, 0, selection, 2, 31, ids, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_swap_in(t.cache, 0, selection, 1, 32, ids, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_swap_in(t.cache, 0, NULL, 1, 31, ids, NULL), HSP_EINVAL);
    assert_int_equal(hsp_swap_in(t.cache, -1, selection, 1, 31, ids, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_append(t.cache, 0, &rows, 0, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_warm(t.cache, handle, 0, selection, 34, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_stats(t.cache, NULL), HSP_EINVAL);
    toy_check(&t);
    int32_t filled_unevenly = t.request[0].length;
    assert_int_equal(hsp_fill(t.cache, handle, 1, filled_unevenly, 1, &rows, NULL), HSP_OK);
    assert_int_equal(hsp_step_begin(t.cache, &handle, NULL, 1, NULL), HSP_ESTATE);
    assert_non_null(strstr(hsp_last_error(t.cache), "layer 0 has 51 of the request's 52 rows"));
    toy_close(&t);
    device->release(row);
}

static void warmed_rows_hit(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    int rs[1] = {0};
    int32_t hot[33], selection[31];
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, 400), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 300), HSP_OK);
    for (int i = 0; i < 33; i++)
        hot[i] = i == 5 ? -1 : i == 6 ? 1000 : 100 + i;
    for (int g = 0; g < 3; g++)
        toy_warm(&t, 0, g, hot, 33);
    toy_check(&t);
    assert_int_equal(toy_step(&t, rs, one_new, 1), HSP_OK);
    for (int i = 0; i < 31; i++)
        selection[i] = i < 5 ? 100 + i : 102 + i;
    selection[30] = 5; /* the only cold one */
    select_all_groups(&t, selection, 31);
    assert_int_equal(t.request[0].counters.misses, 3 * 1);
    toy_check(&t);
    toy_close(&t);
}

static void counters_come_back_to_zero(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    hsp_stats_view stats = {.struct_size = sizeof stats};
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, 400), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 100), HSP_OK);
    for (int s = 0; s < 5; s++)
        step_newest(&t, 31);
    hsp_counters seen = t.request[0].counters, layer;
    assert_int_equal(toy_retire(&t, 0), HSP_OK);
    assert_int_equal(hsp_stats(t.cache, &stats), HSP_OK); /* what a request did outlives it */
    assert_int_equal(stats.total.misses, seen.misses);
    assert_int_equal(stats.total.hits, seen.hits);
    assert_int_equal(stats.total.fetched_bytes, seen.misses * 152);
    assert_int_equal(stats.steps, 5);
    assert_int_equal(hsp_layer_counters(t.cache, 1, &layer), HSP_OK);
    assert_int_equal(layer.misses * 3, seen.misses);
    assert_int_equal(hsp_stats_reset(t.cache), HSP_OK);
    assert_int_equal(hsp_stats(t.cache, &stats), HSP_OK);
    assert_int_equal(stats.total.hits + stats.total.misses + stats.total.fetched_bytes + stats.steps, 0);
    assert_int_equal(stats.host_pages_free, stats.host_pages);
    assert_int_equal(stats.host_pages_longest, stats.host_pages);
    toy_close(&t);
}

static void open_close_open(void **state) {
    for (int i = 0; i < 20; i++) {
        hsp_config c = small_config(*state);
        toy t;
        toy_open(&t, &c);
        assert_int_equal(toy_admit(&t, 0, 200), HSP_OK);
        assert_int_equal(toy_fill(&t, 0, 100), HSP_OK);
        step_newest(&t, 31);
        toy_check(&t);
        toy_close(&t); /* with a live request */
    }
    hsp_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(length_crosses_every_border),
        ON_EVERY_BACKEND(longer_than_all_slots),
        ON_EVERY_BACKEND(rejected_drafts),
        ON_EVERY_BACKEND(fill_between_steps),
        ON_EVERY_BACKEND(truncate_before_the_append),
        ON_PLAIN_BACKENDS(fill_before_the_append),
        ON_EVERY_BACKEND(recycled_pages_are_unreadable),
        ON_EVERY_BACKEND(forgotten_append_shows_nothing),
        ON_EVERY_BACKEND(retire_in_a_step),
        ON_EVERY_BACKEND(pool_to_the_last_page),
        ON_EVERY_BACKEND(request_slots_run_out),
        ON_EVERY_BACKEND(refusals_change_nothing),
        ON_EVERY_BACKEND(warmed_rows_hit),
        ON_EVERY_BACKEND(counters_come_back_to_zero),
        ON_EVERY_BACKEND(open_close_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
