/* SPDX-License-Identifier: Apache-2.0 */
/* What ref and cpu have in common: device memory that is ordinary memory, and everything that need not be fast. */
#ifndef HSP_PLAIN_H
#define HSP_PLAIN_H

#include "backend/backend.h"
#include "backend/host_tier.h"
#include "core/plan.h"

typedef struct hsp__plain {
    const hsp__layout *layout;
    const hsp_config *config;
    hsp__host_tier host;
    char *device; /* rows, then the arrays of slots */
    uint64_t device_bytes;
    hsp__slots slots;
    hsp__plans plans;
} hsp__plain;

/* Set up `plain` (not while counting) with host-side state from `arena`, and return the bytes of device state. */
uint64_t hsp__plain_init(hsp__plain *plain, const hsp__open_args *args, hsp__arena *arena);

/* Ops of the seam; `self` points to a struct that starts with hsp__plain. */
int hsp__plain_open(void *self, hsp__error *error);
void hsp__plain_close(void *self);
int hsp__plain_huge_pages(void *self);
int hsp__plain_admit(void *self, int32_t slot, const int32_t *pages, int32_t n_pages, hsp__error *error);
int hsp__plain_retire(void *self, int32_t slot, hsp__error *error);
int hsp__plain_truncate(void *self, int32_t slot, int32_t n_tokens, void *stream, hsp__error *error);
int hsp__plain_read(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens,
                    const hsp_row_sink *rows_out, hsp__error *error);
int hsp__plain_step_begin(void *self, const int32_t *slots, const int32_t *first, const int32_t *n_new, int32_t batch,
                          void *stream, hsp__error *error);
void *hsp__plain_device_rows(void *self);
int hsp__plain_resident(void *self, int32_t slot, int32_t group, int32_t *tokens_out, int32_t *order_out,
                        int32_t *ring_first_out, hsp__error *error);
int hsp__plain_counters(void *self, int32_t slot, int32_t group, hsp_counters *sum_out, hsp__error *error);
int hsp__plain_reset_counters(void *self, hsp__error *error);

/* Rows of tokens first .. first + n - 1 of a layer have been written by an append, or by a fill: from now on they may
 * be read, and after a fill none of the earlier ones is in the ring. */
void hsp__plain_appended(hsp__plain *plain, int32_t slot, int32_t layer, int32_t first, int32_t n);
/* May a fill start at `first`? Not before the rows of the step under way have been appended. */
int hsp__plain_check_fill(const hsp__plain *plain, int32_t slot, int32_t layer, int32_t first, hsp__error *error);
void hsp__plain_filled(hsp__plain *plain, int32_t slot, int32_t layer, int32_t first, int32_t n);

/* A warm-up that was resolved with `seen` counts as that: no hits, no misses. */
void hsp__plain_count_warm(hsp__plain *plain, int32_t slot, int32_t group, const hsp_counters *seen);

/* The plans that a swap-in of the step is to fill, empty; followers may be given rows by them in a later step. */
hsp__plan *hsp__plain_new_plans(hsp__plain *plain, int32_t group);
/* Layers of a group, from its anchor on, whose rows its swap-in fetches at once. */
int32_t hsp__plain_layers_at_once(const hsp__plain *plain, int32_t group);
/* Give all followers of a group the rows they wait for, by the backend's wait_rows. */
void hsp__plain_wait_group(hsp__plain *plain, int32_t group,
                           int (*wait_rows)(void *self, int32_t layer, void *stream, hsp__error *error));

static inline char *hsp__plain_host_row(const hsp__plain *plain, int32_t slot, int32_t layer, int32_t token) {
    const hsp__layout *layout = plain->layout;
    return plain->host.base + hsp__host_offset(layout, layout->group_of[layer], layout->index_in_group[layer],
                                               hsp__slots_page(&plain->slots, layout, slot, token), token);
}

static inline char *hsp__plain_device_row(const hsp__plain *plain, int32_t layer, int64_t id, int32_t plane) {
    return plain->device + hsp__device_offset(plain->layout, layer, id, plane);
}

static inline const char *hsp__source_row(const hsp__layout *layout, const hsp_row_source *rows, int32_t plane,
                                          int64_t i) {
    size_t stride = rows->stride[plane] ? rows->stride[plane] : layout->plane_bytes[plane];
    return (const char *)rows->plane[plane] + (size_t)i * stride;
}

#endif
