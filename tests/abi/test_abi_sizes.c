/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and offsets that programs built against an earlier header rely on. A change here is a change of the ABI: it
 * needs a new symbol version, not a new number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hisparse_ops_gpu.h"

static void structs_keep_their_size(void **state) {
    (void)state;
    assert_int_equal(sizeof(hsp_config), 1176);
    assert_int_equal(sizeof(hsp_knob), 56);
    assert_int_equal(sizeof(hsp_backend_desc), 144);
    assert_int_equal(sizeof(hsp_footprint_bytes), 40);
    assert_int_equal(sizeof(hsp_row_source), 64);
    assert_int_equal(sizeof(hsp_row_sink), 64);
    assert_int_equal(sizeof(hsp_plane_view), 40);
    assert_int_equal(sizeof(hsp_rows_view), 184);
    assert_int_equal(sizeof(hsp_counters), 64);
    assert_int_equal(sizeof(hsp_stats_view), 112);
    assert_int_equal(sizeof(hsp_quest_shape), 32);
    assert_int_equal(sizeof(hsp_nsa_shape), 56);
    assert_int_equal(sizeof(hsp_block_shape), 48);
    assert_int_equal(sizeof(hsp_exact_shape), 32);
    assert_int_equal(sizeof(hsp_gqa_shape), 32);
    assert_int_equal(sizeof(hsp_dsa_shape), 24);
    assert_int_equal(sizeof(hsp_mla_shape), 32);
    assert_int_equal(sizeof(hsp_gpu_batch), 40);
}

static void fields_keep_their_place(void **state) {
    (void)state;
    assert_int_equal(offsetof(hsp_config, layer_group), 16);
    assert_int_equal(offsetof(hsp_config, plane_bytes), 28);
    assert_int_equal(offsetof(hsp_config, host_tokens), 56);
    assert_int_equal(offsetof(hsp_config, host_file), 96);
    assert_int_equal(offsetof(hsp_config, seed), 1128);
    assert_int_equal(offsetof(hsp_config, flags), 1156);
    assert_int_equal(offsetof(hsp_config, pieces_in_flight), 1168);
    assert_int_equal(offsetof(hsp_counters, filled_rows), 56);
    assert_int_equal(offsetof(hsp_rows_view, plane), 24);
}

static void numbers_keep_their_meaning(void **state) {
    (void)state;
    assert_int_equal(HSP_LRU, 0);
    assert_int_equal(HSP_FIFO, 1);
    assert_int_equal(HSP_RANDOM, 2);
    assert_int_equal(HSP_CLOCK, 3);
    assert_int_equal(HSP_EIO, -40);
    assert_int_equal(HSP_EHOSTFULL, -11);
    assert_int_equal(HSP_PAGE_TOKENS, 64);
    assert_int_equal(HSP_BF16, 2);
    assert_int_equal(HSP_MLA_V4, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs_keep_their_size),
        cmocka_unit_test(fields_keep_their_place),
        cmocka_unit_test(numbers_keep_their_meaning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
