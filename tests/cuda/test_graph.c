/* SPDX-License-Identifier: Apache-2.0 */
/* One decode step captured at the largest batch and replayed with batches that shrink and grow, while requests come, go
 * and are cut back. After each replay everything is compared with the toy, which keeps every row: ids, their bytes in
 * every layer and plane, host rows down to the newest, tags, order, counters.
 *
 * usage: test_graph [REPLAYS] */
#include "decode_step.h"

static int n_replays;

/* Did everything happen that this test is about? */
static void check_variety(const toy *t, uint64_t n) {
    hsp_counters all;
    toy_totals(t, &all);
    print_message("%llu replays: %llu hits, %llu misses, %llu invalid, %llu none, %llu appended\n",
                  (unsigned long long)n, (unsigned long long)all.hits, (unsigned long long)all.misses,
                  (unsigned long long)all.invalid, (unsigned long long)all.none, (unsigned long long)all.appended_rows);
    if (n >= 50)
        assert_true(all.hits > n && all.misses > n && all.invalid > n / 2 && all.none > n / 2 &&
                    all.appended_rows > n && t->retired.filled_rows > 0);
}

static void replay_and_compare(hsp_config *c, int n_queries, int k, enum decode_order order) {
    int n = n_replays ? n_replays : strcmp(c->backend, "cuda") == 0 ? 1000 : 100;
    n = c->n_slots > 1000 && n > 200 ? 200 : n;
    decode d;
    decode_open(&d, c, n_queries, k, 1, order);
    for (int i = 0; i < n; i++) {
        decode_change(&d);
        decode_queue(&d);
        decode_collect(&d);
        toy_check(&d.t);
    }
    check_variety(&d.t, (uint64_t)n);
    decode_close(&d);
}

static hsp_config plain_config(const char *backend) {
    hsp_config c = small_config(backend);
    c.n_planes = 1;
    c.plane_bytes[0] = 656;
    c.max_requests = 4;
    c.max_batch = 5;
    c.max_queries = 3;
    c.max_k = 10;
    c.host_tokens = 1400;
    return c;
}

static const int32_t irregular[5] = {7, 3, 7, 7, 3};

static hsp_config grouped_config(const char *backend) {
    hsp_config c = small_config(backend);
    c.first_layer = 30;
    c.n_layers = 5;
    c.layer_group = irregular;
    c.plane_bytes[0] = 576;
    c.plane_bytes[1] = 8;
    c.max_queries = 2;
    c.n_slots = 70;
    c.ring_rows = 3;
    c.block_rows = 64;
    return c;
}

static void plain_rows(void **state) {
    hsp_config c = plain_config(*state);
    replay_and_compare(&c, 3, 10, LAYER_BY_LAYER);
}

static void groups_in_blocks(void **state) {
    hsp_config c = grouped_config(*state);
    replay_and_compare(&c, 2, 31, LAYER_BY_LAYER);
}

/* From some batch on the rows of all requests are fetched in another way, and few misses in yet another. */
static hsp_config large_config(const char *backend, int k) {
    hsp_config c = small_config(backend);
    c.n_layers = 2;
    c.n_planes = 1;
    c.plane_bytes[0] = 64;
    c.max_requests = c.max_batch = 40;
    c.max_context = 300;
    c.host_tokens = 40 * 320;
    c.n_slots = 96;
    c.max_k = k;
    return c;
}

static void large_batches(void **state) {
    hsp_config c = large_config(*state, 16);
    replay_and_compare(&c, 1, 16, LAYER_BY_LAYER);
}

static void large_batches_that_miss_much(void **state) {
    hsp_config c = large_config(*state, 90);
    replay_and_compare(&c, 1, 90, APPENDS_FIRST);
}

/* A launch may start beside the one before it when both are swap-ins. */
static void swap_ins_back_to_back(void **state) {
    hsp_config c = plain_config(*state);
    replay_and_compare(&c, 3, 10, APPENDS_FIRST);
}

static void every_policy_in_a_graph(void **state) {
    for (int policy = HSP_FIFO; policy <= HSP_CLOCK; policy++) {
        hsp_config c = small_config(*state);
        c.policy = policy == HSP_RANDOM ? HSP_LRU : policy; /* the toy follows RANDOM only with calls in between */
        c.n_slots = policy == HSP_RANDOM ? 9000 : 33;       /* LRU in the kernel for the largest shapes */
        c.max_context = 400;
        replay_and_compare(&c, 1, 31, LAYER_BY_LAYER);
    }
}

/* Appends on a stream of their own, beside the swap-ins of the layers before them. */
static void forked_appends(void **state) {
    hsp_config c = grouped_config(*state);
    replay_and_compare(&c, 2, 31, FORKED);
}

/* Followers' rows come beside what follows the anchor's swap-in. The graph is captured with whole batches and the log
 * holds every layer's rows as they are behind the step, so a row of an earlier step, of padding or of another layer, or
 * one that nobody waited for, shows. */
static void followers_later(void **state) {
    static const enum decode_order orders[] = {LAYER_BY_LAYER, APPENDS_FIRST, FORKED};
    for (int i = 0; i < 3; i++) {
        hsp_config c = grouped_config(*state);
        c.flags = HSP_PREFETCH;
        if (i == 0) { /* planes side by side, in pieces of 16 bytes */
            c.plane_bytes[1] = 16;
            c.block_rows = 1;
        }
        replay_and_compare(&c, 2, 31, orders[i]);
    }
}

/* Many requests, few and many misses each: the ways in which a large batch fetches. */
static void followers_of_large_batches(void **state) {
    static const int32_t together[2] = {1, 1};
    for (int k = 16; k <= 90; k += 74) {
        hsp_config c = large_config(*state, k);
        c.layer_group = together;
        c.flags = HSP_PREFETCH;
        replay_and_compare(&c, 1, k, LAYER_BY_LAYER);
    }
}

/* The kernel of any policy, and LRU in the one for the largest shapes. */
static void followers_of_every_policy(void **state) {
    static const int32_t map[3] = {5, 9, 5};
    for (int i = 0; i < 3; i++) {
        hsp_config c = small_config(*state);
        c.layer_group = map;
        c.flags = HSP_PREFETCH;
        c.policy = i == 0 ? HSP_FIFO : i == 1 ? HSP_CLOCK : HSP_LRU;
        c.n_slots = i == 2 ? 9000 : 33;
        replay_and_compare(&c, 1, 31, LAYER_BY_LAYER);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(plain_rows),
        ON_EVERY_BACKEND(groups_in_blocks),
        ON_EVERY_BACKEND(large_batches),
        ON_EVERY_BACKEND(large_batches_that_miss_much),
        ON_EVERY_BACKEND(swap_ins_back_to_back),
        ON_EVERY_BACKEND(every_policy_in_a_graph),
        ON_EVERY_BACKEND(forked_appends),
        ON_EVERY_BACKEND(followers_later),
        ON_EVERY_BACKEND(followers_of_large_batches),
        ON_EVERY_BACKEND(followers_of_every_policy),
    };
    n_replays = argc > 1 ? atoi(argv[1]) : 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
