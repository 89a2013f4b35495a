/* SPDX-License-Identifier: Apache-2.0 */
/* Steps queued one after the other without a wait of the host: the next is prepared while this one runs, on one stream
 * or on two, with counters read in between. Every step is compared afterwards with what it had to be. */
#include "chain.h"
#include "decode_step.h"

enum { DEPTH = 60 };

static hsp_config config_of(const char *backend) {
    hsp_config c = small_config(backend);
    static const int32_t map[3] = {0, 1, 0};
    c.layer_group = map;
    c.max_queries = 2;
    c.max_k = 15;
    c.ring_rows = 4;
    return c;
}

static void prepared_while_running(void **state) {
    hsp_config c = config_of(*state);
    decode d;
    decode_open(&d, &c, 2, 15, DEPTH, LAYER_BY_LAYER);
    for (int round = 0; round < 10; round++) {
        decode_change(&d);
        for (int s = 0; s < DEPTH; s++) {
            decode_queue(&d);
            decode_reject(&d);
        }
        decode_collect(&d);
        toy_check(&d.t);
    }
    decode_close(&d);
}

/* The same with requests that come and go while steps are in flight. */
static void changes_in_flight(void **state) {
    hsp_config c = config_of(*state);
    decode d;
    decode_open(&d, &c, 2, 15, DEPTH, LAYER_BY_LAYER);
    for (int round = 0; round < 5; round++) {
        for (int s = 0; s < DEPTH; s++) {
            decode_queue(&d);
            decode_change(&d);
        }
        decode_collect(&d);
        toy_check(&d.t);
    }
    decode_close(&d);
}

/* And with followers whose rows come on a stream of the cache. */
static void followers_in_flight(void **state) {
    hsp_config c = config_of(*state);
    c.flags = HSP_PREFETCH;
    for (int as_calls = 0; as_calls < 2; as_calls++) {
        decode d;
        decode_open(&d, &c, 2, 15, DEPTH, LAYER_BY_LAYER);
        d.as_calls = as_calls;
        for (int round = 0; round < 5; round++) {
            for (int s = 0; s < DEPTH; s++) {
                decode_queue(&d);
                decode_change(&d);
            }
            decode_collect(&d);
            toy_check(&d.t);
        }
        decode_close(&d);
    }
}

/* Steps by turns on two streams that an event orders, as calls and not as a graph. Requests come and go on the stream
 * of the step before. */
static void two_streams(void **state) {
    hsp_config c = config_of(*state);
    decode d;
    decode_open(&d, &c, 2, 15, DEPTH, APPENDS_FIRST);
    d.as_calls = 1;
    for (int round = 0; round < 5; round++) {
        for (int s = 0; s < DEPTH; s++) {
            if (s % 8 == 0)
                decode_change(&d);
            decode_reject(&d);
            decode_switch(&d);
            decode_queue(&d);
        }
        decode_collect(&d);
        toy_check(&d.t);
    }
    decode_close(&d);
}

static void check_stats(const decode *d) {
    hsp_stats_view stats = {.struct_size = sizeof stats};
    hsp_counters want, layer;
    uint64_t hits = 0;
    toy_totals(&d->t, &want);
    assert_int_equal(hsp_stats(d->t.cache, &stats), HSP_OK);
    TOY_SAME("hits", stats.total.hits, want.hits);
    TOY_SAME("misses", stats.total.misses, want.misses);
    TOY_SAME("invalid", stats.total.invalid, want.invalid);
    TOY_SAME("none", stats.total.none, want.none);
    TOY_SAME("fetched bytes", stats.total.fetched_bytes, want.fetched_bytes);
    TOY_SAME("appended", stats.total.appended_rows, want.appended_rows);
    TOY_SAME("filled", stats.total.filled_rows, want.filled_rows);
    for (int g = 0; g < d->t.n_groups; g++) {
        assert_int_equal(hsp_layer_counters(d->t.cache, d->t.anchor[g] + d->t.config.first_layer, &layer), HSP_OK);
        hits += layer.hits;
    }
    TOY_SAME("hits of all layers", hits, want.hits);
}

