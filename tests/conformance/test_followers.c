/* SPDX-License-Identifier: Apache-2.0 */
/* HSP_PREFETCH: followers' rows come later than their anchor's, and nothing else is different. The toy compares ids,
 * slots, order and counters as ever; it leaves the followers of two swap-ins out of three on their way, and looks at
 * the rows of all slots whenever it compares what lasts. */
#include "check.h"

static const int one_new[3] = {1, 1, 1};

static hsp_config followers_config(const char *backend, const int32_t *map, int n_layers) {
    hsp_config c = small_config(backend);
    c.n_layers = n_layers;
    c.layer_group = map;
    c.flags = HSP_PREFETCH;
    return c;
}

static void admit(toy *t, int r, int max_tokens, int n_fill) {
    assert_int_equal(toy_admit(t, r, max_tokens), HSP_OK);
    assert_int_equal(toy_fill(t, r, n_fill), HSP_OK);
}

/* A step of three requests; then each group's swap-in, some twice. */
static void ordinary_steps(toy *t, int n, uint64_t *seed) {
    static const int rs[3] = {1, 0, 2};
    int k = t->config.max_k, n_queries = t->config.max_queries, batch = t->config.max_requests;
    int32_t selection[3 * 31];
    for (int s = 0; s < n; s++) {
        assert_int_equal(toy_step(t, rs, one_new, batch), HSP_OK);
        for (int call = 0; call < t->n_groups + 1; call++) {
            for (int e = 0; e < batch * n_queries * k; e++)
                selection[e] = (int)draw(seed, (uint32_t)t->request[0].length);
            toy_swap_in(t, call % t->n_groups, selection, n_queries, k);
        }
        toy_check(t);
    }
}

static void exercise(const hsp_config *config) {
    toy t;
    uint64_t seed = 5;
    toy_open(&t, config);
    for (int r = 0; r < 3; r++)
        admit(&t, r, 300, 280 - 20 * r);
    ordinary_steps(&t, 9, &seed);
    toy_close(&t);
}

static void later_in_every_pattern(void **state) {
    static const int32_t maps[][7] = {{0, 0, 0, 0, 0, 0, 0},
                                      {5, 5, 9, 9, 9, 1, 1},
                                      {3, 7, 3, 7, 3, 7, 3},
                                      {-4, 2000000000, -4, 8, 8, 8, 0},
                                      {0, 1, 2, 3, 4, 5, 6}};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        for (int policy = HSP_LRU; policy <= HSP_CLOCK; policy++) {
            hsp_config c = followers_config(*state, maps[i], 7);
            c.first_layer = i % 2 ? 30 : 0;
            c.policy = policy;
            c.block_rows = policy % 2 ? 8 : 1;
            exercise(&c);
        }
}

/* GLM-5.2: anchors are the layers 0, 1, 2 and every fourth from 6 on; all of it, and a later stage of a pipeline. */
static void a_real_map(void **state) {
    int32_t map[78];
    for (int l = 0; l < 78; l++)
        map[l] = l < 2 ? l : l < 6 ? 2 : 6 + (l - 6) / 4 * 4;
    for (int first = 0; first <= 30; first += 30) {
        hsp_config c = followers_config(*state, map + first, 78 - first);
        c.first_layer = first;
        c.max_k = 12;
        c.plane_bytes[1] = 16;
        exercise(&c);
    }
}

static void several_queries(void **state) {
    static const int32_t map[3] = {4, 6, 4};
    hsp_config c = followers_config(*state, map, 3);
    c.max_queries = 3;
    c.max_k = 10;
    exercise(&c);
}

/* ---------------------------------------------------------------------------------------------- a cache by itself --
 */

enum { ROW = 64, N_TOKENS = 100, SLOTS = 16 };

/* Two layers of a group and a lone one, on ordinary memory; row of token t in layer l: bytes of l + 1 and t. */
typedef struct bare {
    hsp_cache *cache;
    int32_t request[3];
    unsigned char *rows[3]; /* of each layer on the device */
} bare;

static void bare_fill(hsp_cache *cache, int32_t request, int layer) {
    unsigned char rows[N_TOKENS * ROW];
    hsp_row_source source = {{rows}, {0}};
    for (int t = 0; t < N_TOKENS; t++) {
        memset(rows + t * ROW, layer + 1, ROW / 2);
        memset(rows + t * ROW + ROW / 2, t, ROW / 2);
    }
    assert_int_equal(hsp_fill(cache, request, layer, 0, N_TOKENS, &source, NULL), HSP_OK);
}

