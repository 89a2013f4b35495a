/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/calibrate.h"
#include "gpu/calibrate_kernels.cuh"
#include "gpu/check.h"

#include <algorithm>
#include <new>

#include <cuda_runtime.h>

struct gpu_calibrator {
    cudaStream_t stream;
    cudaEvent_t before, after;
    uint4 *sweep;
    uint64_t sweep_bytes;
    char *rows;            /* GPU_MOST_BYTES */
    uint32_t *row, *touch; /* GPU_MOST_LIST each: lists of a transfer */
    double nothing_us;     /* of an empty kernel, timed alone */
    float us[GPU_MOST_TIMES];
};

enum { SWEEP_BLOCKS = 264, QUEUE_NS = 200000, EMPTY_LAUNCHES = 1000, EMPTY_ROUNDS = 15 };

static double median(float *us, int n) {
    std::nth_element(us, us + n / 2, us + n);
    return us[n / 2];
}

/* ------------------------------------------------------------------------------------------------------ machine -- */

static int describe(gpu_machine *machine_out) {
    gpu_machine m = {};
    int device;
    if (!FINE(cudaGetDevice(&device)) || !FINE(cudaDriverGetVersion(&m.cuda)) ||
        !FINE(cudaDeviceGetPCIBusId(m.pci, sizeof m.pci, device)))
        return -1;
    if (cudaDeviceGetAttribute(&m.numa_node, cudaDevAttrHostNumaId, device) != cudaSuccess) {
        cudaGetLastError(); /* a driver that does not know is no failure */
        m.numa_node = -1;
    }
    *machine_out = m;
    return 0;
}

static int pin(void *memory, size_t bytes, char **pool_out) {
    void *pool = nullptr;
    if (!FINE(cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable)))
        return -1;
    if (!FINE(cudaHostGetDevicePointer(&pool, memory, 0))) {
        cudaHostUnregister(memory);
        return -1;
    }
    *pool_out = (char *)pool;
    return 0;
}

static void unpin(void *memory) {
    cudaHostUnregister(memory);
}

/* ------------------------------------------------------------------------------------------------------- timing -- */

/* Time from the end of what is queued to the end of `work`, which must not wait for the device. */
template <typename work_fn>
static bool timed(gpu_calibrator *c, work_fn work, float *us_out) {
    float ms = 0;
    wait_kernel<<<1, 1, 0, c->stream>>>(QUEUE_NS);
    if (!FINE(cudaGetLastError()) || !FINE(cudaEventRecord(c->before, c->stream)) || !work() ||
        !FINE(cudaEventRecord(c->after, c->stream)) || !FINE(cudaStreamSynchronize(c->stream)) ||
        !FINE(cudaEventElapsedTime(&ms, c->before, c->after)))
        return false;
    *us_out = ms * 1e3f;
    return true;
}

/* What was captured, ready to be launched; it destroys itself. */
struct captured {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ~captured() {
        if (exec)
            cudaGraphExecDestroy(exec);
        if (graph)
            cudaGraphDestroy(graph);
    }
    template <typename work_fn>
    bool make(cudaStream_t stream, work_fn work) {
        if (!FINE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)))
            return false;
        bool good = work();
        cudaError_t ended = cudaStreamEndCapture(stream, &graph); /* in any case: the stream is needed again */
        return good && FINE(ended) && FINE(cudaGraphInstantiate(&exec, graph, 0));
    }
};

static bool launch_empty(gpu_calibrator *c) {
    empty_kernel<<<1, 32, 0, c->stream>>>();
    return FINE(cudaGetLastError());
}

static int empty(gpu_calibrator *c, double *us_out) {
    captured graph;
    auto all = [&] {
        bool good = true;
        for (int i = 0; i < EMPTY_LAUNCHES && good; i++)
            good = launch_empty(c);
        return good;
    };
    if (!graph.make(c->stream, all))
        return -1;
    for (int r = -1; r < EMPTY_ROUNDS; r++)
        if (!timed(
                c, [&] { return FINE(cudaGraphLaunch(graph.exec, c->stream)); }, &c->us[r < 0 ? 0 : r]))
            return -1;
    *us_out = median(c->us, EMPTY_ROUNDS) / EMPTY_LAUNCHES;
    return 0;
}

