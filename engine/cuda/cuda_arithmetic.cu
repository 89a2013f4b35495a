/* SPDX-License-Identifier: Apache-2.0 */
/* What every model does with its activations. A block has 256 threads; sums have one order, that of the threads. */
#include "cuda_kernels.h"
#include "cuda_launch.cuh"

#include <cuda_bf16.h>

static __global__ void embed_kernel(const float *table, const int32_t *token, int32_t size, float *x) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y;
    if (i < size)
        x[(int64_t)t * size + i] = table[(int64_t)token[t] * size + i];
}

cudaError_t gpu_embed(const float *table, const int32_t *token, int32_t size, int32_t n, float *x,
                      cudaStream_t stream) {
    /* A grid has 65535 rows, a prompt may have more. */
    cudaError_t status = cudaSuccess;
    for (int32_t first = 0; status == cudaSuccess && first < n; first += 32768) {
        unsigned rows = n - first < 32768 ? n - first : 32768;
        status = launch(embed_kernel, dim3(blocks_for(size), rows), stream, table, token + first, size,
                        x + (int64_t)first * size);
    }
    return status;
}

static __global__ void count_kernel(int32_t first, int32_t n, int32_t *n_tokens) {
    int32_t t = blockIdx.x * THREADS + threadIdx.x;
    if (t < n)
        n_tokens[t] = first + t + 1;
}

cudaError_t gpu_count(int32_t first, int32_t n, int32_t *n_tokens, cudaStream_t stream) {
    return launch(count_kernel, dim3(blocks_for(n)), stream, first, n, n_tokens);
}

/* -------------------------------------------------------------------------------------------------------- norms -- */

/* Of all threads of the block, in every thread. */
static __device__ double sum_of_block(double x) {
    __shared__ double part[THREADS];
    part[threadIdx.x] = x;
    __syncthreads();
    for (int span = THREADS / 2; span > 0; span /= 2) {
        if (threadIdx.x < span)
            part[threadIdx.x] += part[threadIdx.x + span];
        __syncthreads();
    }
    double sum = part[0];
    __syncthreads(); /* the next sum comes into the same place */
    return sum;
}

static __global__ void rms_norm_kernel(const float *x, const float *weight, int32_t size, float epsilon, float *y) {
    const float *row = x + (int64_t)blockIdx.x * size;
    double squares = 0;
    for (int32_t i = threadIdx.x; i < size; i += THREADS)
        squares += (double)row[i] * row[i];
    float scale = (float)(1 / sqrt(sum_of_block(squares) / size + epsilon));
    for (int32_t i = threadIdx.x; i < size; i += THREADS)
        y[(int64_t)blockIdx.x * size + i] = row[i] * scale * weight[i];
}

cudaError_t gpu_rms_norm(const float *x, const float *weight, int32_t size, int32_t n, float epsilon, float *y,
                         cudaStream_t stream) {
    return launch(rms_norm_kernel, dim3((unsigned)n), stream, x, weight, size, epsilon, y);
}

static __global__ void layer_norm_kernel(float *x, const float *weight, const float *bias, int32_t size,
                                         float epsilon) {
    float *row = x + (int64_t)blockIdx.x * size;
    double sum = 0, squares = 0;
    for (int32_t i = threadIdx.x; i < size; i += THREADS)
        sum += (double)row[i];
    double mean = sum_of_block(sum) / size;
    for (int32_t i = threadIdx.x; i < size; i += THREADS)
        squares += ((double)row[i] - mean) * ((double)row[i] - mean);
    double scale = 1 / sqrt(sum_of_block(squares) / size + (double)epsilon);
    for (int32_t i = threadIdx.x; i < size; i += THREADS)
        row[i] = (float)(((double)row[i] - mean) * scale) * weight[i] + bias[i];
}

cudaError_t gpu_layer_norm(float *x, const float *weight, const float *bias, int32_t size, int32_t n, float epsilon,
                           cudaStream_t stream) {
    return launch(layer_norm_kernel, dim3((unsigned)n), stream, x, weight, bias, size, epsilon);
}

/* -------------------------------------------------------------------------------------------------- rope and FFN -- */

/* A thread a pair. */
static __global__ void rope_kernel(gpu_rotation r, const int32_t *n_tokens, const float *from, float *to) {
    int32_t item = blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y, pairs = r.dims / 2;
    if (item >= r.heads * pairs)
        return;
    int32_t head = item / pairs, i = item % pairs;
    int32_t step = r.halves ? 1 : 2, apart = r.halves ? pairs : 1;
    int64_t at = ((int64_t)t * r.heads + head) * r.head_dim + step * i;
    float angle = (float)(n_tokens[t] - 1) * r.frequency[i], cosine = cosf(angle), sine = sinf(angle);
    float a = from[at], b = from[at + apart];
    to[at] = a * cosine - b * sine;
    to[at + apart] = a * sine + b * cosine;
}

cudaError_t gpu_rope(gpu_rotation r, const int32_t *n_tokens, int32_t n, const float *from, float *to,
                     cudaStream_t stream) {
    return launch(rope_kernel, dim3(blocks_for((int64_t)r.heads * (r.dims / 2)), (unsigned)n), stream, r, n_tokens,
                  from, to);
}

static __global__ void swiglu_kernel(float *gate, const float *up, int64_t count) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

cudaError_t gpu_swiglu(float *gate, const float *up, int64_t count, cudaStream_t stream) {
    return launch(swiglu_kernel, dim3(blocks_for(count)), stream, gate, up, count);
}

/* --------------------------------------------------------------------------------------------------------- rows -- */

static __global__ void pack_kernel(const float *numbers, int64_t stride, int32_t count, unsigned char *rows,
                                   size_t row_bytes) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y;
    if (i < count)
        ((uint16_t *)(rows + t * row_bytes))[i] = __bfloat16_as_ushort(__float2bfloat16_rn(numbers[t * stride + i]));
}

cudaError_t gpu_pack(const float *numbers, int64_t stride, int32_t count, int32_t n, void *rows, size_t row_bytes,
                     cudaStream_t stream) {
    return launch(pack_kernel, dim3(blocks_for(count), (unsigned)n), stream, numbers, stride, count,
                  (unsigned char *)rows, row_bytes);
}

static __global__ void put_row_kernel(const uint32_t *row, int64_t words, const int32_t *n_tokens, uint32_t *rows) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < words)
        rows[(*n_tokens - 1) * words + i] = row[i];
}

cudaError_t gpu_put_row(const void *row, size_t row_bytes, const int32_t *n_tokens, void *rows, cudaStream_t stream) {
    int64_t words = (int64_t)(row_bytes / 4);
    return launch(put_row_kernel, dim3(blocks_for(words)), stream, (const uint32_t *)row, words, n_tokens,
                  (uint32_t *)rows);
}

static __global__ void regroup_kernel(const uint32_t *from, int32_t a, int32_t b, int32_t words, uint32_t *to) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (int64_t)a * b * words)
        return;
    int64_t word = i % words, of_b = i / words % b, of_a = i / words / b;
    to[(of_b * a + of_a) * words + word] = from[i];
}

cudaError_t gpu_regroup(const void *from, int32_t a, int32_t b, int32_t words, void *to, cudaStream_t stream) {
    return launch(regroup_kernel, dim3(blocks_for((int64_t)a * b * words)), stream, (const uint32_t *)from, a, b, words,
                  (uint32_t *)to);
}
