/* SPDX-License-Identifier: Apache-2.0 */
/* The device: opening it, its memory, its errors, and the table that the library exports. */
#include "cuda_gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 32 << 20 }; /* what cuBLAS asks for on Hopper */

/* ------------------------------------------------------------------------------------------------------- errors -- */

int gpu_fail(gpu *g, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (!g->failed)
        vsnprintf(g->error, sizeof g->error, format, arguments);
    va_end(arguments);
    g->failed = 1;
    return -1;
}

/* The name of what was called is enough. */
static int length_of_name(const char *call) {
    return (int)strcspn(call, "(");
}

int gpu_fine(gpu *g, cudaError_t status, const char *what) {
    if (status != cudaSuccess) {
        gpu_fail(g, "%.*s: %s", length_of_name(what), what, cudaGetErrorString(status));
        cudaGetLastError(); /* the next call must not report this one again */
    }
    return !g->failed;
}

int gpu_done(gpu *g, int status, const char *what) {
    if (status != HSP_OK)
        gpu_fail(g, "%.*s: %s, %s", length_of_name(what), what, hsp_status_name(status), hsp_status_text(status));
    return !g->failed;
}

int gpu_wait(gpu *g) {
    return GPU_RUN(g, cudaStreamSynchronize(g->stream));
}

/* ------------------------------------------------------------------------------------------------------- memory -- */

void *gpu_grab(gpu *g, gpu_arena *arena, size_t count, size_t size) {
    size_t bytes = count * size + 256; /* never nothing */
    void *memory = NULL, **pieces = realloc(arena->piece, ((size_t)arena->n + 1) * sizeof *pieces);
    if (pieces)
        arena->piece = pieces;
    if (g->failed || !pieces || cudaMalloc(&memory, bytes) != cudaSuccess) {
        cudaGetLastError();
        gpu_fail(g, "the GPU has no %zu bytes of memory left", bytes);
        return NULL;
    }
    pieces[arena->n++] = memory;
    GPU_RUN(g, cudaMemsetAsync(memory, 0, bytes, g->stream));
    return memory;
}

void gpu_release(gpu_arena *arena) {
    for (int i = 0; i < arena->n; i++)
        cudaFree(arena->piece[i]);
    free(arena->piece);
    *arena = (gpu_arena){0};
}

/* --------------------------------------------------------------------------------------------------------- open -- */

static int find_device(gpu *g) {
    struct cudaDeviceProp properties;
    int count = 0, device = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count == 0)
        status = cudaErrorNoDevice;
    if (!gpu_fine(g, status, "looking for a GPU") || !GPU_RUN(g, cudaGetDevice(&device)) ||
        !GPU_RUN(g, cudaGetDeviceProperties(&properties, device)))
        return -1;
    if (properties.major < 9)
        return gpu_fail(g, "%.64s has compute capability %d.%d; 9.0 is needed", properties.name, properties.major,
                        properties.minor);
    return GPU_RUN(g, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)) ? 0 : -1;
}

/* With a workspace of its own cuBLAS can be captured, and with neither TF32 nor atomics its bits repeat. The stream
 * comes first: it takes the workspace away. */
static int open_blas(gpu *g) {
    void *workspace = gpu_grab(g, &g->memory, WORKSPACE_BYTES, 1);
    cublasStatus_t status = workspace ? cublasCreate(&g->blas) : CUBLAS_STATUS_ALLOC_FAILED;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetStream(g->blas, g->stream);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetWorkspace(g->blas, workspace, WORKSPACE_BYTES);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetMathMode(g->blas, CUBLAS_PEDANTIC_MATH);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetAtomicsMode(g->blas, CUBLAS_ATOMICS_NOT_ALLOWED);
    return status == CUBLAS_STATUS_SUCCESS ? 0 : gpu_fail(g, "cuBLAS: %s", cublasGetStatusString(status));
}

static void close_gpu(gpu *g) {
    if (!g)
        return;
    if (g->stream)
        cudaStreamSynchronize(g->stream);
    if (g->blas)
        cublasDestroy(g->blas);
    gpu_release(&g->memory);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    free(g->layer);
    free(g);
}

static gpu *open_gpu(const model *m, char *error, size_t error_bytes) {
    gpu *g = calloc(1, sizeof *g);
    if (!g) {
        snprintf(error, error_bytes, "not enough memory");
        return NULL;
    }
    g->m = m;
    if (find_device(g) == 0 && open_blas(g) == 0)
        gpu__load(g);
    if (!g->failed && gpu_wait(g))
        return g;
    snprintf(error, error_bytes, "%s", g->error);
    close_gpu(g);
    return NULL;
}

static kv *open_resident(gpu *g, int32_t max_tokens, char *error, size_t error_bytes) {
    kv *rows = gpu_rows_open(g, g->m->n_layers * g->m->stores, max_tokens);
    if (!rows)
        snprintf(error, error_bytes, "%s", g->error);
    return rows;
}

static decoder *open_decoder(gpu *g, kv *rows, int32_t top_k, int32_t max_tokens, char *error, size_t error_bytes) {
    decoder *d = gpu_decoder_open(g, rows, top_k, max_tokens);
    if (!d)
        snprintf(error, error_bytes, "%s", g->error);
    return d;
}

#define EXPORT __attribute__((visibility("default")))
EXPORT extern const cuda_engine cuda_engine_table;
const cuda_engine cuda_engine_table = {open_gpu, close_gpu, open_resident, open_decoder};
EXPORT extern const char *const cuda_engine_version;
const char *const cuda_engine_version = HSP_VERSION_TEXT;
