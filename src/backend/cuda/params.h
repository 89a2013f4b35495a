/* SPDX-License-Identifier: Apache-2.0 */
/* What each launch is told: one plain struct a kernel, read by all of its blocks. */
#ifndef HSP_CUDA_PARAMS_H
#define HSP_CUDA_PARAMS_H

#include "core/slots.h"

/* Blocks that may share one request. */
#define HSP__CUDA_MOST_PARTS 8

/* Turns drawn and turns ended so far: turns.cuh. */
typedef struct hsp__cuda_turns {
    uint32_t ticket, done;
} hsp__cuda_turns;

/* A row to fetch: where it lies in the host pool, and the number of the miss, which has the victim of that number. */
typedef struct hsp__cuda_miss {
    uint32_t host_row, number;
} hsp__cuda_miss;

/* A row that a swap-in fetched for its anchor and leaves to the followers: where it lies in the host pool, and its id.
 */
typedef struct hsp__cuda_fetched {
    uint32_t host_row, id;
} hsp__cuda_fetched;

/* Division by a number known at launch, as a multiplication: floor(x * magic / 2^32) with magic = floor(2^32 / by) + 1
 * is the quotient or one more, for every x below 2^31. */
typedef struct hsp__cuda_divisor {
    uint32_t by, magic; /* magic 0: by is 1 */
} hsp__cuda_divisor;

/* Where the rows of one group lie, on both sides. Rows move in pieces of piece_bytes, the largest of 16, 8 and 4 that
 * divides every size, offset and stride of the layout. */
typedef struct hsp__cuda_rows {
    const char *host;           /* region of the group, as the device sees it */
    char *device;               /* rows of layer 0 */
    char *device_anchor;        /* rows of the anchor */
    const int32_t *group_layer; /* layers of the group */
    uint32_t host_stride;       /* bytes from token to token */
    uint32_t plain_stride;      /* block_stride, where it fits 32 bits */
    uint64_t layer_bytes, block_stride;
    uint32_t plane_offset[HSP_MAX_PLANES], plane_bytes[HSP_MAX_PLANES];
    int32_t anchor; /* its layer */
    int32_t n_planes, n_layers, block_rows;
    uint32_t piece_bytes;
    hsp__cuda_divisor layer_pieces; /* of one layer's row, all planes */
    hsp__cuda_divisor row_pieces;   /* of all layers that are fetched at once: the group's, or one */
    uint32_t host_layer_pieces;     /* from layer to layer in a host row */
} hsp__cuda_rows;

/* Arrays of the group, from request slot 0 on; a request's part is `stride` elements further for each slot. */
typedef struct hsp__cuda_group_state {
    int32_t *tag;
    uint16_t *order, *where;
    uint32_t *cursor;
    const int32_t *written; /* of the anchor */
    const int32_t *ring_first, *page, *batch_slot;
    hsp_counters *counters;
    uint64_t where_stride;       /* n_groups * max_context */
    uint32_t slot_array_stride;  /* tag, order: n_groups * slot_stride */
    uint32_t n_groups, n_layers; /* strides of cursor and counters; of written */
    uint32_t max_pages;
} hsp__cuda_group_state;

typedef struct hsp__cuda_swap_in {
    /* What every launch reads comes first: it is two lines of the constant cache. */
    hsp__cuda_group_state state;
    const int32_t *selection; /* [batch][n] */
    int32_t *ids;             /* [batch][n], NULL for a warm-up */
    int32_t warm_slot;        /* the one request of a warm-up; -1: the batch of the step */
    int32_t n;                /* entries a request: n_queries * k */
    int32_t n_slots, slot_stride, ring_rows, rows_per_request, max_context;
    int32_t group, policy;
    int32_t batch;
    int32_t window;    /* blocks of a large batch that fetch at once; 0: a small batch, all fetch */
    int32_t few;       /* with so many threads or fewer that have a miss, a request does not wait for its turn */
    int32_t early;     /* tags and order may be read before the work ahead in the stream is done */
    int32_t in_flight; /* loads of a thread, plain rows: 4, or 2 when less */
    int32_t no_io, plain;
    hsp__cuda_turns *turns;
    uint32_t *scratch; /* [max_batch][scratch_words], for selections too large for shared memory */
    uint64_t scratch_words;
    uint64_t seed;              /* of HSP_RANDOM */
    uint32_t *n_fetched;        /* [batch]: what followers are to fetch; NULL: they do not come later */
    hsp__cuda_fetched *fetched; /* [batch][most_fetched] */
    uint32_t most_fetched;
    uint32_t miss_bytes; /* of a row in all layers of the group */
    hsp__cuda_rows rows;
} hsp__cuda_swap_in;

/* Rows of one follower. */
typedef struct hsp__cuda_follow {
    hsp__cuda_rows rows; /* of the group; host and device_anchor are where this layer's rows are */
    const uint32_t *n_fetched;
    const hsp__cuda_fetched *fetched; /* both as the swap-in left them */
    uint32_t most_fetched;
    int32_t layer, batch;
    int32_t no_io, plain;
} hsp__cuda_follow;

/* New rows of a step (append) or of a prompt (fill) on their way to host memory. */
typedef struct hsp__cuda_write {
    hsp__slots state;
    char *host;   /* region of the group, as the device sees it */
    char *device; /* rows of the layer */
    const char *plane[HSP_MAX_PLANES];
    uint64_t stride[HSP_MAX_PLANES];
    uint64_t host_stride, host_row_offset; /* from token to token; of this layer in it */
    uint64_t block_stride;
    uint32_t plane_offset[HSP_MAX_PLANES], plane_bytes[HSP_MAX_PLANES];
    int32_t n_planes, block_rows;
    int32_t rows_per_request; /* of the source, append */
    int32_t ring_rows, n_slots, id_stride, n_groups, n_layers, max_pages;
    int32_t layer, group;
    int32_t slot, first, n; /* fill */
} hsp__cuda_write;

/* A request slot that comes, goes or is cut. */
typedef struct hsp__cuda_admit {
    hsp__slots state;
    char *device;
    uint64_t layer_bytes, block_stride;
    uint32_t plane_offset[HSP_MAX_PLANES], plane_bytes[HSP_MAX_PLANES];
    int32_t n_planes, block_rows, n_layers, n_groups, n_slots, slot_stride, ring_rows, rows_per_request, policy,
        max_batch;
    int32_t slot, n_tokens, with_tags;
} hsp__cuda_admit;

#endif
