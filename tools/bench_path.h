/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse bench decode-path`: what the layers of a token cost with a cache in them, beyond what they cost with every
 * row resident. Functions that may fail return an exit code after saying why. */
#ifndef HISPARSE_BENCH_PATH_H
#define HISPARSE_BENCH_PATH_H

#include "bench_gpu.h"
#include "gpu/path.h"

/* The ways in which the same tokens are made. Row ids of the resident way are those that a swap-in gave before. */
enum path_mode {
    PATH_WAITING,    /* a swap-in fetches the rows of its whole group before attention */
    PATH_PREFETCHED, /* the anchor's before attention, its followers' meanwhile (HSP_PREFETCH) */
    PATH_ORACLE,     /* everything but the bytes (HSP_NO_IO) */
    PATH_RESIDENT,   /* no call of the library; new rows are written by a kernel */
    PATH_MODES
};

typedef struct path_options {
    bench_options bench;
    tool_reals groups; /* layers of a group */
    double attention_us, other_us;
    int64_t model_layers, model_anchors;
} path_options;

/* -------------------------------------------------------------------------------------------------------- cases -- */

/* TOOL_OK, or a code after saying which lists of cases there are, or what is wrong with the options. Release
 * cases_out->item with free in any case. */
int bench_path_cases(const path_options *o, bench_cases *cases_out);
size_t bench_path_pool_bytes(const bench_shape *shape);
int32_t bench_path_layers(const bench_shape *shape);

/* ------------------------------------------------------------------------------------------------------ numbers -- */

/* What was measured of a case; times are medians, microseconds a layer. */
typedef struct path_times {
    bench_shape shape;
    double miss;               /* percent */
    double us[PATH_MODES];     /* NAN: not run */
    double p99_us[PATH_MODES]; /* of tokens, a layer */
    double rows;               /* fetched for a layer */
    double link_gb_s;          /* the best rate of a kernel on this link */
} path_times;

/* Microseconds a layer, but where said. NAN where something is missing. */
typedef struct path_costs {
    double exposed[PATH_MODES];    /* mode - resident */
    double mechanism;              /* oracle - resident */
    double link[PATH_MODES];       /* mode - oracle */
    double hidden_percent;         /* of what waiting for the link costs, by prefetching */
    double followers_percent;      /* the same of what followers add to it: to the cost of single layers */
    double of_single_percent;      /* what waiting for a group costs, of the same layers one by one */
    double rate_gb_s;              /* of the rows that were waited for */
    double floor_us;               /* the bytes at the link's best rate */
    double of_link_percent;        /* rate_gb_s of link_gb_s */
    double model_ms[PATH_MODES];   /* a token of the model */
    double exposed_ms[PATH_MODES]; /* the part of it that is exposed */
} path_costs;

/* single: the same case with groups of one, or NULL. A model has anchors of groups as large as the shape's, which is
 * more than its layers where they do not divide; of single layers, as many as layers. */
void bench_path_costs(const path_times *t, const path_times *single, int64_t model_layers, int64_t model_anchors,
                      path_costs *costs_out);

/* -------------------------------------------------------------------------------------------------------- state -- */

enum { PATH_HEADS = 128, PATH_CHANNELS = 576, PATH_LATENT = 512 }; /* of attention */

typedef struct path_state {
    const path_options *o;
    bench_gpu_state s; /* its real cache is the one that waits */
    const gpu_path *path;
    gpu_weights *weights;
    double link_gb_s;
    double read_us, round_us; /* of the stand-in: of a block read; of a round of a wave */
    /* of the shape at hand; device memory */
    bench_cache prefetched;    /* not open for groups of one */
    void *new_rows, *put_rows; /* [batch] rows, and where the resident way writes them */
    float *query, *out;        /* [batch][PATH_HEADS][PATH_CHANNELS], [batch][PATH_HEADS][PATH_LATENT] */
    int32_t *zeros;            /* [batch] */
    /* of the case at hand */
    gpu_work work; /* of a layer */
    double attention_us, work_us;
} path_state;

/* The tables of the GPU, a lane and the stand-in's memory; then the link and the stand-in are measured. */
int bench_path_open(path_state *p);
void bench_path_close(path_state *p);

/* Caches and memory of a shape. Closing what is not open is allowed. */
int bench_path_open_shape(path_state *p, const bench_shape *shape);
void bench_path_close_shape(path_state *p);

/* The cache of a way; NULL: it has none. */
bench_cache *bench_path_cache(path_state *p, int mode);
/* Attention of one layer over the row ids that the last swap-in of that token and group gave. */
int bench_path_attend(path_state *p, int mode, int32_t token, int32_t layer);
int bench_path_work(path_state *p, const gpu_work *work);

/* Find the best rate of a kernel on the link, and what the parts of the stand-in take. */
int bench_path_measure_link(path_state *p);
int bench_path_measure_work(path_state *p);
/* Measure the attention of the case at hand, whose row ids are there, and choose the work beside it. */
int bench_path_choose_work(path_state *p);

/* Run a case in every way, turn by turn. wrong_out: rows that do not hold their token's bytes. */
int bench_path_run(path_state *p, const bench_case *c, path_times *times_out, uint64_t *wrong_out);

#endif
