/* SPDX-License-Identifier: Apache-2.0 */
#include "sampler.h"

#include <math.h>

static int32_t likeliest(const float *logits, int32_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled": 0 <= result < 1. */
static double next_uniform(uint64_t *seed) {
    uint64_t x = *seed ? *seed : 0x9e3779b97f4a7c15u;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *seed = x;
    return (double)(x * 0x2545f4914f6cdd1du >> 11) / 9007199254740992.0;
}

int32_t sampler_next(const float *logits, int32_t vocab, double temperature, uint64_t *seed) {
    int32_t best = likeliest(logits, vocab);
    if (!(temperature > 0))
        return best;
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++)
        sum += exp(((double)logits[i] - logits[best]) / temperature);
    double left = next_uniform(seed) * sum;
    for (int32_t i = 0; i < vocab; i++) {
        left -= exp(((double)logits[i] - logits[best]) / temperature);
        if (left < 0)
            return i;
    }
    return best;
}
