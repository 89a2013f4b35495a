/* SPDX-License-Identifier: Apache-2.0 */
/* Streams one after the other, so that memory does not grow with layers and requests; for each all policies and sizes
 * at once, on all cores. */
#include "sweep.h"
#include "tools.h"

#include <omp.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct progress {
    int64_t done, all;
    int64_t lookups; /* times policies and sizes */
    double start, shown;
    int on;
} progress;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* By one thread, while others count on. */
static void show(progress *p) {
    int64_t done, lookups;
#pragma omp atomic read
    done = p->done;
#pragma omp atomic read
    lookups = p->lookups;
    double seconds = now() - p->start, share = (double)done / (double)p->all;
    int bars = (int)(share * 30);
    if (!p->on || (seconds - p->shown < 0.2 && done < p->all))
        return;
    p->shown = seconds;
    fprintf(stderr, "\rsweep [%.*s%.*s] %3.0f%%  %4.0f million look-ups/s  %3.0f s left ", bars,
            "##############################", 30 - bars, "..............................", 100 * share,
            (double)lookups / 1e6 / seconds, seconds / share * (1 - share));
}

/* Add a stream that went through whole. */
static void add(sweep_result *r, const sweep_stream *s, const uint32_t *misses, int64_t first_step) {
    int64_t sum = 0;
    for (int64_t i = 0; i < s->n_steps; i++) {
        sum += misses[i];
        r->step_misses[first_step + i] += misses[i];
    }
    r->lookups += s->lookups;
    r->misses += sum;
    r->layer_lookups[s->layer] += s->lookups;
    r->layer_misses[s->layer] += sum;
}

/* Every policy and size over one stream; the largest first, so that the last ones to end are short. */
static int count_all(sweep *s, const sweep_stream *stream, int64_t first_step, progress *p) {
    int code = TOOL_OK;
#pragma omp parallel num_threads(s->n_threads)
    {
        uint32_t *misses = malloc((size_t)stream->n_steps * sizeof *misses);
#pragma omp for schedule(dynamic, 1)
        for (int i = s->n_results - 1; i >= 0; i--) {
            sweep_result *r = &s->result[i];
            int failed = misses ? sweep_count(stream, r->policy, r->n_slots, misses) : -1;
            if (failed == 0)
                add(r, stream, misses, first_step);
            if (failed < 0) {
#pragma omp atomic write
                code = TOOL_FAILED;
            }
#pragma omp atomic
            p->done++;
#pragma omp atomic
            p->lookups += stream->lookups;
            if (omp_get_thread_num() == 0)
                show(p);
        }
        free(misses);
    }
    show(p);
    return code == TOOL_OK ? code : tool_fail(code, "not enough memory for the slots of %d sizes", s->n_results);
}

static int open_results(sweep *s) {
    for (int i = 0; i < s->n_results; i++) {
        sweep_result *r = &s->result[i];
        r->layer_lookups = calloc((size_t)s->n_layers, sizeof *r->layer_lookups);
        r->layer_misses = calloc((size_t)s->n_layers, sizeof *r->layer_misses);
        r->step_misses = calloc((size_t)s->n_steps, sizeof *r->step_misses);
        if (!r->layer_lookups || !r->layer_misses || !r->step_misses)
            return tool_fail(TOOL_FAILED, "not enough memory for the misses of %lld steps", (long long)s->n_steps);
    }
    return TOOL_OK;
}

/* All layers and requests of one trace. */
static int run_trace(sweep *s, const trace *t, int64_t first_step, progress *p) {
    sweep_stream stream = {0};
    int code = TOOL_OK;
    for (int64_t i = 0; i < (int64_t)t->shape.n_layers * t->shape.n_requests && code == TOOL_OK; i++) {
        if (tool_interrupted)
            break;
        code = sweep_stream_read(&stream, t, (int32_t)(i / t->shape.n_requests), (int32_t)(i % t->shape.n_requests),
                                 s->ring_rows);
        if (code == TOOL_OK)
            code = count_all(s, &stream, first_step, p);
    }
    sweep_stream_close(&stream);
    return code;
}

static void measure(sweep *s, progress *p) {
    for (int i = 0; i < s->n_traces; i++) {
        const trace_shape *shape = &s->traces[i]->shape;
        s->n_steps += shape->n_steps;
        p->all += (int64_t)shape->n_layers * shape->n_requests * s->n_results;
        for (int64_t step = 0; step < shape->n_steps; step++)
            for (int32_t r = 0; r < shape->n_requests; r++)
                s->n_tokens += trace_length(s->traces[i], step, r) > 0;
    }
}

int sweep_run(sweep *s) {
    progress p = {.start = now(), .on = isatty(STDERR_FILENO)};
    int64_t first_step = 0;
    measure(s, &p);
    int code = open_results(s);
    for (int i = 0; i < s->n_traces && code == TOOL_OK; i++) {
        code = run_trace(s, s->traces[i], first_step, &p);
        first_step += s->traces[i]->shape.n_steps;
    }
    s->stopped = tool_interrupted;
    if (p.on)
        fprintf(stderr, "\r\033[K");
    return code;
}

void sweep_close(sweep *s) {
    for (int i = 0; i < s->n_results; i++) {
        free(s->result[i].layer_lookups);
        free(s->result[i].layer_misses);
        free(s->result[i].step_misses);
    }
    free(s->result);
}
