/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <cuda_runtime_api.h>

static void need(cudaError_t status, const char *what) {
    if (status != cudaSuccess)
        toy_differs(__FILE__, __LINE__, what, status, cudaSuccess);
}

static void open_stream(queue *q) {
    cudaStream_t stream;
    cudaEvent_t event;
    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    need(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    q->stream = stream;
    q->event = event;
}

static void close_stream(queue *q) {
    if (q->graph)
        need(cudaGraphExecDestroy(q->graph), "cudaGraphExecDestroy");
    need(cudaEventDestroy(q->event), "cudaEventDestroy");
    need(cudaStreamDestroy(q->stream), "cudaStreamDestroy");
}

static void *alloc(size_t bytes, int on_host) {
    void *memory = NULL;
    need(on_host ? cudaMallocHost(&memory, bytes) : cudaMalloc(&memory, bytes), "allocating");
    if (on_host)
        return memset(memory, 0, bytes);
    need(cudaMemset(memory, 0, bytes), "cudaMemset");
    need(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); /* streams of ours do not wait for the default one */
    return memory;
}

static void release(void *memory, int on_host) {
    need(on_host ? cudaFreeHost(memory) : cudaFree(memory), "releasing");
}

static void copy(queue *q, void *to, const void *from, size_t bytes) {
    need(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream), "cudaMemcpyAsync");
}

static void wait(queue *q) {
    need(cudaStreamSynchronize(q->stream), "cudaStreamSynchronize");
}

static void follow(queue *q, queue *before) {
    need(cudaEventRecord(before->event, before->stream), "cudaEventRecord");
    need(cudaStreamWaitEvent(q->stream, before->event, 0), "cudaStreamWaitEvent");
}

static void capture(queue *q, void (*body)(void *), void *argument) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    need(cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    body(argument);
    need(cudaStreamEndCapture(q->stream, &graph), "cudaStreamEndCapture");
    need(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    need(cudaGraphDestroy(graph), "cudaGraphDestroy");
    if (q->graph)
        need(cudaGraphExecDestroy(q->graph), "cudaGraphExecDestroy");
    q->graph = ready;
}

static void replay(queue *q) {
    need(cudaGraphLaunch(q->graph, q->stream), "cudaGraphLaunch");
}

static size_t device_free(void) {
    size_t free_bytes = 0, total_bytes;
    need(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return free_bytes;
}

static const queue_kind streams = {open_stream, close_stream, alloc,   release, copy,
                                   wait,        follow,       capture, replay,  device_free};
const queue_kind *const queue_cuda = &streams;
