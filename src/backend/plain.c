/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/plain.h"

#include <string.h>

uint64_t hsp__plain_init(hsp__plain *plain, const hsp__open_args *args, hsp__arena *arena) {
    hsp__arena state = {0};
    hsp__slots counted;
    hsp__plans plans;
    hsp__slots_init(&counted, args->layout, &state);
    hsp__plans_init(&plans, args->layout, args->config->flags, arena);
    if (plain)
        *plain = (hsp__plain){.layout = args->layout,
                              .config = args->config,
                              .device_bytes = args->layout->device_bytes + state.used,
                              .plans = plans};
    return state.used;
}

int hsp__plain_open(void *self, hsp__error *error) {
    hsp__plain *plain = self;
    int status = hsp__host_tier_open(&plain->host, plain->config, plain->layout->host_bytes, error);
    if (status != HSP_OK)
        return status;
    /* Slots and look-up maps are read at random: with large pages there are fewer translations. */
    plain->device = hsp__map(plain->device_bytes, 1);
    if (!plain->device) {
        hsp__host_tier_close(&plain->host);
        return hsp__fail(error, HSP_ENOMEM, "cannot have %llu bytes of memory for the device rows",
                         (unsigned long long)plain->device_bytes);
    }
    hsp__arena state = {plain->device + plain->layout->device_bytes, 0};
    hsp__slots_init(&plain->slots, plain->layout, &state);
    return HSP_OK;
}

void hsp__plain_close(void *self) {
    hsp__plain *plain = self;
    hsp__unmap(plain->device, plain->device_bytes);
    hsp__host_tier_close(&plain->host);
}

int hsp__plain_huge_pages(void *self) {
    return ((hsp__plain *)self)->host.huge_pages;
}

/* Ring places are read by arithmetic, so a follower whose append was forgotten must not find another request's bytes.
 */
static void clear_ring(hsp__plain *plain, int32_t slot) {
    const hsp__layout *layout = plain->layout;
    for (int32_t layer = 0; layer < layout->n_layers; layer++)
        for (int32_t i = 0; i < layout->ring_rows; i++)
            for (int32_t p = 0; p < layout->n_planes; p++)
                memset(hsp__plain_device_row(plain, layer, hsp__ring_id(layout, slot, i), p), 0,
                       layout->plane_bytes[p]);
}

int hsp__plain_admit(void *self, int32_t slot, const int32_t *pages, int32_t n_pages, hsp__error *error) {
    hsp__plain *plain = self;
    (void)error;
    hsp__slots_admit(&plain->slots, plain->layout, plain->config, slot, pages, n_pages);
    clear_ring(plain, slot);
    return HSP_OK;
}

int hsp__plain_retire(void *self, int32_t slot, hsp__error *error) {
    hsp__plain *plain = self;
    (void)error;
    hsp__slots_retire(&plain->slots, plain->layout, slot);
    hsp__plans_forget(&plain->plans, plain->layout, plain->config->flags, slot);
    return HSP_OK;
}

int hsp__plain_truncate(void *self, int32_t slot, int32_t n_tokens, void *stream, hsp__error *error) {
    hsp__plain *plain = self;
    (void)stream, (void)error;
    hsp__slots_truncate(&plain->slots, plain->layout, slot, n_tokens);
    return HSP_OK;
}

int hsp__plain_read(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens,
                    const hsp_row_sink *rows_out, hsp__error *error) {
    hsp__plain *plain = self;
    const hsp__layout *layout = plain->layout;
    int32_t written = plain->slots.written[(size_t)slot * (size_t)layout->n_layers + (size_t)layer];
    if (first < 0 || n_tokens < 0 || first > written || n_tokens > written - first)
        return hsp__fail(error, HSP_ELIMIT, "read: tokens %d + %d of layer %d; %d have been written", first, n_tokens,
                         layer + layout->first_layer, written);
    for (int32_t i = 0; i < n_tokens; i++) {
        const char *row = hsp__plain_host_row(plain, slot, layer, first + i);
        for (int32_t p = 0; p < layout->n_planes; p++) {
            size_t stride = rows_out->stride[p] ? rows_out->stride[p] : layout->plane_bytes[p];
            memcpy((char *)rows_out->plane[p] + (size_t)i * stride, row + layout->plane_offset[p],
                   layout->plane_bytes[p]);
        }
    }
    return HSP_OK;
}

int hsp__plain_step_begin(void *self, const int32_t *slots, const int32_t *first, const int32_t *n_new, int32_t batch,
                          void *stream, hsp__error *error) {
    hsp__plain *plain = self;
    hsp__slots *s = &plain->slots;
    (void)stream, (void)error;
    memcpy(s->batch_slot, slots, (size_t)batch * sizeof(int32_t));
    memcpy(s->batch_first, first, (size_t)batch * sizeof(int32_t));
    memcpy(s->batch_n_new, n_new, (size_t)batch * sizeof(int32_t));
    s->batch = batch;
    for (int32_t b = 0; b < batch; b++) {
        int32_t oldest = first[b] + n_new[b] - plain->layout->ring_rows;
        if (slots[b] >= 0 && s->ring_first[slots[b]] < oldest)
            s->ring_first[slots[b]] = oldest;
    }
    return HSP_OK;
}

