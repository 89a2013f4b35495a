/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse bench`: a table of benches. */
#include "bench.h"
#include "tools.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*function)(int argc, char **argv);
    const char *help;
} benches[] = {
    {"swap-in", bench_swap_in, "time of a swap-in by miss rate, beside a plain copy of the same rows"},
    {"decode-path", bench_decode_path,
     "what the layers of a token cost with a cache, beyond everything resident; on a GPU"},
};
enum { N_BENCHES = sizeof benches / sizeof benches[0] };

static int unknown(const char *word) {
    const char *names[N_BENCHES];
    for (int i = 0; i < N_BENCHES; i++)
        names[i] = benches[i].name;
    return tool_unknown("bench", word, names, N_BENCHES, "hisparse bench --help");
}

int cmd_bench(int argc, char **argv) {
    if (argc < 2)
        return tool_fail(TOOL_BAD_INPUT, "which bench? try hisparse bench --help");
    if (strcmp(argv[1], "--help") == 0) {
        printf("Usage: hisparse bench BENCH [OPTION...]\n\nBenches:\n");
        for (int i = 0; i < N_BENCHES; i++)
            printf("  %-11s %s\n", benches[i].name, benches[i].help);
        printf("\n`hisparse bench BENCH --help` lists the options of a bench.\n");
        return TOOL_OK;
    }
    for (int i = 0; i < N_BENCHES; i++)
        if (strcmp(argv[1], benches[i].name) == 0) {
            char name[48];
            snprintf(name, sizeof name, "hisparse bench %s", benches[i].name);
            argv[1] = name;
            return benches[i].function(argc - 1, argv + 1);
        }
    return unknown(argv[1]);
}
