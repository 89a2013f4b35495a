/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdlib.h>

static void defaults_are_in_bounds_and_open(void **state) {
    hsp_config c;
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    (void)state;
    hsp_config_init(&c, sizeof c);
    assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
    assert_int_equal(bytes.device_rows, (uint64_t)(4096 + 64) * 656 / 256 * 256);
}

static void every_knob_says_what_it_is(void **state) {
    hsp_knob knob = {.struct_size = sizeof knob};
    hsp_config c;
    int n = 0;
    (void)state;
    hsp_config_init(&c, sizeof c);
    for (; hsp_config_knob(n, &knob) == HSP_OK; n++) {
        assert_true(knob.help[0] && knob.bounds[0] && knob.type[0]);
        if (knob.default_value[0]) /* what is printed as the default can be given as a value */
            assert_int_equal(hsp_config_set(&c, knob.key, knob.default_value), HSP_OK);
    }
    assert_int_equal(n, 25);
    assert_int_equal(hsp_config_knob(-1, &knob), HSP_ELIMIT);
}

static void values_out_of_bounds_are_named(void **state) {
    static const struct {
        const char *key, *value;
        int status;
        const char *text;
    } bad[] = {
        {"n_slots", "65536", HSP_ELIMIT, "n_slots is 65536; it may be 1..65535"},
        {"n_slots", "0", HSP_ELIMIT, "n_slots is 0; it may be 1..65535"},
        {"n_slots", "-1", HSP_ELIMIT, "n_slots is -1; it may be 1..65535"},
        {"n_slots", "99999999999999999999", HSP_EINVAL, "n_slots: '99999999999999999999' is not a whole number"},
        {"n_slots", "4k", HSP_EINVAL, "n_slots: '4k' is not a whole number"},
        {"n_slots", "", HSP_EINVAL, "n_slots: '' is not a whole number"},
        {"seed", " -1", HSP_EINVAL, "seed: ' -1' is not a whole number"},
        {"seed", "-1", HSP_EINVAL, "seed: '-1' is not a whole number"},
        {"policy", "mru", HSP_EINVAL, "policy: 'mru' is none of lru|fifo|random|clock"},
        {"policy", "lr", HSP_EINVAL, "policy: 'lr' is none of lru|fifo|random|clock"},
        {"planes", "512,", HSP_EINVAL, "planes: '512,' is not a list of 1..4 sizes"},
        {"planes", "1,2,3,4,5", HSP_ELIMIT, "planes: a plane of 1 bytes; it may be 4..65536"},
        {"planes", "8,8,8,8,8", HSP_EINVAL, "planes: '8,8,8,8,8' is not a list of 1..4 sizes"},
        {"backend", "a-name-that-is-too-long", HSP_ELIMIT, "backend: a text of 23 bytes; it may have 1..15"},
        {"n_slot", "1", HSP_EINVAL, "there is no knob 'n_slot'; did you mean 'n_slots'?"},
        {"max_tokens", "1", HSP_EINVAL, "there is no knob 'max_tokens'; did you mean 'host_tokens'?"},
    };
    hsp_config c, before;
    (void)state;
    hsp_config_init(&c, sizeof c);
    before = c;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(hsp_config_set(&c, bad[i].key, bad[i].value), bad[i].status);
        assert_string_equal(hsp_last_error(NULL), bad[i].text);
        assert_memory_equal(&c, &before, sizeof c);
    }
}

static void contradictions_are_refused(void **state) {
    static const char *const bad[][4] = {
        {"max_k", "4097", "n_slots", "4096"},    {"max_queries", "3", "max_k", "2048"},
        {"ring_rows", "1", "max_queries", "2"},  {"max_requests", "65535", "n_slots", "65535"},
        {"host_row_align", "24", "max_k", "1"},  {"planes", "10", "max_k", "1"},
        {"backend", "vulkan", "max_k", "1"},     {"request_blocks", "3", "max_k", "1"},
        {"pieces_in_flight", "6", "max_k", "1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        hsp_config c;
        hsp_cache *cache = NULL;
        hsp_config_init(&c, sizeof c);
        assert_int_equal(hsp_config_set(&c, bad[i][0], bad[i][1]), HSP_OK);
        assert_int_equal(hsp_config_set(&c, bad[i][2], bad[i][3]), HSP_OK);
        assert_true(hsp_open(&c, &cache) < 0);
        assert_null(cache);
    }
    hsp_config never = {0};
    hsp_cache *cache = NULL;
    assert_int_equal(hsp_open(&never, &cache), HSP_EINVAL);
    assert_int_equal(hsp_open(NULL, &cache), HSP_EINVAL);
}

static void environment_sets_knobs(void **state) {
    hsp_config c, before;
    (void)state;
    hsp_config_init(&c, sizeof c);
    setenv("HISPARSE_N_SLOTS", "2048", 1);
    setenv("HISPARSE_POLICY", "clock", 1);
    setenv("HISPARSE_NO_IO", "on", 1);
    setenv("HISPARSE_PREFETCH", "on", 1);
    assert_int_equal(hsp_config_env(&c), HSP_OK);
    assert_int_equal(c.n_slots, 2048);
    assert_int_equal(c.policy, HSP_CLOCK);
    assert_int_equal(c.flags, HSP_NO_IO | HSP_PREFETCH);
    before = c;
    setenv("HISPARSE_RING_ROW", "3", 1);
    setenv("HISPARSE_N_SLOTS", "1024", 1);
    assert_int_equal(hsp_config_env(&c), HSP_EINVAL);
    assert_string_equal(hsp_last_error(NULL),
                        "environment HISPARSE_RING_ROW: there is no knob 'ring_row'; did you mean 'ring_rows'?");
    assert_memory_equal(&c, &before, sizeof c);
    unsetenv("HISPARSE_RING_ROW");
    unsetenv("HISPARSE_N_SLOTS");
    unsetenv("HISPARSE_POLICY");
    unsetenv("HISPARSE_NO_IO");
    unsetenv("HISPARSE_PREFETCH");
}

static void every_status_has_a_name(void **state) {
    static const int all[] = {0, -1, -2, -3, -10, -11, -12, -20, -30, -31, -32, -40};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(strncmp(hsp_status_name(all[i]), "HSP_", 4), 0);
        assert_string_not_equal(hsp_status_name(all[i]), "HSP_UNKNOWN");
    }
    assert_string_equal(hsp_status_name(7), "HSP_UNKNOWN");
    assert_non_null(hsp_status_text(7));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_in_bounds_and_open), cmocka_unit_test(every_knob_says_what_it_is),
        cmocka_unit_test(values_out_of_bounds_are_named),  cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(environment_sets_knobs),          cmocka_unit_test(every_status_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
