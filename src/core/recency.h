/* SPDX-License-Identifier: Apache-2.0 */
/* The policy: which slots the rows fetched in a step take, and what is remembered for the next step. hsp_policy in the
 * public header defines each; every backend must agree with this code bit for bit. */
#ifndef HSP_RECENCY_H
#define HSP_RECENCY_H

#include "hisparse.h"

typedef struct hsp__recency {
    int32_t policy; /* enum hsp_policy */
    int32_t n_slots;
    uint16_t *order;  /* [n_slots]: slots oldest first (LRU, FIFO); 1 for slots in use since the hand passed (CLOCK) */
    uint32_t *cursor; /* the hand (CLOCK); steps so far (RANDOM) */
    uint64_t seed;    /* RANDOM: of this request and group */
} hsp__recency;

/* Order 0 .. n_slots - 1, oldest first; nothing in use. */
void hsp__recency_reset(const hsp__recency *recency);

/* One step. selected: [n_slots], 1 for slots hit in this step; used as scratch, contents lost. n_miss: rows to fetch,
 * at most the number of zeros in selected. victims_out: [n_miss], the slot of each, in order. scratch: [n_slots]. */
void hsp__recency_step(const hsp__recency *recency, uint8_t *selected, int32_t n_miss, uint16_t *victims_out,
                       uint16_t *scratch);

/* Seed of one request slot and group, so that no two draw the same permutations. */
uint64_t hsp__recency_seed(uint64_t seed, int32_t slot, int32_t group);

#endif
