/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a trace: refused with a message, or opened, and then every selection is one a cache may be asked for, or
 * is refused with a message. */
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void require(int holds) {
    if (!holds)
        abort();
}

static void touch_selection(const trace *t, int64_t step, int32_t layer, int32_t request, int32_t *selection) {
    char error[512] = "";
    int32_t length = trace_length(t, step, request);
    if (trace_selection(t, step, layer, request, selection, error, sizeof error) != 0) {
        require(strncmp(error, "FUZZ: offset ", 13) == 0);
        return;
    }
    for (int32_t e = 0; e < t->shape.k; e++)
        require(selection[e] >= -1 && selection[e] < length);
}

static void touch_trace(const trace *t) {
    const trace_shape *s = &t->shape;
    int32_t *selection = malloc((size_t)s->k * sizeof *selection), *tokens = malloc((size_t)s->n_next * 4 + 1);
    float *scores = malloc((size_t)s->n_next * 4 + 1);
    require(selection && tokens && scores);
    for (int64_t i = 0; i < s->n_steps * s->n_layers * s->n_requests; i++) {
        int64_t step = i / s->n_requests / s->n_layers;
        int32_t layer = (int32_t)(i / s->n_requests % s->n_layers), request = (int32_t)(i % s->n_requests);
        touch_selection(t, step, layer, request, selection);
        if (s->n_next)
            trace_next(t, step, layer, request, s->n_next, tokens, scores);
        require(trace_layer_number(t, layer) >= 0);
    }
    require(trace_row_bytes(t) >= 0);
    free(selection);
    free(tokens);
    free(scores);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char error[512] = "";
    trace *t = trace_open_memory(bytes, n_bytes, "FUZZ", error, sizeof error);
    if (t)
        touch_trace(t);
    else
        require(strncmp(error, "FUZZ: offset ", 13) == 0);
    trace_close(t);
    return 0;
}
