/* SPDX-License-Identifier: Apache-2.0 */
/* The only seam: what a backend does for a cache. Arguments have been checked; layers and slots are local numbers. */
#ifndef HSP_BACKEND_H
#define HSP_BACKEND_H

#include "core/followers.h"
#include "core/slots.h"
#include "status.h"

typedef struct hsp__open_args {
    const hsp__layout *layout; /* live as long as the backend's self */
    const hsp_config *config;  /* likewise; layer_group is not valid after open */
} hsp__open_args;

typedef struct hsp__backend {
    const char *name;
    uint32_t (*capabilities)(void);
    void (*describe)(char *detail, size_t bytes); /* what it runs on, or why it cannot */

    /* Carve the backend's own host-side state; `self` is NULL while the arena only counts. device_state_out: bytes of
     * device memory beside the rows. */
    void *(*carve)(const hsp__open_args *args, hsp__arena *arena, uint64_t *device_state_out);
    /* Take device memory and the host tier. On failure everything is given back. */
    int (*open)(void *self, hsp__error *error);
    void (*close)(void *self);
    int (*huge_pages)(void *self);

    int (*admit)(void *self, int32_t slot, const int32_t *pages, int32_t n_pages, hsp__error *error);
    int (*retire)(void *self, int32_t slot, hsp__error *error);
    int (*truncate)(void *self, int32_t slot, int32_t n_tokens, void *stream, hsp__error *error);
    int (*fill)(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens, const hsp_row_source *rows,
                void *stream, hsp__error *error);
    int (*warm)(void *self, int32_t slot, int32_t group, const int32_t *tokens, int32_t n, void *stream,
                hsp__error *error);
    int (*read)(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens, const hsp_row_sink *rows_out,
                hsp__error *error);

    /* slots: [batch], -1 for padding; first, n_new: new tokens of each entry. */
    int (*step_begin)(void *self, const int32_t *slots, const int32_t *first, const int32_t *n_new, int32_t batch,
                      void *stream, hsp__error *error);
    int (*append)(void *self, int32_t layer, const hsp_row_source *rows, int32_t rows_per_request, void *stream,
                  hsp__error *error);
    int (*swap_in)(void *self, int32_t group, const int32_t *selection, int32_t n_queries, int32_t k,
                   int32_t *row_ids_out, void *stream, hsp__error *error);
    /* layer: a follower of a cache with HSP_PREFETCH. */
    int (*wait_rows)(void *self, int32_t layer, void *stream, hsp__error *error);

    void *(*device_rows)(void *self); /* base that hsp__device_offset counts from */
    int (*resident)(void *self, int32_t slot, int32_t group, int32_t *tokens_out, int32_t *order_out,
                    int32_t *ring_first_out, hsp__error *error);
    /* Sum over slots (slot -1: all, and requests that are gone) and groups (group -1: all). */
    int (*counters)(void *self, int32_t slot, int32_t group, hsp_counters *sum_out, hsp__error *error);
    int (*reset_counters)(void *self, hsp__error *error);
} hsp__backend;

/* Registered backends in the order of hsp_backend_info; NULL past the last, or for a name that is none. */
const hsp__backend *hsp__backend_at(int32_t index);
const hsp__backend *hsp__backend_named(const char *name);

extern const hsp__backend hsp__backend_ref, hsp__backend_cpu;
/* The cuda backend of libhisparse_cuda.so, or one that only says why it cannot be had. */
const hsp__backend *hsp__backend_cuda_load(void);

#endif
