/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse trace cut`: some steps, layers and requests of a trace as a new one. */
#include "tools.h"
#include "trace_tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cut_options {
    tool_words files;
    int64_t from, steps, first_layer, layers, first_request, requests, next;
} cut_options;

#define NUMBER(NAME, FIELD, LEAST, HELP)                                                                               \
    { NAME, TOOL_INT, offsetof(cut_options, FIELD), LEAST, INT32_MAX, "N", HELP }

static const tool_option options[] = {
    {"files", TOOL_WORDS, offsetof(cut_options, files), 0, 0, "TRACE NEW", NULL},
    NUMBER("from", from, 0, "first step (0)"),
    NUMBER("steps", steps, 1, "steps (all that follow)"),
    NUMBER("first-layer", first_layer, 0, "first layer, counted in the trace (0)"),
    NUMBER("layers", layers, 1, "layers (all that follow)"),
    NUMBER("first-request", first_request, 0, "first request (0)"),
    NUMBER("requests", requests, 1, "requests (all that follow)"),
    NUMBER("next", next, 0, "candidates behind each selection, the best (all)"),
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

/* Set *n to what is there from `first` on where it is 0; TOOL_OK, or the code after saying what is beyond the end. */
static int fit(const char *what, int64_t first, int64_t there, int64_t *n) {
    if (*n == 0 && first < there)
        *n = there - first;
    if (first < there && *n <= there - first)
        return TOOL_OK;
    return tool_fail(TOOL_BAD_INPUT, "%s %" PRId64 " and the %" PRId64 " that follow; the trace has 0 to %" PRId64,
                     what, first, *n > 0 ? *n - 1 : 0, there - 1);
}

static int check(const trace *t, cut_options *o) {
    int code = fit("step", o->from, t->shape.n_steps, &o->steps);
    if (code == TOOL_OK)
        code = fit("layer", o->first_layer, t->shape.n_layers, &o->layers);
    if (code == TOOL_OK)
        code = fit("request", o->first_request, t->shape.n_requests, &o->requests);
    if (code == TOOL_OK && o->next > t->shape.n_next)
        return tool_fail(TOOL_BAD_INPUT, "--next is %" PRId64 "; the trace has %d candidates", o->next,
                         t->shape.n_next);
    if (o->next < 0)
        o->next = t->shape.n_next;
    return code;
}

static int copy_step(const trace *t, const cut_options *o, int64_t step, const trace_step *out) {
    char error[512];
    int32_t k = t->shape.k, next = (int32_t)o->next, requests = (int32_t)o->requests;
    for (int32_t r = 0; r < requests; r++)
        out->lengths[r] = trace_length(t, step, (int32_t)o->first_request + r);
    for (int64_t i = 0; i < o->layers * requests; i++) {
        int32_t layer = (int32_t)(o->first_layer + i / requests), request = (int32_t)(o->first_request + i % requests);
        if (trace_selection(t, step, layer, request, out->selections + i * k, error, sizeof error) != 0)
            return tool_fail(TOOL_BAD_INPUT, "%s", error);
        if (next)
            trace_next(t, step, layer, request, next, out->next_tokens + i * next, out->next_scores + i * next);
    }
    return TOOL_OK;
}

/* Numbers of the layers that stay, out of the list of all. */
static const char *cut_layers(const trace *t, const cut_options *o, char *text) {
    size_t used = 0, room = strlen(t->note[TRACE_LAYERS]) + 1;
    for (int64_t l = 0; l < o->layers; l++)
        used += (size_t)snprintf(text + used, room - used, "%s%d", l ? "," : "",
                                 trace_layer_number(t, (int32_t)(o->first_layer + l)));
    return text;
}

static int cut(const trace *t, const cut_options *o, const char *const note[TRACE_NOTES]) {
    const trace_shape shape = {o->steps, (int32_t)o->layers, (int32_t)o->requests, t->shape.k, (int32_t)o->next};
    trace_step step;
    int code = trace_step_open(&step, &shape);
    trace_writer *w = code == TOOL_OK ? trace_create(o->files.word[1], &shape, note) : NULL;
    if (code == TOOL_OK && !w)
        code = TOOL_BAD_INPUT;
    for (int64_t s = 0; code == TOOL_OK && s < o->steps && !tool_interrupted; s++) {
        code = copy_step(t, o, o->from + s, &step);
        if (code == TOOL_OK)
            code = trace_append(w, step.lengths, step.selections, step.next_tokens, step.next_scores);
    }
    if (w)
        code = trace_finish(w, code);
    trace_step_close(&step);
    return code == TOOL_OK && tool_interrupted ? TOOL_STOPPED : code;
}

int trace_cut(int argc, char **argv) {
    cut_options o = {.next = -1};
    const char *note[TRACE_NOTES];
    tool_options(options, "Some steps, layers, requests and candidates of a trace as a new trace.", argc, argv, &o);
    int code = trace_check_words(&o.files, 2, "the trace and the one to make of it");
    trace *t = code == TOOL_OK ? trace_open_named(o.files.word[0]) : NULL;
    if (!t)
        return TOOL_BAD_INPUT;
    code = check(t, &o);
    memcpy(note, t->note, sizeof note);
    char *layers = note[TRACE_LAYERS] ? malloc(strlen(note[TRACE_LAYERS]) + 1) : NULL;
    if (code == TOOL_OK && layers)
        note[TRACE_LAYERS] = cut_layers(t, &o, layers);
    tool_watch_interrupt();
    if (code == TOOL_OK)
        code = cut(t, &o, note);
    free(layers);
    trace_close(t);
    return code;
}
