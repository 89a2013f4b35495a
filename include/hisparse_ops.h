/* SPDX-License-Identifier: Apache-2.0
 *
 * libhisparse_ops: selectors and sparse attention that read rows through row ids. A second, optional library: nothing
 * in hisparse.h needs it, and an engine with kernels of its own does not either.
 *
 * Selectors see keys and queries and return tokens; they never see where rows live. Attention sees row ids and a view
 * of the rows; it never sees tokens. Both are deterministic: the same inputs give the same bits whatever the number of
 * threads and the instruction set, so a step over cached rows and a step over rows kept whole can be compared bit for
 * bit. (NaN is always NaN, but which of its bit patterns is not promised.)
 *
 * All pointers are ordinary memory; rows, statistics and packed numbers may have any alignment, scratch that of float.
 * Functions return HSP_OK or a negative hsp_status (hisparse.h); on an error nothing was written. Every function that
 * takes a shape returns HSP_EINVAL for one that is malformed (struct_size, dtype, a count below 1, n_heads no multiple
 * of n_kv_heads) and HSP_ELIMIT for heads or channels above 16384; HSP_EINVAL also stands for a NULL that is needed and
 * a negative count. Any thread may call any function at any time; scratch belongs to one call at a time.
 *
 * Work that is large enough is spread over the threads OpenMP gives the caller.
 */
#ifndef HISPARSE_OPS_H
#define HISPARSE_OPS_H

#include "hisparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number formats of rows. Arithmetic is float32. HSP_E4M3 is one byte (OCP 8-bit floating point, 2023: bias 7, largest
 * 448, no infinity), used with scales beside it; Quest and GQA do not take it. */
enum hsp_dtype { HSP_F32 = 0, HSP_F16 = 1, HSP_BF16 = 2, HSP_E4M3 = 3 };

/* Instruction set the kernels of this library use on this machine: "avx512", "avx2" or "baseline"; static. */
HSP_API const char *hsp_ops_target(void);

/* Convert n numbers between float32 and `dtype`, rounding to nearest even; subnormals are kept, too great a number
 * becomes infinity (in HSP_E4M3, which has none, NaN), NaN stays NaN. HSP_EINVAL: no such dtype. */
HSP_API int hsp_pack(int32_t dtype, const float *values, size_t n, void *packed_out);
HSP_API int hsp_unpack(int32_t dtype, const void *packed, size_t n, float *values_out);

/* --------------------------------------------------------------------------------------------------------- Quest --
 * Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference" (ICML 2024). A page of tokens
 * keeps the per-channel minimum m and maximum M of its keys; score(page) = sum over channels of max(q_i M_i, q_i m_i),
 * an upper bound of q . k over the page. One selection per request and layer: the queries of a KV group are averaged
 * and the scores summed over KV heads, as SGLang does. */
typedef struct hsp_quest_shape {
    size_t struct_size; /* sizeof(hsp_quest_shape) */
    int32_t n_heads;    /* query heads, a multiple of n_kv_heads */
    int32_t n_kv_heads;
    int32_t head_dim;    /* channels of a key */
    int32_t page_tokens; /* tokens of a Quest page; 16 in the paper */
    int32_t dtype;       /* of keys and of the statistics: enum hsp_dtype */
} hsp_quest_shape;

/* Bytes of the statistics of one request and layer: per page n_kv_heads * head_dim minima, then as many maxima. */
HSP_API int hsp_quest_bytes(const hsp_quest_shape *shape, int32_t max_tokens, size_t *bytes_out);

/* Take in the keys (after rope) of tokens first .. first + n_tokens - 1. keys: n_tokens rows of [n_kv_heads][head_dim]
 * dtype, key_stride bytes from row to row. A page is begun anew when its first token comes in, so after a truncation
 * feed the keys again from the start of the page that was cut. HSP_ELIMIT: tokens beyond INT32_MAX. */
HSP_API int hsp_quest_update(const hsp_quest_shape *shape, void *stats, const void *keys, size_t key_stride,
                             int32_t first, int32_t n_tokens);

/* Bytes of scratch that hsp_quest_select needs for n_tokens. */
HSP_API int hsp_quest_scratch(const hsp_quest_shape *shape, int32_t n_tokens, size_t *bytes_out);

/* Choose the k / page_tokens best pages of the first n_tokens tokens; the page of the newest token is always in; ties
 * go to the lower page; a page whose score is NaN ranks below all others. query: float [n_heads][head_dim] after rope.
 * selection_out: int32 [k], tokens of the chosen pages in ascending order, then -1. HSP_EINVAL: k is not a positive
 * multiple of page_tokens. */
HSP_API int hsp_quest_select(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens, const float *query,
                             int32_t k, int32_t *selection_out, void *scratch);

/* ------------------------------------------------------------------------------------------------- GQA attention --
 * out(h) = softmax(scale * q(h) . K) V over the rows named, query heads h sharing KV head h * n_kv_heads / n_heads.
 * Rows are taken in tiles of HSP_ATTENTION_TILE in the order given; every tile makes its own maximum, sum and weighted
 * values, and tiles are combined in ascending order, so the result does not depend on where rows lie, on threads, or on
 * the order in which tiles were computed. */
#define HSP_ATTENTION_TILE 64

typedef struct hsp_gqa_shape {
    size_t struct_size; /* sizeof(hsp_gqa_shape) */
    int32_t n_heads;    /* query heads, a multiple of n_kv_heads */
    int32_t n_kv_heads;
    int32_t key_dim;   /* channels of a key; a K row is [n_kv_heads][key_dim] */
    int32_t value_dim; /* channels of a value; a V row is [n_kv_heads][value_dim] */
    int32_t dtype;     /* of K and V rows: enum hsp_dtype */
    float scale;       /* usually key_dim^-0.5 */
} hsp_gqa_shape;

/* Bytes of scratch for n_rows rows, all tiles of a query together. */
HSP_API int hsp_gqa_scratch(const hsp_gqa_shape *shape, int32_t n_rows, size_t *bytes_out);

/* Tiles first_tile .. first_tile + ceil(n_rows / HSP_ATTENTION_TILE) - 1 of one query token, from the rows of row_ids.
 * keys, values: views of the planes (hsp_rows). query: float [n_heads][key_dim]. row_ids: int32 [n_rows]; -1 is masked
 * and its row not read; a row named twice counts twice. scratch: of all tiles of the query; a call writes its own
 * tiles. Only the last call for a query may have a row count that is no multiple of HSP_ATTENTION_TILE. HSP_EINVAL:
 * also a view without base, or whose rows are shorter than the shape's; HSP_ELIMIT: first_tile * HSP_ATTENTION_TILE +
 * n_rows above INT32_MAX. */
HSP_API int hsp_gqa_tiles(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values,
                          const float *query, const int32_t *row_ids, int32_t n_rows, int32_t first_tile,
                          void *scratch);

/* Combine tiles 0 .. n_tiles - 1. out: float [n_heads][value_dim], zeros where every row was masked. lse_out: float
 * [n_heads], log of the sum of exponentials (-inf where all masked), or NULL. */
HSP_API int hsp_gqa_combine(const hsp_gqa_shape *shape, const void *scratch, int32_t n_tiles, float *out,
                            float *lse_out);

#ifdef __cplusplus
}
#endif

#endif
