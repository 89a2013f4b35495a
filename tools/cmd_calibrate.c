/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse calibrate`: measure what bounds the cache on this machine, and choose the knobs that depend on it. */
#include "calibrate.h"
#include "gpu.h"
#include "options.h"
#include "tools.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

typedef struct calibrate_options {
    const char *output;
    int64_t span_gib;
    int quick, json;
} calibrate_options;

static const tool_option options[] = {
    {"output", TOOL_OUTPUT, offsetof(calibrate_options, output), 0, 0, "FILE",
     "write the profile, which hsp_config_profile reads, to FILE, whole or not at all"},
    {"quick", TOOL_FLAG, offsetof(calibrate_options, quick), 0, 0, NULL, "fewer rounds, and 4 GiB of host memory"},
    {"span-gib", TOOL_INT, offsetof(calibrate_options, span_gib), 1, 64, "N",
     "take N GiB of host memory, whatever is free (16, or half of it or less where less is free)"},
    {"json", TOOL_FLAG, offsetof(calibrate_options, json), 0, 0, NULL, "print the profile instead of a table"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

static const emit_column columns[] = {
    {"what", "", EMIT_WORD}, {"rows", "", 0},     {"row", "bytes", 0},  {"stride", "bytes", 0},
    {"span", "MiB", 0},      {"blocks", "", 0},   {"pieces", "", 0},    {"time", "us", 2},
    {"swept", "us", 2},      {"rate", "GB/s", 2}, {"swept", "GB/s", 2},
};

int calibrate_add(calibrate *c, const calibrate_row *row) {
    const emit_cell cells[] = {{.word = row->what},           {.number = row->rows},      {.number = row->row_bytes},
                               {.number = row->stride_bytes}, {.number = row->span_mib},  {.number = row->blocks},
                               {.number = row->pieces},       {.number = row->time_us},   {.number = row->swept_us},
                               {.number = row->rate_gb_s},    {.number = row->swept_gb_s}};
    return emit_row(&c->table, cells) == 0 ? TOOL_OK : tool_fail(TOOL_FAILED, "out of memory");
}

int calibrate_check(const calibrate *c, int status, const char *what) {
    return status == 0 ? TOOL_OK : tool_fail(TOOL_FAILED, "calibrate: %s: %s", what, c->memory->error());
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void progress(const char *what) {
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s%s", what, *what ? " ..." : "");
}

static void forget(calibrate_results *results) {
    calibrate_results none = {.launch_us = NAN,
                              .device_copy_gb_s = NAN,
                              .engine_to_device_gb_s = NAN,
                              .engine_to_host_gb_s = NAN,
                              .kernel_to_device_gb_s = NAN,
                              .kernel_to_host_gb_s = NAN,
                              .granule_kib = NAN,
                              .reach_mib = NAN,
                              .reach_swept_mib = NAN,
                              .walks_per_us = NAN,
                              .walks_swept_per_us = NAN,
                              .seconds = NAN};
    *results = none;
}

/* ---------------------------------------------------------------------------------------------------- measuring -- */

static const struct {
    const char *name;
    int (*function)(calibrate *c);
} measurements[] = {
    {"copies", calibrate_copies},       {"blocks and pieces", calibrate_grid},
    {"reads", calibrate_reads},         {"writes", calibrate_writes},
    {"alignment", calibrate_aligned},   {"one request", calibrate_request},
    {"translation", calibrate_touches}, {"walks", calibrate_walks},
    {"reach", calibrate_reach},
};

static int measure(calibrate *c, const calibrate_options *o) {
    double start = now_seconds();
    progress("host memory");
    int code = calibrate_open_pool(c, o->span_gib, o->quick ? 4 : 16);
    if (code == TOOL_OK)
        code = calibrate_check(c, c->gpu->open(&c->device), "the GPU");
    for (size_t i = 0; i < sizeof measurements / sizeof measurements[0] && code == TOOL_OK && !tool_interrupted; i++) {
        progress(measurements[i].name);
        code = measurements[i].function(c);
    }
    progress("");
    c->results.seconds = now_seconds() - start;
    if (c->device)
        c->gpu->close(c->device);
    calibrate_close_pool(c);
    return code;
}

/* -------------------------------------------------------------------------------------------------------- saying -- */

static void print_number(const char *name, double value, const char *unit, const char *missing) {
    if (isfinite(value))
        printf("  %-34s %.4g%s\n", name, value, unit);
    else
        printf("  %-34s %s\n", name, missing);
}

static void print_conclusions(const calibrate *c, const calibrate_choice *choice) {
    const calibrate_results *r = &c->results;
    printf("\nTranslation of host addresses\n");
    print_number("granule", r->granule_kib, " KiB", "does not show");
    print_number("reach", r->reach_mib, " MiB", "does not show");
    print_number("reach, L2 swept", r->reach_swept_mib, " MiB", "does not show");
    print_number("walks a us", r->walks_per_us, "", "does not show");
    print_number("walks a us, L2 swept", r->walks_swept_per_us, "", "does not show");
    printf("\nChosen\n  host_row_align %d, request_blocks %d, fetch_blocks %d, pieces_in_flight %d\n",
           choice->host_row_align, choice->request_blocks, choice->fetch_blocks, choice->pieces_in_flight);
    printf("\n%.0f s, %d GiB of host memory\n", r->seconds, (int)(c->pool_bytes >> 30));
}

/* To the file and to standard output. After Ctrl-C only the table of what was measured: there is nothing to choose by.
 */
static int say(const calibrate *c, const calibrate_options *o, emit_file *file) {
    calibrate_choice choice;
    int code = TOOL_OK;
    if (tool_interrupted) {
        emit_print(&c->table, o->json ? EMIT_JSON : EMIT_TEXT, stdout);
        return TOOL_STOPPED;
    }
    calibrate_choose(&c->results, &choice);
    if (o->output)
        code = calibrate_print_profile(c, &choice, file->stream);
    if (code == TOOL_OK && o->json)
        return calibrate_print_profile(c, &choice, stdout);
    if (code != TOOL_OK)
        return code;
    emit_print(&c->table, EMIT_TEXT, stdout);
    print_conclusions(c, &choice);
    return TOOL_OK;
}

static int find_gpu(calibrate *c) {
    char name[128];
    c->memory = gpu_table(GPU_MEMORY);
    c->gpu = c->memory ? gpu_table(GPU_CALIBRATE) : NULL;
    if (!c->gpu)
        return TOOL_BAD_INPUT;
    if (c->memory->device_name(name, sizeof name) != 0)
        return tool_fail(TOOL_BAD_INPUT, "calibrate: there is no GPU to measure: %s", c->memory->error());
    snprintf(c->note, sizeof c->note,
             "%s; medians of %d rounds or more; swept: the L2 was filled with other memory before", name, c->rounds);
    return TOOL_OK;
}

int cmd_calibrate(int argc, char **argv) {
    calibrate_options o = {0};
    emit_file file;
    calibrate c = {.seed = 1, .best_blocks = 16, .best_pieces = 4};
    tool_command_text(argc, argv, c.command, sizeof c.command);
    tool_options(options,
                 "What bounds the cache on this machine: launches, copies, rows of host memory read and written by "
                 "kernels, translation of host addresses; and the knobs that follow. Nothing else should use the GPU.",
                 argc, argv, &o);
    c.rounds = o.quick ? 3 : 7;
    c.table = (emit_table){.what = "calibrate",
                           .command = c.command,
                           .note = c.note,
                           .column = columns,
                           .n_columns = sizeof columns / sizeof columns[0]};
    forget(&c.results);
    int code = find_gpu(&c);
    if (code == TOOL_OK)
        code = emit_open(&file, o.output);
    if (code != TOOL_OK)
        return code;
    tool_watch_interrupt();
    code = measure(&c, &o);
    if (code == TOOL_OK)
        code = say(&c, &o, &file);
    emit_free(&c.table);
    if (code == TOOL_OK)
        return emit_commit(&file);
    emit_discard(&file);
    return code;
}
