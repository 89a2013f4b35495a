/* SPDX-License-Identifier: Apache-2.0
 *
 * The plain arithmetic of the GPU's kernels, which needs no GPU: digits of the radix selection, and where numbers of
 * the indexer lie for its tensor cores.
 */
#include "ops_common.h"

#include "../../ops/cuda/dsa_layout.h"
#include "../../ops/top.h"

#include <math.h>

static void ranks_are_ordered_as_scores(void **state) {
    (void)state;
    static const float scores[] = {-INFINITY, -3.4e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 1.0f, 3.4e38f, INFINITY};
    for (int i = 0; i < 9; i++) {
        assert_int_equal(hsp__gpu_rank_of(scores[i]), hsp__rank_of(scores[i]));
        assert_true(i == 0 || hsp__gpu_rank_of(scores[i]) > hsp__gpu_rank_of(scores[i - 1]));
    }
    assert_int_equal(hsp__gpu_rank_of(NAN), 0);
    assert_int_equal(hsp__gpu_rank_of(-NAN), 0);
    assert_int_equal(hsp__gpu_rank_of(-0.0f), hsp__gpu_rank_of(0.0f));
    assert_true(hsp__gpu_rank_of(-INFINITY) > 0 && hsp__gpu_rank_of(INFINITY) < HSP__FORCED);
}

/* As the warp does it: 32 lanes with `each` counts each, from the top. */
static uint32_t find_count(const uint32_t *count, uint32_t each, uint32_t *k) {
    uint32_t before = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t counts[8], top = 32 * each - 1 - each * lane, sum = 0, left;
        for (uint32_t i = 0; i < each; i++)
            sum += counts[i] = count[top - i];
        if (before + sum >= *k && before < *k) {
            uint32_t digit = hsp__gpu_pick(counts, (int)each, top, *k - before, &left);
            *k = left;
            return digit;
        }
        before += sum;
    }
    fail();
    return 0;
}

static uint32_t kth(const uint32_t *ranks, int32_t n, uint32_t k, int32_t *n_equal_out) {
    uint32_t prefix = 0;
    for (int round = 0; round < HSP__ROUNDS; round++) {
        uint32_t coarse[HSP__COARSE] = {0}, fine[32] = {0}, of_one = hsp__gpu_fine(round), digit;
        for (int32_t i = 0; i < n; i++)
            if (hsp__gpu_matches(ranks[i], round, prefix))
                coarse[hsp__gpu_digit(ranks[i], round) / of_one]++;
        digit = find_count(coarse, HSP__COARSE / 32, &k) * of_one;
        for (int32_t i = 0; i < n; i++)
            if (hsp__gpu_matches(ranks[i], round, prefix) && hsp__gpu_digit(ranks[i], round) / of_one == digit / of_one)
                fine[hsp__gpu_digit(ranks[i], round) - digit]++;
        prefix = hsp__gpu_longer(prefix, round, digit + find_count(fine, 1, &k));
    }
    *n_equal_out = (int32_t)k;
    return prefix;
}

static void rounds_find_the_kth_rank(void **state) {
    (void)state;
    uint32_t ranks[300];
    uint64_t seed = 1;
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < 300; i++)
            ranks[i] = kind == 0   ? next_random(&seed)
                       : kind == 1 ? next_random(&seed) & 0x01000103
                       : kind == 2 ? (uint32_t)random_below(&seed, 3) - 1u /* 0xffffffff, 0, 1 */
                                   : hsp__gpu_rank_of(random_float(&seed));
        for (int32_t k = 1; k <= 300; k++) {
            int32_t n_equal, expected;
            uint32_t least = hsp__kth_rank(ranks, 300, k, &expected);
            assert_int_equal(kth(ranks, 300, (uint32_t)k, &n_equal), least);
            assert_int_equal(n_equal, expected);
        }
    }
}

