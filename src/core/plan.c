/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan.h"

#include <string.h>

static size_t n_plans(const hsp__layout *layout, uint32_t flags) {
    size_t sets = flags & HSP_PREFETCH ? 1 + (size_t)layout->n_shared : 1;
    return sets * (size_t)layout->max_batch;
}

/* The first plan of an entry also serves a warm-up, of as many rows as there are slots; the others only swap-ins. All
 * plans of an entry use the same scratch. */
void hsp__plans_init(hsp__plans *plans, const hsp__layout *layout, uint32_t flags, hsp__arena *arena) {
    size_t batch = (size_t)layout->max_batch, n = n_plans(layout, flags), n_slots = (size_t)layout->n_slots;
    plans->plan = hsp__carve(arena, n, sizeof(hsp__plan));
    for (size_t i = 0; i < n; i++) {
        size_t most = i < batch ? n_slots : (size_t)layout->max_k * (size_t)layout->max_queries;
        hsp__plan plan = {.token = hsp__carve(arena, most, sizeof(int32_t)),
                          .slot = hsp__carve(arena, most, sizeof(uint16_t))};
        if (i < batch) {
            plan.selected = hsp__carve(arena, n_slots, 1);
            plan.scratch = hsp__carve(arena, n_slots, sizeof(uint16_t));
        } else if (plans->plan) {
            plan.selected = plans->plan[i % batch].selected;
            plan.scratch = plans->plan[i % batch].scratch;
        }
        if (plans->plan)
            plans->plan[i] = plan;
    }
    hsp__followers_init(&plans->followers, layout, arena);
}

hsp__plan *hsp__plans_of(const hsp__plans *plans, const hsp__layout *layout, uint32_t flags, int32_t group) {
    int32_t set = flags & HSP_PREFETCH ? 1 + layout->group[group].shared : 0;
    return plans->plan + (size_t)set * (size_t)layout->max_batch;
}

void hsp__plans_forget(const hsp__plans *plans, const hsp__layout *layout, uint32_t flags, int32_t slot) {
    for (size_t i = 0; i < n_plans(layout, flags); i++)
        if (plans->plan[i].request == slot)
            plans->plan[i].n_miss = 0;
}

/* What one resolve looks at again and again. */
typedef struct view {
    int32_t *tag;
    uint16_t *where;
    int32_t n_slots, ring_rows, first_id;
    int32_t written;    /* by the anchor: tokens of the ring may be read up to here */
    int32_t readable;   /* by all layers of the group: other tokens may be read up to here */
    int32_t ring_first; /* first token in the ring */
} view;

static view make_view(const hsp__slots *slots, const hsp__layout *layout, int32_t slot, int32_t group) {
    size_t i = hsp__slots_index(layout, slot, group);
    size_t anchor = (size_t)layout->group[group].anchor;
    return (view){.tag = slots->tag + i * (size_t)layout->slot_stride,
                  .where = slots->where + i * (size_t)layout->max_context,
                  .n_slots = layout->n_slots,
                  .ring_rows = layout->ring_rows,
                  .first_id = slot * layout->rows_per_request,
                  .written = slots->written[(size_t)slot * (size_t)layout->n_layers + anchor],
                  .readable = hsp__slots_readable(slots, layout, slot, group),
                  .ring_first = slots->ring_first[slot]};
}

/* Slot that holds `token`, or -1. */
static inline int32_t find_slot(const view *v, int32_t token, enum hsp__find find) {
    if (find == HSP__FIND_BY_MAP) {
        int32_t slot = v->where[token];
        return slot < v->n_slots && v->tag[slot] == token ? slot : -1;
    }
    for (int32_t slot = 0; slot < v->n_slots; slot++)
        if (v->tag[slot] == token)
            return slot;
    return -1;
}

/* Number of the miss that already fetches `token`, or -1. The map serves here too: until it holds a slot, the entry of
 * a token that is being fetched holds the number of its miss, and checks itself against the list. */
