/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates ranked just behind a selection: the best units (tokens, or pages of them) that it left. */
#include "attend.h"

#include <math.h>

kv_next *attend_next(const attend_place *place) {
    return place->is_prompt ? NULL : place->rows->next;
}

/* The units of greatest score, best first, ties to the lower; NaN is none. Returns how many, `most` at most. */
static int32_t rank_units(const float *scores, int32_t n_units, int32_t most, int32_t *units_out, float *scores_out) {
    int32_t n = 0;
    for (int32_t u = 0; u < n_units; u++) {
        if (isnan(scores[u]) || (n == most && scores[u] <= scores_out[n - 1]))
            continue;
        int32_t at = n < most ? n++ : n - 1;
        for (; at > 0 && scores[u] > scores_out[at - 1]; at--) {
            units_out[at] = units_out[at - 1];
            scores_out[at] = scores_out[at - 1];
        }
        units_out[at] = u;
        scores_out[at] = scores[u];
    }
    return n;
}

/* Units become their tokens, in place: from the end, since no unit lies behind its tokens. */
static void spread(kv_next *next, int32_t n_ranked, int32_t unit_tokens) {
    for (int32_t i = next->n - 1; i >= 0; i--) {
        int32_t unit = i / unit_tokens, is_there = unit < n_ranked;
        next->tokens[i] = is_there ? next->tokens[unit] * unit_tokens + i % unit_tokens : -1;
        next->scores[i] = is_there ? next->scores[unit] : 0;
    }
}

void attend_rank_next(kv_next *next, int32_t n_units, int32_t unit_tokens, const int32_t *selection, int32_t k) {
    int32_t most = (next->n + unit_tokens - 1) / unit_tokens;
    for (int32_t e = 0; e < k; e++)
        if (selection[e] >= 0)
            next->work[selection[e] / unit_tokens] = NAN;
    spread(next, rank_units(next->work, n_units, most, next->tokens, next->scores), unit_tokens);
}
