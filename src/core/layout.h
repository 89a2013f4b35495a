/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of where rows lie, on the device and in the host pool. Knows nothing of who holds what. */
#ifndef HSP_LAYOUT_H
#define HSP_LAYOUT_H

#include "alloc.h"
#include "hisparse.h"

typedef struct hsp__group {
    int32_t anchor;       /* lowest layer of the group, as a local index */
    int32_t n_layers;     /* layers of the group */
    uint64_t host_offset; /* of the group's region in the host pool */
    size_t host_stride;   /* bytes from token to token: the rows of all layers of the group, padded */
    int32_t shared;       /* number among the groups that have followers; -1: a lone layer */
} hsp__group;

/* Layers are local here: 0 .. n_layers - 1, the caller's number less first_layer. */
typedef struct hsp__layout {
    int32_t first_layer, n_layers, n_groups, n_planes;
    int32_t n_shared; /* groups that have followers */
    int32_t max_requests, max_batch, max_context, n_slots, ring_rows, max_k, max_queries;
    size_t plane_bytes[HSP_MAX_PLANES];

    /* host: region[group][page][token][layer of group][plane] */
    size_t row_bytes;                    /* all planes, packed */
    size_t plane_offset[HSP_MAX_PLANES]; /* of a plane in a host row */
    size_t host_row_stride;              /* from layer to layer of a group: row_bytes to a multiple of 16 */
    int64_t n_pages;                     /* of the pool; a page id is the same in every region */
    int32_t max_pages;                   /* of one request */
    int32_t run_align; /* pages after which every region is at a 64 KiB boundary again; 1 if too far */
    uint64_t host_bytes;

    /* device: layer[block][plane][row of block] */
    int32_t slot_stride;      /* n_slots to a multiple of 16, so that the arrays of every request start aligned */
    int32_t rows_per_request; /* n_slots + ring_rows */
    int32_t block_rows;
    int64_t n_rows; /* row ids of a layer */
    size_t block_stride;
    size_t layer_bytes;
    uint64_t device_bytes;

    hsp__group *group;       /* [n_groups], in order of their anchors */
    int32_t *group_of;       /* [n_layers] */
    int32_t *index_in_group; /* [n_layers] */
    int32_t *group_layer;    /* layers of group g: group_layer[group_first[g] ..] */
    int32_t *group_first;    /* [n_groups] */
} hsp__layout;

/* Fill in the layout of a valid config; its arrays come from `arena`. While the arena only counts, the arrays are NULL
 * and all else is right. */
void hsp__layout_init(hsp__layout *layout, const hsp_config *config, hsp__arena *arena);

/* Offset of a host row (its plane 0) in the pool. */
static inline uint64_t hsp__host_offset(const hsp__layout *layout, int32_t group, int32_t index_in_group, int64_t page,
                                        int32_t token) {
    const hsp__group *g = &layout->group[group];
    uint64_t row = (uint64_t)page * HSP_PAGE_TOKENS + (uint64_t)token % HSP_PAGE_TOKENS;
    return g->host_offset + row * g->host_stride + (uint64_t)index_in_group * layout->host_row_stride;
}

/* Offset of one plane of a row in the device rows. */
static inline uint64_t hsp__device_offset(const hsp__layout *layout, int32_t layer, int64_t id, int32_t plane) {
    uint64_t block = (uint64_t)(id / layout->block_rows), row = (uint64_t)(id % layout->block_rows);
    uint64_t in_block = layout->plane_offset[plane] * (size_t)layout->block_rows + row * layout->plane_bytes[plane];
    return (uint64_t)layer * layout->layer_bytes + block * layout->block_stride + in_block;
}

#endif
