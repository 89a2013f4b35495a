/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse bench swap-in`: its options, and which body they are for. Backends in ordinary memory and those with memory
 * of their own are measured by different means; an option that only one of them has is refused by the other. */
#include "bench.h"
#include "tools.h"

#include <math.h>
#include <string.h>

enum { NOT_GIVEN = -1 };

static const tool_option options[] = {
    {"backend", TOOL_TEXT, offsetof(bench_options, backend), 0, 0, "NAME", "backend to measure (cpu)"},
    {"k", TOOL_INT, offsetof(bench_options, k), 1, 65535, "N", "entries of a selection (2048)"},
    {"slots", TOOL_REALS, offsetof(bench_options, slot_counts), 1, 65535, "LIST",
     "slots per request (4096); more than one with cuda only, as for --row-bytes and --batch"},
    {"row-bytes", TOOL_REALS, offsetof(bench_options, row_sizes), 4, 65536, "LIST",
     "bytes of a row, a multiple of 4 (656)"},
    {"context", TOOL_INT, offsetof(bench_options, context), 1, 4194304, "N",
     "tokens of a request (131072; cuda: 32768 from batch 33 on)"},
    {"batch", TOOL_REALS, offsetof(bench_options, batches), 1, 1024, "LIST", "requests of a step (1)"},
    {"misses", TOOL_REALS, offsetof(bench_options, misses), 0, 100, "LIST",
     "percent of a selection that is not resident (0,1,5,10,13.4,25,50,100)"},
    {"cases", TOOL_TEXT, offsetof(bench_options, cases), 0, 0, "NAME",
     "cuda: in place of those lists, short, floor (the table of the first prototype) or full; short when no list is "
     "given"},
    {"skew", TOOL_FLAG, offsetof(bench_options, skew), 0, 0, NULL,
     "cuda: also one request that misses everything among others that miss nothing"},
    {"layers", TOOL_INT, offsetof(bench_options, layers), 1, 1024, "N",
     "cuda: layers that launches go round (as many as make a pool of 16 GiB)"},
    {"threads", TOOL_INT, offsetof(bench_options, threads), 0, 1024, "N",
     "cpu: threads of the cache and of the copy; 0: as many as the machine gives (1)"},
    {"profile", TOOL_TEXT, offsetof(bench_options, profile), 0, 0, "FILE",
     "take the knobs that `hisparse calibrate --output FILE` chose"},
    {"seconds", TOOL_REAL, offsetof(bench_options, seconds), 0, 86400, "S", "time for each miss rate, at least (1)"},
    {"policy", TOOL_TEXT, offsetof(bench_options, policy), 0, 0, "NAME",
     "lru, fifo, random or clock (lru; cuda: lru only)"},
    {"huge-pages", TOOL_FLAG, offsetof(bench_options, huge_pages), 0, 0, NULL,
     "cpu: ask for 2 MiB pages for the host rows and for the pool of the plain copy; cuda always does"},
    {"sweep-context", TOOL_FLAG, offsetof(bench_options, sweep_context), 0, 0, NULL,
     "cpu, instead: resolve without misses at contexts of 8192 to 1048576 tokens"},
    {"json", TOOL_FLAG, offsetof(bench_options, json), 0, 0, NULL, "print JSON"},
    {"csv", TOOL_FLAG, offsetof(bench_options, csv), 0, 0, NULL, "print CSV"},
    {"output", TOOL_OUTPUT, offsetof(bench_options, output), 0, 0, "FILE",
     "write the results to FILE, whole or not at all"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

/* ----------------------------------------------------------------------------------- one kind of memory or the other
 * -- */

/* The names of what was given and is not for this backend. */
typedef struct refusal {
    const char *name;
    int given;
} refusal;

static int refuse(const bench_options *o, const refusal *list, int n, const char *memory) {
    for (int i = 0; i < n; i++)
        if (list[i].given)
            return tool_fail(TOOL_BAD_INPUT, "bench swap-in: --%s is not for backend '%s', which has %s", list[i].name,
                             o->backend, memory);
    return TOOL_OK;
}

/* The one number of a list, or the default when none was given. */
static int take_one(const bench_options *o, const char *name, const tool_reals *list, int64_t *value) {
    if (list->n > 1)
        return tool_fail(TOOL_BAD_INPUT, "--%s has %d numbers; backend '%s' takes one", name, list->n, o->backend);
    if (list->n && list->value[0] != floor(list->value[0]))
        return tool_fail(TOOL_BAD_INPUT, "--%s: %g is not a whole number", name, list->value[0]);
    *value = list->n ? (int64_t)list->value[0] : *value;
    return TOOL_OK;
}

static int check_sizes(const bench_options *o) {
    double most = 0;
    int64_t turnover = bench_turnover(o->k, o->slots);
    for (int i = 0; i < o->misses.n; i++)
        most = fmax(most, o->misses.value[i]);
    if (o->slots < o->k)
        return tool_fail(TOOL_BAD_INPUT, "--slots is %lld; it must be at least --k, %lld", (long long)o->slots,
                         (long long)o->k);
    if (!o->sweep_context && o->context < (most > 0 ? turnover : o->slots))
        return tool_fail(TOOL_BAD_INPUT,
                         "--context is %lld; with these misses, --slots and --k it must be at least %lld",
                         (long long)o->context, (long long)turnover);
    return TOOL_OK;
}

static int for_ordinary_memory(bench_options *o) {
    const refusal others[] = {{"cases", o->cases != NULL}, {"skew", o->skew}, {"layers", o->layers != 0}};
    int code = refuse(o, others, sizeof others / sizeof others[0], "ordinary memory");
    o->batch = 1, o->row_bytes = 656, o->slots = 4096;
    if (code == TOOL_OK)
        code = take_one(o, "batch", &o->batches, &o->batch);
    if (code == TOOL_OK)
        code = take_one(o, "row-bytes", &o->row_sizes, &o->row_bytes);
    if (code == TOOL_OK)
        code = take_one(o, "slots", &o->slot_counts, &o->slots);
    if (!o->context)
        o->context = 131072;
    if (o->threads == NOT_GIVEN)
        o->threads = 1;
    if (o->misses.n == 0)
        o->misses = (tool_reals){8, {0, 1, 5, 10, 13.4, 25, 50, 100}};
    return code == TOOL_OK ? check_sizes(o) : code;
}

static int for_own_memory(bench_options *o) {
    const refusal others[] = {
        {"threads", o->threads != NOT_GIVEN}, {"huge-pages", o->huge_pages}, {"sweep-context", o->sweep_context}};
    int code = refuse(o, others, sizeof others / sizeof others[0], "memory of its own");
    o->threads = 1;
    if (code == TOOL_OK && strcmp(o->policy, "lru") != 0)
        return tool_fail(TOOL_BAD_INPUT,
                         "--policy is %s; with backend '%s' every launch has exactly the misses asked for, which only "
                         "lru can promise",
                         o->policy, o->backend);
    return code;
}

/* The body these options are for, with their defaults filled in, or a code after saying what is wrong. */
static int choose_body(bench_options *o, const bench_body **body_out) {
    int own_memory = 0, code = TOOL_OK;
    if (o->json && o->csv)
        return tool_fail(TOOL_BAD_INPUT, "bench swap-in: --json or --csv, not both");
    if (o->cases)
        code = bench_gpu_known_list(o->cases);
    if (code == TOOL_OK)
        code = tool_check_backend(o->backend, &own_memory);
    if (code == TOOL_OK)
        code = own_memory ? for_own_memory(o) : for_ordinary_memory(o);
    *body_out = own_memory ? &bench_gpu : o->sweep_context ? &bench_sweep : &bench_cpu;
    return code;
}

/* ---------------------------------------------------------------------------------------------------------- run -- */

/* Rows are worth printing when all went well; long ones also when what came after them did not. */
static int finish(const bench_options *o, const bench_body *body, const emit_table *table, emit_file *file, int code) {
    if (code != TOOL_OK && !(body->keeps_rows && table->n_rows > 0)) {
        emit_discard(file);
        return code;
    }
    emit_print(table, o->json ? EMIT_JSON : o->csv ? EMIT_CSV : EMIT_TEXT, file->stream);
    int written = emit_commit(file);
    return code != TOOL_OK ? code : written;
}

int bench_swap_in(int argc, char **argv) {
    char command[1024];
    bench_options o = {.backend = "cpu", .policy = "lru", .k = 2048, .threads = NOT_GIVEN, .seconds = 1};
    const bench_body *body = &bench_cpu;
    emit_file file;
    tool_command_text(argc, argv, command, sizeof command);
    tool_options(options,
                 "Time of a swap-in by miss rate, beside a plain copy of the same rows. Microseconds are medians per "
                 "request; with cuda, of a launch for the whole batch.",
                 argc, argv, &o);
    int code = choose_body(&o, &body);
    if (code == TOOL_OK)
        code = emit_open(&file, o.output);
    if (code != TOOL_OK)
        return code;
    emit_table table = {.what = body->what,
                        .command = command,
                        .column = body->column,
                        .n_columns = body->n_columns,
                        .note = body->note};
    tool_watch_interrupt();
    code = finish(&o, body, &table, &file, body->run(&o, &table));
    emit_free(&table);
    return code == TOOL_OK && tool_interrupted ? TOOL_STOPPED : code;
}
