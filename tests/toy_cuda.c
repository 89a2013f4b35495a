/* SPDX-License-Identifier: Apache-2.0 */
#include "toy.h"

#include <cuda_runtime_api.h>

static void need(cudaError_t status, const char *what) {
    if (status != cudaSuccess)
        toy_differs(__FILE__, __LINE__, what, status, cudaSuccess);
}

static void *alloc(size_t bytes) {
    void *memory = NULL;
    need(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped), "cudaHostAlloc");
    return memset(memory, 0, bytes);
}

static void release(void *memory) {
    need(cudaFreeHost(memory), "cudaFreeHost");
}

static void read_device(void *to, const void *device, size_t bytes) {
    need(cudaMemcpy(to, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

static void wait(void) {
    need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static const toy_device cuda_device = {alloc, release, read_device, wait};
const toy_device *const toy_cuda_device = &cuda_device;
