/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the ops on the GPU share: device memory, a captured call, and skipping where there is no device.
 */
#ifndef HSP_GPU_COMMON_H
#define HSP_GPU_COMMON_H

#include "hisparse_ops_gpu.h"

#include "../ops/ops_common.h"

#include <cuda_runtime_api.h>

static cudaStream_t test_stream;

#define need(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t need_status = (call);                                                                              \
        if (need_status != cudaSuccess)                                                                                \
            fail_msg("%s: %s", #call, cudaGetErrorString(need_status));                                                \
    } while (0)

/* At the beginning of every test. */
static inline void need_device(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        print_message("skipped: no device\n");
        skip();
    }
    if (!test_stream)
        need(cudaStreamCreateWithFlags(&test_stream, cudaStreamNonBlocking));
}

/* Device memory that holds `from`, or bytes of 0x5a where that is NULL. */
static inline void *on_device(const void *from, size_t bytes) {
    void *memory = NULL;
    need(cudaMalloc(&memory, bytes ? bytes : 1));
    if (from && bytes)
        need(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    else
        need(cudaMemset(memory, 0x5a, bytes ? bytes : 1));
    need(cudaDeviceSynchronize()); /* the stream does not wait for the default one */
    return memory;
}

static inline void to_device(void *to, const void *from, size_t bytes) {
    need(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    need(cudaDeviceSynchronize());
}

/* After what is on the stream. */
static inline void from_device(void *to, const void *from, size_t bytes) {
    need(cudaStreamSynchronize(test_stream));
    need(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

static inline void free_device(void *memory) {
    need(cudaFree(memory));
}

/* The calls that `body` makes on test_stream, to be replayed with cudaGraphLaunch. */
static inline cudaGraphExec_t capture(void (*body)(void *), void *argument) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    need(cudaStreamBeginCapture(test_stream, cudaStreamCaptureModeGlobal));
    body(argument);
    need(cudaStreamEndCapture(test_stream, &graph));
    need(cudaGraphInstantiate(&ready, graph, 0));
    need(cudaGraphDestroy(graph));
    return ready;
}

static inline void replay(cudaGraphExec_t graph) {
    need(cudaGraphLaunch(graph, test_stream));
}

/* slot, n_tokens: host arrays [batch], [batch][n_queries]; the batch holds copies of them until free_batch. */
static inline hsp_gpu_batch make_batch(int32_t batch, int32_t n_queries, int32_t max_tokens, const int32_t *slot,
                                       const int32_t *n_tokens) {
    hsp_gpu_batch b = {sizeof b, batch, n_queries, max_tokens, NULL, NULL};
    b.slot = on_device(slot, (size_t)batch * sizeof *slot);
    b.n_tokens = on_device(n_tokens, (size_t)batch * (size_t)n_queries * sizeof *n_tokens);
    return b;
}

static inline void free_batch(hsp_gpu_batch *b) {
    free_device((void *)(uintptr_t)b->slot);
    free_device((void *)(uintptr_t)b->n_tokens);
}

#endif
