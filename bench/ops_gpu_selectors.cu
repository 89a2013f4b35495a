// SPDX-License-Identifier: Apache-2.0
// Times of the selectors on the GPU: replays of a captured call between two events, the median of many, against the
// rate at which a plain kernel reads device memory in the same run. One line of JSON a case.
//
// usage: bench_ops_gpu_selectors [BATCH [TOKENS]]     32 entries of 131072 tokens
#include "hisparse_ops_gpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <cuda_runtime.h>

#define NEED(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t status_ = (call);                                                                                  \
        if (status_ != cudaSuccess) {                                                                                  \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define NEED_OK(call)                                                                                                  \
    do {                                                                                                               \
        int status_ = (call);                                                                                          \
        if (status_ != HSP_OK) {                                                                                       \
            fprintf(stderr, "%s: %d\n", #call, status_);                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static cudaStream_t stream;
static double read_rate; // bytes a second
static int32_t batch = 32, tokens = 131072;

// ------------------------------------------------------------------------------------------------------------- data --

static __device__ uint32_t mixed(uint64_t i) {
    i = (i ^ i >> 33) * 0xff51afd7ed558ccdull;
    i = (i ^ i >> 33) * 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(i ^ i >> 33);
}

// Two bf16 numbers from -1 to 1, or four bytes of e4m3 that are not NaN and below 2, or one float from -1 to 1.
enum filling { BF16, E4M3, FLOAT };

static __global__ void fill_kernel(uint32_t *to, size_t n, filling what, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = mixed(i + ((uint64_t)seed << 40));
        if (what == E4M3)
            to[i] = x & 0xbfbfbfbf;
        else if (what == FLOAT)
            to[i] = __float_as_uint((float)(int32_t)x * 0x1p-31f);
        else
            to[i] = (__float_as_uint((float)(int16_t)x * 0x1p-15f) >> 16) |
                    (__float_as_uint((float)(int16_t)(x >> 16) * 0x1p-15f) & 0xffff0000);
    }
}

// The scale of every e4m3 key is 1.
static __global__ void scale_kernel(uint8_t *rows, size_t n, uint64_t stride) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        *(float *)(rows + i * stride + 128) = 1.0f;
}

static void *filled(size_t bytes, filling what, uint32_t seed) {
    void *memory;
    NEED(cudaMalloc(&memory, bytes + 16));
    fill_kernel<<<4096, 256, 0, stream>>>((uint32_t *)memory, bytes / 4, what, seed);
    NEED(cudaGetLastError());
    return memory;
}

static void *room(size_t bytes) {
    void *memory;
    NEED(cudaMalloc(&memory, bytes + 16));
    return memory;
}

// All entries are of the same length.
static hsp_gpu_batch entries(int32_t n_tokens, int32_t n_queries = 1) {
    std::vector<int32_t> slot(batch), n((size_t)batch * n_queries, n_tokens);
    for (int32_t i = 0; i < batch; i++)
        slot[i] = i;
    hsp_gpu_batch b = {sizeof b, batch, n_queries, tokens, nullptr, nullptr};
    int32_t *slots = (int32_t *)room(slot.size() * 4), *counts = (int32_t *)room(n.size() * 4);
    NEED(cudaMemcpy(slots, slot.data(), slot.size() * 4, cudaMemcpyHostToDevice));
    NEED(cudaMemcpy(counts, n.data(), n.size() * 4, cudaMemcpyHostToDevice));
    b.slot = slots;
    b.n_tokens = counts;
    return b;
}

// ------------------------------------------------------------------------------------------------------------- time --

static double median_us(const std::function<void()> &call, int replays = 40) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaEvent_t before, after;
    NEED(cudaStreamSynchronize(stream));
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    call();
    NEED(cudaStreamEndCapture(stream, &graph));
    NEED(cudaGraphInstantiate(&ready, graph, 0));
    NEED(cudaEventCreate(&before));
    NEED(cudaEventCreate(&after));
    std::vector<float> ms(replays);
    for (int i = -5; i < replays; i++) {
        float one;
        NEED(cudaEventRecord(before, stream));
        NEED(cudaGraphLaunch(ready, stream));
        NEED(cudaEventRecord(after, stream));
        NEED(cudaEventSynchronize(after));
        NEED(cudaEventElapsedTime(&one, before, after));
        if (i >= 0)
            ms[i] = one;
    }
    NEED(cudaGraphExecDestroy(ready));
    NEED(cudaGraphDestroy(graph));
    NEED(cudaEventDestroy(before));
    NEED(cudaEventDestroy(after));
    std::sort(ms.begin(), ms.end());
    return ms[replays / 2] * 1e3;
}

// bytes: what has to be read at least; 0: not bound by memory.
static void report(const char *what, double us, double bytes) {
    printf("{\"case\": \"%s\", \"batch\": %d, \"tokens\": %d, \"us\": %.1f", what, batch, tokens, us);
    if (bytes > 0)
        printf(", \"bytes\": %.0f, \"gb_s\": %.0f, \"floor_us\": %.1f, \"times_floor\": %.2f, \"share_of_read\": %.3f",
               bytes, bytes / us * 1e-3, bytes / read_rate * 1e6, us / (bytes / read_rate * 1e6),
               bytes / (us * 1e-6) / read_rate);
    printf("}\n");
    fflush(stdout);
}

static __global__ void read_kernel(const uint4 *from, size_t n, uint32_t *out) {
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(from + i), b = __ldcs(from + i + step), c = __ldcs(from + i + 2 * step),
              d = __ldcs(from + i + 3 * step);
        sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (sum == 0x12345678)
        *out = sum;
}

static void measure_read(void) {
    size_t bytes = (size_t)2 << 30;
    void *memory = filled(bytes, FLOAT, 1), *out = room(4);
    double best = 0;
    for (int blocks = 132 * 4; blocks <= 132 * 64; blocks *= 2) {
        double us = median_us(
            [&] { read_kernel<<<blocks, 512, 0, stream>>>((const uint4 *)memory, bytes / 16, (uint32_t *)out); }, 20);
        best = std::max(best, bytes / (us * 1e-6));
    }
    read_rate = best;
    printf("{\"case\": \"plain read\", \"gb_s\": %.0f}\n", best * 1e-9);
    NEED(cudaFree(memory));
    NEED(cudaFree(out));
}

// ------------------------------------------------------------------------------------------------------------ cases --

static void dsa(int32_t dtype, int32_t heads, int32_t n_queries, const char *name) {
    hsp_dsa_shape shape = {sizeof shape, heads, 128, dtype, 0};
    hsp_gpu_batch b = entries(tokens, n_queries), brief = entries(2000, n_queries);
    size_t key_bytes, image, scratch_bytes, n = (size_t)batch * n_queries;
    NEED_OK(hsp_dsa_key_bytes(&shape, &key_bytes));
    NEED_OK(hsp_gpu_dsa_query_bytes(&shape, &image));
    NEED_OK(hsp_gpu_dsa_scratch(&shape, batch, n_queries, tokens, &scratch_bytes));
    uint64_t stride = (uint64_t)tokens * key_bytes;
    stride = (stride + 15) / 16 * 16;
    char *rows = (char *)filled(batch * stride, dtype == HSP_E4M3 ? E4M3 : BF16, 2);
    if (dtype == HSP_E4M3)
        for (int32_t i = 0; i < batch; i++)
            scale_kernel<<<1024, 256, 0, stream>>>((uint8_t *)rows + i * stride, tokens, key_bytes);
    float *query = (float *)filled(n * heads * 128 * 4, FLOAT, 3), *weights = (float *)filled(n * heads * 4, FLOAT, 4);
    void *packed = room(n * image), *scratch = room(scratch_bytes);
    int32_t *out = (int32_t *)room(n * 8192 * 4);
    char what[96];
    double bytes = (double)batch * tokens * key_bytes;
    auto title = [&](const char *part) {
        snprintf(what, sizeof what, "dsa %s, %s, %d heads, %d queries", part, name, heads, n_queries);
        return what;
    };
    report(title("pack query"),
           median_us([&] { NEED_OK(hsp_gpu_dsa_pack_query(&shape, &b, query, weights, packed, stream)); }), 0);
    report(title("scores"), median_us([&] {
               NEED_OK(hsp_gpu_dsa_scores(&shape, &b, rows, stride, key_bytes, packed, (float *)scratch, stream));
           }),
           bytes);
    for (int32_t k = 512; k <= 2048; k *= 2) {
        char part[32];
        snprintf(part, sizeof part, "top %d of its scores", k);
        report(title(part), median_us([&] { NEED_OK(hsp_gpu_top(&b, (float *)scratch, k, out, stream)); }), 0);
    }
    report(title("select 2048"), median_us([&] {
               NEED_OK(hsp_gpu_dsa_select(&shape, &b, rows, stride, key_bytes, packed, 2048, out, scratch, stream));
           }),
           bytes);
    report(title("select 2048 of 2000 tokens in the same grid"), median_us([&] {
               NEED_OK(hsp_gpu_dsa_select(&shape, &brief, rows, stride, key_bytes, packed, 2048, out, scratch, stream));
           }),
           0);
    for (void *p : {(void *)rows, (void *)query, (void *)weights, packed, scratch, (void *)out})
        NEED(cudaFree(p));
}

static void top_of_even_scores(void) {
    hsp_gpu_batch b = entries(tokens);
    float *scores = (float *)filled((size_t)batch * tokens * 4, FLOAT, 5);
    int32_t *out = (int32_t *)room((size_t)batch * 8192 * 4);
    for (int32_t k = 2048; k <= 8192; k *= 4) {
        char what[64];
        snprintf(what, sizeof what, "top %d of even scores", k);
        report(what, median_us([&] { NEED_OK(hsp_gpu_top(&b, scores, k, out, stream)); }), 0);
    }
    NEED(cudaFree(scores));
    NEED(cudaFree(out));
}

static void quest(int32_t heads, int32_t kv_heads) {
    hsp_quest_shape shape = {sizeof shape, heads, kv_heads, 128, 16, HSP_BF16};
    hsp_gpu_batch b = entries(tokens);
    size_t stats_bytes, scratch_bytes;
    NEED_OK(hsp_quest_bytes(&shape, tokens, &stats_bytes));
    NEED_OK(hsp_gpu_quest_scratch(&shape, batch, 1, tokens, &scratch_bytes));
    void *stats = filled(batch * stats_bytes, BF16, 6), *scratch = room(scratch_bytes);
    void *keys = filled((size_t)batch * kv_heads * 128 * 2, BF16, 9);
    float *query = (float *)filled((size_t)batch * heads * 128 * 4, FLOAT, 7);
    int32_t *out = (int32_t *)room((size_t)batch * kv_heads * 2048 * 4);
    char what[64];
    snprintf(what, sizeof what, "quest select 2048, %d heads, %d kv heads", heads, kv_heads);
    report(what, median_us([&] {
               NEED_OK(hsp_gpu_quest_select(&shape, &b, stats, stats_bytes, query, 2048, out, scratch, stream));
           }),
           (double)batch * stats_bytes);
    snprintf(what, sizeof what, "quest select groups 2048, %d heads, %d kv heads", heads, kv_heads);
    report(what, median_us([&] {
               NEED_OK(hsp_gpu_quest_select_groups(&shape, &b, stats, stats_bytes, query, 2048, out, scratch, stream));
           }),
           (double)batch * stats_bytes);
    report("quest update, one token", median_us([&] {
               NEED_OK(hsp_gpu_quest_update(&shape, &b, stats, stats_bytes, keys, (uint64_t)kv_heads * 256, 1, stream));
           }),
           0);
    for (void *p : {stats, scratch, keys, (void *)query, (void *)out})
        NEED(cudaFree(p));
}

static void nsa(int32_t heads, int32_t kv_heads, int32_t dim) {
    hsp_nsa_shape shape = {sizeof shape, heads, kv_heads, dim, HSP_BF16, 32, 16, 64, 16, 1, 2, 0.1f};
    hsp_gpu_batch b = entries(tokens), brief = entries(2000);
    int32_t n;
    size_t scratch_bytes;
    NEED_OK(hsp_nsa_compressed(&shape, tokens, &n));
    NEED_OK(hsp_gpu_nsa_scratch(&shape, batch, 1, tokens, &scratch_bytes));
    uint64_t row = (uint64_t)kv_heads * dim * 2, stride = (n * row + 15) / 16 * 16;
    void *keys = filled(batch * stride, BF16, 6), *scratch = room(scratch_bytes);
    float *query = (float *)filled((size_t)batch * heads * dim * 4, FLOAT, 7);
    int32_t *out = (int32_t *)room((size_t)batch * kv_heads * 1024 * 4);
    char what[64];
    snprintf(what, sizeof what, "nsa select, %d heads, %d kv heads, %d channels", heads, kv_heads, dim);
    report(what,
           median_us([&] { NEED_OK(hsp_gpu_nsa_select(&shape, &b, keys, stride, row, query, out, scratch, stream)); }),
           (double)batch * n * row);
    snprintf(what, sizeof what, "nsa select of 2000 tokens in the same grid, %d channels", dim);
    report(what, median_us([&] {
               NEED_OK(hsp_gpu_nsa_select(&shape, &brief, keys, stride, row, query, out, scratch, stream));
           }),
           0);
    for (void *p : {keys, scratch, (void *)query, (void *)out})
        NEED(cudaFree(p));
}

static void block(void) {
    hsp_block_shape shape = {sizeof shape, 4, 4, 1, 128, HSP_BF16, 128, 16, 0, 1, 0.088f};
    hsp_gpu_batch b = entries(tokens);
    size_t scratch_bytes;
    NEED_OK(hsp_gpu_block_scratch(&shape, batch, 1, tokens, &scratch_bytes));
    uint64_t stride = (uint64_t)tokens * 256;
    void *keys = filled(batch * stride, BF16, 6), *scratch = room(scratch_bytes);
    float *query = (float *)filled((size_t)batch * 4 * 128 * 4, FLOAT, 7);
    int32_t *out = (int32_t *)room((size_t)batch * 4 * 2048 * 4);
    report("block select, 4 heads of 128", median_us([&] {
               NEED_OK(hsp_gpu_block_select(&shape, &b, keys, stride, 256, query, out, scratch, stream));
           }),
           (double)batch * stride);
    for (void *p : {keys, scratch, (void *)query, (void *)out})
        NEED(cudaFree(p));
}

// As dear as attention: a few entries.
static void exact(void) {
    int32_t all = batch;
    batch = std::min(batch, 4);
    hsp_exact_shape shape = {sizeof shape, 32, 8, 128, HSP_BF16, 8, 0.088f};
    hsp_gpu_batch b = entries(tokens);
    size_t scratch_bytes;
    NEED_OK(hsp_gpu_exact_scratch(&shape, batch, 1, tokens, &scratch_bytes));
    uint64_t stride = (uint64_t)tokens * 2048;
    void *keys = filled(batch * stride, BF16, 6), *scratch = room(scratch_bytes);
    float *query = (float *)filled((size_t)batch * 32 * 128 * 4, FLOAT, 7);
    int32_t *out = (int32_t *)room((size_t)batch * 8 * 2048 * 4);
    report("exact select 2048, 32 heads, 8 kv heads of 128", median_us([&] {
               NEED_OK(hsp_gpu_exact_select(&shape, &b, keys, stride, 2048, query, 2048, out, scratch, stream));
           }),
           (double)batch * stride);
    for (void *p : {keys, scratch, (void *)query, (void *)out})
        NEED(cudaFree(p));
    batch = all;
}

int main(int argc, char **argv) {
    cudaDeviceProp device;
    batch = argc > 1 ? atoi(argv[1]) : batch;
    tokens = argc > 2 ? atoi(argv[2]) : tokens;
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NEED(cudaGetDeviceProperties(&device, 0));
    printf("{\"device\": \"%s\", \"multiprocessors\": %d}\n", device.name, device.multiProcessorCount);
    measure_read();
    dsa(HSP_E4M3, 64, 1, "e4m3");
    dsa(HSP_E4M3, 32, 1, "e4m3");
    dsa(HSP_BF16, 64, 1, "bf16");
    dsa(HSP_E4M3, 64, 2, "e4m3");
    top_of_even_scores();
    quest(32, 8);
    nsa(64, 4, 192);
    nsa(64, 4, 128);
    block();
    exact();
    return 0;
}