static int copy(gpu_calibrator *c, void *to, const void *from, size_t bytes, int rounds, double *us_out) {
    auto work = [&] { return FINE(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->stream)); };
    if (!FINE(rounds < 1 || rounds > GPU_MOST_TIMES ? cudaErrorInvalidValue : cudaSuccess))
        return -1;
    for (int r = -1; r < rounds; r++)
        if (!timed(c, work, &c->us[r < 0 ? 0 : r]))
            return -1;
    *us_out = median(c->us, rounds);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- transfers -- */

typedef void (*transfer_fn)(transfer_params);

template <typename piece, bool TO_HOST>
static transfer_fn kernel_with(int in_flight) {
    switch (in_flight) {
    case 1:
        return transfer_kernel<piece, 1, TO_HOST>;
    case 2:
        return transfer_kernel<piece, 2, TO_HOST>;
    case 4:
        return transfer_kernel<piece, 4, TO_HOST>;
    case 8:
        return transfer_kernel<piece, 8, TO_HOST>;
    default:
        return nullptr;
    }
}

static bool fits(const gpu_transfer *t) {
    const int sizes[] = {t->rounds, t->launches, t->n_rows, t->row_bytes, t->stride, t->blocks, t->threads};
    return *std::min_element(sizes, sizes + sizeof sizes / sizeof sizes[0]) > 0 && t->threads <= 1024 &&
           t->row_bytes % 8 == 0 && t->stride % 8 == 0 && (int64_t)t->launches * t->n_rows <= GPU_MOST_LIST &&
           (int64_t)t->n_rows * t->row_bytes <= GPU_MOST_BYTES && t->n_touch >= 0 && t->n_touch <= GPU_MOST_LIST &&
           (int64_t)t->rounds * t->launches <= GPU_MOST_TIMES && kernel_with<uint4, false>(t->in_flight);
}

static bool check(const gpu_transfer *t) {
    return gpu_fine(fits(t) ? cudaSuccess : cudaErrorInvalidValue, "a transfer within the bounds of gpu/calibrate.h");
}

static bool launch(gpu_calibrator *c, const gpu_transfer *t, const uint32_t *row) {
    const bool wide = t->row_bytes % 16 == 0 && t->stride % 16 == 0;
    const uint32_t row_pieces = (uint32_t)t->row_bytes / (wide ? 16 : 8);
    transfer_params p = {t->pool, c->rows, row, (uint32_t)t->n_rows * row_pieces, row_pieces, 0, (uint32_t)t->stride};
    if (row_pieces > 1)
        p.magic = (uint32_t)(((uint64_t)1 << 32) / row_pieces) + 1;
    transfer_fn kernel =
        wide         ? t->to_host ? kernel_with<uint4, true>(t->in_flight) : kernel_with<uint4, false>(t->in_flight)
                : t->to_host ? kernel_with<uint2, true>(t->in_flight)
                     : kernel_with<uint2, false>(t->in_flight);
    kernel<<<t->blocks, t->threads, 0, c->stream>>>(p);
    return FINE(cudaGetLastError());
}

/* A list of `n` numbers, in the order of the stream. */
static bool upload(gpu_calibrator *c, uint32_t *to, const uint32_t *from, size_t n) {
    return n == 0 || FINE(cudaMemcpyAsync(to, from, n * sizeof *from, cudaMemcpyHostToDevice, c->stream));
}

static bool touch(gpu_calibrator *c, const gpu_transfer *t) {
    gpu_transfer all = {};
    all.pool = t->pool;
    all.n_rows = t->n_touch;
    all.row_bytes = all.stride = 16;
    all.blocks = 64;
    all.threads = 1024;
    all.in_flight = 4;
    return t->n_touch == 0 || launch(c, &all, c->touch);
}

static int back_to_back(gpu_calibrator *c, const gpu_transfer *t, double *us_out) {
    captured graph;
    const size_t n = check(t) ? (size_t)t->launches * t->n_rows : 0;
    auto all = [&] {
        bool good = true;
        for (int i = 0; i < t->launches && good; i++)
            good = launch(c, t, c->row + (size_t)i * t->n_rows);
        return good;
    };
    /* Once outside of the graph: a kernel is loaded at its first launch, which a capture may not allow. */
    if (n == 0 || !upload(c, c->touch, t->touch, (size_t)t->n_touch) || !touch(c, t) || !upload(c, c->row, t->row, n) ||
        !launch(c, t, c->row) || !graph.make(c->stream, all))
        return -1;
    for (int r = 0; r <= t->rounds; r++)
        if (!upload(c, c->row, t->row + r * n, n) ||
            !timed(
                c, [&] { return FINE(cudaGraphLaunch(graph.exec, c->stream)); }, &c->us[r > 0 ? r - 1 : 0]))
            return -1;
    *us_out = median(c->us, t->rounds) / t->launches;
    return 0;
}

