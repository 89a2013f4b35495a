/* SPDX-License-Identifier: Apache-2.0 */
/* Selections of every kind, on every backend: each is followed by ordinary steps, because a fault of the order shows
 * only a step later. */
#include "check.h"

static const int first_only[1] = {0}, one_new[1] = {1}, none_new[1] = {0};

static void open_with_request(toy *t, const hsp_config *config, int length) {
    toy_open(t, config);
    assert_int_equal(toy_admit(t, 0, config->max_context), HSP_OK);
    assert_int_equal(toy_fill(t, 0, length), HSP_OK);
}

/* Steps with windows that drift over the whole context. */
static void ordinary_steps(toy *t, int steps, uint64_t seed) {
    int k = t->config.max_k;
    int32_t *selection = malloc((size_t)k * sizeof *selection);
    for (int s = 0; s < steps; s++) {
        assert_int_equal(toy_step(t, first_only, one_new, 1), HSP_OK);
        int length = t->request[0].length, start = (int)draw(&seed, (uint32_t)length);
        for (int i = 0; i < k; i++)
            selection[i] = (start + i * (1 + s % 3)) % length;
        for (int g = 0; g < t->n_groups; g++)
            toy_swap_in(t, g, selection, 1, k);
        toy_check(t);
    }
    free(selection);
}

static void minus_one_anywhere(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    open_with_request(&t, &c, 200);
    int32_t front[5] = {-1, 7, 8, 9, 10}, middle[5] = {7, -1, 11, -1, 12}, end[5] = {150, 151, 152, -1, -1};
    int32_t all[5] = {-1, -1, -1, -1, -1};
    assert_int_equal(toy_step(&t, first_only, none_new, 1), HSP_OK);
    toy_swap_in(&t, 0, front, 1, 5);
    toy_swap_in(&t, 0, all, 1, 5);
    toy_swap_in(&t, 0, middle, 1, 5);
    toy_swap_in(&t, 0, end, 1, 5);
    toy_check(&t);
    ordinary_steps(&t, 12, 1);
    toy_close(&t);
}

static void duplicates(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    open_with_request(&t, &c, 200);
    int32_t newest = 199, twice[6] = {50, 50, 51, 50, 51, 52}, same[31], mixed[7] = {50, 60, 60, 50, -1, 200, 200};
    for (int i = 0; i < 31; i++)
        same[i] = 77;
    assert_int_equal(toy_step(&t, first_only, one_new, 1), HSP_OK);
    toy_swap_in(&t, 0, twice, 1, 6);
    toy_swap_in(&t, 0, twice, 1, 6);
    toy_swap_in(&t, 0, same, 1, 31);
    toy_swap_in(&t, 0, mixed, 1, 7);
    for (int i = 0; i < 31; i++)
        same[i] = newest + 1;
    toy_swap_in(&t, 0, same, 1, 31);
    assert_int_equal(t.request[0].counters.misses, 3 + 0 + 1 + 1 + 0);
    toy_check(&t);
    ordinary_steps(&t, 12, 2);
    toy_close(&t);
}

static void out_of_range(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    open_with_request(&t, &c, 100);
    int32_t wild[8] = {100, 99, -2, INT32_MIN, INT32_MAX, 0, 399, 400};
    assert_int_equal(toy_step(&t, first_only, none_new, 1), HSP_OK);
    toy_swap_in(&t, 0, wild, 1, 8);
    assert_int_equal(t.request[0].counters.invalid, 6);
    toy_check(&t);
    ordinary_steps(&t, 8, 3);
    toy_close(&t);
}

static void fewer_than_k_and_empty(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    open_with_request(&t, &c, 3);
    int32_t few[31];
    for (int i = 0; i < 31; i++)
        few[i] = i < 3 ? 2 - i : -1;
    assert_int_equal(toy_step(&t, first_only, none_new, 1), HSP_OK);
    toy_swap_in(&t, 0, few, 1, 31);
    toy_swap_in(&t, 0, few, 1, 0);
    toy_swap_in(&t, 0, few, 0, 31);
    toy_check(&t);
    assert_int_equal(toy_step(&t, first_only, none_new, 0), HSP_OK);
    toy_swap_in(&t, 0, few, 1, 31);
    toy_check(&t);
    ordinary_steps(&t, 8, 4);
    toy_close(&t);
}

