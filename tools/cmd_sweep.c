/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse sweep`: its options, and which policies and sizes they ask for. */
#include "options.h"
#include "sweep.h"
#include "tools.h"
#include "trace_tools.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SLOTS = 65535, MOST_SIZES = 32 };

typedef struct sweep_options {
    tool_words files;
    const char *policies, *profile, *output;
    tool_reals slots, megabytes;
    int64_t row_bytes, ring_rows, threads;
    int by_layer, json, csv;
} sweep_options;

static const tool_option options[] = {
    {"files", TOOL_WORDS, offsetof(sweep_options, files), 0, 0, "TRACE...", NULL},
    {"policies", TOOL_TEXT, offsetof(sweep_options, policies), 0, 0, "LIST",
     "of lru, fifo, random, clock, lru-flat (no promotion of hits), segmented, belady (the best there can be); all"},
    {"slots", TOOL_REALS, offsetof(sweep_options, slots), 1, MOST_SLOTS, "LIST", "numbers of slots (1 to 8 times k)"},
    {"mb", TOOL_REALS, offsetof(sweep_options, megabytes), 0.001, 1e9, "LIST",
     "sizes as MiB of rows a request has on the device, all layers together, as in 64,128,256,512"},
    {"row-bytes", TOOL_INT, offsetof(sweep_options, row_bytes), 1, INT32_MAX, "BYTES",
     "of a token's row (what the trace says)"},
    {"ring-rows", TOOL_INT, offsetof(sweep_options, ring_rows), 1, 65536, "ROWS",
     "newest rows kept beside the slots, which never miss (64, as in the library)"},
    {"profile", TOOL_TEXT, offsetof(sweep_options, profile), 0, 0, "FILE",
     "predict the time of swap-ins from what `hisparse calibrate --output FILE` measured"},
    {"threads", TOOL_INT, offsetof(sweep_options, threads), 1, 1024, "N", "threads (all)"},
    {"by-layer", TOOL_FLAG, offsetof(sweep_options, by_layer), 0, 0, NULL, "a row for every layer too"},
    {"output", TOOL_OUTPUT, offsetof(sweep_options, output), 0, 0, "FILE",
     "write to FILE, whole or not at all (standard output)"},
    {"json", TOOL_FLAG, offsetof(sweep_options, json), 0, 0, NULL, "print JSON"},
    {"csv", TOOL_FLAG, offsetof(sweep_options, csv), 0, 0, NULL, "print CSV"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

/* ------------------------------------------------------------------------------------------------ what is asked -- */

/* Bits of the policies of a list; an exit code after the message. */
static int parse_policies(const char *text, unsigned *mask_out) {
    *mask_out = text ? 0 : (1u << SWEEP_POLICIES) - 1;
    while (text) {
        char word[32];
        size_t n = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
        int p = 0;
        while (p < SWEEP_POLICIES && strcmp(word, sweep_policy_names[p]) != 0)
            p++;
        if (p == SWEEP_POLICIES)
            return tool_unknown("policy", word, sweep_policy_names, SWEEP_POLICIES, "hisparse sweep --help");
        *mask_out |= 1u << p;
        text = text[n] ? text + n + 1 : NULL;
    }
    return TOOL_OK;
}

static int compare_sizes(const void *left, const void *right) {
    return *(const int32_t *)left - *(const int32_t *)right;
}

/* Numbers of slots, ascending, each once; returns how many, or less than 0 after the message. */
static int parse_sizes(const sweep *s, const sweep_options *o, int32_t *sizes) {
    int n = 0, kept = 0;
    for (int i = 0; i < o->slots.n; i++)
        sizes[n++] = (int32_t)o->slots.value[i];
    for (int i = 0; i < o->megabytes.n; i++) {
        double slots = floor(o->megabytes.value[i] * 1048576 / ((double)s->row_bytes * s->n_layers));
        sizes[n++] = slots < MOST_SLOTS ? (int32_t)slots : MOST_SLOTS;
    }
    for (int i = 1; n == 0 || (!o->slots.n && !o->megabytes.n && i <= 8); i++)
        sizes[n++] = (int64_t)s->k * i < MOST_SLOTS ? s->k * i : MOST_SLOTS;
    qsort(sizes, (size_t)n, sizeof *sizes, compare_sizes);
    for (int i = 0; i < n; i++)
        if (kept == 0 || sizes[i] != sizes[kept - 1])
            sizes[kept++] = sizes[i];
    if (sizes[0] >= s->k)
        return kept;
    tool_fail(TOOL_BAD_INPUT, "%s is %d slots; they must hold a selection, %d",
              o->megabytes.n ? "the least size" : "--slots", sizes[0], s->k);
    return -1;
}

static int set_results(sweep *s, const sweep_options *o) {
    int32_t sizes[2 * MOST_SIZES];
    unsigned mask;
    int code = parse_policies(o->policies, &mask);
    int n_sizes = code == TOOL_OK ? parse_sizes(s, o, sizes) : -1;
    if (n_sizes < 0)
        return TOOL_BAD_INPUT;
    s->result = calloc((size_t)n_sizes * SWEEP_POLICIES, sizeof *s->result);
    if (!s->result)
        return tool_fail(TOOL_FAILED, "out of memory");
    for (int p = 0; p < SWEEP_POLICIES; p++)
        for (int i = 0; i < n_sizes; i++)
            if (mask & 1u << p) {
                s->result[s->n_results].policy = (enum sweep_policy)p;
                s->result[s->n_results++].n_slots = sizes[i];
            }
    return TOOL_OK;
}

/* ------------------------------------------------------------------------------------------------------- traces -- */

static int open_traces(sweep *s, const sweep_options *o, trace **traces) {
    for (int i = 0; i < o->files.n; i++) {
        trace *t = traces[i] = trace_open_named(o->files.word[i]);
        if (!t)
            return TOOL_BAD_INPUT;
        s->n_traces++;
        if (t->shape.k != traces[0]->shape.k || t->shape.n_layers != traces[0]->shape.n_layers)
            return tool_fail(TOOL_BAD_INPUT, "%s has %d layers and k %d, %s has %d and %d; sweep them one by one",
                             t->name, t->shape.n_layers, t->shape.k, traces[0]->name, traces[0]->shape.n_layers,
                             traces[0]->shape.k);
    }
    if (s->n_traces == 0)
        return tool_fail(TOOL_BAD_INPUT, "which traces? hisparse trace import makes one; try hisparse sweep --help");
    s->k = traces[0]->shape.k;
    s->n_layers = traces[0]->shape.n_layers;
    s->row_bytes = o->row_bytes ? o->row_bytes : trace_row_bytes(traces[0]);
    if (!s->row_bytes && (o->megabytes.n || o->profile))
        return tool_fail(TOOL_BAD_INPUT, "--row-bytes is needed: the trace does not say how many a row has");
    return TOOL_OK;
}

/* Bytes of all rows that a step may ask for, in the largest step. */
static int64_t longest_span(const sweep *s) {
    int64_t most = 0;
    for (int i = 0; i < s->n_traces; i++)
        for (int64_t step = 0; step < s->traces[i]->shape.n_steps; step++) {
            int64_t tokens = 0;
            for (int32_t r = 0; r < s->traces[i]->shape.n_requests; r++)
                tokens += trace_length(s->traces[i], step, r);
            most = tokens > most ? tokens : most;
        }
    return most * s->n_layers * s->row_bytes;
}

static int set_up(sweep *s, const sweep_options *o, trace **traces) {
    int code = open_traces(s, o, traces);
    s->ring_rows = (int32_t)o->ring_rows;
    s->n_threads = o->threads ? (int)o->threads : omp_get_max_threads();
    s->base_us = s->row_us = NAN;
    if (code == TOOL_OK)
        code = set_results(s, o);
    return code == TOOL_OK && o->profile ? sweep_read_profile(s, o->profile, longest_span(s)) : code;
}

static int print(sweep *s, const sweep_options *o, emit_table *table, emit_file *file) {
    int code = sweep_add_rows(s, o->by_layer, table);
    if (code != TOOL_OK)
        return code;
    emit_print(table, o->json ? EMIT_JSON : o->csv ? EMIT_CSV : EMIT_TEXT, file->stream);
    if (!o->json && !o->csv)
        sweep_recommend(s, file->stream);
    return emit_commit(file);
}

int cmd_sweep(int argc, char **argv) {
    char command[1024];
    trace *traces[sizeof((tool_words *)0)->word / sizeof(char *)] = {NULL};
    sweep_options o = {.ring_rows = 64};
    sweep s = {.traces = traces};
    emit_file file;
    tool_command_text(argc, argv, command, sizeof command);
    tool_options(options, "Misses of every policy and number of slots over traces, and which to take.", argc, argv, &o);
    if (o.json && o.csv)
        return tool_fail(TOOL_BAD_INPUT, "--json and --csv contradict each other");
    int code = set_up(&s, &o, traces);
    if (code == TOOL_OK)
        code = emit_open(&file, o.output);
    if (code == TOOL_OK) {
        tool_watch_interrupt();
        code = sweep_run(&s);
        emit_table table = {.what = "sweep",
                            .command = command,
                            .note = s.stopped
                                        ? "stopped: not all layers are in"
                                        : "misses and bytes of all layers; swap-in: predicted, of a step's layers "
                                          "one after the other",
                            .column = sweep_columns,
                            .n_columns = sweep_n_columns};
        if (code == TOOL_OK)
            code = print(&s, &o, &table, &file);
        else
            emit_discard(&file);
        emit_free(&table);
    }
    for (int i = 0; i < s.n_traces; i++)
        trace_close(traces[i]);
    sweep_close(&s);
    return code == TOOL_OK && s.stopped ? TOOL_STOPPED : code;
}
