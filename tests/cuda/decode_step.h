/* SPDX-License-Identifier: Apache-2.0 */
/* One decode step as an engine makes it: step_begin, then for every layer append and swap_in, or for a follower
 * wait_rows, on fixed buffers of device memory, as calls or as the replay of a graph captured once for the largest
 * batch. Steps are queued without waiting, each with a log: copies, made in the order of the stream, of the ids and of
 * every layer's rows, next to what they must be by the toy at that moment. */
#ifndef HSP_DECODE_STEP_H
#define HSP_DECODE_STEP_H

#include "check.h"
#include "queue.h"

typedef struct decode_log {
    int32_t *selection, *ids;        /* pinned: [n_groups][entries][n], one more of ids as a guard */
    unsigned char *new_rows, *slabs; /* pinned: [n_layers][entries][per_request] rows; [n_layers][slab_bytes] */
    int32_t *want;                   /* as ids */
    unsigned char *bytes;            /* rows the ids must address: [n_layers][entries][n] */
    int entries;                     /* that the step had, padding included */
} decode_log;

/* How a step's calls follow one another. */
enum decode_order {
    LAYER_BY_LAYER, /* append, and for an anchor swap_in, as an engine does */
    APPENDS_FIRST,  /* then the swap-ins, with nothing between them */
    FORKED          /* appends on `side`, beside the swap-ins of the layers before them */
};

typedef struct decode {
    toy t;
    queue q, side;
    queue *on; /* the stream of the calls: &q or &side */
    enum decode_order order;
    int as_calls; /* rather than as a replay */
    int k, n_queries, n, entries, per_request;
    int32_t *selection, *ids; /* device: the fixed buffers, as in the log */
    unsigned char *rows;
    int32_t *poison; /* pinned, as ids: what ids holds before a step */
    size_t n_ids, rows_bytes, slab_bytes;
    decode_log *log;
    int depth, n_queued;
    uint64_t seed;
} decode;

/* Opens the cache and half of its requests, and captures. depth: steps that can be queued between two collects. */
void decode_open(decode *d, const hsp_config *config, int n_queries, int k, int depth, enum decode_order order);
void decode_close(decode *d);

/* Requests come, go, are cut back; in the order of the stream. Waits for rows that are filled. */
void decode_change(decode *d);
/* Only the newest tokens of some requests go. The host does not wait. */
void decode_reject(decode *d);
/* The other stream goes on where this one is. */
void decode_switch(decode *d);
/* Queue one step of a random batch with random selections. The host does not wait. */
void decode_queue(decode *d);
/* Wait, and compare every step that was queued. */
void decode_collect(decode *d);

#endif
