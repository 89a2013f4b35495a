/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in on a GPU, inside captured graphs: resolve alone (a cache opened with HSP_NO_IO), with fetch, and as a plain
 * gather of the same rows from a pool of the same size and layout into the same slots. Each back to back and with the
 * L2 swept between launches: only the second resembles a decoder, whose layers use the L2 for other things. Every
 * launch fetches exactly the rows its case says; bytes are checked before a time is printed. */
#include "bench_gpu.h"
#include "gpu.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const emit_column columns[] = {{"batch", "", 0},
                                      {"context", "tokens", 0},
                                      {"slots", "", 0},
                                      {"row", "bytes", 0},
                                      {"miss", "%", 1},
                                      {"cold", "", 0},
                                      {"layers", "", 0},
                                      {"pool", "GB", 1},
                                      {"rows", "", 0},
                                      {"resolve", "us", 2},
                                      {"swap_in", "us", 2},
                                      {"swap_in_p99", "us", 2},
                                      {"gather", "us", 2},
                                      {"of_gather", "%", 1},
                                      {"of_swap_in", "%", 1},
                                      {"swept_resolve", "us", 2},
                                      {"swept_swap_in", "us", 2},
                                      {"swept_swap_in_p99", "us", 2},
                                      {"swept_gather", "us", 2},
                                      {"swept_of_gather", "%", 1},
                                      {"swept_of_swap_in", "%", 1},
                                      {"fetch_rate", "GB/s", 2},
                                      {"fetched", "rows/us", 2},
                                      {"wrong_rows", "", 0},
                                      {"took", "s", 1}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

enum { MOST_STAMPS = 4096, LEAST_REPLAYS = 5, PROBE_REPLAYS = 1, N_SERIES = 6 };

/* Blocks the yardstick may have; the best is taken, for each case anew. */
static const int gather_blocks[] = {8, 16, 33, 66, 132};
enum { N_BLOCKS = sizeof gather_blocks / sizeof gather_blocks[0] };

/* Medians of the three kinds, back to back or swept. */
typedef struct times {
    double resolve, swap_in, swap_in_p99, gather;
} times;

/* -------------------------------------------------------------------------------------------------------- series -- */

static int measure(bench_gpu_state *s, bench_series series, double *middle_out, double *p99_out) {
    bench_samples samples = {0};
    int code = bench_gpu_series(s, &series, LEAST_REPLAYS, s->o->seconds / N_SERIES, &samples);
    *middle_out = bench_gpu_middle(s, &samples);
    if (p99_out)
        *p99_out = bench_quantile(&samples, 0.99);
    free(samples.value);
    return code;
}

/* The number of blocks that is best in a short run; the long run then is a measurement and not the luckiest of many. */
static int measure_gather(bench_gpu_state *s, int swept, double *middle_out) {
    bench_samples samples = {0};
    double least = INFINITY;
    int code = TOOL_OK, best = gather_blocks[0];
    *middle_out = NAN;
    if (s->launches.rows == 0)
        return TOOL_OK;
    for (int i = 0; code == TOOL_OK && i < N_BLOCKS; i++) {
        code = bench_gpu_series(s, &(bench_series){BENCH_GATHER, swept, gather_blocks[i]}, PROBE_REPLAYS, 0, &samples);
        double us = bench_gpu_middle(s, &samples);
        best = us < least ? gather_blocks[i] : best;
        least = us < least ? us : least;
    }
    free(samples.value);
    return code == TOOL_OK ? measure(s, (bench_series){BENCH_GATHER, swept, best}, middle_out, NULL) : code;
}

static int measure_swap_in(bench_gpu_state *s, int swept, times *t, uint64_t *wrong) {
    int code = measure(s, (bench_series){BENCH_RESOLVE, swept, 0}, &t->resolve, NULL);
    if (code == TOOL_OK)
        code = measure(s, (bench_series){BENCH_SWAP_IN, swept, 0}, &t->swap_in, &t->swap_in_p99);
    return code == TOOL_OK ? bench_gpu_check(s, BENCH_SWAP_IN, wrong) : code;
}

/* -------------------------------------------------------------------------------------------------------- report -- */

static emit_cell share(double part, double whole) {
    return (emit_cell){.number = whole > 0 ? part / whole * 100 : NAN};
}

static int report(bench_gpu_state *s, const bench_case *c, const times t[2], uint64_t wrong, double seconds,
                  emit_table *table) {
    const bench_shape *shape = &c->shape;
    double rows = s->launches.rows, fetch_us[2];
    for (int i = 0; i < 2; i++)
        fetch_us[i] = rows > 0 ? t[i].swap_in - t[i].resolve : NAN;
    double rate = fetch_us[1] > 0 ? rows / fetch_us[1] : NAN;
    const emit_cell cells[N_COLUMNS] = {{.number = shape->batch},
                                        {.number = shape->context},
                                        {.number = shape->slots},
                                        {.number = shape->row_bytes},
                                        {.number = c->miss},
                                        {.number = c->cold},
                                        {.number = shape->layers},
                                        {.number = (double)bench_gpu_pool_bytes(shape) * 1e-9},
                                        {.number = rows},
                                        {.number = t[0].resolve},
                                        {.number = t[0].swap_in},
                                        {.number = t[0].swap_in_p99},
                                        {.number = t[0].gather},
                                        share(t[0].gather, fetch_us[0]),
                                        share(t[0].gather, t[0].swap_in),
                                        {.number = t[1].resolve},
                                        {.number = t[1].swap_in},
                                        {.number = t[1].swap_in_p99},
                                        {.number = t[1].gather},
                                        share(t[1].gather, fetch_us[1]),
                                        share(t[1].gather, t[1].swap_in),
                                        {.number = rate * shape->row_bytes * 1e-3}, /* bytes a us are 1e-3 GB/s */
                                        {.number = rate},
                                        {.number = (double)wrong},
                                        {.number = seconds}};
    return emit_row(table, cells) == 0 ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
}

