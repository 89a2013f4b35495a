/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct metric {
    const char *name, *help;
    size_t offset; /* of the number, in hsp_counters or hsp_stats_view */
} metric;

static const metric of_group[] = {
    {"hits_total", "Selected entries served without a fetch.", offsetof(hsp_counters, hits)},
    {"misses_total", "Rows fetched by swap-in, each once.", offsetof(hsp_counters, misses)},
    {"invalid_total", "Selected entries outside the rows written.", offsetof(hsp_counters, invalid)},
    {"none_total", "Selected entries of -1.", offsetof(hsp_counters, none)},
    {"warmed_rows_total", "Rows fetched by warm.", offsetof(hsp_counters, warmed)},
    {"fetched_bytes_total", "Bytes from host to device, all layers of the group.",
     offsetof(hsp_counters, fetched_bytes)},
    {"appended_rows_total", "Rows written by append, one layer each.", offsetof(hsp_counters, appended_rows)},
    {"filled_rows_total", "Rows written by fill, one layer each.", offsetof(hsp_counters, filled_rows)},
};

static const metric pages[] = {
    {"host_pages", "Pages of the host pool.", offsetof(hsp_stats_view, host_pages)},
    {"host_pages_free", "Pages of the host pool that no request has.", offsetof(hsp_stats_view, host_pages_free)},
    {"host_pages_longest", "Longest run of free pages.", offsetof(hsp_stats_view, host_pages_longest)},
};

typedef struct text {
    char *to;
    size_t size, used; /* used: bytes the whole text takes, whether they fit or not */
} text;

static void add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(text *t, const char *format, ...) {
    va_list arguments;
    int fits = t->used < t->size;
    va_start(arguments, format);
    int n = vsnprintf(fits ? t->to + t->used : NULL, fits ? t->size - t->used : 0, format, arguments);
    va_end(arguments);
    t->used += n > 0 ? (size_t)n : 0;
}

static void add_head(text *t, const char *name, const char *type, const char *help) {
    add(t, "# HELP hisparse_%s %s\n# TYPE hisparse_%s %s\n", name, help, name, type);
}

static void add_one(text *t, const hsp_cache *cache, const char *name, const char *type, const char *help,
                    uint64_t number) {
    add_head(t, name, type, help);
    add(t, "hisparse_%s{backend=\"%s\"} %" PRIu64 "\n", name, cache->config.backend, number);
}

static void add_groups(text *t, const hsp_cache *cache, const metric *m) {
    const hsp__layout *layout = &cache->layout;
    add_head(t, m->name, "counter", m->help);
    for (int32_t g = 0; g < layout->n_groups; g++) {
        const char *counters = (const char *)&cache->group_counters[g];
        add(t, "hisparse_%s{backend=\"%s\",layer=\"%d\"} %" PRIu64 "\n", m->name, cache->config.backend,
            layout->first_layer + layout->group[g].anchor, *(const uint64_t *)(counters + m->offset));
    }
}

size_t hsp__stats_text(const hsp_cache *cache, const hsp_stats_view *stats, char *text_out, size_t size) {
    text t = {text_out, size, 0};
    for (size_t i = 0; i < sizeof of_group / sizeof of_group[0]; i++)
        add_groups(&t, cache, &of_group[i]);
    add_one(&t, cache, "steps_total", "counter", "Calls of step_begin that succeeded.", stats->steps);
    add_one(&t, cache, "live_requests", "gauge", "Requests admitted and not retired.", (uint64_t)stats->live_requests);
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++)
        add_one(&t, cache, pages[i].name, "gauge", pages[i].help,
                (uint64_t) * (const int64_t *)((const char *)stats + pages[i].offset));
    add_one(&t, cache, "host_huge_pages", "gauge", "1: the host pool has pages of 2 MiB.",
            (uint64_t)stats->host_huge_pages);
    return t.used;
}
