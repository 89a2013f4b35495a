/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse calibrate`: what its measurements share. Functions that may fail return an exit code after saying why. */
#ifndef HISPARSE_CALIBRATE_H
#define HISPARSE_CALIBRATE_H

#include "emit.h"
#include "gpu/calibrate.h"
#include "gpu/memory.h"

#include <stdint.h>
#include <stdio.h>

enum { CALIBRATE_ROW = 656 /* bytes, of the row that choices are made with */ };

/* What is tried; the chosen values are among these. */
enum { CALIBRATE_BLOCKS = 7, CALIBRATE_PIECES = 4, CALIBRATE_REQUESTS = 4, CALIBRATE_STRIDES = 3 };
extern const int calibrate_blocks[CALIBRATE_BLOCKS];     /* that fetch the rows of a large batch */
extern const int calibrate_pieces[CALIBRATE_PIECES];     /* in flight a thread */
extern const int calibrate_requests[CALIBRATE_REQUESTS]; /* blocks that serve one request */
extern const int calibrate_aligns[CALIBRATE_STRIDES];    /* of rows in host memory */

/* What was measured, beyond the rows of the table; NAN: not measured. GB/s are 10^9 bytes a second. */
typedef struct calibrate_results {
    double launch_us, device_copy_gb_s, engine_to_device_gb_s, engine_to_host_gb_s;
    double kernel_to_device_gb_s, kernel_to_host_gb_s; /* the best */
    double granule_kib, reach_mib, reach_swept_mib, walks_per_us, walks_swept_per_us;
    double grid_gb_s[CALIBRATE_BLOCKS][CALIBRATE_PIECES];
    double request_us[CALIBRATE_REQUESTS];
    double align_gb_s[CALIBRATE_STRIDES];
    double seconds;
} calibrate_results;

/* Values of the knobs. */
typedef struct calibrate_choice {
    int host_row_align, request_blocks, fetch_blocks, pieces_in_flight;
} calibrate_choice;

typedef struct calibrate {
    const gpu_memory *memory;
    const gpu_calibrate *gpu;
    gpu_calibrator *device;
    char *base, *pool; /* host memory, as the CPU and as the GPU sees it */
    uint64_t pool_bytes;
    int rounds;                   /* of each measurement; the median counts */
    int best_blocks, best_pieces; /* with which the kernel of this machine reads fastest */
    uint64_t seed;
    char command[1024], note[320];
    emit_table table;
    calibrate_results results;
} calibrate;

/* One row of the table; NAN in what does not apply. */
typedef struct calibrate_row {
    const char *what;
    double rows, row_bytes, stride_bytes, span_mib, blocks, pieces; /* rows: of a launch */
    double time_us, swept_us, rate_gb_s, swept_gb_s;
} calibrate_row;
#define CALIBRATE_ROW_OF(name)                                                                                         \
    {                                                                                                                  \
        .what = (name), .rows = NAN, .row_bytes = NAN, .stride_bytes = NAN, .span_mib = NAN, .blocks = NAN,            \
        .pieces = NAN, .time_us = NAN, .swept_us = NAN, .rate_gb_s = NAN, .swept_gb_s = NAN                            \
    }
int calibrate_add(calibrate *c, const calibrate_row *row);

/* TOOL_OK when a call of the GPU's tables returned 0. */
int calibrate_check(const calibrate *c, int status, const char *what);

/* Take and give back the pool: `gib` GiB, or 0 for as much up to `most` GiB as is free. */
int calibrate_open_pool(calibrate *c, int64_t gib, int64_t most);
void calibrate_close_pool(calibrate *c);

/* [lists][n] numbers below `below`, in each list other ones, in random order; NULL without memory. n must be well below
 * `below`. Release with free. */
uint32_t *calibrate_draw(uint64_t *seed, int lists, int n, uint32_t below);

/* A random place, as of gpu_transfer.touch, in each of the n granules of 64 KiB from `first` on, in random order. */
uint32_t *calibrate_places(uint64_t *seed, uint64_t first, int n);

/* How fast rows move at random within the first `span` bytes of the pool. swept_us_out: with the L2 swept before each
 * launch; may be NULL. t: row_bytes, stride, blocks, in_flight, to_host; n_rows is set. Times are us a launch. */
int calibrate_rate(calibrate *c, gpu_transfer *t, uint64_t span, double *us_out, double *swept_us_out);

/* The measurements; each adds rows to the table and sets its results. calibrate_grid comes before all that move rows:
 * it tells with how many blocks and pieces; calibrate_request uses the pieces in flight that are chosen. */
int calibrate_grid(calibrate *c);
int calibrate_copies(calibrate *c);
int calibrate_reads(calibrate *c);
int calibrate_writes(calibrate *c);
int calibrate_aligned(calibrate *c);
int calibrate_request(calibrate *c);
int calibrate_touches(calibrate *c);
int calibrate_walks(calibrate *c);
int calibrate_reach(calibrate *c);

/* Conclusions, from numbers alone. granule: of steps that double and the time first touches at that step take longer
 * than later ones; reach: of growing spans and their rates. NAN: it does not show. */
void calibrate_choose(const calibrate_results *results, calibrate_choice *choice_out);
double calibrate_find_granule(const double *step, const double *extra_us, int n);
double calibrate_find_reach(const double *span, const double *rate, int n);

/* The profile that hsp_config_profile reads. */
int calibrate_print_profile(const calibrate *c, const calibrate_choice *choice, FILE *to);

#endif
