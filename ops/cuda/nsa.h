/* SPDX-License-Identifier: Apache-2.0 */
/* Importances of NSA's blocks, for the two ways there are to them. */
#ifndef HSP_OPS_CUDA_NSA_H
#define HSP_OPS_CUDA_NSA_H

#include "score_keys.h"

typedef struct hsp__gpu_nsa {
    hsp__gpu_softmax softmax;
    float *importance; /* [entries * queries * n_kv_heads][most_blocks] */
    int32_t most_blocks, block_tokens;
    int32_t n_resident; /* clusters under way at once; 0: nobody has asked */
} hsp__gpu_nsa;

/* One launch, which keeps the scores in the shared memory of clusters: can it be, and make it. */
int hsp__gpu_nsa_cluster_can(const hsp__gpu_nsa *nsa);
int hsp__gpu_nsa_cluster(const hsp__gpu_nsa *nsa, void *stream);

#ifdef __CUDACC__
/* Equation 9, as in ops/nsa.c: every piece of the block adds the compressed keys it is part of. sum_at(i): what key i
 * receives from all heads. */
template <class SumAt>
static __device__ __forceinline__ float importance_of(const hsp__gpu_nsa &p, int32_t n_compressed, int32_t block,
                                                      SumAt sum_at) {
    int32_t per_block = p.block_tokens / p.softmax.keys.step, per_key = p.softmax.keys.span / p.softmax.keys.step;
    int32_t first = block * per_block, end = min(per_block, n_compressed - first); /* first + per_block may not fit */
    float importance = 0.0f;
    for (int32_t i = -min(per_key - 1, first); i < end; i++) {
        int32_t shared = i < 0 ? min(per_key + i, per_block) : min(per_key, per_block - i);
        importance = fmaf((float)shared, sum_at(first + i), importance);
    }
    return importance;
}
#endif

#endif
