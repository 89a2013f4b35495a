/* SPDX-License-Identifier: Apache-2.0 */
/* Resolve at growing contexts, without misses: what a swap-in costs beyond moving bytes must not grow with the context.
 * Measured twice: one group by itself, as in the other bench, and groups taking turns, as in a decoder, so that the
 * tables of one are not in the nearest caches when its turn comes. All contexts are measured in one run, turn by turn,
 * so that a disturbance of the machine meets all of them. */
#include "bench.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

enum { N_GROUPS = 8, N_CONTEXTS = 5, CALLS = 32, N_WAYS = 2 };
static const int32_t groups_in_turn[N_WAYS] = {1, N_GROUPS};
static const int32_t contexts[N_CONTEXTS] = {8192, 32768, 131072, 524288, 1048576};

static const emit_column columns[] = {{"groups_in_turn", "", 0}, {"context", "tokens", 0}, {"repeats", "", 0},
                                      {"resolve", "us", 2},      {"resolve_p99", "us", 2}, {"deviation", "%", 1}};

typedef struct sweep {
    const bench_options *o;
    bench_cache cache[N_CONTEXTS];
    int32_t *selection[N_CONTEXTS][N_GROUPS]; /* [batch][k] */
    int32_t *ids;                             /* [batch][k] */
    bench_samples samples[N_WAYS][N_CONTEXTS];
} sweep;

/* Random selections for every request of one group, all of them warmed. */
static int start_group(sweep *s, int c, int32_t layer) {
    size_t k = (size_t)s->o->k;
    int32_t *tokens = malloc((size_t)s->o->slots * sizeof *tokens);
    int32_t *selection = malloc((size_t)s->o->batch * k * sizeof *selection);
    s->selection[c][layer] = selection;
    int code = TOOL_OK;
    if (!tokens || !selection) {
        free(tokens);
        return tool_fail(TOOL_FAILED, "out of memory"); /* the selection is freed with the sweep */
    }
    for (int32_t b = 0; code == TOOL_OK && b < s->o->batch; b++) {
        bench_trace trace;
        uint64_t seed = (uint64_t)layer * 1000 + (uint64_t)b;
        if (bench_trace_init(&trace, (int32_t)k, (int32_t)s->o->slots, contexts[c], seed) != 0)
            code = tool_fail(TOOL_FAILED, "out of memory");
        else {
            bench_trace_warm(&trace, tokens);
            bench_trace_step(&trace, 0);
            for (size_t i = 0; i < k; i++)
                selection[(size_t)b * k + i] = trace.selection[i];
            bench_trace_free(&trace);
            code = bench_warm(&s->cache[c], b, layer, tokens);
        }
    }
    free(tokens);
    return code;
}

static int start(sweep *s, int c) {
    hsp_config config;
    bench_options o = *s->o;
    o.context = contexts[c];
    o.row_bytes = 16; /* no row is touched: HSP_NO_IO */
    int code = bench_config(&o, &config);
    if (code != TOOL_OK)
        return code;
    config.n_layers = N_GROUPS;
    config.flags |= HSP_NO_IO;
    void *rows = calloc((size_t)(o.context * o.batch), (size_t)o.row_bytes);
    code = rows ? bench_open(&s->cache[c], &config, rows) : tool_fail(TOOL_FAILED, "out of memory");
    free(rows);
    for (int32_t layer = 0; code == TOOL_OK && layer < N_GROUPS; layer++)
        code = start_group(s, c, layer);
    return code;
}

/* One turn over the groups brings the tables to where they are in a long run; the calls after it count. */
static int measure(sweep *s, int way, int c) {
    hsp_cache *cache = s->cache[c].cache;
    int32_t k = (int32_t)s->o->k, n_groups = groups_in_turn[way];
    for (int call = -n_groups; call < CALLS; call++) {
        int32_t layer = (call + n_groups) % n_groups;
        double before = bench_now_us();
        int status = hsp_swap_in(cache, layer, s->selection[c][layer], 1, k, s->ids, NULL);
        double us = bench_now_us() - before;
        if (status != HSP_OK)
            return tool_fail(TOOL_FAILED, "%s", hsp_last_error(cache));
        if (call >= 0)
            bench_sample(&s->samples[way][c], us / (double)s->o->batch);
    }
    return TOOL_OK;
}

/* The numbers mean nothing unless every entry was a hit. */
static int check(const sweep *s, int c) {
    hsp_stats_view stats = {.struct_size = sizeof stats};
    if (hsp_stats(s->cache[c].cache, &stats) == HSP_OK && stats.total.misses == 0 && stats.total.invalid == 0)
        return TOOL_OK;
    return tool_fail(TOOL_DIFFERS, "context %d: %llu misses and %llu invalid entries where all should hit", contexts[c],
                     (unsigned long long)stats.total.misses, (unsigned long long)stats.total.invalid);
}

static int report(sweep *s, int way, emit_table *table) {
    bench_samples *samples = s->samples[way];
    double first = bench_quantile(&samples[0], 0.5);
    for (int c = 0; c < N_CONTEXTS; c++) {
        double median = bench_quantile(&samples[c], 0.5);
        const emit_cell cells[] = {{.number = groups_in_turn[way]},
                                   {.number = contexts[c]},
                                   {.number = samples[c].n},
                                   {.number = median},
                                   {.number = bench_quantile(&samples[c], 0.99)},
                                   {.number = (median / first - 1) * 100}};
        if (emit_row(table, cells) != 0)
            return tool_fail(TOOL_FAILED, "out of memory");
    }
    return TOOL_OK;
}

static int run(const bench_options *o, emit_table *table) {
    sweep s = {.o = o};
    if (o->slots > contexts[0])
        return tool_fail(TOOL_BAD_INPUT, "--slots is %lld; with --sweep-context it may be up to %d",
                         (long long)o->slots, contexts[0]);
    s.ids = malloc((size_t)(o->batch * o->k) * sizeof *s.ids);
    int code = s.ids ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
    for (int c = 0; code == TOOL_OK && c < N_CONTEXTS; c++)
        code = start(&s, c);
    double end = bench_now_us() + o->seconds * 1e6;
    for (int round = 0; code == TOOL_OK && !tool_interrupted && (round < 3 || bench_now_us() < end); round++)
        for (int i = 0; code == TOOL_OK && i < N_WAYS * N_CONTEXTS; i++)
            code = measure(&s, i / N_CONTEXTS, i % N_CONTEXTS);
    for (int c = 0; code == TOOL_OK && c < N_CONTEXTS; c++)
        code = check(&s, c);
    for (int way = 0; code == TOOL_OK && way < N_WAYS; way++)
        code = report(&s, way, table);
    for (int c = 0; c < N_CONTEXTS; c++) {
        bench_close(&s.cache[c]);
        for (int way = 0; way < N_WAYS; way++)
            free(s.samples[way][c].value);
        for (int layer = 0; layer < N_GROUPS; layer++)
            free(s.selection[c][layer]);
    }
    free(s.ids);
    return code;
}

const bench_body bench_sweep = {"swap-in sweep-context",
                                "resolve without misses, us per request, medians; deviation from the first",
                                columns,
                                sizeof columns / sizeof columns[0],
                                0,
                                run};
