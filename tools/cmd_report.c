/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse report`: files of results in, one page out. */
#include "emit.h"
#include "options.h"
#include "report.h"
#include "tools.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_BYTES = 64 << 20, MOST_FILES = (int)(sizeof((tool_words *)0)->word / sizeof(char *)), MOST_RESULTS = 256 };

typedef struct report_options {
    tool_words files;
    const char *output;
} report_options;

static const tool_option options[] = {
    {"files", TOOL_WORDS, offsetof(report_options, files), 0, 0, "RESULT.json...", NULL},
    {"output", TOOL_OUTPUT, offsetof(report_options, output), 0, 0, "FILE",
     "write the page to FILE, whole or not at all (standard output)"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

typedef struct report {
    json_t *file[MOST_FILES];
    report_result result[MOST_RESULTS];
    int n_results;
} report;

static json_t *load(const char *path) {
    struct stat status;
    json_error_t error;
    if (stat(path, &status) != 0)
        return tool_fail(TOOL_BAD_INPUT, "'%s': %s", path, strerror(errno)), NULL;
    if (!S_ISREG(status.st_mode) || status.st_size > MOST_BYTES)
        return tool_fail(TOOL_BAD_INPUT, "'%s' is no regular file of at most %d MiB", path, MOST_BYTES >> 20), NULL;
    json_t *whole = json_load_file(path, 0, &error);
    if (!whole)
        tool_fail(TOOL_BAD_INPUT, "'%s', line %d: %s", path, error.line, error.text);
    return whole;
}

/* Take an object if it is a result; -1 when there are too many. */
static int take(report *r, const report_result *found, char *why_out, size_t bytes) {
    const report_kind *kind = report_kind_of(found->whole, why_out, bytes);
    if (!kind)
        return 0;
    if (r->n_results == MOST_RESULTS)
        return tool_fail(TOOL_BAD_INPUT, "'%s' has more results than %d", found->file, MOST_RESULTS), -1;
    r->result[r->n_results] = *found;
    r->result[r->n_results++].kind = kind;
    return 1;
}

/* A part of a file: a result, a list of them, or an object with one in `result`. -1 when there are too many. */
static int take_part(report *r, const report_result *part, char *why_out, size_t bytes) {
    const json_t *inner = json_object_get(part->whole, "result");
    report_result found = *part;
    size_t n = json_array_size(part->whole);
    if (inner) {
        found.whole = inner;
        found.outer = part->whole;
    }
    int taken = take(r, &found, why_out, bytes);
    for (size_t i = 0; i < n && taken >= 0; i++) {
        found.whole = json_array_get(part->whole, i);
        taken = take(r, &found, why_out, bytes);
    }
    return taken;
}

/* The parts of a file that was put together of several results. What is none is named on the page. */
static int take_parts(report *r, const char *path, const json_t *whole, char *why_out, size_t bytes) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)whole, key, value) {
        const report_result part = {path, key, value, whole, NULL};
        if (take_part(r, &part, why_out, bytes) < 0)
            return TOOL_BAD_INPUT;
    }
    return TOOL_OK;
}

static int take_file(report *r, const char *path, const json_t *whole) {
    char why[256] = "", names[256];
    const report_result found = {path, "", whole, whole, NULL};
    int before = r->n_results, taken = take(r, &found, why, sizeof why);
    if (taken == 0 && !*why && take_parts(r, path, whole, why, sizeof why) != TOOL_OK)
        return TOOL_BAD_INPUT;
    if (taken < 0 || r->n_results > before)
        return taken < 0 ? TOOL_BAD_INPUT : TOOL_OK;
    if (*why)
        return tool_fail(TOOL_BAD_INPUT, "'%s' has %s", path, why);
    report_kinds(names, sizeof names);
    return tool_fail(TOOL_BAD_INPUT, "'%s' is no result that can be drawn; those are the JSON of %s", path, names);
}

static int read_files(report *r, const tool_words *files) {
    if (files->n == 0)
        return tool_fail(TOOL_BAD_INPUT, "which results? hisparse sweep --json makes one; try hisparse report --help");
    for (int i = 0; i < files->n; i++) {
        r->file[i] = load(files->word[i]);
        if (!r->file[i] || take_file(r, files->word[i], r->file[i]) != TOOL_OK)
            return TOOL_BAD_INPUT;
    }
    return TOOL_OK;
}

/* What was found, each with a way to it. */
static void write_contents(report_page *p, const report *r) {
    fprintf(p->to, "<nav aria-label=\"Results\"><ol>\n");
    for (int i = 0; i < r->n_results; i++) {
        fprintf(p->to, "<li><a href=\"#result%d\">%s: ", i, r->result[i].kind->name);
        report_escape(p->to, r->result[i].file);
        fputs(*r->result[i].part ? ", " : "", p->to);
        report_escape(p->to, r->result[i].part);
        fprintf(p->to, "</a></li>\n");
    }
    fprintf(p->to, "</ol></nav>\n");
}

/* Members of a file that look like results and are none that is drawn. */
static void write_left_out(report_page *p, const report *r, const char *path, const json_t *whole) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)whole, key, value) {
        int taken = !json_is_array(value) && !json_is_object(json_object_get(value, "result")) &&
                    !json_object_get(value, "rows");
        for (int i = 0; i < r->n_results && !taken; i++)
            taken =
                strcmp(r->result[i].file, path) == 0 && (!*r->result[i].part || strcmp(r->result[i].part, key) == 0);
        if (taken)
            continue;
        fprintf(p->to, "<p>Not drawn: ");
        report_escape(p->to, path);
        fputs(", ", p->to);
        report_escape(p->to, key);
        fprintf(p->to, "</p>\n");
    }
}

static void write_page(const report *r, const tool_words *files, FILE *to) {
    report_page page = {to, 0};
    report_begin(&page);
    write_contents(&page, r);
    for (int i = 0; i < files->n; i++)
        write_left_out(&page, r, files->word[i], r->file[i]);
    for (int i = 0; i < r->n_results; i++) {
        report_section(&page, i, &r->result[i]);
        r->result[i].kind->draw(&page, r->result[i].whole);
    }
    report_end(&page);
}

int cmd_report(int argc, char **argv) {
    static report r;
    report_options o = {{0}, NULL};
    emit_file file;
    tool_options(options,
                 "One page of charts and tables made of results, which other commands write with --json. It needs no "
                 "network and no script.",
                 argc, argv, &o);
    int code = read_files(&r, &o.files);
    if (code == TOOL_OK)
        code = emit_open(&file, o.output);
    if (code == TOOL_OK) {
        write_page(&r, &o.files, file.stream);
        code = emit_commit(&file);
    }
    for (int i = 0; i < MOST_FILES; i++)
        json_decref(r.file[i]);
    return code;
}
