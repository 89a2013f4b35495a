/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation fails once, for every number n of the failing one: nothing leaks, the text says what, the next try
 * succeeds. After open nothing allocates at all. */
#include "alloc.h"
#include "check.h"

#include <stdio.h>
#include <unistd.h>

static void fail_nth_allocation(void **state, const char *host_file, uint32_t flags) {
    static const int32_t map[3] = {0, 1, 0};
    int n = 0, status = HSP_ENOMEM;
    while (status != HSP_OK) {
        hsp_config c = small_config(*state);
        hsp_cache *cache = NULL;
        uint64_t before = hsp__watch.live_bytes;
        snprintf(c.host_file, sizeof c.host_file, "%s", host_file);
        c.layer_group = map;
        c.flags = flags;
        hsp__watch.fail_at = ++n;
        status = hsp_open(&c, &cache);
        hsp__watch.fail_at = 0;
        assert_true(status == HSP_OK || status == HSP_ENOMEM);
        if (status != HSP_OK) {
            assert_null(cache);
            assert_non_null(strstr(hsp_last_error(NULL), "bytes of memory"));
        }
        hsp_close(cache);
        assert_int_equal(hsp__watch.live_bytes, before);
        assert_int_equal(access("fault-rows", F_OK), -1);
    }
    assert_true(n > 2);
}

static void every_allocation_of_open(void **state) {
    fail_nth_allocation(state, "", 0);
    fail_nth_allocation(state, "fault-rows", 0);
    fail_nth_allocation(state, "", HSP_PREFETCH);
}

static void live_without_allocating(const hsp_config *c) {
    toy t;
    int rs[1] = {0}, one[1] = {1};
    int32_t selection[31];
    toy_open(&t, c);
    hsp__watch.fail_at = 1; /* the next one would fail */
    assert_int_equal(toy_admit(&t, 0, 400), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 200), HSP_OK);
    for (int s = 0; s < 20; s++) {
        assert_int_equal(toy_step(&t, rs, one, 1), HSP_OK);
        for (int e = 0; e < 31; e++)
            selection[e] = (s * 13 + e * 5) % 200;
        for (int g = 0; g < t.n_groups; g++)
            toy_swap_in(&t, g, selection, 1, 31);
        toy_warm(&t, 0, 1, selection, 31);
    }
    toy_check(&t);
    assert_int_equal(toy_truncate(&t, 0, 100), HSP_OK);
    assert_int_equal(toy_retire(&t, 0), HSP_OK);
    assert_int_equal(hsp__watch.fail_at, 1); /* untouched */
    hsp__watch.fail_at = 0;
    toy_close(&t);
}

static void nothing_allocates_after_open(void **state) {
    static const int32_t map[3] = {0, 1, 0};
    hsp_config c = small_config(*state);
    live_without_allocating(&c);
    c.layer_group = map;
    c.flags = HSP_PREFETCH;
    live_without_allocating(&c);
}

static void a_full_disk(void **state) {
    hsp_config c = small_config(*state);
    hsp_cache *cache = NULL;
    c.host_tokens = (int64_t)1 << 34; /* 2^34 tokens * 3 layers * 160 bytes: 8 TB */
    snprintf(c.host_file, sizeof c.host_file, "fault-rows");
    uint64_t before = hsp__watch.live_bytes;
    hsp__watch.pretend_available = UINT64_MAX; /* it is the disk that must refuse */
    int status = hsp_open(&c, &cache);
    hsp__watch.pretend_available = 0;
    assert_true(status == HSP_EIO || status == HSP_ENOMEM);
    assert_null(cache);
    assert_int_equal(hsp__watch.live_bytes, before);
    assert_int_equal(access("fault-rows", F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_PLAIN_BACKENDS(every_allocation_of_open),
        ON_PLAIN_BACKENDS(nothing_allocates_after_open),
        ON_PLAIN_BACKENDS(a_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
