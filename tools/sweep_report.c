/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a sweep, and what to take. */
#include "sweep.h"
#include "tools.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

const emit_column sweep_columns[] = {{"policy", "", EMIT_WORD},  {"slots", "", 0},     {"slots", "MB", 1},
                                     {"layer", "", 0},           {"misses", "", 0},    {"missed", "%", 3},
                                     {"p50", "a step", 0},       {"p99", "a step", 0}, {"fetched", "bytes a token", 0},
                                     {"swap-in", "us a step", 1}};
const int sweep_n_columns = sizeof sweep_columns / sizeof sweep_columns[0];

static double percent(int64_t misses, int64_t lookups) {
    return lookups ? 100.0 * (double)misses / (double)lookups : NAN;
}

static double missed(const sweep_result *r) {
    return percent(r->misses, r->lookups);
}

static int compare_counts(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* Least number that a share q of the steps does not exceed; the steps must be sorted. */
static double quantile(const sweep *s, const sweep_result *r, double q) {
    int64_t i = (int64_t)ceil(q * (double)s->n_steps) - 1;
    return s->stopped ? NAN : r->step_misses[i < 0 ? 0 : i];
}

/* us of all swap-ins of a step, one layer after the other, nothing hidden behind anything else. */
static double swap_in_us(const sweep *s, const sweep_result *r) {
    if (s->stopped)
        return NAN;
    return s->n_layers * s->base_us + (double)r->misses / (double)s->n_steps * s->row_us;
}

static double slots_mb(const sweep *s, const sweep_result *r) {
    double bytes = (double)s->row_bytes * s->n_layers * r->n_slots;
    return s->row_bytes ? bytes / 1048576 : NAN;
}

static int add_all(const sweep *s, const sweep_result *r, emit_table *table) {
    double bytes = (double)r->misses / (double)s->n_tokens * (double)s->row_bytes;
    const emit_cell cells[] = {{.word = sweep_policy_names[r->policy]},
                               {.number = r->n_slots},
                               {.number = slots_mb(s, r)},
                               {.number = NAN},
                               {.number = (double)r->misses},
                               {.number = missed(r)},
                               {.number = quantile(s, r, 0.5)},
                               {.number = quantile(s, r, 0.99)},
                               {.number = s->row_bytes && !s->stopped ? bytes : NAN},
                               {.number = swap_in_us(s, r)}};
    return emit_row(table, cells);
}

static int add_layer(const sweep *s, const sweep_result *r, int32_t layer, emit_table *table) {
    const emit_cell cells[] = {{.word = sweep_policy_names[r->policy]},
                               {.number = r->n_slots},
                               {.number = slots_mb(s, r) / s->n_layers},
                               {.number = trace_layer_number(s->traces[0], layer)},
                               {.number = (double)r->layer_misses[layer]},
                               {.number = percent(r->layer_misses[layer], r->layer_lookups[layer])},
                               {.number = NAN},
                               {.number = NAN},
                               {.number = NAN},
                               {.number = NAN}};
    return emit_row(table, cells);
}

int sweep_add_rows(sweep *s, int by_layer, emit_table *table) {
    int failed = 0;
    for (int i = 0; i < s->n_results && !failed; i++) {
        sweep_result *r = &s->result[i];
        qsort(r->step_misses, (size_t)s->n_steps, sizeof *r->step_misses, compare_counts);
        failed = add_all(s, r, table);
        for (int32_t l = 0; by_layer && l < s->n_layers && !failed; l++)
            failed = add_layer(s, r, l, table);
    }
    return failed ? tool_fail(TOOL_FAILED, "out of memory") : TOOL_OK;
}

/* ----------------------------------------------------------------------------------------------- recommendation -- */

static const sweep_result *find(const sweep *s, enum sweep_policy policy, int32_t n_slots) {
    for (int i = 0; i < s->n_results; i++)
        if (s->result[i].policy == policy && s->result[i].n_slots == n_slots)
            return &s->result[i];
    return NULL;
}

/* The next larger size of the same policy. */
static const sweep_result *larger(const sweep *s, const sweep_result *r) {
    const sweep_result *next = NULL;
    for (int i = 0; i < s->n_results; i++) {
        const sweep_result *c = &s->result[i];
        if (c->policy == r->policy && c->n_slots > r->n_slots && (!next || c->n_slots < next->n_slots))
            next = c;
    }
    return next;
}

static const sweep_result *smallest(const sweep *s, enum sweep_policy policy) {
    const sweep_result *least = NULL;
    for (int i = 0; i < s->n_results; i++)
        if (s->result[i].policy == policy && (!least || s->result[i].n_slots < least->n_slots))
            least = &s->result[i];
    return least;
}

/* Points of missed look-ups that k more slots take away, on the way to the next larger size. */
static double gain(const sweep *s, const sweep_result *r, const sweep_result *next) {
    return (missed(r) - missed(next)) * s->k / (next->n_slots - r->n_slots);
}

/* Up to the size from which k more slots save less than a point. */
static const sweep_result *choose_size(const sweep *s, enum sweep_policy policy) {
    const sweep_result *r = smallest(s, policy), *next;
    while (r && (next = larger(s, r)) && gain(s, r, next) >= 1)
        r = next;
    return r;
}

/* LRU, but for another policy of the library with at least a twentieth fewer misses at the same size. */
static const sweep_result *choose(const sweep *s) {
    const sweep_result *best = choose_size(s, SWEEP_LRU);
    for (int p = SWEEP_FIFO; p <= SWEEP_CLOCK; p++) {
        const sweep_result *r =
            best ? find(s, (enum sweep_policy)p, best->n_slots) : choose_size(s, (enum sweep_policy)p);
        if (r && (!best || (double)r->misses < 0.95 * (double)best->misses))
            best = r;
    }
    return best;
}

void sweep_recommend(const sweep *s, FILE *to) {
    const sweep_result *r = choose(s);
    if (!r || s->stopped)
        return;
    const sweep_result *next = larger(s, r), *ideal = find(s, SWEEP_BELADY, r->n_slots),
                       *lru = r->policy == SWEEP_LRU ? NULL : find(s, SWEEP_LRU, r->n_slots);
    fprintf(to, "\nTake n_slots %d (%.3g x k) and policy %s: %.2f%% of the look-ups miss", r->n_slots,
            (double)r->n_slots / s->k, sweep_policy_names[r->policy], missed(r));
    if (s->row_bytes)
        fprintf(to, ", %.1f MB of rows a request on the device", slots_mb(s, r));
    fprintf(to, ".\n");
    if (next)
        fprintf(to,
                "The next size, %d, would miss %.2f%%: %.2f points for every k more slots, and a point is asked for.\n",
                next->n_slots, missed(next), gain(s, r, next));
    else
        fprintf(to,
                "It is the largest size of this sweep, and every k more slots up to here saved a point or more: try "
                "larger ones.\n");
    if (lru)
        fprintf(to, "LRU, the default, would miss %.2f%%.\n", missed(lru));
    if (ideal)
        fprintf(to, "No policy could miss less than %.2f%% with as many slots.\n", missed(ideal));
    if (isfinite(s->row_us))
        fprintf(to, "Swap-in is predicted to take %.0f us of a step.\n", swap_in_us(s, r));
}
