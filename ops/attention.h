/* SPDX-License-Identifier: Apache-2.0
 *
 * What GQA and MLA attention share on the way from rows to tiles and from tiles to the result.
 */
#ifndef HSP_ATTENTION_H
#define HSP_ATTENTION_H

#include "hisparse_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Multiply-adds below which waking threads costs more than it saves: some ten microseconds of one core. */
#define HSP__ENOUGH_WORK (1 << 19)

static inline int32_t hsp__tiles_of(int32_t n_rows) {
    return n_rows / HSP_ATTENTION_TILE + (n_rows % HSP_ATTENTION_TILE != 0);
}

/* Bytes of a K or V row. */
static inline size_t hsp__gqa_row_bytes(const hsp_gqa_shape *shape, int32_t dim) {
    return (size_t)shape->n_kv_heads * (size_t)dim * (shape->dtype == HSP_F32 ? 4 : 2);
}

int hsp__gqa_check(const hsp_gqa_shape *shape);
int hsp__gqa_check_planes(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values);

/* Give one head's combined result the sink's share of the denominator; `lse` is the result's, without the sink. */
void hsp__apply_sink(float sink, float lse, int32_t value_dim, float *out);

#ifdef __cplusplus
}
#endif

#endif
