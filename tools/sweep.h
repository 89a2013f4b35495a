/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse sweep`: misses of policies and sizes over traces. What a cache would do is counted without moving a row: a
 * stream is all that one layer of one request asks of the slots, and every policy goes through the same stream. The
 * numbers are those of the library's cpu backend, miss for miss (tests/cli/case_sweep.py). */
#ifndef HISPARSE_SWEEP_H
#define HISPARSE_SWEEP_H

#include "emit.h"
#include "trace.h"

/* The first four are enum hsp_policy. LRU_FLAT is LRU without promotion: rows hit in a step stay behind those fetched
 * in it. SEGMENTED: rows hit since they were fetched are kept apart, up to four fifths of the slots, and others go
 * first. BELADY knows the rest of the trace and replaces what is used again last: no policy misses less. */
enum sweep_policy {
    SWEEP_LRU,
    SWEEP_FIFO,
    SWEEP_RANDOM,
    SWEEP_CLOCK,
    SWEEP_LRU_FLAT,
    SWEEP_SEGMENTED,
    SWEEP_BELADY,
    SWEEP_POLICIES
};
extern const char *const sweep_policy_names[SWEEP_POLICIES];

/* ------------------------------------------------------------------------------------------------------- stream -- */

/* Tokens have numbers of their own, from 0 in the order in which they are first asked for. A request that ends and
 * another in its place share no number. */
typedef struct sweep_stream {
    int64_t n_steps;
    int64_t *first;   /* [n_steps + 1]: where the tokens of a step begin in `token` */
    int32_t *token;   /* each once a step, in order of first appearance; none that are in the ring */
    int32_t *next;    /* [as token]: step in which it is asked for again, n_steps: never */
    uint8_t *restart; /* [n_steps]: 1 where another request begins */
    int64_t lookups;  /* entries that are not -1: those hit in the ring and repetitions too */
    int64_t room;     /* of token and next */
    int32_t n_tokens; /* numbers given */
    int32_t seat;     /* place of the request in the batch, */
    int32_t number;   /* and number of the layer: both go into the draws of SWEEP_RANDOM */
    int32_t layer;    /* its place in the trace */
} sweep_stream;

/* Read one layer of one request. ring_rows: newest tokens a cache holds beside its slots. An exit code after the
 * message. The same stream may be read into again and again. */
int sweep_stream_read(sweep_stream *s, const trace *t, int32_t layer, int32_t request, int32_t ring_rows);
void sweep_stream_close(sweep_stream *s);

/* ----------------------------------------------------------------------------------------------------- counting -- */

/* Count misses of every step, uint32 [n_steps]. 0; -1 without memory; 1 stopped by Ctrl-C. Any thread. */
int sweep_count(const sweep_stream *s, enum sweep_policy policy, int32_t n_slots, uint32_t *misses_out);

/* The same for SWEEP_BELADY alone. */
int sweep__count_belady(const sweep_stream *s, int32_t n_slots, uint32_t *misses_out);

/* ------------------------------------------------------------------------------------------------------ results -- */

/* One policy with one number of slots. */
typedef struct sweep_result {
    enum sweep_policy policy;
    int32_t n_slots;
    int64_t lookups, misses;
    int64_t *layer_lookups, *layer_misses; /* [n_layers] */
    uint32_t *step_misses;                 /* [steps of all traces], all layers and requests */
    int code;                              /* of what went wrong */
} sweep_result;

typedef struct sweep {
    trace *const *traces; /* of one k and number of layers */
    int n_traces, n_threads;
    int32_t n_layers, k, ring_rows;
    int64_t n_steps, n_tokens; /* of all traces; tokens: steps times the requests that are there */
    int64_t row_bytes;         /* 0: not known */
    double base_us, row_us;    /* of a layer's swap-in, and of each row it fetches; NAN: no profile */
    sweep_result *result;
    int n_results;
    int stopped; /* some results lack layers */
} sweep;

/* Go through all traces; results must be zeroed but for policy and n_slots. An exit code after the message. */
int sweep_run(sweep *s);
void sweep_close(sweep *s);

/* us of a swap-in from a profile that `hisparse calibrate --output` wrote: s->base_us and s->row_us. span: bytes of all
 * rows that may be asked for. An exit code after the message. */
int sweep_read_profile(sweep *s, const char *path, int64_t span);

/* Rows of the table; by_layer: a row for every layer too. */
extern const emit_column sweep_columns[];
extern const int sweep_n_columns;
int sweep_add_rows(sweep *s, int by_layer, emit_table *table);

/* What to take and why, in a few lines. */
void sweep_recommend(const sweep *s, FILE *to);

#endif
