/* SPDX-License-Identifier: Apache-2.0
 *
 * What attention takes, checked the same way on the CPU and on a GPU: shapes, and planes that hold their rows.
 */
#include "attention.h"
#include "mla.h"
#include "shapes.h"

int hsp__gqa_check(const hsp_gqa_shape *shape) {
    if (!shape || shape->struct_size != sizeof *shape || shape->dtype < HSP_F32 || shape->dtype > HSP_BF16)
        return HSP_EINVAL;
    if (shape->n_heads < 1 || shape->n_kv_heads < 1 || shape->key_dim < 1 || shape->value_dim < 1 ||
        shape->n_heads % shape->n_kv_heads)
        return HSP_EINVAL;
    if (shape->n_heads > HSP__MAX_DIM || shape->key_dim > HSP__MAX_DIM || shape->value_dim > HSP__MAX_DIM)
        return HSP_ELIMIT;
    return HSP_OK;
}

static int check_plane(const hsp_plane_view *plane, size_t row_bytes_needed) {
    return plane && plane->base && plane->rows_per_block >= 1 && plane->row_bytes >= row_bytes_needed ? HSP_OK
                                                                                                      : HSP_EINVAL;
}

int hsp__gqa_check_planes(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values) {
    int status = check_plane(keys, hsp__gqa_row_bytes(shape, shape->key_dim));
    return status ? status : check_plane(values, hsp__gqa_row_bytes(shape, shape->value_dim));
}

int hsp__mla_check(const hsp_mla_shape *shape) {
    if (!shape || shape->struct_size != sizeof *shape || shape->format < HSP_MLA_BF16 || shape->format > HSP_MLA_V4)
        return HSP_EINVAL;
    if (shape->n_heads < 1 || shape->latent_dim < 1 || shape->rope_dim < 1 || shape->reserved != 0)
        return HSP_EINVAL;
    if (hsp__mla_group(shape) && shape->latent_dim % hsp__mla_group(shape))
        return HSP_EINVAL;
    if (shape->n_heads > HSP__MAX_DIM || (int64_t)shape->latent_dim + shape->rope_dim > HSP__MAX_DIM)
        return HSP_ELIMIT;
    return HSP_OK;
}

size_t hsp__mla_row_bytes(const hsp_mla_shape *shape, int plane) {
    size_t latent = (size_t)shape->latent_dim, rope = 2 * (size_t)shape->rope_dim;
    if (shape->format == HSP_MLA_BF16)
        return 2 * latent + rope;
    if (shape->format == HSP_MLA_FP8)
        return latent + latent / 128 * sizeof(float) + rope;
    return plane == 0 ? latent + rope : (latent / 64 + 7) / 8 * 8; /* to 8 bytes at the published 448 channels */
}

int hsp__mla_check_planes(const hsp_mla_shape *shape, const hsp_plane_view *planes) {
    int status = check_plane(planes, hsp__mla_row_bytes(shape, 0));
    if (status || shape->format != HSP_MLA_V4)
        return status;
    return check_plane(planes + 1, hsp__mla_row_bytes(shape, 1));
}
