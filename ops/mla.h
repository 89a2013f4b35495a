/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of MLA attention: their formats, and one row as floats.
 */
#ifndef HSP_MLA_H
#define HSP_MLA_H

#include "hisparse_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

int hsp__mla_check(const hsp_mla_shape *shape);
int hsp__mla_check_planes(const hsp_mla_shape *shape, const hsp_plane_view *planes);

/* Channels under one scale; 0: no scales. */
static inline int32_t hsp__mla_group(const hsp_mla_shape *shape) {
    return shape->format == HSP_MLA_FP8 ? 128 : shape->format == HSP_MLA_V4 ? 64 : 0;
}

/* Bytes of a row in one plane. */
size_t hsp__mla_row_bytes(const hsp_mla_shape *shape, int plane);

/* Channels of a key, and how many of them, from the first on, are the value. */
static inline int32_t hsp__mla_key_dim(const hsp_mla_shape *shape) {
    return shape->latent_dim + shape->rope_dim;
}

static inline int32_t hsp__mla_value_dim(const hsp_mla_shape *shape) {
    return shape->format == HSP_MLA_V4 ? hsp__mla_key_dim(shape) : shape->latent_dim;
}

/* row_out: the key, [key_dim]. */
void hsp__mla_unpack_row(const hsp_mla_shape *shape, const hsp_plane_view *planes, int32_t id, float *row_out);

#ifdef __cplusplus
}
#endif

#endif
