/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of all layers and requests: what the launches of one graph select, and which rows each of them fetches. */
#include "bench_gpu.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Launches of a graph: enough to be a run and not a start; fewer of large ones, but every layer at least once. */
enum { LAUNCHES = 48, MOST_ROWS = 4 << 20 };

/* The same arrays in ordinary memory while they are made. */
typedef struct made {
    int32_t *hot, *selection;
    uint32_t *from, *place, *undo_from;
    int32_t *undo_to;
} made;

static int32_t n_launches(int32_t layers, int32_t rows) {
    int64_t steps = (LAUNCHES + layers - 1) / layers;
    while (steps > 1 && steps * layers * rows > MOST_ROWS)
        steps--;
    return (int32_t)steps * layers;
}

static int32_t fresh_of(const bench_gpu_state *s, int cold, int32_t entry) {
    return !cold ? s->launches.per_request : entry == 0 ? s->launches.k : 0;
}

/* One launch of one request. last: for every token the step that selected it last, so that what this step fetches is
 * what the step before did not have. Returns the rows fetched. */
static int32_t note_launch(const bench_gpu_state *s, const made *m, int32_t number, int32_t entry,
                           const bench_trace *trace, int32_t *last, int32_t step) {
    const bench_launches *l = &s->launches;
    int32_t layer = number % s->shape.layers, fetched = 0;
    size_t first = (size_t)number * (size_t)l->rows + (size_t)entry * (size_t)l->per_request;
    size_t request_row = ((size_t)layer * (size_t)s->shape.batch + (size_t)entry) * (size_t)s->shape.context;
    size_t at = ((size_t)number * (size_t)s->shape.batch + (size_t)entry) * (size_t)l->k;
    for (int32_t i = 0; i < l->k; i++) {
        int32_t token = trace->selection[i];
        m->selection[at + (size_t)i] = token;
        if (last[token] != step - 1) {
            m->place[first + (size_t)fetched] = (uint32_t)(entry * l->k + i);
            m->from[first + (size_t)fetched++] = (uint32_t)(request_row + (size_t)token);
        }
        last[token] = step;
    }
    return fetched;
}

static void note_undo(const bench_gpu_state *s, const made *m, int32_t layer, int32_t entry, const int32_t *hot) {
    const bench_launches *l = &s->launches;
    size_t request = (size_t)layer * (size_t)s->shape.batch + (size_t)entry;
    int32_t first_id = (int32_t)(s->view.n_rows / s->shape.batch) * entry;
    for (int32_t i = 0; i < l->undo_per_request; i++) {
        int32_t at = entry * l->undo_per_request + i;
        m->undo_from[(size_t)layer * (size_t)l->undo_rows + (size_t)at] =
            (uint32_t)(request * (size_t)s->shape.context + (size_t)hot[i]);
        if (layer == 0)
            m->undo_to[at] = first_id + i;
    }
}

/* All launches of one layer for one request. 0, or -1 without memory. */
static int make_trace(const bench_gpu_state *s, const made *m, const bench_case *c, int32_t layer, int32_t entry) {
    const bench_launches *l = &s->launches;
    int32_t n_fresh = fresh_of(s, c->cold, entry), step = 1;
    int32_t *last = calloc((size_t)s->shape.context, sizeof *last);
    uint64_t seed = (uint64_t)(c->miss * 1000) << 32 | (uint64_t)layer << 16 | (uint64_t)entry;
    int32_t *hot = m->hot + ((size_t)layer * (size_t)s->shape.batch + (size_t)entry) * (size_t)s->shape.slots;
    bench_trace trace;
    int failed = !last || bench_trace_init(&trace, l->k, s->shape.slots, s->shape.context, seed) != 0;
    if (!failed) {
        bench_trace_warm(&trace, hot);
        if (n_fresh > 0)
            note_undo(s, m, layer, entry, hot);
        for (int32_t i = 0; i < l->k; i++)
            last[trace.selection[i]] = step;
        for (int32_t number = layer; !failed && number < l->n; number += s->shape.layers) {
            bench_trace_step(&trace, n_fresh);
            failed = note_launch(s, m, number, entry, &trace, last, ++step) != n_fresh;
        }
        bench_trace_free(&trace);
    }
    free(last);
    return failed ? -1 : 0;
}

/* A copy on the device; NULL to copy: room alone. */
static int upload(const bench_gpu_state *s, const void *from, size_t bytes, void **to_out) {
    *to_out = NULL;
    if (s->memory->alloc(bytes + 16, to_out) != 0 || (from && s->memory->copy(*to_out, from, bytes) != 0))
        return -1;
    return 0;
}

typedef struct sizes {
    size_t hot, entries, moves, undo;
} sizes;

