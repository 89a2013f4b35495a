/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel at the largest shapes it takes on the machine at hand: registers, shared memory and grids must fit, and
 * the results are right. */
#include "check.h"

typedef struct shape {
    const char *name;
    int n_slots, k, n_queries, batch, n_layers, n_planes, plane_bytes[4], block_rows, policy;
} shape;

static const shape lru_shapes[] = {
    {"2048 of 2048", 2048, 2048, 1, 1, 1, 1, {16}, 1, HSP_LRU},
    {"2048 of 4096", 4096, 2048, 1, 2, 1, 1, {16}, 1, HSP_LRU},
    {"2048 of 8192", 8192, 2048, 1, 4, 1, 1, {16}, 1, HSP_LRU},
    {"4096 of 8192", 8192, 4096, 1, 8, 1, 1, {16}, 1, HSP_LRU},
    {"8192 of 8192", 8192, 8192, 1, 1, 1, 1, {16}, 1, HSP_LRU},
    {"8192 of 8192, large batch", 8192, 8192, 1, 40, 1, 1, {16}, 1, HSP_LRU},
    {"2048 of 2048, planes", 2048, 1024, 2, 1, 3, 4, {4, 20, 132, 8}, 1, HSP_LRU},
    {"4096 of 8192, planes in blocks", 8192, 2048, 2, 3, 3, 4, {4, 20, 132, 8}, 64, HSP_LRU},
    {"8192 of 8192, planes in blocks", 8192, 2048, 4, 2, 3, 3, {16, 128, 512}, 64, HSP_LRU},
    {"8192 of 8192, planes, large batch", 8192, 8192, 1, 33, 2, 2, {8, 12}, 64, HSP_LRU},
    {"rows of 656 bytes", 8192, 8192, 1, 1, 1, 1, {656}, 1, HSP_LRU},
    {"rows of 128 KiB", 16, 16, 1, 2, 1, 4, {32768, 32768, 32768, 32768}, 1, HSP_LRU},
};
static const shape big_shapes[] = {
    {"one slot too many", 8193, 8192, 1, 2, 1, 1, {16}, 1, HSP_LRU},
    {"65535 of 65535", 65535, 65535, 1, 1, 1, 1, {4}, 1, HSP_LRU},
    {"65535 of 65535, FIFO", 65535, 65535, 1, 1, 1, 1, {4}, 1, HSP_FIFO},
    {"65535 of 65535, random", 65535, 65535, 1, 1, 1, 1, {4}, 1, HSP_RANDOM},
    {"65535 of 65535, clock", 65535, 65535, 1, 1, 1, 1, {4}, 1, HSP_CLOCK},
    {"64 queries, planes", 65535, 1023, 64, 2, 2, 4, {4, 8, 4, 12}, 64, HSP_LRU},
    {"large batch", 9000, 8192, 1, 40, 1, 1, {4}, 1, HSP_LRU},
};

static hsp_config config_of(const char *backend, const shape *s) {
    static const int32_t one_group[3] = {0, 0, 0};
    hsp_config c = small_config(backend);
    c.n_layers = s->n_layers;
    c.layer_group = one_group;
    c.n_planes = s->n_planes;
    memcpy(c.plane_bytes, s->plane_bytes, sizeof c.plane_bytes);
    c.max_requests = c.max_batch = s->batch;
    c.max_context = 2 * s->n_slots + 300;
    c.host_tokens = (int64_t)s->batch * (c.max_context + 64);
    c.n_slots = s->n_slots;
    c.max_k = s->k;
    c.max_queries = s->n_queries;
    c.ring_rows = s->n_queries + 1;
    c.block_rows = s->block_rows;
    c.policy = s->policy;
    c.n_threads = 1;
    return c;
}

/* All of the first tokens; the same again with one other; as many others, backwards; a mixture. */
static int32_t choose(uint64_t *seed, int step, int e, int n, int length) {
    switch (step) {
    case 0:
        return e;
    case 1:
        return e == 7 ? n + 1 : e;
    case 2:
        return 2 * n - 1 - e < length ? 2 * n - 1 - e : -1;
    default:
        return (int32_t)draw(seed, (uint32_t)length + 3) - 1;
    }
}

