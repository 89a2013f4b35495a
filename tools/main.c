/* SPDX-License-Identifier: Apache-2.0 */
/* The `hisparse` command: a table of subcommands, and what they share. */
#include "hisparse.h"
#include "tools.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    int (*function)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
    {"run", cmd_run, "generate text with a model whose KV rows live in the cache"},
    {"score", cmd_score, "bits per byte of a text, its tokens decoded one after the other"},
    {"info", cmd_info, "what this build is and can do, and every knob"},
    {"verify", cmd_verify, "run random operations on two backends and compare everything"},
    {"bench", cmd_bench, "measure swap-in beside a plain copy of the same rows"},
    {"calibrate", cmd_calibrate, "measure the GPU and its host memory, and choose knobs for them"},
    {"plan", cmd_plan, "how many requests of a model fit a machine, how fast, and whether the cache is worth it"},
    {"trace", cmd_trace, "record, import, make, cut and look at traces of selections"},
    {"sweep", cmd_sweep, "misses of every policy and number of slots over traces, and which to take"},
    {"report", cmd_report, "a page of charts and tables made of the JSON of other commands"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* ------------------------------------------------------------------------------------------------------- shared -- */

int tool_fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout); /* what was printed before the error comes before it */
    fputs("hisparse: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}

volatile int tool_interrupted;

static void interrupted(int signal_number) {
    (void)signal_number;
    tool_interrupted = 1;
}

void tool_watch_interrupt(void) {
    /* The default action comes back with the first signal, so a second one ends a program that does not listen. */
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

/* Runs at every exit, those inside argp too: a full disk or a closed pipe shows only when the last buffer is written.
 */
static void close_output(void) {
    int earlier = ferror(stdout);
    errno = 0;
    if (fclose(stdout) == 0 && !earlier)
        return;
    fprintf(stderr, "hisparse: cannot write the output%s%s\n", errno ? ": " : "", errno ? strerror(errno) : "");
    _exit(TOOL_FAILED);
}

/* ------------------------------------------------------------------------------------------------------ command -- */

static int print_help(void) {
    printf("Usage: hisparse COMMAND [OPTION...]\n\n"
           "A bounded device cache for the KV rows of top-k sparse attention.\n\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        printf("  %-9s %s\n", commands[i].name, commands[i].help);
    printf("\n`hisparse COMMAND --help` lists the options of a command.\n"
           "Exit codes: 0 done, 1 a difference was found, 2 bad options or files, 3 the machine failed, 130 Ctrl-C.\n");
    return TOOL_OK;
}

static int unknown(const char *word) {
    const char *names[N_COMMANDS];
    if (*word == '-')
        return tool_fail(TOOL_BAD_INPUT, "there is no option '%s'; try hisparse --help", word);
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    return tool_unknown("command", word, names, N_COMMANDS, "hisparse --help");
}

static int run(const command *c, int argc, char **argv) {
    char name[32]; /* argp and getopt start their messages with argv[0] */
    snprintf(name, sizeof name, "hisparse %s", c->name);
    argv[0] = name;
    return c->function(argc, argv);
}

int main(int argc, char **argv) {
    argp_err_exit_status = TOOL_BAD_INPUT;
    signal(SIGPIPE, SIG_IGN);
    atexit(close_output);
    if (argc < 2)
        return tool_fail(TOOL_BAD_INPUT, "which command? try hisparse --help");
    if (strcmp(argv[1], "--help") == 0)
        return print_help();
    if (strcmp(argv[1], "--version") == 0)
        return printf("hisparse %s\n", hsp_version()) < 0 ? TOOL_FAILED : TOOL_OK;
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return run(&commands[i], argc - 1, argv + 1);
    return unknown(argv[1]);
}
