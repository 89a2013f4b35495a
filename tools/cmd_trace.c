/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse trace`: a table of what can be done with traces. */
#include "tools.h"
#include "trace_tools.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*function)(int argc, char **argv);
    const char *help;
} actions[] = {
    {"record", trace_record, "decode a text with a model and record what its layers select"},
    {"import", trace_import, "make a trace of selections saved by numpy (.npy, .npz)"},
    {"info", trace_info, "what is in a trace, and how much neighbouring steps share"},
    {"cut", trace_cut, "some steps, layers and requests of a trace as a new one"},
    {"synth", trace_synth, "make a trace without a model, as local as one that was measured"},
};
enum { N_ACTIONS = sizeof actions / sizeof actions[0] };

static int print_help(void) {
    printf("Usage: hisparse trace ACTION [OPTION...]\n\nActions:\n");
    for (int i = 0; i < N_ACTIONS; i++)
        printf("  %-7s %s\n", actions[i].name, actions[i].help);
    printf("\n`hisparse trace ACTION --help` lists the options of an action; docs/trace-format.md is the format.\n");
    return TOOL_OK;
}

static int unknown(const char *word) {
    const char *names[N_ACTIONS];
    for (int i = 0; i < N_ACTIONS; i++)
        names[i] = actions[i].name;
    return tool_unknown("action", word, names, N_ACTIONS, "hisparse trace --help");
}

int cmd_trace(int argc, char **argv) {
    if (argc < 2)
        return tool_fail(TOOL_BAD_INPUT, "what to do with a trace? try hisparse trace --help");
    if (strcmp(argv[1], "--help") == 0)
        return print_help();
    for (int i = 0; i < N_ACTIONS; i++)
        if (strcmp(argv[1], actions[i].name) == 0) {
            char name[48];
            snprintf(name, sizeof name, "hisparse trace %s", actions[i].name);
            argv[1] = name;
            return actions[i].function(argc - 1, argv + 1);
        }
    return unknown(argv[1]);
}
