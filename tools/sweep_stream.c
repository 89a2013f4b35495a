/* SPDX-License-Identifier: Apache-2.0 */
#include "sweep.h"
#include "tools.h"

#include <stdlib.h>
#include <string.h>

/* What is known of a token of the request at hand while its stream is read. */
typedef struct reader {
    const trace *t;
    int32_t layer, request, ring_rows;
    int32_t most;       /* tokens a request has in this seat */
    int32_t *selection; /* [k] */
    int32_t *number;    /* [most]: one more than the token's number; 0: none yet */
    int32_t *seen;      /* [most]: one more than the step it was last asked for in */
    int32_t filled;     /* tokens the request had before its first step: they were never in the ring */
    int32_t length;     /* at the step before */
} reader;

static int grow(sweep_stream *s, int64_t needed) {
    if (needed <= s->room)
        return 0;
    int64_t room = needed * 3 / 2;
    int32_t *token = realloc(s->token, (size_t)room * sizeof *token);
    if (token)
        s->token = token;
    int32_t *next = token ? realloc(s->next, (size_t)room * sizeof *next) : NULL;
    if (!next)
        return -1;
    s->next = next;
    s->room = room;
    return 0;
}

/* The newest token of a request's first step is appended by it, what is older was there before. */
static void begin_step(reader *r, sweep_stream *s, int64_t step, int32_t length) {
    s->restart[step] = r->length == 0 && length > 0;
    if (s->restart[step]) {
        memset(r->number, 0, (size_t)r->most * sizeof *r->number);
        memset(r->seen, 0, (size_t)r->most * sizeof *r->seen);
        r->filled = length - 1;
    }
    r->length = length;
}

static void add_step(reader *r, sweep_stream *s, int64_t step, int32_t length) {
    int32_t in_ring = length - r->ring_rows > r->filled ? length - r->ring_rows : r->filled;
    int64_t at = s->first[step];
    for (int32_t e = 0; e < r->t->shape.k; e++) {
        int32_t token = r->selection[e];
        s->lookups += token >= 0;
        if (token < 0 || token >= in_ring || r->seen[token] == step + 1)
            continue;
        r->seen[token] = (int32_t)step + 1;
        if (r->number[token] == 0)
            r->number[token] = ++s->n_tokens;
        s->token[at++] = r->number[token] - 1;
    }
    s->first[step + 1] = at;
}

static int add_steps(reader *r, sweep_stream *s) {
    char error[512];
    for (int64_t step = 0; step < s->n_steps; step++) {
        int32_t length = trace_length(r->t, step, r->request);
        if (grow(s, s->first[step] + r->t->shape.k) != 0)
            return tool_fail(TOOL_FAILED, "%s: not enough memory for the tokens of a layer", r->t->name);
        if (trace_selection(r->t, step, r->layer, r->request, r->selection, error, sizeof error) != 0)
            return tool_fail(TOOL_BAD_INPUT, "%s", error);
        begin_step(r, s, step, length);
        add_step(r, s, step, length);
    }
    return TOOL_OK;
}

/* From the end: the step each token is asked for next. */
static int look_ahead(sweep_stream *s) {
    int32_t *use = malloc(((size_t)s->n_tokens + 1) * sizeof *use);
    if (!use)
        return -1;
    for (int32_t i = 0; i < s->n_tokens; i++)
        use[i] = (int32_t)s->n_steps;
    for (int64_t step = s->n_steps - 1; step >= 0; step--)
        for (int64_t i = s->first[step]; i < s->first[step + 1]; i++) {
            s->next[i] = use[s->token[i]];
            use[s->token[i]] = (int32_t)step;
        }
    free(use);
    return 0;
}

static int open_stream(sweep_stream *s, const trace *t, int32_t layer, int32_t request) {
    s->n_steps = t->shape.n_steps;
    s->lookups = s->n_tokens = 0;
    s->seat = request;
    s->layer = layer;
    s->number = trace_layer_number(t, layer);
    free(s->first);
    free(s->restart);
    s->first = calloc((size_t)s->n_steps + 1, sizeof *s->first);
    s->restart = calloc((size_t)s->n_steps, 1);
    return s->first && s->restart ? 0 : -1;
}

int sweep_stream_read(sweep_stream *s, const trace *t, int32_t layer, int32_t request, int32_t ring_rows) {
    reader r = {.t = t,
                .layer = layer,
                .request = request,
                .ring_rows = ring_rows,
                .most = 1,
                .selection = malloc((size_t)t->shape.k * sizeof(int32_t))};
    int code = TOOL_FAILED;
    for (int64_t step = 0; step < t->shape.n_steps; step++)
        r.most = trace_length(t, step, request) > r.most ? trace_length(t, step, request) : r.most;
    r.number = malloc((size_t)r.most * sizeof *r.number);
    r.seen = malloc((size_t)r.most * sizeof *r.seen);
    if (open_stream(s, t, layer, request) == 0 && r.selection && r.number && r.seen)
        code = add_steps(&r, s);
    else
        tool_fail(code, "out of memory");
    if (code == TOOL_OK && look_ahead(s) != 0)
        code = tool_fail(TOOL_FAILED, "out of memory");
    free(r.selection);
    free(r.number);
    free(r.seen);
    return code;
}

void sweep_stream_close(sweep_stream *s) {
    free(s->first);
    free(s->token);
    free(s->next);
    free(s->restart);
}