static void awkward_sizes(void **state) {
    static const int ks[] = {1, 31, 32, 33, 64, 65}, extra_slots[] = {0, 1, 30, 32};
    for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++)
        for (size_t j = 0; j < sizeof extra_slots / sizeof extra_slots[0]; j++)
            for (int policy = HSP_LRU; policy <= HSP_CLOCK; policy++) {
                hsp_config c = small_config(*state);
                toy t;
                c.max_k = ks[i];
                c.n_slots = ks[i] + extra_slots[j];
                c.policy = policy;
                open_with_request(&t, &c, 350);
                ordinary_steps(&t, 20, 5 + i);
                toy_close(&t);
            }
}

/* The order is a permutation and no token is in two slots, whatever went before. */
static void order_and_tags_stay_whole(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    open_with_request(&t, &c, 300);
    ordinary_steps(&t, 30, 9);
    int32_t tags[33], order[33];
    assert_int_equal(hsp_resident(t.cache, t.request[0].handle, 0, tags, order, NULL, NULL), HSP_OK);
    for (int i = 0; i < 33; i++) {
        int times = 0, tokens = 0;
        for (int j = 0; j < 33; j++) {
            times += order[j] == i;
            tokens += tags[i] >= 0 && tags[j] == tags[i];
        }
        assert_int_equal(times, 1);
        assert_true(tokens <= 1);
    }
    toy_close(&t);
}

static void several_queries(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    uint64_t seed = 11;
    c.max_queries = 3;
    c.max_k = 11;
    open_with_request(&t, &c, 200);
    for (int step = 0; step < 25; step++) {
        int n_new[1] = {1 + step % 3};
        int32_t selection[3 * 11];
        assert_int_equal(toy_step(&t, first_only, n_new, 1), HSP_OK);
        for (int e = 0; e < 33; e++) /* disjoint, overlapping and equal selections in turn */
            selection[e] = step % 3 == 0 ? e * 6 : step % 3 == 1 ? (int)draw(&seed, 60) : 40 + e % 11;
        toy_swap_in(&t, step % 3, selection, 3, 11);
        toy_check(&t);
    }
    toy_close(&t);
}

static void padded_batches_shrink_and_grow(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    uint64_t seed = 13;
    toy_open(&t, &c);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(toy_admit(&t, r, 300), HSP_OK);
        assert_int_equal(toy_fill(&t, r, 100 + 30 * r), HSP_OK);
    }
    for (int step = 0; step < 40; step++) {
        int rs[4] = {-1, -1, -1, -1}, n_new[4] = {1, 1, 1, 1}, at = (int)draw(&seed, 4), n = (int)draw(&seed, 4);
        for (int i = 0; i < n; i++)
            rs[(at + i) % 4] = (i + step) % 3;
        assert_int_equal(toy_step(&t, rs, n_new, 4), HSP_OK);
        int32_t selection[4 * 31];
        for (int e = 0; e < 4 * 31; e++)
            selection[e] = (int)draw(&seed, 120); /* stale-looking ids in the padding too */
        toy_swap_in(&t, step % 3, selection, 1, 31);
        toy_check(&t);
    }
    toy_close(&t);
}

static void oracle_moves_no_bytes(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    c.flags = HSP_NO_IO;
    open_with_request(&t, &c, 200);
    ordinary_steps(&t, 10, 17); /* ids, order and counters as ever; the toy does not look at fetched bytes */
    int32_t id, token = 3, first_id, tags[33];
    toy_swap_in(&t, 0, &token, 1, 1);
    hsp_resident(t.cache, t.request[0].handle, 0, tags, NULL, NULL, &first_id);
    for (id = 0; tags[id] != 3; id++)
        assert_true(id < 33);
    hsp_rows_view view = {.struct_size = sizeof view};
    assert_int_equal(hsp_rows(t.cache, 0, &view), HSP_OK);
    char row[20];
    t.device->read(row, (const char *)view.plane[0].base + (size_t)(first_id + id) * view.plane[0].row_stride,
                   sizeof row);
    for (size_t i = 0; i < sizeof row; i++)
        assert_int_equal(row[i], 0);
    toy_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(minus_one_anywhere),    ON_EVERY_BACKEND(duplicates),
        ON_EVERY_BACKEND(out_of_range),          ON_EVERY_BACKEND(fewer_than_k_and_empty),
        ON_EVERY_BACKEND(awkward_sizes),         ON_EVERY_BACKEND(order_and_tags_stay_whole),
        ON_EVERY_BACKEND(several_queries),       ON_EVERY_BACKEND(padded_batches_shrink_and_grow),
        ON_EVERY_BACKEND(oracle_moves_no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
