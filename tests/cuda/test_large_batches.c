/* SPDX-License-Identifier: Apache-2.0 */
/* Large batches, whose requests fetch in turns: more requests than a GPU runs blocks at once, launches of every size
 * one after the other, and one request that misses everything among others that miss nothing. A turn that never comes
 * shows as a test that never ends: bench/gpu.sh ends it. */
#include "chain.h"

enum { N_REQUESTS = 300, N_ENTRIES = 310, K = 200, N_FILLED = 500 };

static hsp_config config_of(const char *backend) {
    hsp_config c = small_config(backend);
    c.n_layers = 2;
    c.n_planes = 1;
    c.plane_bytes[0] = 32;
    c.max_requests = N_REQUESTS;
    c.max_batch = N_ENTRIES;
    c.max_context = 576;
    c.host_tokens = N_REQUESTS * 576;
    c.n_slots = 256;
    c.max_k = K;
    return c;
}

/* Some row of planes, two layers of it one behind the other: not the kernel for plain rows. */
static hsp_config planes_config(const char *backend) {
    static const int32_t one_group[2] = {0, 0};
    hsp_config c = config_of(backend);
    c.layer_group = one_group;
    c.n_planes = 2;
    c.plane_bytes[0] = 20;
    c.plane_bytes[1] = 8;
    c.block_rows = 64;
    return c;
}

/* ------------------------------------------------------------------------------------------------- several waves -- */

/* What a request selects: even ones always the same, which is there from the second time on; of the others some few new
 * rows, most many. No duplicates, so that the misses can be told. */
static void choose(int32_t *selection, int r, int step) {
    int shift = r % 2 == 0 ? 0 : r % 8 == 1 ? 3 * step : 90 * step;
    for (int e = 0; e < K; e++)
        selection[e] = ((e * 7 + r) % K + shift) % N_FILLED;
}

/* Every entry but each 31st is a request, all of them in an order that changes. */
static void begin(chain *c, int step) {
    int rs[N_ENTRIES], n_new[N_ENTRIES];
    for (int b = 0, n = 0; b < N_ENTRIES; b++) {
        rs[b] = b % 31 == 7 ? -1 : (n++ * 7 + step * 11) % N_REQUESTS;
        n_new[b] = rs[b] >= 0;
    }
    chain_begin(c, rs, n_new, N_ENTRIES);
}

static void check_misses(const toy *t, const uint64_t *before, int step) {
    for (int r = 0; r < N_REQUESTS; r++) {
        uint64_t misses = t->request[r].counters.misses - before[r];
        if (step == 0 || r % 8 == 1)
            assert_true(misses > 0);
        else
            assert_true(r % 2 == 0 ? misses == 0 : misses > 32);
    }
}

static void waves_step(chain *c, int step, int as_calls) {
    uint64_t misses[N_REQUESTS];
    for (int i = 0; i < c->n_calls; i++)
        c->group[i] = i % c->t.n_groups;
    begin(c, step);
    for (int b = 0; b < N_ENTRIES; b++)
        for (int i = 0; i < c->n_calls && c->t.batch_request[b] >= 0; i++)
            choose(chain_selection(c, i, b), c->t.batch_request[b], step);
    chain_send(c);
    for (int r = 0; r < N_REQUESTS; r++)
        misses[r] = c->t.request[r].counters.misses;
    for (int i = 0; i < c->n_calls && as_calls; i++)
        chain_call(c, i);
    if (!as_calls)
        chain_replay(c);
    check_misses(&c->t, misses, step);
    chain_compare(c);
}

static void run_waves(hsp_config config) {
    static const int fetch_blocks[] = {1, 12, 0};
    for (size_t i = 0; i < sizeof fetch_blocks / sizeof fetch_blocks[0]; i++) {
        chain c;
        config.fetch_blocks = fetch_blocks[i];
        chain_open(&c, &config, config.layer_group ? 1 : 2, K);
        chain_admit_all(&c, config.max_context, N_FILLED);
        for (int step = 0; step < 4; step++)
            waves_step(&c, step, 1);
        toy_check(&c.t);
        chain_begin_nobody(&c, N_ENTRIES);
        chain_capture(&c, 0, c.n_calls);
        for (int step = 4; step < 12; step++)
            waves_step(&c, step, step % 4 == 3);
        toy_check(&c.t);
        chain_close(&c);
    }
}

static void several_waves(void **state) {
    run_waves(config_of(*state));
}

static void several_waves_of_planes(void **state) {
    run_waves(planes_config(*state));
}

/* ------------------------------------------------------------------------------------------- launches of any size --
 */

/* Requests from some place on, every ninth entry padding. */
static void begin_some(chain *c, int batch) {
    int rs[N_ENTRIES], n_new[N_ENTRIES], lead = (int)draw(&c->seed, N_REQUESTS);
    for (int b = 0; b < batch; b++) {
        rs[b] = b % 9 == 8 ? -1 : (lead + b) % N_REQUESTS;
        n_new[b] = (int)draw(&c->seed, 2);
        if (rs[b] >= 0 && c->t.request[rs[b]].length + 1 > c->t.request[rs[b]].max_tokens)
            toy_truncate(&c->t, rs[b], N_FILLED / 2);
    }
    chain_begin(c, rs, n_new, batch);
}