/* Every channel is one number, and the query's place of it no other's; both directions agree. */
static void places_hold_one_number_each(void **state) {
    (void)state;
    for (int dtype = HSP_BF16; dtype <= HSP_E4M3; dtype++)
        for (int heads = 32; heads <= 64; heads *= 2) {
            char seen[128] = {0}, *taken = calloc((size_t)hsp__dsa_group_bytes(heads) / 2, 1);
            for (int s = 0; s < 8; s++)
                for (int i = 0; i < 16; i++) {
                    int half = i / 8, quad = i / 2 % 4, odd = i % 2, back[4];
                    int c = hsp__dsa_channel(dtype, s, half, quad, odd);
                    assert_true(c >= 0 && c < 128 && !seen[c]);
                    seen[c] = 1;
                    hsp__dsa_number(dtype, c, &back[0], &back[1], &back[2], &back[3]);
                    assert_true(back[0] == s && back[1] == half && back[2] == quad && back[3] == odd);
                    for (int row = 0; row < heads; row++) {
                        int place = hsp__dsa_place(heads, row, s, half, quad, odd);
                        assert_true(place >= 0 && place < hsp__dsa_group_bytes(heads) && place % 2 == 0);
                        assert_false(taken[place / 2]);
                        taken[place / 2] = 1;
                    }
                }
            free(taken);
        }
}

/* What the tensor core takes for number (8 half + 2 quad + odd) of head `row` in step s: 16-byte pieces of a panel's
 * row are swizzled by the row, a step is 32 bytes, and numbers lie in their order. */
static void places_are_those_of_the_descriptor(void **state) {
    (void)state;
    for (int heads = 32; heads <= 64; heads *= 2)
        for (int row = 0; row < heads; row++)
            for (int s = 0; s < 8; s++)
                for (int number = 0; number < 16; number++) {
                    int linear = row % 8 * 128 + s % 4 * 32 + number * 2;       /* in a group of eight rows */
                    int swizzled = linear ^ (linear >> 7 & 7) << 4;             /* of 128 bytes */
                    int want = s / 4 * heads * 128 + row / 8 * 1024 + swizzled; /* panel, group of eight rows */
                    assert_int_equal(hsp__dsa_place(heads, row, s, number / 8, number / 2 % 4, number % 2), want);
                }
}

/* The words a thread reads of a key are the channels its numbers stand for, and no two lanes meet in a bank. */
static void key_words_are_their_channels(void **state) {
    (void)state;
    for (int s = 0; s < 8; s++) {
        uint32_t banks = 0;
        for (int lane = 0; lane < 32; lane++) {
            int row = lane / 4, quad = lane % 4, word = 8 * quad + s;
            for (int byte = 0; byte < 4; byte++)
                assert_int_equal(4 * word + byte, hsp__dsa_channel(HSP_E4M3, s, byte / 2, quad, byte % 2));
            banks |= UINT32_C(1) << (33 * row + word) % 32;
        }
        assert_int_equal(banks, UINT32_MAX);
    }
    for (int pair = 0; pair < 2; pair++)
        for (int other = 0; other < 2; other++)
            for (int eight = 0; eight < 4; eight++) { /* lanes that are served together */
                uint32_t pieces = 0;
                for (int lane = 8 * eight; lane < 8 * eight + 8; lane++) {
                    int row = lane / 4, quad = lane % 4, odd = row & 1;
                    int piece = 2 * quad + 8 * pair + (other ? !odd : odd); /* x or y of take_bf16 */
                    int t = 2 * pair + (other ? !odd : odd);                /* the step it goes to */
                    for (int number = 0; number < 8; number++)
                        assert_int_equal(8 * piece + number, hsp__dsa_channel(HSP_BF16, 2 * t + number / 4,
                                                                              number / 2 % 2, quad, number % 2));
                    pieces |= UINT32_C(1) << (16 * row + piece) % 8;
                }
                assert_int_equal(pieces, 0xff);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_ordered_as_scores),  cmocka_unit_test(rounds_find_the_kth_rank),
        cmocka_unit_test(places_hold_one_number_each),  cmocka_unit_test(places_are_those_of_the_descriptor),
        cmocka_unit_test(key_words_are_their_channels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
