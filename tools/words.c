/* SPDX-License-Identifier: Apache-2.0 */
/* Names that a user may mistype: what they could have meant, or all there are. */
#include "hisparse.h"
#include "tools.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST_NAME = 32, MOST_BACKENDS = 16 };

/* Letters to insert, delete or replace, counted along one row of the usual table. */
static int distance(const char *a, const char *b) {
    int row[LONGEST_NAME], n = (int)strlen(b);
    if (n >= LONGEST_NAME)
        return LONGEST_NAME;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

/* The name at most two letters away, NULL when there is none. Of a short name at least half must be right: otherwise
 * any word of three letters is near any other. */
static const char *find_near(const char *word, const char *const *names, int n) {
    const char *nearest = NULL;
    int least = 3;
    for (int i = 0; i < n; i++) {
        int letters = distance(word, names[i]);
        if (letters < least && letters <= (int)strlen(names[i]) / 2) {
            least = letters;
            nearest = names[i];
        }
    }
    return nearest;
}

/* "a, b, c"; names that do not fit are left out. */
static void join(const char *const *names, int n, char *text_out, size_t bytes) {
    size_t length = 0;
    *text_out = 0;
    for (int i = 0; i < n && length + strlen(names[i]) + 3 < bytes; i++)
        length += (size_t)snprintf(text_out + length, bytes - length, "%s%s", i ? ", " : "", names[i]);
}

int tool_unknown(const char *kind, const char *word, const char *const *names, int n, const char *help) {
    char all[256];
    const char *near = find_near(word, names, n);
    if (near)
        return tool_fail(TOOL_BAD_INPUT, "there is no %s '%s'; did you mean '%s'? try %s", kind, word, near, help);
    join(names, n, all, sizeof all);
    return tool_fail(TOOL_BAD_INPUT, "there is no %s '%s', only %s; try %s", kind, word, all, help);
}

int tool_check_backend(const char *name, int *own_memory_out) {
    static hsp_backend_desc backend[MOST_BACKENDS];
    const char *names[MOST_BACKENDS];
    char all[256];
    int n = 0;
    for (; n < MOST_BACKENDS; n++) {
        backend[n] = (hsp_backend_desc){.struct_size = sizeof backend[n]};
        if (hsp_backend_info(n, &backend[n]) != HSP_OK)
            break;
        names[n] = backend[n].name;
        if (strcmp(name, backend[n].name) != 0)
            continue;
        if (!(backend[n].capabilities & HSP_CAN_RUN))
            return tool_fail(TOOL_BAD_INPUT, "backend '%s' cannot run here: %s", name, backend[n].detail);
        int own = (backend[n].capabilities & HSP_OWN_MEMORY) != 0;
        if (own_memory_out)
            *own_memory_out = own;
        if (!own || own_memory_out)
            return TOOL_OK;
        return tool_fail(TOOL_BAD_INPUT, "backend '%s' has memory of its own; this command works in ordinary memory",
                         name);
    }
    join(names, n, all, sizeof all);
    return tool_fail(TOOL_BAD_INPUT, "there is no backend '%s'; there are %s", name, all);
}
