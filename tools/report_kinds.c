/* SPDX-License-Identifier: Apache-2.0 */
/* What is drawn of each command's result. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const json_t *rows_of(const json_t *whole) {
    return json_object_get(whole, "rows");
}

/* --------------------------------------------------------------------------------------------------------- sweep -- */

static void draw_layers(report_page *p, const json_t *layers, const json_t *policy) {
    static const char *const keys[] = {"policy", "slots", "layer", "misses", "missed_percent", NULL};
    char title[256];
    json_t *rows = report_where(layers, "policy", policy);
    snprintf(title, sizeof title, "Misses by layer, policy %.100s", json_string_value(policy));
    report_heat(p, rows, &(report_axes){title, "layer", "slots", "missed_percent", "slots", "% missed"}, keys);
    json_decref(rows);
}

static void draw_sweep(report_page *p, const json_t *whole) {
    json_t *layers = report_where(rows_of(whole), "layer", NULL), *none = json_null();
    json_t *all = report_where(rows_of(whole), "layer", none), *policies = report_distinct(layers, "policy");
    report_lines(p, all,
                 &(report_axes){"Misses by slots and policy; belady is the least there can be", "policy", "slots",
                                "missed_percent", "slots", "% missed"},
                 NULL);
    for (size_t i = 0; i < json_array_size(policies); i++)
        if (json_is_string(json_array_get(policies, i)))
            draw_layers(p, layers, json_array_get(policies, i));
    json_decref(layers);
    json_decref(all);
    json_decref(policies);
}

/* ---------------------------------------------------------------------------------------------------------- bars -- */

/* What tells the cases of a bench apart. */
static const struct {
    const char *key, *before, *after;
} marks[] = {{"miss_percent", "", "% misses"},  {"group_layers", "group of ", ""}, {"context_tokens", "", " tokens"},
             {"slots", "", " slots"},           {"row_bytes", "", " B"},           {"cold", "cold ", ""},
             {"groups_in_turn", "", " groups"}, {"steps", "", " steps"},           {"layers", "", " layers"}};
enum { N_MARKS = sizeof marks / sizeof marks[0] };

/* Bits of the marks that are not the same in all rows. */
static unsigned marks_that_differ(const json_t *rows) {
    unsigned mask = 0;
    for (int i = 0; i < N_MARKS; i++) {
        json_t *values = report_distinct(rows, marks[i].key);
        mask |= json_array_size(values) > 1 ? 1u << i : 0;
        json_decref(values);
    }
    return mask;
}

static void case_label(const json_t *row, unsigned mask, const char *way, char *label_out) {
    char text[REPORT_NUMBER_BYTES];
    size_t n = 0;
    for (int i = 0; i < N_MARKS && n < REPORT_LABEL; i++)
        if (mask & 1u << i)
            n += (size_t)snprintf(label_out + n, REPORT_LABEL - n, "%s%s%.20s%s", n ? ", " : "", marks[i].before,
                                  report_cell(row, marks[i].key, text), marks[i].after);
    if (n < REPORT_LABEL)
        snprintf(label_out + n, REPORT_LABEL - n, "%s%.40s", n && *way ? ", " : "", way);
}

/* Mechanism, then what is left of the link, then what was hidden of it. Without a prefetch nothing is hidden. */
static report_bar exposure_bar(const json_t *row, unsigned mask) {
    report_bar bar;
    double waiting = report_number(row, "link_waiting_us"), prefetched = report_number(row, "link_prefetched_us");
    const double parts[REPORT_PARTS] = {report_number(row, "mechanism_us"), isnan(prefetched) ? waiting : prefetched,
                                        waiting - prefetched};
    memcpy(bar.length, parts, sizeof parts);
    memcpy(bar.shown, parts, sizeof parts);
    case_label(row, mask, "", bar.label);
    return bar;
}

