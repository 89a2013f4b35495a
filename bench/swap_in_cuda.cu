/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in on the GPU, through the public interface, inside CUDA graphs: resolve alone (HSP_NO_IO), with fetch, and a
 * plain gather of as many rows with the same scatter, back to back and with the L2 swept between launches. Steps x
 * layers launches a graph; every launch replaces exactly `misses` rows a request with rows that are not resident. The
 * bytes of the last step are checked before a time is printed. One JSON object a line. usage: swap_in_cuda OUT.json
 * [quick] */
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hisparse.h"

#define NEED(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t status_ = (call);                                                                                  \
        if (status_ != cudaSuccess) {                                                                                  \
            fprintf(stderr, "%s line %d: %s\n", #call, __LINE__, cudaGetErrorString(status_));                         \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define NEED_HSP(call)                                                                                                 \
    do {                                                                                                               \
        int status_ = (call);                                                                                          \
        if (status_ != HSP_OK) {                                                                                       \
            fprintf(stderr, "%s line %d: %s %s\n", #call, __LINE__, hsp_status_name(status_), hsp_last_error(cache));  \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { K = 2048, SLOTS = 4096, ROW = 656, LAYERS = 4, STEPS = 12 };

/* ------------------------------------------------------------------------------------------------------ kernels -- */

/* Every 8-byte word of a row tells request, layer, token and place. */
__host__ __device__ static uint64_t word_of(uint32_t request, uint32_t layer, uint32_t token, uint32_t word) {
    return ((uint64_t)request * 1000003u + layer) * 2654435761u + (uint64_t)token * 40503u * 65536u + word;
}

__global__ void make_rows(uint64_t *rows, uint32_t request, uint32_t layer, uint32_t first, uint32_t n) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < (uint64_t)n * (ROW / 8);
         i += (uint64_t)gridDim.x * blockDim.x)
        rows[i] = word_of(request, layer, first + (uint32_t)(i / (ROW / 8)), (uint32_t)(i % (ROW / 8)));
}

__global__ void check_rows(const char *base, const int32_t *ids, const int32_t *selection, uint32_t layer, uint32_t n,
                           unsigned long long *bad) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < (uint64_t)n * (ROW / 8);
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t e = (uint32_t)(i / (ROW / 8)), word = (uint32_t)(i % (ROW / 8));
        const uint64_t *row = (const uint64_t *)(base + (uint64_t)ids[e] * ROW);
        if (ids[e] < 0 || row[word] != word_of(e / K, layer, (uint32_t)selection[e], word))
            atomicAdd(bad, 1ull);
    }
}

__global__ void sweep_l2(uint4 *memory, uint64_t n) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        uint4 v = memory[i];
        sum.x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum.x == 0x12345678)
        memory[0] = sum;
}

/* The yardstick: rows at `from` (row numbers) to slots, flat, four pieces of 16 bytes in flight a thread. */
__global__ void __launch_bounds__(1024)
    gather(const char *host, char *rows, const uint32_t *from, const uint32_t *to, uint32_t n) {
    const uint32_t per_row = ROW / 16, total = n * per_row, stride = gridDim.x * blockDim.x;
    for (uint32_t c = blockIdx.x * blockDim.x + threadIdx.x; c < total; c += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            if (c + u * stride < total) {
                uint32_t r = (c + u * stride) / per_row, q = (c + u * stride) % per_row;
                asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(v[u].x), "=r"(v[u].y), "=r"(v[u].z), "=r"(v[u].w)
                             : "l"(host + (uint64_t)from[r] * ROW + q * 16));
            }
#pragma unroll
        for (int u = 0; u < 4; u++)
            if (c + u * stride < total)
                *(uint4 *)(rows + (uint64_t)to[(c + u * stride) / per_row] * ROW + (c + u * stride) % per_row * 16) =
                    v[u];
    }
}

/* -------------------------------------------------------------------------------------------------------- bench -- */

static cudaStream_t stream;
static cudaEvent_t before_event, after_event;
static uint4 *sweep_memory;
static const uint64_t sweep_pieces = (uint64_t)160 << 20 >> 4;

