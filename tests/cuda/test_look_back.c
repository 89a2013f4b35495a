/* SPDX-License-Identifier: Apache-2.0 */
/* What a swap-in makes of the call before it. Behind another swap-in of one capture it may start early, so every order
 * of groups is replayed and called, and captures are made between calls that are not captured. While the stream of the
 * latest call is being captured, calls without a stream are refused. */
#include "chain.h"

static int n_replays; /* by the command line; 0: as many as a test has */

/* Groups in the order of their calls; "": drawn. */
static const char *const orders_of_two[] = {"ABAB", "AA", "BBAABA", "AB", "", "", NULL};
static const char *const orders_of_three[] = {"ABCABC", "AABBCC", "ABCBACCA", "", "", NULL};

static void set_order(chain *c, const char *order) {
    c->n_calls = *order ? (int)strlen(order) : 4 + (int)draw(&c->seed, 6);
    for (int i = 0; i < c->n_calls; i++) {
        c->group[i] = *order ? order[i] - 'A' : (int)draw(&c->seed, (uint32_t)c->t.n_groups);
        c->k[i] = draw(&c->seed, 4) ? c->most_k : 1 + (int)draw(&c->seed, (uint32_t)c->most_k);
    }
}

static void step(chain *c, int as_calls, int with_check) {
    chain_begin_any(c);
    for (int i = 0; i < c->n_calls; i++)
        chain_choose(c, i);
    chain_send(c);
    if (!as_calls)
        chain_replay(c);
    for (int i = 0; i < c->n_calls && as_calls; i++)
        chain_call(c, i);
    chain_compare(c);
    if (with_check)
        toy_check(&c->t);
}

static int on_a_gpu(const hsp_config *c) {
    return strcmp(c->backend, "cuda") == 0;
}

/* Each order captured once and replayed n times with calls of the same order in between; then n other orders, as calls.
 */
static void run_orders(const hsp_config *config, int k, const char *const *orders, int n) {
    int check_every = config->max_requests > 3 ? 4 : 1; /* a GPU is asked for each request by itself */
    chain c;
    n = n_replays ? n_replays : n;
    chain_open(&c, config, CHAIN_MOST, k);
    chain_admit_all(&c, config->max_context, config->max_context * 2 / 3);
    for (; *orders; orders++) {
        set_order(&c, *orders);
        chain_begin_nobody(&c, c.entries);
        chain_capture(&c, 0, c.n_calls);
        for (int i = 0; i < n; i++) {
            step(&c, 0, i % check_every == 0);
            if (i % 8 == 0)
                step(&c, 1, 0);
        }
    }
    for (int i = 0; i < n; i++) {
        set_order(&c, "");
        step(&c, 1, i % check_every == 0);
    }
    toy_check(&c.t);
    print_message("%d swap-ins, %d of them fetched rows\n", c.n_run, c.n_missing);
    assert_true(c.n_missing > c.n_run * 7 / 10);
    chain_close(&c);
}

static void two_groups_in_any_order(void **state) {
    hsp_config c = small_config(*state);
    static const int32_t map[3] = {0, 1, 0};
    c.layer_group = map;
    c.n_slots = 40;
    c.host_tokens = 3 * 448;
    run_orders(&c, 31, orders_of_two, 200);
}

/* Followers that nobody has waited for when the next swap-in of their group comes. */
static void followers_in_any_order(void **state) {
    hsp_config c = small_config(*state);
    static const int32_t map[5] = {0, 1, 0, 1, 1};
    c.n_layers = 5;
    c.layer_group = map;
    c.flags = HSP_PREFETCH;
    c.n_slots = 40;
    c.host_tokens = 3 * 448;
    run_orders(&c, 31, orders_of_two, on_a_gpu(&c) ? 200 : 40);
}

