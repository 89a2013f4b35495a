/* SPDX-License-Identifier: Apache-2.0
 *
 * libhisparse_ops_cuda: the selectors and sparse attention of hisparse_ops.h on a CUDA device. Shapes, formats and rules
 * are those of that header; here is what differs.
 *
 * All pointers but those to shapes, batches and views are device memory, aligned as a GPU needs it: floats and int32 to
 * 4 bytes, packed rows, statistics and strides as the function says. A call serves the whole batch of a decode step. It
 * checks its arguments, launches on `stream` (a cudaStream_t) and returns: it allocates nothing, never waits, and may be
 * captured into a graph. What changes from step to step is read on the device, so one captured graph serves all steps.
 * Scratch belongs to one call until that has run; its size comes from a function that takes the greatest numbers there
 * will be. Statuses are those of the sibling on the CPU, and HSP_EDEVICE where CUDA refuses a launch.
 *
 * The same inputs give the same bits whatever the size of the batch, the place in it, the GPU's number of
 * multiprocessors, and where rows lie. The bits are not those of the CPU, for sums are made in another order.
 */
#ifndef HISPARSE_OPS_GPU_H
#define HISPARSE_OPS_GPU_H

#include "hisparse_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whom a call serves. HSP_EINVAL: struct_size is wrong, a pointer is NULL, n_queries is below 1, or batch or max_tokens
 * below 0; HSP_ELIMIT: batch or n_queries is above 65535. */
typedef struct hsp_gpu_batch {
    size_t struct_size;      /* sizeof(hsp_gpu_batch) */
    int32_t batch;           /* entries */
    int32_t n_queries;       /* query tokens an entry, newest last */
    int32_t max_tokens;      /* bounds grids and scratch; greater counts below are taken as this one */
    const int32_t *slot;     /* device [batch]: request slot of each entry. -1: padding; its selections are -1, its
                              * attention outputs 0 and -inf in lse, and nothing of it is read or written beside them */
    const int32_t *n_tokens; /* device [batch][n_queries]: tokens each query may see; negative counts as 0 */
} hsp_gpu_batch;

/* ------------------------------------------------------------------------------------------------------- attention --
 * As hsp_gqa_tiles and hsp_gqa_combine, and hsp_mla_attend, for every query of the batch, in one launch. row_ids: int32
 * [batch][n_queries][n_rows], as hsp_swap_in writes them; planes: views with device memory, as hsp_rows gives them. Of
 * the batch, n_tokens and max_tokens are not read: ids say what there is. A padding entry's ids are not read.
 *
 * The matrix products are those of tensor cores: the query and the weights of rows are rounded to the number format of
 * the rows (bf16 in MLA, which also rounds unpacked e4m3 times its scale; that is exact where scales are powers of two),
 * sums are float32. A weight errs by up to 2^-9 of itself in bf16, 2^-12 in fp16, where one below 2^-25 of its head's
 * greatest is 0 too. Infinities and NaN behave as on the CPU; a query beyond the range of fp16 is infinite.
 *
 * n_chunks: 1, 2, 4 or 8. The tiles of a query are cut into so many runs as equal as can be, each run taken by one block
 * of a cluster, and the results of the runs are added in ascending order. It is part of the shape: results in bits
 * depend on it. 2 suits 64 blocks of 64 heads and more (a batch of 32 with 128 heads), 8 is fastest for one request.
 *
 * query, out: 16-byte aligned. sink: float [n_heads] or NULL. lse_out: float [batch][n_queries][n_heads] or NULL. */

/* out: float [batch][n_queries][n_heads][value_dim]. row_ids: int32 [batch][n_queries][n_lists][n_rows]; n_lists 1: one
 * list for all KV heads; n_kv_heads: one for each, as selections of NSA, of MiniMax-M3 and of
 * hsp_gpu_quest_select_groups are. HSP_EUNSUPPORTED: rows of HSP_F32, key_dim above 576, value_dim above 512, or either
 * no multiple of 16. HSP_EINVAL: also bases and strides of planes that are no multiples of 16. */
HSP_API int hsp_gpu_gqa_attend(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values,
                               const hsp_gpu_batch *batch, const float *query, const int32_t *row_ids, int32_t n_lists,
                               int32_t n_rows, int32_t n_chunks, const float *sink, float *out, float *lse_out,
                               void *stream);

/* out: float [batch][n_queries][n_heads][512]. HSP_EUNSUPPORTED: other sizes than the published ones, latent_dim 512,
 * in HSP_MLA_V4 448, and rope_dim 64 (rows of bf16 with others: hsp_gpu_gqa_attend with one KV head and the same plane
 * twice). HSP_EINVAL: also bases and strides of planes that are no multiples of 16, in HSP_MLA_FP8 and HSP_MLA_V4 of
 * 8. Blocks are of 64 heads: fewer cost as much. */
HSP_API int hsp_gpu_mla_attend(const hsp_mla_shape *shape, const hsp_plane_view *planes, const hsp_gpu_batch *batch,
                               const float *query, const int32_t *row_ids, int32_t n_rows, int32_t n_chunks,
                               const float *sink, float *out, float *lse_out, void *stream);

/* Make packed rows, for hsp_append: rows: float [n_rows][latent_dim + rope_dim]; rows_out: per plane device memory and
 * stride, any alignment. The bytes are those of hsp_mla_pack_rows (of a NaN, any that is NaN), for any shape that it
 * takes. For a step n_rows is batch * rows_per_request; rows that hsp_append does not read may hold anything. */
HSP_API int hsp_gpu_mla_pack(const hsp_mla_shape *shape, const float *rows, int32_t n_rows,
                             const hsp_row_sink *rows_out, void *stream);

#ifdef __cplusplus
}
#endif

#endif
