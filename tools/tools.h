/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands of `hisparse` share: their table, exit codes, and the way errors are said. */
#ifndef HISPARSE_TOOLS_H
#define HISPARSE_TOOLS_H

/* Exit codes of every subcommand. */
enum {
    TOOL_OK = 0,
    TOOL_DIFFERS = 1,   /* a verification found a difference */
    TOOL_BAD_INPUT = 2, /* options, files or values; nothing was half-written */
    TOOL_FAILED = 3,    /* the machine: memory, disk, a closed pipe */
    TOOL_STOPPED = 130  /* Ctrl-C; what was done so far has been printed */
};

/* "hisparse: " and the message to standard error; returns `code`. */
int tool_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Say that `word` is none of the n names: the one it is a misspelling of, or else all of them; returns the code.
 * kind: "command"; help: the command that shows more. */
int tool_unknown(const char *kind, const char *word, const char *const *names, int n, const char *help);

/* TOOL_OK, or the code after saying that there is no such backend (and which there are) or why it cannot run here.
 * own_memory_out: 1 when it must not be given ordinary pointers; NULL for a command that has no others to give, which
 * is then said. */
int tool_check_backend(const char *name, int *own_memory_out);

/* Set by Ctrl-C after tool_watch_interrupt; long loops look at it between steps and finish what they print. */
extern volatile int tool_interrupted;
void tool_watch_interrupt(void);

int cmd_run(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_sweep(int argc, char **argv);
int cmd_report(int argc, char **argv);

#endif
