/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse bench decode-path`: its options, its cases one after the other, and its table. */
#include "bench_path.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const tool_option options[] = {
    {"cases", TOOL_TEXT, offsetof(path_options, bench.cases), 0, 0, "NAME",
     "short (batch 1 and 32, 656-byte rows) or full (short); the lists below take the place of parts of it"},
    {"batch", TOOL_REALS, offsetof(path_options, bench.batches), 1, 1024, "LIST", "requests of a step"},
    {"misses", TOOL_REALS, offsetof(path_options, bench.misses), 0, 100, "LIST",
     "percent of a selection that is not resident"},
    {"row-bytes", TOOL_REALS, offsetof(path_options, bench.row_sizes), 4, 65536, "LIST",
     "bytes of an MLA row: 656 (fp8) or 1152 (bf16)"},
    {"group", TOOL_REALS, offsetof(path_options, groups), 1, 64, "LIST", "layers that share a selection (1,4)"},
    {"k", TOOL_INT, offsetof(path_options, bench.k), 64, 65535, "N", "entries of a selection (2048)"},
    {"slots", TOOL_INT, offsetof(path_options, bench.slots), 64, 65535, "N", "slots per request (4096)"},
    {"context", TOOL_INT, offsetof(path_options, bench.context), 1, 4194303, "N",
     "tokens of a request (1048576 divided by the batch, at least 16384)"},
    {"layers", TOOL_INT, offsetof(path_options, bench.layers), 1, 256, "N", "layers of a token (8)"},
    {"attention-us", TOOL_REAL, offsetof(path_options, attention_us), 0, 1e5, "US",
     "where attention takes less, the stand-in makes up for it (60)"},
    {"other-us", TOOL_REAL, offsetof(path_options, other_us), 0, 1e5, "US",
     "microseconds of the stand-in for the rest of a layer (200)"},
    {"model-layers", TOOL_INT, offsetof(path_options, model_layers), 1, 65535, "N",
     "layers of the model that tokens are scaled to (78)"},
    {"model-anchors", TOOL_INT, offsetof(path_options, model_anchors), 1, 65535, "N", "anchors among them (21)"},
    {"fetch-blocks", TOOL_INT, offsetof(path_options, bench.fetch_blocks), 1, 64, "N",
     "blocks that fetch a follower's rows, and from batch 32 on those of a swap-in at once (8, and 12)"},
    {"seconds", TOOL_REAL, offsetof(path_options, bench.seconds), 0, 86400, "S", "time for the turns of a case (1)"},
    {"json", TOOL_FLAG, offsetof(path_options, bench.json), 0, 0, NULL, "print JSON"},
    {"csv", TOOL_FLAG, offsetof(path_options, bench.csv), 0, 0, NULL, "print CSV"},
    {"output", TOOL_OUTPUT, offsetof(path_options, bench.output), 0, 0, "FILE",
     "write the results to FILE, anew after every case"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

static const emit_column columns[] = {{"batch", "", 0},
                                      {"context", "tokens", 0},
                                      {"row", "bytes", 0},
                                      {"group", "layers", 0},
                                      {"miss", "%", 1},
                                      {"layers", "", 0},
                                      {"pool", "GB", 1},
                                      {"rows", "", 0},
                                      {"attention", "us", 1},
                                      {"other", "us", 1},
                                      {"resident", "us", 2},
                                      {"waiting", "us", 2},
                                      {"prefetched", "us", 2},
                                      {"oracle", "us", 2},
                                      {"resident_p99", "us", 2},
                                      {"waiting_p99", "us", 2},
                                      {"prefetched_p99", "us", 2},
                                      {"mechanism", "us", 2},
                                      {"exposed_waiting", "us", 2},
                                      {"exposed_prefetched", "us", 2},
                                      {"link_waiting", "us", 2},
                                      {"link_prefetched", "us", 2},
                                      {"floor", "us", 2},
                                      {"hidden", "%", 1},
                                      {"followers_hidden", "%", 1},
                                      {"of_single", "%", 1},
                                      {"rate", "GB/s", 2},
                                      {"of_link", "%", 1},
                                      {"model_resident", "ms", 3},
                                      {"model_waiting", "ms", 3},
                                      {"model_prefetched", "ms", 3},
                                      {"model_exposed_waiting", "ms", 3},
                                      {"model_exposed_prefetched", "ms", 3},
                                      {"wrong_rows", "", 0},
                                      {"took", "s", 1}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

typedef struct path_bench {
    path_state state;
    bench_cases cases;
    path_times *times; /* [cases.n], of those that are done */
    emit_table *table;
    const emit_file *file;
} path_bench;

/* ------------------------------------------------------------------------------------------------------- results -- */

static enum emit_form form_of(const bench_options *o) {
    return o->json ? EMIT_JSON : o->csv ? EMIT_CSV : EMIT_TEXT;
}

/* What is there so far, into a file that is whole at any time. A device or a pipe gets it all at the end. */
static int keep(const path_bench *b) {
    emit_file now;
    if (!b->file->temporary[0])
        return TOOL_OK;
    int code = emit_open(&now, b->file->path);
    if (code != TOOL_OK)
        return code;
    emit_print(b->table, form_of(&b->state.o->bench), now.stream);
    return emit_commit(&now);
}

/* The case of groups of one that was measured with the same rest; NULL when there is none. */
static const path_times *single_of(const path_bench *b, int n_done, const path_times *t) {
    for (int i = 0; i < n_done; i++) {
        bench_shape a = b->times[i].shape;
        if (a.group == 1 && a.batch == t->shape.batch && a.row_bytes == t->shape.row_bytes &&
            b->times[i].miss == t->miss)
            return &b->times[i];
    }
    return NULL;
}

static int report(path_bench *b, int number, uint64_t wrong, double seconds) {
    const path_options *o = b->state.o;
    const path_times *t = &b->times[number];
    path_costs c;
    bench_path_costs(t, single_of(b, number, t), o->model_layers, o->model_anchors, &c);
    const emit_cell cells[N_COLUMNS] = {{.number = t->shape.batch},
                                        {.number = t->shape.context},
                                        {.number = t->shape.row_bytes},
                                        {.number = t->shape.group},
                                        {.number = t->miss},
                                        {.number = bench_path_layers(&t->shape)},
                                        {.number = (double)bench_path_pool_bytes(&t->shape) * 1e-9},
                                        {.number = t->rows},
                                        {.number = b->state.attention_us},
                                        {.number = b->state.work_us},
                                        {.number = t->us[PATH_RESIDENT]},
                                        {.number = t->us[PATH_WAITING]},
                                        {.number = t->us[PATH_PREFETCHED]},
                                        {.number = t->us[PATH_ORACLE]},
                                        {.number = t->p99_us[PATH_RESIDENT]},
                                        {.number = t->p99_us[PATH_WAITING]},
                                        {.number = t->p99_us[PATH_PREFETCHED]},
                                        {.number = c.mechanism},
                                        {.number = c.exposed[PATH_WAITING]},
                                        {.number = c.exposed[PATH_PREFETCHED]},
                                        {.number = c.link[PATH_WAITING]},
                                        {.number = c.link[PATH_PREFETCHED]},
                                        {.number = c.floor_us},
                                        {.number = c.hidden_percent},
                                        {.number = c.followers_percent},
                                        {.number = c.of_single_percent},
                                        {.number = c.rate_gb_s},
                                        {.number = c.of_link_percent},
                                        {.number = c.model_ms[PATH_RESIDENT]},
                                        {.number = c.model_ms[PATH_WAITING]},
                                        {.number = c.model_ms[PATH_PREFETCHED]},
                                        {.number = c.exposed_ms[PATH_WAITING]},
                                        {.number = c.exposed_ms[PATH_PREFETCHED]},
                                        {.number = (double)wrong},
                                        {.number = seconds}};
    if (emit_row(b->table, cells) != 0)
        return tool_fail(TOOL_FAILED, "out of memory");
    return keep(b);
}

/* The table lives longer than this call, and so does its note. */
static void describe(const path_bench *b) {
    static char note[1024];
    const path_state *p = &b->state;
    char name[128] = "?";
    p->s.memory->device_name(name, sizeof name);
    snprintf(note, sizeof note,
             "%s; us a layer, %s of tokens in CUDA graphs; attention: alone, L2 swept; other: the stand-in alone; "
             "mechanism = oracle - resident, exposed = way - resident, link = way - oracle; rate and of_link are of "
             "link_waiting, floor and of_link against %.2f GB/s, the best of a kernel here; hidden = (waiting - "
             "prefetched) / link_waiting; followers_hidden the same of what a group costs beyond a single layer, "
             "of_single its link_waiting of a single layer's; model: scaled to %lld layers, exposed %lld times for "
             "groups, each as large as here, and at every layer for single ones",
             name, p->s.gpu->tick_us(p->s.lane) < BENCH_COARSE_TICK_US ? "medians" : "means", p->link_gb_s,
             (long long)p->o->model_layers, (long long)p->o->model_anchors);
    b->table->note = note;
}

/* --------------------------------------------------------------------------------------------------------- cases -- */

static void show_progress(const bench_case *c, int number, int n) {
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kcase %d of %d: batch %d, %d-byte rows, groups of %d, %.1f%% misses ", number + 1, n,
                c->shape.batch, c->shape.row_bytes, c->shape.group, c->miss);
}

static int same_shape(const bench_shape *a, const bench_shape *b) {
    return a->batch == b->batch && a->row_bytes == b->row_bytes && a->group == b->group;
}

static int run_case(path_bench *b, int number) {
    const bench_case *c = &b->cases.item[number];
    double started_us = bench_now_us();
    uint64_t wrong;
    int code = TOOL_OK;
    show_progress(c, number, b->cases.n);
    if (number == 0 || !same_shape(&c->shape, &c[-1].shape)) {
        bench_path_close_shape(&b->state);
        code = bench_path_open_shape(&b->state, &c->shape);
    }
    if (code == TOOL_OK)
        code = bench_path_run(&b->state, c, &b->times[number], &wrong);
    if (code != TOOL_OK || isnan(b->times[number].us[PATH_RESIDENT])) /* interrupted before there was anything */
        return code;
    code = report(b, number, wrong, (bench_now_us() - started_us) * 1e-6);
    if (code == TOOL_OK && wrong > 0)
        code = tool_fail(TOOL_DIFFERS, "batch %d, %d-byte rows, groups of %d, %g%% misses: %llu rows are wrong",
                         c->shape.batch, c->shape.row_bytes, c->shape.group, c->miss, (unsigned long long)wrong);
    return code;
}

static int run(path_bench *b) {
    int code = bench_path_open(&b->state);
    if (code == TOOL_OK)
        describe(b);
    for (int i = 0; code == TOOL_OK && !tool_interrupted && i < b->cases.n; i++)
        code = run_case(b, i);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    bench_path_close(&b->state);
    return code;
}

/* Rows that were made before a failure are printed. */
static int finish(const path_bench *b, emit_file *file, int code) {
    if (code != TOOL_OK && b->table->n_rows == 0) {
        emit_discard(file);
        return code;
    }
    emit_print(b->table, form_of(&b->state.o->bench), file->stream);
    int written = emit_commit(file);
    return code != TOOL_OK ? code : written;
}

static int check_options(const path_options *o, bench_cases *cases_out) {
    int own_memory, code = TOOL_OK;
    if (o->bench.json && o->bench.csv)
        return tool_fail(TOOL_BAD_INPUT, "bench decode-path: --json or --csv, not both");
    if (o->model_anchors > o->model_layers)
        return tool_fail(TOOL_BAD_INPUT, "--model-anchors is %lld; a model of %lld layers has no more than that",
                         (long long)o->model_anchors, (long long)o->model_layers);
    code = bench_path_cases(o, cases_out);
    return code == TOOL_OK ? tool_check_backend(o->bench.backend, &own_memory) : code;
}

int bench_decode_path(int argc, char **argv) {
    char command[1024];
    path_options o = {
        .bench = {.backend = "cuda", .policy = "lru", .k = 2048, .slots = 4096, .threads = 1, .seconds = 1},
        .attention_us = 60,
        .other_us = 200,
        .model_layers = 78,
        .model_anchors = 21};
    emit_file file;
    emit_table table = {
        .what = "decode-path", .command = command, .note = "", .column = columns, .n_columns = N_COLUMNS};
    path_bench b = {.state = {.o = &o, .s = {.o = &o.bench}}, .table = &table, .file = &file};
    tool_command_text(argc, argv, command, sizeof command);
    tool_options(options,
                 "What the layers of a token cost on a GPU with a cache in them, beyond what they cost with every row "
                 "resident: waiting for rows, with followers' rows prefetched, and without any bytes (the oracle).",
                 argc, argv, &o);
    int code = check_options(&o, &b.cases);
    if (code == TOOL_OK)
        code = emit_open(&file, o.bench.output);
    if (code == TOOL_OK) {
        b.times = calloc((size_t)b.cases.n + 1, sizeof *b.times);
        tool_watch_interrupt();
        code = finish(&b, &file, b.times ? run(&b) : tool_fail(TOOL_FAILED, "out of memory"));
    }
    emit_free(&table);
    free(b.times);
    free(b.cases.item);
    return code == TOOL_OK && tool_interrupted ? TOOL_STOPPED : code;
}
