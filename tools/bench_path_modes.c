/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a case in one graph for each way, replayed in turns, so that a change of the machine meets all of them. A
 * token is, layer by layer: its row appended; the swap-in of an anchor, or a follower's wait; attention; the stand-in
 * for the rest. The tokens of a graph have selections of their own and append the row of the same new token. */
#include "bench_path.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 1000 };

typedef struct path_runs {
    int32_t tokens; /* of a graph */
    void *graph[PATH_MODES];
    bench_samples samples[PATH_MODES];
    double *us; /* [tokens + 1] */
} path_runs;

bench_cache *bench_path_cache(path_state *p, int mode) {
    bench_cache *caches[PATH_MODES] = {[PATH_WAITING] = &p->s.real,
                                       [PATH_PREFETCHED] = p->prefetched.cache ? &p->prefetched : NULL,
                                       [PATH_ORACLE] = &p->s.oracle};
    return caches[mode];
}

/* Nothing is there to be prefetched for groups of one. */
static int is_run(path_state *p, int mode) {
    return mode == PATH_RESIDENT || bench_path_cache(p, mode) != NULL;
}

/* ----------------------------------------------------------------------------------------------------- launches -- */

/* Place in selections and row ids of a token and the group of a layer. */
static size_t place_of(const path_state *p, int32_t token, int32_t layer) {
    size_t number = (size_t)token * (size_t)p->s.shape.layers + (size_t)(layer / p->s.shape.group);
    return number * (size_t)p->s.shape.batch * (size_t)p->s.launches.k;
}

static int append(path_state *p, int mode, int32_t layer, void *stream) {
    const bench_shape *shape = &p->s.shape;
    bench_cache *b = bench_path_cache(p, mode);
    if (!b) {
        int status = p->path->put(p->put_rows, p->new_rows, shape->row_bytes, shape->batch, stream);
        return status == 0 ? TOOL_OK : bench_gpu_fails(&p->s);
    }
    hsp_row_source source = rows_source(&b->config, p->new_rows);
    int status = hsp_append(b->cache, layer, &source, 1, stream);
    return status == HSP_OK ? TOOL_OK : bench_library_fails(b->cache, status);
}

static int fetch(path_state *p, int mode, int32_t token, int32_t layer, void *stream) {
    const bench_launches *l = &p->s.launches;
    bench_cache *b = bench_path_cache(p, mode);
    size_t at = place_of(p, token, layer);
    if (!b)
        return TOOL_OK;
    int status = layer % p->s.shape.group
                     ? hsp_wait_rows(b->cache, layer, stream)
                     : hsp_swap_in(b->cache, layer, l->selection + at, 1, l->k, l->ids + at, stream);
    return status == HSP_OK ? TOOL_OK : bench_library_fails(b->cache, status);
}

/* The ways without bytes of their own read the rows of the one that waits: as many, as scattered. */
static int rows_of(path_state *p, int mode, int32_t layer, hsp_rows_view *view_out) {
    hsp_cache *cache = mode == PATH_PREFETCHED ? p->prefetched.cache : p->s.real.cache;
    *view_out = (hsp_rows_view){.struct_size = sizeof *view_out};
    int status = hsp_rows(cache, layer, view_out);
    return status == HSP_OK ? TOOL_OK : bench_library_fails(cache, status);
}

/* As the header of the ops advises; a block has 64 heads. */
static int32_t chunks_of(int32_t batch) {
    int32_t blocks = batch * (PATH_HEADS / 64);
    return blocks <= 12 ? 8 : blocks <= 24 ? 4 : blocks <= 64 ? 2 : 1;
}

int bench_path_attend(path_state *p, int mode, int32_t token, int32_t layer) {
    int32_t batch = p->s.shape.batch;
    hsp_mla_shape shape = {.struct_size = sizeof shape,
                           .n_heads = PATH_HEADS,
                           .latent_dim = PATH_LATENT,
                           .rope_dim = PATH_CHANNELS - PATH_LATENT,
                           .format = p->s.shape.row_bytes == 656 ? HSP_MLA_FP8 : HSP_MLA_BF16,
                           .scale = 0.04f};
    hsp_gpu_batch entries = {sizeof entries, batch, 1, 1, p->zeros, p->zeros};
    hsp_rows_view view;
    int code = rows_of(p, mode, layer, &view);
    if (code != TOOL_OK)
        return code;
    int status = p->path->attend(&shape, view.plane, &entries, p->query, p->s.launches.ids + place_of(p, token, layer),
                                 p->s.launches.k, chunks_of(batch), p->out, p->s.gpu->stream(p->s.lane));
    return status == 0 ? TOOL_OK : bench_gpu_fails(&p->s);
}

