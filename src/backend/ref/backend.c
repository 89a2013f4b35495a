/* SPDX-License-Identifier: Apache-2.0 */
/* The obvious backend: one thread, one row at a time, tokens found by looking at every tag. What others are held to. */
#include "backend/plain.h"

#include <stdio.h>
#include <string.h>

typedef struct ref_backend {
    hsp__plain plain; /* first: the plain ops see only this */
} ref_backend;

static uint32_t capabilities(void) {
    return HSP_CAN_RUN | HSP_CAN_HOST_FILE;
}

static void describe(char *detail, size_t bytes) {
    snprintf(detail, bytes, "single thread, the oracle of the others");
}

static void *carve(const hsp__open_args *args, hsp__arena *arena, uint64_t *device_state_out) {
    ref_backend *self = hsp__carve(arena, 1, sizeof *self);
    *device_state_out = hsp__plain_init(self ? &self->plain : NULL, args, arena);
    return self;
}

static int fill(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens, const hsp_row_source *rows,
                void *stream, hsp__error *error) {
    ref_backend *ref = self;
    const hsp__layout *layout = ref->plain.layout;
    int status = hsp__plain_check_fill(&ref->plain, slot, layer, first, error);
    (void)stream;
    if (status != HSP_OK)
        return status;
    for (int32_t i = 0; i < n_tokens; i++)
        for (int32_t p = 0; p < layout->n_planes; p++)
            memcpy(hsp__plain_host_row(&ref->plain, slot, layer, first + i) + layout->plane_offset[p],
                   hsp__source_row(layout, rows, p, i), layout->plane_bytes[p]);
    hsp__plain_filled(&ref->plain, slot, layer, first, n_tokens);
    return HSP_OK;
}

static void append_row(ref_backend *ref, int32_t slot, int32_t layer, int32_t token, const hsp_row_source *rows,
                       int64_t i) {
    const hsp__layout *layout = ref->plain.layout;
    for (int32_t p = 0; p < layout->n_planes; p++) {
        const char *row = hsp__source_row(layout, rows, p, i);
        memcpy(hsp__plain_device_row(&ref->plain, layer, hsp__ring_id(layout, slot, token), p), row,
               layout->plane_bytes[p]);
        memcpy(hsp__plain_host_row(&ref->plain, slot, layer, token) + layout->plane_offset[p], row,
               layout->plane_bytes[p]);
    }
}

static int append(void *self, int32_t layer, const hsp_row_source *rows, int32_t rows_per_request, void *stream,
                  hsp__error *error) {
    ref_backend *ref = self;
    hsp__slots *slots = &ref->plain.slots;
    (void)stream, (void)error;
    for (int32_t b = 0; b < slots->batch; b++) {
        int32_t slot = slots->batch_slot[b], n_new = slots->batch_n_new[b];
        if (slot < 0)
            continue;
        for (int32_t i = 0; i < n_new; i++)
            append_row(ref, slot, layer, slots->batch_first[b] + i, rows, (int64_t)b * rows_per_request + i);
        hsp__plain_appended(&ref->plain, slot, layer, slots->batch_first[b], n_new);
    }
    return HSP_OK;
}

/* What a plan has for one layer. */
static void fetch(ref_backend *ref, const hsp__plan *plan, int32_t layer) {
    const hsp__layout *layout = ref->plain.layout;
    if (ref->plain.config->flags & HSP_NO_IO)
        return;
    for (int32_t m = 0; m < plan->n_miss; m++) {
        const char *row = hsp__plain_host_row(&ref->plain, plan->request, layer, plan->token[m]);
        int64_t id = (int64_t)plan->request * layout->rows_per_request + plan->slot[m];
        for (int32_t p = 0; p < layout->n_planes; p++)
            memcpy(hsp__plain_device_row(&ref->plain, layer, id, p), row + layout->plane_offset[p],
                   layout->plane_bytes[p]);
    }
}

/* The first n_layers of a group. */
static void fetch_layers(ref_backend *ref, const hsp__plan *plan, int32_t group, int32_t n_layers) {
    for (int32_t i = 0; i < n_layers; i++)
        fetch(ref, plan, ref->plain.layout->group_layer[ref->plain.layout->group_first[group] + i]);
}

static int wait_rows(void *self, int32_t layer, void *stream, hsp__error *error) {
    ref_backend *ref = self;
    const hsp__layout *layout = ref->plain.layout;
    const hsp__plan *plan = hsp__plans_of(&ref->plain.plans, layout, ref->plain.config->flags, layout->group_of[layer]);
    (void)stream, (void)error;
    if (hsp__followers_arrive(&ref->plain.plans.followers, layer))
        for (int32_t b = 0; b < layout->max_batch; b++)
            fetch(ref, &plan[b], layer);
    return HSP_OK;
}

static int warm(void *self, int32_t slot, int32_t group, const int32_t *tokens, int32_t n, void *stream,
                hsp__error *error) {
    ref_backend *ref = self;
    hsp__plan *plan = &ref->plain.plans.plan[0];
    hsp_counters seen = {0};
    (void)stream, (void)error;
    hsp__plain_wait_group(&ref->plain, group, wait_rows);
    hsp__plan_resolve(plan, &ref->plain.slots, ref->plain.layout, ref->plain.config, slot, group, tokens, n, NULL,
                      HSP__FIND_BY_SEARCH, &seen);
    fetch_layers(ref, plan, group, ref->plain.layout->group[group].n_layers);
    hsp__plain_count_warm(&ref->plain, slot, group, &seen);
    return HSP_OK;
}

static int swap_in(void *self, int32_t group, const int32_t *selection, int32_t n_queries, int32_t k,
                   int32_t *row_ids_out, void *stream, hsp__error *error) {
    ref_backend *ref = self;
    hsp__slots *slots = &ref->plain.slots;
    int64_t n = (int64_t)n_queries * k;
    (void)stream, (void)error;
    hsp__plain_wait_group(&ref->plain, group, wait_rows);
    hsp__plan *plan = hsp__plain_new_plans(&ref->plain, group);
    for (int32_t b = 0; b < slots->batch; b++) {
        int32_t slot = slots->batch_slot[b];
        if (slot < 0) {
            memset(row_ids_out + b * n, 0xff, (size_t)n * sizeof(int32_t));
            continue;
        }
        hsp__plan_resolve(&plan[b], slots, ref->plain.layout, ref->plain.config, slot, group, selection + b * n, n,
                          row_ids_out + b * n, HSP__FIND_BY_SEARCH,
                          &slots->counters[hsp__slots_index(ref->plain.layout, slot, group)]);
        fetch_layers(ref, &plan[b], group, hsp__plain_layers_at_once(&ref->plain, group));
    }
    return HSP_OK;
}

const hsp__backend hsp__backend_ref = {.name = "ref",
                                       .capabilities = capabilities,
                                       .describe = describe,
                                       .carve = carve,
                                       .open = hsp__plain_open,
                                       .close = hsp__plain_close,
                                       .huge_pages = hsp__plain_huge_pages,
                                       .admit = hsp__plain_admit,
                                       .retire = hsp__plain_retire,
                                       .truncate = hsp__plain_truncate,
                                       .fill = fill,
                                       .warm = warm,
                                       .read = hsp__plain_read,
                                       .step_begin = hsp__plain_step_begin,
                                       .append = append,
                                       .swap_in = swap_in,
                                       .wait_rows = wait_rows,
                                       .device_rows = hsp__plain_device_rows,
                                       .resident = hsp__plain_resident,
                                       .counters = hsp__plain_counters,
                                       .reset_counters = hsp__plain_reset_counters};