/* Plain rows, and clusters of as many blocks as there are. */
static void three_groups_in_any_order(void **state) {
    hsp_config c = small_config(*state);
    c.n_planes = 1;
    c.plane_bytes[0] = 656;
    c.n_slots = 256;
    c.max_k = 200;
    c.max_context = 1000;
    c.host_tokens = 3 * 1024;
    run_orders(&c, 200, orders_of_three, on_a_gpu(&c) ? 200 : 60);
}

/* From some batch on requests fetch in turns, whose counter goes from launch to launch. */
static void large_batches_in_any_order(void **state) {
    hsp_config c = small_config(*state);
    c.n_layers = 2;
    c.n_planes = 1;
    c.plane_bytes[0] = 64;
    c.max_requests = c.max_batch = 40;
    c.host_tokens = 40 * 448;
    c.n_slots = 96;
    c.max_k = 90;
    run_orders(&c, 90, orders_of_two, on_a_gpu(&c) ? 200 : 30);
}

/* ----------------------------------------------------------------------------------------- captures between calls --
 */

/* A call, a capture, at once another call, then the replay, which the library does not see, another call, the replay
 * again: what the library was asked last is not what ran last. */
static void calls_around_a_capture(void **state) {
    static const int of_the_others[5] = {1, 0, 1, 0, 1};
    hsp_config config = small_config(*state);
    chain c;
    config.n_layers = 2;
    config.n_slots = 40;
    config.host_tokens = 3 * 448;
    chain_open(&c, &config, 5, 31);
    chain_admit_all(&c, 400, 250);
    for (int round = 0; round < 200; round++) {
        int n_captured = 1 + round % 4 / 3;
        for (int i = 0; i < 5; i++)
            c.group[i] = round % 2 ? (int)draw(&c.seed, 2) : of_the_others[i];
        chain_begin_any(&c);
        for (int i = 0; i < 5; i++)
            chain_choose(&c, i);
        chain_send(&c);
        chain_call(&c, 0);
        chain_capture(&c, 1, n_captured);
        chain_call(&c, 2);
        chain_replay(&c);
        chain_call(&c, 3);
        chain_replay(&c);
        chain_call(&c, 4);
        chain_compare(&c);
        toy_check(&c.t);
    }
    chain_close(&c);
}

/* -------------------------------------------------------------------------------------------- while it is captured --
 */

static void expect_refused(const chain *c, int status, const char *call) {
    TOY_SAME(call, status, HSP_ESTATE);
    assert_non_null(strstr(hsp_last_error(c->t.cache), "captured"));
}

static void call_what_is_refused(chain *c) {
    hsp_cache *cache = c->t.cache;
    char row[160], same[160];
    int32_t request = c->t.request[0].handle, handle = -7, tags[33], order[33], ring_first = -7, first_id = -7;
    hsp_stats_view stats = {.struct_size = sizeof stats, .steps = 77};
    hsp_counters counters = {.hits = 77};
    hsp_row_sink sink = {{row, row + 20}, {0}};
    memset(row, 0x55, sizeof row);
    memset(same, 0x55, sizeof same);
    memset(tags, 0x55, sizeof tags);
    memset(order, 0x55, sizeof order);
    expect_refused(c, hsp_admit(cache, 64, &handle), "admit");
    expect_refused(c, hsp_retire(cache, request), "retire");
    expect_refused(c, hsp_read(cache, request, 0, 0, 1, &sink), "read");
    expect_refused(c, hsp_stats(cache, &stats), "stats");
    expect_refused(c, hsp_layer_counters(cache, 0, &counters), "layer_counters");
    expect_refused(c, hsp_request_counters(cache, request, &counters), "request_counters");
    expect_refused(c, hsp_stats_reset(cache), "stats_reset");
    expect_refused(c, hsp_resident(cache, request, 0, tags, order, &ring_first, &first_id), "resident");
    assert_true(handle == -7 && ring_first == -7 && first_id == -7);
    assert_true(stats.steps == 77 && stats.total.hits == 0 && counters.hits == 77);
    assert_memory_equal(row, same, sizeof row);
    assert_memory_equal(tags, same, sizeof tags);
    assert_memory_equal(order, same, sizeof order);
}