static void draw_exposure(report_page *p, const json_t *rows, const char *batch) {
    static const char *const keys[] = {"batch",
                                       "context_tokens",
                                       "row_bytes",
                                       "group_layers",
                                       "miss_percent",
                                       "mechanism_us",
                                       "link_waiting_us",
                                       "link_prefetched_us",
                                       "exposed_waiting_us",
                                       "exposed_prefetched_us",
                                       "hidden_percent",
                                       NULL};
    char title[128];
    unsigned mask = marks_that_differ(rows);
    report_bars bars = {title, "us a layer", {"mechanism", "link", "hidden"}, (int)json_array_size(rows), NULL};
    snprintf(title, sizeof title, "What a layer costs beyond all resident, batch %s", batch);
    bars.bar = calloc((size_t)bars.n + 1, sizeof *bars.bar);
    if (!bars.bar)
        return;
    for (int i = 0; i < bars.n; i++)
        bars.bar[i] = exposure_bar(json_array_get(rows, (size_t)i), mask);
    report_draw_bars(p, &bars, rows, keys);
    free(bars.bar);
}

enum { MOST_WAYS = 8, MOST_KEYS = N_MARKS + 2 * MOST_WAYS + 2, KEY = 64 };

/* "swap_in", of the members swap_in_us and swap_in_p99_us. */
typedef struct way {
    char name[KEY], median[KEY], p99[KEY];
} way;

/* What was timed with percentiles. */
static int ways_of(const json_t *row, way *ways) {
    static const char end[] = "_p99_us";
    const char *key;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)row, key, value) {
        int length = (int)strlen(key), name = length - (int)sizeof end + 1;
        if (n == MOST_WAYS || name <= 0 || length >= KEY || strcmp(key + name, end) != 0)
            continue;
        snprintf(ways[n].name, KEY, "%.*s", name, key);
        snprintf(ways[n].median, KEY, "%.*s_us", name, key);
        snprintf(ways[n++].p99, KEY, "%s", key);
    }
    return n;
}

static void percentile_bar(const json_t *row, unsigned mask, const way *w, report_bars *bars) {
    report_bar *bar = &bars->bar[bars->n];
    double median = report_number(row, w->median), p99 = report_number(row, w->p99);
    if (isnan(median) || isnan(p99))
        return;
    *bar = (report_bar){.length = {median, p99 - median}, .shown = {median, p99}};
    case_label(row, mask, w->name, bar->label);
    bars->n++;
}

/* The members that tell cases apart, and medians and percentiles of every way; ends with NULL. */
static void percentile_keys(const way *ways, int n_ways, const char *keys_out[MOST_KEYS]) {
    int n = 0;
    keys_out[n++] = "batch";
    for (int i = 0; i < N_MARKS; i++)
        keys_out[n++] = marks[i].key;
    for (int w = 0; w < n_ways; w++) {
        keys_out[n++] = ways[w].median;
        keys_out[n++] = ways[w].p99;
    }
    keys_out[n] = NULL;
}

static void draw_percentiles(report_page *p, const json_t *rows, const char *batch) {
    way ways[MOST_WAYS];
    char title[128];
    const char *keys[MOST_KEYS];
    int n_ways = ways_of(json_array_get(rows, 0), ways);
    unsigned mask = marks_that_differ(rows);
    size_t n = json_array_size(rows);
    report_bars bars = {title, "us", {"median", "p99"}, 0, NULL};
    snprintf(title, sizeof title, "Medians and 99th percentiles%s%s", *batch ? ", batch " : "", batch);
    bars.bar = calloc(n * (size_t)n_ways + 1, sizeof *bars.bar);
    for (size_t i = 0; bars.bar && i < n; i++)
        for (int w = 0; w < n_ways; w++)
            percentile_bar(json_array_get(rows, i), mask, &ways[w], &bars);
    percentile_keys(ways, n_ways, keys);
    if (bars.n > 0)
        report_draw_bars(p, &bars, rows, keys);
    free(bars.bar);
}

