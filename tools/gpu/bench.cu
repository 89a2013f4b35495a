/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/bench.h"
#include "gpu/check.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <new>

/* ---------------------------------------------------------------------------------------------- rows that tell -- */

/* request 10 bits, layer 10, token 22, word 14; the top bit, so that no word is 0. */
static __device__ uint64_t place_of(uint32_t request, uint32_t layer, uint32_t token, uint32_t word) {
    return 1ull << 63 | (uint64_t)request << 46 | (uint64_t)layer << 36 | (uint64_t)token << 14 | word;
}

static __device__ void tell(uint64_t place, uint64_t *word) {
    *word = place;
}

static __device__ void tell(uint64_t place, uint32_t *word) {
    *word = (uint32_t)(place * 0x9e3779b97f4a7c15ull >> 32);
}

static __device__ uint32_t warp_number(void) {
    return (blockIdx.x * blockDim.x + threadIdx.x) / 32;
}

static __device__ uint32_t n_warps(void) {
    return gridDim.x * (blockDim.x / 32);
}

/* One warp a row. */
template <typename word>
__global__ void make_rows_kernel(gpu_rows rows, uint32_t request, uint32_t first, uint32_t n) {
    for (uint32_t i = warp_number(); i < n; i += n_warps()) {
        word *row = (word *)((char *)rows.base + (uint64_t)i * rows.stride);
        for (uint32_t w = threadIdx.x % 32; w < rows.row_bytes / sizeof(word); w += 32)
            tell(place_of(request, rows.layer, first + i, w), &row[w]);
    }
}

struct wanted {
    const int32_t *ids;
    const uint32_t *tokens;
    int64_t n_rows;
    uint32_t n, per_request, context;
};

template <typename word>
__global__ void check_rows_kernel(gpu_rows rows, wanted want, unsigned long long *wrong) {
    for (uint32_t i = warp_number(); i < want.n; i += n_warps()) {
        int32_t id = want.ids[i];
        bool same = id >= 0 && id < want.n_rows;
        const word *row = (const word *)((const char *)rows.base + (uint64_t)(same ? id : 0) * rows.stride);
        for (uint32_t w = threadIdx.x % 32; same && w < rows.row_bytes / sizeof(word); w += 32) {
            word right;
            tell(place_of(i / want.per_request, rows.layer, want.tokens[i] % want.context, w), &right);
            same = row[w] == right;
        }
        if (!__all_sync(~0u, same) && threadIdx.x % 32 == 0)
            atomicAdd(wrong, 1ull);
    }
}

/* ------------------------------------------------------------------------------------------------ the yardstick -- */

/* Division by multiplication: floor(x * magic / 2^32) is the quotient or one more, for x below 2^31. */
struct divisor {
    uint32_t by, magic; /* magic 0: by is 1 */
};

static __device__ __forceinline__ uint32_t divide(uint32_t x, divisor d) {
    uint32_t quotient = d.magic ? __umulhi(x, d.magic) : x;
    return quotient - (quotient * d.by > x);
}

/* Host memory is read once: it must not settle in the L1. */
static __device__ __forceinline__ void load_once(const uint4 *from, uint4 *v) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v->x), "=r"(v->y), "=r"(v->z), "=r"(v->w)
                 : "l"(from));
}

static __device__ __forceinline__ void load_once(const uint2 *from, uint2 *v) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v->x), "=r"(v->y) : "l"(from));
}

static __device__ __forceinline__ void load_once(const uint32_t *from, uint32_t *v) {
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(*v) : "l"(from));
}

