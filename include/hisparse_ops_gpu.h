/* SPDX-License-Identifier: Apache-2.0
 *
 * libhisparse_ops_cuda: the selectors and sparse attention of hisparse_ops.h on a CUDA device. Shapes, formats and
 * rules are those of that header; here is what differs.
 *
 * All pointers but those to shapes, batches and views are device memory, aligned as a GPU needs it: floats and int32 to
 * 4 bytes, packed rows, statistics and strides as the function says. A call serves the whole batch of a decode step. It
 * checks its arguments, launches on `stream` (a cudaStream_t) and returns: it allocates nothing, never waits, and may
 * be captured into a graph. What changes from step to step is read on the device, so one captured graph serves all
 * steps. Scratch belongs to one call until that has run; its size comes from a function that takes the greatest numbers
 * there will be. Statuses are those of the sibling on the CPU, and HSP_EDEVICE where CUDA refuses a launch.
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
 * below 0; HSP_ELIMIT: batch or n_queries is above 65535, or max_tokens above 2^30. */
typedef struct hsp_gpu_batch {
    size_t struct_size;      /* sizeof(hsp_gpu_batch) */
    int32_t batch;           /* entries */
    int32_t n_queries;       /* query tokens an entry, newest last */
    int32_t max_tokens;      /* bounds grids and scratch; greater counts below are taken as this one */
    const int32_t *slot;     /* device [batch]: request slot of each entry. -1: padding; its selections are -1, its
                              * attention outputs 0 and -inf in lse, and nothing of it is read or written beside them */
    const int32_t *n_tokens; /* device [batch][n_queries]: tokens each query may see; negative counts as 0 */
} hsp_gpu_batch;

/* Selections are int32 [batch][n_queries][k], or with a selection per group [batch][n_queries][groups][k]; queries are
 * float [batch][n_queries][heads][channels]. Storage that belongs to requests is named by a base and strides in bytes:
 * row i of slot s is at base + s * request_stride + i * row_stride. Functions that take in new tokens take n_new rows
 * an entry, [batch][n_new], the last of them for token n_tokens - 1 of the entry's newest query; where that leaves a
 * row with a token below 0 it is skipped. Where an entry sees no more tokens than a selection has places, no score is
 * made or read. Scratch has 16-byte alignment. */

/* The k greatest of scores that are there already, ties to the lower token, NaN below all others. scores: float
 * [batch][n_queries][max_tokens]. selection_out: ascending, then -1. */
HSP_API int hsp_gpu_top(const hsp_gpu_batch *batch, const float *scores, int32_t k, int32_t *selection_out,
                        void *stream);

/* --------------------------------------------------------------------------------------------------------- Quest --
 * Statistics of a slot are at stats + slot * request_stride, laid out as on the CPU (hsp_quest_bytes). HSP_EINVAL: also
 * an address or a stride that is no multiple of a number's size; HSP_ELIMIT: batch times n_queries above 65535.
 * Multiples of 16 bytes, and channels to match, are read fastest. Scores are sums of max(q M, q m) in float32 in an
 * order of their own: off by at most (channels + 3) 2^-24 of the sum of magnitudes. */

/* Take in keys of n_new tokens an entry. keys: rows of [n_kv_heads][head_dim] dtype, key_stride bytes from row to row.
 * A page is begun anew when its first token comes in. */
HSP_API int hsp_gpu_quest_update(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, void *stats,
                                 uint64_t request_stride, const void *keys, uint64_t key_stride, int32_t n_new,
                                 void *stream);

/* Bytes of scratch that either selection needs. */
HSP_API int hsp_gpu_quest_scratch(const hsp_quest_shape *shape, int32_t max_batch, int32_t n_queries,
                                  int32_t max_tokens, size_t *bytes_out);

/* One selection per query, of k tokens; and one per query and KV head. The newest token is that of the query. */
HSP_API int hsp_gpu_quest_select(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, const void *stats,
                                 uint64_t request_stride, const float *query, int32_t k, int32_t *selection_out,
                                 void *scratch, void *stream);
