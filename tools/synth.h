/* SPDX-License-Identifier: Apache-2.0 */
/* Selections that behave like those of a model. Every token has a score, the sum of a part that stays, one that changes
 * slowly and one that changes fast, each of the two a first-order autoregression; the k best are selected, the newest
 * token always. How much neighbouring steps share and how soon tokens come back follows from the three sizes and the
 * two speeds. */
#ifndef HISPARSE_SYNTH_H
#define HISPARSE_SYNTH_H

#include <stdint.h>

typedef struct synth_locality {
    double staying;          /* standard deviation of the part that stays */
    double slow, slow_keeps; /* of the slow part; what it keeps from step to step, 0 .. 1 */
    double fast, fast_keeps; /* of the fast part, likewise */
} synth_locality;

typedef struct synth synth;

/* One layer of one request of at most max_tokens tokens. NULL without memory. */
synth *synth_open(const synth_locality *locality, int32_t k, int32_t n_next, int32_t max_tokens, uint64_t seed);
void synth_close(synth *s);

/* The selection of a step at which the request has n_tokens tokens, not fewer than at the step before: int32 [k],
 * ascending, -1 behind them where there are fewer than k tokens. Then the n_next best behind it with their scores, best
 * first. */
void synth_step(synth *s, int32_t n_tokens, int32_t *selection_out, int32_t *next_out, float *scores_out);

#endif
