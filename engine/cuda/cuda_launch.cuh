/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HISPARSE_CUDA_LAUNCH_CUH
#define HISPARSE_CUDA_LAUNCH_CUH

#include <cuda_runtime_api.h>
#include <stdint.h>

enum { THREADS = 256 };

static inline unsigned blocks_for(int64_t items) {
    return (unsigned)((items + THREADS - 1) / THREADS);
}

template <typename... parameters, typename... arguments>
static cudaError_t launch(void (*kernel)(parameters...), dim3 grid, cudaStream_t stream, arguments... a) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaSuccess;
    kernel<<<grid, THREADS, 0, stream>>>(a...);
    return cudaGetLastError();
}

#endif