HSP_API int hsp_gpu_quest_select_groups(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, const void *stats,
                                        uint64_t request_stride, const float *query, int32_t k, int32_t *selection_out,
                                        void *scratch, void *stream);

/* ----------------------------------------------------------------------------------------------------------- DSA --
 * Packed keys are equal to those of hsp_dsa_pack_keys to the byte, but for which NaN a NaN is. Rows, row_stride and
 * request_stride are multiples of 4 (HSP_EINVAL); rows that lie one directly after the other, with base and
 * request_stride multiples of 16, are read fastest. head_dim 128 with up to 256 heads runs on tensor cores, best with
 * multiples of 32 heads up to 32 and of 64 beyond; other shapes are right, and slow.
 *
 * Scores: e4m3 is made f16 first, which is exact, as are the products. With S the sum over heads of |w_j| times the sum
 * over channels of |q_c k_c|, times the key's scale, a score is off by at most (head_dim + heads + 16) 2^-23 S; the
 * tensor cores cut where the CPU rounds. */

/* Transform and pack keys of n_new tokens an entry. keys: float [batch][n_new][head_dim] after rope. */
HSP_API int hsp_gpu_dsa_pack_keys(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const float *keys,
                                  int32_t n_new, void *rows, uint64_t request_stride, uint64_t row_stride,
                                  void *stream);

/* Bytes of a packed query; a batch has n_queries an entry, one after the other, from an address on that is a multiple
 * of 16. */
HSP_API int hsp_gpu_dsa_query_bytes(const hsp_dsa_shape *shape, size_t *bytes_out);

/* Transform and pack queries. query: float [batch][n_queries][n_heads][head_dim] after rope; weights: float
 * [batch][n_queries][n_heads]. query_out: for the functions below and this version of the library only. */
HSP_API int hsp_gpu_dsa_pack_query(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const float *query,
                                   const float *weights, void *query_out, void *stream);

/* scores_out: float [batch][n_queries][max_tokens]; of each query those of the tokens it sees are written, the rest is
 * left alone. Never -0. */
HSP_API int hsp_gpu_dsa_scores(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const void *rows,
                               uint64_t request_stride, uint64_t row_stride, const void *query, float *scores_out,
                               void *stream);

/* Bytes of scratch that hsp_gpu_dsa_select needs: 4 for a token of a query. */
HSP_API int hsp_gpu_dsa_scratch(const hsp_dsa_shape *shape, int32_t max_batch, int32_t n_queries, int32_t max_tokens,
                                size_t *bytes_out);

HSP_API int hsp_gpu_dsa_select(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const void *rows,
                               uint64_t request_stride, uint64_t row_stride, const void *query, int32_t k,
                               int32_t *selection_out, void *scratch, void *stream);

/* ----------------------------------------------------------------------------------------------------------- NSA --
 * Compressed row i of a slot is at compressed_keys + slot * request_stride + i * key_stride; making and storing it is
 * the engine's. HSP_EINVAL: also an address or a stride that is no multiple of a number's size; HSP_ELIMIT: batch times
 * n_queries above 65535. Rows of bf16 at addresses that are multiples of 16, with key_dim 64, 128, 192 or 256, run on
 * tensor cores; the query counts there as three bf16 numbers a channel, which hold all of its 24 bits, and an infinite
 * channel of a key gives NaN. Scores are off by at most (key_dim + 8) 2^-22 of the sum of |q_c k_c| times scale. */

/* Bytes of scratch that hsp_gpu_nsa_select needs: about 4 for each head and compressed row of a query. */
HSP_API int hsp_gpu_nsa_scratch(const hsp_nsa_shape *shape, int32_t max_batch, int32_t n_queries, int32_t max_tokens,
                                size_t *bytes_out);

