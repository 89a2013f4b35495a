/* SPDX-License-Identifier: Apache-2.0
 *
 * Time of attention on the GPU, cold: a captured graph of calls over as many layers as it takes for rows not to be in
 * the L2 when they are asked for again. Each case is set against what this GPU needs for its bytes and for its
 * products, with rates measured in the same run. One JSON object a line.
 *
 * usage: bench_ops_gpu_attention [SUBSTRING]     only cases whose name has it
 */
#include "hisparse_ops_gpu.h"

#include "../ops/cuda/mla_wgmma.cuh"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define SLOTS      4096 /* rows a request has on the device */
#define COLD_BYTES ((size_t)192 << 20)
#define REPLAYS    21

#define NEED(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t need_status = (call);                                                                              \
        if (need_status != cudaSuccess) {                                                                              \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(need_status));                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static cudaStream_t stream;

/* ----------------------------------------------------------------------------------------------------- ceilings -- */

__global__ void read_kernel(const uint4 *from, size_t n, uint32_t *out) {
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
#pragma unroll 8
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step) {
        uint4 v = __ldcs(from + i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678)
        *out = sum;
}

static __device__ uint32_t hash(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Products from random numbers in shared memory, as many as the tensor cores take. */
__global__ void __launch_bounds__(256) product_kernel(int n, float *out) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __nv_bfloat16 *numbers = (__nv_bfloat16 *)memory;
    for (int i = threadIdx.x; i < 24576; i += 256)
        numbers[i] = __float2bfloat16((float)(hash(i) >> 8) * 0x1p-23f - 1.0f);
    publish_stores();
    __syncthreads();
    float d[2][64] = {};
    const uint64_t a = operand_at(hsp__shared(memory), 16), b = operand_at(hsp__shared(memory) + 8192, 8192);
    for (int i = 0; i < n; i++) {
        products_begin();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            product_128(d[0], a + step * 2, b + step * 128);
            product_128(d[1], a + step * 2, b + step * 128 + 1024);
        }
        products_commit();
        products_wait<0>();
    }
    if (d[0][0] + d[1][63] == 12345.0f)
        *out = d[0][0];
}

/* Milliseconds of one of the `n` calls in a graph, median. */
template <typename body>
static double time_graph(int n, body calls) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaEvent_t begin, end;
    std::vector<float> times;
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    calls();
    NEED(cudaStreamEndCapture(stream, &graph));
    NEED(cudaGraphInstantiate(&ready, graph, 0));
    NEED(cudaEventCreate(&begin));
    NEED(cudaEventCreate(&end));
    for (int i = 0; i < REPLAYS + 3; i++) {
        float ms;
        NEED(cudaEventRecord(begin, stream));
        NEED(cudaGraphLaunch(ready, stream));
        NEED(cudaEventRecord(end, stream));
        NEED(cudaEventSynchronize(end));
        NEED(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 3)
            times.push_back(ms / (float)n);
    }
    NEED(cudaGraphExecDestroy(ready));
    NEED(cudaGraphDestroy(graph));
    NEED(cudaEventDestroy(begin));
    NEED(cudaEventDestroy(end));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* How many clusters of so many blocks, each of which has an SM to itself, run at a time. */
