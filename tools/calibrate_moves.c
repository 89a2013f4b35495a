/* SPDX-License-Identifier: Apache-2.0 */
/* Rates: copies of the engines, and rows moved by a kernel. */
#include "calibrate.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

enum { GRANULE = 65536 /* at most; a place in each makes a span warm */, THREADS = 1024 };

/* ------------------------------------------------------------------------------------------------------- a rate -- */

/* 8 MiB a launch: launching is small beside it. Fewer where the span has too few rows for other ones each time. */
enum { LAUNCHES = 5, LAUNCH_BYTES = 8 << 20 };

static double gb_s(const gpu_transfer *t, double us) {
    return (double)t->n_rows * t->row_bytes / us / 1e3;
}

int calibrate_rate(calibrate *c, gpu_transfer *t, uint64_t span, double *us_out, double *swept_us_out) {
    uint64_t rows = span / (uint64_t)t->stride, most = rows * 3 / 4 / LAUNCHES;
    t->n_rows = LAUNCH_BYTES / t->row_bytes;
    t->n_rows = (uint64_t)t->n_rows < most ? t->n_rows : (int)most;
    t->launches = LAUNCHES;
    t->rounds = c->rounds;
    t->pool = c->pool;
    t->threads = THREADS;
    t->n_touch = (int)(span / GRANULE);
    uint32_t *touch = calibrate_places(&c->seed, 0, t->n_touch);
    uint32_t *row = calibrate_draw(&c->seed, t->rounds + 1, t->n_rows * LAUNCHES, (uint32_t)rows);
    int code = touch && row ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
    t->touch = touch;
    t->row = row;
    if (code == TOOL_OK)
        code = calibrate_check(c, c->gpu->back_to_back(c->device, t, us_out), "moving rows");
    t->launches = 1; /* touching takes longer than the launch */
    if (code == TOOL_OK && swept_us_out)
        code = calibrate_check(c, c->gpu->alone(c->device, t, GPU_SWEEP, swept_us_out), "moving rows");
    free(touch);
    free(row);
    return code;
}

static gpu_transfer best_of(const calibrate *c, int row_bytes, int stride, int to_host) {
    return (gpu_transfer){.row_bytes = row_bytes,
                          .stride = stride,
                          .blocks = c->best_blocks,
                          .in_flight = c->best_pieces,
                          .to_host = to_host};
}

/* Measure and add to the table; NULL rate_out: nobody asks. */
static int add_rate(calibrate *c, const char *what, gpu_transfer t, uint64_t span, int swept, double *rate_out) {
    double us = NAN, swept_us = NAN;
    int code = calibrate_rate(c, &t, span, &us, swept ? &swept_us : NULL);
    if (code != TOOL_OK)
        return code;
    calibrate_row row = CALIBRATE_ROW_OF(what);
    row.rows = t.n_rows;
    row.row_bytes = t.row_bytes;
    row.stride_bytes = t.stride;
    row.span_mib = (double)span / (double)MIB;
    row.blocks = t.blocks;
    row.pieces = t.in_flight;
    row.time_us = us;
    row.swept_us = swept_us;
    row.rate_gb_s = gb_s(&t, us);
    row.swept_gb_s = gb_s(&t, swept_us);
    if (rate_out)
        *rate_out = row.rate_gb_s;
    return calibrate_add(c, &row);
}

/* ------------------------------------------------------------------------------------------------- measurements -- */

int calibrate_grid(calibrate *c) {
    double best = 0;
    int code = TOOL_OK;
    for (int i = 0; i < CALIBRATE_BLOCKS; i++)
        for (int j = 0; j < CALIBRATE_PIECES && code == TOOL_OK && !tool_interrupted; j++) {
            gpu_transfer t = {.row_bytes = CALIBRATE_ROW, .stride = CALIBRATE_ROW};
            double *rate = &c->results.grid_gb_s[i][j];
            t.blocks = calibrate_blocks[i];
            t.in_flight = calibrate_pieces[j];
            code = add_rate(c, "blocks", t, 512 * MIB, 0, rate);
            if (code == TOOL_OK && *rate > best) {
                best = *rate;
                c->best_blocks = t.blocks;
                c->best_pieces = t.in_flight;
            }
        }
    return code;
}

static int add_copy(calibrate *c, const char *what, void *to, const void *from, int sides, double *rate_out) {
    const size_t bytes = 512 * MIB;
    double us;
    int code = calibrate_check(c, c->gpu->copy(c->device, to, from, bytes, c->rounds, &us), what);
    if (code != TOOL_OK)
        return code;
    calibrate_row row = CALIBRATE_ROW_OF(what);
    row.span_mib = (double)bytes / (double)MIB;
    row.time_us = us;
    row.rate_gb_s = *rate_out = sides * (double)bytes / us / 1e3;
    return calibrate_add(c, &row);
}