static void warm_some(chain *c) {
    int32_t tokens[60];
    int r = (int)draw(&c->seed, N_REQUESTS), first = (int)draw(&c->seed, 100);
    for (int e = 0; e < 60; e++)
        tokens[e] = first + e;
    toy_warm(&c->t, r, (int)draw(&c->seed, 2), tokens, 60);
}

/* A call, the replay of a graph that may be larger, a warm, a call, the replay again, a call; each left out now and
 * then. */
static void any_size(chain *c, int batch) {
    begin_some(c, batch);
    for (int i = 0; i < c->n_calls; i++) {
        if (i >= c->n_captured)
            c->group[i] = (int)draw(&c->seed, 2);
        chain_choose(c, i);
    }
    chain_send(c);
    if (draw(&c->seed, 3))
        chain_call(c, 2);
    if (batch <= c->captured_entries)
        chain_replay(c);
    if (draw(&c->seed, 2))
        warm_some(c);
    if (draw(&c->seed, 2))
        chain_call(c, 2);
    if (batch <= c->captured_entries && draw(&c->seed, 2))
        chain_replay(c);
    if (draw(&c->seed, 4))
        chain_call(c, 3);
    chain_compare(c);
}

static void launches_of_any_size(void **state) {
    static const int sizes[] = {1, 8, 40, 70, 300}, captured[] = {300, 40, 70, 8, 300};
    hsp_config config = config_of(*state);
    int on_a_gpu = strcmp(config.backend, "cuda") == 0;
    chain c;
    config.max_batch = N_REQUESTS;
    config.n_slots = 64;
    config.max_k = 60;
    chain_open(&c, &config, 4, 60);
    chain_admit_all(&c, config.max_context, N_FILLED);
    for (int round = 0; round < 5; round++) {
        c.group[0] = (int)draw(&c.seed, 2);
        c.group[1] = round % 2 ? c.group[0] : 1 - c.group[0];
        chain_begin_nobody(&c, captured[round]);
        chain_capture(&c, 0, 2);
        for (int i = 0; i < (on_a_gpu ? 40 : 20); i++)
            any_size(&c, sizes[draw(&c.seed, 5)]);
        toy_check(&c.t);
    }
    chain_close(&c);
}

/* ------------------------------------------------------------------------------------------- one that is all cold --
 */

enum { N_WARM = 32 }; /* an H200 has two blocks for each */

/* Request `cold` takes rows it does not have; the others those they have. */
static void cold_step(chain *c, int *shift, int step) {
    int rs[N_WARM], n_new[N_WARM] = {0}, cold = step * 7 % N_WARM;
    uint64_t before[N_WARM];
    shift[cold] = K - shift[cold];
    for (int b = 0; b < N_WARM; b++)
        rs[b] = b;
    chain_begin(c, rs, n_new, N_WARM);
    for (int b = 0; b < N_WARM; b++) {
        before[b] = c->t.request[b].counters.misses;
        for (int e = 0; e < K; e++)
            chain_selection(c, 0, b)[e] = e + shift[b];
    }
    chain_send(c);
    if (step % 4 == 3)
        chain_call(c, 0);
    else
        chain_replay(c);
    for (int b = 0; b < N_WARM && step > 0; b++)
        assert_int_equal(c->t.request[b].counters.misses - before[b], b == cold ? K : 0);
    chain_compare(c);
}

static void one_cold_request(void **state) {
    hsp_config config = config_of(*state);
    int shift[N_WARM] = {0};
    chain c;
    config.n_layers = 1;
    config.plane_bytes[0] = 2048;
    config.max_requests = config.max_batch = N_WARM;
    config.host_tokens = N_WARM * 576;
    config.n_slots = K;
    chain_open(&c, &config, 1, K);
    chain_admit_all(&c, config.max_context, N_FILLED);
    c.group[0] = 0;
    chain_begin_nobody(&c, N_WARM);
    chain_capture(&c, 0, 1);
    for (int step = 0; step < 60; step++)
        cold_step(&c, shift, step);
    toy_check(&c.t);
    chain_close(&c);
}

/* Any rows, some hundred misses a request: each must be fetched by one of its blocks. */
static void random_rows(void **state) {
    hsp_config config = config_of(*state);
    int rs[N_WARM], n_new[N_WARM] = {0};
    chain c;
    config.max_requests = config.max_batch = N_WARM;
    config.host_tokens = N_WARM * 576;
    chain_open(&c, &config, 2, K);
    chain_admit_all(&c, config.max_context, N_FILLED);
    for (int b = 0; b < N_WARM; b++)
        rs[b] = b;
    c.group[1] = 1;
    chain_begin_nobody(&c, N_WARM);
    chain_capture(&c, 0, 2);
    for (int step = 0; step < 60; step++) {
        chain_begin(&c, rs, n_new, N_WARM);
        for (int i = 0; i < 2; i++)
            chain_choose(&c, i);
        chain_send(&c);
        chain_replay(&c);
        chain_compare(&c);
    }
    toy_check(&c.t);
    chain_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(several_waves),        ON_EVERY_BACKEND(several_waves_of_planes),
        ON_EVERY_BACKEND(launches_of_any_size), ON_EVERY_BACKEND(one_cold_request),
        ON_EVERY_BACKEND(random_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
