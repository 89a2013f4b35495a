/* SPDX-License-Identifier: Apache-2.0 */
/* Followers at once or later: what a decode step of a group of four layers takes, with rows of 656 bytes and k = 2048.
 * Before each swap-in other memory fills the L2; each layer then has work of a set time on every multiprocessor, which
 * stands for its attention and all that comes before the next. Build and run on the GPU machine:
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I include -o followers_later lab/followers_later.cu \
 *     -L build/cpu/lib -lhisparse && LD_LIBRARY_PATH=build/cpu/lib ./followers_later
 *
 * It needs 12 GB of host memory. Microseconds a group, median of nine replays of a graph of 12 steps; later_x: with x
 * blocks that fetch for a follower. Every step misses exactly the rows its line says: the program stops when it did
 * not. */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "hisparse.h"

#define NEED(call)                                                                                                     \
    do {                                                                                                               \
        int status_ = (int)(call);                                                                                     \
        if (status_ != 0) {                                                                                            \
            fprintf(stderr, "%s: %d: %s, %s\n", #call, status_, cudaGetErrorString(cudaGetLastError()),                \
                    hsp_last_error(NULL));                                                                             \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { ROW = 656, K = 2048, SLOTS = 4096, LAYERS = 4, CONTEXT = 32768, STEPS = 12, REPLAYS = 9, SWEEP_MB = 120 };

/* ------------------------------------------------------------------------------------------------------ kernels -- */

/* The i-th token of a request in an order of its own: every token once in CONTEXT of them. */
static __device__ int32_t token_at(uint32_t i, uint32_t request) {
    uint32_t x = i + request * 977;
    x = x * 12043 & (CONTEXT - 1);
    x ^= x >> 7;
    x = x * 27061 & (CONTEXT - 1);
    return (int32_t)(x ^ x >> 8);
}

/* A window that moves on by the misses of each step. Where it is lies on the device, so that replays go on. */
__global__ void select_tokens(int32_t *selection, const uint32_t *place) {
    for (uint32_t e = threadIdx.x; e < K; e += blockDim.x)
        selection[blockIdx.x * K + e] = token_at(*place + e, blockIdx.x);
}

__global__ void move_on(uint32_t *place, uint32_t miss) {
    *place += miss;
}

__global__ void sweep(const uint4 *memory, uint32_t n, uint32_t *sum) {
    uint32_t mine = 0;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += memory[i].x;
    if (mine == 12345)
        *sum = mine;
}

__global__ void work(uint64_t ns) {
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}

/* -------------------------------------------------------------------------------------------------------- a cache --
 */

struct setting {
    const char *name;
    uint32_t flags;
    int blocks; /* fetch_blocks; 0: by rule */
};
static const setting settings[] = {{"no_io", HSP_NO_IO, 0},
                                   {"no_io_later", HSP_NO_IO | HSP_PREFETCH, 0},
                                   {"at_once", 0, 0},
                                   {"later_4", HSP_PREFETCH, 4},
                                   {"later_8", HSP_PREFETCH, 8},
                                   {"later_16", HSP_PREFETCH, 16}};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

struct bench {
    hsp_cache *cache;
    std::vector<int32_t> request;
    cudaStream_t stream;
    int32_t *selection, *ids;
    uint32_t *place, *sum;
    uint4 *other; /* what the L2 is filled with */
    int n_multiprocessors;
};

static void open_cache(bench *b, int batch, const setting &s) {
    static const int32_t together[LAYERS] = {0, 0, 0, 0};
    hsp_config c;
    hsp_config_init(&c, sizeof c);
    NEED(hsp_config_set(&c, "backend", "cuda"));
    c.n_layers = LAYERS;
    c.layer_group = together;
    c.max_requests = c.max_batch = batch;
    c.max_context = CONTEXT;
    c.host_tokens = (int64_t)batch * CONTEXT;
    c.n_slots = SLOTS;
    c.max_k = K;
    c.huge_pages = 1;
    c.flags = s.flags;
    c.fetch_blocks = s.blocks;
    NEED(hsp_open(&c, &b->cache));
    hsp_row_source rows = {{b->other}, {ROW}}; /* any bytes */
    b->request.resize((size_t)batch);
    for (int32_t &r : b->request) {
        NEED(hsp_admit(b->cache, CONTEXT, &r));
        for (int layer = 0; layer < LAYERS; layer++)
            NEED(hsp_fill(b->cache, r, layer, 0, CONTEXT, &rows, b->stream));
    }
    std::vector<int32_t> none((size_t)batch, 0);
    NEED(hsp_step_begin(b->cache, b->request.data(), none.data(), batch, b->stream));
}

static void queue_steps(bench *b, int batch, uint32_t miss, uint64_t work_ns) {
    for (int s = 0; s < STEPS; s++) {
        select_tokens<<<batch, 256, 0, b->stream>>>(b->selection, b->place);
        move_on<<<1, 1, 0, b->stream>>>(b->place, miss);
        sweep<<<2 * b->n_multiprocessors, 512, 0, b->stream>>>(b->other, (uint32_t)SWEEP_MB << 16, b->sum);
        NEED(hsp_swap_in(b->cache, 0, b->selection, 1, K, b->ids, b->stream));
        for (int layer = 0; layer < LAYERS; layer++) {
            NEED(hsp_wait_rows(b->cache, layer, b->stream));
            work<<<b->n_multiprocessors, 512, 0, b->stream>>>(work_ns);
        }
    }
}

static double time_replay(bench *b, cudaGraphExec_t graph) {
    cudaEvent_t start, end;
    float ms;
    NEED(cudaEventCreate(&start));
    NEED(cudaEventCreate(&end));
    NEED(cudaEventRecord(start, b->stream));
    NEED(cudaGraphLaunch(graph, b->stream));
    NEED(cudaEventRecord(end, b->stream));
    NEED(cudaStreamSynchronize(b->stream));
    NEED(cudaEventElapsedTime(&ms, start, end));
    NEED(cudaEventDestroy(start));
    NEED(cudaEventDestroy(end));
    return ms * 1e3 / STEPS;
}

static void check_misses(bench *b, uint64_t want) {
    hsp_stats_view stats = {};
    stats.struct_size = sizeof stats;
    NEED(hsp_stats(b->cache, &stats));
    if (stats.total.misses == want)
        return;
    fprintf(stderr, "%llu rows were missed, not %llu\n", (unsigned long long)stats.total.misses,
            (unsigned long long)want);
    exit(1);
}

/* Median of the replays, after one to warm up. */
static double measure(bench *b, int batch, uint32_t miss, uint64_t work_ns) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    double us[REPLAYS];
    NEED(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeGlobal));
    queue_steps(b, batch, miss, work_ns);
    NEED(cudaStreamEndCapture(b->stream, &graph));
    NEED(cudaGraphInstantiate(&ready, graph, 0));
    time_replay(b, ready);
    NEED(hsp_stats_reset(b->cache));
    for (double &one : us)
        one = time_replay(b, ready);
    check_misses(b, (uint64_t)REPLAYS * STEPS * (uint64_t)batch * miss);
    NEED(cudaGraphExecDestroy(ready));
    NEED(cudaGraphDestroy(graph));
    std::sort(us, us + REPLAYS);
    return us[REPLAYS / 2];
}

