/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse report`: a page of charts and tables made of the JSON of other commands. */
#ifndef HISPARSE_REPORT_H
#define HISPARSE_REPORT_H

#include <jansson.h>
#include <stdio.h>

typedef struct report_page {
    FILE *to;
    int n_tables; /* so far; the next one's id */
} report_page;

/* What a command left: rows, or for a command without them the whole object. Borrowed from the file. */
typedef struct report_result {
    const char *file, *part; /* part: of a file with several results; "" for one that is the result */
    const json_t *whole;     /* the object; `what`, `note`, `machine` and so on are in it or in outer */
    const json_t *outer;     /* the file's object */
    const struct report_kind *kind;
} report_result;

typedef struct report_kind {
    const char *name;     /* "sweep" */
    const char *what;     /* member `what` of its results; NULL: they have none */
    const char *needs[8]; /* members of the first row, or of an object without `what`; ends with NULL */
    void (*draw)(report_page *p, const json_t *whole);
} report_kind;

/* The kind of an object, NULL for none. why_out: what a result of a known kind lacks; untouched otherwise. */
const report_kind *report_kind_of(const json_t *whole, char *why_out, size_t bytes);
void report_kinds(char *names_out, size_t bytes); /* "sweep, plan, ..." */

/* --- the page: HTML without a script --- */
void report_begin(report_page *p);
void report_section(report_page *p, int number, const report_result *r); /* its heading and where it comes from */
void report_end(report_page *p);
void report_escape(FILE *to, const char *text); /* as text or in quotes, whatever is in it */

enum { REPORT_NUMBER_BYTES = 32 };
/* The shortest text that reads back as the same number; "-" for NAN. */
const char *report_real(double number, char *text_out);
/* Of a row: a number, NAN where there is none; the text of a number or word, "-" where there is none. */
double report_number(const json_t *row, const char *key);
const char *report_cell(const json_t *row, const char *key, char *text_out);

/* Members `keys`, ending with NULL, of all rows; keys NULL: all that the first row has. */
void report_table(report_page *p, const char *caption, const json_t *rows, const char *const *keys);
/* Numbers, words and truths of an object, one a line. */
void report_members(report_page *p, const char *caption, const json_t *whole);

/* --- rows; both make arrays of their own --- */
json_t *report_distinct(const json_t *rows, const char *key);                   /* values, each once */
json_t *report_where(const json_t *rows, const char *key, const json_t *value); /* NULL: any value but null */

/* --- charts, each with the table of its numbers --- */
typedef struct report_axes {
    const char *title, *group, *x, *y; /* keys of rows: a line for every value of `group` */
    const char *x_unit, *y_unit;       /* "slots", "% missed" */
} report_axes;
void report_lines(report_page *p, const json_t *rows, const report_axes *axes, const char *const *keys);
/* A field for every row: x across, group down, y as the strength of the colour. */
void report_heat(report_page *p, const json_t *rows, const report_axes *axes, const char *const *keys);

enum { REPORT_PARTS = 3, REPORT_LABEL = 160 };
typedef struct report_bar {
    char label[REPORT_LABEL];
    double length[REPORT_PARTS]; /* one behind the other; less than 0 and NAN are not drawn */
    double shown[REPORT_PARTS];  /* what is said of each */
} report_bar;
typedef struct report_bars {
    const char *title, *unit;
    const char *part[REPORT_PARTS]; /* NULL: fewer parts */
    int n;
    report_bar *bar;
} report_bars;
void report_draw_bars(report_page *p, const report_bars *bars, const json_t *rows, const char *const *keys);

#endif
