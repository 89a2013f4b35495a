/* SPDX-License-Identifier: Apache-2.0 */
/* The small arithmetic of a transformer layer, for n tokens side by side. */
#ifndef HISPARSE_ARITHMETIC_H
#define HISPARSE_ARITHMETIC_H

#include <stdint.h>

/* y[n][outputs] = x[n][inputs] times the transpose of weights [outputs][inputs]. */
void math_project(const float *weights, int32_t outputs, int32_t inputs, const float *x, int32_t n, float *y);

/* y[outputs] = x[inputs] times weights [inputs][outputs], one token: what math_project does with their transpose. */
void math_project_back(const float *weights, int32_t inputs, int32_t outputs, const float *x, float *y);

/* y = x / sqrt(mean(x^2) + epsilon) * weight, row by row (Zhang and Sennrich, "Root Mean Square Layer Normalization").
 * y may be x. */
void math_rms_norm(const float *x, const float *weight, int32_t size, int32_t n, float epsilon, float *y);

/* x = (x - mean) / sqrt(variance + epsilon) * weight + bias, row by row (Ba et al., "Layer Normalization"). */
void math_layer_norm(float *x, const float *weight, const float *bias, int32_t size, int32_t n, float epsilon);

/* What is rotated of n rows at positions first, first + 1, ...: the first `dims` channels of every head, a head having
 * `head_dim`; x may point past a head's beginning. Pairs are (2i, 2i + 1), or with `halves` (i, i + dims / 2). */
typedef struct math_rotation {
    int32_t heads, head_dim, dims, halves;
    const float *frequency; /* [dims / 2] */
} math_rotation;
void math_rope(const math_rotation *r, float *x, int32_t n, int32_t first);

/* gate = silu(gate) * up. */
void math_swiglu(float *gate, const float *up, int64_t count);

void math_add(float *x, const float *y, int64_t count);

/* Threads of all of these, and of the matrix products. */
void math_set_threads(int n);

#endif
