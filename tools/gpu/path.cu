/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/check.h"
#include "gpu/path.h"

#include <cuda_runtime.h>

#include <new>

enum { THREADS = 1024, BLOCKS_AN_SM = 2, AT_ONCE = 4 };
#define WEIGHT_BYTES ((uint64_t)2 << 30)

struct gpu_weights {
    uint4 *memory; /* WEIGHT_BYTES, all zero */
    uint32_t next; /* block of GPU_WORK_READ bytes */
    uint32_t wave; /* blocks that fill the GPU */
};

/* ------------------------------------------------------------------------------------------------------ kernels -- */

/* A block reads its own GPU_WORK_READ bytes, AT_ONCE independent loads a thread. */
static __global__ void __launch_bounds__(THREADS, BLOCKS_AN_SM)
    read_kernel(uint4 *memory, uint32_t first, uint32_t n_blocks) {
    const uint32_t pieces = GPU_WORK_READ / sizeof(uint4);
    const uint4 *from = memory + (uint64_t)((first + blockIdx.x) % n_blocks) * pieces;
    uint32_t sum = 0;
    for (uint32_t i = threadIdx.x; i < pieces; i += THREADS * AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (uint32_t u = 0; u < AT_ONCE; u++)
            v[u] = from[i + u * THREADS];
#pragma unroll
        for (uint32_t u = 0; u < AT_ONCE; u++)
            sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    if (sum == 0x12345678) /* the memory holds zeros: never, but the compiler cannot know */
        memory[0].x = sum;
}

static __global__ void __launch_bounds__(THREADS, BLOCKS_AN_SM) multiply_kernel(uint4 *memory, uint32_t rounds) {
    float a = (float)threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (uint32_t i = 0; i < rounds; i++) {
        a = fmaf(a, 0.999f, 1.0f);
        b = fmaf(b, 0.999f, 1.0f);
        c = fmaf(c, 0.999f, 1.0f);
        d = fmaf(d, 0.999f, 1.0f);
    }
    if (a + b + c + d < 0) /* never */
        memory[0].x = rounds;
}

static __global__ void put_kernel(uint4 *to, const uint4 *from, uint32_t n) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to[i] = from[i];
}

/* -------------------------------------------------------------------------------------------------------- calls -- */

static int launched(const char *kernel) {
    return gpu_fine(cudaGetLastError(), kernel) ? 0 : -1;
}

static int work(gpu_weights *w, const gpu_work *amount, void *stream) {
    const uint32_t n_blocks = (uint32_t)(WEIGHT_BYTES / GPU_WORK_READ), reads = amount->reads / GPU_WORK_TURNS;
    const uint32_t rounds = amount->rounds / GPU_WORK_TURNS;
    cudaStream_t s = (cudaStream_t)stream;
    for (int turn = 0; turn < GPU_WORK_TURNS; turn++) {
        if (reads)
            read_kernel<<<reads, THREADS, 0, s>>>(w->memory, w->next, n_blocks);
        w->next = (w->next + reads) % n_blocks;
        if (rounds)
            multiply_kernel<<<amount->waves * w->wave, THREADS, 0, s>>>(w->memory, rounds);
    }
    return launched("the stand-in for the rest of a layer");
}

static int attend(const hsp_mla_shape *shape, const hsp_plane_view *rows, const hsp_gpu_batch *batch,
                  const float *query, const int32_t *row_ids, int32_t n_rows, int32_t n_chunks, float *out,
                  void *stream) {
    int status =
        hsp_gpu_mla_attend(shape, rows, batch, query, row_ids, n_rows, n_chunks, nullptr, out, nullptr, stream);
    if (status == HSP_OK)
        return 0;
    cudaError_t why = cudaGetLastError();
    gpu_fine(why == cudaSuccess ? cudaErrorInvalidValue : why, "hsp_gpu_mla_attend");
    return -1;
}

static int put(void *to, const void *from, int32_t row_bytes, int32_t n, void *stream) {
    const uint32_t pieces = (uint32_t)row_bytes / sizeof(uint4) * (uint32_t)n;
    put_kernel<<<(pieces + 127) / 128, 128, 0, (cudaStream_t)stream>>>((uint4 *)to, (const uint4 *)from, pieces);
    return launched("put_kernel");
}

/* ----------------------------------------------------------------------------------------------- open and close -- */

static void close_weights(gpu_weights *w) {
    if (!w)
        return;
    cudaFree(w->memory); /* NULL is allowed */
    delete w;
}

static bool take(gpu_weights *w) {
    int device, multiprocessors = 0;
    if (!FINE(cudaGetDevice(&device)) ||
        !FINE(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)))
        return false;
    w->wave = (uint32_t)multiprocessors * BLOCKS_AN_SM;
    return FINE(cudaMalloc((void **)&w->memory, WEIGHT_BYTES)) && FINE(cudaMemset(w->memory, 0, WEIGHT_BYTES)) &&
           FINE(cudaDeviceSynchronize());
}

static int open_weights(gpu_weights **weights_out) {
    gpu_weights *w = new (std::nothrow) gpu_weights();
    if (!(w ? take(w) : gpu_fine(cudaErrorMemoryAllocation, "memory for the stand-in"))) {
        close_weights(w);
        return -1;
    }
    *weights_out = w;
    return 0;
}

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT extern const gpu_path gpu_path_table;
const gpu_path gpu_path_table = {open_weights, close_weights, work, attend, put};
