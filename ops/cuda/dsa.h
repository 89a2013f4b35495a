/* SPDX-License-Identifier: Apache-2.0 */
/* What the indexer's kernels are launched with. */
#ifndef HSP_OPS_CUDA_DSA_H
#define HSP_OPS_CUDA_DSA_H

#include "batch.h"

/* Token t of slot s at base + s * request_stride + t * row_stride. */
typedef struct hsp__gpu_rows {
    unsigned char *base;
    uint64_t request_stride, row_stride;
} hsp__gpu_rows;

typedef struct hsp__gpu_dsa {
    hsp_gpu_batch batch;
    hsp__gpu_rows rows;
    const unsigned char *query; /* packed, image_bytes from one to the next */
    float *scores;              /* [batch][n_queries][max_tokens] */
    uint64_t image_bytes;
    int32_t n_heads, head_dim;
    int32_t queries_together; /* set by the launch: queries a block serves */
} hsp__gpu_dsa;

static inline size_t hsp__gpu_dsa_key_bytes(const hsp_dsa_shape *shape) {
    return shape->dtype == HSP_E4M3 ? (size_t)shape->head_dim + sizeof(float) : 2 * (size_t)shape->head_dim;
}

/* Tensor cores, and plain multiplications for the shapes these do not take. */
int hsp__gpu_dsa_scores_fast(const hsp__gpu_dsa *dsa, int32_t dtype, void *stream);
int hsp__gpu_dsa_scores_plain(const hsp__gpu_dsa *dsa, int32_t dtype, void *stream);

#endif
