/* SPDX-License-Identifier: Apache-2.0 */
/* What `hisparse bench decode-path` puts around the cache in a layer: attention, rows written as an engine without the
 * cache writes them, and something that stands for the rest of the layer. Functions launch on `stream`, may be
 * captured, and return 0, or -1 with a sentence in error() of gpu/memory.h. */
#ifndef HISPARSE_GPU_PATH_H
#define HISPARSE_GPU_PATH_H

#include "hisparse_ops_gpu.h"

typedef struct gpu_weights gpu_weights; /* memory that the stand-in reads, far more than the L2 holds */

/* The rest of a layer: a fixed amount of work, not of time, so that what takes SMs or memory from it makes it longer.
 * Half of it reads memory, half computes, in turns; every multiprocessor is full of threads, whose blocks last some 10
 * us, so that other kernels find a place between them as between the blocks of a matrix product. */
typedef struct gpu_work {
    uint32_t reads;         /* blocks, of GPU_WORK_READ bytes each */
    uint32_t waves, rounds; /* blocks that fill the GPU so many times; multiplications of each thread, times 4 */
} gpu_work;
enum { GPU_WORK_READ = 256 << 10, GPU_WORK_TURNS = 2 /* each with half of the amount */ };

typedef struct gpu_path {
    int (*open)(gpu_weights **weights_out);
    void (*close)(gpu_weights *weights); /* NULL is allowed */
    /* Reads go on where the last call stopped. */
    int (*work)(gpu_weights *weights, const gpu_work *amount, void *stream);
    /* hsp_gpu_mla_attend, without sink and lse. */
    int (*attend)(const hsp_mla_shape *shape, const hsp_plane_view *rows, const hsp_gpu_batch *batch,
                  const float *query, const int32_t *row_ids, int32_t n_rows, int32_t n_chunks, float *out,
                  void *stream);
    /* n packed rows of row_bytes bytes, a multiple of 16; device memory, 16-byte aligned. */
    int (*put)(void *to, const void *from, int32_t row_bytes, int32_t n, void *stream);
} gpu_path;

#define GPU_PATH "gpu_path_table"

#endif