void *hsp__plain_device_rows(void *self) {
    return ((hsp__plain *)self)->device;
}

int hsp__plain_resident(void *self, int32_t slot, int32_t group, int32_t *tokens_out, int32_t *order_out,
                        int32_t *ring_first_out, hsp__error *error) {
    hsp__plain *plain = self;
    size_t n = (size_t)plain->layout->n_slots;
    size_t i = hsp__slots_index(plain->layout, slot, group) * (size_t)plain->layout->slot_stride;
    (void)error;
    if (tokens_out)
        memcpy(tokens_out, plain->slots.tag + i, n * sizeof(int32_t));
    for (size_t s = 0; order_out && s < n; s++)
        order_out[s] = plain->slots.order[i + s];
    if (ring_first_out)
        *ring_first_out = plain->slots.ring_first[slot];
    return HSP_OK;
}

int hsp__plain_counters(void *self, int32_t slot, int32_t group, hsp_counters *sum_out, hsp__error *error) {
    const hsp__plain *plain = self;
    const hsp__layout *layout = plain->layout;
    (void)error;
    *sum_out = (hsp_counters){0};
    for (int32_t g = 0; g < layout->n_groups; g++) {
        if (group >= 0 && g != group)
            continue;
        if (slot < 0)
            hsp__counters_add(sum_out, &plain->slots.retired[g]);
        for (int32_t s = 0; s < layout->max_requests; s++)
            if (slot < 0 || s == slot)
                hsp__counters_add(sum_out, &plain->slots.counters[hsp__slots_index(layout, s, g)]);
    }
    return HSP_OK;
}

int hsp__plain_reset_counters(void *self, hsp__error *error) {
    hsp__plain *plain = self;
    size_t groups = (size_t)plain->layout->n_groups;
    (void)error;
    memset(plain->slots.counters, 0, (size_t)plain->layout->max_requests * groups * sizeof(hsp_counters));
    memset(plain->slots.retired, 0, groups * sizeof(hsp_counters));
    return HSP_OK;
}

static void written(hsp__plain *plain, int32_t slot, int32_t layer, int32_t first, int32_t n) {
    int32_t *tokens = &plain->slots.written[(size_t)slot * (size_t)plain->layout->n_layers + (size_t)layer];
    /* A hole, left by a forgotten append, must stay unreadable. */
    if (*tokens >= first && *tokens < first + n)
        *tokens = first + n;
}

static hsp_counters *counters_of(hsp__plain *plain, int32_t slot, int32_t layer) {
    return &plain->slots.counters[hsp__slots_index(plain->layout, slot, plain->layout->group_of[layer])];
}

void hsp__plain_appended(hsp__plain *plain, int32_t slot, int32_t layer, int32_t first, int32_t n) {
    written(plain, slot, layer, first, n);
    counters_of(plain, slot, layer)->appended_rows += (uint64_t)n;
}

int hsp__plain_check_fill(const hsp__plain *plain, int32_t slot, int32_t layer, int32_t first, hsp__error *error) {
    int32_t tokens = plain->slots.written[(size_t)slot * (size_t)plain->layout->n_layers + (size_t)layer];
    if (tokens == first)
        return HSP_OK;
    return hsp__fail(error, HSP_ESTATE,
                     "fill: %d of the first %d rows of layer %d have been written; append the step's first", tokens,
                     first, layer + plain->layout->first_layer);
}

void hsp__plain_filled(hsp__plain *plain, int32_t slot, int32_t layer, int32_t first, int32_t n) {
    written(plain, slot, layer, first, n);
    counters_of(plain, slot, layer)->filled_rows += (uint64_t)n;
    if (plain->slots.ring_first[slot] < first + n)
        plain->slots.ring_first[slot] = first + n;
}

hsp__plan *hsp__plain_new_plans(hsp__plain *plain, int32_t group) {
    hsp__plan *plan = hsp__plans_of(&plain->plans, plain->layout, plain->config->flags, group);
    for (int32_t b = 0; b < plain->layout->max_batch; b++)
        plan[b].n_miss = 0;
    if (hsp__followers_are_late(plain->layout, plain->config->flags, group))
        hsp__followers_start(&plain->plans.followers, plain->layout, group);
    return plan;
}

void hsp__plain_wait_group(hsp__plain *plain, int32_t group,
                           int (*wait_rows)(void *self, int32_t layer, void *stream, hsp__error *error)) {
    const int32_t *layer = plain->layout->group_layer + plain->layout->group_first[group];
    for (int32_t i = 1; i < plain->layout->group[group].n_layers; i++)
        wait_rows(plain, layer[i], NULL, NULL);
}

int32_t hsp__plain_layers_at_once(const hsp__plain *plain, int32_t group) {
    return hsp__followers_are_late(plain->layout, plain->config->flags, group) ? 1
                                                                               : plain->layout->group[group].n_layers;
}

void hsp__plain_count_warm(hsp__plain *plain, int32_t slot, int32_t group, const hsp_counters *seen) {
    hsp_counters *counters = &plain->slots.counters[hsp__slots_index(plain->layout, slot, group)];
    counters->warmed += seen->misses;
    counters->fetched_bytes += seen->fetched_bytes;
}
