/* SPDX-License-Identifier: Apache-2.0 */
#include "shapes.h"

int hsp__check_quest(const hsp_quest_shape *shape) {
    if (!shape || shape->struct_size != sizeof *shape || shape->dtype < HSP_F32 || shape->dtype > HSP_BF16)
        return HSP_EINVAL;
    if (shape->n_heads < 1 || shape->n_kv_heads < 1 || shape->head_dim < 1 || shape->page_tokens < 1 ||
        shape->n_heads % shape->n_kv_heads)
        return HSP_EINVAL;
    if (shape->n_heads > HSP__MAX_DIM || shape->head_dim > HSP__MAX_DIM)
        return HSP_ELIMIT;
    return HSP_OK;
}

int hsp__check_dsa(const hsp_dsa_shape *shape) {
    if (!shape || shape->struct_size != sizeof *shape || (shape->dtype != HSP_BF16 && shape->dtype != HSP_E4M3))
        return HSP_EINVAL;
    if (shape->n_heads < 1 || shape->head_dim < 16 || (shape->head_dim & (shape->head_dim - 1)) || shape->reserved)
        return HSP_EINVAL;
    if (shape->n_heads > HSP__MAX_DIM || shape->head_dim > HSP__MAX_DIM)
        return HSP_ELIMIT;
    return HSP_OK;
}

int hsp__check_nsa(const hsp_nsa_shape *shape) {
    if (!shape || shape->struct_size != sizeof *shape || shape->dtype < HSP_F32 || shape->dtype > HSP_BF16)
        return HSP_EINVAL;
    if (shape->n_heads < 1 || shape->n_kv_heads < 1 || shape->key_dim < 1 || shape->n_heads % shape->n_kv_heads)
        return HSP_EINVAL;
    if (shape->compress_stride < 1 || shape->compress_tokens < 1 || shape->block_tokens < 1 ||
        shape->compress_tokens % shape->compress_stride || shape->block_tokens % shape->compress_stride)
        return HSP_EINVAL;
    if (shape->n_blocks < 1 || shape->n_first < 0 || shape->n_local < 0 ||
        (int64_t)shape->n_first + shape->n_local > shape->n_blocks)
        return HSP_EINVAL;
    if (shape->n_heads > HSP__MAX_DIM || shape->key_dim > HSP__MAX_DIM ||
        (int64_t)shape->n_blocks * shape->block_tokens > INT32_MAX)
        return HSP_ELIMIT;
    return HSP_OK;
}

int hsp__check_block(const hsp_block_shape *shape) {
    if (!shape || shape->struct_size != sizeof *shape || shape->dtype < HSP_F32 || shape->dtype > HSP_BF16)
        return HSP_EINVAL;
    if (shape->n_heads < 1 || shape->n_groups < 1 || shape->n_key_heads < 1 || shape->key_dim < 1 ||
        shape->n_heads % shape->n_groups || shape->n_heads % shape->n_key_heads)
        return HSP_EINVAL;
    if (!(shape->scale > 0.0f)) /* also NaN: the order of the blocks would not be that of the products */
        return HSP_EINVAL;
    if (shape->block_tokens < 1 || shape->n_blocks < 1 || shape->n_first < 0 || shape->n_local < 1 ||
        (int64_t)shape->n_first + shape->n_local > shape->n_blocks)
        return HSP_EINVAL;
    if (shape->n_heads > HSP__MAX_DIM || shape->key_dim > HSP__MAX_DIM ||
        (int64_t)shape->n_blocks * shape->block_tokens > INT32_MAX)
        return HSP_ELIMIT;
    return HSP_OK;
}

int hsp__check_exact(const hsp_exact_shape *shape) {
    if (!shape || shape->struct_size != sizeof *shape || shape->dtype < HSP_F32 || shape->dtype > HSP_BF16)
        return HSP_EINVAL;
    if (shape->n_heads < 1 || shape->n_kv_heads < 1 || shape->key_dim < 1 || shape->n_heads % shape->n_kv_heads)
        return HSP_EINVAL;
    if (shape->n_selections != 1 && shape->n_selections != shape->n_kv_heads)
        return HSP_EINVAL;
    if (shape->n_heads > HSP__MAX_DIM || shape->key_dim > HSP__MAX_DIM)
        return HSP_ELIMIT;
    return HSP_OK;
}
