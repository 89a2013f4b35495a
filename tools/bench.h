/* SPDX-License-Identifier: Apache-2.0 */
/* The benches of `hisparse bench`, and the parts they share: traces with a chosen miss rate, and sorted samples. */
#ifndef HISPARSE_BENCH_H
#define HISPARSE_BENCH_H

#include "emit.h"
#include "options.h"
#include "rows.h"

int bench_swap_in(int argc, char **argv);
int bench_decode_path(int argc, char **argv);

typedef struct bench_options {
    const char *backend, *policy, *output, *cases, *profile;
    int64_t k, context, threads, layers; /* context, layers: 0 when not given */
    double seconds;
    tool_reals batches, misses, row_sizes, slot_counts; /* as given; empty when not */
    int64_t slots, row_bytes, batch;                    /* the one shape of a body that has one */
    int64_t fetch_blocks;                               /* 0: by the profile, or the library's rule */
    int sweep_context, huge_pages, skew, json, csv;
} bench_options;

/* One way to measure. */
typedef struct bench_body {
    const char *what, *note; /* of the table */
    const emit_column *column;
    int n_columns;
    int keeps_rows;                                        /* rows made before a failure are printed */
    int (*run)(const bench_options *o, emit_table *table); /* adds rows; returns an exit code */
} bench_body;
extern const bench_body bench_cpu;   /* by miss rate, in ordinary memory */
extern const bench_body bench_sweep; /* resolve at growing contexts */
extern const bench_body bench_gpu;   /* cases by miss rate, on a backend with memory of its own */

/* TOOL_OK, or a code after saying which lists of cases there are. */
int bench_gpu_known_list(const char *name);

/* A cache with `batch` requests filled to the whole context. */
typedef struct bench_cache {
    hsp_config config;
    hsp_cache *cache;
    int32_t *request; /* [batch] */
} bench_cache;

/* The exit code for a call that failed, after saying the library's reason. */
int bench_library_fails(const hsp_cache *cache, int status);
/* The knobs the options stand for. Returns an exit code after saying what is wrong. */
int bench_config(const bench_options *o, hsp_config *config);
/* rows: [batch][max_context] packed rows; every layer gets the same. */
int bench_open(bench_cache *b, const hsp_config *config, const void *rows);
void bench_close(bench_cache *b);
int bench_warm(bench_cache *b, int32_t entry, int32_t layer, const int32_t *tokens);

/* Selections of one request and group. A step replaces n_fresh tokens of the last selection with tokens that an LRU
 * cache of n_slots slots cannot hold, and swaps a few places. */
typedef struct bench_trace {
    int32_t k, n_slots, context;
    int32_t *selection; /* [k], the current one */
    int32_t *order;     /* [context]: tokens in the order in which they become fresh */
    int64_t *left;      /* [context]: misses when the token left the selection */
    int64_t n_missed;
    int32_t next;
    rows_random random;
} bench_trace;

/* Tokens a context must have for steps with misses. */
int64_t bench_turnover(int64_t k, int64_t n_slots);
/* 0, or -1 without memory. */
int bench_trace_init(bench_trace *trace, int32_t k, int32_t n_slots, int32_t context, uint64_t seed);
void bench_trace_free(bench_trace *trace);
/* n_slots tokens that fill the slots, the current selection last. */
void bench_trace_warm(const bench_trace *trace, int32_t *tokens_out);
void bench_trace_step(bench_trace *trace, int32_t n_fresh);

/* Microseconds of repeated calls. */
typedef struct bench_samples {
    int n, room;
    double *value;
    int lost; /* samples there was no memory for */
} bench_samples;
double bench_now_us(void);
void bench_sample(bench_samples *samples, double us);
double bench_quantile(bench_samples *samples, double q); /* sorts; NAN without samples */

#endif
