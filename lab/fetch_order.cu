/* SPDX-License-Identifier: Apache-2.0 */
/* Who fetches which rows when: kernels that only copy lists of rows from host memory, made beforehand, to scattered
 * slots, and what touching their pages ahead of need brings. The table of rung 19 in swap_in.md is this program's,
 * before it was tidied. Build and run on the GPU machine:
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -o fetch_order lab/fetch_order.cu && ./fetch_order
 *
 * It needs 11 GB of host memory. Microseconds a launch, median of three replays of a graph of 48 launches (12 steps of
 * 4 layers, other rows every time), back to back and with the L2 filled with other memory before each launch. */
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace cg = cooperative_groups;

#define NEED(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t status_ = (call);                                                                                  \
        if (status_ != cudaSuccess) {                                                                                  \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));                                           \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { ROW = 656, PIECES = ROW / 16, SLOTS = 4160, LAYERS = 4, STEPS = 12, LAUNCHES = LAYERS * STEPS };

struct move {
    uint32_t host_row, id;
};

/* ------------------------------------------------------------------------------------------------------ kernels -- */

__device__ static uint4 load_host(const uint4 *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* U: loads of a thread before the first store. PASSING: evict-first stores. */
template <int U, bool PASSING>
__device__ static void fetch(const char *host, char *device, const move *list, uint32_t n, uint32_t part,
                             uint32_t parts) {
    const uint32_t total = n * PIECES, stride = parts * blockDim.x;
    for (uint32_t c = part * blockDim.x + threadIdx.x; c < total; c += stride * U) {
        uint4 value[U], *to[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (c + u * stride < total) {
                uint32_t r = (c + u * stride) / PIECES, q = (c + u * stride) % PIECES;
                to[u] = (uint4 *)(device + (uint64_t)list[r].id * ROW) + q;
                value[u] = load_host((const uint4 *)(host + (uint64_t)list[r].host_row * ROW) + q);
            }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (c + u * stride < total) {
                if (PASSING)
                    __stcs(to[u], value[u]);
                else
                    *to[u] = value[u];
            }
    }
}

/* All rows as one list. */
template <int U, bool PASSING>
__global__ void __launch_bounds__(1024, 1)
    flat_kernel(const char *host, char *device, const move *list, uint32_t each, uint32_t requests) {
    fetch<U, PASSING>(host, device, list, each * requests, blockIdx.x, gridDim.x);
}

/* Each cluster takes one request after the other. */
template <int U, bool PASSING>
__global__ void __launch_bounds__(1024, 1)
    clusters_kernel(const char *host, char *device, const move *list, uint32_t each, uint32_t requests) {
    cg::cluster_group cluster = cg::this_cluster();
    uint32_t size = cluster.num_blocks();
    for (uint32_t r = blockIdx.x / size; r < requests; r += gridDim.x / size)
        fetch<U, PASSING>(host, device, list + (uint64_t)r * each, each, cluster.block_rank(), size);
}

/* What a layer does while the link is idle, for so many nanoseconds; block 0 reads a piece of every row of a list
 * meanwhile, so that the GPU knows where its pages are. */
__global__ void busy_kernel(const char *host, const move *list, uint32_t n, uint32_t ns) {
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    for (uint32_t r = threadIdx.x; blockIdx.x == 0 && r < n; r += blockDim.x) {
        uint4 v = load_host((const uint4 *)(host + (uint64_t)list[r].host_row * ROW));
        asm volatile("" ::"r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    }
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}

__global__ void sweep_kernel(uint4 *memory, uint64_t n) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        sum.x ^= memory[i].x ^ memory[i].y ^ memory[i].z ^ memory[i].w;
    if (sum.x == 0x12345678)
        memory[0] = sum;
}

/* ------------------------------------------------------------------------------------------------------- timing -- */

static cudaStream_t stream;
static uint4 *sweep_memory;
static const uint64_t sweep_pieces = (uint64_t)160 << 16;

template <typename launch_fn>
static double time_graph(bool swept, launch_fn launch) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t before, after;
    std::vector<float> us;
    NEED(cudaEventCreate(&before));
    NEED(cudaEventCreate(&after));
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < LAUNCHES; i++) {
        if (swept)
            sweep_kernel<<<264, 1024, 0, stream>>>(sweep_memory, sweep_pieces);
        launch(i);
    }
    NEED(cudaStreamEndCapture(stream, &graph));
    NEED(cudaGraphInstantiate(&exec, graph, 0));
    for (int r = 0; r < 4; r++) {
        float ms;
        NEED(cudaEventRecord(before, stream));
        NEED(cudaGraphLaunch(exec, stream));
        NEED(cudaEventRecord(after, stream));
        NEED(cudaStreamSynchronize(stream));
        NEED(cudaEventElapsedTime(&ms, before, after));
        if (r > 0)
            us.push_back(ms * 1e3f / LAUNCHES);
    }
    NEED(cudaGraphExecDestroy(exec));
    NEED(cudaGraphDestroy(graph));
    NEED(cudaEventDestroy(before));
    NEED(cudaEventDestroy(after));
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

/* -------------------------------------------------------------------------------------------------------- cases -- */

struct shape {
    uint32_t requests, context, each; /* each: rows of a request in a launch */
};

static char *open_pool(size_t bytes) {
    char *pool = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::vector<std::thread> threads;
    if (pool == MAP_FAILED) {
        fprintf(stderr, "cannot have %zu bytes of host memory\n", bytes);
        exit(3);
    }
    madvise(pool, bytes, MADV_HUGEPAGE);
    for (int i = 0; i < 16; i++)
        threads.emplace_back([=] {
            for (size_t at = bytes / 16 * i; at < (i == 15 ? bytes : bytes / 16 * (i + 1)); at += 4096)
                pool[at] = 1;
        });
    for (auto &thread : threads)
        thread.join();
    NEED(cudaHostRegister(pool, bytes, cudaHostRegisterMapped));
    return pool;
}

/* [launch][request][each]: every launch of a layer takes rows that no other one does. */
static std::vector<move> make_lists(shape s, bool sorted) {
    std::mt19937 random(5);
    std::vector<move> lists((size_t)LAUNCHES * s.requests * s.each);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t r = 0; r < s.requests; r++) {
            std::vector<uint32_t> token(s.context);
            std::iota(token.begin(), token.end(), 0);
            for (uint32_t i = 0; i < s.each * STEPS; i++)
                std::swap(token[i], token[i + random() % (s.context - i)]);
            for (uint32_t step = 0; step < STEPS; step++) {
                move *list = &lists[(((size_t)step * LAYERS + layer) * s.requests + r) * s.each];
                for (uint32_t i = 0; i < s.each; i++)
                    list[i] = {(layer * s.requests + r) * s.context + token[step * s.each + i],
                               r * SLOTS + (uint32_t)(random() % 4096)};
                if (sorted)
                    std::sort(list, list + s.each, [](move a, move b) { return a.host_row < b.host_row; });
            }
        }
    return lists;
}

typedef void (*kernel_fn)(const char *, char *, const move *, uint32_t, uint32_t);

struct way {
    const char *name;
    kernel_fn kernel;
    int size, clusters; /* blocks of a cluster; how many */
    bool sorted;
};

static void run(const way &w, shape s, const char *pool, char *device, const move *lists) {
    auto launch = [&](int i) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute;
        config.gridDim = dim3((unsigned)(w.size * w.clusters));
        config.blockDim = dim3(1024);
        config.stream = stream;
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = (unsigned)w.size;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.attrs = &attribute;
        config.numAttrs = 1;
        NEED(cudaLaunchKernelEx(&config, w.kernel, pool, device + (size_t)(i % LAYERS) * s.requests * SLOTS * ROW,
                                lists + (size_t)i * s.requests * s.each, s.each, s.requests));
    };
    double sweep = time_graph(true, [](int) {});
    printf("%3u x %3u rows, %-28s %7.1f us, L2 swept %7.1f us\n", s.requests, s.each, w.name, time_graph(false, launch),
           time_graph(true, launch) - sweep);
    fflush(stdout);
}

