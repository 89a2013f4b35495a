/* SPDX-License-Identifier: Apache-2.0 */
/* The small arithmetic of a transformer layer, for n tokens side by side. */
#ifndef HISPARSE_ARITHMETIC_H
#define HISPARSE_ARITHMETIC_H

#include <stdint.h>

/* y[n][outputs] = x[n][inputs] times the transpose of weights [outputs][inputs]. */
void math_project(const float *weights, int32_t outputs, int32_t inputs, const float *x, int32_t n, float *y);

/* y = x / sqrt(mean(x^2) + epsilon) * weight, row by row (Zhang and Sennrich, "Root Mean Square Layer Normalization").
 */
void math_rms_norm(const float *x, const float *weight, int32_t size, int32_t n, float epsilon, float *y);

/* Rotate pairs (2i, 2i + 1) of every head of n rows, which are at positions first, first + 1, ... */
void math_rope(float *x, int32_t heads, int32_t head_dim, int32_t n, int32_t first, const float *frequency);

/* gate = silu(gate) * up. */
void math_swiglu(float *gate, const float *up, int64_t count);

void math_add(float *x, const float *y, int64_t count);

/* Threads of all of these, and of the matrix products. */
void math_set_threads(int n);

#endif
