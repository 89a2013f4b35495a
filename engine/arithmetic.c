/* SPDX-License-Identifier: Apache-2.0 */
#include "arithmetic.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>

void math_set_threads(int n) {
    omp_set_num_threads(n);
    openblas_set_num_threads(n);
}

void math_project(const float *weights, int32_t outputs, int32_t inputs, const float *x, int32_t n, float *y) {
    if (n == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, outputs, inputs, 1, weights, inputs, x, 1, 0, y, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, outputs, inputs, 1, x, inputs, weights, inputs, 0, y,
                    outputs);
}

void math_rms_norm(const float *x, const float *weight, int32_t size, int32_t n, float epsilon, float *y) {
#pragma omp parallel for if (n > 16)
    for (int32_t t = 0; t < n; t++) {
        const float *row = x + (int64_t)t * size;
        double sum = 0;
        for (int32_t i = 0; i < size; i++)
            sum += (double)row[i] * row[i];
        float scale = (float)(1 / sqrt(sum / size + epsilon));
        for (int32_t i = 0; i < size; i++)
            y[(int64_t)t * size + i] = row[i] * scale * weight[i];
    }
}

void math_rope(float *x, int32_t heads, int32_t head_dim, int32_t n, int32_t first, const float *frequency) {
#pragma omp parallel for if (n > 16)
    for (int32_t t = 0; t < n; t++)
        for (int32_t i = 0; i < head_dim / 2; i++) {
            float angle = (float)(first + t) * frequency[i], cosine = cosf(angle), sine = sinf(angle);
            for (int32_t h = 0; h < heads; h++) {
                float *pair = x + ((int64_t)t * heads + h) * head_dim + 2 * i, a = pair[0], b = pair[1];
                pair[0] = a * cosine - b * sine;
                pair[1] = a * sine + b * cosine;
            }
        }
}

void math_swiglu(float *gate, const float *up, int64_t count) {
#pragma omp parallel for if (count > 65536)
    for (int64_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

void math_add(float *x, const float *y, int64_t count) {
#pragma omp parallel for if (count > 262144)
    for (int64_t i = 0; i < count; i++)
        x[i] += y[i];
}
