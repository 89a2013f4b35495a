/* SPDX-License-Identifier: Apache-2.0 */
/* The engine on a CUDA device: decoders and rows like those of decoder.h and kv.h, whose memory is the GPU's. It is a
 * library of its own, libhisparse_engine_cuda.so, opened when somebody asks for it, that exports this table. */
#ifndef HISPARSE_CUDA_ENGINE_H
#define HISPARSE_CUDA_ENGINE_H

#include "decoder.h"

/* A GPU that holds the weights of a model, and the one stream on which everything runs. */
typedef struct gpu gpu;

/* NULL on failure, with the reason in `error`. */
typedef struct cuda_engine {
    gpu *(*open)(const model *m, char *error, size_t error_bytes);
    /* After the decoders, the resident rows and the cache that used it. */
    void (*close)(gpu *g);
    /* All rows on the GPU, no cache involved. */
    kv *(*open_resident)(gpu *g, int32_t max_tokens, char *error, size_t error_bytes);
    /* rows: of open_resident, or of kv_open_cache with the backend cuda, which from here on works on the GPU's stream.
     * top_k as for decoder_open. */
    decoder *(*open_decoder)(gpu *g, kv *rows, int32_t top_k, int32_t max_tokens, char *error, size_t error_bytes);
} cuda_engine;

#define CUDA_ENGINE_LIBRARY "libhisparse_engine_cuda.so"
#define CUDA_ENGINE_TABLE   "cuda_engine_table"
#define CUDA_ENGINE_VERSION "cuda_engine_version"

#endif
