/* SPDX-License-Identifier: Apache-2.0 */
/* One table of results, printed as aligned text, CSV or JSON; with it what is needed to repeat and to judge it. */
#ifndef HISPARSE_EMIT_H
#define HISPARSE_EMIT_H

#include <stdio.h>

enum emit_form { EMIT_TEXT, EMIT_JSON, EMIT_CSV };

typedef struct emit_column {
    const char *name;
    const char *unit; /* "" for none. JSON and CSV call the column name_unit: "resolve_us" */
    int decimals;     /* EMIT_WORD: cells are texts */
} emit_column;
enum { EMIT_WORD = -1 };

/* A number, or a text that lives as long as the table. NAN: no value ("-", null, empty). */
typedef struct emit_cell {
    double number;
    const char *word;
} emit_cell;

typedef struct emit_table {
    const char *what;    /* "swap-in" */
    const char *command; /* that repeats it */
    const char *note;    /* one sentence on what the numbers mean; "" for none */
    const emit_column *column;
    int n_columns, n_rows;
    emit_cell *cell; /* [n_rows][n_columns] */
} emit_table;

/* Append a row of n_columns cells; -1 without memory. */
int emit_row(emit_table *table, const emit_cell *cells);
void emit_free(emit_table *table);
void emit_print(const emit_table *table, enum emit_form form, FILE *to);

/* A result file that is there whole or not at all: written beside `path` and renamed by emit_commit; a device is
 * written as it is. path NULL: standard output. Both return an exit code after saying what failed. emit_discard leaves
 * no trace. */
typedef struct emit_file {
    FILE *stream;
    const char *path;
    char temporary[4096];
} emit_file;
int emit_open(emit_file *file, const char *path);
int emit_commit(emit_file *file);
void emit_discard(emit_file *file);

#endif