/* selection_out: int32 [batch][n_queries][n_kv_heads][n_blocks * block_tokens]. */
HSP_API int hsp_gpu_nsa_select(const hsp_nsa_shape *shape, const hsp_gpu_batch *batch, const void *compressed_keys,
                               uint64_t request_stride, uint64_t key_stride, const float *query, int32_t *selection_out,
                               void *scratch, void *stream);

/* selection_out: int32 [batch][n_queries][window]. */
HSP_API int hsp_gpu_nsa_window(const hsp_gpu_batch *batch, int32_t window, int32_t *selection_out, void *stream);

/* Everything is float [batch][n_queries] of what hsp_nsa_gate takes; out may be one of the others. Padding is left
 * alone. */
HSP_API int hsp_gpu_nsa_gate(const hsp_gpu_batch *batch, int32_t n_heads, int32_t value_dim, const float *gate_logits,
                             const float *compressed, const float *selected, const float *window, float *out,
                             void *stream);

/* -------------------------------------------------------------------------------------- block-sparse attention --
 * Index keys are read as NSA's compressed keys are. selection_out: int32
 * [batch][n_queries][n_groups][n_blocks * block_tokens]. */
HSP_API int hsp_gpu_block_scratch(const hsp_block_shape *shape, int32_t max_batch, int32_t n_queries,
                                  int32_t max_tokens, size_t *bytes_out);
HSP_API int hsp_gpu_block_select(const hsp_block_shape *shape, const hsp_gpu_batch *batch, const void *index_keys,
                                 uint64_t request_stride, uint64_t key_stride, const float *index_query,
                                 int32_t *selection_out, void *scratch, void *stream);

/* --------------------------------------------------------------------------------------------- exact selection --
 * Keys are read as NSA's compressed keys are. selection_out: int32 [batch][n_queries][n_selections][k]. */
HSP_API int hsp_gpu_exact_scratch(const hsp_exact_shape *shape, int32_t max_batch, int32_t n_queries,
                                  int32_t max_tokens, size_t *bytes_out);
HSP_API int hsp_gpu_exact_select(const hsp_exact_shape *shape, const hsp_gpu_batch *batch, const void *keys,
                                 uint64_t request_stride, uint64_t key_stride, const float *query, int32_t k,
                                 int32_t *selection_out, void *scratch, void *stream);

/* ------------------------------------------------------------------------------------------------------- attention --
 * As hsp_gqa_tiles and hsp_gqa_combine, and hsp_mla_attend, for every query of the batch, in one launch. row_ids: int32
 * [batch][n_queries][n_rows], as hsp_swap_in writes them; planes: views with device memory, as hsp_rows gives them. Of
 * the batch, n_tokens and max_tokens are not read: ids say what there is. A padding entry's ids are not read.
 *
 * The matrix products are those of tensor cores: the query and the weights of rows are rounded to the number format of
 * the rows (bf16 in MLA, which also rounds unpacked e4m3 times its scale; that is exact where scales are powers of
 * two), sums are float32. A weight errs by up to 2^-9 of itself in bf16, 2^-12 in fp16, where one below 2^-25 of its
 * head's greatest is 0 too. Infinities and NaN behave as on the CPU; a query beyond the range of fp16 is infinite.
 *
 * n_chunks: 1, 2, 4 or 8. The tiles of a query are cut into so many runs as equal as can be, each run taken by one
 * block of a cluster, and the results of the runs are added in ascending order. It is part of the shape: results in
 * bits depend on it. In MLA a block has an SM to itself, and a cluster's SMs lie together, so that of an H200's 132 SMs
 * more than 60 clusters of 2 are at work at a time, but fewer than 32 of 4 and fewer than 16 of 8; what finds no place
 * doubles the time. Where batch * n_queries * (n_heads / 64, rounded up) is up to 12, 8 suits; up to 24, 4; up to 64
 * (a batch of 32 with 128 heads), 2; beyond, 1.
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
