/* SPDX-License-Identifier: Apache-2.0 */
#include "emit.h"

#include "hisparse.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef HISPARSE_COMMIT
#define HISPARSE_COMMIT "unknown"
#endif

int emit_row(emit_table *table, const emit_cell *cells) {
    size_t n = (size_t)table->n_columns, used = (size_t)table->n_rows * n;
    emit_cell *grown = realloc(table->cell, (used + n) * sizeof *grown);
    if (!grown)
        return -1;
    memcpy(grown + used, cells, n * sizeof *cells);
    table->cell = grown;
    table->n_rows++;
    return 0;
}

void emit_free(emit_table *table) {
    free(table->cell);
    table->cell = NULL;
    table->n_rows = 0;
}

/* ------------------------------------------------------------------------------------------------ circumstances -- */

static void cpu_model(char *text, size_t bytes) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    snprintf(text, bytes, "unknown");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            line[strcspn(line, "\n")] = 0;
            snprintf(text, bytes, "%s", strchr(line, ':') + 2);
            break;
        }
    if (file)
        fclose(file);
}

static void today(char *text, size_t bytes) {
    time_t now = time(NULL);
    struct tm utc;
    strftime(text, bytes, "%Y-%m-%d", gmtime_r(&now, &utc));
}

static const char *compiler(void) {
#if defined(__clang__)
    return __VERSION__; /* begins with its name */
#else
    return "gcc " __VERSION__;
#endif
}

/* -------------------------------------------------------------------------------------------------------- forms -- */

/* "resolve" in "us" is resolve_us; "rate" in "GB/s" is rate_gb_s. */
static void column_key(const emit_column *column, char *key, size_t bytes) {
    snprintf(key, bytes, "%s%s%s", column->name, *column->unit ? "_" : "",
             strcmp(column->unit, "%") == 0 ? "percent" : column->unit);
    for (; *key; key++)
        *key = isalnum((unsigned char)*key) ? (char)tolower((unsigned char)*key) : '_';
}

static void cell_text(const emit_column *column, const emit_cell *cell, const char *none, char *text, size_t bytes) {
    if (column->decimals == EMIT_WORD)
        snprintf(text, bytes, "%s", cell->word);
    else if (isnan(cell->number))
        snprintf(text, bytes, "%s", none);
    else
        snprintf(text, bytes, "%.*f", column->decimals, cell->number);
}

static json_t *cell_json(const emit_column *column, const emit_cell *cell) {
    if (column->decimals == EMIT_WORD)
        return json_string(cell->word);
    if (isnan(cell->number))
        return json_null();
    return column->decimals ? json_real(cell->number) : json_integer((json_int_t)llround(cell->number));
}

static void print_json(const emit_table *table, FILE *to) {
    char model[256], date[16], key[64];
    cpu_model(model, sizeof model);
    today(date, sizeof date);
    json_t *rows = json_array();
    for (int r = 0; r < table->n_rows; r++) {
        json_t *row = json_object();
        for (int c = 0; c < table->n_columns; c++) {
            column_key(&table->column[c], key, sizeof key);
            json_object_set_new(row, key, cell_json(&table->column[c], &table->cell[r * table->n_columns + c]));
        }
        json_array_append_new(rows, row);
    }
    json_t *all = json_pack("{s:s, s:s, s:s, s:{s:s, s:I, s:s}, s:s, s:s, s:s, s:o}", "what", table->what, "command",
                            table->command, "version", hsp_version(), "machine", "cpu", model, "cores",
                            (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "compiler", compiler(), "commit",
                            HISPARSE_COMMIT, "date", date, "note", table->note, "rows", rows);
    if (all)
        json_dumpf(all, to, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    fputc('\n', to);
    json_decref(all);
}

static void print_csv(const emit_table *table, FILE *to) {
    char text[256];
    for (int r = -1; r < table->n_rows; r++)
        for (int c = 0; c < table->n_columns; c++) {
            if (r < 0)
                column_key(&table->column[c], text, sizeof text);
            else
                cell_text(&table->column[c], &table->cell[r * table->n_columns + c], "", text, sizeof text);
            fprintf(to, "%s%c", text, c + 1 < table->n_columns ? ',' : '\n');
        }
}

static void print_text(const emit_table *table, FILE *to) {
    char model[256], date[16], text[256];
    cpu_model(model, sizeof model);
    today(date, sizeof date);
    fprintf(to, "%s\nhisparse %s, commit %s, %s; %s, %ld cores; %s\n", table->command, hsp_version(), HISPARSE_COMMIT,
            date, model, sysconf(_SC_NPROCESSORS_ONLN), compiler());
    if (*table->note)
        fprintf(to, "%s\n", table->note);
    for (int r = -2; r < table->n_rows; r++) {
        for (int c = 0; c < table->n_columns; c++) {
            const emit_column *column = &table->column[c];
            int width = column->decimals == EMIT_WORD ? 12 : 9;
            if (r < 0)
                snprintf(text, sizeof text, "%s", r == -2 ? column->name : column->unit);
            else
                cell_text(column, &table->cell[r * table->n_columns + c], "-", text, sizeof text);
            fprintf(to, "%s%*s", c ? " " : "", (int)strlen(column->name) > width ? (int)strlen(column->name) : width,
                    text);
        }
        fputc('\n', to);
    }
}

void emit_print(const emit_table *table, enum emit_form form, FILE *to) {
    switch (form) {
    case EMIT_JSON:
        print_json(table, to);
        break;
    case EMIT_CSV:
        print_csv(table, to);
        break;
    default:
        print_text(table, to);
        break;
    }
}