/* Batches are far apart in time: each has a chart of its own. */
static void by_batch(report_page *p, const json_t *rows,
                     void (*draw)(report_page *p, const json_t *rows, const char *batch)) {
    char text[REPORT_NUMBER_BYTES];
    json_t *batches = report_distinct(rows, "batch");
    if (json_array_size(batches) == 0)
        draw(p, rows, "");
    for (size_t i = 0; i < json_array_size(batches); i++) {
        json_t *some = report_where(rows, "batch", json_array_get(batches, i));
        draw(p, some, report_cell(json_array_get(some, 0), "batch", text));
        json_decref(some);
    }
    json_decref(batches);
}

static void draw_path(report_page *p, const json_t *whole) {
    by_batch(p, rows_of(whole), draw_exposure);
    by_batch(p, rows_of(whole), draw_percentiles);
    report_table(p, "All numbers", rows_of(whole), NULL);
}

static void draw_bench(report_page *p, const json_t *whole) {
    by_batch(p, rows_of(whole), draw_percentiles);
    report_table(p, "All numbers", rows_of(whole), NULL);
}

/* -------------------------------------------------------------------------------------------------------- tables -- */

static void draw_plan(report_page *p, const json_t *whole) {
    report_table(p, "Plan", rows_of(whole), NULL);
}

static void draw_score(report_page *p, const json_t *whole) {
    report_members(p, "Score", whole);
}

static void draw_run(report_page *p, const json_t *whole) {
    report_members(p, "Run", whole);
    report_table(p, "Layers", json_object_get(whole, "layers"), NULL);
}

/* --------------------------------------------------------------------------------------------------------- kinds -- */

static const report_kind kinds[] = {
    {"sweep", "sweep", {"policy", "slots", "missed_percent", "layer"}, draw_sweep},
    {"plan", "plan", {"kept", "requests", "rate_tokens_s"}, draw_plan},
    {"bench decode-path", "decode-path", {"batch", "mechanism_us", "link_waiting_us"}, draw_path},
    {"bench swap-in", "swap-in", {"swap_in_us", "swap_in_p99_us"}, draw_bench},
    {"bench swap-in --sweep-context", "swap-in sweep-context", {"context_tokens", "resolve_p99_us"}, draw_bench},
    {"score", NULL, {"bits_per_byte", "digest", "scored_tokens"}, draw_score},
    {"run", NULL, {"generated_tokens", "layers", "decode_tokens_per_second"}, draw_run},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0], MOST_ROWS = 10000 };

static const char *missing(const report_kind *kind, const json_t *row) {
    for (int i = 0; kind->needs[i]; i++)
        if (!json_object_get(row, kind->needs[i]))
            return kind->needs[i];
    return NULL;
}

static int all_objects(const json_t *rows) {
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (!json_is_object(json_array_get(rows, i)))
            return 0;
    return json_array_size(rows) > 0;
}

static const report_kind *check_rows(const report_kind *kind, const json_t *rows, char *why_out, size_t bytes) {
    if (!all_objects(rows)) {
        snprintf(why_out, bytes, "a result of %s without rows", kind->name);
        return NULL;
    }
    if (json_array_size(rows) > MOST_ROWS) {
        snprintf(why_out, bytes, "%zu rows; at most %d are drawn", json_array_size(rows), MOST_ROWS);
        return NULL;
    }
    const char *key = missing(kind, json_array_get(rows, 0));
    if (key)
        snprintf(why_out, bytes, "a result of %s whose first row has no '%s'", kind->name, key);
    return key ? NULL : kind;
}

const report_kind *report_kind_of(const json_t *whole, char *why_out, size_t bytes) {
    const char *what = json_string_value(json_object_get(whole, "what"));
    for (int i = 0; i < N_KINDS; i++) {
        const report_kind *kind = &kinds[i];
        if (what && kind->what && strcmp(what, kind->what) == 0)
            return check_rows(kind, rows_of(whole), why_out, bytes);
        if (!what && !kind->what && json_is_object(whole) && !missing(kind, whole))
            return kind;
    }
    return NULL;
}

void report_kinds(char *names_out, size_t bytes) {
    size_t n = 0;
    for (int i = 0; i < N_KINDS && n < bytes; i++)
        n += (size_t)snprintf(names_out + n, bytes - n, "%s%s", i ? ", " : "", kinds[i].name);
}
