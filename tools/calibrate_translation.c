/* SPDX-License-Identifier: Apache-2.0 */
/* Translation of host addresses by the GPU: granule, walks and reach. Half of the pool is measured, the other half is
 * read before to push out what the GPU knows of the first. */
#include "calibrate.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

#define KIB 1024.0
#define MIB ((uint64_t)1 << 20)

enum {
    PIECE = 16,            /* bytes read at a place */
    GRANULE = 65536,       /* at most; one place in each pushes out */
    MOST_PUSHING = 131072, /* such places: 8 GiB */
    TOUCHES = 2048,
    MOST_WALKS = 16384
};

static int out_of_memory(void) {
    return tool_fail(TOOL_FAILED, "out of memory");
}

/* A random place in step number `index` of the memory from `first` on, at a multiple of 256 bytes, so that GPU_NEAR
 * stays in the same page. */
static uint32_t place_in(uint64_t *seed, uint64_t first, uint64_t step, uint32_t index) {
    uint32_t inside;
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    inside = (uint32_t)((*seed >> 33) % (step / 256));
    return (uint32_t)((first + index * step + (uint64_t)inside * 256) / PIECE);
}

/* [rounds + 1][n] places in n steps each, distinct and in random order; each round in other memory below `half`. */
static uint32_t *steps(calibrate *c, int rounds, int n, int of, uint64_t step, uint64_t half) {
    uint32_t *place = calibrate_draw(&c->seed, rounds + 1, n, (uint32_t)of);
    uint64_t bases = (half - (uint64_t)of * step) / step + 1;
    for (int r = 0; r <= rounds && place; r++) {
        c->seed = c->seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t first = (c->seed >> 33) % bases * step;
        for (int i = 0; i < n; i++)
            place[(size_t)r * (size_t)n + (size_t)i] =
                place_in(&c->seed, first, step, place[(size_t)r * (size_t)n + (size_t)i]);
    }
    return place;
}

static gpu_transfer touching(const calibrate *c, const uint32_t *place, int n, int rounds) {
    return (gpu_transfer){.pool = c->pool,
                          .row = place,
                          .rounds = rounds,
                          .launches = 1,
                          .n_rows = n,
                          .row_bytes = PIECE,
                          .stride = PIECE,
                          .blocks = 16,
                          .threads = n / 16,
                          .in_flight = 1};
}

/* Time of t when its places are new to the GPU; and with the L2 swept, too. */
static int time_cold(calibrate *c, gpu_transfer t, double *us_out, double *swept_us_out) {
    uint64_t half = c->pool_bytes / 2;
    t.n_touch = half / GRANULE < MOST_PUSHING ? (int)(half / GRANULE) : MOST_PUSHING;
    uint32_t *touch = calibrate_places(&c->seed, half, t.n_touch);
    int code = touch ? TOOL_OK : out_of_memory();
    t.touch = touch;
    if (code == TOOL_OK)
        code = calibrate_check(c, c->gpu->alone(c->device, &t, 0, us_out), "first touches");
    if (code == TOOL_OK)
        code = calibrate_check(c, c->gpu->alone(c->device, &t, GPU_SWEEP, swept_us_out), "first touches");
    free(touch);
    return code;
}

static int add_touches(calibrate *c, const char *what, const gpu_transfer *t, uint64_t step, double us,
                       double swept_us) {
    calibrate_row row = CALIBRATE_ROW_OF(what);
    row.rows = t->n_rows;
    row.row_bytes = PIECE;
    row.stride_bytes = (double)step;
    row.time_us = us;
    row.swept_us = swept_us;
    return calibrate_add(c, &row);
}

