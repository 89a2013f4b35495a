/* SPDX-License-Identifier: Apache-2.0
 *
 * GQA attention over rows by id: rows of bf16 or fp16, one list of ids for all KV heads or one for each.
 */
#include "attention_mma.cuh"

#include "attention.h"

template <typename type>
struct gqa_rows {
    typedef type number;
    static const bool VALUE_IS_KEY = false;

    /* One plane; eight lanes take 128 bytes of a row at a time. */
    template <int THREADS>
    static __device__ __forceinline__ void load_plane(const hsp__plane &plane, const int32_t *ids, int32_t kv_head,
                                                      int32_t dim, uint32_t to) {
        const uint32_t offset = (uint32_t)kv_head * (uint32_t)dim * 2, bytes = (uint32_t)dim * 2;
#pragma unroll
        for (uint32_t r = threadIdx.x / 8; r < TILE; r += THREADS / 8) {
            const bool there = ids[r] >= 0;
            const char *row = there ? hsp__row_at(plane, ids[r]) + offset : plane.base;
            for (uint32_t at = threadIdx.x % 8 * 16; at < bytes; at += 128)
                hsp__copy16(to + r * pitch_of(dim) + at, there ? row + at : row, there);
        }
    }

    template <int THREADS>
    static __device__ __forceinline__ void load(const hsp__attention &a, const hsp__job &j, const int32_t *ids,
                                                uint32_t stage, const tile_layout &layout) {
        load_plane<THREADS>(a.plane[0], ids, j.kv_head, a.key_dim, stage);
        load_plane<THREADS>(a.plane[1], ids, j.kv_head, a.value_dim, stage + layout.value_offset);
    }
};

/* Up to 16 heads that share a KV head go in one piece of 16; more, in pieces of 64. */
template <typename type>
static int launch(hsp__attention &a, const hsp_gpu_batch *batch, void *stream) {
    typedef gqa_rows<type> rows;
    int32_t group = a.n_heads / a.n_kv_heads;
    a.head_blocks = (int32_t)hsp__gpu_pieces(group, group <= 16 ? 16 : 64);
    if (group <= 16 && a.value_dim <= 128)
        return attend_launch<rows, 1, 4, 4>(a, batch, stream);
    if (group <= 16 && a.value_dim <= 256)
        return attend_launch<rows, 1, 4, 8>(a, batch, stream);
    if (group <= 16)
        return attend_launch<rows, 1, 4, 16>(a, batch, stream);
    if (a.value_dim <= 128)
        return attend_launch<rows, 4, 2, 8>(a, batch, stream);
    if (a.value_dim <= 256)
        return attend_launch<rows, 4, 2, 16>(a, batch, stream);
    return attend_launch<rows, 4, 2, 32>(a, batch, stream);
}

static int check(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values,
                 int32_t n_lists) {
    int status = hsp__gqa_check(shape);
    if (status)
        return status;
    if (shape->dtype == HSP_F32 || shape->key_dim % 16 || shape->value_dim % 16 || shape->key_dim > 576 ||
        shape->value_dim > 512)
        return HSP_EUNSUPPORTED;
    if (n_lists != 1 && n_lists != shape->n_kv_heads)
        return HSP_EINVAL;
    status = hsp__gqa_check_planes(shape, keys, values);
    if (status)
        return status;
    return hsp__plane_aligned(keys, 16) && hsp__plane_aligned(values, 16) ? HSP_OK : HSP_EINVAL;
}

int hsp_gpu_gqa_attend(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values,
                       const hsp_gpu_batch *batch, const float *query, const int32_t *row_ids, int32_t n_lists,
                       int32_t n_rows, int32_t n_chunks, const float *sink, float *out, float *lse_out, void *stream) {
    int status = check(shape, keys, values, n_lists);
    if (status == HSP_OK)
        status = hsp__gpu_check(batch);
    if (status)
        return status;
    hsp__attention a = {};
    a.plane[0] = hsp__plane_of(keys), a.plane[1] = hsp__plane_of(values);
    a.slot = batch->slot, a.row_ids = row_ids;
    a.query = query, a.sink = sink, a.out = out, a.lse = lse_out;
    a.n_queries = batch->n_queries, a.n_rows = n_rows, a.n_lists = n_lists;
    a.n_heads = shape->n_heads, a.n_kv_heads = shape->n_kv_heads;
    a.key_dim = shape->key_dim, a.value_dim = shape->value_dim;
    a.n_chunks = n_chunks, a.scale = shape->scale * HSP__LOG2E;
    status = hsp__attention_check(batch, a);
    if (status)
        return status;
    return shape->dtype == HSP_F16 ? launch<__half>(a, batch, stream) : launch<__nv_bfloat16>(a, batch, stream);
}
