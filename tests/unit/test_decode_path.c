/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of `hisparse bench decode-path`, and what it makes of times. Measuring needs a GPU; this does not. */
#include "bench_path.h"
#include "check.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

static path_options defaults(void) {
    return (path_options){.bench = {.k = 2048, .slots = 4096}, .model_layers = 78, .model_anchors = 21};
}

/* A layer of 260 us and 1 us of mechanism; four single layers pay 12 us each for the link, a group of them 32. */
static const path_times single = {
    {.batch = 1, .row_bytes = 656, .layers = 8, .group = 1}, 13.4, {273, NAN, 261, 260}, {NAN, NAN, NAN, NAN}, 274, 50};
static const path_times group = {
    {.batch = 1, .row_bytes = 656, .layers = 2, .group = 4}, 13.4, {269, 264, 261, 260}, {NAN, NAN, NAN, NAN}, 274, 50};

static void near(double have, double want) {
    if (!(fabs(have - want) <= 1e-9 * fabs(want)))
        fail_msg("%.12g, not %.12g", have, want);
}

static void costs_of_a_group(void **state) {
    path_costs c;
    (void)state;
    bench_path_costs(&group, &single, 78, 21, &c);
    near(c.mechanism, 1);
    near(c.exposed[PATH_WAITING], 9);
    near(c.exposed[PATH_PREFETCHED], 4);
    near(c.link[PATH_WAITING], 8);
    near(c.hidden_percent, 5 / 8.0 * 100);
    near(c.followers_percent, 20 / (32.0 - 12) * 100); /* all that a group costs beyond a single layer */
    near(c.of_single_percent, 8 / 12.0 * 100);
    near(c.floor_us, 274 * 656 / 50e3);
    near(c.rate_gb_s, 274 * 656 / 8e3);
    near(c.of_link_percent, c.floor_us / 8 * 100);
    near(c.exposed_ms[PATH_PREFETCHED], 21 * 4 * 4e-3);
    near(c.model_ms[PATH_RESIDENT], 78 * 0.26);
    near(c.model_ms[PATH_WAITING], 78 * 0.26 + 21 * 4 * 9e-3);
}

static void costs_of_single_layers(void **state) {
    path_costs c;
    (void)state;
    bench_path_costs(&single, &single, 78, 21, &c);
    near(c.exposed_ms[PATH_WAITING], 78 * 13e-3);
    assert_true(isnan(c.exposed[PATH_PREFETCHED]) && isnan(c.hidden_percent) && isnan(c.followers_percent));
    assert_true(isnan(c.of_single_percent));
    bench_path_costs(&group, NULL, 78, 21, &c);
    assert_true(isnan(c.followers_percent) && !isnan(c.hidden_percent));
}

/* Without a miss there is nothing to hide and no rate, however noise falls. */
static void no_misses(void **state) {
    path_times t = group;
    path_costs c;
    (void)state;
    t.rows = 0;
    bench_path_costs(&t, &single, 78, 21, &c);
    near(c.floor_us, 0);
    assert_true(isnan(c.hidden_percent) && isnan(c.rate_gb_s) && isnan(c.of_link_percent));
    t = group;
    t.us[PATH_WAITING] = 260.5; /* below the oracle */
    bench_path_costs(&t, NULL, 78, 21, &c);
    assert_true(isnan(c.rate_gb_s) && isnan(c.hidden_percent));
}

static void lists_of_cases(void **state) {
    static const struct {
        const char *name;
        int n;
    } lists[] = {{"short", 12}, {"full", 64}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        path_options o = defaults();
        bench_cases cases;
        o.bench.cases = lists[i].name;
        assert_int_equal(bench_path_cases(&o, &cases), TOOL_OK);
        assert_int_equal(cases.n, lists[i].n);
        for (int j = 0; j < cases.n; j++) {
            const bench_shape *s = &cases.item[j].shape;
            assert_int_equal(bench_path_layers(s), 8);
            assert_true(s->context >= bench_turnover(2048, 4096) && s->context <= 1 << 20);
            assert_true(bench_path_pool_bytes(s) < (size_t)20 << 30); /* twice that must fit a machine */
        }
        assert_true(cases.item[0].shape.group == 1); /* what groups are compared with comes first */
        free(cases.item);
    }
}

static void lists_that_are_typed(void **state) {
    path_options o = defaults();
    bench_cases cases;
    (void)state;
    o.bench.batches = (tool_reals){1, {8}};
    o.groups = (tool_reals){1, {2}};
    o.bench.layers = 6;
    o.bench.context = 20000;
    assert_int_equal(bench_path_cases(&o, &cases), TOOL_OK);
    assert_int_equal(cases.n, 3);
    assert_int_equal(cases.item[2].shape.layers, 3);
    assert_int_equal(cases.item[2].shape.context, 20000);
    assert_true(cases.item[2].miss == 13.4);
    free(cases.item);
}

int tool_fail(int code, const char *format, ...) {
    (void)format;
    return code;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(costs_of_a_group), cmocka_unit_test(costs_of_single_layers),
                                       cmocka_unit_test(no_misses), cmocka_unit_test(lists_of_cases),
                                       cmocka_unit_test(lists_that_are_typed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
