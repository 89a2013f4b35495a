/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of one kind in one graph, replayed and timed by stamps of the GPU's clock between them.
 *
 * Back to back, a stamp stands before every BENCH_GROUP launches and after the last. With the L2 swept, one stands
 * between the sweep and the launch and one after it, so the sweep is not in the time. Either way the time of two stamps
 * with nothing in between is taken off: what is left of a launch is what it adds to a graph, its start included. */
#include "bench_gpu.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_REPLAYS = 200, CALIBRATIONS = 64, UNDO_BLOCKS = 33 };

static bench_cache *cache_of(bench_gpu_state *s, int kind) {
    return kind == BENCH_RESOLVE ? &s->oracle : &s->real;
}

/* ------------------------------------------------------------------------------------------------------- capture -- */

static gpu_gather gather_of(const bench_gpu_state *s, int32_t layer, const uint32_t *from, const int32_t *to,
                            int32_t n) {
    return (gpu_gather){.pool = s->pool_device,
                        .rows = s->target + (size_t)layer * s->layer_bytes,
                        .from = from,
                        .to = to,
                        .n = (uint32_t)n,
                        .row_bytes = (uint32_t)s->shape.row_bytes,
                        .pool_stride = (uint32_t)bench_gpu_stride(&s->shape),
                        .row_stride = (uint32_t)s->view.plane[0].row_stride};
}

static int launch_gather(bench_gpu_state *s, int blocks, int32_t number) {
    const bench_launches *l = &s->launches;
    size_t first = (size_t)number * (size_t)l->rows;
    gpu_gather what = gather_of(s, number % s->shape.layers, l->from + first, l->to + first, l->rows);
    return s->gpu->gather(s->lane, &what, blocks) == 0 ? TOOL_OK : bench_gpu_fails(s);
}

static int launch(bench_gpu_state *s, const bench_series *series, int32_t number) {
    const bench_launches *l = &s->launches;
    size_t per = (size_t)s->shape.batch * (size_t)l->k, first = (size_t)number * per;
    if (series->kind == BENCH_GATHER)
        return launch_gather(s, series->blocks, number);
    hsp_cache *cache = cache_of(s, series->kind)->cache;
    int status = hsp_swap_in(cache, number % s->shape.layers * s->shape.group, l->selection + first, 1, l->k,
                             l->ids + first, s->gpu->stream(s->lane));
    return status == HSP_OK ? TOOL_OK : bench_library_fails(cache, status);
}

static int stamp(bench_gpu_state *s, int *n_stamps) {
    return s->gpu->stamp(s->lane, (*n_stamps)++) == 0 ? TOOL_OK : bench_gpu_fails(s);
}

static int sweep(bench_gpu_state *s) {
    return s->gpu->sweep(s->lane) == 0 ? TOOL_OK : bench_gpu_fails(s);
}

/* series NULL: stamps with nothing between them, swept or not. */
static int launch_all(bench_gpu_state *s, const bench_series *series, int swept, int32_t n, int *n_stamps) {
    int code = TOOL_OK, pairs = swept || !series;
    for (int32_t i = 0; code == TOOL_OK && i < n; i++) {
        if (swept)
            code = sweep(s);
        if (code == TOOL_OK && (pairs || i % BENCH_GROUP == 0))
            code = stamp(s, n_stamps);
        if (code == TOOL_OK && series)
            code = launch(s, series, i);
        if (code == TOOL_OK && (pairs || i + 1 == n))
            code = stamp(s, n_stamps);
    }
    return code;
}

static int capture(bench_gpu_state *s, const bench_series *series, int swept, int32_t n, void **graph_out,
                   int *n_stamps) {
    *n_stamps = 0;
    *graph_out = NULL;
    if (s->gpu->capture_begin(s->lane) != 0)
        return bench_gpu_fails(s);
    int code = launch_all(s, series, swept, n, n_stamps);
    if (s->gpu->capture_end(s->lane, graph_out) != 0 && code == TOOL_OK)
        code = bench_gpu_fails(s);
    return code;
}

/* ------------------------------------------------------------------------------------------------------- replays -- */

/* Which slot holds what, and in which order the slots
 * that are not selected fall, may differ from replay to replay; the number of misses does not depend on it. */
int bench_gpu_reset_cache(bench_gpu_state *s, bench_cache *b) {
    int32_t batch = s->shape.batch, slots = s->shape.slots;
    for (int32_t i = 0; i < s->shape.layers * batch; i++) {
        const int32_t *hot = s->launches.hot + (size_t)i * (size_t)slots;
        int status =
            hsp_warm(b->cache, b->request[i % batch], i / batch * s->shape.group, hot, slots, s->gpu->stream(s->lane));
        if (status != HSP_OK)
            return bench_library_fails(b->cache, status);
    }
    return TOOL_OK;
}

static int reset_gather(bench_gpu_state *s) {
    const bench_launches *l = &s->launches;
    for (int32_t layer = 0; layer < s->shape.layers; layer++) {
        gpu_gather what =
            gather_of(s, layer, l->undo_from + (size_t)layer * (size_t)l->undo_rows, l->undo_to, l->undo_rows);
        if (s->gpu->gather(s->lane, &what, UNDO_BLOCKS) != 0)
            return bench_gpu_fails(s);
    }
    return TOOL_OK;
}

