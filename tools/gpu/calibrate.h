/* SPDX-License-Identifier: Apache-2.0 */
/* Times of single operations of a GPU, for `hisparse calibrate`. Functions return 0, or -1 with a sentence in
 * gpu_memory's error(). */
#ifndef HISPARSE_GPU_CALIBRATE_H
#define HISPARSE_GPU_CALIBRATE_H

#include <stddef.h>
#include <stdint.h>

/* A stream, events, and memory to move rows to and to sweep the L2 with. */
typedef struct gpu_calibrator gpu_calibrator;

typedef struct gpu_machine {
    int cuda;      /* newest CUDA that the driver knows, 1000 * major + 10 * minor */
    int numa_node; /* of the host, next to the GPU; -1: not said */
    char pci[32];  /* address on the bus, "0000:3b:00.0" */
} gpu_machine;

/* Rows moved by a kernel between a pool in host memory and packed rows on the GPU: a flat list of pieces of 16 bytes,
 * or of 8 where 16 does not divide row_bytes and stride, in_flight of them loaded by a thread before it stores the
 * first. */
typedef struct gpu_transfer {
    char *pool;          /* as the GPU sees it */
    const uint32_t *row; /* [rounds + 1][launches][n_rows]: numbers of rows; the first round does not count */
    int rounds, launches, n_rows;
    int row_bytes, stride; /* multiples of 8; stride: from row to row in the pool */
    int blocks, threads;
    int in_flight;         /* 1, 2, 4 or 8 */
    int to_host;           /* 1: from the GPU to the pool */
    const uint32_t *touch; /* [n_touch]: before, 16 bytes at 16 * touch of the pool are read */
    int n_touch;
} gpu_transfer;

/* What else comes before each launch of `alone`, in this order. GPU_NEAR: the same launch, untimed, GPU_NEAR_BYTES
 * further in the pool: the same pages, other bytes. GPU_SWEEP: the L2 is filled with other memory. */
enum { GPU_NEAR = 1, GPU_SWEEP = 2, GPU_NEAR_BYTES = 128 };

typedef struct gpu_calibrate {
    int (*describe)(gpu_machine *machine_out);
    int (*open)(gpu_calibrator **calibrator_out);
    void (*close)(gpu_calibrator *calibrator);               /* NULL is allowed */
    int (*pin)(void *memory, size_t bytes, char **pool_out); /* pool_out: its address for the GPU */
    void (*unpin)(void *memory);
    int (*empty)(gpu_calibrator *c, double *us_out); /* a launch of nothing inside a graph */
    int (*copy)(gpu_calibrator *c, void *to, const void *from, size_t bytes, int rounds, double *us_out);
    /* us a launch, launch after launch inside a graph; touched once, before the first. */
    int (*back_to_back)(gpu_calibrator *c, const gpu_transfer *t, double *us_out);
    /* us of a launch more than a launch of nothing takes; each launch touched and prepared on its own. */
    int (*alone)(gpu_calibrator *c, const gpu_transfer *t, int before, double *us_out);
} gpu_calibrate;

#define GPU_CALIBRATE "gpu_calibrate_table"

/* Bounds of a gpu_transfer: launches * n_rows and n_touch; n_rows * row_bytes; rounds * launches. */
enum { GPU_MOST_LIST = 1 << 20, GPU_MOST_BYTES = 64 << 20, GPU_MOST_TIMES = 4096 };

#endif
