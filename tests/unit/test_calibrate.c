/* SPDX-License-Identifier: Apache-2.0 */
/* What `hisparse calibrate` concludes from numbers. Measuring needs a GPU; concluding does not. */
#include "calibrate.h"
#include "check.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

/* Rates of an imagined link: 50 GB/s once enough is in flight. */
static calibrate_results link_of(double in_flight_needed) {
    calibrate_results r = {.request_us = {8, 6, 5, 4.9}, .align_gb_s = {46, 46.5, 47}};
    for (int i = 0; i < CALIBRATE_BLOCKS; i++)
        for (int j = 0; j < CALIBRATE_PIECES; j++)
            r.grid_gb_s[i][j] = fmin(50, 50 * calibrate_blocks[i] * calibrate_pieces[j] / in_flight_needed);
    return r;
}

static void the_smallest_that_is_near_the_best(void **state) {
    calibrate_choice choice;
    calibrate_results r = link_of(32);
    (void)state;
    calibrate_choose(&r, &choice);
    assert_int_equal(choice.fetch_blocks, 8);
    assert_int_equal(choice.pieces_in_flight, 4); /* 8 would do with fewer blocks, but the kernels have 2 and 4 */
    assert_int_equal(choice.request_blocks, 4);   /* 8 gains 2% */
    assert_int_equal(choice.host_row_align, 16);
    r.request_us[3] = 4.8; /* 4% */
    r.grid_gb_s[6][2] = 60;
    calibrate_choose(&r, &choice);
    assert_int_equal(choice.request_blocks, 8);
    assert_int_equal(choice.fetch_blocks, 64); /* the most the knob takes */
}

static void padding_must_pay(void **state) {
    static const struct {
        double rate[3];
        int align;
    } cases[] = {
        {{46, 48, 48.5}, 64}, {{46, 47, 48}, 128}, {{46, 46.5, 47}, 16}, {{46, 48, 50}, 128}, {{46, 40, 30}, 16}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        calibrate_choice choice;
        calibrate_results r = link_of(32);
        for (int k = 0; k < 3; k++)
            r.align_gb_s[k] = cases[i].rate[k];
        calibrate_choose(&r, &choice);
        assert_int_equal(choice.host_row_align, cases[i].align);
    }
}

static void a_profile_of_choices_is_in_bounds(void **state) {
    (void)state;
    for (double needed = 0.5; needed < 5000; needed *= 1.5) {
        calibrate_choice choice;
        calibrate_results r = link_of(needed);
        hsp_config c;
        hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
        calibrate_choose(&r, &choice);
        hsp_config_init(&c, sizeof c);
        c.host_row_align = choice.host_row_align;
        c.request_blocks = choice.request_blocks;
        c.fetch_blocks = choice.fetch_blocks;
        c.pieces_in_flight = choice.pieces_in_flight;
        assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
    }
}

static void granule_is_where_time_stops_doubling(void **state) {
    static const double step[] = {4, 8, 16, 32, 64, 128, 256, 512, 1024};
    static const double h200[] = {2.9, 4.8, 9.6, 20, 40, 41, 44, 52, 64},
                        small[] = {40, 41, 40, 42, 41, 40, 44, 45, 41}, large[] = {1, 1, 2, 3, 6, 12, 25, 50, 100};
    (void)state;
    assert_true(calibrate_find_granule(step, h200, 9) == 64);
    assert_true(calibrate_find_granule(step, small, 9) == 4);
    assert_true(isnan(calibrate_find_granule(step, large, 9)));
}

static void reach_ends_at_four_fifths(void **state) {
    static const double span[] = {64, 512, 1024, 2048, 4096}, rate[] = {46, 45, 44, 30, 45},
                        slow[] = {10, 45, 44, 30, 25};
    (void)state;
    assert_true(calibrate_find_reach(span, rate, 5) == 1024);
    assert_true(isnan(calibrate_find_reach(span, slow, 5)));
}

static void lists_have_other_rows_every_time(void **state) {
    enum { LISTS = 3, N = 900, BELOW = 1000 };
    uint64_t seed = 7;
    uint32_t *list = calibrate_draw(&seed, LISTS, N, BELOW), *place = calibrate_places(&seed, 1 << 20, N);
    (void)state;
    assert_true(list && place);
    for (int l = 0; l < LISTS; l++) {
        char seen[BELOW] = {0};
        for (int i = 0; i < N; i++) {
            assert_in_range(list[l * N + i], 0, BELOW - 1);
            assert_int_equal(seen[list[l * N + i]]++, 0);
        }
    }
    assert_memory_not_equal(list, list + N, N * sizeof *list);
    char seen[N] = {0};
    for (int i = 0; i < N; i++) {
        uint64_t granule = ((uint64_t)place[i] * 16 - (1 << 20)) / 65536;
        assert_in_range(granule, 0, N - 1);
        assert_int_equal(seen[granule]++, 0);
    }
    free(list);
    free(place);
}

/* calibrate_pool.c says what fails through these. */
int tool_fail(int code, const char *format, ...) {
    (void)format;
    return code;
}
int calibrate_check(const calibrate *c, int status, const char *what) {
    (void)c, (void)what;
    return status;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_that_is_near_the_best), cmocka_unit_test(padding_must_pay),
        cmocka_unit_test(a_profile_of_choices_is_in_bounds),  cmocka_unit_test(granule_is_where_time_stops_doubling),
        cmocka_unit_test(reach_ends_at_four_fifths),          cmocka_unit_test(lists_have_other_rows_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
