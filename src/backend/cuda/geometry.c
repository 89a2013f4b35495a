/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cuda/geometry.h"

static hsp__cuda_divisor divisor(uint32_t by) {
    return (hsp__cuda_divisor){by, by == 1 ? 0 : (uint32_t)(((uint64_t)1 << 32) / by) + 1};
}

/* The largest piece that divides every size, offset and stride rows are moved by. */
static uint32_t piece_of(const hsp__layout *layout) {
    uint64_t all = layout->block_stride | layout->layer_bytes | layout->host_row_stride;
    for (int32_t p = 0; p < layout->n_planes; p++)
        all |= layout->plane_bytes[p] | layout->plane_offset[p] | layout->plane_offset[p] * (size_t)layout->block_rows;
    return all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : 4;
}

/* n_at_once: layers, from the anchor on, whose rows are fetched together. */
static hsp__cuda_rows rows_of(const hsp__cuda *cuda, int32_t group, int32_t n_at_once) {
    const hsp__layout *layout = cuda->layout;
    const hsp__group *g = &layout->group[group];
    hsp__cuda_rows rows = {.host = cuda->pool.device + g->host_offset,
                           .device = cuda->device,
                           .device_anchor = cuda->device + (uint64_t)g->anchor * layout->layer_bytes,
                           .group_layer = cuda->group_layer + layout->group_first[group],
                           .host_stride = (uint32_t)g->host_stride,
                           .plain_stride = (uint32_t)layout->block_stride,
                           .layer_bytes = layout->layer_bytes,
                           .block_stride = layout->block_stride,
                           .anchor = g->anchor,
                           .n_planes = layout->n_planes,
                           .n_layers = g->n_layers,
                           .block_rows = layout->block_rows,
                           .piece_bytes = piece_of(layout)};
    for (int32_t p = 0; p < layout->n_planes; p++) {
        rows.plane_offset[p] = (uint32_t)layout->plane_offset[p];
        rows.plane_bytes[p] = (uint32_t)layout->plane_bytes[p];
    }
    uint32_t layer_pieces = (uint32_t)layout->row_bytes / rows.piece_bytes;
    rows.layer_pieces = divisor(layer_pieces);
    rows.row_pieces = divisor(layer_pieces * (uint32_t)n_at_once);
    rows.host_layer_pieces = (uint32_t)layout->host_row_stride / rows.piece_bytes;
    return rows;
}

static hsp__cuda_group_state group_state(const hsp__cuda *cuda, int32_t group) {
    const hsp__layout *layout = cuda->layout;
    const hsp__slots *state = &cuda->state;
    size_t g = (size_t)group;
    return (hsp__cuda_group_state){.tag = state->tag + g * (size_t)layout->slot_stride,
                                   .order = state->order + g * (size_t)layout->slot_stride,
                                   .where = state->where + g * (size_t)layout->max_context,
                                   .cursor = state->cursor + g,
                                   .written = state->written + layout->group[group].anchor,
                                   .ring_first = state->ring_first,
                                   .page = state->page,
                                   .batch_slot = state->batch_slot,
                                   .counters = state->counters + g,
                                   .slot_array_stride = (uint32_t)(layout->n_groups * layout->slot_stride),
                                   .where_stride = (uint64_t)layout->n_groups * (uint64_t)layout->max_context,
                                   .n_groups = (uint32_t)layout->n_groups,
                                   .n_layers = (uint32_t)layout->n_layers,
                                   .max_pages = (uint32_t)layout->max_pages};
}

/* 16-byte pieces, one layer, planes side by side, and every product of the fetch below 2^31. */
static int is_plain(const hsp__layout *layout, const hsp__cuda_rows *rows) {
    return rows->piece_bytes == 16 && rows->row_pieces.by == rows->layer_pieces.by && layout->block_rows == 1 &&
           rows->row_pieces.by <= 4096;
}

/* The first entry of a group's plan; each entry has room for all rows that a selection can miss. */
static size_t plan_of(const hsp__layout *layout, int32_t group) {
    return (size_t)layout->group[group].shared * (size_t)layout->max_batch;
}

static uint32_t most_fetched(const hsp__layout *layout) {
    return (uint32_t)(layout->max_k * layout->max_queries);
}

hsp__cuda_swap_in hsp__cuda_swap_in_params(const hsp__cuda *cuda, int32_t group, int late, const int32_t *selection,
                                           int32_t n, int32_t *ids) {
    const hsp__layout *layout = cuda->layout;
    int32_t n_layers = layout->group[group].n_layers;
    hsp__cuda_swap_in p = {.state = group_state(cuda, group),
                           .rows = rows_of(cuda, group, late ? 1 : n_layers),
                           .miss_bytes = (uint32_t)layout->row_bytes * (uint32_t)n_layers,
                           .selection = selection,
                           .ids = ids,
                           .turns = cuda->turns,
                           .scratch = cuda->scratch,
                           .scratch_words = cuda->scratch_words,
                           .seed = cuda->config->seed,
                           .warm_slot = -1,
                           .n = n,
                           .n_slots = layout->n_slots,
                           .slot_stride = layout->slot_stride,
                           .ring_rows = layout->ring_rows,
                           .rows_per_request = layout->rows_per_request,
                           .max_context = layout->max_context,
                           .group = group,
                           .policy = cuda->config->policy,
                           .no_io = (cuda->config->flags & HSP_NO_IO) != 0};
    p.plain = is_plain(layout, &p.rows);
    if (late) {
        p.n_fetched = cuda->n_fetched + plan_of(layout, group);
        p.fetched = cuda->fetched + plan_of(layout, group) * most_fetched(layout);
        p.most_fetched = most_fetched(layout);
    }
    return p;
}

