/* SPDX-License-Identifier: Apache-2.0
 *
 * What every entry point of the library on the GPU does: check the batch, launch, and make a status of what CUDA says.
 */
#ifndef HSP_OPS_CUDA_BATCH_H
#define HSP_OPS_CUDA_BATCH_H

#include "hisparse_ops_gpu.h"

#include <cuda_runtime_api.h>

static inline int hsp__gpu_check(const hsp_gpu_batch *b) {
    if (!b || b->struct_size != sizeof *b || b->batch < 0 || b->n_queries < 1 || b->max_tokens < 0 || !b->slot ||
        !b->n_tokens)
        return HSP_EINVAL;
    return b->batch > 65535 || b->n_queries > 65535 || b->max_tokens > 1 << 30 ? HSP_ELIMIT : HSP_OK;
}

static inline int hsp__gpu_status(cudaError_t status) {
    return status == cudaSuccess ? HSP_OK : HSP_EDEVICE;
}

/* How many `each` hold n. */
static inline int64_t hsp__gpu_pieces(int64_t n, int64_t each) {
    return (n + each - 1) / each;
}

#ifdef __CUDACC__
/* Grids are sized by what there may be; this is what there is. */
static __device__ __forceinline__ int32_t hsp__gpu_tokens(const hsp_gpu_batch &b, int32_t entry, int32_t query) {
    int32_t n = b.n_tokens[(size_t)entry * b.n_queries + query];
    return n < 0 ? 0 : n > b.max_tokens ? b.max_tokens : n;
}

/* A launch of blocks of which `cluster` along x go together, 1: no cluster. attribute: what the configuration points
 * to. */
static inline int hsp__gpu_prepare(const void *kernel, dim3 grid, int threads, int cluster, size_t shared_bytes,
                                   void *stream, cudaLaunchAttribute *attribute, cudaLaunchConfig_t *config) {
    cudaFuncAttributes own = {};
    if (shared_bytes > 0 && cudaFuncGetAttributes(&own, kernel) != cudaSuccess)
        return HSP_EDEVICE;
    /* What a kernel has by itself counts too. */
    if (own.sharedSizeBytes + shared_bytes > 48 * 1024 &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes) != cudaSuccess)
        return HSP_EDEVICE;
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = (unsigned)cluster;
    attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
    *config = {};
    config->gridDim = grid;
    config->blockDim = dim3((unsigned)threads);
    config->dynamicSmemBytes = shared_bytes;
    config->stream = (cudaStream_t)stream;
    config->attrs = attribute;
    config->numAttrs = cluster > 1 ? 1 : 0;
    return HSP_OK;
}

/* Launch a kernel whose one argument is a struct. */
static inline int hsp__gpu_launch(const void *kernel, dim3 grid, int threads, int cluster, size_t shared_bytes,
                                  const void *params, void *stream) {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attribute = {};
    void *arguments[] = {(void *)params};
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return HSP_OK;
    int status = hsp__gpu_prepare(kernel, grid, threads, cluster, shared_bytes, stream, &attribute, &config);
    if (status)
        return status;
    return hsp__gpu_status(cudaLaunchKernelExC(&config, kernel, arguments));
}
#endif

#endif