/* Captured once, replayed: microseconds a launch, median of `repeats`; `reset` runs before each. */
template <typename launch_fn, typename reset_fn>
static double time_graph(int launches, int repeats, bool swept, launch_fn launch, reset_fn reset) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++) {
        if (swept)
            sweep_l2<<<264, 1024, 0, stream>>>(sweep_memory, sweep_pieces);
        launch(i);
    }
    NEED(cudaStreamEndCapture(stream, &graph));
    NEED(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> us;
    for (int r = 0; r <= repeats; r++) {
        float ms;
        reset();
        NEED(cudaEventRecord(before_event, stream));
        NEED(cudaGraphLaunch(exec, stream));
        NEED(cudaEventRecord(after_event, stream));
        NEED(cudaStreamSynchronize(stream));
        NEED(cudaEventElapsedTime(&ms, before_event, after_event));
        if (r > 0)
            us.push_back(ms * 1e3f / launches);
    }
    NEED(cudaGraphExecDestroy(exec));
    NEED(cudaGraphDestroy(graph));
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

struct traces {
    std::vector<int32_t> hot;       /* [layer][request][SLOTS], oldest first */
    std::vector<int32_t> selection; /* [step][layer][request][K] */
    std::vector<uint32_t> from, to; /* [step][layer][request][m]: rows of the yardstick's pool, slots */
};

static traces make_traces(int batch, int context, int m) {
    std::mt19937 random(3);
    traces t;
    t.hot.resize((size_t)LAYERS * batch * SLOTS);
    t.selection.resize((size_t)STEPS * LAYERS * batch * K);
    t.from.resize((size_t)STEPS * LAYERS * batch * m);
    t.to.resize(t.from.size());
    for (int l = 0; l < LAYERS; l++)
        for (int b = 0; b < batch; b++) {
            std::vector<int32_t> order(context), now;
            for (int i = 0; i < context; i++)
                order[i] = i;
            size_t need = SLOTS + (size_t)m * STEPS, next = SLOTS;
            for (size_t i = 0; i < need; i++)
                std::swap(order[i], order[i + random() % (context - i)]);
            now.assign(order.begin(), order.begin() + K);
            for (int i = 0; i < SLOTS; i++)
                t.hot[((size_t)l * batch + b) * SLOTS + i] = order[SLOTS - 1 - i];
            for (int s = 0; s < STEPS; s++) {
                size_t at = ((size_t)s * LAYERS + l) * batch + b;
                for (int i = 0; i < m; i++) {
                    int q = m == K ? i : (int)(i + random() % (K - i));
                    std::swap(now[i], now[q]);
                    t.from[at * m + i] = (uint32_t)((l * 32u + b) * 131072u % (128u * 131072u)) + (uint32_t)order[next];
                    t.to[at * m + i] = (uint32_t)(b * SLOTS + (next * 7919u) % SLOTS);
                    now[i] = order[next++];
                }
                std::shuffle(now.begin(), now.end(), random);
                memcpy(&t.selection[at * K], now.data(), K * sizeof(int32_t));
            }
        }
    return t;
}

template <typename item>
static item *upload(const std::vector<item> &from) {
    item *to;
    NEED(cudaMalloc(&to, from.size() * sizeof(item) + 16));
    NEED(cudaMemcpy(to, from.data(), from.size() * sizeof(item), cudaMemcpyHostToDevice));
    return to;
}

struct subject {
    hsp_cache *cache;
    std::vector<int32_t> request;
};

static subject open_subject(int batch, int context, bool io) {
    hsp_config config;
    subject s = {NULL, std::vector<int32_t>(batch)};
    hsp_cache *cache = NULL;
    hsp_config_init(&config, sizeof config);
    NEED_HSP(hsp_config_set(&config, "backend", "cuda"));
    config.plane_bytes[0] = ROW;
    config.n_layers = LAYERS;
    config.max_requests = config.max_batch = batch;
    config.max_context = context;
    config.host_tokens = (int64_t)batch * context;
    config.n_slots = SLOTS;
    config.max_k = K;
    config.huge_pages = 1;
    config.flags = io ? 0 : HSP_NO_IO;
    NEED_HSP(hsp_open(&config, &s.cache));
    cache = s.cache;
    uint64_t *rows;
    const int piece = 32768;
    NEED(cudaMalloc(&rows, (size_t)piece * ROW));
    for (int b = 0; b < batch; b++) {
        NEED_HSP(hsp_admit(cache, context, &s.request[b]));
        for (int l = 0; l < LAYERS; l++)
            for (int first = 0; first < context; first += piece) {
                hsp_row_source source = {{rows}, {0}};
                if (io)
                    make_rows<<<264, 1024, 0, stream>>>(rows, b, l, first, piece);
                NEED_HSP(hsp_fill(cache, s.request[b], l, first, std::min(piece, context - first), &source, stream));
            }
    }
    NEED(cudaStreamSynchronize(stream));
    NEED(cudaFree(rows));
    std::vector<int32_t> none(batch, 0);
    NEED_HSP(hsp_step_begin(cache, s.request.data(), none.data(), batch, stream));
    return s;
}

static char *open_pool(size_t bytes) {
    char *pool = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(pool, bytes, MADV_HUGEPAGE);
    std::vector<std::thread> threads;
    for (int i = 0; i < 12; i++)
        threads.emplace_back([=] {
            for (size_t at = bytes / 12 / 4096 * 4096 * i; at < (i == 11 ? bytes : bytes / 12 / 4096 * 4096 * (i + 1));
                 at += 4096)
                pool[at] = 1;
        });
    for (auto &thread : threads)
        thread.join();
    NEED(cudaHostRegister(pool, bytes, cudaHostRegisterMapped));
    return pool;
}

int main(int argc, char **argv) {
    FILE *out = fopen(argc > 1 ? argv[1] : "/dev/stdout", "w");
    bool quick = argc > 2;
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NEED(cudaEventCreate(&before_event));
    NEED(cudaEventCreate(&after_event));
    NEED(cudaMalloc(&sweep_memory, sweep_pieces * 16));
    NEED(cudaMemset(sweep_memory, 1, sweep_pieces * 16));
    unsigned long long *bad;
    NEED(cudaHostAlloc(&bad, sizeof *bad, cudaHostAllocMapped));
    char *pool = open_pool((size_t)128 * 131072 * ROW), *gather_rows;
    NEED(cudaMalloc(&gather_rows, (size_t)128 * SLOTS * ROW));
    double sweep = time_graph(
        16, 5, true, [](int) {}, [] {});
    struct shape {
        int batch, context;
    } shapes[] = {{1, 131072}, {8, 131072}, {32, 131072}, {128, 32768}};
    for (shape sh : shapes) {
        subject real = open_subject(sh.batch, sh.context, true), oracle = open_subject(sh.batch, sh.context, false);
        for (double percent : {0.0, 1.0, 5.0, 10.0, 13.4, 25.0, 30.0, 100.0}) {
            int m = (int)(K * percent / 100 + 0.5), batch = sh.batch;
            if ((size_t)SLOTS + (size_t)m * STEPS > (size_t)sh.context || (quick && (percent == 30 || percent == 100)))
                continue;
            traces t = make_traces(batch, sh.context, m);
            int32_t *selection = upload(t.selection), *hot = upload(t.hot), *ids;
            uint32_t *from = upload(t.from), *to = upload(t.to);
            const size_t per = (size_t)batch * K;
            NEED(cudaMalloc(&ids, LAYERS * per * sizeof *ids));
            auto warm = [&](subject &s) {
                hsp_cache *cache = s.cache;
                for (int l = 0; l < LAYERS; l++)
                    for (int b = 0; b < batch; b++)
                        NEED_HSP(
                            hsp_warm(cache, s.request[b], l, hot + ((size_t)l * batch + b) * SLOTS, SLOTS, stream));
            };
            auto swap = [&](subject &s) {
                return [&](int i) {
                    hsp_cache *cache = s.cache;
                    NEED_HSP(hsp_swap_in(cache, i % LAYERS, selection + (size_t)i * per, 1, K, ids + i % LAYERS * per,
                                         stream));
                };
            };
            auto plain = [&](int blocks) {
                return [=](int i) {
                    if (m > 0)
                        gather<<<blocks, 1024, 0, stream>>>(pool, gather_rows, from + (size_t)i * batch * m,
                                                            to + (size_t)i * batch * m, batch * m);
                };
            };
            const int launches = STEPS * LAYERS;
            double resolve = time_graph(launches, 3, false, swap(oracle), [&] { warm(oracle); });
            double full = time_graph(launches, 3, false, swap(real), [&] { warm(real); });
            *bad = 0;
            for (int l = 0; l < LAYERS; l++) {
                hsp_cache *cache = real.cache;
                hsp_rows_view view;
                view.struct_size = sizeof view;
                NEED_HSP(hsp_rows(cache, l, &view));
                check_rows<<<264, 1024, 0, stream>>>((const char *)view.plane[0].base, ids + l * per,
                                                     selection + ((size_t)(STEPS - 1) * LAYERS + l) * per, l,
                                                     (uint32_t)per, bad);
            }
            NEED(cudaStreamSynchronize(stream));
            double swept = time_graph(launches, 3, true, swap(real), [&] { warm(real); }) - sweep;
            double resolve_swept = time_graph(launches, 3, true, swap(oracle), [&] { warm(oracle); }) - sweep;
            double gather_best = 1e9, gather_swept = 1e9;
            for (int blocks : {8, 16, 33, 66, 132})
                if (m > 0) {
                    gather_best = std::min(gather_best, time_graph(launches, 3, false, plain(blocks), [] {}));
                    gather_swept = std::min(gather_swept, time_graph(launches, 3, true, plain(blocks), [] {}) - sweep);
                }
            if (m == 0)
                gather_best = gather_swept = 0;
            fprintf(out,
                    "{\"batch\": %d, \"context\": %d, \"misses_percent\": %.1f, \"rows\": %d, \"resolve_us\": %.2f, "
                    "\"swap_in_us\": %.2f, "
                    "\"gather_us\": %.2f, \"resolve_swept_us\": %.2f, \"swap_in_swept_us\": %.2f, \"gather_swept_us\": "
                    "%.2f, \"wrong_words\": %llu}\n",
                    batch, sh.context, percent, m, resolve, full, gather_best, resolve_swept, swept, gather_swept,
                    *bad);
            printf("batch %3d misses %5.1f%%: resolve %6.2f swap-in %7.2f gather %7.2f | L2 swept: resolve %6.2f "
                   "swap-in %7.2f gather %7.2f | wrong %llu\n",
                   batch, percent, resolve, full, gather_best, resolve_swept, swept, gather_swept, *bad);
            fflush(out);
            fflush(stdout);
            for (void *memory : {(void *)selection, (void *)hot, (void *)ids, (void *)from, (void *)to})
                NEED(cudaFree(memory));
        }
        hsp_close(real.cache);
        hsp_close(oracle.cache);
    }
    fclose(out);
    return 0;
}