/* Rows one after the other as one flat list of pieces, IN_FLIGHT independent loads a thread before its first store. */
template <typename piece, int IN_FLIGHT>
__global__ void __launch_bounds__(1024) gather_kernel(gpu_gather g, divisor row_pieces) {
    const uint32_t total = g.n * row_pieces.by, stride = gridDim.x * blockDim.x;
    for (uint32_t c = blockIdx.x * blockDim.x + threadIdx.x; c < total; c += IN_FLIGHT * stride) {
        piece value[IN_FLIGHT], *to[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            uint32_t i = c + u * stride;
            if (i < total) {
                uint32_t r = divide(i, row_pieces), q = i - r * row_pieces.by;
                to[u] = (piece *)((char *)g.rows + (uint64_t)g.to[r] * g.row_stride) + q;
                load_once((const piece *)((const char *)g.pool + (uint64_t)g.from[r] * g.pool_stride) + q, &value[u]);
            }
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (c + u * stride < total)
                *to[u] = value[u];
    }
}

/* ------------------------------------------------------------------------------------------------ time and the L2 --
 */

static __device__ __forceinline__ uint64_t now_ns(void) {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__global__ void stamp_kernel(uint64_t *stamp) {
    *stamp = now_ns();
}

/* The smallest of some steps of the clock. */
__global__ void tick_kernel(uint64_t *ns_out) {
    uint64_t least = ~0ull, last = now_ns();
    for (int i = 0; i < 64; i++) {
        uint64_t now = last;
        while (now == last)
            now = now_ns();
        least = now - last < least ? now - last : least;
        last = now;
    }
    *ns_out = least;
}

__global__ void sweep_kernel(uint4 *memory, uint64_t n) {
    uint32_t sum = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        uint4 v = memory[i];
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678) /* the memory holds zeros: never, but the compiler cannot know */
        memory[0].x = sum;
}

/* --------------------------------------------------------------------------------------------------------- lane -- */

enum { SWEEP_L2_TIMES = 3, SWEEP_BLOCKS = 264, ROW_BLOCKS = 528 };

struct gpu_lane {
    cudaStream_t stream;
    uint4 *swept;
    uint64_t n_swept;       /* pieces of 16 bytes */
    uint64_t *stamp, *read; /* [most_stamps], on the GPU and here; stamp also has room for one number more */
    int most_stamps;
    double tick_us;
};

static int refuse(cudaError_t why, const char *what) {
    return gpu_fine(why, what) ? 0 : -1;
}

static void close_lane(gpu_lane *lane) {
    if (!lane)
        return;
    cudaFree(lane->swept);
    cudaFree(lane->stamp);
    free(lane->read);
    if (lane->stream)
        cudaStreamDestroy(lane->stream);
    delete lane;
}

/* A kernel is loaded when it is first used, which had better not be while a graph is captured. */
static bool load_kernels(void) {
    const void *kernels[] = {(const void *)stamp_kernel, (const void *)sweep_kernel,
                             (const void *)gather_kernel<uint4, 4>, (const void *)gather_kernel<uint2, 8>,
                             (const void *)gather_kernel<uint32_t, 8>};
    cudaFuncAttributes attributes;
    for (const void *kernel : kernels)
        if (!FINE(cudaFuncGetAttributes(&attributes, kernel)))
            return false;
    return true;
}

static bool set_up(gpu_lane *lane, int most_stamps) {
    int device, l2_bytes;
    uint64_t ns = 0;
    if (!FINE(cudaGetDevice(&device)) || !FINE(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device)) ||
        !FINE(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking)))
        return false;
    lane->most_stamps = most_stamps;
    lane->n_swept = (uint64_t)l2_bytes * SWEEP_L2_TIMES / sizeof(uint4);
    lane->read = (uint64_t *)calloc((size_t)most_stamps, sizeof(uint64_t));
    if (!lane->read)
        return gpu_fine(cudaErrorMemoryAllocation, "calloc");
    if (!FINE(cudaMalloc(&lane->swept, lane->n_swept * sizeof(uint4))) ||
        !FINE(cudaMemset(lane->swept, 0, lane->n_swept * sizeof(uint4))) ||
        !FINE(cudaMalloc(&lane->stamp, ((size_t)most_stamps + 1) * sizeof(uint64_t))) ||
        !FINE(cudaMemset(lane->stamp, 0, ((size_t)most_stamps + 1) * sizeof(uint64_t))) || !load_kernels())
        return false;
    /* The stream does not wait for what was set to zero on the default one. */
    if (!FINE(cudaDeviceSynchronize()))
        return false;
    tick_kernel<<<1, 1, 0, lane->stream>>>(lane->stamp);
    if (!gpu_fine(cudaGetLastError(), "tick_kernel") || !FINE(cudaStreamSynchronize(lane->stream)) ||
        !FINE(cudaMemcpy(&ns, lane->stamp, sizeof ns, cudaMemcpyDeviceToHost)))
        return false;
    lane->tick_us = (double)ns * 1e-3;
    return true;
}

static int open_lane(int most_stamps, gpu_lane **lane_out) {
    gpu_lane *lane = new (std::nothrow) gpu_lane();
    if (!lane)
        return refuse(cudaErrorMemoryAllocation, "new");
    if (!set_up(lane, most_stamps)) {
        close_lane(lane);
        return -1;
    }
    *lane_out = lane;
    return 0;
}

static void *stream_of(gpu_lane *lane) {
    return lane->stream;
}

static double tick_us(gpu_lane *lane) {
    return lane->tick_us;
}

static double sweep_mb(gpu_lane *lane) {
    return (double)(lane->n_swept * sizeof(uint4)) * 1e-6;
}

/* ------------------------------------------------------------------------------------------------------- graphs -- */

/* Only this thread's calls are watched: nothing here may wait or take memory, which the calls captured do not. */
static int capture_begin(gpu_lane *lane) {
    return FINE(cudaStreamBeginCapture(lane->stream, cudaStreamCaptureModeThreadLocal)) ? 0 : -1;
}

static int capture_end(gpu_lane *lane, void **graph_out) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    *graph_out = NULL;
    if (!FINE(cudaStreamEndCapture(lane->stream, &graph)))
        return -1;
    bool fine = FINE(cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphDestroy(graph);
    *graph_out = fine ? exec : NULL;
    return fine ? 0 : -1;
}

