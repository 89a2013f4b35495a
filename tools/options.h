/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a subcommand as a table: one row an option, its bounds, and where its value goes. argp does the rest. */
#ifndef HISPARSE_OPTIONS_H
#define HISPARSE_OPTIONS_H

#include <stddef.h>

typedef struct tool_reals {
    int n;
    double value[32];
} tool_reals;

typedef struct tool_words {
    int n;
    const char *word[32];
} tool_words;

/* Field that an option sets: int64_t, double, const char *, const char * (the file to write, -o too), int (set to 1),
 * tool_reals, tool_words. The last is not an option but the words between them, files for example: `argument` names
 * them, name is not shown. */
enum tool_kind { TOOL_INT, TOOL_REAL, TOOL_TEXT, TOOL_OUTPUT, TOOL_FLAG, TOOL_REALS, TOOL_WORDS };

typedef struct tool_option {
    const char *name; /* NULL ends the table */
    enum tool_kind kind;
    size_t offset; /* of the field in the struct of values */
    double least, most;
    const char *argument; /* its name in the help */
    const char *help;
} tool_option;

/* Parse argv into *values, whose fields hold the defaults. Leaves the program on --help (0) and on bad options (2). */
void tool_options(const tool_option *table, const char *about, int argc, char **argv, void *values);

/* The command as it was typed, to be shown with results; quoted for a shell where needed. */
void tool_command_text(int argc, char **argv, char *text_out, size_t bytes);

#endif
