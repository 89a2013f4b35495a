/* SPDX-License-Identifier: Apache-2.0 */
/* What `hisparse bench` needs of a GPU: a stream whose launches are captured into graphs with time stamps between them,
 * something that sweeps the L2, rows that tell where they belong, and a plain gather to measure against. Functions
 * return 0, or -1 with a sentence in error() of gpu/memory.h. */
#ifndef HISPARSE_GPU_BENCH_H
#define HISPARSE_GPU_BENCH_H

#include <stddef.h>
#include <stdint.h>

typedef struct gpu_lane gpu_lane; /* the stream and what belongs to it */

/* Rows, and what should be in them. Every word of a row (8 bytes, or 4 where row_bytes is no multiple of 8) tells
 * request, layer, token and place in the row; requests and layers count to 1024, tokens to 4194304. */
typedef struct gpu_rows {
    void *base; /* device memory, or host memory as the device sees it */
    uint32_t row_bytes, stride;
    uint32_t layer;
} gpu_rows;

/* Rows numbered by `from` in the pool go to the rows numbered by `to`; both device memory, [n]. */
typedef struct gpu_gather {
    const void *pool;
    void *rows;
    const uint32_t *from;
    const int32_t *to;
    uint32_t n, row_bytes, pool_stride, row_stride;
} gpu_gather;

typedef struct gpu_bench {
    int (*open)(int most_stamps, gpu_lane **lane_out);
    void (*close)(gpu_lane *lane);      /* NULL is allowed */
    void *(*stream)(gpu_lane *lane);    /* for calls of the library */
    double (*tick_us)(gpu_lane *lane);  /* of the clock behind the time stamps */
    double (*sweep_mb)(gpu_lane *lane); /* that a sweep reads */

    /* Between begin and end, launches are noted and not run. end gives NULL for a capture that failed. */
    int (*capture_begin)(gpu_lane *lane);
    int (*capture_end)(gpu_lane *lane, void **graph_out);
    void (*graph_free)(void *graph);
    /* Run a graph, wait for it, and read the first n stamps: microseconds after stamp 0. */
    int (*replay)(gpu_lane *lane, void *graph, int n, double *us_out);

    /* Launches, to be captured or not. */
    int (*stamp)(gpu_lane *lane, int number); /* the time at which everything before it is done */
    int (*sweep)(gpu_lane *lane);             /* fill the L2 with something else */
    int (*gather)(gpu_lane *lane, const gpu_gather *what, int blocks);
    /* Make n rows of one request, tokens from `first` on. */
    int (*make_rows)(gpu_lane *lane, const gpu_rows *rows, uint32_t request, uint32_t first, uint32_t n);

    /* How many of the rows ids[n] do not hold what belongs to the token: tokens[i] % context of request i /
     * per_request. An id outside 0 .. n_rows - 1 is wrong. Waits. ids, tokens: device memory. */
    int (*check_rows)(gpu_lane *lane, const gpu_rows *rows, int64_t n_rows, const int32_t *ids, const uint32_t *tokens,
                      uint32_t n, uint32_t per_request, uint32_t context, uint64_t *wrong_out);

    /* Give the GPU ordinary host memory to read and write; device_out: where it sees it. */
    int (*map_host)(void *memory, size_t bytes, void **device_out);
    int (*unmap_host)(void *memory);
} gpu_bench;

#define GPU_BENCH "gpu_bench_table"

#endif