static void bare_open(bare *b, const char *backend) {
    static const int32_t map[3] = {0, 1, 0};
    hsp_config c = followers_config(backend, map, 3);
    c.n_planes = 1;
    c.plane_bytes[0] = ROW;
    c.max_k = c.n_slots = SLOTS;
    assert_int_equal(hsp_open(&c, &b->cache), HSP_OK);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(hsp_admit(b->cache, N_TOKENS, &b->request[r]), HSP_OK);
        for (int l = 0; l < 3; l++)
            bare_fill(b->cache, b->request[r], l);
    }
    for (int l = 0; l < 3; l++) {
        hsp_rows_view view = {.struct_size = sizeof view};
        assert_int_equal(hsp_rows(b->cache, l, &view), HSP_OK);
        b->rows[l] = view.plane[0].base;
    }
}

/* Swap in tokens first .. first + SLOTS - 1 of each of the first n requests. */
static void bare_swap_in(bare *b, int n, int first, int32_t *ids) {
    static const int none[3];
    int32_t selection[3 * SLOTS];
    for (int e = 0; e < n * SLOTS; e++)
        selection[e] = first + e % SLOTS;
    assert_int_equal(hsp_step_begin(b->cache, b->request, none, n, NULL), HSP_OK);
    assert_int_equal(hsp_swap_in(b->cache, 0, selection, 1, SLOTS, ids, NULL), HSP_OK);
}

/* How many of n rows are those of tokens first .. in a layer. */
static int n_right(const bare *b, int layer, const int32_t *ids, int n, int first) {
    int n_same = 0;
    for (int e = 0; e < n; e++) {
        const unsigned char *row = b->rows[layer] + ids[e] * ROW;
        n_same += row[0] == layer + 1 && row[ROW - 1] == first + e % SLOTS;
    }
    return n_same;
}

static void a_forgotten_wait_shows(void **state) {
    int32_t ids[3 * SLOTS];
    bare b;
    bare_open(&b, *state);
    assert_int_equal(hsp_wait_rows(b.cache, 2, NULL), HSP_OK); /* nothing has been fetched yet */
    for (int first = 1; first < 60; first += 20) {
        bare_swap_in(&b, 3, first, ids);
        assert_int_equal(n_right(&b, 0, ids, 3 * SLOTS, first), 3 * SLOTS);
        assert_int_equal(n_right(&b, 2, ids, 3 * SLOTS, first), 0);
        assert_int_equal(hsp_wait_rows(b.cache, 0, NULL), HSP_OK); /* an anchor: not what is missing */
        assert_int_equal(hsp_wait_rows(b.cache, 1, NULL), HSP_OK);
        assert_int_equal(n_right(&b, 2, ids, 3 * SLOTS, first), 0);
        assert_int_equal(hsp_wait_rows(b.cache, 2, NULL), HSP_OK);
        assert_int_equal(n_right(&b, 2, ids, 3 * SLOTS, first), 3 * SLOTS);
    }
    hsp_close(b.cache);
}

/* What a larger batch left in the plan of a group is not fetched again: the rows of requests that are not in the batch
 * stay as they are, also as no cache would leave them. */
static void a_shrunk_batch_touches_nothing(void **state) {
    int32_t ids[3 * SLOTS], one[SLOTS];
    bare b;
    bare_open(&b, *state);
    bare_swap_in(&b, 3, 10, ids);
    assert_int_equal(hsp_wait_rows(b.cache, 2, NULL), HSP_OK);
    for (int e = SLOTS; e < 3 * SLOTS; e++)
        memset(b.rows[2] + ids[e] * ROW, 0x77, ROW);
    bare_swap_in(&b, 1, 40, one);
    assert_int_equal(hsp_wait_rows(b.cache, 2, NULL), HSP_OK);
    assert_int_equal(n_right(&b, 2, one, SLOTS, 40), SLOTS);
    for (int e = SLOTS; e < 3 * SLOTS; e++)
        assert_int_equal(b.rows[2][ids[e] * ROW], 0x77);
    hsp_close(b.cache);
}

/* A plan belongs to the batch it was made for, whatever step has begun since. */
static void a_new_step_changes_no_plan(void **state) {
    static const int none[3];
    int32_t ids[3 * SLOTS], other[3];
    bare b;
    bare_open(&b, *state);
    bare_swap_in(&b, 3, 20, ids);
    other[0] = b.request[2];
    assert_int_equal(hsp_step_begin(b.cache, other, none, 1, NULL), HSP_OK);
    assert_int_equal(hsp_wait_rows(b.cache, 2, NULL), HSP_OK);
    assert_int_equal(n_right(&b, 2, ids, 3 * SLOTS, 20), 3 * SLOTS);
    hsp_close(b.cache);
}

