/* SPDX-License-Identifier: Apache-2.0
 *
 * The indexer's scores and selection; and scores of shapes that the tensor cores do not take, a thread a key.
 */
#include "dsa.h"

#include "dsa_layout.h"
#include "numbers.cuh"
#include "shapes.h"
#include "top.h"

enum { THREADS = 128 };

template <int DTYPE>
static __device__ __forceinline__ float channel_of(const unsigned char *row, int c) {
    if (DTYPE == HSP_E4M3)
        return from_e4m3(row[c]);
    return number_at<HSP_BF16>(row, c);
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) dsa_plain_kernel(const __grid_constant__ hsp__gpu_dsa p) {
    int32_t entry = blockIdx.y, query = blockIdx.z, slot = p.batch.slot[entry];
    int32_t n = slot < 0 ? 0 : hsp__gpu_tokens(p.batch, entry, query);
    size_t at = (size_t)entry * p.batch.n_queries + query;
    const unsigned char *image = p.query + at * p.image_bytes;
    const float *weights = (const float *)(image + hsp__dsa_numbers_bytes(p.n_heads, p.head_dim, DTYPE));
    for (int64_t token = (int64_t)blockIdx.x * THREADS + threadIdx.x; token < n;
         token += (int64_t)gridDim.x * THREADS) {
        const unsigned char *key = p.rows.base + (uint64_t)slot * p.rows.request_stride + token * p.rows.row_stride;
        float sum = 0.0f, scale = DTYPE == HSP_E4M3 ? *(const float *)(key + p.head_dim) : 1.0f;
        for (int h = 0; h < p.n_heads; h++) {
            const unsigned char *head = image + (size_t)h * p.head_dim * (DTYPE == HSP_E4M3 ? 1 : 2);
            float dot = 0.0f;
            for (int c = 0; c < p.head_dim; c++)
                dot = fmaf(channel_of<DTYPE>(head, c), channel_of<DTYPE>(key, c), dot);
            sum = fmaf(weights[h], dot < 0.0f ? 0.0f : dot, sum);
        }
        p.scores[at * p.batch.max_tokens + token] = scale * sum + 0.0f; /* never -0 */
    }
}

int hsp__gpu_dsa_scores_plain(const hsp__gpu_dsa *dsa, int32_t dtype, void *stream) {
    int64_t blocks = hsp__gpu_pieces(dsa->batch.max_tokens, THREADS);
    dim3 grid((unsigned)(blocks < 1024 ? blocks : 1024), (unsigned)dsa->batch.batch, (unsigned)dsa->batch.n_queries);
    const void *kernel =
        dtype == HSP_E4M3 ? (const void *)dsa_plain_kernel<HSP_E4M3> : (const void *)dsa_plain_kernel<HSP_BF16>;
    return hsp__gpu_launch(kernel, grid, THREADS, 1, 0, dsa, stream);
}

/* -------------------------------------------------------------------------------------------------- entry points -- */

extern "C" int hsp_gpu_dsa_scores(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const void *rows,
                                  uint64_t request_stride, uint64_t row_stride, const void *query, float *scores_out,
                                  void *stream) {
    int status = hsp__check_dsa(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (row_stride < hsp__gpu_dsa_key_bytes(shape) || ((uintptr_t)rows | request_stride | row_stride) % 4 ||
        (uintptr_t)query % 16)
        return HSP_EINVAL;
    if (batch->max_tokens == 0)
        return HSP_OK;
    if (!rows || !query || !scores_out)
        return HSP_EINVAL;
    hsp__gpu_dsa p = {*batch, {(unsigned char *)rows, request_stride, row_stride}};
    p.query = (const unsigned char *)query;
    p.scores = scores_out;
    p.n_heads = shape->n_heads;
    p.head_dim = shape->head_dim;
    p.image_bytes = hsp__dsa_image_bytes(p.n_heads, p.head_dim, shape->dtype);
    if (hsp__dsa_is_fast(p.n_heads, p.head_dim))
        return hsp__gpu_dsa_scores_fast(&p, shape->dtype, stream);
    return hsp__gpu_dsa_scores_plain(&p, shape->dtype, stream);
}

extern "C" int hsp_gpu_dsa_scratch(const hsp_dsa_shape *shape, int32_t max_batch, int32_t n_queries, int32_t max_tokens,
                                   size_t *bytes_out) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (max_batch < 0 || n_queries < 1 || max_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    *bytes_out = (size_t)max_batch * n_queries * max_tokens * sizeof(float);
    return HSP_OK;
}

extern "C" int hsp_gpu_dsa_select(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const void *rows,
                                  uint64_t request_stride, uint64_t row_stride, const void *query, int32_t k,
                                  int32_t *selection_out, void *scratch, void *stream) {
    if (k < 1 || !selection_out)
        return hsp__check_dsa(shape) == HSP_ELIMIT ? HSP_ELIMIT : HSP_EINVAL;
    int status = hsp_gpu_dsa_scores(shape, batch, rows, request_stride, row_stride, query, (float *)scratch, stream);
    return status ? status : hsp_gpu_top(batch, (const float *)scratch, k, selection_out, stream);
}