static void run_config(hsp_config c, const shape *s) {
    int n = s->n_queries * s->k, *rs = malloc(2 * (size_t)s->batch * sizeof(int)), *n_new = rs + s->batch;
    int32_t *selection = malloc((size_t)s->batch * (size_t)n * sizeof *selection);
    uint64_t seed = 1;
    toy t;
    toy_open(&t, &c);
    for (int r = 0; r < s->batch; r++) {
        rs[r] = s->batch - 1 - r;
        n_new[r] = s->n_queries;
        assert_int_equal(toy_admit(&t, r, c.max_context), HSP_OK);
        assert_int_equal(toy_fill(&t, r, 2 * s->n_slots), HSP_OK);
    }
    for (int step = 0; step < 4; step++) {
        assert_int_equal(toy_step(&t, rs, n_new, s->batch), HSP_OK);
        for (int e = 0; e < s->batch * n; e++)
            selection[e] = choose(&seed, step, e % n, n, t.request[0].length);
        toy_swap_in(&t, 0, selection, s->n_queries, s->k);
    }
    for (int e = 0; e < s->n_slots && e < s->batch * n; e++)
        selection[e] = 2 * e;
    toy_warm(&t, 0, 0, selection, s->n_slots < s->batch * n ? s->n_slots : s->batch * n);
    toy_truncate(&t, 0, s->n_slots);
    toy_check(&t);
    toy_close(&t);
    free(rs);
    free(selection);
}

static void run_shape(const char *backend, const shape *s) {
    print_message("%s\n", s->name);
    run_config(config_of(backend, s), s);
}

static void largest_lru(void **state) {
    for (size_t i = 0; i < sizeof lru_shapes / sizeof lru_shapes[0]; i++)
        run_shape(*state, &lru_shapes[i]);
}

static void largest_of_any_policy(void **state) {
    for (size_t i = 0; i < sizeof big_shapes / sizeof big_shapes[0]; i++)
        run_shape(*state, &big_shapes[i]);
}

static const shape fetch_shapes[] = {
    {"plain", 300, 256, 1, 2, 1, 1, {656}, 1, HSP_LRU},
    {"planes in blocks", 300, 128, 2, 2, 3, 2, {576, 8}, 64, HSP_LRU},
    {"plain, large batch", 300, 256, 1, 40, 1, 1, {656}, 1, HSP_LRU},
    {"planes in blocks, large batch", 300, 128, 2, 40, 3, 2, {576, 8}, 64, HSP_LRU},
    {"any policy", 300, 256, 1, 3, 2, 1, {132}, 1, HSP_FIFO},
};

/* The knobs that say how rows are fetched change no result. */
static void every_way_of_fetching(void **state) {
    static const int ways[][3] = {{1, 1, 1}, {2, 3, 2}, {4, 16, 4}, {8, 64, 8}, {8, 1, 1}, {1, 64, 8}, {0, 5, 0}};
    for (size_t i = 0; i < sizeof fetch_shapes / sizeof fetch_shapes[0]; i++)
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            hsp_config c = config_of(*state, &fetch_shapes[i]);
            c.request_blocks = ways[w][0];
            c.fetch_blocks = ways[w][1];
            c.pieces_in_flight = ways[w][2];
            print_message("%s, %d %d %d\n", fetch_shapes[i].name, ways[w][0], ways[w][1], ways[w][2]);
            run_config(c, &fetch_shapes[i]);
        }
}

/* 65535 entries of which two are requests: the last and one in the middle. */
static void largest_batch(void **state) {
    hsp_config c = small_config(*state);
    int *rs = malloc(65535 * sizeof *rs), *n_new = calloc(65535, sizeof *n_new);
    int32_t *selection = malloc(65535 * 4 * sizeof *selection);
    toy t;
    assert_true(rs && n_new && selection);
    c.max_batch = 65535;
    c.max_k = 4;
    toy_open(&t, &c);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(toy_admit(&t, r, 300), HSP_OK);
        assert_int_equal(toy_fill(&t, r, 200), HSP_OK);
    }
    memset(rs, 0xff, 65535 * sizeof *rs);
    rs[65534] = 1, rs[30000] = 0;
    n_new[65534] = 1, n_new[30000] = 1;
    for (int step = 0; step < 3; step++) {
        assert_int_equal(toy_step(&t, rs, n_new, 65535), HSP_OK);
        for (int e = 0; e < 65535 * 4; e++)
            selection[e] = (e * 13 + step * 5) % 204;
        for (int g = 0; g < 3; g++)
            toy_swap_in(&t, g, selection, 1, 4);
        toy_check(&t);
    }
    toy_close(&t);
    free(rs);
    free(n_new);
    free(selection);
}

int main(void) {
    /* ref launches nothing and would take a minute; cpu shows that the test is right */
    const struct CMUnitTest tests[] = {
        ON("cpu", largest_lru),           ON("cuda", largest_lru),
        ON("cpu", largest_of_any_policy), ON("cuda", largest_of_any_policy),
        ON("cpu", largest_batch),         ON("cuda", largest_batch),
        ON("cpu", every_way_of_fetching), ON("cuda", every_way_of_fetching),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
