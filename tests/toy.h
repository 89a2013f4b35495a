/* SPDX-License-Identifier: Apache-2.0 */
/* A toy of the cache that keeps everything: every row ever written, and the recency of every slot as plain lists. Each
 * call is made on the real cache and on the toy, and whatever can be seen is compared: ids, bytes of every layer and
 * plane, tags, order, host rows, counters, lengths. Shares no code with the library. */
#ifndef HSP_TOY_H
#define HSP_TOY_H

#include "hisparse.h"

#include <stdlib.h>
#include <string.h>

/* The backend's device memory, as the toy needs it: buffers both sides can address, a look at rows, and waiting for
 * work. Ordinary memory unless the backend is cuda. */
typedef struct toy_device {
    void *(*alloc)(size_t bytes); /* zeroed */
    void (*release)(void *memory);
    void (*read)(void *to, const void *device, size_t bytes);
    void (*wait)(void);
} toy_device;
extern const toy_device toy_plain_device;
extern const toy_device *const toy_cuda_device; /* NULL in a build without CUDA */
const toy_device *toy_device_of(const char *backend);

typedef struct toy_group {
    int *tag;   /* [n_slots] */
    int *order; /* [n_slots] */
    int *place; /* [max_tokens]: the slot a token was last put in, there or not */
    int hand;
} toy_group;

typedef struct toy_request {
    int live, handle, length, ring_first, max_tokens;
    int32_t first_id;    /* row id of its slot 0; -1 until asked for */
    unsigned char *rows; /* [layer][max_tokens][row_bytes] */
    toy_group *group;    /* [n_groups] */
    hsp_counters counters;
} toy_request;

typedef struct toy {
    hsp_config config;
    hsp_cache *cache;
    const toy_device *device;
    void *stream; /* of every call; NULL unless set after toy_open */
    int row_bytes, n_groups;
    int *group_of, *anchor; /* [n_layers], [n_groups] */
    toy_request *request;   /* [max_requests], in the order of admission, not of the library's slots */
    int pages_free;
    unsigned version; /* makes every row written different */
    int batch, *batch_request, *batch_new;
    hsp_counters retired;      /* of requests that are gone */
    int n_swap_ins;            /* under HSP_PREFETCH only every third looks at its followers at once */
    unsigned char *layer_copy; /* of a layer on the device */
    size_t layer_copy_bytes;
} toy;

/* Reports a difference and does not return. Defined by whoever uses the toy: a test fails, a fuzz target aborts. */
_Noreturn void toy_differs(const char *file, int line, const char *what, long long got, long long want);

#define TOY_SAME(what, got, want)                                                                                      \
    do {                                                                                                               \
        long long got_ = (long long)(got), want_ = (long long)(want);                                                  \
        if (got_ != want_)                                                                                             \
            toy_differs(__FILE__, __LINE__, what, got_, want_);                                                        \
    } while (0)

/* layer_group of the config is copied. Open must succeed. */
void toy_open(toy *t, const hsp_config *config);
void toy_close(toy *t);

/* Each returns the status of the real call, after checking that it is what the toy expects. r: index into t->request.
 */
int toy_admit(toy *t, int r, int max_tokens);
int toy_retire(toy *t, int r);
int toy_truncate(toy *t, int r, int n_tokens);
int toy_fill(toy *t, int r, int n_tokens);                        /* all layers, in a scrambled order, in two pieces */
int toy_step(toy *t, const int *rs, const int *n_new, int batch); /* step_begin and every append; r -1: padding */
int toy_swap_in(toy *t, int group, const int32_t *selection, int n_queries, int k);
int toy_warm(toy *t, int r, int group, const int32_t *tokens, int n);
int32_t toy_first_id(toy *t, int r); /* waits for work in flight when it is asked for the first time */

/* The same in parts, for who makes the calls himself, as the replay of a graph does. */
int toy_begin(toy *t, const int *rs, const int *n_new, int batch); /* step_begin */
/* The rows that append is to be given for the step's new tokens, into packed rows [batch][per_request]; the others are
 * left as they are. Where planes are in packed rows. */
void toy_new_rows(toy *t, int layer, int per_request, unsigned char *rows);
hsp_row_source toy_source(const toy *t, const void *rows);
/* The ids a swap-in must give: one step of the policy. selection, ids_out: [entries][n]; entries past the batch are
 * padding. */
void toy_expect_ids(toy *t, int group, const int32_t *selection, int n, int entries, int32_t *ids_out);
/* Do ids of the latest step, -1 where there is none, address their tokens' bytes in every layer of the group? Waits for
 * followers. */
void toy_check_rows(toy *t, int group, const int32_t *selection, const int32_t *ids, int n, int entries);
const unsigned char *toy_row(const toy *t, int r, int layer, int token); /* as it was last written */
void toy_totals(const toy *t, hsp_counters *sum_out);                    /* since open, those of warm aside */

/* Compare everything that lasts: host rows, tags and order, counters, lengths, free pages; under HSP_PREFETCH also
 * every row that is in a slot, after waiting for followers. */
void toy_check(toy *t);

#endif