int bench_path_work(path_state *p, const gpu_work *work) {
    int status = p->path->work(p->weights, work, p->s.gpu->stream(p->s.lane));
    return status == 0 ? TOOL_OK : bench_gpu_fails(&p->s);
}

static int launch_token(path_state *p, int mode, int32_t token) {
    void *stream = p->s.gpu->stream(p->s.lane);
    int code = TOOL_OK;
    for (int32_t layer = 0; code == TOOL_OK && layer < bench_path_layers(&p->s.shape); layer++) {
        code = append(p, mode, layer, stream);
        if (code == TOOL_OK)
            code = fetch(p, mode, token, layer, stream);
        if (code == TOOL_OK)
            code = bench_path_attend(p, mode, token, layer);
        if (code == TOOL_OK)
            code = bench_path_work(p, &p->work);
    }
    return code;
}

/* ----------------------------------------------------------------------------------------------------- replays -- */

static int capture(path_state *p, path_runs *r, int mode) {
    bench_gpu_state *s = &p->s;
    if (s->gpu->capture_begin(s->lane) != 0)
        return bench_gpu_fails(s);
    int code = s->gpu->stamp(s->lane, 0) == 0 ? TOOL_OK : bench_gpu_fails(s);
    for (int32_t token = 0; code == TOOL_OK && token < r->tokens; token++) {
        code = launch_token(p, mode, token);
        if (code == TOOL_OK && s->gpu->stamp(s->lane, token + 1) != 0)
            code = bench_gpu_fails(s);
    }
    if (s->gpu->capture_end(s->lane, &r->graph[mode]) != 0 && code == TOOL_OK)
        code = bench_gpu_fails(s);
    return code;
}

/* Every request as before the first token of the traces, with one new token to append. */
static int begin(path_state *p, bench_cache *b) {
    void *stream = p->s.gpu->stream(p->s.lane);
    int status = HSP_OK;
    for (int32_t i = 0; status == HSP_OK && i < p->s.shape.batch; i++)
        status = hsp_truncate(b->cache, b->request[i], p->s.shape.context, stream);
    if (status != HSP_OK)
        return bench_library_fails(b->cache, status);
    int code = bench_gpu_reset_cache(&p->s, b);
    if (code != TOOL_OK)
        return code;
    status = hsp_step_begin(b->cache, b->request, NULL, p->s.shape.batch, stream);
    return status == HSP_OK ? TOOL_OK : bench_library_fails(b->cache, status);
}

/* Once as plain launches: kernels are loaded, and row ids are there. Nothing beside the rows: work is chosen later. */
static int run_plainly(path_state *p, path_runs *r, int mode) {
    bench_cache *b = bench_path_cache(p, mode);
    p->work = (gpu_work){0};
    int code = b ? begin(p, b) : TOOL_OK;
    for (int32_t token = 0; code == TOOL_OK && token < r->tokens; token++)
        code = launch_token(p, mode, token);
    return code != TOOL_OK || p->s.memory->wait() == 0 ? code : bench_gpu_fails(&p->s);
}

static int replay(path_state *p, path_runs *r, int mode, int first) {
    bench_gpu_state *s = &p->s;
    bench_cache *b = bench_path_cache(p, mode);
    int code = b ? begin(p, b) : TOOL_OK;
    int status = code == TOOL_OK && b && first ? hsp_stats_reset(b->cache) : HSP_OK;
    if (status != HSP_OK)
        code = bench_library_fails(b->cache, status);
    if (code == TOOL_OK && s->gpu->replay(s->lane, r->graph[mode], r->tokens + 1, r->us) != 0)
        code = bench_gpu_fails(s);
    return code == TOOL_OK && b && first ? bench_gpu_check_misses(s, b) : code;
}