static int clusters_at_once(int blocks) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    int n = 0;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)blocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(256);
    config.dynamicSmemBytes = 200 * 1024;
    config.attrs = &attribute;
    config.numAttrs = 1;
    NEED(cudaFuncSetAttribute(product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    NEED(cudaOccupancyMaxActiveClusters(&n, product_kernel, &config));
    return n;
}

static double bandwidth, product_rate; /* bytes and operations a second */

static void measure_ceilings(void) {
    const size_t bytes = (size_t)4 << 30;
    const int blocks = 132, rounds = 2000;
    void *memory;
    NEED(cudaMalloc(&memory, bytes));
    NEED(cudaMemset(memory, 1, bytes));
    NEED(cudaFuncSetAttribute(product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 49152));
    double read_ms = time_graph(
        1, [&] { read_kernel<<<132 * 8, 512, 0, stream>>>((const uint4 *)memory, bytes / 16, (uint32_t *)memory); });
    double product_ms = time_graph(1, [&] { product_kernel<<<blocks, 256, 49152, stream>>>(rounds, (float *)memory); });
    bandwidth = (double)bytes / read_ms * 1e3;
    product_rate = 2.0 * 64 * 256 * 64 * 2 * rounds * blocks / product_ms * 1e3;
    NEED(cudaGetLastError());
    NEED(cudaFree(memory));
    printf("{\"read_gb_s\": %.0f, \"bf16_tflop_s\": %.0f, \"clusters_of_2\": %d, \"clusters_of_4\": %d, "
           "\"clusters_of_8\": %d}\n",
           bandwidth * 1e-9, product_rate * 1e-12, clusters_at_once(2), clusters_at_once(4), clusters_at_once(8));
}

/* -------------------------------------------------------------------------------------------------------- cases -- */

struct bench_case {
    const char *name;
    int format; /* enum hsp_mla_format; -1: GQA */
    int n_heads, n_kv_heads, key_dim, value_dim, n_lists, batch, n_rows, n_chunks;
};

static const bench_case cases[] = {
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 32, 2048, 2}, /* must hold: twice the ceiling */
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 32, 2048, 1},
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 32, 2048, 4},
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 64, 2048, 1},
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 128, 2048, 1},
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 12, 2048, 4},
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 8, 2048, 8},
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 6, 2048, 8},
    {"mla bf16 in L2", HSP_MLA_BF16, 128, 1, 576, 512, 1, 32, 2048, 2}, /* what memory has no part in */
    {"mla bf16 in L2", HSP_MLA_BF16, 128, 1, 576, 512, 1, 32, 64, 1},   /* what is there beside tiles */
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 1, 2048, 8},
    {"mla bf16", HSP_MLA_BF16, 128, 1, 576, 512, 1, 1, 2048, 2},
    {"mla bf16", HSP_MLA_BF16, 64, 1, 576, 512, 1, 32, 2048, 4},
    {"mla bf16", HSP_MLA_BF16, 16, 1, 576, 512, 1, 32, 2048, 4},
    {"mla fp8", HSP_MLA_FP8, 128, 1, 576, 512, 1, 32, 2048, 2},
    {"mla fp8", HSP_MLA_FP8, 128, 1, 576, 512, 1, 1, 2048, 8},
    {"mla fp8", HSP_MLA_FP8, 128, 1, 576, 512, 1, 128, 2048, 1},
    {"mla v4", HSP_MLA_V4, 64, 1, 512, 512, 1, 64, 512, 2},
    {"mla v4", HSP_MLA_V4, 128, 1, 512, 512, 1, 32, 1024, 2},
    {"gqa bf16", -1, 32, 8, 128, 128, 1, 32, 2048, 2},
    {"gqa bf16", -1, 32, 8, 128, 128, 1, 1, 2048, 8},
    {"gqa bf16 lists", -1, 64, 4, 192, 128, 4, 32, 1024, 2},
    {"gqa bf16 lists", -1, 64, 4, 128, 128, 4, 16, 2048, 2},
    {"gqa bf16 mqa", -1, 128, 1, 576, 512, 1, 32, 2048, 2},
};

/* All entries ask for the rows of one. */
static bool in_l2(const bench_case &c) {
    return strstr(c.name, "in L2") != NULL;
}

__global__ void fill_ids(int32_t *ids, size_t n, int32_t n_rows, int32_t n_lists, bool one_entry) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        size_t list = one_entry ? 0 : i / n_rows,
               entry = list / n_lists; /* scattered and no id twice: an odd step through the slots */
        uint32_t place = (uint32_t)(i % n_rows) * (2 * (hash((uint32_t)list) % 1000) + 1237) + hash((uint32_t)list + 7);
        ids[i] = (int32_t)(entry * SLOTS + place % SLOTS);
    }
}

