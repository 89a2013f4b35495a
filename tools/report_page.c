/* SPDX-License-Identifier: Apache-2.0 */
/* HTML: head, headings, tables, and text that is harmless whatever was in the file. */
#include "report.h"

#include "hisparse.h"
#include "report_css.h"
#include "unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What stands for a byte in HTML, NULL for itself. */
static const char *escaped(char byte) {
    switch (byte) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    default: /* control characters are not allowed in HTML */
        return (unsigned char)byte < ' ' ? " " : NULL;
    }
}

/* A label that was cut may end inside a character. */
void report_escape(FILE *to, const char *text) {
    uint32_t code;
    for (size_t left = strlen(text), length; left > 0; text += length, left -= length) {
        length = unicode_decode(text, left, &code);
        const char *instead = code == UNICODE_INVALID ? "\xef\xbf\xbd" : escaped(*text);
        if (instead)
            fputs(instead, to);
        else
            fwrite(text, 1, length, to);
    }
}

const char *report_real(double number, char *text_out) {
    if (isnan(number))
        return "-";
    if (number == floor(number) && fabs(number) < 1e15) {
        snprintf(text_out, REPORT_NUMBER_BYTES, "%.0f", number);
        return text_out;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text_out, REPORT_NUMBER_BYTES, "%.*g", digits, number);
        if (strtod(text_out, NULL) == number)
            break;
    }
    return text_out;
}

double report_number(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *value_text(const json_t *value, char *text_out) {
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_boolean(value))
        return json_is_true(value) ? "true" : "false";
    if (json_is_real(value))
        return report_real(json_real_value(value), text_out);
    if (!json_is_integer(value))
        return "-";
    snprintf(text_out, REPORT_NUMBER_BYTES, "%lld", (long long)json_integer_value(value));
    return text_out;
}

const char *report_cell(const json_t *row, const char *key, char *text_out) {
    return value_text(json_object_get(row, key), text_out);
}

/* ------------------------------------------------------------------------------------------------------- tables -- */

static void begin_table(report_page *p, const char *caption) {
    fprintf(p->to, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
    report_escape(p->to, caption);
    fprintf(p->to, "\">\n<table id=\"table%d\"><caption>", p->n_tables++);
    report_escape(p->to, caption);
    fprintf(p->to, "</caption>\n");
}

static void end_table(report_page *p) {
    fprintf(p->to, "</tbody></table></div>\n");
}

static void cell(report_page *p, const json_t *value) {
    char text[REPORT_NUMBER_BYTES];
    fputs(json_is_string(value) ? "<td class=\"word\">" : "<td>", p->to);
    report_escape(p->to, value_text(value, text));
    fputs("</td>", p->to);
}

static void head(report_page *p, const char *scope, const char *key) {
    fprintf(p->to, "<th scope=\"%s\">", scope);
    report_escape(p->to, key);
    fprintf(p->to, "</th>");
}

/* Keys of an object, ending with NULL; to be freed. */
static const char **keys_of(const json_t *row) {
    const char **keys = calloc(json_object_size(row) + 1, sizeof *keys), *key;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)row, key, value) if (keys) keys[n++] = key;
    return keys;
}

void report_table(report_page *p, const char *caption, const json_t *rows, const char *const *keys) {
    const char **all = keys ? NULL : keys_of(json_array_get(rows, 0));
    const char *const *use = keys ? keys : all;
    begin_table(p, caption);
    fprintf(p->to, "<thead><tr>");
    for (int i = 0; use && use[i]; i++)
        head(p, "col", use[i]);
    fprintf(p->to, "</tr></thead>\n<tbody>");
    for (size_t r = 0; r < json_array_size(rows); r++) {
        fprintf(p->to, "\n<tr>");
        for (int i = 0; use && use[i]; i++)
            cell(p, json_object_get(json_array_get(rows, r), use[i]));
        fprintf(p->to, "</tr>");
    }
    end_table(p);
    free(all);
}

void report_members(report_page *p, const char *caption, const json_t *whole) {
    const char *key;
    json_t *value;
    begin_table(p, caption);
    fprintf(p->to, "<tbody>");
    json_object_foreach((json_t *)whole, key, value) {
        if (json_is_object(value) || json_is_array(value))
            continue;
        fprintf(p->to, "\n<tr>");
        head(p, "row", key);
        cell(p, value);
        fprintf(p->to, "</tr>");
    }
    end_table(p);
}

/* --------------------------------------------------------------------------------------------------------- rows -- */

json_t *report_distinct(const json_t *rows, const char *key) {
    json_t *values = json_array();
    for (size_t r = 0; r < json_array_size(rows); r++) {
        json_t *value = json_object_get(json_array_get(rows, r), key);
        size_t i = 0;
        while (value && i < json_array_size(values) && !json_equal(json_array_get(values, i), value))
            i++;
        if (value && i == json_array_size(values))
            json_array_append(values, value);
    }
    return values;
}

json_t *report_where(const json_t *rows, const char *key, const json_t *value) {
    json_t *some = json_array();
    for (size_t r = 0; r < json_array_size(rows); r++) {
        json_t *row = json_array_get(rows, r), *have = json_object_get(row, key);
        if (value ? json_equal(have, value) : have && !json_is_null(have))
            json_array_append(some, row);
    }
    return some;
}

/* --------------------------------------------------------------------------------------------------------- page -- */

void report_begin(report_page *p) {
    fprintf(p->to,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            "<meta name=\"viewport\" content=\"width=device-width\">\n<title>hisparse report</title>\n"
            "<style>\n%s</style>\n</head>\n<body>\n<main>\n<h1>hisparse report</h1>\n"
            "<p>Made by hisparse %s. Numbers are those of the files. Values show under the pointer and, with Tab, at "
            "the focus.</p>\n",
            report_css, hsp_version());
}

static const json_t *about(const report_result *r, const char *key) {
    const json_t *value = json_object_get(r->whole, key);
    return value ? value : json_object_get(r->outer, key);
}

static void about_line(report_page *p, const char *name, const json_t *value) {
    char text[REPORT_NUMBER_BYTES];
    if (!json_is_string(value) && !json_is_number(value))
        return;
    fprintf(p->to, "<dt>%s</dt><dd>", name);
    report_escape(p->to, value_text(value, text));
    fprintf(p->to, "</dd>\n");
}

void report_section(report_page *p, int number, const report_result *r) {
    static const char *const keys[] = {"command", "version", "commit", "date", "note"};
    const json_t *machine = about(r, "machine");
    fprintf(p->to, "<h2 id=\"result%d\">%s: ", number, r->kind->name);
    report_escape(p->to, r->file);
    fputs(*r->part ? ", " : "", p->to);
    report_escape(p->to, r->part);
    fprintf(p->to, "</h2>\n<dl>\n");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        about_line(p, keys[i], about(r, keys[i]));
    about_line(p, "machine", json_is_object(machine) ? json_object_get(machine, "cpu") : machine);
    about_line(p, "cores", json_object_get(machine, "cores"));
    about_line(p, "compiler", json_object_get(machine, "compiler"));
    fprintf(p->to, "</dl>\n");
}

void report_end(report_page *p) {
    fprintf(p->to, "</main>\n</body>\n</html>\n");
}