static bool sweep(gpu_calibrator *c) {
    sweep_kernel<<<SWEEP_BLOCKS, 1024, 0, c->stream>>>(c->sweep, c->sweep_bytes / sizeof(uint4));
    return FINE(cudaGetLastError());
}

static int alone(gpu_calibrator *c, const gpu_transfer *t, int before, double *us_out) {
    const size_t n = check(t) ? (size_t)t->launches * t->n_rows : 0;
    gpu_transfer near_by = *t;
    near_by.pool += GPU_NEAR_BYTES;
    if (n == 0 || !upload(c, c->touch, t->touch, (size_t)t->n_touch))
        return -1;
    for (int r = 0; r <= t->rounds; r++) {
        if (!upload(c, c->row, t->row + r * n, n))
            return -1;
        for (int i = 0; i < t->launches; i++) {
            const uint32_t *row = c->row + (size_t)i * t->n_rows;
            auto work = [&] { return launch(c, t, row); };
            if (!touch(c, t) || (before & GPU_NEAR && !launch(c, &near_by, row)) || (before & GPU_SWEEP && !sweep(c)) ||
                !timed(c, work, &c->us[(r > 0 ? r - 1 : 0) * t->launches + i]))
                return -1;
        }
    }
    *us_out = std::max(median(c->us, t->rounds * t->launches) - c->nothing_us, 0.01);
    return 0;
}

/* ----------------------------------------------------------------------------------------------- open and close -- */

static void close(gpu_calibrator *c) {
    if (!c)
        return;
    for (void *memory : {(void *)c->sweep, (void *)c->rows, (void *)c->row, (void *)c->touch})
        cudaFree(memory); /* NULL is allowed */
    if (c->before)
        cudaEventDestroy(c->before);
    if (c->after)
        cudaEventDestroy(c->after);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    delete c;
}

static bool take(gpu_calibrator *c) {
    int device, l2 = 0;
    if (!FINE(cudaGetDevice(&device)) || !FINE(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device)))
        return false;
    c->sweep_bytes = std::max((uint64_t)3 * (uint64_t)l2, (uint64_t)64 << 20) / 16 * 16;
    return FINE(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking)) && FINE(cudaEventCreate(&c->before)) &&
           FINE(cudaEventCreate(&c->after)) && FINE(cudaMalloc((void **)&c->sweep, c->sweep_bytes)) &&
           FINE(cudaMalloc((void **)&c->rows, GPU_MOST_BYTES)) &&
           FINE(cudaMalloc((void **)&c->row, GPU_MOST_LIST * sizeof(uint32_t))) &&
           FINE(cudaMalloc((void **)&c->touch, GPU_MOST_LIST * sizeof(uint32_t))) &&
           FINE(cudaMemset(c->sweep, 1, c->sweep_bytes)) && FINE(cudaMemset(c->rows, 1, GPU_MOST_BYTES)) &&
           FINE(cudaDeviceSynchronize());
}

static int open(gpu_calibrator **calibrator_out) {
    gpu_calibrator *c = new (std::nothrow) gpu_calibrator();
    bool good = c ? take(c) : gpu_fine(cudaErrorMemoryAllocation, "a calibrator");
    for (int r = -1; r < EMPTY_ROUNDS && good; r++)
        good = timed(
            c, [&] { return launch_empty(c); }, &c->us[r < 0 ? 0 : r]);
    if (!good) {
        close(c);
        return -1;
    }
    c->nothing_us = median(c->us, EMPTY_ROUNDS);
    *calibrator_out = c;
    return 0;
}

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT extern const gpu_calibrate gpu_calibrate_table;
const gpu_calibrate gpu_calibrate_table = {describe, open, close, pin, unpin, empty, copy, back_to_back, alone};
