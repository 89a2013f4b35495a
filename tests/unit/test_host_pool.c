/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "core/host_pool.h"

static hsp__host_pool make_pool(int64_t n, uint64_t *words) {
    hsp__host_pool pool;
    hsp__arena arena = {(char *)words, 0};
    memset(words, 0, (size_t)(n + 63) / 64 * 8 + 64);
    hsp__host_pool_init(&pool, n, &arena);
    return pool;
}

static void one_run_where_it_can(void **state) {
    _Alignas(64) uint64_t words[16];
    hsp__host_pool pool = make_pool(200, words);
    int32_t a[40], b[100], c[30];
    (void)state;
    assert_int_equal(hsp__host_pool_take(&pool, 40, 1, a), 0);
    assert_int_equal(hsp__host_pool_take(&pool, 100, 1, b), 0);
    hsp__host_pool_give(&pool, a, 40);
    assert_int_equal(hsp__host_pool_take(&pool, 30, 1, c), 0);
    for (int i = 0; i < 30; i++)
        assert_int_equal(c[i], i);
    assert_int_equal(hsp__host_pool_longest(&pool), 60);
}

static void aligned_starts_are_preferred(void **state) {
    _Alignas(64) uint64_t words[16];
    hsp__host_pool pool = make_pool(200, words);
    int32_t a[3], b[64], c[130];
    (void)state;
    assert_int_equal(hsp__host_pool_take(&pool, 3, 64, a), 0);
    assert_int_equal(hsp__host_pool_take(&pool, 64, 64, b), 0);
    assert_int_equal(b[0], 64);
    assert_int_equal(hsp__host_pool_take(&pool, 130, 64, c), 0); /* no run of 130: pieces, in order */
    for (int i = 1; i < 130; i++)
        assert_true(c[i] > c[i - 1]);
    assert_int_equal(c[0], 3);
}

static void a_run_without_alignment_beats_pieces(void **state) {
    _Alignas(64) uint64_t words[16];
    hsp__host_pool pool = make_pool(130, words);
    int32_t a[1], b[100];
    (void)state;
    assert_int_equal(hsp__host_pool_take(&pool, 1, 1, a), 0);
    assert_int_equal(hsp__host_pool_take(&pool, 100, 64, b), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(b[i], 1 + i);
}

static void refusal_and_double_give(void **state) {
    _Alignas(64) uint64_t words[16];
    hsp__host_pool pool = make_pool(65, words);
    int32_t a[65], b[1];
    (void)state;
    assert_int_equal(hsp__host_pool_take(&pool, 65, 1, a), 0);
    assert_int_equal(hsp__host_pool_take(&pool, 1, 1, b), -1);
    assert_int_equal(hsp__host_pool_longest(&pool), 0);
    hsp__host_pool_give(&pool, a, 65);
    hsp__host_pool_give(&pool, a, 65);
    assert_int_equal(pool.n_free, 65);
    assert_int_equal(hsp__host_pool_longest(&pool), 65);
}

/* Random takes and gives: no page is in two hands, and the count is right. */
static void no_page_twice(void **state) {
    _Alignas(64) uint64_t words[16];
    hsp__host_pool pool = make_pool(300, words);
    int32_t held[30][40];
    int n_held[30] = {0}, owner[300], free_pages = 300;
    uint64_t seed = 1;
    (void)state;
    memset(owner, 0xff, sizeof owner);
    for (int op = 0; op < 20000; op++) {
        int h = (int)draw(&seed, 30), n = 1 + (int)draw(&seed, 40), align = 1 << draw(&seed, 5);
        if (n_held[h]) {
            hsp__host_pool_give(&pool, held[h], n_held[h]);
            for (int i = 0; i < n_held[h]; i++)
                owner[held[h][i]] = -1;
            free_pages += n_held[h];
            n_held[h] = 0;
        } else if (n <= free_pages) {
            assert_int_equal(hsp__host_pool_take(&pool, n, align, held[h]), 0);
            for (int i = 0; i < n; i++) {
                assert_int_equal(owner[held[h][i]], -1);
                owner[held[h][i]] = h;
            }
            n_held[h] = n;
            free_pages -= n;
        } else {
            int32_t kept = held[h][0];
            assert_int_equal(hsp__host_pool_take(&pool, n, align, held[h]), -1);
            assert_int_equal(held[h][0], kept);
        }
        assert_int_equal(pool.n_free, free_pages);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_run_where_it_can),
        cmocka_unit_test(aligned_starts_are_preferred),
        cmocka_unit_test(a_run_without_alignment_beats_pieces),
        cmocka_unit_test(refusal_and_double_give),
        cmocka_unit_test(no_page_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