/* ------------------------------------------------------------------------------------------------------------ run --
 */

enum { N_MISSES = 2, N_WORKS = 3 };
static const uint32_t misses[N_MISSES] = {102, 274}; /* 5% and 13.4% */
static const uint64_t works_us[N_WORKS] = {5, 20, 80};

static void measure_batch(bench *b, int batch) {
    double us[N_MISSES][N_WORKS][N_SETTINGS];
    NEED(cudaMalloc(&b->selection, (size_t)batch * K * sizeof(int32_t)));
    NEED(cudaMalloc(&b->ids, (size_t)batch * K * sizeof(int32_t)));
    for (int s = 0; s < N_SETTINGS; s++) {
        open_cache(b, batch, settings[s]);
        for (int m = 0; m < N_MISSES; m++)
            for (int w = 0; w < N_WORKS; w++)
                us[m][w][s] = measure(b, batch, misses[m], works_us[w] * 1000);
        hsp_close(b->cache);
    }
    for (int m = 0; m < N_MISSES; m++)
        for (int w = 0; w < N_WORKS; w++) {
            printf("%d\t%u\t%d", batch, misses[m], (int)works_us[w]);
            for (int s = 0; s < N_SETTINGS; s++)
                printf("\t%.1f", us[m][w][s]);
            printf("\n");
        }
    fflush(stdout);
    NEED(cudaFree(b->selection));
    NEED(cudaFree(b->ids));
}

int main(void) {
    bench b = {};
    NEED(cudaDeviceGetAttribute(&b.n_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    NEED(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    NEED(cudaMalloc(&b.place, sizeof *b.place));
    NEED(cudaMalloc(&b.sum, sizeof *b.sum));
    NEED(cudaMemset(b.place, 0, sizeof *b.place));
    NEED(cudaMalloc(&b.other, (size_t)SWEEP_MB << 20));
    NEED(cudaMemset(b.other, 0, (size_t)SWEEP_MB << 20));
    NEED(cudaDeviceSynchronize()); /* our stream does not wait for the default one */
    printf("batch\tmisses\twork_us");
    for (const setting &s : settings)
        printf("\t%s", s.name);
    printf("\n");
    for (int batch : {1, 8, 32, 128})
        measure_batch(&b, batch);
    return 0;
}
