/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse trace record`: `hisparse run` with a listener between the model and its rows. What every sparse layer asks
 * for goes into a trace, step by step; the prompt, which is read all at once, does not. */
#include "run.h"
#include "tools.h"
#include "trace_tools.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

/* A kv that forwards everything to another and keeps the first selection of a step and store: that is the selector's.
 * (NSA asks for its window after it, and dense layers, which ask for everything in pieces, are not recorded.) */
typedef struct listener {
    kv base;
    kv *inner;
    int32_t first_store, n_stores, k, length;
    kv_next next;   /* n 0: not asked for */
    uint8_t *heard; /* [n_stores] */
    trace_step step;
    trace_writer *writer;
} listener;

typedef struct record_options {
    const char *path, *text, *licence;
    int32_t next;
    run *r;
} record_options;

/* ----------------------------------------------------------------------------------------------------- listener -- */

static int fill(kv *self, int32_t store, int32_t first, int32_t n, const void *rows) {
    kv *inner = ((listener *)self)->inner;
    return inner->fill(inner, store, first, n, rows);
}

static int begin(kv *self, int32_t token) {
    listener *l = (listener *)self;
    memset(l->heard, 0, (size_t)l->n_stores);
    l->length = token + 1;
    return l->inner->begin(l->inner, token);
}

static int append(kv *self, int32_t store, const void *row) {
    kv *inner = ((listener *)self)->inner;
    return inner->append(inner, store, row);
}

static void keep_next(listener *l, int32_t place) {
    size_t n = (size_t)l->next.n, at = (size_t)place * n;
    memcpy(l->step.next_tokens + at, l->next.tokens, n * sizeof *l->next.tokens);
    memcpy(l->step.next_scores + at, l->next.scores, n * sizeof *l->next.scores);
}

static int select_rows(kv *self, int32_t store, const int32_t *selection, int32_t n, int32_t *ids_out) {
    listener *l = (listener *)self;
    int32_t place = store - l->first_store;
    if (place >= 0 && !l->heard[place] && n == l->k) {
        memcpy(l->step.selections + (size_t)place * (size_t)n, selection, (size_t)n * sizeof *selection);
        l->heard[place] = 1;
        if (l->next.n)
            keep_next(l, place);
    }
    return l->inner->select(l->inner, store, selection, n, ids_out);
}

static void views(kv *self, int32_t store, hsp_plane_view *planes_out) {
    kv *inner = ((listener *)self)->inner;
    inner->views(inner, store, planes_out);
}

static int copy(kv *self, void *to, const void *from, size_t bytes) {
    kv *inner = ((listener *)self)->inner;
    return inner->copy(inner, to, from, bytes);
}

/* After every step of the decoder. */
static int write_step(void *context) {
    listener *l = context;
    l->step.lengths[0] = l->length;
    return trace_append(l->writer, l->step.lengths, l->step.selections, l->step.next_tokens, l->step.next_scores);
}

/* --------------------------------------------------------------------------------------------------------- trace -- */

/* Numbers of the stores: layers, or where KV heads select by themselves layer * heads + head. */
static char *list_stores(const listener *l) {
    char *text = malloc((size_t)l->n_stores * 12 + 1), *end = text;
    for (int32_t i = 0; text && i < l->n_stores; i++)
        end += sprintf(end, "%s%d", i ? "," : "", l->first_store + i);
    return text;
}

static int open_writer(listener *l, const record_options *o, const char *command) {
    static const char *const selectors[] = {[MODEL_QUEST] = "quest", [MODEL_NSA] = "nsa", [MODEL_DSA] = "dsa"};
    const run *r = o->r;
    const trace_shape shape = {r->options.max_tokens, l->n_stores, 1, l->k, l->next.n};
    const char *slash = strrchr(r->options.model, '/'), *file = r->options.prompt_file;
    char row_bytes[16], *layers = list_stores(l);
    if (!layers)
        return tool_fail(TOOL_FAILED, "out of memory");
    snprintf(row_bytes, sizeof row_bytes, "%d", l->base.row_bytes);
    const char *const note[TRACE_NOTES] = {[TRACE_MODEL] = slash ? slash + 1 : r->options.model,
                                           [TRACE_SELECTOR] = selectors[r->m->kind],
                                           [TRACE_ROW_BYTES] = row_bytes,
                                           [TRACE_LAYERS] = layers,
                                           [TRACE_TEXT] = o->text ? o->text
                                                          : file  ? file
                                                                  : r->options.prompt,
                                           [TRACE_LICENCE] = o->licence,
                                           [TRACE_COMMAND] = command};
    int code = trace_step_open(&l->step, &shape);
    if (code == TOOL_OK && !(l->writer = trace_create(o->path, &shape, note)))
        code = TOOL_BAD_INPUT;
    free(layers);
    return code;
}

/* Have the engine rank what lies behind every selection. */
static int ask_for_next(listener *l, const run *r, int32_t n) {
    if (n == 0)
        return TOOL_OK;
    if (r->m->kind == MODEL_NSA)
        return tool_fail(TOOL_BAD_INPUT, "--next: candidates of NSA's selector are not ranked; DSA's and Quest's are");
    l->next = (kv_next){.n = n,
                        .work = calloc((size_t)r->max_total, sizeof(float)),
                        .tokens = calloc((size_t)n, sizeof(int32_t)),
                        .scores = calloc((size_t)n, sizeof(float))};
    l->base.next = &l->next;
    return l->next.work && l->next.tokens && l->next.scores ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
}

static int listen(listener *l, const record_options *o, const char *command) {
    run *r = o->r;
    kv *inner = r->d->rows;
    l->inner = inner;
    l->base = *inner;
    l->base.fill = fill;
    l->base.begin = begin;
    l->base.append = append;
    l->base.select = select_rows;
    l->base.views = views;
    l->base.copy = copy;
    l->k = r->options.top_k;
    l->first_store = r->m->dense_layers * r->m->stores;
    l->n_stores = run_stores(r) - l->first_store;
    if (l->n_stores < 1)
        return tool_fail(TOOL_BAD_INPUT, "all layers of the model are dense: there is no selection to record");
    l->heard = calloc((size_t)l->n_stores, 1);
    int code = l->heard ? ask_for_next(l, r, o->next) : tool_fail(TOOL_FAILED, "out of memory");
    if (code == TOOL_OK)
        code = open_writer(l, o, command);
    r->d->rows = &l->base;
    r->after_step = write_step;
    r->after_step_context = l;
    return code;
}

/* ------------------------------------------------------------------------------------------------------- command -- */

enum { TEXT = 512, LICENCE, NEXT }; /* beyond the keys of run_argp */

static const struct argp_option options_table[] = {
    {"text", TEXT, "WORDS", 0, "what is read, for the notes (the file's name, or the prompt)", 0},
    {"licence", LICENCE, "NAME", 0, "of the text, for the notes", 0},
    {"next", NEXT, "N", 0, "record the N candidates ranked just behind every selection, too (0; DSA and Quest)", 0},
    {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    record_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->r->options;
        return 0;
    case TEXT:
        o->text = arg;
        return 0;
    case LICENCE:
        o->licence = arg;
        return 0;
    case NEXT:
        return run_read_int(state, "next", arg, 0, TRACE_MOST_K, &o->next);
    case ARGP_KEY_ARG:
        if (o->path)
            argp_failure(state, TOOL_BAD_INPUT, 0, "'%s' is a word too many", arg);
        o->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->path)
            argp_failure(state, TOOL_BAD_INPUT, 0, "which trace is to be made?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&run_argp, 0, "As of hisparse run:", 1}, {0}};
static const struct argp record_argp = {
    options_table, parse_option, "TRACE", "Decode a text as `hisparse run` does and record what its layers select.",
    children,      NULL,         NULL};

static int record(run *r, listener *l, const record_options *o, const char *command) {
    int code = run_load(r);
    if (code == 0)
        code = listen(l, o, command);
    if (code == 0)
        code = run_prefill(r);
    if (code == 0 && !r->stopped)
        code = run_decode(r);
    if (l->writer)
        code = trace_finish(l->writer, code);
    return code == 0 ? run_print(r) : code;
}

int trace_record(int argc, char **argv) {
    char command[1024];
    run r = {0};
    listener l = {0};
    record_options o = {.r = &r};
    tool_command_text(argc, argv, command, sizeof command);
    int code = run_parse(argc, argv, &record_argp, &o, &r.options);
    if (code == 0 && r.options.on_gpu)
        code = tool_fail(TOOL_BAD_INPUT,
                         "--backend is %s; selections are recorded where they lie in ordinary memory: cpu "
                         "or ref, whose selections are the same",
                         r.options.cache.backend);
    if (code != 0)
        return code;
    tool_watch_interrupt();
    code = record(&r, &l, &o, command);
    run_close(&r);
    free(l.heard);
    free(l.next.work);
    free(l.next.tokens);
    free(l.next.scores);
    trace_step_close(&l.step);
    return code;
}
