/* SPDX-License-Identifier: Apache-2.0 */
/* From a selection to row ids and a list of rows to fetch: the whole decision of a swap-in, without moving a byte. */
#ifndef HSP_PLAN_H
#define HSP_PLAN_H

#include "core/followers.h"
#include "core/slots.h"

/* Rows to fetch for one request and group, and the scratch to find them; one per entry of the batch. */
typedef struct hsp__plan {
    int32_t request; /* its slot; of no meaning without a miss */
    int32_t n_miss;
    int32_t *token;    /* [n_slots]: as many as can be missed */
    uint16_t *slot;    /* [n_slots], likewise */
    uint8_t *selected; /* [n_slots], scratch */
    uint16_t *scratch; /* [n_slots] */
} hsp__plan;

/* How tokens are found. Both give the same plan; ref uses the plain one, so that a fault of the map shows as a
 * difference. */
enum hsp__find { HSP__FIND_BY_MAP, HSP__FIND_BY_SEARCH };

/* The plans of a cache that fetches by them on the host, for all entries of the batch. A group whose followers' rows
 * come later (HSP_PREFETCH) has plans of its own, so that those of other groups leave them alone. */
typedef struct hsp__plans {
    hsp__plan *plan;          /* [1, or 1 + n_shared with HSP_PREFETCH][max_batch] */
    hsp__followers followers; /* layers whose rows a plan of their group has yet to bring */
} hsp__plans;

void hsp__plans_init(hsp__plans *plans, const hsp__layout *layout, uint32_t flags, hsp__arena *arena);

/* Plans for a swap-in of a group: [max_batch]. */
hsp__plan *hsp__plans_of(const hsp__plans *plans, const hsp__layout *layout, uint32_t flags, int32_t group);

/* A request that goes takes nothing more: its slot and its pages may have another owner next. */
void hsp__plans_forget(const hsp__plans *plans, const hsp__layout *layout, uint32_t flags, int32_t slot);

/* Resolve n entries of the request in `slot` for `group`: fills the plan, updates tags, map and recency as if the rows
 * were there, and adds to `counters`. ids_out: [n], or NULL. */
void hsp__plan_resolve(hsp__plan *plan, const hsp__slots *slots, const hsp__layout *layout, const hsp_config *config,
                       int32_t slot, int32_t group, const int32_t *selection, int64_t n, int32_t *ids_out,
                       enum hsp__find find, hsp_counters *counters);

#endif
