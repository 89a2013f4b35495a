/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products. cuBLAS counts by columns, so what is [rows][columns] here is columns x rows there. */
#include "cuda_gpu.h"

static void check(gpu *g, cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS)
        gpu_fail(g, "a matrix product: %s", cublasGetStatusString(status));
}

void gpu_project(gpu *g, const float *weights, int32_t outputs, int32_t inputs, const float *x, int32_t n, int add,
                 float *y) {
    const float one = 1, keep = add ? 1 : 0;
    check(g, cublasGemmEx(g->blas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, n, inputs, &one, weights, CUDA_R_32F, inputs, x,
                          CUDA_R_32F, inputs, &keep, y, CUDA_R_32F, outputs, CUBLAS_COMPUTE_32F_PEDANTIC,
                          CUBLAS_GEMM_DEFAULT));
}

void gpu_project_heads(gpu *g, const gpu_heads *h, const float *weights, const float *x, int32_t n, float *y) {
    const float one = 1, zero = 0;
    check(g, cublasGemmStridedBatchedEx(g->blas, h->back ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, h->outputs, n,
                                        h->inputs, &one, weights, CUDA_R_32F, h->back ? h->outputs : h->inputs,
                                        (long long)h->outputs * h->inputs, x, CUDA_R_32F, h->heads * h->x_apart,
                                        h->x_apart, &zero, y, CUDA_R_32F, h->heads * h->y_apart, h->y_apart, h->heads,
                                        CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT));
}