/* TOUCHES places, one in each step. */
static int touch_steps(calibrate *c, uint64_t step, double *extra_us_out) {
    double cold = NAN, cold_swept = NAN, warm = NAN, warm_swept = NAN;
    int rounds = 2 * c->rounds;
    uint32_t *place = steps(c, rounds, TOUCHES, TOUCHES, step, c->pool_bytes / 2);
    gpu_transfer t = touching(c, place, TOUCHES, rounds);
    int code = place ? time_cold(c, t, &cold, &cold_swept) : out_of_memory();
    if (code == TOOL_OK)
        code = calibrate_check(c, c->gpu->alone(c->device, &t, GPU_NEAR, &warm), "later touches");
    if (code == TOOL_OK)
        code = calibrate_check(c, c->gpu->alone(c->device, &t, GPU_NEAR | GPU_SWEEP, &warm_swept), "later touches");
    if (code == TOOL_OK)
        code = add_touches(c, "touch-first", &t, step, cold, cold_swept);
    if (code == TOOL_OK)
        code = add_touches(c, "touch-again", &t, step, warm, warm_swept);
    *extra_us_out = cold - warm;
    free(place);
    return code;
}

/* Less pushes nothing out. */
static int can_push(const calibrate *c) {
    return c->pool_bytes >= 4096 * MIB;
}

int calibrate_touches(calibrate *c) {
    enum { STEPS = 10 };
    double step[STEPS], extra[STEPS];
    int code = TOOL_OK, n = 0;
    if (!can_push(c))
        return TOOL_OK;
    for (; n < STEPS && code == TOOL_OK && !tool_interrupted; n++) {
        uint64_t bytes = (uint64_t)4096 << n;
        if (bytes * TOUCHES > c->pool_bytes / 2)
            break;
        step[n] = (double)bytes / KIB;
        code = touch_steps(c, bytes, &extra[n]);
    }
    if (code == TOOL_OK && !tool_interrupted)
        c->results.granule_kib = calibrate_find_granule(step, extra, n);
    return code;
}

/* Many first touches, each in a granule of its own, anywhere in half of the pool: what counts is how many walks the GPU
 * makes at once. */
int calibrate_walks(calibrate *c) {
    double us = NAN, swept_us = NAN;
    if (!can_push(c))
        return TOOL_OK;
    int of = (int)(c->pool_bytes / 2 / GRANULE), n = of / 2 < MOST_WALKS ? of / 2 : MOST_WALKS;
    uint32_t *place = steps(c, c->rounds, n, of, GRANULE, c->pool_bytes / 2);
    gpu_transfer t = touching(c, place, n, c->rounds);
    int code = place ? time_cold(c, t, &us, &swept_us) : out_of_memory();
    free(place);
    if (code != TOOL_OK)
        return code;
    c->results.walks_per_us = n / us;
    c->results.walks_swept_per_us = n / swept_us;
    return add_touches(c, "walks", &t, GRANULE, us, swept_us);
}

int calibrate_reach(calibrate *c) {
    static const int spans[] = {64, 128, 256, 512, 768, 1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192, 16384};
    enum { SPANS = sizeof spans / sizeof spans[0] };
    double span[SPANS], rate[SPANS], swept[SPANS];
    int code = TOOL_OK, n = 0;
    for (; n < SPANS && code == TOOL_OK && !tool_interrupted && spans[n] * MIB <= c->pool_bytes; n++) {
        calibrate_row row = CALIBRATE_ROW_OF("reach");
        gpu_transfer t = {.row_bytes = CALIBRATE_ROW, .stride = CALIBRATE_ROW};
        t.blocks = c->best_blocks;
        t.in_flight = c->best_pieces;
        code = calibrate_rate(c, &t, spans[n] * MIB, &row.time_us, &row.swept_us);
        span[n] = row.span_mib = spans[n];
        row.rows = t.n_rows;
        row.row_bytes = row.stride_bytes = CALIBRATE_ROW;
        row.blocks = t.blocks;
        row.pieces = t.in_flight;
        rate[n] = row.rate_gb_s = row.rows * CALIBRATE_ROW / row.time_us / 1e3;
        swept[n] = row.swept_gb_s = row.rows * CALIBRATE_ROW / row.swept_us / 1e3;
        if (code == TOOL_OK)
            code = calibrate_add(c, &row);
    }
    if (code == TOOL_OK && !tool_interrupted) {
        c->results.reach_mib = calibrate_find_reach(span, rate, n);
        c->results.reach_swept_mib = calibrate_find_reach(span, swept, n);
    }
    return code;
}