/* The first token after a pause meets an empty GPU. */
static void add_samples(path_state *p, path_runs *r, int mode) {
    int32_t layers = bench_path_layers(&p->s.shape);
    for (int32_t i = r->tokens > 1 ? 2 : 1; i <= r->tokens; i++)
        bench_sample(&r->samples[mode], (r->us[i] - r->us[i - 1] - p->s.nothing_us[0]) / layers);
}

/* Rows of the last token of every layer, as the replay before left them. */
static int check_rows(path_state *p, path_runs *r, int mode, uint64_t *wrong) {
    const bench_shape *shape = &p->s.shape;
    const bench_launches *l = &p->s.launches;
    for (int32_t layer = 0; layer < bench_path_layers(shape); layer++) {
        size_t at = place_of(p, r->tokens - 1, layer);
        hsp_rows_view view;
        uint64_t bad = 0;
        int code = rows_of(p, mode, layer, &view);
        if (code != TOOL_OK)
            return code;
        gpu_rows rows = {view.plane[0].base, (uint32_t)shape->row_bytes, (uint32_t)view.plane[0].row_stride,
                         (uint32_t)layer};
        if (p->s.gpu->check_rows(p->s.lane, &rows, view.n_rows, l->ids + at, (const uint32_t *)l->selection + at,
                                 (uint32_t)(shape->batch * l->k), (uint32_t)l->k, (uint32_t)shape->context, &bad) != 0)
            return bench_gpu_fails(&p->s);
        *wrong += bad;
    }
    return TOOL_OK;
}

/* --------------------------------------------------------------------------------------------------------- case -- */

static int prepare(path_state *p, path_runs *r) {
    int code = TOOL_OK;
    r->us = malloc((size_t)(r->tokens + 1) * sizeof *r->us);
    if (!r->us)
        return tool_fail(TOOL_FAILED, "out of memory");
    for (int mode = 0; code == TOOL_OK && mode < PATH_MODES; mode++)
        if (is_run(p, mode))
            code = run_plainly(p, r, mode);
    if (code == TOOL_OK)
        code = bench_path_choose_work(p);
    for (int mode = 0; code == TOOL_OK && mode < PATH_MODES; mode++)
        if (is_run(p, mode))
            code = capture(p, r, mode);
    return code;
}

/* The first round is looked at, not timed. */
static int run_rounds(path_state *p, path_runs *r, uint64_t *wrong) {
    double end = bench_now_us() + p->o->bench.seconds * 1e6;
    int code = TOOL_OK;
    for (int round = 0; code == TOOL_OK && !tool_interrupted; round++) {
        if (round > LEAST_ROUNDS && (round > MOST_ROUNDS || bench_now_us() > end))
            break;
        for (int mode = 0; code == TOOL_OK && mode < PATH_MODES; mode++) {
            if (!is_run(p, mode))
                continue;
            code = replay(p, r, mode, round == 0);
            if (code == TOOL_OK && round > 0)
                add_samples(p, r, mode);
            else if (code == TOOL_OK && (mode == PATH_WAITING || mode == PATH_PREFETCHED))
                code = check_rows(p, r, mode, wrong);
        }
    }
    return code;
}

static void collect(path_state *p, path_runs *r, double miss, path_times *times_out) {
    *times_out = (path_times){.shape = p->s.shape, .miss = miss, .rows = p->s.launches.rows, .link_gb_s = p->link_gb_s};
    for (int mode = 0; mode < PATH_MODES; mode++) {
        times_out->us[mode] = bench_gpu_middle(&p->s, &r->samples[mode]);
        times_out->p99_us[mode] = bench_quantile(&r->samples[mode], 0.99);
    }
}

int bench_path_run(path_state *p, const bench_case *c, path_times *times_out, uint64_t *wrong_out) {
    path_runs r = {0};
    *wrong_out = 0;
    int code = bench_gpu_make_launches(&p->s, c);
    r.tokens = code == TOOL_OK ? p->s.launches.n / p->s.shape.layers : 0;
    if (code == TOOL_OK)
        code = prepare(p, &r);
    if (code == TOOL_OK)
        code = run_rounds(p, &r, wrong_out);
    if (code == TOOL_OK)
        collect(p, &r, c->miss, times_out);
    for (int mode = 0; mode < PATH_MODES; mode++) {
        p->s.gpu->graph_free(r.graph[mode]);
        free(r.samples[mode].value);
    }
    free(r.us);
    bench_gpu_free_launches(&p->s);
    return code;
}