/* What is left of a fetch behind 200 us of other work, in which the pages of its rows were touched or were not. */
static void run_touched(shape s, const char *pool, char *device, const move *lists) {
    const uint32_t n = s.each * s.requests;
    auto work = [&](int i, uint32_t touched) {
        busy_kernel<<<64, 1024, 0, stream>>>(pool, lists + (size_t)i * n, touched, 200000);
    };
    auto both = [&](int i, uint32_t touched) {
        work(i, touched);
        flat_kernel<4, false><<<8, 1024, 0, stream>>>(pool, device + (size_t)(i % LAYERS) * s.requests * SLOTS * ROW,
                                                      lists + (size_t)i * n, s.each, s.requests);
    };
    for (int swept = 0; swept < 2; swept++) {
        double alone = time_graph(swept, [&](int i) { work(i, 0); });
        printf("%3u x %3u rows behind other work%s: %.1f us, pages touched in it %.1f us\n", s.requests, s.each,
               swept ? ", L2 swept before that" : "", time_graph(swept, [&](int i) { both(i, 0); }) - alone,
               time_graph(swept, [&](int i) { both(i, n); }) - alone);
    }
    fflush(stdout);
}

int main(void) {
    static const shape shapes[] = {{1, 131072, 102},  {8, 131072, 205},  {32, 131072, 102}, {32, 131072, 205},
                                   {32, 131072, 512}, {128, 32768, 102}, {128, 32768, 205}, {128, 32768, 512}};
    static const way ways[] = {{"one list, 8 blocks", flat_kernel<4, false>, 1, 8, false},
                               {"one list, 16 blocks", flat_kernel<4, false>, 1, 16, false},
                               {"one list, sorted, cs, 8", flat_kernel<4, true>, 1, 8, true},
                               {"1 x 16 sorted", clusters_kernel<4, false>, 1, 16, true},
                               {"1 x 16 sorted cs U2", clusters_kernel<2, true>, 1, 16, true},
                               {"1 x 32 sorted cs U2", clusters_kernel<2, true>, 1, 32, true},
                               {"4 x 8 sorted cs", clusters_kernel<4, true>, 4, 8, true},
                               {"8 x 8 sorted", clusters_kernel<4, false>, 8, 8, true},
                               {"8 x 8 sorted cs", clusters_kernel<4, true>, 8, 8, true}};
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NEED(cudaMalloc(&sweep_memory, sweep_pieces * 16));
    NEED(cudaMemset(sweep_memory, 1, sweep_pieces * 16));
    char *pool = open_pool((size_t)128 * 131072 * ROW), *device;
    NEED(cudaMalloc(&device, (size_t)LAYERS * 128 * SLOTS * ROW));
    for (shape s : shapes) {
        move *lists[2];
        for (int sorted = 0; sorted < 2; sorted++) {
            std::vector<move> made = make_lists(s, sorted);
            NEED(cudaMalloc(&lists[sorted], made.size() * sizeof(move)));
            NEED(cudaMemcpy(lists[sorted], made.data(), made.size() * sizeof(move), cudaMemcpyHostToDevice));
        }
        run_touched(s, pool, device, lists[0]);
        for (const way &w : ways)
            if ((uint32_t)w.clusters <= s.requests || w.kernel == flat_kernel<4, false> ||
                w.kernel == flat_kernel<4, true>)
                run(w, s, pool, device, lists[w.sorted]);
        NEED(cudaFree(lists[0]));
        NEED(cudaFree(lists[1]));
    }
    return 0;
}
