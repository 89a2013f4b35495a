/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse trace synth`: a trace without a model, as local as one that was measured (docs/trace-format.md). */
#include "synth.h"
#include "tools.h"
#include "trace_tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PLACES = 1 << 16, MOST_ENTRIES = 1 << 28 };

typedef struct synth_options {
    tool_words files;
    const char *preset;
    int64_t steps, layers, requests, k, context, next, seed, row_bytes;
} synth_options;

#define NUMBER(NAME, FIELD, LEAST, MOST, ARGUMENT, HELP)                                                               \
    { NAME, TOOL_INT, offsetof(synth_options, FIELD), LEAST, MOST, ARGUMENT, HELP }

static const tool_option options[] = {
    {"files", TOOL_WORDS, offsetof(synth_options, files), 0, 0, "TRACE", NULL},
    {"preset", TOOL_TEXT, offsetof(synth_options, preset), 0, 0, "NAME",
     "longbench: as GLM-5.1 over a long text; code: low locality, two first layers with none (longbench)"},
    NUMBER("steps", steps, 1, INT32_MAX, "N", "steps (1000)"),
    NUMBER("layers", layers, 1, TRACE_MOST_LAYERS, "N", "layers (4)"),
    NUMBER("requests", requests, 1, TRACE_MOST_REQUESTS, "N", "requests of a step (1)"),
    NUMBER("k", k, 1, TRACE_MOST_K, "TOKENS", "entries of a selection (2048)"),
    NUMBER("context", context, 1, TRACE_MOST_TOKENS, "TOKENS", "length at the first step (100384)"),
    NUMBER("next", next, 0, TRACE_MOST_K, "TOKENS",
           "also record the scores of so many tokens behind the selection (0)"),
    NUMBER("row-bytes", row_bytes, 1, INT32_MAX, "BYTES", "of a token's row, for the notes (656)"),
    NUMBER("seed", seed, 0, 281474976710655, "N", "of all draws (1)"),
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

/* Found by random search: the six miss rates of the first within 1 point at once, the shares that neighbouring steps of
 * the second have in common (tests/cli/case_synth.py). Layers lie evenly between `first` and `last`. */
static const struct {
    const char *name;
    int n_without; /* first layers, whose scores are drawn anew every step */
    synth_locality first, last;
} presets[] = {
    {"longbench", 0, {2.0678, 1, 0.8612, 0.2906, 0}, {2.0678, 1, 0.8612, 0.2906, 0}},
    {"code", 2, {2.1, 1, 0.86, 0.78, 0}, {2.1, 1, 0.86, 1.2, 0}},
};
enum { N_PRESETS = sizeof presets / sizeof presets[0] };

typedef struct maker {
    const synth_options *o;
    int preset;
    trace_shape shape;
    struct {
        synth *scores;
    } * place; /* [layers][requests] */
    trace_step step;
} maker;

static int find_preset(const char *name) {
    const char *names[N_PRESETS];
    for (int i = 0; i < N_PRESETS; i++)
        if (strcmp(names[i] = presets[i].name, name) == 0)
            return i;
    tool_unknown("preset", name, names, N_PRESETS, "hisparse trace synth --help");
    return -1;
}

static double between(double first, double last, double share) {
    return first + (last - first) * share;
}

static synth_locality locality_of(const maker *m, int32_t layer) {
    const synth_locality *a = &presets[m->preset].first, *b = &presets[m->preset].last;
    int32_t n = m->shape.n_layers - presets[m->preset].n_without, i = layer - presets[m->preset].n_without;
    double share = n > 1 ? (double)i / (n - 1) : 0;
    if (i < 0)
        return (synth_locality){0, 0, 0, 1, 0};
    return (synth_locality){between(a->staying, b->staying, share), between(a->slow, b->slow, share),
                            between(a->slow_keeps, b->slow_keeps, share), between(a->fast, b->fast, share),
                            between(a->fast_keeps, b->fast_keeps, share)};
}

/* ------------------------------------------------------------------------------------------------------- making -- */

static int n_places(const maker *m) {
    return m->shape.n_layers * m->shape.n_requests;
}

static int check(const synth_options *o) {
    if (o->context + o->steps - 1 > TRACE_MOST_TOKENS)
        return tool_fail(TOOL_BAD_INPUT, "--context %" PRId64 " and %" PRId64 " steps; a request may have %d tokens",
                         o->context, o->steps, TRACE_MOST_TOKENS);
    if (o->layers * o->requests > MOST_PLACES || o->layers * o->requests * (o->k + o->next) > MOST_ENTRIES)
        return tool_fail(TOOL_BAD_INPUT, "%" PRId64 " selections of %" PRId64 " a step; it may have %d, and %d entries",
                         o->layers * o->requests, o->k + o->next, MOST_PLACES, MOST_ENTRIES);
    return TOOL_OK;
}

static int open_maker(maker *m) {
    const synth_options *o = m->o;
    int code = trace_step_open(&m->step, &m->shape);
    m->place = calloc((size_t)n_places(m), sizeof *m->place);
    for (int i = 0; code == TOOL_OK && m->place && i < n_places(m); i++) {
        synth_locality locality = locality_of(m, i / m->shape.n_requests);
        m->place[i].scores = synth_open(&locality, m->shape.k, m->shape.n_next, (int32_t)(o->context + o->steps),
                                        (uint64_t)o->seed << 16 | (uint64_t)i);
        if (!m->place[i].scores)
            code = tool_fail(TOOL_FAILED, "not enough memory for the scores of %d selections", n_places(m));
    }
    if (m->place)
        return code;
    tool_fail(TOOL_FAILED, "out of memory");
    return TOOL_FAILED;
}

static void close_maker(maker *m) {
    for (int i = 0; m->place && i < n_places(m); i++)
        synth_close(m->place[i].scores);
    free(m->place);
    trace_step_close(&m->step);
}

static void make_step(maker *m, int64_t step) {
    int32_t length = (int32_t)(m->o->context + step), k = m->shape.k, next = m->shape.n_next;
    trace_step_set_lengths(&m->step, m->shape.n_requests, length);
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < n_places(m); i++)
        synth_step(m->place[i].scores, length, m->step.selections + (int64_t)i * k,
                   m->step.next_tokens + (int64_t)i * next, m->step.next_scores + (int64_t)i * next);
}

static int write_all(maker *m, const char *const note[TRACE_NOTES]) {
    trace_writer *w = trace_create(m->o->files.word[0], &m->shape, note);
    int code = w ? TOOL_OK : TOOL_BAD_INPUT, shown = isatty(STDERR_FILENO);
    for (int64_t s = 0; code == TOOL_OK && s < m->shape.n_steps && !tool_interrupted; s++) {
        make_step(m, s);
        code = trace_append(w, m->step.lengths, m->step.selections, m->step.next_tokens, m->step.next_scores);
        if (shown && s % 16 == 0)
            fprintf(stderr, "\rstep %" PRId64 " of %" PRId64 " ", s, m->shape.n_steps);
    }
    if (shown)
        fprintf(stderr, "\r\033[K");
    return w ? trace_finish(w, code) : code;
}

int trace_synth(int argc, char **argv) {
    char command[1024], row_bytes[24], model[64];
    synth_options o = {{0}, "longbench", 1000, 4, 1, 2048, 100384, 0, 1, 656};
    tool_command_text(argc, argv, command, sizeof command);
    tool_options(options, "Make a trace without a model. A layer of a request takes 24 bytes a token of memory.", argc,
                 argv, &o);
    maker m = {.o = &o, .preset = find_preset(o.preset)};
    int code = m.preset < 0 ? TOOL_BAD_INPUT : trace_check_words(&o.files, 1, "the trace to make");
    if (code == TOOL_OK)
        code = check(&o);
    if (code != TOOL_OK)
        return code;
    m.shape = (trace_shape){o.steps, (int32_t)o.layers, (int32_t)o.requests, (int32_t)o.k, (int32_t)o.next};
    snprintf(row_bytes, sizeof row_bytes, "%" PRId64, o.row_bytes);
    snprintf(model, sizeof model, "none: synth %s", o.preset);
    const char *const note[TRACE_NOTES] = {
        [TRACE_MODEL] = model, [TRACE_ROW_BYTES] = row_bytes, [TRACE_COMMAND] = command};
    tool_watch_interrupt();
    code = open_maker(&m);
    if (code == TOOL_OK)
        code = write_all(&m, note);
    close_maker(&m);
    return code == TOOL_OK && tool_interrupted ? TOOL_STOPPED : code;
}