int bench_gpu_check_misses(bench_gpu_state *s, bench_cache *b) {
    uint64_t want = (uint64_t)(s->launches.n / s->shape.layers) * (uint64_t)s->launches.rows;
    for (int32_t i = 0; i < s->shape.layers; i++) {
        int32_t layer = i * s->shape.group;
        hsp_counters seen;
        int status = hsp_layer_counters(b->cache, layer, &seen);
        if (status != HSP_OK)
            return bench_library_fails(b->cache, status);
        unsigned long long misses = seen.misses, invalid = seen.invalid + seen.none;
        if (misses != want || invalid)
            return tool_fail(TOOL_DIFFERS, "layer %d: %llu misses and %llu invalid entries; %llu and none were meant",
                             layer, misses, invalid, (unsigned long long)want);
    }
    return TOOL_OK;
}

/* The first replay is looked at, not timed. */
static int replay(bench_gpu_state *s, int kind, void *graph, int first, int n_stamps, double *us) {
    bench_cache *b = kind == BENCH_GATHER ? NULL : cache_of(s, kind);
    int code = b ? bench_gpu_reset_cache(s, b) : reset_gather(s);
    int status = code == TOOL_OK && b && first ? hsp_stats_reset(b->cache) : HSP_OK;
    if (status != HSP_OK)
        code = bench_library_fails(b->cache, status);
    if (code == TOOL_OK && s->gpu->replay(s->lane, graph, n_stamps, us) != 0)
        code = bench_gpu_fails(s);
    return code == TOOL_OK && b && first ? bench_gpu_check_misses(s, b) : code;
}

static void add_samples(const bench_gpu_state *s, int pairs, int n_stamps, const double *us, bench_samples *samples) {
    for (int i = 1; i < n_stamps; i += pairs ? 2 : 1) {
        int32_t left = s->launches.n - (i - 1) * BENCH_GROUP, launches = pairs                ? 1
                                                                         : left < BENCH_GROUP ? left
                                                                                              : BENCH_GROUP;
        bench_sample(samples, (us[i] - us[i - 1] - s->nothing_us[pairs]) / launches);
    }
}

int bench_gpu_series(bench_gpu_state *s, const bench_series *series, int least, double seconds,
                     bench_samples *samples) {
    double *us = malloc((size_t)(2 * s->launches.n + 1) * sizeof *us), end = 0;
    void *graph = NULL;
    int n_stamps = 0;
    samples->n = 0;
    if (!us)
        return tool_fail(TOOL_FAILED, "out of memory");
    int code = capture(s, series, series->swept, s->launches.n, &graph, &n_stamps);
    for (int i = 0; code == TOOL_OK && (i <= least || (i <= MOST_REPLAYS && bench_now_us() < end)); i++) {
        code = replay(s, series->kind, graph, i == 0, n_stamps, us);
        if (i == 0)
            end = bench_now_us() + seconds * 1e6;
        else if (code == TOOL_OK)
            add_samples(s, series->swept, n_stamps, us, samples);
    }
    s->gpu->graph_free(graph);
    free(us);
    return code;
}

int bench_gpu_calibrate(bench_gpu_state *s) {
    double us[2 * CALIBRATIONS];
    int code = TOOL_OK, n_stamps;
    for (int swept = 0; code == TOOL_OK && swept < 2; swept++) {
        bench_samples samples = {0};
        void *graph = NULL;
        code = capture(s, NULL, swept, CALIBRATIONS, &graph, &n_stamps);
        for (int i = 0; code == TOOL_OK && i < 10; i++) {
            code = s->gpu->replay(s->lane, graph, n_stamps, us) == 0 ? TOOL_OK : bench_gpu_fails(s);
            for (int j = 0; code == TOOL_OK && i > 0 && j < CALIBRATIONS; j++)
                bench_sample(&samples, us[2 * j + 1] - us[2 * j]);
        }
        s->nothing_us[swept] = bench_gpu_middle(s, &samples);
        s->gpu->graph_free(graph);
        free(samples.value);
    }
    return code;
}

double bench_gpu_middle(const bench_gpu_state *s, bench_samples *samples) {
    double sum = 0;
    if (s->gpu->tick_us(s->lane) < BENCH_COARSE_TICK_US)
        return bench_quantile(samples, 0.5);
    for (int i = 0; i < samples->n; i++)
        sum += samples->value[i];
    return samples->n ? sum / samples->n : NAN;
}

/* --------------------------------------------------------------------------------------------------------- check -- */

int bench_gpu_check(bench_gpu_state *s, int kind, uint64_t *wrong) {
    const bench_launches *l = &s->launches;
    int gathered = kind == BENCH_GATHER;
    uint32_t n = (uint32_t)(gathered ? l->rows : s->shape.batch * l->k);
    uint32_t per_request = (uint32_t)(gathered ? l->per_request : l->k);
    for (int32_t layer = 0; n > 0 && layer < s->shape.layers; layer++) {
        size_t first = (size_t)(l->n - s->shape.layers + layer) * n;
        char *base = gathered ? s->target : s->view.plane[0].base;
        gpu_rows rows = {.base = base + (size_t)layer * s->layer_bytes,
                         .row_bytes = (uint32_t)s->shape.row_bytes,
                         .stride = (uint32_t)s->view.plane[0].row_stride,
                         .layer = (uint32_t)layer};
        uint64_t bad = 0;
        if (s->gpu->check_rows(s->lane, &rows, s->view.n_rows, (gathered ? l->to : l->ids) + first,
                               gathered ? l->from + first : (const uint32_t *)l->selection + first, n, per_request,
                               (uint32_t)s->shape.context, &bad) != 0)
            return bench_gpu_fails(s);
        *wrong += bad;
    }
    return TOOL_OK;
}
