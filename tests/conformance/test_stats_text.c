/* SPDX-License-Identifier: Apache-2.0 */
/* Counters as Prometheus text: the form, line by line, and that the numbers are those of the other calls. */
#include "check.h"

#include <ctype.h>
#include <stdio.h>

enum { TEXT = 16384 };

/* A cache of layers 10, 11, 12, of which 10 and 12 are a group, with hits, misses, invalid entries and padding. */
static void open_used(toy *t, const char *backend) {
    static const int32_t groups[3] = {5, 6, 5};
    static const int rs[1] = {0}, one_new[1] = {1};
    hsp_config c = small_config(backend);
    int32_t selection[31];
    c.first_layer = 10;
    c.layer_group = groups;
    toy_open(t, &c);
    assert_int_equal(toy_admit(t, 0, 400), HSP_OK);
    assert_int_equal(toy_fill(t, 0, 300), HSP_OK);
    for (int s = 0; s < 3; s++) {
        assert_int_equal(toy_step(t, rs, one_new, 1), HSP_OK);
        for (int i = 0; i < 31; i++)
            selection[i] = i == 30 ? -1 : i == 29 ? 390 : (s * 8 + i) * 7;
        for (int g = 0; g < t->n_groups; g++)
            assert_int_equal(toy_swap_in(t, g, selection, 1, 31), HSP_OK);
    }
}

static void write_text(toy *t, char *text) {
    size_t bytes = 0;
    assert_int_equal(hsp_stats_text(t->cache, text, TEXT, &bytes), HSP_OK);
    assert_int_equal(bytes, strlen(text));
}

/* The number of a sample that must be there, once. */
static unsigned long long sample(const char *text, const char *name) {
    const char *at = strstr(text, name);
    assert_non_null(at);
    assert_true(at == text || at[-1] == '\n');
    assert_null(strstr(at + 1, name));
    return strtoull(at + strlen(name), NULL, 10);
}

static void check_layer(toy *t, const char *text, int layer) {
    static const char *const names[] = {"hits",        "misses",        "invalid",       "none",
                                        "warmed_rows", "fetched_bytes", "appended_rows", "filled_rows"};
    hsp_counters c;
    char name[128];
    assert_int_equal(hsp_layer_counters(t->cache, layer, &c), HSP_OK);
    const uint64_t want[] = {c.hits,   c.misses,        c.invalid,       c.none,
                             c.warmed, c.fetched_bytes, c.appended_rows, c.filled_rows};
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "hisparse_%s_total{backend=\"%s\",layer=\"%d\"} ", names[i], t->config.backend,
                 layer);
        assert_int_equal(sample(text, name), want[i]);
    }
    assert_true(c.hits && c.misses && c.invalid && c.none && c.appended_rows && c.filled_rows);
}

static void numbers_are_the_counters(void **state) {
    static char text[TEXT];
    char name[128];
    toy t;
    hsp_stats_view stats = {.struct_size = sizeof stats};
    open_used(&t, *state);
    write_text(&t, text);
    check_layer(&t, text, 10);
    check_layer(&t, text, 11);
    assert_null(strstr(text, "layer=\"12\"")); /* a follower has no counters of its own */
    assert_int_equal(hsp_stats(t.cache, &stats), HSP_OK);
    const struct {
        const char *name;
        uint64_t want;
    } one[] = {{"steps_total", stats.steps},
               {"live_requests", 1},
               {"host_pages", (uint64_t)stats.host_pages},
               {"host_pages_free", (uint64_t)stats.host_pages_free},
               {"host_pages_longest", (uint64_t)stats.host_pages_longest},
               {"host_huge_pages", (uint64_t)stats.host_huge_pages}};
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        snprintf(name, sizeof name, "hisparse_%s{backend=\"%s\"} ", one[i].name, t.config.backend);
        assert_int_equal(sample(text, name), one[i].want);
    }
    toy_close(&t);
}

/* "# HELP name words", "# TYPE name counter|gauge", then samples of that name alone; counters end in _total. */
static void check_form(char *text) {
    char metric[64] = "", type[16] = "", name[64], label[64];
    int n_samples = 1;
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            assert_true(n_samples > 0);
            assert_int_equal(sscanf(line, "# HELP %63[a-z_] %63s", metric, label), 2);
            assert_int_equal(line[strlen(line) - 1], '.');
            line = strtok(NULL, "\n");
            assert_non_null(line);
            assert_int_equal(sscanf(line, "# TYPE %63[a-z_] %15s", name, type), 2);
            assert_string_equal(name, metric);
            assert_int_equal(strcmp(type, "counter") == 0,
                             strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0);
            assert_true(strcmp(type, "counter") == 0 || strcmp(type, "gauge") == 0);
            n_samples = 0;
            continue;
        }
        int end = 0;
        assert_int_equal(sscanf(line, "%63[a-z_]{%63[a-z0-9_=\",]} %n", name, label, &end), 2);
        assert_string_equal(name, metric);
        assert_true(end > 0 && line[end] && strspn(line + end, "0123456789") == strlen(line + end));
        n_samples++;
    }
    assert_true(n_samples > 0);
}

static void form_is_what_prometheus_reads(void **state) {
    static char text[TEXT];
    toy t;
    open_used(&t, *state);
    write_text(&t, text);
    check_form(text);
    toy_close(&t);
}

static void too_small_is_refused(void **state) {
    static char text[TEXT];
    toy t;
    size_t bytes = 7, again = 7;
    open_used(&t, *state);
    assert_int_equal(hsp_stats_text(t.cache, NULL, 0, &bytes), HSP_OK);
    memset(text, 'x', sizeof text);
    assert_int_equal(hsp_stats_text(t.cache, text, bytes, &again), HSP_ELIMIT);
    assert_non_null(strstr(hsp_last_error(t.cache), "stats_text: size is "));
    assert_true(text[0] == 'x' && again == 7);
    assert_int_equal(hsp_stats_text(t.cache, text, bytes + 1, &again), HSP_OK);
    assert_true(again == bytes && text[bytes] == 0 && text[bytes + 1] == 'x' && strlen(text) == bytes);
    assert_int_equal(hsp_stats_text(t.cache, text, 0, &again), HSP_ELIMIT);
    assert_int_equal(hsp_stats_text(t.cache, NULL, 5, &again), HSP_EINVAL);
    assert_int_equal(hsp_stats_text(t.cache, text, TEXT, NULL), HSP_EINVAL);
    assert_int_equal(hsp_stats_text(NULL, text, TEXT, &again), HSP_EINVAL);
    toy_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {ON_EVERY_BACKEND(numbers_are_the_counters),
                                       ON_EVERY_BACKEND(form_is_what_prometheus_reads),
                                       ON_EVERY_BACKEND(too_small_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
