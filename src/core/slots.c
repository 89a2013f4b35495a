/* SPDX-License-Identifier: Apache-2.0 */
#include "core/slots.h"

#include <string.h>

void hsp__slots_init(hsp__slots *slots, const hsp__layout *layout, hsp__arena *arena) {
    size_t requests = (size_t)layout->max_requests, groups = (size_t)layout->n_groups;
    size_t stride = (size_t)layout->slot_stride, batch = (size_t)layout->max_batch;
    slots->tag = hsp__carve(arena, requests * groups * stride, sizeof(int32_t));
    slots->order = hsp__carve(arena, requests * groups * stride, sizeof(uint16_t));
    slots->cursor = hsp__carve(arena, requests * groups, sizeof(uint32_t));
    slots->where = hsp__carve(arena, requests * groups * (size_t)layout->max_context, sizeof(uint16_t));
    slots->written = hsp__carve(arena, requests * (size_t)layout->n_layers, sizeof(int32_t));
    slots->page = hsp__carve(arena, requests * (size_t)layout->max_pages, sizeof(int32_t));
    slots->counters = hsp__carve(arena, requests * groups, sizeof(hsp_counters));
    slots->retired = hsp__carve(arena, groups, sizeof(hsp_counters));
    /* Together, so that a backend can replace all four in one copy. */
    slots->ring_first = hsp__carve(arena, requests, sizeof(int32_t));
    slots->batch_slot = hsp__carve(arena, batch, sizeof(int32_t));
    slots->batch_first = hsp__carve(arena, batch, sizeof(int32_t));
    slots->batch_n_new = hsp__carve(arena, batch, sizeof(int32_t));
    slots->batch = 0;
}

void hsp__slots_admit(const hsp__slots *slots, const hsp__layout *layout, const hsp_config *config, int32_t slot,
                      const int32_t *pages, int32_t n_pages) {
    for (int32_t g = 0; g < layout->n_groups; g++) {
        size_t i = hsp__slots_index(layout, slot, g);
        memset(slots->tag + i * (size_t)layout->slot_stride, 0xff, (size_t)layout->slot_stride * sizeof(int32_t));
        hsp__recency recency = hsp__slots_recency(slots, layout, config, slot, g);
        hsp__recency_reset(&recency);
        slots->counters[i] = (hsp_counters){0};
    }
    memset(slots->written + (size_t)slot * (size_t)layout->n_layers, 0, (size_t)layout->n_layers * sizeof(int32_t));
    slots->ring_first[slot] = 0;
    memcpy(slots->page + (size_t)slot * (size_t)layout->max_pages, pages, (size_t)n_pages * sizeof(int32_t));
}

void hsp__slots_retire(const hsp__slots *slots, const hsp__layout *layout, int32_t slot) {
    for (int32_t g = 0; g < layout->n_groups; g++) {
        hsp_counters *counters = &slots->counters[hsp__slots_index(layout, slot, g)];
        hsp__counters_add(&slots->retired[g], counters);
        *counters = (hsp_counters){0};
    }
    /* What is left of the step under way must not touch the next owner of the slot. */
    for (int32_t b = 0; b < slots->batch; b++)
        if (slots->batch_slot[b] == slot)
            slots->batch_slot[b] = -1;
}

void hsp__slots_truncate(const hsp__slots *slots, const hsp__layout *layout, int32_t slot, int32_t n_tokens) {
    int32_t *written = slots->written + (size_t)slot * (size_t)layout->n_layers;
    for (int32_t l = 0; l < layout->n_layers; l++)
        if (written[l] > n_tokens)
            written[l] = n_tokens;
    /* What the step under way has yet to append of the tokens that are cut must not come back. */
    for (int32_t b = 0; b < slots->batch; b++)
        if (slots->batch_slot[b] == slot && slots->batch_first[b] + slots->batch_n_new[b] > n_tokens)
            slots->batch_n_new[b] = n_tokens > slots->batch_first[b] ? n_tokens - slots->batch_first[b] : 0;
    if (n_tokens >= slots->ring_first[slot])
        return;
    slots->ring_first[slot] = n_tokens;
    int32_t *tag = slots->tag + hsp__slots_index(layout, slot, 0) * (size_t)layout->slot_stride;
    for (size_t i = 0; i < (size_t)layout->n_groups * (size_t)layout->slot_stride; i++)
        if (tag[i] >= n_tokens)
            tag[i] = -1;
}

int32_t hsp__slots_readable(const hsp__slots *slots, const hsp__layout *layout, int32_t slot, int32_t group) {
    const int32_t *written = slots->written + (size_t)slot * (size_t)layout->n_layers;
    const int32_t *layer = layout->group_layer + layout->group_first[group];
    int32_t readable = written[layer[0]];
    for (int32_t i = 1; i < layout->group[group].n_layers; i++)
        if (written[layer[i]] < readable)
            readable = written[layer[i]];
    return readable;
}

void hsp__counters_add(hsp_counters *sum, const hsp_counters *part) {
    sum->hits += part->hits;
    sum->misses += part->misses;
    sum->invalid += part->invalid;
    sum->none += part->none;
    sum->warmed += part->warmed;
    sum->fetched_bytes += part->fetched_bytes;
    sum->appended_rows += part->appended_rows;
    sum->filled_rows += part->filled_rows;
}
