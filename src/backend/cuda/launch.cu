/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

cudaError_t hsp__cuda_prepare(const void *kernel, int shared_bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

unsigned long long hsp__cuda_capture_of(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess || status != cudaStreamCaptureStatusActive)
        return 0;
    return id + 1; /* whatever numbers captures have */
}

cudaError_t hsp__cuda_launch(const void *kernel, hsp__cuda_shape shape, const void *params, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2] = {};
    void *arguments[] = {(void *)params};
    unsigned n = 0;
    config.gridDim = dim3((unsigned)shape.blocks);
    config.blockDim = dim3((unsigned)shape.threads);
    config.dynamicSmemBytes = (size_t)shape.shared_bytes;
    config.stream = stream;
    if (shape.parts > 1) {
        attribute[n].id = cudaLaunchAttributeClusterDimension;
        attribute[n].val.clusterDim.x = (unsigned)shape.parts;
        attribute[n].val.clusterDim.y = attribute[n].val.clusterDim.z = 1;
        n++;
    }
    if (shape.overlaps) {
        attribute[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[n].val.programmaticStreamSerializationAllowed = 1;
        n++;
    }
    config.attrs = attribute;
    config.numAttrs = n;
    return cudaLaunchKernelExC(&config, kernel, arguments);
}
