/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse trace import`: selections that numpy saved, [steps, k], [steps, layers, k] or [steps, layers, requests, k],
 * go through twice: once to see that every token is possible and how long the context must be, once to write. */
#include "npy.h"
#include "tools.h"
#include "trace_tools.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MOST_STEP = 1 << 28 }; /* entries; what a file may claim and make us allocate */

typedef struct import_options {
    tool_words files;
    const char *note[TRACE_NOTES];
    int64_t context;
} import_options;

#define NOTE(NAME, INDEX, ARGUMENT, HELP)                                                                              \
    { NAME, TOOL_TEXT, offsetof(import_options, note) + (INDEX) * sizeof(char *), 0, 0, ARGUMENT, HELP }

static const tool_option options[] = {
    {"files", TOOL_WORDS, offsetof(import_options, files), 0, 0, "ARRAY TRACE", NULL},
    {"context", TOOL_INT, offsetof(import_options, context), 1, TRACE_MOST_TOKENS, "TOKENS",
     "length at the first step, the newest token included; it grows by one a step (default: the least that every "
     "token fits)"},
    NOTE("row-bytes", TRACE_ROW_BYTES, "BYTES", "of a token's row, all layers of a group (656: DeepSeek's FP8 rows)"),
    NOTE("layers", TRACE_LAYERS, "LIST", "number in the model of each layer of the array, as in 0,1,2,6"),
    NOTE("model", TRACE_MODEL, "NAME", "model the selections come from"),
    NOTE("selector", TRACE_SELECTOR, "NAME", "what chose them: dsa, nsa, quest"),
    NOTE("text", TRACE_TEXT, "WORDS", "what the model was reading and writing"),
    NOTE("licence", TRACE_LICENCE, "NAME", "of the text"),
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

typedef struct import {
    const import_options *o;
    const char *path;
    npy array, lengths;
    int has_lengths;
    trace_shape shape;
    int64_t first; /* length at step 0, where there are no lengths */
    trace_step step;
} import;

/* -------------------------------------------------------------------------------------------------------- array -- */

static int open_selections(import *im) {
    int code = npy_open(&im->array, im->path, "selections");
    if (code == 1) /* numpy.savez (file, array) calls the first one so */
        code = npy_open(&im->array, im->path, "arr_0");
    if (code == 1)
        return tool_fail(TOOL_BAD_INPUT, "%s: neither 'selections' nor 'arr_0' is in it", im->path);
    return code;
}

static int set_shape(import *im) {
    const npy *a = &im->array;
    int last = a->n_dims - 1;
    int64_t layers = last > 1 ? a->dims[1] : 1, requests = last > 2 ? a->dims[2] : 1;
    if (last < 1)
        return tool_fail(TOOL_BAD_INPUT,
                         "%s: 1 dimension; [steps, k], [steps, layers, k] or [steps, layers, requests, k] is needed",
                         a->name);
    if (layers > TRACE_MOST_LAYERS || requests > TRACE_MOST_REQUESTS || a->dims[last] > TRACE_MOST_K)
        return tool_fail(TOOL_BAD_INPUT,
                         "%s: %" PRId64 " layers, %" PRId64 " requests, k %" PRId64 "; each may be 1 to 65535", a->name,
                         layers, requests, a->dims[last]);
    if (layers * requests > MOST_STEP / a->dims[last])
        return tool_fail(TOOL_BAD_INPUT, "%s: a step of more than %d entries", a->name, MOST_STEP);
    im->shape = (trace_shape){a->dims[0], (int32_t)layers, (int32_t)requests, (int32_t)a->dims[last], 0};
    return TOOL_OK;
}

static int open_lengths(import *im) {
    const npy *l = &im->lengths;
    int code = npy_is_archive(im->path) ? npy_open(&im->lengths, im->path, "lengths") : 1;
    im->has_lengths = code == TOOL_OK;
    if (code != TOOL_OK)
        return code == 1 ? TOOL_OK : code;
    int64_t requests = l->n_dims == 1 ? 1 : l->dims[1];
    if (l->n_dims <= 2 && l->dims[0] == im->shape.n_steps && requests == im->shape.n_requests)
        return TOOL_OK;
    return tool_fail(TOOL_BAD_INPUT, "%s: lengths must be [%" PRId64 ", %d], one for each step and request", l->name,
                     im->shape.n_steps, im->shape.n_requests);
}

static int open_arrays(import *im) {
    int code = open_selections(im);
    if (code == TOOL_OK)
        code = set_shape(im);
    return code == TOOL_OK ? open_lengths(im) : code;
}

static void close_arrays(import *im) {
    npy_close(&im->array);
    npy_close(&im->lengths);
}

/* -------------------------------------------------------------------------------------------------------- steps -- */

static int64_t numbers_of(const trace_shape *s) {
    return (int64_t)s->n_layers * s->n_requests * s->k;
}

static int check_length(const import *im, int64_t step, int32_t request, int32_t before) {
    int32_t length = im->step.lengths[request];
    if (length < 0 || length > TRACE_MOST_TOKENS || (length != 0 && length < before))
        return tool_fail(TOOL_BAD_INPUT,
                         "%s: step %" PRId64 ", request %d: a length of %d tokens after %d; it may be 0 to %d, and "
                         "shrink only to 0",
                         im->path, step, request, length, before, TRACE_MOST_TOKENS);
    return TOOL_OK;
}

/* Without lengths of their own, all requests are as long, and one token longer every step. */
static int read_lengths(import *im, int64_t step) {
    int32_t *lengths = im->step.lengths, before;
    int code = TOOL_OK;
    if (!im->has_lengths) {
        trace_step_set_lengths(&im->step, im->shape.n_requests, im->first + step);
        return TOOL_OK;
    }
    for (int32_t r = 0; code == TOOL_OK && r < im->shape.n_requests; r++) {
        before = lengths[r];
        code = npy_read(&im->lengths, &lengths[r], 1);
        if (code == TOOL_OK)
            code = check_length(im, step, r, before);
    }
    return code;
}

static int say_token(const import *im, int64_t step, int64_t place, int32_t token, int64_t length) {
    const trace_shape *s = &im->shape;
    int64_t row = place / s->k;
    return tool_fail(TOOL_BAD_INPUT,
                     "%s: step %" PRId64 ", layer %" PRId64 ", request %" PRId64 ", entry %" PRId64
                     " is %d; tokens are 0 to %" PRId64 ", and -1 is none",
                     im->path, step, row / s->n_requests, row % s->n_requests, place % s->k, token, length - 1);
}

/* Every token must be possible; where no length is given, the least that makes it so grows with them. */
static int check_step(import *im, int64_t step) {
    const trace_shape *s = &im->shape;
    int64_t most = im->o->context ? im->o->context + step : TRACE_MOST_TOKENS;
    for (int64_t i = 0; i < numbers_of(s); i++) {
        int32_t token = im->step.selections[i];
        int64_t length = im->has_lengths ? im->step.lengths[i / s->k % s->n_requests] : most;
        if (token < -1 || token >= length)
            return say_token(im, step, i, token, length);
        if (token + 1 - step > im->first)
            im->first = token + 1 - step;
    }
    return TOOL_OK;
}

static int read_step(import *im, int64_t step) {
    int code = read_lengths(im, step);
    return code == TOOL_OK ? npy_read(&im->array, im->step.selections, numbers_of(&im->shape)) : code;
}

static int check_all(import *im) {
    int code = trace_step_open(&im->step, &im->shape);
    im->first = im->o->context ? im->o->context : 1;
    for (int64_t s = 0; code == TOOL_OK && s < im->shape.n_steps && !tool_interrupted; s++) {
        code = read_step(im, s);
        if (code == TOOL_OK)
            code = check_step(im, s);
    }
    if (code == TOOL_OK && !im->has_lengths && im->first + im->shape.n_steps - 1 > TRACE_MOST_TOKENS)
        code = tool_fail(TOOL_BAD_INPUT, "%s: %" PRId64 " tokens and then one more every step; a request may have %d",
                         im->path, im->first, TRACE_MOST_TOKENS);
    return code;
}

static int write_all(import *im, const char *path) {
    trace_writer *w = trace_create(path, &im->shape, im->o->note);
    int code = w ? TOOL_OK : TOOL_BAD_INPUT;
    for (int64_t s = 0; code == TOOL_OK && s < im->shape.n_steps && !tool_interrupted; s++) {
        code = read_step(im, s);
        if (code == TOOL_OK)
            code = trace_append(w, im->step.lengths, im->step.selections, NULL, NULL);
    }
    return w ? trace_finish(w, code) : code;
}

static int import_file(import *im, const char *output) {
    int code = open_arrays(im);
    if (code == TOOL_OK)
        code = check_all(im);
    if (code == TOOL_OK) {
        close_arrays(im); /* and once more from the front */
        trace_step_set_lengths(&im->step, im->shape.n_requests, 0);
        code = open_arrays(im);
    }
    return code == TOOL_OK && !tool_interrupted ? write_all(im, output) : code;
}

int trace_import(int argc, char **argv) {
    char command[1024];
    import_options o = {.context = 0};
    tool_command_text(argc, argv, command, sizeof command);
    o.note[TRACE_COMMAND] = command;
    tool_options(options,
                 "Make a trace of an int32 (or int64) array [steps, layers, k] that numpy.save wrote; also "
                 "[steps, k] and [steps, layers, requests, k], and of numpy.savez the arrays 'selections' and, if "
                 "there, 'lengths' [steps, requests]. -1 is no token.",
                 argc, argv, &o);
import im = {.o = & o, .path = o.files.word[0] };
    int code = trace_check_words(&o.files, 2, "the array and the trace to make of it");
    if (code != TOOL_OK)
        return code;
    tool_watch_interrupt();
    code = import_file(&im, o.files.word[1]);
    close_arrays(&im);
    trace_step_close(&im.step);
    if (code == TOOL_OK && tool_interrupted)
        return TOOL_STOPPED;
    if (code == TOOL_OK)
        printf("%s: %" PRId64 " steps, %d layers, %d requests, k %d\n", o.files.word[1], im.shape.n_steps,
               im.shape.n_layers, im.shape.n_requests, im.shape.k);
    return code;
}
