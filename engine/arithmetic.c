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

void math_project_back(const float *weights, int32_t inputs, int32_t outputs, const float *x, float *y) {
    cblas_sgemv(CblasRowMajor, CblasTrans, inputs, outputs, 1, weights, outputs, x, 1, 0, y, 1);
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

void math_layer_norm(float *x, const float *weight, const float *bias, int32_t size, int32_t n, float epsilon) {
#pragma omp parallel for if (n > 16)
    for (int32_t t = 0; t < n; t++) {
        float *row = x + (int64_t)t * size;
        double sum = 0, squares = 0;
        for (int32_t i = 0; i < size; i++)
            sum += (double)row[i];
        double mean = sum / size;
        for (int32_t i = 0; i < size; i++)
            squares += ((double)row[i] - mean) * ((double)row[i] - mean);
        double scale = 1 / sqrt(squares / size + (double)epsilon);
        for (int32_t i = 0; i < size; i++)
            row[i] = (float)(((double)row[i] - mean) * scale) * weight[i] + bias[i];
    }
}

void math_rope(const math_rotation *r, float *x, int32_t n, int32_t first) {
    int32_t step = r->halves ? 1 : 2, apart = r->halves ? r->dims / 2 : 1;
#pragma omp parallel for if (n > 16)
    for (int32_t t = 0; t < n; t++)
        for (int32_t i = 0; i < r->dims / 2; i++) {
            float angle = (float)(first + t) * r->frequency[i], cosine = cosf(angle), sine = sinf(angle);
            for (int32_t h = 0; h < r->heads; h++) {
                float *one = x + ((int64_t)t * r->heads + h) * r->head_dim + step * i, *other = one + apart;
                float a = *one, b = *other;
                *one = a * cosine - b * sine;
                *other = a * sine + b * cosine;
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