static int upload_all(bench_gpu_state *s, const made *m, const sizes *n) {
    bench_launches *l = &s->launches;
    const struct {
        const void *from;
        size_t bytes;
        void *to;
    } parts[] = {{m->hot, n->hot * sizeof(int32_t), &l->hot},
                 {m->selection, n->entries * sizeof(int32_t), &l->selection},
                 {NULL, n->entries * sizeof(int32_t), &l->ids},
                 {m->from, n->moves * sizeof(uint32_t), &l->from},
                 {NULL, n->moves * sizeof(int32_t), &l->to},
                 {m->undo_from, n->undo * sizeof(uint32_t), &l->undo_from},
                 {m->undo_to, (size_t)l->undo_rows * sizeof(int32_t), &l->undo_to}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        void *there;
        if (upload(s, parts[i].from, parts[i].bytes, &there) != 0) {
            s->memory->release(there);
            return bench_gpu_fails(s);
        }
        memcpy(parts[i].to, &there, sizeof there); /* pointers to different types */
    }
    return TOOL_OK;
}

static void count_launches(bench_gpu_state *s, const bench_case *c) {
    bench_launches *l = &s->launches;
    int32_t k = (int32_t)s->o->k, batch = s->shape.batch;
    int32_t per_request = c->cold ? k : (int32_t)lround((double)k * c->miss / 100);
    *l = (bench_launches){.k = k, .per_request = per_request, .rows = c->cold ? k : batch * per_request};
    l->n = n_launches(s->shape.layers, l->rows);
    int64_t undo = (int64_t)(l->n / s->shape.layers) * per_request;
    l->undo_per_request = undo < s->shape.slots ? (int32_t)undo : s->shape.slots;
    l->undo_rows = c->cold ? l->undo_per_request : batch * l->undo_per_request;
}

int bench_gpu_make_launches(bench_gpu_state *s, const bench_case *c) {
    bench_launches *l = &s->launches;
    int32_t batch = s->shape.batch, layers = s->shape.layers, failed = 0;
    count_launches(s, c);
    sizes n = {.hot = (size_t)layers * (size_t)batch * (size_t)s->shape.slots,
               .entries = (size_t)l->n * (size_t)batch * (size_t)l->k,
               .moves = (size_t)l->n * (size_t)l->rows,
               .undo = (size_t)layers * (size_t)l->undo_rows};
    made m = {.hot = malloc(n.hot * sizeof *m.hot),
              .selection = malloc(n.entries * sizeof *m.selection),
              .from = malloc((n.moves + 1) * sizeof *m.from),
              .place = malloc((n.moves + 1) * sizeof *m.place),
              .undo_from = malloc((n.undo + 1) * sizeof *m.undo_from),
              .undo_to = malloc(((size_t)l->undo_rows + 1) * sizeof *m.undo_to)};
    l->host_place = m.place;
    if (m.hot && m.selection && m.from && m.place && m.undo_from && m.undo_to) {
#pragma omp parallel for schedule(dynamic) reduction(+ : failed)
        for (int32_t i = 0; i < layers * batch; i++)
            failed += make_trace(s, &m, c, i / batch, i % batch) != 0;
    } else
        failed = 1;
    int code = failed ? tool_fail(TOOL_FAILED, "out of memory") : upload_all(s, &m, &n);
    free(m.hot);
    free(m.selection);
    free(m.from);
    free(m.undo_from);
    free(m.undo_to);
    return code;
}

void bench_gpu_free_launches(bench_gpu_state *s) {
    bench_launches *l = &s->launches;
    void *device[] = {l->hot, l->selection, l->ids, l->from, l->to, l->undo_from, l->undo_to};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        s->memory->release(device[i]);
    free(l->host_place);
    *l = (bench_launches){0};
}

static int find_targets(const bench_gpu_state *s, const int32_t *ids, int32_t *to) {
    const bench_launches *l = &s->launches;
    size_t per = (size_t)s->shape.batch * (size_t)l->k, rows = (size_t)l->rows;
    for (size_t i = 0; i < (size_t)l->n * rows; i++) {
        to[i] = ids[i / rows * per + l->host_place[i]];
        if (to[i] < 0 || to[i] >= s->view.n_rows) /* the yardstick would write outside its rows */
            return tool_fail(TOOL_DIFFERS, "swap-in gave row id %d; there are %lld rows", to[i],
                             (long long)s->view.n_rows);
    }
    return TOOL_OK;
}

int bench_gpu_make_moves(bench_gpu_state *s) {
    const bench_launches *l = &s->launches;
    size_t id_bytes = (size_t)l->n * (size_t)s->shape.batch * (size_t)l->k * sizeof(int32_t);
    size_t to_bytes = (size_t)l->n * (size_t)l->rows * sizeof(int32_t);
    int32_t *ids = malloc(id_bytes), *to = malloc(to_bytes + 1);
    int code = TOOL_FAILED;
    if (!ids || !to)
        tool_fail(code, "out of memory");
    else if (s->memory->copy(ids, l->ids, id_bytes) != 0)
        bench_gpu_fails(s);
    else
        code = find_targets(s, ids, to);
    if (code == TOOL_OK && s->memory->copy(l->to, to, to_bytes) != 0)
        code = bench_gpu_fails(s);
    free(ids);
    free(to);
    return code;
}
