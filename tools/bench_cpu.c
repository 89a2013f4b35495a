/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in by miss rate, in ordinary memory. Every step is made three times, one after the other: on a cache that
 * fetches nothing (HSP_NO_IO: resolve alone), on one that does, and as a plain copy of the rows that were missed, from
 * a pool of the bench's own to the same slots. The copy is the ceiling: what fetching costs beyond it is the library's.
 */
#include "bench.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A row to copy: from this row of the pool to this row of the destination. */
typedef struct move {
    int64_t from, to;
} move;

typedef struct swap_bench {
    const bench_options *o;
    bench_cache resolve, fetch;
    hsp_rows_view view;
    char *pool;                 /* [batch][context] rows */
    char *target;               /* [batch][slots] rows */
    bench_trace *trace;         /* [batch] */
    int32_t *selection;         /* [batch][k] */
    int32_t *resolve_ids, *ids; /* [batch][k] */
    int32_t *tags;              /* [slots] */
    int32_t *tags_before;       /* [batch][slots] */
    move *moves;                /* [batch * k] */
    int64_t n_moves, n_moved;   /* of this step; of all measured steps */
    bench_samples resolve_us, fetch_us, gather_us;
    const char *failed; /* text of the library's last error */
} swap_bench;

static const emit_column columns[] = {{"miss", "%", 1},          {"steps", "", 0},         {"rows", "", 1},
                                      {"resolve", "us", 2},      {"resolve_p99", "us", 2}, {"swap_in", "us", 2},
                                      {"swap_in_p99", "us", 2},  {"fetch", "us", 2},       {"gather", "us", 2},
                                      {"gather_p99", "us", 2},   {"of_gather", "%", 1},    {"fetch_rate", "GB/s", 2},
                                      {"gather_rate", "GB/s", 2}};

/* -------------------------------------------------------------------------------------------------------- setup -- */

/* Memory as the library takes it for rows: aligned to 2 MiB, in small pages unless huge ones are asked for. */
static char *row_memory(const bench_options *o, int64_t n_rows) {
    size_t alignment = (size_t)2 << 20, bytes = (size_t)n_rows * (size_t)o->row_bytes;
    char *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory && o->huge_pages)
        madvise(memory, bytes, MADV_HUGEPAGE);
    return memory ? memset(memory, 0, bytes) : NULL;
}

static int take_memory(swap_bench *s) {
    size_t entries = (size_t)(s->o->batch * s->o->k), slots = (size_t)s->o->slots;
    s->pool = row_memory(s->o, s->o->batch * s->o->context);
    s->target = row_memory(s->o, s->o->batch * s->o->slots);
    s->trace = calloc((size_t)s->o->batch, sizeof *s->trace);
    s->selection = calloc(entries, sizeof *s->selection);
    s->resolve_ids = calloc(entries, sizeof *s->resolve_ids);
    s->ids = calloc(entries, sizeof *s->ids);
    s->tags = calloc(slots, sizeof *s->tags);
    s->tags_before = calloc((size_t)s->o->batch * slots, sizeof *s->tags_before);
    s->moves = calloc(entries, sizeof *s->moves);
    if (!s->pool || !s->target || !s->trace || !s->selection || !s->resolve_ids || !s->ids || !s->tags ||
        !s->tags_before || !s->moves)
        return tool_fail(TOOL_FAILED, "out of memory");
    rows_fill(s->pool, (size_t)s->o->row_bytes, s->o->batch * s->o->context, 0);
    return TOOL_OK;
}

static int start(swap_bench *s) {
    hsp_config config;
    int code = bench_config(s->o, &config);
    if (code == TOOL_OK)
        code = take_memory(s);
    if (code == TOOL_OK)
        code = bench_open(&s->fetch, &config, s->pool);
    config.flags |= HSP_NO_IO;
    if (code == TOOL_OK)
        code = bench_open(&s->resolve, &config, s->pool);
    s->view = (hsp_rows_view){.struct_size = sizeof s->view};
    if (code == TOOL_OK && hsp_rows(s->fetch.cache, 0, &s->view) != HSP_OK)
        code = tool_fail(TOOL_FAILED, "%s", hsp_last_error(s->fetch.cache));
    return code;
}