/* The slot and the pages of a request that goes are another's at once. */
static void retired_on_the_way(void **state) {
    int32_t ids[3 * SLOTS], again;
    bare b;
    bare_open(&b, *state);
    bare_swap_in(&b, 3, 30, ids);
    assert_int_equal(hsp_retire(b.cache, b.request[1]), HSP_OK);
    for (int e = SLOTS; e < 2 * SLOTS; e++)
        memset(b.rows[2] + ids[e] * ROW, 0x77, ROW);
    assert_int_equal(hsp_admit(b.cache, N_TOKENS, &again), HSP_OK);
    assert_int_equal(hsp_wait_rows(b.cache, 2, NULL), HSP_OK);
    assert_int_equal(n_right(&b, 2, ids, SLOTS, 30), SLOTS);
    assert_int_equal(n_right(&b, 2, ids + 2 * SLOTS, SLOTS, 30), SLOTS);
    for (int e = SLOTS; e < 2 * SLOTS; e++)
        assert_int_equal(b.rows[2][ids[e] * ROW], 0x77);
    hsp_close(b.cache);
}

static void refusals(void **state) {
    static const int32_t map[3] = {0, 1, 0};
    hsp_config c = followers_config(*state, map, 3);
    hsp_cache *cache;
    c.first_layer = 30;
    assert_int_equal(hsp_wait_rows(NULL, 0, NULL), HSP_EINVAL);
    for (int late = 0; late < 2; late++) {
        c.flags = late ? HSP_PREFETCH : 0;
        assert_int_equal(hsp_open(&c, &cache), HSP_OK);
        for (int l = 30; l < 33; l++)
            assert_int_equal(hsp_wait_rows(cache, l, NULL), HSP_OK);
        assert_int_equal(hsp_wait_rows(cache, 29, NULL), HSP_ELIMIT);
        assert_int_equal(hsp_wait_rows(cache, 33, NULL), HSP_ELIMIT);
        assert_string_equal(hsp_last_error(cache), "layer is 33; this cache has 30..32");
        hsp_close(cache);
    }
    c.flags = 4;
    assert_int_equal(hsp_open(&c, &cache), HSP_EINVAL);
}

/* The oracle moves nothing, later as at once. */
static void nothing_to_move(void **state) {
    static const int32_t map[3] = {0, 0, 0};
    hsp_config c = followers_config(*state, map, 3);
    c.flags |= HSP_NO_IO;
    exercise(&c);
}

static size_t round_up(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* What the header says the flag takes; on ordinary memory the handle grows instead. */
static void footprint_of_the_flag(void **state) {
    static const int32_t map[7] = {1, 2, 1, 3, 2, 4, 2}; /* two groups with followers */
    hsp_footprint_bytes at_once = {.struct_size = sizeof at_once}, later = at_once;
    hsp_config c = followers_config(*state, map, 7);
    size_t entries = 2 * (size_t)c.max_batch, most = (size_t)c.max_k * (size_t)c.max_queries;
    assert_int_equal(hsp_footprint(&c, &later), HSP_OK);
    c.flags = 0;
    assert_int_equal(hsp_footprint(&c, &at_once), HSP_OK);
    assert_int_equal(later.device_rows, at_once.device_rows);
    assert_int_equal(later.host_rows, at_once.host_rows);
    int on_a_gpu = strcmp(c.backend, "cuda") == 0;
    size_t device = on_a_gpu ? round_up(4 * entries) + round_up(8 * most * entries) : 0;
    assert_int_equal(later.device_state - at_once.device_state, device);
    assert_true(on_a_gpu || later.host_state > at_once.host_state + 6 * most * entries);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(later_in_every_pattern),
        ON_EVERY_BACKEND(a_real_map),
        ON_EVERY_BACKEND(several_queries),
        ON_PLAIN_BACKENDS(a_forgotten_wait_shows),
        ON_PLAIN_BACKENDS(a_shrunk_batch_touches_nothing),
        ON_PLAIN_BACKENDS(a_new_step_changes_no_plan),
        ON_PLAIN_BACKENDS(retired_on_the_way),
        ON_EVERY_BACKEND(refusals),
        ON_EVERY_BACKEND(nothing_to_move),
        ON_EVERY_BACKEND(footprint_of_the_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
