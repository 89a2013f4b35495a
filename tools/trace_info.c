/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse trace info`: shape and notes, and for every layer what decides how well it can be cached: how much of a
 * selection the step before had chosen too, and how many tokens are chosen at all. */
#include "emit.h"
#include "mapped_file.h"
#include "tools.h"
#include "trace_tools.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct info_options {
    tool_words files;
    int json, csv;
} info_options;

static const tool_option options[] = {
    {"files", TOOL_WORDS, offsetof(info_options, files), 0, 0, "TRACE", NULL},
    {"json", TOOL_FLAG, offsetof(info_options, json), 0, 0, NULL, "print JSON"},
    {"csv", TOOL_FLAG, offsetof(info_options, csv), 0, 0, NULL, "print the layers as CSV"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

static const emit_column columns[] = {
    {"layer", "", 0}, {"entries", "", 0}, {"none", "%", 2}, {"repeated", "%", 2}, {"distinct", "tokens", 1}};

/* What one layer's selections add up to, over steps and requests. */
typedef struct layer_sums {
    int64_t entries, none, compared, repeated, distinct;
} layer_sums;

/* Step a token was last chosen in by the request at hand, one more; 0: never. */
static int add_selection(layer_sums *sums, const int32_t *selection, int32_t k, int32_t *last, int32_t now) {
    int n_valid = 0;
    for (int32_t e = 0; e < k; e++) {
        int32_t token = selection[e];
        if (token < 0 || last[token] == now)
            continue; /* none, or named twice */
        n_valid++;
        sums->distinct += last[token] == 0;
        sums->repeated += now > 1 && last[token] == now - 1;
        last[token] = now;
    }
    sums->compared += now > 1 ? n_valid : 0;
    sums->entries += k;
    sums->none += k - n_valid;
    return n_valid;
}

static int sum_layer(const trace *t, int32_t layer, int32_t *selection, int32_t *last, layer_sums *sums) {
    char error[512];
    for (int32_t r = 0; r < t->shape.n_requests; r++) {
        for (int32_t i = 0; i < TRACE_MOST_TOKENS; i++)
            last[i] = 0;
        for (int64_t s = 0; s < t->shape.n_steps && !tool_interrupted; s++) {
            if (trace_selection(t, s, layer, r, selection, error, sizeof error) != 0)
                return tool_fail(TOOL_BAD_INPUT, "%s", error);
            add_selection(sums, selection, t->shape.k, last, (int32_t)s + 1);
        }
    }
    return TOOL_OK;
}

static int add_layer(const trace *t, int32_t layer, int32_t *selection, int32_t *last, emit_table *table) {
    layer_sums sums = {0};
    int code = sum_layer(t, layer, selection, last, &sums);
    if (code != TOOL_OK || tool_interrupted)
        return code;
    const emit_cell cells[] = {{.number = trace_layer_number(t, layer)},
                               {.number = (double)sums.entries},
                               {.number = 100.0 * (double)sums.none / (double)sums.entries},
                               {.number = sums.compared ? 100.0 * (double)sums.repeated / (double)sums.compared : NAN},
                               {.number = (double)sums.distinct / t->shape.n_requests}};
    return emit_row(table, cells) == 0 ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
}

static int add_layers(const trace *t, emit_table *table) {
    int32_t *selection = malloc((size_t)t->shape.k * sizeof *selection);
    int32_t *last = malloc((size_t)TRACE_MOST_TOKENS * sizeof *last);
    int code = selection && last ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
    for (int32_t l = 0; code == TOOL_OK && l < t->shape.n_layers && !tool_interrupted; l++)
        code = add_layer(t, l, selection, last, table);
    free(selection);
    free(last);
    return code;
}

static void print_shape(const trace *t) {
    const trace_shape *s = &t->shape;
    int32_t shortest = INT32_MAX, longest = 0;
    char text[512];
    for (int64_t i = 0; i < s->n_steps; i++)
        for (int32_t r = 0; r < s->n_requests; r++) {
            int32_t length = trace_length(t, i, r);
            shortest = length > 0 && length < shortest ? length : shortest;
            longest = length > longest ? length : longest;
        }
    printf("%s: %" PRId64 " steps, %d layers, %d requests, k %d, %d to %d tokens", t->name, s->n_steps, s->n_layers,
           s->n_requests, s->k, longest ? shortest : 0, longest);
    if (s->n_next)
        printf(", scores of the next %d", s->n_next);
    printf("%s\n", t->steps_asked > s->n_steps ? "; its recording was cut short" : "");
    for (int i = 0; i < TRACE_NOTES; i++)
        if (t->note[i])
            printf("  %-10s %s\n", trace_note_keys[i],
                   mapped_file_printable(t->note[i], strlen(t->note[i]), text, sizeof text));
    printf("\n");
}

int trace_info(int argc, char **argv) {
    char command[1024];
    info_options o = {.json = 0};
    tool_command_text(argc, argv, command, sizeof command);
    tool_options(options, "What is in a trace: shape, notes, and for every layer how much neighbouring steps share.",
                 argc, argv, &o);
    int code = trace_check_words(&o.files, 1, "the trace");
    trace *t = code == TOOL_OK ? trace_open_named(o.files.word[0]) : NULL;
    if (!t)
        return TOOL_BAD_INPUT;
    tool_watch_interrupt();
    emit_table table = {.what = "trace",
                        .command = command,
                        .note = "repeated: of a selection's tokens, those the step before had chosen too; distinct: "
                                "tokens chosen at all, mean of the requests",
                        .column = columns,
                        .n_columns = sizeof columns / sizeof columns[0]};
    if (!o.json && !o.csv)
        print_shape(t);
    code = add_layers(t, &table);
    if (code == TOOL_OK)
        emit_print(&table, o.json ? EMIT_JSON : o.csv ? EMIT_CSV : EMIT_TEXT, stdout);
    emit_free(&table);
    trace_close(t);
    return code == TOOL_OK && tool_interrupted ? TOOL_STOPPED : code;
}