static void graph_free(void *graph) {
    if (graph)
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

static int replay(gpu_lane *lane, void *graph, int n, double *us_out) {
    if (n > lane->most_stamps)
        return refuse(cudaErrorInvalidValue, "replay: more stamps than there is room for");
    if (!FINE(cudaGraphLaunch((cudaGraphExec_t)graph, lane->stream)) || !FINE(cudaStreamSynchronize(lane->stream)) ||
        !FINE(cudaMemcpy(lane->read, lane->stamp, (size_t)n * sizeof(uint64_t), cudaMemcpyDeviceToHost)))
        return -1;
    for (int i = 0; i < n; i++)
        us_out[i] = (double)(int64_t)(lane->read[i] - lane->read[0]) * 1e-3;
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- launches -- */

static int launched(const char *kernel) {
    return gpu_fine(cudaGetLastError(), kernel) ? 0 : -1;
}

static int stamp(gpu_lane *lane, int number) {
    if (number >= lane->most_stamps)
        return refuse(cudaErrorInvalidValue, "stamp: more stamps than there is room for");
    stamp_kernel<<<1, 1, 0, lane->stream>>>(lane->stamp + number);
    return launched("stamp_kernel");
}

static int sweep(gpu_lane *lane) {
    sweep_kernel<<<SWEEP_BLOCKS, 1024, 0, lane->stream>>>(lane->swept, lane->n_swept);
    return launched("sweep_kernel");
}

/* The same bytes in flight whatever the piece, as far as registers allow. */
static int gather(gpu_lane *lane, const gpu_gather *what, int blocks) {
    uint32_t all = what->row_bytes | what->pool_stride | what->row_stride;
    uint32_t piece = all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : 4, by = what->row_bytes / piece;
    divisor row_pieces = {by, by == 1 ? 0 : (uint32_t)((1ull << 32) / by) + 1};
    if ((uint64_t)what->n * by >= 1ull << 31)
        return refuse(cudaErrorInvalidValue, "gather: more than 2^31 pieces");
    if (what->n == 0)
        return 0;
    if (piece == 16)
        gather_kernel<uint4, 4><<<blocks, 1024, 0, lane->stream>>>(*what, row_pieces);
    else if (piece == 8)
        gather_kernel<uint2, 8><<<blocks, 1024, 0, lane->stream>>>(*what, row_pieces);
    else
        gather_kernel<uint32_t, 8><<<blocks, 1024, 0, lane->stream>>>(*what, row_pieces);
    return launched("gather_kernel");
}

static int make_rows(gpu_lane *lane, const gpu_rows *rows, uint32_t request, uint32_t first, uint32_t n) {
    if (rows->row_bytes % 8 == 0)
        make_rows_kernel<uint64_t><<<ROW_BLOCKS, 512, 0, lane->stream>>>(*rows, request, first, n);
    else
        make_rows_kernel<uint32_t><<<ROW_BLOCKS, 512, 0, lane->stream>>>(*rows, request, first, n);
    return launched("make_rows_kernel");
}

static int check_rows(gpu_lane *lane, const gpu_rows *rows, int64_t n_rows, const int32_t *ids, const uint32_t *tokens,
                      uint32_t n, uint32_t per_request, uint32_t context, uint64_t *wrong_out) {
    unsigned long long *wrong = (unsigned long long *)(lane->stamp + lane->most_stamps);
    wanted want = {ids, tokens, n_rows, n, per_request, context};
    if (!FINE(cudaMemsetAsync(wrong, 0, sizeof *wrong, lane->stream)))
        return -1;
    if (rows->row_bytes % 8 == 0)
        check_rows_kernel<uint64_t><<<ROW_BLOCKS, 512, 0, lane->stream>>>(*rows, want, wrong);
    else
        check_rows_kernel<uint32_t><<<ROW_BLOCKS, 512, 0, lane->stream>>>(*rows, want, wrong);
    bool fine = launched("check_rows_kernel") == 0 && FINE(cudaStreamSynchronize(lane->stream)) &&
                FINE(cudaMemcpy(wrong_out, wrong, sizeof *wrong_out, cudaMemcpyDeviceToHost));
    return fine ? 0 : -1;
}

/* -------------------------------------------------------------------------------------------------- host memory -- */

/* The device's address is asked for: it need not be the host's. */
static int map_host(void *memory, size_t bytes, void **device_out) {
    if (!FINE(cudaHostRegister(memory, bytes, cudaHostRegisterMapped)))
        return -1;
    if (FINE(cudaHostGetDevicePointer(device_out, memory, 0)))
        return 0;
    cudaHostUnregister(memory);
    return -1;
}

static int unmap_host(void *memory) {
    return FINE(cudaHostUnregister(memory)) ? 0 : -1;
}

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT extern const gpu_bench gpu_bench_table;
const gpu_bench gpu_bench_table = {open_lane,   close_lane, stream_of, tick_us,   sweep_mb, capture_begin,
                                   capture_end, graph_free, replay,    stamp,     sweep,    gather,
                                   make_rows,   check_rows, map_host,  unmap_host};
