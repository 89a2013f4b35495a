/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/check.h"
#include "gpu/memory.h"

#include <cstdio>

static thread_local char text[256];

bool gpu_fine(cudaError_t status, const char *call) {
    if (status == cudaSuccess)
        return true;
    snprintf(text, sizeof text, "%.100s: %s", call, cudaGetErrorString(status));
    cudaGetLastError(); /* the next call must not report this one again */
    return false;
}

static const char *error(void) {
    return text;
}

static int device_name(char *name_out, size_t bytes) {
    cudaDeviceProp properties;
    int device;
    if (!FINE(cudaGetDevice(&device)) || !FINE(cudaGetDeviceProperties(&properties, device)))
        return -1;
    snprintf(name_out, bytes, "%s", properties.name);
    return 0;
}

static int alloc(size_t bytes, void **memory_out) {
    return FINE(cudaMalloc(memory_out, bytes)) ? 0 : -1;
}

static int alloc_shared(size_t bytes, void **memory_out) {
    return FINE(cudaHostAlloc(memory_out, bytes, cudaHostAllocMapped | cudaHostAllocPortable)) ? 0 : -1;
}

static void release(void *memory) {
    cudaPointerAttributes attributes;
    if (!memory || cudaPointerGetAttributes(&attributes, memory) != cudaSuccess)
        return;
    if (attributes.type == cudaMemoryTypeHost)
        cudaFreeHost(memory);
    else
        cudaFree(memory);
}

static int copy(void *to, const void *from, size_t bytes) {
    return FINE(cudaMemcpy(to, from, bytes, cudaMemcpyDefault)) ? 0 : -1;
}

static int wait(void) {
    return FINE(cudaDeviceSynchronize()) ? 0 : -1;
}

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT extern const gpu_memory gpu_memory_table;
const gpu_memory gpu_memory_table = {error, device_name, alloc, alloc_shared, release, copy, wait};
EXPORT extern const char *const gpu_version;
const char *const gpu_version = HSP_VERSION_TEXT;
