/* SPDX-License-Identifier: Apache-2.0 */
/* The small arithmetic of a layer as kernels, for n tokens side by side: what arithmetic.h is on the CPU, with the same
 * meaning of every argument. Positions are read on the device: token t of a call is at n_tokens[t] - 1, n_tokens being
 * what it may see. Pointers are device memory. Each queues its work, may be captured, and returns what CUDA says. */
#ifndef HISPARSE_CUDA_KERNELS_H
#define HISPARSE_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x[n][size]: rows of table [vocab][size]. */
cudaError_t gpu_embed(const float *table, const int32_t *token, int32_t size, int32_t n, float *x, cudaStream_t stream);

/* n_tokens[t] = first + t + 1. */
cudaError_t gpu_count(int32_t first, int32_t n, int32_t *n_tokens, cudaStream_t stream);

cudaError_t gpu_rms_norm(const float *x, const float *weight, int32_t size, int32_t n, float epsilon, float *y,
                         cudaStream_t stream);
cudaError_t gpu_layer_norm(float *x, const float *weight, const float *bias, int32_t size, int32_t n, float epsilon,
                           cudaStream_t stream);

/* As math_rotation. */
typedef struct gpu_rotation {
    int32_t heads, head_dim, dims, halves;
    const float *frequency; /* [dims / 2] */
} gpu_rotation;
/* to may be from. Channels that are not rotated are left alone in `to`. */
cudaError_t gpu_rope(gpu_rotation r, const int32_t *n_tokens, int32_t n, const float *from, float *to,
                     cudaStream_t stream);

cudaError_t gpu_swiglu(float *gate, const float *up, int64_t count, cudaStream_t stream);

/* `count` numbers a token, `stride` floats apart, rounded to bfloat16: to rows, row_bytes apart. */
cudaError_t gpu_pack(const float *numbers, int64_t stride, int32_t count, int32_t n, void *rows, size_t row_bytes,
                     cudaStream_t stream);

/* A row to the place of its token: rows + (*n_tokens - 1) * row_bytes. row_bytes: a multiple of 4. */
cudaError_t gpu_put_row(const void *row, size_t row_bytes, const int32_t *n_tokens, void *rows, cudaStream_t stream);

/* [a][b][words] becomes [b][a][words], of 4 bytes. */
cudaError_t gpu_regroup(const void *from, int32_t a, int32_t b, int32_t words, void *to, cudaStream_t stream);

/* ---------------------------------------------------------------------------------------- everything, in chunks --
 * A token that may see N takes ceil(N / k) turns through chunks of k tokens: forwards, or where N is odd backwards, so
 * that what one token read last is read first by the next. */

/* selection [n][k]: tokens of the chunk of this turn, -1 beyond the last token and the last turn. */
cudaError_t gpu_take_turn(const int32_t *n_tokens, int32_t n, int32_t k, int32_t turn, int32_t *selection,
                          cudaStream_t stream);

/* out [n][heads][dim] of what attention to each chunk gave: parts [turns][n][heads][dim], lse [turns][n][heads]. Chunks
 * are added in ascending order, whatever the turn in which they came. */
cudaError_t gpu_join_turns(const float *parts, const float *lse, const int32_t *n_tokens, int32_t n, int32_t k,
                           int32_t heads, int32_t dim, float *out, cudaStream_t stream);

/* ------------------------------------------------------------------------------------------ NSA's compressed rows --
 */

typedef struct gpu_compression {
    const int32_t *n_tokens;
    int32_t n, span, step, groups, dim;
    const float *fresh; /* [n][groups][dim]: keys or values of the n tokens */
    float *newest;      /* [span][groups][dim]: of the tokens before them, token t at t % span */
    const float *mix, *projection;
    float *rows;       /* [compressed rows][groups][dim], NULL: not wanted */
    uint16_t *rounded; /* the same as bfloat16 */
} gpu_compression;
/* Make the compressed rows whose last token is among the n, then take the n into `newest`. */
cudaError_t gpu_compress(const gpu_compression *c, cudaStream_t stream);

/* ids [n][most]: 0, 1, ... for compressed rows that are there, then -1. */
cudaError_t gpu_compressed_ids(const int32_t *n_tokens, int32_t n, int32_t span, int32_t step, int32_t most,
                               int32_t *ids, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
