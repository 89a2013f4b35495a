/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the engine on a CUDA device. Everything is queued on one stream; the first failure is kept in the gpu
 * and whatever is queued after it does not matter, so that only who waits has to look. */
#ifndef HISPARSE_CUDA_GPU_H
#define HISPARSE_CUDA_GPU_H

#include "cuda_engine.h"
#include "cuda_kernels.h"
#include "hisparse_ops_gpu.h"

#include <cublas_v2.h>

/* Device memory that is given back together. */
typedef struct gpu_arena {
    void **piece;
    int n;
} gpu_arena;

struct gpu {
    const model *m;
    model_layer *layer; /* [n_layers]; float32 in device memory, as the rest of the weights */
    float *token_embedding, *output_norm, *output, *rope_frequency, *index_rope_frequency;
    gpu_arena memory;
    cudaStream_t stream;
    cublasHandle_t blas;
    int failed;
    char error[256];
};

/* Note what went wrong, if anything did; whether all was well so far. */
int gpu_fine(gpu *g, cudaError_t status, const char *what);
int gpu_done(gpu *g, int status, const char *what); /* of an hsp_status */
int gpu_fail(gpu *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define GPU_RUN(g, call) gpu_fine(g, call, #call)
#define GPU_OPS(g, call) gpu_done(g, call, #call)

/* Wait for the stream. */
int gpu_wait(gpu *g);

/* Zeroed; NULL, with the gpu failed, when the device has no more. */
void *gpu_grab(gpu *g, gpu_arena *arena, size_t count, size_t size);
void gpu_release(gpu_arena *arena);

/* Weights of the model, once the stream is there. */
void gpu__load(gpu *g);

/* y[n][outputs] = x[n][inputs] times the transpose of weights [outputs][inputs]; added to y where `add` is 1. Float32
 * throughout: the same bits for the same shapes. */
void gpu_project(gpu *g, const float *weights, int32_t outputs, int32_t inputs, const float *x, int32_t n, int add,
                 float *y);

/* The same for every head, heads side by side in a row of x and y: weights [heads][outputs][inputs], or with `back`
 * [heads][inputs][outputs]. apart: floats from head to head. */
typedef struct gpu_heads {
    int32_t heads, outputs, inputs, back, x_apart, y_apart;
} gpu_heads;
void gpu_project_heads(gpu *g, const gpu_heads *h, const float *weights, const float *x, int32_t n, float *y);

/* -------------------------------------------------------------------------------------------------------- passes -- */

enum { GPU_PARTS = 5 };

typedef struct gpu_kind gpu_kind;

/* n tokens side by side on their way through the layers: one of a step, or some hundred of a prompt. What attend.h has
 * in activations, sizes and workers is here together, for all tokens attend at once. */
typedef struct gpu_pass {
    gpu *g;
    const gpu_kind *kind;
    int32_t top_k, max_tokens, n;
    int is_prompt;
    int32_t bound; /* no token of the pass sees more */
    gpu_arena memory;
    hsp_gpu_batch batch;              /* the n tokens are queries of one entry; new tokens come in together */
    int32_t *token, *n_tokens, *slot; /* [n], [n], [1]; one after the other */
    float *x, *normed;                /* [n][embedding] */
    float *gate, *up;                 /* [n][ffn] */
    float *query, *attended;          /* [n][query_floats], [n][attended_floats] */
    float *part[GPU_PARTS];           /* [n][part_floats]: each kind names its own */
    char *rows;                       /* [stores of a layer][n][row bytes] */
    int32_t *selection, *ids;         /* [n][selection_numbers]: ids is for rows of a cache, whose n is 1 */
    float *floats;                    /* [n][scratch_floats] */
    void *scratch;                    /* of a selector */
    size_t query_floats, attended_floats, part_floats[GPU_PARTS], selection_numbers, scratch_floats; /* a token */
    size_t state_bytes, scratch_bytes; /* of what the selector of a layer keeps; of all n tokens */
} gpu_pass;

struct gpu_kind {
    /* Fill in the sizes; 0, or -1 with the gpu failed. */
    int (*measure)(gpu_pass *p);
    /* Query, parts and rows out of `normed`. */
    void (*project)(gpu_pass *p, const model_layer *w);
    /* Take the tokens into what the selector keeps. */
    void (*keep)(gpu_pass *p, const model_layer *w, void *state);
    /* `attended` of all tokens, whose rows and whose predecessors' are kept. */
    void (*attend)(gpu_pass *p, int32_t layer, const void *state, kv *rows);
};

extern const gpu_kind gpu__quest, gpu__nsa, gpu__dsa;

/* 0, or -1 with the gpu failed; what was had is freed by close. n: the most tokens there will be side by side. */
int gpu_pass_open(gpu_pass *p, gpu *g, int32_t top_k, int32_t max_tokens, int32_t n, int is_prompt);
void gpu_pass_close(gpu_pass *p);
void gpu_pass_set(gpu_pass *p, int32_t n);

/* Around attention, as layer_begin and layer_end; and the logits of one token. */
void gpu_layer_begin(gpu_pass *p, int32_t layer);
void gpu_layer_end(gpu_pass *p, int32_t layer);
void gpu_logits(gpu_pass *p, const float *x, float *logits);

/* Numbers of every token into its row of a store, from byte `offset` on. */
void gpu_pack_rows(gpu_pass *p, int32_t store, size_t offset, const float *numbers, size_t stride, size_t count);
/* Those of one store. */
char *gpu_rows_of(const gpu_pass *p, int32_t store);

/* Row ids of a selection [n][k]: the tokens themselves where every row is resident, else out of the cache. */
const int32_t *gpu_select(gpu_pass *p, kv *rows, int32_t store, const int32_t *selection, int32_t k);

/* Attend to k rows a token, query and out being of `shape`. */
void gpu_attend(gpu_pass *p, const hsp_gqa_shape *shape, const hsp_plane_view *planes, const float *query,
                const int32_t *ids, int32_t k, float *out, float *lse_out);

/* -1 with the gpu failed for a head the attention kernels do not take. */
int gpu_check_heads(gpu *g, const char *what, int32_t key_dim, int32_t value_dim);

/* --------------------------------------------------------------------------------------------- rows and decoders -- */

/* Rows of `stores` layers of rows on the GPU; a store's number counts modulo that. NULL with the gpu failed. */
kv *gpu_rows_open(gpu *g, int32_t stores, int32_t max_tokens);
/* From here on a row that is appended is of token *n_tokens - 1. */
void gpu_rows_follow(kv *rows, const int32_t *n_tokens);

typedef struct gpu_decoder {
    decoder base;
    gpu *g;
    gpu_pass pass;
    char *state;   /* [layer][pass.state_bytes] */
    float *logits; /* on the device; base.logits is pinned */
    cudaGraphExec_t graph;
} gpu_decoder;

decoder *gpu_decoder_open(gpu *g, kv *rows, int32_t top_k, int32_t max_tokens);
int gpu__prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                 void *context, const char **error_out);

#endif
