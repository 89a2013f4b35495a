/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* -------------------------------------------------------------------------------------------------------- trace -- */

/* `left` of a token that is selected now, and of one that never was. */
#define SELECTED INT64_MAX
#define NEVER    (INT64_MIN / 2)

int bench_trace_init(bench_trace *trace, int32_t k, int32_t n_slots, int32_t context, uint64_t seed) {
    *trace = (bench_trace){.k = k, .n_slots = n_slots, .context = context, .next = n_slots, .random = {seed}};
    trace->selection = malloc((size_t)k * sizeof *trace->selection);
    trace->order = malloc((size_t)context * sizeof *trace->order);
    trace->left = malloc((size_t)context * sizeof *trace->left);
    if (!trace->selection || !trace->order || !trace->left) {
        bench_trace_free(trace);
        return -1;
    }
    rows_permutation(&trace->random, trace->order, context);
    memcpy(trace->selection, trace->order, (size_t)k * sizeof *trace->selection);
    /* A warm-up need not say in which order the slots fall, so the others may all be there still after the first step:
     * as if they left in it, with k misses at most. */
    for (int32_t i = 0; i < context; i++)
        trace->left[trace->order[i]] = i < k ? SELECTED : i < n_slots ? k : NEVER;
    return 0;
}

void bench_trace_free(bench_trace *trace) {
    free(trace->selection);
    free(trace->order);
    free(trace->left);
    *trace = (bench_trace){0};
}

void bench_trace_warm(const bench_trace *trace, int32_t *tokens_out) {
    for (int32_t i = 0; i < trace->n_slots; i++)
        tokens_out[i] = trace->order[trace->n_slots - 1 - i];
}

/* The next token that cannot be resident: it is not selected, and n_slots - k misses came after the step in which it
 * left. That many slots are not selected; each miss takes the oldest of them, and what leaves later is younger. */
static int32_t fresh_token(bench_trace *trace) {
    for (;;) {
        int32_t token = trace->order[trace->next];
        trace->next = trace->next + 1 == trace->context ? 0 : trace->next + 1;
        if (trace->left[token] != SELECTED && trace->n_missed - trace->left[token] >= trace->n_slots - trace->k)
            return token;
    }
}

/* Of the first n_slots tokens none can be fresh before n_slots misses, and a step may take k more than it needs to get
 * there: so many others must there be. Later fewer would do. */
int64_t bench_turnover(int64_t k, int64_t n_slots) {
    return 2 * n_slots + k;
}

static void swap(int32_t *a, int32_t *b) {
    int32_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Places 0 .. i - 1 already hold new tokens; one of the others goes. */
void bench_trace_step(bench_trace *trace, int32_t n_fresh) {
    int32_t *selection = trace->selection;
    for (int32_t i = 0; i < n_fresh; i++) {
        swap(&selection[i], &selection[i + rows_below(&trace->random, trace->k - i)]);
        int32_t token = fresh_token(trace);
        trace->left[selection[i]] = trace->n_missed + n_fresh;
        trace->left[token] = SELECTED;
        selection[i] = token;
    }
    trace->n_missed += n_fresh;
    for (int32_t i = 0; i < n_fresh + 64; i++)
        swap(&selection[rows_below(&trace->random, trace->k)], &selection[rows_below(&trace->random, trace->k)]);
}

/* ------------------------------------------------------------------------------------------------------ samples -- */

double bench_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

void bench_sample(bench_samples *samples, double us) {
    if (samples->n == samples->room) {
        int room = samples->room ? 2 * samples->room : 1024;
        double *grown = realloc(samples->value, (size_t)room * sizeof *grown);
        if (!grown) {
            samples->lost++;
            return;
        }
        samples->value = grown;
        samples->room = room;
    }
    samples->value[samples->n++] = us;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(bench_samples *samples, double q) {
    if (samples->n == 0)
        return NAN;
    qsort(samples->value, (size_t)samples->n, sizeof *samples->value, ascending);
    return samples->value[(int)(q * (samples->n - 1) + 0.5)];
}
