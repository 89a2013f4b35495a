/* SPDX-License-Identifier: Apache-2.0
 *
 * What GQA and MLA attention share on the way from rows to tiles and from tiles to the result.
 */
#ifndef HSP_ATTENTION_H
#define HSP_ATTENTION_H

#include "hisparse_ops.h"

/* Multiply-adds below which waking threads costs more than it saves: some ten microseconds of one core. */
#define HSP__ENOUGH_WORK (1 << 19)

static inline int32_t hsp__tiles_of(int32_t n_rows) {
    return n_rows / HSP_ATTENTION_TILE + (n_rows % HSP_ATTENTION_TILE != 0);
}

static inline int hsp__check_plane(const hsp_plane_view *plane, size_t row_bytes_needed) {
    return plane && plane->base && plane->rows_per_block >= 1 && plane->row_bytes >= row_bytes_needed ? HSP_OK
                                                                                                      : HSP_EINVAL;
}

/* Give one head's combined result the sink's share of the denominator; `lse` is the result's, without the sink. */
void hsp__apply_sink(float sink, float lse, int32_t value_dim, float *out);

#endif
