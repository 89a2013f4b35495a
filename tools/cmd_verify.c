/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse verify`: rounds of random operations on two backends, each round from a seed of its own, so that one can be
 * repeated alone. */
#include "emit.h"
#include "options.h"
#include "tools.h"
#include "verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct verify_options {
    const char *backend, *against;
    double minutes;
    int64_t seed, runs;
    int json;
} verify_options;

/* Seeds stay exact as numbers of JSON. */
#define MOST_SEED 281474976710655.0

static const tool_option options[] = {
    {"backend", TOOL_TEXT, offsetof(verify_options, backend), 0, 0, "NAME", "backend to verify (cpu)"},
    {"against", TOOL_TEXT, offsetof(verify_options, against), 0, 0, "NAME", "backend to compare with (ref)"},
    {"minutes", TOOL_REAL, offsetof(verify_options, minutes), 0, 100000, "M", "stop after this time"},
    {"runs", TOOL_INT, offsetof(verify_options, runs), 1, 1e15, "N",
     "stop after N rounds (100, or none with --minutes)"},
    {"seed", TOOL_INT, offsetof(verify_options, seed), 0, MOST_SEED, "S",
     "seed of the first round (drawn from the time)"},
    {"json", TOOL_FLAG, offsetof(verify_options, json), 0, 0, NULL, "print JSON"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

static const emit_column columns[] = {{"backend", "", EMIT_WORD}, {"against", "", EMIT_WORD},   {"seed", "", 0},
                                      {"rounds", "", 0},          {"operations", "", 0},        {"rows", "", 0},
                                      {"seconds", "", 1},         {"difference", "", EMIT_WORD}};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void show_progress(const verify_totals *totals, double seconds) {
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%" PRId64 " rounds, %" PRId64 " operations, %.0f s ", totals->rounds, totals->operations,
                seconds);
}

/* Rounds until one differs, the time or the number is reached, or Ctrl-C. */
static int run_rounds(const verify_options *o, verify_sides *sides, verify_totals *totals, char *sentence,
                      size_t bytes) {
    double start = now(), shown = 0;
    int code = TOOL_OK;
    for (int64_t i = 0; code == TOOL_OK && !tool_interrupted; i++) {
        double seconds = now() - start;
        if ((o->runs && i >= o->runs) || (o->minutes > 0 && seconds >= o->minutes * 60))
            break;
        if (seconds - shown > 0.2)
            show_progress(totals, shown = seconds);
        code = verify_round(sides, (uint64_t)(o->seed + i), totals, sentence, bytes);
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    return code;
}

static int print(const verify_options *o, const char *command, const verify_totals *totals, double seconds,
                 const char *difference) {
    const emit_cell cells[] = {{.word = o->backend},
                               {.word = o->against},
                               {.number = (double)o->seed},
                               {.number = (double)totals->rounds},
                               {.number = (double)totals->operations},
                               {.number = (double)totals->rows_compared},
                               {.number = seconds},
                               {.word = difference}};
    emit_table table = {.what = "verify",
                        .command = command,
                        .note = "",
                        .column = columns,
                        .n_columns = sizeof columns / sizeof columns[0]};
    if (emit_row(&table, cells) != 0)
        return tool_fail(TOOL_FAILED, "out of memory");
    emit_print(&table, EMIT_JSON, stdout);
    emit_free(&table);
    return TOOL_OK;
}

/* What came of it, for people; on a failure or difference also how to see it again. */
static int report(const verify_options *o, const verify_totals *totals, double seconds, int code,
                  const char *sentence) {
    int64_t last = o->seed + totals->rounds - (code != TOOL_FAILED); /* a round that failed is not counted */
    if (!o->json)
        printf("%" PRId64 " rounds, %" PRId64 " operations, %" PRId64 " rows compared, %.1f s%s\n", totals->rounds,
               totals->operations, totals->rows_compared, seconds, code == TOOL_OK ? ": no difference" : "");
    if (code == TOOL_DIFFERS || code == TOOL_FAILED)
        return tool_fail(code,
                         "seed %" PRId64 ", %s\nrepeat it: hisparse verify --backend %s --against %s --seed %" PRId64
                         " --runs 1",
                         last, sentence, o->backend, o->against, last);
    return code == TOOL_OK && tool_interrupted ? TOOL_STOPPED : code;
}

int cmd_verify(int argc, char **argv) {
    char command[1024], sentence[512] = "";
    verify_options o = {.backend = "cpu", .against = "ref", .seed = -1};
    verify_totals totals = {0, 0, 0};
    verify_sides sides;
    tool_command_text(argc, argv, command, sizeof command);
    tool_options(options, "Run random operations on two backends and compare everything.", argc, argv, &o);
    if (verify_sides_open(&sides, o.backend, o.against) != TOOL_OK)
        return TOOL_BAD_INPUT;
    if (o.seed < 0)
        o.seed = (int64_t)time(NULL);
    if (!o.runs && !(o.minutes > 0))
        o.runs = 100;
    tool_watch_interrupt(); /* before anything is printed: who waits for the first line may press Ctrl-C then */
    fprintf(o.json ? stderr : stdout, "%s against %s, seed %" PRId64 "\n", o.backend, o.against, o.seed);
    fflush(stdout);
    double start = now();
    int code = run_rounds(&o, &sides, &totals, sentence, sizeof sentence);
    double seconds = now() - start;
    verify_sides_close(&sides);
    if (o.json && print(&o, command, &totals, seconds, code == TOOL_DIFFERS ? sentence : "") != TOOL_OK)
        return TOOL_FAILED;
    return report(&o, &totals, seconds, code, sentence);
}