/* Before, between and behind the swap-ins that are captured. */
static void captured_with_refusals(void *chain_pointer) {
    chain *c = chain_pointer;
    call_what_is_refused(c);
    for (c->first = 0; c->first < c->n_calls; c->first++) {
        c->n_captured = 1;
        chain_queue_captured(c);
        call_what_is_refused(c);
    }
    c->first = 0;
    c->n_captured = c->n_calls;
}

/* stats_reset would have set it to zero. */
static void check_steps(const chain *c) {
    hsp_stats_view stats = {.struct_size = sizeof stats};
    assert_int_equal(hsp_stats(c->t.cache, &stats), HSP_OK);
    assert_true(stats.steps > 0);
}

/* Only a GPU has captures that a call can get in the way of. */
static void refused_while_captured(void **state) {
    hsp_config config = small_config(*state);
    chain c;
    chain_open(&c, &config, 4, 31);
    assert_int_equal(toy_admit(&c.t, 0, 400), HSP_OK);
    assert_int_equal(toy_fill(&c.t, 0, 250), HSP_OK);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 4; i++)
            c.group[i] = (int)draw(&c.seed, 3);
        chain_begin_nobody(&c, c.entries);
        c.captured_entries = c.t.batch;
        queue_capture(&c.q, captured_with_refusals, &c);
        check_steps(&c);
        toy_check(&c.t);
        for (int i = 0; i < 10; i++)
            step(&c, i % 4 == 3, 1);
        int r = 1 + round % 2; /* what was refused can be done now; one place stays free, or there would be no room */
        if (c.t.request[3 - r].live)
            toy_retire(&c.t, 3 - r);
        if (c.t.request[r].live)
            toy_retire(&c.t, r);
        assert_int_equal(toy_admit(&c.t, r, 300), HSP_OK);
        assert_int_equal(toy_fill(&c.t, r, 200), HSP_OK);
    }
    chain_close(&c);
}

/* A capture can neither wait for followers of a call before it nor leave its own to calls behind it. */
static void captured_too_early(void *chain_pointer) {
    chain *c = chain_pointer;
    int anchor = c->t.config.first_layer, k = c->k[0];
    hsp_cache *cache = c->t.cache;
    expect_refused(c, hsp_swap_in(cache, anchor, c->selection, 1, k, c->ids, c->q.stream), "swap_in");
    expect_refused(c, hsp_wait_rows(cache, anchor + 1, c->q.stream), "wait_rows");
    assert_int_equal(hsp_wait_rows(cache, anchor, c->q.stream), HSP_OK);
}

static void followers_across_a_capture(void **state) {
    static const int32_t map[3] = {3, 3, 4};
    hsp_config config = small_config(*state);
    chain c;
    config.layer_group = map;
    config.flags = HSP_PREFETCH;
    config.host_tokens = 3 * 448;
    chain_open(&c, &config, 2, 31);
    chain_admit_all(&c, 400, 250);
    for (int round = 0; round < 20; round++) {
        chain_begin_any(&c);
        chain_choose(&c, 0);
        chain_choose(&c, 1);
        chain_send(&c);
        chain_call(&c, 0);
        queue_capture(&c.q, captured_too_early, &c);
        chain_capture(&c, 1, 1);
        chain_replay(&c);
        chain_compare(&c);
        toy_check(&c.t);
    }
    chain_close(&c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(two_groups_in_any_order),    ON_EVERY_BACKEND(three_groups_in_any_order),
        ON_EVERY_BACKEND(large_batches_in_any_order), ON_EVERY_BACKEND(calls_around_a_capture),
        ON_EVERY_BACKEND(followers_in_any_order),     ON("cuda", refused_while_captured),
        ON("cuda", followers_across_a_capture),
    };
    n_replays = argc > 1 ? atoi(argv[1]) : 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