/* Counters are of everything queued so far, and reading them leaves the work alone. */
static void stats_while_running(void **state) {
    hsp_config c = config_of(*state);
    decode d;
    decode_open(&d, &c, 2, 15, DEPTH, LAYER_BY_LAYER);
    for (int round = 0; round < 5; round++) {
        decode_change(&d);
        for (int s = 0; s < DEPTH; s++) {
            decode_queue(&d);
            if (s % 3 == 0)
                check_stats(&d);
        }
        decode_collect(&d);
        check_stats(&d);
        toy_check(&d.t);
    }
    decode_close(&d);
}

/* Close waits for what was queued: it is all there afterwards. */
static void close_with_work_in_flight(void **state) {
    hsp_config c = config_of(*state);
    decode d;
    decode_open(&d, &c, 2, 15, DEPTH, LAYER_BY_LAYER);
    for (int s = 0; s < DEPTH; s++)
        decode_queue(&d);
    hsp_close(d.t.cache);
    d.t.cache = NULL;
    for (int s = 0; s < DEPTH; s++)
        for (size_t e = 0; e < d.n_ids; e++)
            TOY_SAME("id", d.log[s].ids[e], d.log[s].want[e]);
    decode_close(&d);
}

/* What the last call before the first stream was. */
enum { RETIRE, RETIRE_AND_TAKE_AGAIN, ADMIT, STATS_RESET, N_LAST_CALLS };

static void last_call(chain *c, int last) {
    if (last == RETIRE || last == RETIRE_AND_TAKE_AGAIN)
        assert_int_equal(toy_retire(&c->t, 0), HSP_OK);
    if (last == ADMIT)
        assert_int_equal(toy_admit(&c->t, 2, 300), HSP_OK);
    if (last == STATS_RESET)
        assert_int_equal(hsp_stats_reset(c->t.cache), HSP_OK);
}

/* Three more tokens of every live request, the newest first in the batch, and a swap-in of tokens now here and there.
 */
static void grow_and_swap_in(chain *c) {
    int rs[3], n_new[3] = {3, 3, 3}, batch = 0;
    for (int r = 2; r >= 0; r--)
        if (c->t.request[r].live)
            rs[batch++] = r;
    chain_begin(c, rs, n_new, batch);
    for (int b = 0; b < batch; b++)
        for (int e = 0; e < c->k[0]; e++)
            chain_selection(c, 0, b)[e] = (int)draw(&c->seed, 14) - 1;
    chain_send(c);
    chain_call(c, 0);
}

/* Before the first call with a stream there is none to follow: what came before is done when that stream starts, even
 * behind a long copy of the caller's on the default stream, which a stream like ours does not wait for. */
static void first_stream(void **state) {
    hsp_config config = small_config(*state);
    int on_a_gpu = strcmp(config.backend, "cuda") == 0;
    size_t bytes = on_a_gpu ? (size_t)64 << 20 : 64;
    queue on_default = {.kind = on_a_gpu ? queue_cuda : &queue_plain};
    void *from = queue_alloc(&on_default, bytes), *to = queue_alloc_host(&on_default, bytes);
    config.max_queries = 3;
    config.max_k = 11;
    for (int i = 0; i < 100 * N_LAST_CALLS; i++) {
        chain c;
        chain_open(&c, &config, 1, 11);
        c.seed = (uint64_t)i;
        assert_int_equal(toy_admit(&c.t, 0, 200), HSP_OK);
        assert_int_equal(toy_admit(&c.t, 1, 200), HSP_OK);
        queue_copy(&on_default, to, from, bytes);
        last_call(&c, i % N_LAST_CALLS);
        for (int step = 0; step < 4; step++) {
            grow_and_swap_in(&c);
            if (i % N_LAST_CALLS != RETIRE_AND_TAKE_AGAIN || step > 0)
                chain_compare(&c);
            else
                assert_int_equal((queue_wait(&c.q), toy_admit(&c.t, 0, 200)), HSP_OK);
        }
        toy_check(&c.t);
        chain_close(&c);
    }
    queue_release(&on_default, from);
    queue_release_host(&on_default, to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(prepared_while_running), ON_EVERY_BACKEND(changes_in_flight),
        ON_EVERY_BACKEND(followers_in_flight),    ON_EVERY_BACKEND(two_streams),
        ON_EVERY_BACKEND(stats_while_running),    ON_EVERY_BACKEND(close_with_work_in_flight),
        ON_EVERY_BACKEND(first_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
