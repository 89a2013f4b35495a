/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

cudaError_t hsp__cuda_prepare(const void *kernel, int shared_bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

cudaError_t hsp__cuda_launch(const void *kernel, int blocks, int threads, int parts, int shared_bytes,
                             const void *params, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster = {};
    void *arguments[] = {(void *)params};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)shared_bytes;
    config.stream = stream;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)parts;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = parts > 1;
    return cudaLaunchKernelExC(&config, kernel, arguments);
}