/* --------------------------------------------------------------------------------------------------------- cases -- */

static int run_case(bench_gpu_state *s, const bench_case *c, double started_us, emit_table *table) {
    times t[2] = {{0}};
    uint64_t wrong = 0;
    int code = bench_gpu_make_launches(s, c);
    for (int swept = 0; code == TOOL_OK && swept < 2; swept++)
        code = measure_swap_in(s, swept, &t[swept], &wrong);
    if (code == TOOL_OK && s->launches.rows > 0)
        code = bench_gpu_make_moves(s);
    for (int swept = 0; code == TOOL_OK && swept < 2; swept++) {
        code = measure_gather(s, swept, &t[swept].gather);
        if (code == TOOL_OK)
            code = bench_gpu_check(s, BENCH_GATHER, &wrong);
    }
    if (code == TOOL_OK)
        code = report(s, c, t, wrong, (bench_now_us() - started_us) * 1e-6, table);
    if (code == TOOL_OK && wrong > 0)
        code = tool_fail(TOOL_DIFFERS, "batch %d, %d-byte rows, %g%% misses: %llu rows are wrong", c->shape.batch,
                         c->shape.row_bytes, c->miss, (unsigned long long)wrong);
    bench_gpu_free_launches(s);
    return code;
}

static int same_shape(const bench_shape *a, const bench_shape *b) {
    return a->batch == b->batch && a->context == b->context && a->slots == b->slots && a->row_bytes == b->row_bytes &&
           a->layers == b->layers;
}

static void show_progress(const bench_case *c, int number, int n) {
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kcase %d of %d: batch %d, %d slots, %d-byte rows, %.1f%% misses ", number + 1, n,
                c->shape.batch, c->shape.slots, c->shape.row_bytes, c->miss);
}

/* Setting up a shape takes seconds: it stays open as long as the cases are of it. */
static int run_cases(bench_gpu_state *s, const bench_cases *cases, emit_table *table) {
    int code = TOOL_OK;
    for (int i = 0; code == TOOL_OK && !tool_interrupted && i < cases->n; i++) {
        const bench_case *c = &cases->item[i];
        double started_us = bench_now_us();
        show_progress(c, i, cases->n);
        if (i == 0 || !same_shape(&c->shape, &c[-1].shape)) {
            bench_gpu_close_shape(s);
            code = bench_gpu_open_shape(s, &c->shape);
        }
        if (code == TOOL_OK)
            code = run_case(s, c, started_us, table);
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    return code;
}

/* ----------------------------------------------------------------------------------------------------------- run -- */

static int open_gpu(bench_gpu_state *s, const bench_cases *cases) {
    size_t pool = 0;
    s->memory = gpu_table(GPU_MEMORY);
    s->gpu = s->memory ? gpu_table(GPU_BENCH) : NULL;
    if (!s->gpu)
        return TOOL_BAD_INPUT;
    if (s->gpu->open(MOST_STAMPS, &s->lane) != 0)
        return bench_gpu_fails(s);
    for (int i = 0; i < cases->n; i++) {
        size_t bytes = bench_gpu_pool_bytes(&cases->item[i].shape);
        pool = bytes > pool ? bytes : pool;
    }
    int code = bench_gpu_open_pool(s, pool);
    return code == TOOL_OK ? bench_gpu_calibrate(s) : code;
}

static void close_gpu(bench_gpu_state *s) {
    if (!s->gpu)
        return;
    bench_gpu_close_shape(s);
    bench_gpu_close_pool(s);
    s->gpu->close(s->lane);
}

/* The table lives longer than this call, and so does its note. */
static void describe(bench_gpu_state *s, emit_table *table) {
    static char note[512];
    char name[128] = "?";
    s->memory->device_name(name, sizeof name);
    snprintf(
        note, sizeof note,
        "%s; us a launch of the whole batch, %s, by a clock of %.3f us, less %.2f us (swept: %.2f) between stamps; "
        "back to back, %d launches a sample; of_gather = gather / (swap_in - resolve), of_swap_in = gather / "
        "swap_in; swept: %.0f MB read before each launch; fetch_rate and fetched are swept",
        name, s->gpu->tick_us(s->lane) < BENCH_COARSE_TICK_US ? "medians" : "means", s->gpu->tick_us(s->lane),
        s->nothing_us[0], s->nothing_us[1], BENCH_GROUP, s->gpu->sweep_mb(s->lane));
    table->note = note;
}

static int run(const bench_options *o, emit_table *table) {
    bench_gpu_state s = {.o = o};
    bench_cases cases;
    int code = bench_gpu_cases(o, &cases);
    if (code != TOOL_OK)
        return code;
    code = open_gpu(&s, &cases);
    if (code == TOOL_OK) {
        describe(&s, table);
        code = run_cases(&s, &cases, table);
    }
    close_gpu(&s);
    free(cases.item);
    return code;
}

const bench_body bench_gpu = {"swap-in", "", columns, N_COLUMNS, 1, run};
