/* SPDX-License-Identifier: Apache-2.0 */
/* What the decode path is measured against and filled up with: the link at its best, and the stand-in for the rest of a
 * layer, which is an amount of work that takes the time asked for when nothing disturbs it. */
#include "bench_path.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

enum { TIMES = 6, REPLAYS = 6, LINK_ROW = 4096, LINK_ROWS = 65536, READS = 8192, WAVES = 16, ROUNDS = 512 };
static const double wave_us = 10; /* a block of the stand-in lasts about as long */

/* Something to be timed; number: 0 .. TIMES - 1. */
typedef int (*body_fn)(path_state *p, const void *what, int number);

/* Its median time. swept: with the L2 swept before. */
static int time_of(path_state *p, body_fn body, const void *what, int swept, double *us_out) {
    bench_gpu_state *s = &p->s;
    bench_samples samples = {0};
    double us[2 * TIMES];
    void *graph = NULL;
    int code = body(p, what, 0); /* loads its kernels */
    if (code != TOOL_OK || s->memory->wait() != 0 || s->gpu->capture_begin(s->lane) != 0)
        return code != TOOL_OK ? code : bench_gpu_fails(s);
    for (int i = 0; code == TOOL_OK && i < TIMES; i++) {
        if ((swept && s->gpu->sweep(s->lane) != 0) || s->gpu->stamp(s->lane, 2 * i) != 0)
            code = bench_gpu_fails(s);
        if (code == TOOL_OK)
            code = body(p, what, i);
        if (code == TOOL_OK && s->gpu->stamp(s->lane, 2 * i + 1) != 0)
            code = bench_gpu_fails(s);
    }
    if (s->gpu->capture_end(s->lane, &graph) != 0 && code == TOOL_OK)
        code = bench_gpu_fails(s);
    for (int r = 0; code == TOOL_OK && r < REPLAYS; r++) {
        code = s->gpu->replay(s->lane, graph, 2 * TIMES, us) == 0 ? TOOL_OK : bench_gpu_fails(s);
        for (int i = 0; code == TOOL_OK && r > 0 && i < TIMES; i++)
            bench_sample(&samples, us[2 * i + 1] - us[2 * i] - s->nothing_us[swept]);
    }
    *us_out = bench_gpu_middle(s, &samples);
    s->gpu->graph_free(graph);
    free(samples.value);
    return code;
}

/* --------------------------------------------------------------------------------------------------------- link -- */

typedef struct link_read {
    gpu_gather what;
    int blocks;
} link_read;

static int read_link(path_state *p, const void *what, int number) {
    const link_read *l = what;
    (void)number;
    return p->s.gpu->gather(p->s.lane, &l->what, l->blocks) == 0 ? TOOL_OK : bench_gpu_fails(&p->s);
}

/* Long rows, one after the other. */
static int best_rate(path_state *p, uint32_t *numbers, void *rows) {
    static const int blocks[] = {16, 33, 66, 132};
    int code = TOOL_OK;
    link_read l = {.what = {.pool = p->s.pool_device,
                            .rows = rows,
                            .from = numbers,
                            .to = (const int32_t *)numbers,
                            .n = LINK_ROWS,
                            .row_bytes = LINK_ROW,
                            .pool_stride = LINK_ROW,
                            .row_stride = LINK_ROW}};
    for (size_t i = 0; code == TOOL_OK && i < sizeof blocks / sizeof blocks[0]; i++) {
        double us = NAN;
        l.blocks = blocks[i];
        code = time_of(p, read_link, &l, 0, &us);
        p->link_gb_s = fmax(p->link_gb_s, (double)LINK_ROW * LINK_ROWS / us * 1e-3);
    }
    return code;
}

int bench_path_measure_link(path_state *p) {
    bench_gpu_state *s = &p->s;
    uint32_t *list = malloc(LINK_ROWS * sizeof *list);
    void *numbers = NULL, *rows = NULL;
    int code = list ? bench_gpu_open_pool(s, (size_t)LINK_ROW * LINK_ROWS) : tool_fail(TOOL_FAILED, "out of memory");
    for (uint32_t i = 0; list && i < LINK_ROWS; i++)
        list[i] = i;
    if (code == TOOL_OK && (s->memory->alloc(LINK_ROWS * sizeof *list, &numbers) != 0 ||
                            s->memory->alloc((size_t)LINK_ROW * LINK_ROWS, &rows) != 0 ||
                            s->memory->copy(numbers, list, LINK_ROWS * sizeof *list) != 0))
        code = bench_gpu_fails(s);
    if (code == TOOL_OK)
        code = best_rate(p, numbers, rows);
    s->memory->release(numbers);
    s->memory->release(rows);
    bench_gpu_close_pool(s);
    free(list);
    return code;
}

/* ----------------------------------------------------------------------------------------------------- stand-in -- */

static int do_work(path_state *p, const void *what, int number) {
    (void)number;
    return bench_path_work(p, what);
}

static int attend(path_state *p, const void *what, int number) {
    int32_t tokens = p->s.launches.n / p->s.shape.layers;
    (void)what;
    return bench_path_attend(p, PATH_WAITING, number % tokens, number % (p->s.shape.layers * p->s.shape.group));
}

int bench_path_measure_work(path_state *p) {
    const gpu_work reads = {.reads = READS}, products = {.waves = WAVES, .rounds = ROUNDS};
    int code = time_of(p, do_work, &reads, 0, &p->read_us);
    if (code == TOOL_OK)
        code = time_of(p, do_work, &products, 0, &p->round_us);
    p->read_us /= READS;
    p->round_us /= WAVES * ROUNDS;
    if (code == TOOL_OK && !(p->read_us > 0 && p->round_us > 0))
        code = tool_fail(TOOL_FAILED, "the stand-in for the rest of a layer could not be timed");
    return code;
}

/* Half of `us` of each part. */
static gpu_work amount_of(const path_state *p, double us) {
    double waves = fmax(1, round(us / 2 / GPU_WORK_TURNS / wave_us));
    return (gpu_work){.reads = (uint32_t)lround(us / 2 / p->read_us),
                      .waves = (uint32_t)waves,
                      .rounds = (uint32_t)lround(us / 2 / (waves * p->round_us))};
}

int bench_path_choose_work(path_state *p) {
    int code = time_of(p, attend, NULL, 1, &p->attention_us);
    double want = p->o->other_us + fmax(0, p->o->attention_us - p->attention_us);
    p->work = amount_of(p, want);
    if (code == TOOL_OK)
        code = time_of(p, do_work, &p->work, 0, &p->work_us);
    if (code != TOOL_OK || !(p->work_us > 0))
        return code;
    p->work = amount_of(p, want * want / p->work_us); /* launches take time too */
    return time_of(p, do_work, &p->work, 0, &p->work_us);
}