__global__ void fill_floats(float *x, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = (float)(hash((uint32_t)i * 2654435761u + seed) >> 8) * 0x1p-23f - 1.0f;
}

__global__ void fill_bf16(__nv_bfloat16 *x, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = __float2bfloat16((float)(hash((uint32_t)i * 2654435761u + seed) >> 8) * 0x1p-23f - 1.0f);
}

static void need_ok(int status) {
    if (status == HSP_OK)
        return;
    fprintf(stderr, "status %d: %s\n", status, cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

template <typename type>
static type *device_array(size_t n) {
    void *memory;
    NEED(cudaMalloc(&memory, n * sizeof(type)));
    return (type *)memory;
}

/* One plane of `rows` rows. */
static hsp_plane_view flat_plane(size_t rows, size_t row_bytes) {
    return {device_array<char>(rows * row_bytes), row_bytes, row_bytes, row_bytes, 1, 0};
}

/* Rows of MLA in blocks of one row each, scales of V4 in a plane of their own. */
static void make_mla_planes(const hsp_mla_shape &shape, size_t rows, hsp_plane_view *planes) {
    const size_t bytes[3][2] = {{1152, 0}, {656, 0}, {576, 8}}, PIECE = 65536;
    size_t dim = (size_t)shape.latent_dim + (size_t)shape.rope_dim;
    float *numbers = device_array<float>(PIECE * dim);
    for (int i = 0; i < 2 && bytes[shape.format][i]; i++)
        planes[i] = flat_plane(rows, bytes[shape.format][i]);
    for (size_t first = 0; first < rows; first += PIECE) {
        hsp_row_sink to = {};
        for (int i = 0; i < 2 && bytes[shape.format][i]; i++) {
            to.plane[i] = (char *)planes[i].base + first * planes[i].row_stride;
            to.stride[i] = planes[i].row_stride;
        }
        fill_floats<<<1024, 256, 0, stream>>>(numbers, PIECE * dim, (uint32_t)first);
        need_ok(hsp_gpu_mla_pack(&shape, numbers, (int32_t)std::min(PIECE, rows - first), &to, stream));
    }
    NEED(cudaStreamSynchronize(stream));
    NEED(cudaFree(numbers));
}

struct bench_memory {
    hsp_plane_view planes[2];
    int32_t *ids, *slot, *n_tokens;
    float *query, *out;
};

static size_t row_bytes_of(const bench_case &c) {
    const size_t mla[3] = {1152, 656, 584};
    return c.format >= 0 ? mla[c.format] : (size_t)c.n_kv_heads * (size_t)(c.key_dim + c.value_dim) * 2;
}

static hsp_mla_shape mla_shape_of(const bench_case &c) {
    return {sizeof(hsp_mla_shape), c.n_heads, c.key_dim - 64, 64, c.format, 0.04f, 0};
}

static bench_memory make_memory(const bench_case &c, size_t layers) {
    bench_memory m = {};
    size_t rows = layers * (size_t)c.batch * SLOTS, entries = layers * (size_t)c.batch;
    size_t ids = entries * (size_t)c.n_lists * (size_t)c.n_rows;
    size_t queries = (size_t)c.batch * (size_t)c.n_heads;
    std::vector<int32_t> zeros((size_t)c.batch, 0);
    if (c.format >= 0)
        make_mla_planes(mla_shape_of(c), rows, m.planes);
    for (int i = 0; i < 2 && c.format < 0; i++) {
        size_t numbers = (size_t)c.n_kv_heads * (size_t)(i ? c.value_dim : c.key_dim);
        m.planes[i] = flat_plane(rows, 2 * numbers);
        fill_bf16<<<1024, 256, 0, stream>>>((__nv_bfloat16 *)m.planes[i].base, rows * numbers, (uint32_t)i);
    }
    m.ids = device_array<int32_t>(ids);
    m.slot = device_array<int32_t>((size_t)c.batch);
    m.n_tokens = device_array<int32_t>((size_t)c.batch);
    m.query = device_array<float>(queries * (size_t)c.key_dim);
    m.out = device_array<float>(queries * (size_t)c.value_dim);
    fill_ids<<<1024, 256, 0, stream>>>(m.ids, ids, c.n_rows, c.n_lists, in_l2(c));
    fill_floats<<<1024, 256, 0, stream>>>(m.query, queries * (size_t)c.key_dim, 3);
    NEED(cudaStreamSynchronize(stream));
    NEED(cudaMemcpy(m.slot, zeros.data(), zeros.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
    NEED(cudaMemcpy(m.n_tokens, zeros.data(), zeros.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
    return m;
}

static void free_memory(const bench_memory &m) {
    void *all[] = {m.planes[0].base, m.planes[1].base, m.ids, m.slot, m.n_tokens, m.query, m.out};
    for (void *memory : all)
        NEED(cudaFree(memory));
}

static void call(const bench_case &c, const bench_memory &m, size_t layer) {
    const hsp_gpu_batch batch = {sizeof batch, c.batch, 1, 1, m.slot, m.n_tokens};
    const int32_t *ids = m.ids + layer * (size_t)c.batch * (size_t)c.n_lists * (size_t)c.n_rows;
    if (c.format >= 0) {
        const hsp_mla_shape shape = mla_shape_of(c);
        need_ok(hsp_gpu_mla_attend(&shape, m.planes, &batch, m.query, ids, c.n_rows, c.n_chunks, NULL, m.out, NULL,
                                   stream));
        return;
    }
    const hsp_gqa_shape shape = {sizeof shape, c.n_heads, c.n_kv_heads, c.key_dim, c.value_dim, HSP_BF16, 0.08f};
    need_ok(hsp_gpu_gqa_attend(&shape, &m.planes[0], &m.planes[1], &batch, m.query, ids, c.n_lists, c.n_rows,
                               c.n_chunks, NULL, m.out, NULL, stream));
}

static void run(const bench_case &c) {
    /* With a list for each KV head, a list's rows are read for that head alone. */
    double bytes = (double)c.batch * c.n_rows * (double)row_bytes_of(c);
    double products = 2.0 * c.batch * c.n_heads * (double)c.n_rows * (c.key_dim + c.value_dim);
    size_t layers = std::min<size_t>(96, std::max<size_t>(4, COLD_BYTES / (size_t)bytes + 1));
    bench_memory m = make_memory(c, layers);
    double us = 1e3 * time_graph((int)layers, [&] {
                    for (size_t layer = 0; layer < layers; layer++)
                        call(c, m, layer);
                });
    double ceiling = 1e6 * std::max(bytes / bandwidth, products / product_rate);
    printf(
        "{\"case\": \"%s\", \"batch\": %d, \"heads\": %d, \"kv_heads\": %d, \"key\": %d, \"value\": %d, \"rows\": %d, "
        "\"chunks\": %d, \"us\": %.2f, \"gb_s\": %.0f, \"tflop_s\": %.0f, \"ceiling_us\": %.2f, \"ratio\": %.2f}\n",
        c.name, c.batch, c.n_heads, c.n_kv_heads, c.key_dim, c.value_dim, c.n_rows, c.n_chunks, us, bytes / us * 1e-3,
        products / us * 1e-6, ceiling, us / ceiling);
    fflush(stdout);
    free_memory(m);
}

int main(int argc, char **argv) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        puts("skipped: no device");
        return 0;
    }
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    measure_ceilings();
    for (const bench_case &c : cases)
        if (argc < 2 || strstr(c.name, argv[1]))
            run(c);
    return 0;
}
