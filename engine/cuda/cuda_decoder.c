/* SPDX-License-Identifier: Apache-2.0 */
/* A decode step on the GPU, captured once in a CUDA graph. What changes from step to step, the token and how many there
 * are with it, is sent before each replay; all kernels read it on the device. */
#include "cuda_gpu.h"

#include <stdlib.h>

static int copy_row(kv *self, void *to, const void *from, size_t bytes) {
    if (cudaStreamSynchronize(self->stream) == cudaSuccess &&
        cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) == cudaSuccess)
        return 0;
    cudaGetLastError();
    self->error = "a row cannot be copied from the GPU";
    return -1;
}

static void close_decoder(decoder *d) {
    gpu_decoder *gd = (gpu_decoder *)d;
    cudaStreamSynchronize(gd->g->stream);
    if (gd->graph)
        cudaGraphExecDestroy(gd->graph);
    cudaFreeHost(d->logits);
    gpu_pass_close(&gd->pass);
    free(gd);
}

/* --------------------------------------------------------------------------------------------------------- step -- */

static void append_rows(gpu_decoder *d, int32_t layer) {
    kv *rows = d->base.rows;
    for (int32_t s = 0; s < d->g->m->stores; s++)
        if (rows->append(rows, layer * d->g->m->stores + s, gpu_rows_of(&d->pass, s)) != 0)
            gpu_fail(d->g, "%s", rows->error);
}

/* Everything a step does on the device. */
static void queue_step(gpu_decoder *d) {
    gpu *g = d->g;
    gpu_pass *p = &d->pass;
    const model *m = g->m;
    GPU_RUN(g, gpu_embed(g->token_embedding, p->token, m->embedding, 1, p->x, g->stream));
    for (int32_t layer = 0; layer < m->n_layers; layer++) {
        char *state = d->state + (size_t)layer * p->state_bytes;
        gpu_layer_begin(p, layer);
        append_rows(d, layer);
        p->kind->keep(p, &g->layer[layer], state);
        p->kind->attend(p, layer, state, d->base.rows);
        gpu_layer_end(p, layer);
    }
    gpu_logits(p, p->x, d->logits);
    GPU_RUN(g, cudaMemcpyAsync(d->base.logits, d->logits, (size_t)m->vocab * sizeof(float), cudaMemcpyDeviceToHost,
                               g->stream));
}

/* Relaxed: kernels that are called for the first time may be loaded meanwhile. After step_begin, so that the cache
 * knows of a batch of one. */
static void capture(gpu_decoder *d) {
    gpu *g = d->g;
    cudaGraph_t graph = NULL;
    if (!GPU_RUN(g, cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeRelaxed)))
        return;
    queue_step(d);
    GPU_RUN(g, cudaStreamEndCapture(g->stream, &graph));
    if (!g->failed)
        GPU_RUN(g, cudaGraphInstantiate(&d->graph, graph, 0));
    if (graph)
        cudaGraphDestroy(graph);
}

/* Whatever failed is told where a caller looks for it. */
static int outcome(gpu_decoder *d) {
    if (d->g->failed)
        d->base.rows->error = d->g->error;
    return d->g->failed ? -1 : 0;
}

static int step(decoder *base, int32_t token) {
    gpu_decoder *d = (gpu_decoder *)base;
    gpu *g = d->g;
    const int32_t input[2] = {token, base->length + 1}; /* token and n_tokens of the pass */
    if (g->failed || base->rows->begin(base->rows, base->length) != 0)
        return g->failed ? outcome(d) : -1;
    /* From pageable memory: it has been read when this returns. */
    GPU_RUN(g, cudaMemcpyAsync(d->pass.token, input, sizeof input, cudaMemcpyHostToDevice, g->stream));
    if (!d->graph)
        capture(d);
    if (!g->failed)
        GPU_RUN(g, cudaGraphLaunch(d->graph, g->stream));
    gpu_wait(g);
    base->length++;
    base->step++;
    return outcome(d);
}

static const decoder_kind on_gpu = {step, gpu__prefill, close_decoder};

/* --------------------------------------------------------------------------------------------------------- open -- */

static int allocate(gpu_decoder *d, int32_t top_k, int32_t max_tokens) {
    gpu *g = d->g;
    const model *m = g->m;
    gpu_pass *p = &d->pass;
    void *logits = NULL;
    if (gpu_pass_open(p, g, top_k, max_tokens, 1, 0) != 0)
        return -1;
    d->base.state_bytes = (size_t)m->n_layers * p->state_bytes;
    d->state = gpu_grab(g, &p->memory, d->base.state_bytes, 1);
    d->logits = gpu_grab(g, &p->memory, (size_t)m->vocab, sizeof(float));
    GPU_RUN(g, cudaHostAlloc(&logits, (size_t)m->vocab * sizeof(float), cudaHostAllocDefault));
    d->base.logits = logits;
    return gpu_wait(g) ? 0 : -1;
}

decoder *gpu_decoder_open(gpu *g, kv *rows, int32_t top_k, int32_t max_tokens) {
    gpu_decoder *d = calloc(1, sizeof *d);
    if (!d) {
        gpu_fail(g, "not enough memory");
        return NULL;
    }
    d->base.kind = &on_gpu;
    d->base.m = g->m;
    d->base.rows = rows;
    d->g = g;
    if (allocate(d, top_k, max_tokens) != 0) {
        close_decoder(&d->base);
        return NULL;
    }
    if (rows->cache) {
        rows->stream = g->stream;
        rows->copy = copy_row;
    } else {
        gpu_rows_follow(rows, d->pass.n_tokens);
    }
    return &d->base;
}
