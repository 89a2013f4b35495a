/* SPDX-License-Identifier: Apache-2.0 */
/* The swap-in bench on a backend with memory of its own: cases, caches, traces and timed series. */
#ifndef HISPARSE_BENCH_GPU_H
#define HISPARSE_BENCH_GPU_H

#include "bench.h"
#include "gpu/bench.h"
#include "gpu/memory.h"

/* -------------------------------------------------------------------------------------------------------- cases -- */

typedef struct bench_shape {
    int32_t batch, context, slots, row_bytes;
    int32_t layers; /* that launches go round: anchors */
    int32_t group;  /* layers of a group; anchor i is layer i * group */
    int32_t growth; /* tokens a request may gain beyond the context */
} bench_shape;

typedef struct bench_case {
    bench_shape shape;
    double miss; /* percent of a selection; of the whole batch's when cold */
    int cold;    /* request 0 misses everything, the others nothing */
} bench_case;

/* Cases of one shape follow each other. */
typedef struct bench_cases {
    bench_case *item;
    int n;
} bench_cases;

/* The cases of the options, or a code after saying what is wrong with them. */
int bench_gpu_cases(const bench_options *o, bench_cases *cases_out);
size_t bench_gpu_stride(const bench_shape *shape);     /* bytes from row to row in host memory */
size_t bench_gpu_pool_bytes(const bench_shape *shape); /* of all layers and requests */

/* --------------------------------------------------------------------------------------------------------- state -- */

/* What the launches of one graph need. Launch i is for layer i % layers. Arrays without "host" are device memory. */
typedef struct bench_launches {
    int32_t n, k;
    int32_t *hot;       /* [layers][batch][slots]: what is resident before the first launch */
    int32_t *selection; /* [n][batch][k] */
    int32_t *ids;       /* [n][batch][k] */
    /* What each launch fetches: place in the selection, and the moves of the yardstick. */
    int32_t rows;         /* a launch */
    int32_t per_request;  /* of each request that misses */
    uint32_t *host_place; /* [n][rows] */
    uint32_t *from;       /* [n][rows]: row of the pool, (layer * batch + request) * context + token */
    int32_t *to;          /* [n][rows]: row of the target */
    /* What bringing the caches back to the first launch fetches, nearly: those of the hot rows that go first. The
     * yardstick moves them too between replays, so that the GPU remembers translations of either pool alike. */
    int32_t undo_rows, undo_per_request; /* a layer; of each request that misses */
    uint32_t *undo_from;                 /* [layers][undo_rows] */
    int32_t *undo_to;                    /* [undo_rows] */
} bench_launches;

typedef struct bench_gpu_state {
    const bench_options *o;
    const gpu_memory *memory;
    const gpu_bench *gpu;
    gpu_lane *lane;
    /* The yardstick's host rows: [layer][request][token] of the shape at hand. */
    char *pool;
    size_t pool_bytes;
    void *pool_device;
    /* of the shape at hand */
    bench_shape shape;
    bench_cache real, oracle;
    char *target; /* the yardstick's device rows, laid out like the cache's */
    size_t layer_bytes;
    hsp_rows_view view; /* of layer 0 of the real cache */
    /* of the case at hand */
    bench_launches launches;
    /* Time between two stamps with nothing in between, back to back and after a sweep. */
    double nothing_us[2];
} bench_gpu_state;

int bench_gpu_fails(const bench_gpu_state *s); /* says the GPU's error */

/* The yardstick's pool, taken as the library takes its own and made known to the GPU. */
int bench_gpu_open_pool(bench_gpu_state *s, size_t bytes);
void bench_gpu_close_pool(bench_gpu_state *s);

/* The caches of a shape, filled, and the rows of the yardstick. Closing what is not open is allowed. */
int bench_gpu_open_shape(bench_gpu_state *s, const bench_shape *shape);
void bench_gpu_close_shape(bench_gpu_state *s);

/* One cache of the shape at hand, all requests filled to the whole context and in the step, none with a new token.
 * flags: of hsp_config. */
int bench_gpu_open_cache(bench_gpu_state *s, bench_cache *b, int32_t row_bytes, uint32_t flags);
/* Bytes of a row for a cache of HSP_NO_IO: its rows are small, and are moved in pieces of the same size. */
int32_t bench_gpu_oracle_row(const bench_shape *shape);

/* Traces of a case on the device. */
int bench_gpu_make_launches(bench_gpu_state *s, const bench_case *c);
void bench_gpu_free_launches(bench_gpu_state *s);
/* Bring every request to where it was before the first launch of the traces. */
int bench_gpu_reset_cache(bench_gpu_state *s, bench_cache *b);
/* Every group must have fetched what the traces say, since the counters were reset. */
int bench_gpu_check_misses(bench_gpu_state *s, bench_cache *b);
/* Where the yardstick puts its rows: where the last swap-in put them. */
int bench_gpu_make_moves(bench_gpu_state *s);

/* -------------------------------------------------------------------------------------------------------- series -- */

typedef struct bench_series {
    enum { BENCH_RESOLVE, BENCH_SWAP_IN, BENCH_GATHER } kind;
    int swept;  /* the L2, before each launch */
    int blocks; /* of the gather */
} bench_series;

/* Launches of a sample, back to back. One stamp for many: what a launch does to the next stays in the time. */
enum { BENCH_GROUP = 12 };

/* Time between two stamps; before any series. */
int bench_gpu_calibrate(bench_gpu_state *s);
/* Microseconds a launch into samples, of at least `least` replays and `seconds`. */
int bench_gpu_series(bench_gpu_state *s, const bench_series *series, int least, double seconds, bench_samples *samples);
/* The middle of samples: the median, or the mean where the clock is too coarse for one. */
#define BENCH_COARSE_TICK_US 0.1
double bench_gpu_middle(const bench_gpu_state *s, bench_samples *samples);
/* Rows of the last step of every layer that are not right, as the last series of this kind left them; added. */
int bench_gpu_check(bench_gpu_state *s, int kind, uint64_t *wrong);

#endif
