/* SPDX-License-Identifier: Apache-2.0 */
#include "core/layout.h"

#define GRANULE 65536 /* the GPU translates host memory in pieces of this size; runs of pages best start on one */

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static int same_group(const hsp_config *config, int32_t a, int32_t b) {
    return a == b || (config->layer_group && config->layer_group[a] == config->layer_group[b]);
}

static int is_anchor(const hsp_config *config, int32_t layer) {
    for (int32_t l = 0; l < layer; l++)
        if (same_group(config, l, layer))
            return 0;
    return 1;
}

static int32_t group_size(const hsp_config *config, int32_t anchor) {
    int32_t n = 0;
    for (int32_t l = anchor; l < config->n_layers; l++)
        n += same_group(config, anchor, l);
    return n;
}

static size_t gcd(size_t a, size_t b) {
    return b ? gcd(b, a % b) : a;
}

/* Pages after which a region of `page_bytes` pages is back at a granule boundary. */
static size_t pages_to_granule(size_t page_bytes) {
    return GRANULE / gcd(page_bytes, GRANULE);
}

static void set_planes(hsp__layout *layout, const hsp_config *config) {
    layout->n_planes = config->n_planes;
    for (int32_t p = 0; p < config->n_planes; p++) {
        layout->plane_bytes[p] = (size_t)config->plane_bytes[p];
        layout->plane_offset[p] = layout->row_bytes;
        layout->row_bytes += layout->plane_bytes[p];
    }
    layout->host_row_stride = round_up(layout->row_bytes, 16);
}

static void set_device(hsp__layout *layout, const hsp_config *config) {
    layout->slot_stride = (config->n_slots + 15) / 16 * 16;
    layout->rows_per_request = config->n_slots + config->ring_rows;
    layout->block_rows = config->block_rows;
    layout->n_rows = (int64_t)layout->rows_per_request * config->max_requests;
    layout->block_stride = round_up(layout->row_bytes * (size_t)config->block_rows, (size_t)config->block_align);
    size_t blocks = ((size_t)layout->n_rows + (size_t)config->block_rows - 1) / (size_t)config->block_rows;
    layout->layer_bytes = round_up(blocks * layout->block_stride, 256);
    layout->device_bytes = (uint64_t)layout->layer_bytes * (uint64_t)config->n_layers;
}

static void add_group(hsp__layout *layout, const hsp_config *config, int32_t anchor, size_t *run_align) {
    int32_t size = group_size(config, anchor), g = layout->n_groups++;
    size_t stride = round_up(layout->host_row_stride * (size_t)size, (size_t)config->host_row_align);
    size_t page_bytes = stride * HSP_PAGE_TOKENS, period = pages_to_granule(page_bytes);
    *run_align = *run_align > period ? *run_align : period; /* powers of two: the larger is a multiple of both */
    if (layout->group) {
        layout->group[g] = (hsp__group){anchor, size, layout->host_bytes, stride, size > 1 ? layout->n_shared : -1};
        layout->group_first[g] = g ? layout->group_first[g - 1] + layout->group[g - 1].n_layers : 0;
        int32_t index = 0;
        for (int32_t l = anchor; l < config->n_layers; l++)
            if (same_group(config, anchor, l)) {
                layout->group_of[l] = g;
                layout->index_in_group[l] = index;
                layout->group_layer[layout->group_first[g] + index++] = l;
            }
    }
    layout->n_shared += size > 1;
    layout->host_bytes += round_up(page_bytes * (size_t)layout->n_pages, GRANULE);
}

void hsp__layout_init(hsp__layout *layout, const hsp_config *config, hsp__arena *arena) {
    *layout = (hsp__layout){.first_layer = config->first_layer,
                            .n_layers = config->n_layers,
                            .max_requests = config->max_requests,
                            .max_batch = config->max_batch,
                            .max_context = config->max_context,
                            .n_slots = config->n_slots,
                            .ring_rows = config->ring_rows,
                            .max_k = config->max_k,
                            .max_queries = config->max_queries};
    layout->n_pages = (config->host_tokens + HSP_PAGE_TOKENS - 1) / HSP_PAGE_TOKENS;
    layout->max_pages = (config->max_context + HSP_PAGE_TOKENS - 1) / HSP_PAGE_TOKENS;
    set_planes(layout, config);
    set_device(layout, config);
    int32_t n_groups = 0;
    for (int32_t l = 0; l < config->n_layers; l++)
        n_groups += is_anchor(config, l);
    layout->group = hsp__carve(arena, (size_t)n_groups, sizeof *layout->group);
    layout->group_first = hsp__carve(arena, (size_t)n_groups, sizeof(int32_t));
    layout->group_of = hsp__carve(arena, (size_t)config->n_layers, sizeof(int32_t));
    layout->index_in_group = hsp__carve(arena, (size_t)config->n_layers, sizeof(int32_t));
    layout->group_layer = hsp__carve(arena, (size_t)config->n_layers, sizeof(int32_t));
    size_t run_align = 1;
    for (int32_t l = 0; l < config->n_layers; l++)
        if (is_anchor(config, l))
            add_group(layout, config, l, &run_align);
    /* A request shorter than the period would waste more than alignment brings. */
    layout->run_align = run_align <= (size_t)layout->max_pages ? (int32_t)run_align : 1;
}