static void stop(swap_bench *s) {
    bench_close(&s->resolve);
    bench_close(&s->fetch);
    for (int64_t b = 0; s->trace && b < s->o->batch; b++)
        bench_trace_free(&s->trace[b]);
    void *memory[] = {s->pool, s->target,      s->trace, s->selection,        s->resolve_ids,    s->ids,
                      s->tags, s->tags_before, s->moves, s->resolve_us.value, s->fetch_us.value, s->gather_us.value};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
}

/* New traces and full slots for a miss rate. What earlier cases left in the slots does not matter. */
static int start_case(swap_bench *s, uint64_t seed) {
    int code = TOOL_OK;
    s->n_moved = 0;
    s->resolve_us.n = s->fetch_us.n = s->gather_us.n = 0;
    for (int32_t b = 0; code == TOOL_OK && b < s->o->batch; b++) {
        bench_trace_free(&s->trace[b]);
        if (bench_trace_init(&s->trace[b], (int32_t)s->o->k, (int32_t)s->o->slots, (int32_t)s->o->context,
                             seed + (uint64_t)b) != 0)
            return tool_fail(TOOL_FAILED, "out of memory");
        bench_trace_warm(&s->trace[b], s->tags);
        code = bench_warm(&s->resolve, b, 0, s->tags);
        if (code == TOOL_OK)
            code = bench_warm(&s->fetch, b, 0, s->tags);
    }
    return code;
}

/* -------------------------------------------------------------------------------------------------------- steps -- */

static void gather(const swap_bench *s) {
    size_t bytes = (size_t)s->o->row_bytes;
#pragma omp parallel for num_threads(s->o->threads ? (int)s->o->threads                                                \
                                                   : (int)sysconf(_SC_NPROCESSORS_ONLN)) if (s->o->threads != 1)
    for (int64_t i = 0; i < s->n_moves; i++)
        memcpy(s->target + (size_t)s->moves[i].to * bytes, s->pool + (size_t)s->moves[i].from * bytes, bytes);
}

/* Rows this step fetches, in the order of the selection: entries whose slot held another token before. */
static void list_moves(swap_bench *s, const int32_t *ids) {
    s->n_moves = 0;
    for (int32_t b = 0; b < s->o->batch; b++) {
        int32_t *tags = s->tags_before + b * s->o->slots, first_id = 0;
        hsp_resident(s->fetch.cache, s->fetch.request[b], 0, NULL, NULL, NULL, &first_id);
        for (int64_t e = b * s->o->k; e < (b + 1) * s->o->k; e++) {
            int32_t slot = ids[e] - first_id, token = s->selection[e];
            if (slot < 0 || slot >= s->o->slots || tags[slot] == token)
                continue;
            tags[slot] = token;
            s->moves[s->n_moves++] = (move){b * s->o->context + token, b * s->o->slots + slot};
        }
    }
    s->n_moved += s->n_moves;
}

static void time_swap_in(swap_bench *s, bench_cache *b, int32_t *ids, bench_samples *samples) {
    double before = bench_now_us();
    int status = hsp_swap_in(b->cache, 0, s->selection, 1, (int32_t)s->o->k, ids, NULL);
    bench_sample(samples, (bench_now_us() - before) / (double)s->o->batch);
    if (status != HSP_OK)
        s->failed = hsp_last_error(b->cache);
}

static void time_gather(swap_bench *s) {
    double before = bench_now_us();
    gather(s);
    bench_sample(&s->gather_us, (bench_now_us() - before) / (double)s->o->batch);
}

/* Both caches give the same ids, and every id the bytes of its token. */
static int check(const swap_bench *s) {
    for (int64_t e = 0; e < s->o->batch * s->o->k; e++) {
        int64_t row = e / s->o->k * s->o->context + s->selection[e];
        if (s->ids[e] != s->resolve_ids[e])
            return tool_fail(TOOL_DIFFERS, "entry %lld: row id %d with fetching, %d without", (long long)e, s->ids[e],
                             s->resolve_ids[e]);
        if (!rows_same(&s->view, s->ids[e], s->pool + (size_t)row * (size_t)s->o->row_bytes))
            return tool_fail(TOOL_DIFFERS, "entry %lld: row id %d does not hold the bytes of token %d", (long long)e,
                             s->ids[e], s->selection[e]);
    }
    return TOOL_OK;
}

