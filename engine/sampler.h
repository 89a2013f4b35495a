/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HISPARSE_SAMPLER_H
#define HISPARSE_SAMPLER_H

#include <stdint.h>

/* The next token: the likeliest (the lowest id of equals) at temperature 0, else drawn from softmax(logits /
 * temperature) with the generator in *seed, which moves on. */
int32_t sampler_next(const float *logits, int32_t vocab, double temperature, uint64_t *seed);

#endif