int calibrate_copies(calibrate *c) {
    calibrate_results *r = &c->results;
    void *a = NULL, *b = NULL;
    calibrate_row row = CALIBRATE_ROW_OF("launch");
    int code = calibrate_check(c, c->gpu->empty(c->device, &r->launch_us), "an empty launch");
    row.time_us = r->launch_us;
    if (code == TOOL_OK)
        code = calibrate_add(c, &row);
    if (code == TOOL_OK)
        code = calibrate_check(c, c->memory->alloc(512 * MIB, &a), "memory of the GPU");
    if (code == TOOL_OK)
        code = calibrate_check(c, c->memory->alloc(512 * MIB, &b), "memory of the GPU");
    if (code == TOOL_OK)
        code = add_copy(c, "device-copy", b, a, 2, &r->device_copy_gb_s);
    if (code == TOOL_OK)
        code = add_copy(c, "engine-in", a, c->base, 1, &r->engine_to_device_gb_s);
    if (code == TOOL_OK)
        code = add_copy(c, "engine-out", c->base, a, 1, &r->engine_to_host_gb_s);
    c->memory->release(a);
    c->memory->release(b);
    return code;
}

int calibrate_reads(calibrate *c) {
    static const int sizes[] = {512, 576, CALIBRATE_ROW, 1152, 2048, 4096};
    static const uint64_t spans[] = {64 * MIB, 512 * MIB, GIB, 4 * GIB, 16 * GIB};
    int code = TOOL_OK;
    c->results.kernel_to_device_gb_s = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t j = 0; j < sizeof spans / sizeof spans[0] && code == TOOL_OK && !tool_interrupted; j++) {
            double rate = 0;
            if (spans[j] <= c->pool_bytes)
                code = add_rate(c, "read", best_of(c, sizes[i], sizes[i], 0), spans[j], 1, &rate);
            c->results.kernel_to_device_gb_s = fmax(c->results.kernel_to_device_gb_s, rate);
        }
    return code;
}

int calibrate_writes(calibrate *c) {
    static const int sizes[] = {CALIBRATE_ROW, 1152, 4096};
    int code = TOOL_OK;
    c->results.kernel_to_host_gb_s = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && code == TOOL_OK && !tool_interrupted; i++) {
        double rate = 0;
        code = add_rate(c, "write", best_of(c, sizes[i], sizes[i], 1), 512 * MIB, 0, &rate);
        c->results.kernel_to_host_gb_s = fmax(c->results.kernel_to_host_gb_s, rate);
    }
    return code;
}

/* Rows of 656 bytes padded to each alignment, and of 584, which are no multiple of 16. More rounds: what is looked for
 * is small. */
int calibrate_aligned(calibrate *c) {
    static const int odd_strides[] = {592, 640};
    int code = TOOL_OK, rounds = c->rounds;
    c->rounds = 2 * rounds;
    for (int i = 0; i < CALIBRATE_STRIDES && code == TOOL_OK && !tool_interrupted; i++) {
        int align = calibrate_aligns[i], stride = (CALIBRATE_ROW + align - 1) / align * align;
        code = add_rate(c, "align", best_of(c, CALIBRATE_ROW, stride, 0), 512 * MIB, 0, &c->results.align_gb_s[i]);
    }
    for (int i = 0; i < 2 && code == TOOL_OK && !tool_interrupted; i++)
        code = add_rate(c, "align", best_of(c, 584, odd_strides[i], 0), 512 * MIB, 0, NULL);
    c->rounds = rounds;
    return code;
}

/* 5% of a selection of 2048, out of a context of 131,072 tokens: what one request fetches, launch after launch. */
int calibrate_request(calibrate *c) {
    enum { ROWS = 102, REQUEST_LAUNCHES = 96, CONTEXT = 131072 };
    calibrate_choice choice;
    int code = TOOL_OK, n_touch = (int)((uint64_t)CONTEXT * CALIBRATE_ROW / GRANULE), rounds = 3 * c->rounds;
    calibrate_choose(&c->results, &choice);
    uint32_t *touch = calibrate_places(&c->seed, 0, n_touch);
    uint32_t *row = calibrate_draw(&c->seed, rounds + 1, ROWS * REQUEST_LAUNCHES, CONTEXT);
    if (!touch || !row)
        code = tool_fail(TOOL_FAILED, "out of memory");
    for (int i = 0; i < CALIBRATE_REQUESTS && code == TOOL_OK && !tool_interrupted; i++) {
        calibrate_row line = CALIBRATE_ROW_OF("request");
        gpu_transfer t = best_of(c, CALIBRATE_ROW, CALIBRATE_ROW, 0);
        t.pool = c->pool;
        t.row = row;
        t.rounds = rounds;
        t.launches = REQUEST_LAUNCHES;
        t.n_rows = ROWS;
        t.threads = THREADS;
        t.blocks = calibrate_requests[i];
        t.in_flight = choice.pieces_in_flight;
        t.touch = touch;
        t.n_touch = n_touch;
        code = calibrate_check(c, c->gpu->back_to_back(c->device, &t, &c->results.request_us[i]), "rows of a request");
        line.rows = ROWS;
        line.row_bytes = line.stride_bytes = CALIBRATE_ROW;
        line.span_mib = (double)CONTEXT * CALIBRATE_ROW / MIB;
        line.blocks = t.blocks;
        line.pieces = t.in_flight;
        line.time_us = c->results.request_us[i];
        line.rate_gb_s = gb_s(&t, line.time_us);
        if (code == TOOL_OK)
            code = calibrate_add(c, &line);
    }
    free(touch);
    free(row);
    return code;
}
