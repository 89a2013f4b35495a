/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as the caller sees them: handles, lengths, pages, and which calls are in order. Host side only. */
#ifndef HSP_REQUEST_H
#define HSP_REQUEST_H

#include "core/host_pool.h"
#include "core/layout.h"
#include "status.h"

typedef struct hsp__request {
    int32_t live;
    int32_t generation; /* 0 .. 32767, in the handle, so that a stale handle is noticed */
    int32_t length, max_tokens, n_pages;
} hsp__request;

typedef struct hsp__requests {
    hsp__request *slot; /* [max_requests] */
    int32_t *page;      /* [max_requests][max_pages] */
    int32_t *filled;    /* [max_requests][n_layers]: tokens each layer has */
    uint8_t *seen;      /* [max_requests], scratch of step */
    int32_t n_live;
} hsp__requests;

void hsp__requests_init(hsp__requests *requests, const hsp__layout *layout, hsp__arena *arena);

/* Admit: handle in *handle_out, slot in *slot_out, pages taken. Statuses of hsp_admit. */
int hsp__requests_admit(hsp__requests *requests, const hsp__layout *layout, hsp__host_pool *pool, int32_t max_tokens,
                        int32_t *handle_out, int32_t *slot_out, hsp__error *error);
void hsp__requests_retire(hsp__requests *requests, const hsp__layout *layout, hsp__host_pool *pool, int32_t slot);

/* Pages of a request slot, [max_pages]. */
int32_t *hsp__requests_pages(const hsp__requests *requests, const hsp__layout *layout, int32_t slot);

/* Slot of a live handle, or HSP_EREQUEST. */
int hsp__requests_find(const hsp__requests *requests, const hsp__layout *layout, int32_t handle, hsp__error *error);

/* May tokens first .. first + n - 1 of this layer be filled? And after they were: */
int hsp__requests_check_fill(const hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t layer,
                             int32_t first, int32_t n, hsp__error *error);
void hsp__requests_filled(hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t layer,
                          int32_t length);

int hsp__requests_check_truncate(const hsp__requests *requests, int32_t slot, int32_t n_tokens, hsp__error *error);
void hsp__requests_truncated(hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t n_tokens);

/* Check a whole step before anything changes; slots_out: [batch], -1 for padding. Then let lengths grow. */
int hsp__requests_check_step(hsp__requests *requests, const hsp__layout *layout, const int32_t *handles,
                             const int32_t *n_new, int32_t batch, int32_t *slots_out, hsp__error *error);
void hsp__requests_grow(hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t n_new);

#endif