static inline int32_t find_miss(const view *v, const hsp__plan *plan, int32_t token, enum hsp__find find) {
    if (find == HSP__FIND_BY_MAP) {
        int32_t miss = v->where[token];
        return miss < plan->n_miss && plan->token[miss] == token ? miss : -1;
    }
    for (int32_t miss = 0; miss < plan->n_miss; miss++)
        if (plan->token[miss] == token)
            return miss;
    return -1;
}

/* Id of one entry that can be told at once; -2 - m for one that comes with miss m. */
static inline int32_t resolve_entry(const view *v, hsp__plan *plan, int32_t token, enum hsp__find find,
                                    hsp_counters *counters) {
    if (token >= v->ring_first ? (uint32_t)token >= (uint32_t)v->written : (uint32_t)token >= (uint32_t)v->readable) {
        counters->none += token == -1;
        counters->invalid += token != -1;
        return -1;
    }
    counters->hits++;
    if (token >= v->ring_first)
        return v->first_id + v->n_slots + token % v->ring_rows;
    int32_t slot = find_slot(v, token, find);
    if (slot >= 0) {
        plan->selected[slot] = 1;
        return v->first_id + slot;
    }
    int32_t miss = find_miss(v, plan, token, find);
    if (miss < 0) {
        miss = plan->n_miss++;
        plan->token[miss] = token;
        v->where[token] = (uint16_t)miss;
        counters->hits--;
        counters->misses++;
    }
    return -2 - miss;
}

static inline void resolve_all(const view *v, hsp__plan *plan, const int32_t *selection, int64_t n, int32_t *ids,
                               enum hsp__find find, hsp_counters *counters) {
    enum { AHEAD = 32 };
    for (int64_t e = 0; e < n; e++) {
        /* Each line of the map is used once; it must not push the tags out of the nearest cache. */
        if (find == HSP__FIND_BY_MAP && e + AHEAD < n && (uint32_t)selection[e + AHEAD] < (uint32_t)v->written)
            __builtin_prefetch(&v->where[selection[e + AHEAD]], 0, 0);
        int32_t id = resolve_entry(v, plan, selection[e], find, counters);
        if (ids)
            ids[e] = id;
    }
}

static void place_misses(const view *v, const hsp__plan *plan, int64_t n, int32_t *ids) {
    for (int32_t m = 0; m < plan->n_miss; m++) {
        v->tag[plan->slot[m]] = plan->token[m];
        v->where[plan->token[m]] = plan->slot[m];
    }
    for (int64_t e = 0; ids && plan->n_miss > 0 && e < n; e++)
        if (ids[e] < -1)
            ids[e] = v->first_id + plan->slot[-2 - ids[e]];
}

void hsp__plan_resolve(hsp__plan *plan, const hsp__slots *slots, const hsp__layout *layout, const hsp_config *config,
                       int32_t slot, int32_t group, const int32_t *selection, int64_t n, int32_t *ids_out,
                       enum hsp__find find, hsp_counters *counters) {
    view v = make_view(slots, layout, slot, group);
    hsp__recency recency = hsp__slots_recency(slots, layout, config, slot, group);
    hsp_counters seen = {0};
    plan->request = slot;
    plan->n_miss = 0;
    memset(plan->selected, 0, (size_t)v.n_slots);
    if (find == HSP__FIND_BY_MAP)
        resolve_all(&v, plan, selection, n, ids_out, HSP__FIND_BY_MAP, &seen);
    else
        resolve_all(&v, plan, selection, n, ids_out, HSP__FIND_BY_SEARCH, &seen);
    hsp__recency_step(&recency, plan->selected, plan->n_miss, plan->slot, plan->scratch);
    place_misses(&v, plan, n, ids_out);
    seen.fetched_bytes = seen.misses * layout->row_bytes * (uint64_t)layout->group[group].n_layers;
    hsp__counters_add(counters, &seen);
}
