/* SPDX-License-Identifier: Apache-2.0 */
/* State of the slots of every request and group, in one block of memory, as the cuda backend keeps it on the GPU too.
 */
#ifndef HSP_SLOTS_H
#define HSP_SLOTS_H

#include "core/layout.h"
#include "core/recency.h"

typedef struct hsp__slots {
    int32_t *tag;        /* [request][group][slot_stride]: token in each slot, -1 for none */
    uint16_t *order;     /* [request][group][slot_stride]: see hsp__recency */
    uint32_t *cursor;    /* [request][group] */
    uint16_t *where;     /* [request][group][max_context]: slot a token was last put in. Never cleared: an entry counts
                            only if that slot's tag is the token, so it may hold garbage and survives reuse */
    int32_t *written;    /* [request][layer]: tokens whose rows have been written; later ones cannot be read */
    int32_t *ring_first; /* [request]: first token in the ring. Every tag is below it: a token is in the ring or in a
                            slot, never in both */
    int32_t *page;       /* [request][max_pages] */
    hsp_counters *counters; /* [request][group], since admission or reset */
    hsp_counters *retired;  /* [group], of requests that are gone */
    int32_t *batch_slot;    /* [max_batch]: request slot of each entry of the step, -1 for padding */
    int32_t *batch_first;   /* [max_batch]: first new token */
    int32_t *batch_n_new;   /* [max_batch] */
    int32_t batch;
} hsp__slots;

void hsp__slots_init(hsp__slots *slots, const hsp__layout *layout, hsp__arena *arena);

/* A new request in `slot` with these pages: nothing resident, nothing written, counters at zero. */
void hsp__slots_admit(const hsp__slots *slots, const hsp__layout *layout, const hsp_config *config, int32_t slot,
                      const int32_t *pages, int32_t n_pages);
void hsp__slots_retire(const hsp__slots *slots, const hsp__layout *layout, int32_t slot);
/* Forget tokens n_tokens and later. */
void hsp__slots_truncate(const hsp__slots *slots, const hsp__layout *layout, int32_t slot, int32_t n_tokens);

/* Tokens of a group that may be read from slots: written in all its layers. */
int32_t hsp__slots_readable(const hsp__slots *slots, const hsp__layout *layout, int32_t slot, int32_t group);

void hsp__counters_add(hsp_counters *sum, const hsp_counters *part);

/* Views of one request slot and group. */
static inline size_t hsp__slots_index(const hsp__layout *layout, int32_t slot, int32_t group) {
    return (size_t)slot * (size_t)layout->n_groups + (size_t)group;
}

static inline hsp__recency hsp__slots_recency(const hsp__slots *slots, const hsp__layout *layout,
                                              const hsp_config *config, int32_t slot, int32_t group) {
    size_t i = hsp__slots_index(layout, slot, group);
    return (hsp__recency){config->policy, layout->n_slots, slots->order + i * (size_t)layout->slot_stride,
                          slots->cursor + i, hsp__recency_seed(config->seed, slot, group)};
}

/* Page that holds a token. */
static inline int32_t hsp__slots_page(const hsp__slots *slots, const hsp__layout *layout, int32_t slot, int32_t token) {
    return slots->page[(size_t)slot * (size_t)layout->max_pages + (size_t)(token / HSP_PAGE_TOKENS)];
}

/* Row id of a token that is in the ring. */
static inline int32_t hsp__ring_id(const hsp__layout *layout, int32_t slot, int32_t token) {
    return slot * layout->rows_per_request + layout->n_slots + token % layout->ring_rows;
}

#endif