/* Who is first finds the processor's caches as the trace left them, so the two caches take turns, and the copy moves
 * between the last two places. It cannot be first: what it has to move is known from the ids. */
static int step(swap_bench *s, int number, int32_t n_fresh, int checked) {
    int resolve_first = number % 2 == 0, gather_second = number / 2 % 2;
    for (int32_t b = 0; b < s->o->batch; b++) {
        bench_trace_step(&s->trace[b], n_fresh);
        memcpy(s->selection + b * s->o->k, s->trace[b].selection, (size_t)s->o->k * sizeof(int32_t));
        hsp_resident(s->fetch.cache, s->fetch.request[b], 0, s->tags_before + b * s->o->slots, NULL, NULL, NULL);
    }
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == resolve_first)
            time_swap_in(s, &s->resolve, s->resolve_ids, &s->resolve_us);
        else
            time_swap_in(s, &s->fetch, s->ids, &s->fetch_us);
        if (turn == 0)
            list_moves(s, resolve_first ? s->resolve_ids : s->ids);
        if (turn == 1 - gather_second)
            time_gather(s);
    }
    if (s->failed)
        return tool_fail(TOOL_FAILED, "%s", s->failed);
    return checked ? check(s) : TOOL_OK;
}

/* ------------------------------------------------------------------------------------------------------- report -- */

static int report(swap_bench *s, double miss, emit_table *table) {
    double resolve_us = bench_quantile(&s->resolve_us, 0.5), swap_us = bench_quantile(&s->fetch_us, 0.5);
    double gather_us = bench_quantile(&s->gather_us, 0.5), fetch_us = swap_us - resolve_us;
    double rows = (double)s->n_moved / ((double)s->resolve_us.n * (double)s->o->batch);
    double gigabytes = rows * (double)s->o->row_bytes * 1e-3; /* bytes a us are 1e-3 GB/s */
    int fetched = s->n_moved > 0 && fetch_us > 0;
    const emit_cell cells[] = {{.number = miss},
                               {.number = s->resolve_us.n},
                               {.number = rows},
                               {.number = resolve_us},
                               {.number = bench_quantile(&s->resolve_us, 0.99)},
                               {.number = swap_us},
                               {.number = bench_quantile(&s->fetch_us, 0.99)},
                               {.number = fetched ? fetch_us : NAN},
                               {.number = fetched ? gather_us : NAN},
                               {.number = fetched ? bench_quantile(&s->gather_us, 0.99) : NAN},
                               {.number = fetched ? gather_us / fetch_us * 100 : NAN},
                               {.number = fetched ? gigabytes / fetch_us : NAN},
                               {.number = fetched ? gigabytes / gather_us : NAN}};
    return emit_row(table, cells) == 0 ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
}

enum { WARM_STEPS = 20, LEAST_STEPS = 50, CHECK_EVERY = 32 };

/* The first steps warm and are checked whole; one in CHECK_EVERY of the others is. */
static int run_case(swap_bench *s, double miss, emit_table *table) {
    int32_t n_fresh = (int32_t)lround((double)s->o->k * miss / 100);
    int code = start_case(s, (uint64_t)(miss * 1000));
    for (int i = 0; code == TOOL_OK && i < WARM_STEPS; i++)
        code = step(s, i, n_fresh, 1);
    s->resolve_us.n = s->fetch_us.n = s->gather_us.n = 0;
    s->n_moved = 0;
    double end = bench_now_us() + s->o->seconds * 1e6;
    for (int i = 0; code == TOOL_OK && !tool_interrupted && (i < LEAST_STEPS || bench_now_us() < end); i++)
        code = step(s, i, n_fresh, i % CHECK_EVERY == 0);
    if (code != TOOL_OK || s->resolve_us.n == 0)
        return code;
    return report(s, miss, table);
}

static int run(const bench_options *o, emit_table *table) {
    swap_bench s = {.o = o};
    int code = start(&s);
    for (int i = 0; code == TOOL_OK && !tool_interrupted && i < o->misses.n; i++) {
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\r%.1f%% misses ", o->misses.value[i]);
        code = run_case(&s, o->misses.value[i], table);
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    stop(&s);
    return code;
}

const bench_body bench_cpu = {
    "swap-in", "us per request, medians; fetch = swap_in - resolve; gather: memcpy of the same rows",
    columns,   sizeof columns / sizeof columns[0],
    0,         run};
