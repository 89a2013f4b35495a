/* SPDX-License-Identifier: Apache-2.0 */
#include "trace_tools.h"

#include "tools.h"

#include <stdlib.h>

trace *trace_open_named(const char *path) {
    char error[512];
    trace *t = trace_open(path, error, sizeof error);
    if (!t)
        tool_fail(TOOL_BAD_INPUT, "%s", error);
    return t;
}

int trace_check_words(const tool_words *words, int needed, const char *what) {
    if (words->n == needed)
        return TOOL_OK;
    return tool_fail(TOOL_BAD_INPUT, "%d files are named, %d are needed: %s", words->n, needed, what);
}

int trace_step_open(trace_step *step, const trace_shape *shape) {
    size_t places = (size_t)shape->n_layers * (size_t)shape->n_requests, next = places * (size_t)shape->n_next + 1;
    *step = (trace_step){.lengths = calloc((size_t)shape->n_requests, sizeof(int32_t)),
                         .selections = calloc(places * (size_t)shape->k, sizeof(int32_t)),
                         .next_tokens = calloc(next, sizeof(int32_t)),
                         .next_scores = calloc(next, sizeof(float))};
    if (step->lengths && step->selections && step->next_tokens && step->next_scores)
        return TOOL_OK;
    tool_fail(TOOL_FAILED, "not enough memory for a step of %zu selections of %d", places, shape->k);
    return TOOL_FAILED;
}

void trace_step_close(trace_step *step) {
    free(step->lengths);
    free(step->selections);
    free(step->next_tokens);
    free(step->next_scores);
}

void trace_step_set_lengths(trace_step *step, int32_t n_requests, int64_t length) {
    for (int32_t r = 0; r < n_requests; r++)
        step->lengths[r] = (int32_t)length;
}
