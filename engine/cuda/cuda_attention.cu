/* SPDX-License-Identifier: Apache-2.0 */
/* What attention needs beside libhisparse_ops_cuda: chunks of everything and how they are joined, and the compressed
 * rows of NSA. */
#include "cuda_kernels.h"
#include "cuda_launch.cuh"

#include <cuda_bf16.h>

/* ------------------------------------------------------------------------------------------------------- chunks -- */

static __device__ int32_t turns_of(int32_t n_tokens, int32_t k) {
    return (n_tokens + k - 1) / k;
}

/* The chunk of a turn, and the turn of a chunk: the one is the other's inverse. */
static __device__ int32_t other_of(int32_t n_tokens, int32_t k, int32_t i) {
    return n_tokens % 2 ? turns_of(n_tokens, k) - 1 - i : i;
}

static __global__ void take_turn_kernel(const int32_t *n_tokens, int32_t k, int32_t turn, int32_t *selection) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y, n = n_tokens[t];
    if (i >= k)
        return;
    int32_t token = turn < turns_of(n, k) ? other_of(n, k, turn) * k + i : n;
    selection[(int64_t)t * k + i] = token < n ? token : -1;
}

cudaError_t gpu_take_turn(const int32_t *n_tokens, int32_t n, int32_t k, int32_t turn, int32_t *selection,
                          cudaStream_t stream) {
    return launch(take_turn_kernel, dim3(blocks_for(k), (unsigned)n), stream, n_tokens, k, turn, selection);
}

/* A block a head of a token. Chunks in which nothing has weight say -infinity and have no part. */
static __global__ void join_turns_kernel(const float *parts, const float *lse, const int32_t *n_tokens, int32_t k,
                                         int32_t dim, float *out) {
    int32_t heads = gridDim.x, head = blockIdx.x, t = blockIdx.y, n = n_tokens[t], n_chunks = turns_of(n, k);
    int64_t apart = (int64_t)gridDim.y * heads, at = (int64_t)t * heads + head;
    float top = -INFINITY;
    for (int32_t c = 0; c < n_chunks; c++)
        top = fmaxf(top, lse[c * apart + at]); /* in any order */
    for (int32_t i = threadIdx.x; i < dim; i += THREADS) {
        float sum = 0, weights = 0;
        for (int32_t c = 0; c < n_chunks; c++) {
            int64_t from = other_of(n, k, c) * apart + at;
            if (lse[from] == -INFINITY)
                continue;
            float weight = expf(lse[from] - top);
            weights += weight;
            sum += weight * parts[from * dim + i];
        }
        out[at * dim + i] = weights == 0 ? 0 : sum / weights;
    }
}

cudaError_t gpu_join_turns(const float *parts, const float *lse, const int32_t *n_tokens, int32_t n, int32_t k,
                           int32_t heads, int32_t dim, float *out, cudaStream_t stream) {
    return launch(join_turns_kernel, dim3((unsigned)heads, (unsigned)n), stream, parts, lse, n_tokens, k, dim, out);
}

/* -------------------------------------------------------------------------------------------------- compression -- */

enum { MOST_DIM = 1024 };

/* Keys or values of a token of a span, of one KV head. */
static __device__ const float *number_of(const gpu_compression &c, int32_t token, int32_t group) {
    int32_t first_fresh = c.n_tokens[0] - 1;
    const float *row = token >= first_fresh ? c.fresh + (int64_t)(token - first_fresh) * c.groups * c.dim
                                            : c.newest + (int64_t)(token % c.span) * c.groups * c.dim;
    return row + group * c.dim;
}

/* A block a token and KV head; most tokens end no span. */
static __global__ void compress_kernel(gpu_compression c) {
    __shared__ float mixed[MOST_DIM];
    int32_t group = blockIdx.y, first = c.n_tokens[blockIdx.x] - c.span;
    if (first < 0 || first % c.step)
        return;
    for (int32_t i = threadIdx.x; i < c.dim; i += THREADS) {
        float sum = 0;
        for (int32_t t = 0; t < c.span; t++)
            sum += c.mix[((int64_t)group * c.span + t) * c.dim + i] * number_of(c, first + t, group)[i];
        mixed[i] = sum;
    }
    __syncthreads();
    int64_t at = ((int64_t)(first / c.step) * c.groups + group) * c.dim;
    for (int32_t i = threadIdx.x; i < c.dim; i += THREADS) {
        const float *row = c.projection + ((int64_t)group * c.dim + i) * c.dim;
        float sum = 0;
        for (int32_t j = 0; j < c.dim; j++)
            sum += row[j] * mixed[j];
        if (c.rows)
            c.rows[at + i] = sum;
        c.rounded[at + i] = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
    }
}

/* Only the last `span` of the n have a place of their own. */
static __global__ void keep_newest_kernel(gpu_compression c) {
    int32_t t = blockIdx.x, numbers = c.groups * c.dim, token = c.n_tokens[t] - 1;
    if (t < c.n - c.span)
        return;
    for (int32_t i = threadIdx.x; i < numbers; i += THREADS)
        c.newest[(int64_t)(token % c.span) * numbers + i] = c.fresh[(int64_t)t * numbers + i];
}

cudaError_t gpu_compress(const gpu_compression *c, cudaStream_t stream) {
    if (c->dim > MOST_DIM)
        return cudaErrorInvalidValue;
    cudaError_t status = launch(compress_kernel, dim3((unsigned)c->n, (unsigned)c->groups), stream, *c);
    return status == cudaSuccess ? launch(keep_newest_kernel, dim3((unsigned)c->n), stream, *c) : status;
}

static __global__ void compressed_ids_kernel(const int32_t *n_tokens, int32_t span, int32_t step, int32_t most,
                                             int32_t *ids) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y, n = n_tokens[t];
    if (i < most)
        ids[(int64_t)t * most + i] = n >= span && i <= (n - span) / step ? i : -1;
}

cudaError_t gpu_compressed_ids(const int32_t *n_tokens, int32_t n, int32_t span, int32_t step, int32_t most,
                               int32_t *ids, cudaStream_t stream) {
    return launch(compressed_ids_kernel, dim3(blocks_for(most), (unsigned)n), stream, n_tokens, span, step, most, ids);
}