hsp__cuda_follow hsp__cuda_follow_params(const hsp__cuda *cuda, int32_t layer) {
    const hsp__layout *layout = cuda->layout;
    int32_t group = layout->group_of[layer];
    hsp__cuda_follow p = {.rows = rows_of(cuda, group, 1),
                          .n_fetched = cuda->n_fetched + plan_of(layout, group),
                          .fetched = cuda->fetched + plan_of(layout, group) * most_fetched(layout),
                          .most_fetched = most_fetched(layout),
                          .layer = layer,
                          .batch = cuda->batch,
                          .no_io = (cuda->config->flags & HSP_NO_IO) != 0};
    p.plain = is_plain(layout, &p.rows);
    p.rows.host += (size_t)layout->index_in_group[layer] * layout->host_row_stride;
    p.rows.device_anchor = cuda->device + (uint64_t)layer * layout->layer_bytes;
    return p;
}

hsp__cuda_write hsp__cuda_write_params(const hsp__cuda *cuda, int32_t layer, const hsp_row_source *rows) {
    const hsp__layout *layout = cuda->layout;
    const hsp__group *g = &layout->group[layout->group_of[layer]];
    hsp__cuda_write p = {.state = cuda->state,
                         .host = (char *)cuda->pool.device + g->host_offset,
                         .device = cuda->device + (uint64_t)layer * layout->layer_bytes,
                         .host_stride = g->host_stride,
                         .host_row_offset = (uint64_t)layout->index_in_group[layer] * layout->host_row_stride,
                         .block_stride = layout->block_stride,
                         .n_planes = layout->n_planes,
                         .block_rows = layout->block_rows,
                         .ring_rows = layout->ring_rows,
                         .n_slots = layout->n_slots,
                         .id_stride = layout->rows_per_request,
                         .n_groups = layout->n_groups,
                         .n_layers = layout->n_layers,
                         .max_pages = layout->max_pages,
                         .layer = layer,
                         .group = layout->group_of[layer]};
    for (int32_t i = 0; i < layout->n_planes; i++) {
        p.plane[i] = rows->plane[i];
        p.stride[i] = rows->stride[i] ? rows->stride[i] : layout->plane_bytes[i];
        p.plane_offset[i] = (uint32_t)layout->plane_offset[i];
        p.plane_bytes[i] = (uint32_t)layout->plane_bytes[i];
    }
    return p;
}

hsp__cuda_admit hsp__cuda_admit_params(const hsp__cuda *cuda, int32_t slot) {
    const hsp__layout *layout = cuda->layout;
    hsp__cuda_admit p = {.state = cuda->state,
                         .device = cuda->device,
                         .layer_bytes = layout->layer_bytes,
                         .block_stride = layout->block_stride,
                         .n_planes = layout->n_planes,
                         .block_rows = layout->block_rows,
                         .n_layers = layout->n_layers,
                         .n_groups = layout->n_groups,
                         .n_slots = layout->n_slots,
                         .slot_stride = layout->slot_stride,
                         .ring_rows = layout->ring_rows,
                         .rows_per_request = layout->rows_per_request,
                         .policy = cuda->config->policy,
                         .max_batch = layout->max_batch,
                         .slot = slot};
    for (int32_t i = 0; i < layout->n_planes; i++) {
        p.plane_offset[i] = (uint32_t)layout->plane_offset[i];
        p.plane_bytes[i] = (uint32_t)layout->plane_bytes[i];
    }
    return p;
}

static void carve_step(hsp__slots *view, const hsp__layout *layout, hsp__arena *arena) {
    view->ring_first = hsp__carve(arena, (size_t)layout->max_requests, sizeof(int32_t));
    view->batch_slot = hsp__carve(arena, (size_t)layout->max_batch, sizeof(int32_t));
    view->batch_first = hsp__carve(arena, (size_t)layout->max_batch, sizeof(int32_t));
    view->batch_n_new = hsp__carve(arena, (size_t)layout->max_batch, sizeof(int32_t));
}

size_t hsp__cuda_step_bytes(const hsp__layout *layout) {
    hsp__arena arena = {0};
    hsp__slots view;
    carve_step(&view, layout, &arena);
    return arena.used;
}

hsp__slots hsp__cuda_step_view(const hsp__cuda *cuda) {
    hsp__arena arena = {(char *)cuda->step, 0};
    hsp__slots view = {0};
    carve_step(&view, cuda->layout, &arena);
    return view;
}
