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
 * All pointers are ordinary memory; rows, statistics and packed numbers may have any alignment; scratch and what is
 * declared as float have that of float. Outputs must not overlap inputs, unless a comment says so. Any negative row id
 * is masked like -1. In selectors a score that is infinite counts as the greatest float, in attention -infinity
 * weighs nothing and +infinity gives NaN. A weight below e^-87 of its head's greatest is 0. In selectors a head whose
 * query is NaN ranks all alike, so that the lowest tokens are chosen. Functions return HSP_OK or a negative hsp_status
 * (hisparse.h); on an error nothing was written. Every function that takes a shape returns HSP_EINVAL for one that is
 * malformed (struct_size, dtype, a count below 1, n_heads no multiple of n_kv_heads) and HSP_ELIMIT for heads or
 * channels above 16384; HSP_EINVAL also stands for a NULL that is needed and a negative count. Any thread may call any
 * function at any time; scratch belongs to one call at a time.
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

/* Scores of all pages of the first n_tokens tokens, by which hsp_quest_select ranks them. query: float
 * [n_heads][head_dim] after rope. scores_out: float [n_tokens / page_tokens, rounded up]. scratch: as for
 * hsp_quest_select. */
HSP_API int hsp_quest_scores(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens, const float *query,
                             float *scores_out, void *scratch);

/* Choose the k / page_tokens best pages of the first n_tokens tokens; the page of the newest token is always in; ties
 * go to the lower page; a page whose score is NaN ranks below all others. query: float [n_heads][head_dim] after rope.
 * selection_out: int32 [k], tokens of the chosen pages in ascending order, then -1. HSP_EINVAL: k is not a positive
 * multiple of page_tokens. */
HSP_API int hsp_quest_select(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens, const float *query,
                             int32_t k, int32_t *selection_out, void *scratch);

/* The same, one selection per KV head: a page's score is that of the KV head alone, with the mean query of its heads.
 * selection_out: int32 [n_kv_heads][k]. scratch: as for hsp_quest_select. */
HSP_API int hsp_quest_select_groups(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens,
                                    const float *query, int32_t k, int32_t *selection_out, void *scratch);

/* ----------------------------------------------------------------------------------------------------------- DSA --
 * The lightning indexer of DeepSeek sparse attention (DeepSeek-V3.2, 2025, equation 1; GLM-5.x), after the inference
 * code published with the model (Indexer in inference/model.py):
 *
 *   score(t, s) = sum over index heads j of w(t, j) * relu(q(t, j) . k(s)),  w(t, j) = weight(t, j) * (H d)^-0.5
 *
 * with H heads of d channels and one key a token; queries and keys come after rope and first go through a Hadamard
 * transform: channel i of the result is d^-0.5 * sum over c of (-1)^popcount(i & c) * x_c. Formats of a key:
 *
 * HSP_E4M3   e4m3 [d], then the fp32 scale: 132 bytes at d = 128. The scale is the least power of two with
 *            max(amax, 1e-4) / scale <= 448, found exactly; the query is packed the same way, a scale a head, and that
 *            goes into w. (The published kernel multiplies with a rounded 1/448, which at an amax of exactly
 *            448 * 2^n gives twice the scale; and its transform rounds to bf16 before packing. Here it stays float32.)
 * HSP_BF16   bf16 [d]: 256 bytes at d = 128; the query is rounded to bf16 too, and there are no scales.
 *
 * Every dot product adds its channels in ascending order. Where a key, or the query or weight of any head, has a
 * number that is not finite, or gets one in the transform, the score is NaN. */
typedef struct hsp_dsa_shape {
    size_t struct_size; /* sizeof(hsp_dsa_shape) */
    int32_t n_heads;    /* index heads: 64 in DeepSeek-V3.2, 32 in GLM-5.x; multiples of 32 run best */
    int32_t head_dim;   /* a power of two from 16 on; 128 in these models */
    int32_t dtype;      /* of keys and query: HSP_BF16 or HSP_E4M3 */
    int32_t reserved;   /* 0 */
} hsp_dsa_shape;

/* Bytes of the packed key of one token. */
HSP_API int hsp_dsa_key_bytes(const hsp_dsa_shape *shape, size_t *bytes_out);

/* Transform and pack keys. keys: n_tokens rows of float [head_dim] after rope, key_stride bytes from row to row.
 * rows_out: n_tokens packed keys, row_stride bytes from one to the next; what lies between them is left alone.
 * HSP_EINVAL: also a stride that is less than a row. */
HSP_API int hsp_dsa_pack_keys(const hsp_dsa_shape *shape, const float *keys, size_t key_stride, int32_t n_tokens,
                              void *rows_out, size_t row_stride);

/* Bytes of a packed query. */
HSP_API int hsp_dsa_query_bytes(const hsp_dsa_shape *shape, size_t *bytes_out);

/* Transform and pack the query of one token, once for all keys. query: float [n_heads][head_dim] after rope. weights:
 * float [n_heads], as projected from the hidden state: neither H^-0.5 nor d^-0.5 is in them yet. query_out: for the
 * functions below and this version of the library only. */
HSP_API int hsp_dsa_pack_query(const hsp_dsa_shape *shape, const float *query, const float *weights, void *query_out);

/* Scores of tokens first .. first + n_tokens - 1. rows: packed keys, token 0 first, row_stride bytes from one to the
 * next. query: packed. scores_out: float [n_tokens], of token `first` first; never -0. HSP_EINVAL: also a stride that
 * is less than a row; HSP_ELIMIT: tokens beyond INT32_MAX. */
HSP_API int hsp_dsa_scores(const hsp_dsa_shape *shape, const void *rows, size_t row_stride, int32_t first,
                           int32_t n_tokens, const void *query, float *scores_out);

/* Bytes of scratch that hsp_dsa_select needs for n_tokens: 4 a token. */
HSP_API int hsp_dsa_scratch(const hsp_dsa_shape *shape, int32_t n_tokens, size_t *bytes_out);

/* Choose the k tokens of the first n_tokens with the greatest scores; ties go to the lower token; NaN ranks below all
 * others. k: 2048 in these models. selection_out: int32 [k], ascending, then -1 where there are fewer tokens. The
 * newest token has no place of its own: it competes like the rest. */
HSP_API int hsp_dsa_select(const hsp_dsa_shape *shape, const void *rows, size_t row_stride, int32_t n_tokens,
                           const void *query, int32_t k, int32_t *selection_out, void *scratch);

/* ----------------------------------------------------------------------------------------------------------- NSA --
 * Yuan et al., "Native Sparse Attention" (arXiv:2502.11089). Attention has three branches: keys and values compressed
 * from overlapping spans of compress_tokens tokens, one span every compress_stride tokens; the tokens of the n_blocks
 * blocks of block_tokens tokens that matter most; and a window of the newest tokens. Their outputs are added, each
 * times a gate.
 *
 * Compression is learned (in the paper an MLP over the span, with position encodings inside it), so the engine makes
 * the compressed keys and values; compressed row i stands for tokens i * compress_stride .. + compress_tokens - 1 and
 * is made once its last token is there. Branches are attended with hsp_gqa_tiles: compressed rows are rows 0 .. n - 1
 * of planes of the engine's; a selection differs from KV head to KV head, so it takes one call per KV head, with a
 * shape of one KV head and views whose base is moved to it.
 *
 * importance(block) = sum over the query heads of a KV head, and over the pieces of compress_stride tokens of the
 * block, of softmax(scale * q . compressed keys) of every compressed row the piece is part of: equation 9, read as the
 * overlap it stands for (with indices from 0 its letter would miss a row that overlaps). For 32, 16, 64, block j weighs
 * rows 4j - 1 .. 4j + 3 with 1, 2, 2, 2, 1. A compressed row whose score is NaN is left out of the softmax of its head.
 */
typedef struct hsp_nsa_shape {
    size_t struct_size; /* sizeof(hsp_nsa_shape) */
    int32_t n_heads;    /* query heads, a multiple of n_kv_heads */
    int32_t n_kv_heads;
    int32_t key_dim;         /* channels of a compressed key; a row is [n_kv_heads][key_dim] */
    int32_t dtype;           /* of compressed keys: enum hsp_dtype, not HSP_E4M3 */
    int32_t compress_tokens; /* l in the paper, 32; a multiple of compress_stride */
    int32_t compress_stride; /* d, 16 */
    int32_t block_tokens;    /* l', 64; a multiple of compress_stride */
    int32_t n_blocks;        /* n, 16: blocks chosen per KV head, those always in included */
    int32_t n_first;         /* blocks at the beginning that are always in, 1 */
    int32_t n_local;         /* newest blocks that are always in, 2; n_first + n_local is at most n_blocks */
    float scale;             /* usually key_dim^-0.5 */
} hsp_nsa_shape;

/* Compressed rows that n_tokens tokens have: 0 below compress_tokens, then one more every compress_stride tokens. */
HSP_API int hsp_nsa_compressed(const hsp_nsa_shape *shape, int32_t n_tokens, int32_t *n_compressed_out);

/* Bytes of scratch that hsp_nsa_select needs for n_tokens. */
HSP_API int hsp_nsa_scratch(const hsp_nsa_shape *shape, int32_t n_tokens, size_t *bytes_out);

/* Choose n_blocks blocks of the first n_tokens tokens, the query being that of the newest; all blocks where there are
 * no more. The last block may be incomplete and is chosen like any other; ties go to the lower block, so where no row
 * is compressed yet the first blocks are taken; a block with a NaN importance ranks below all others. compressed_keys:
 * as many rows as hsp_nsa_compressed says, key_stride bytes from row to row; not read, and may be NULL, where that is
 * none. query: float [n_heads][key_dim], as the compressed branch uses it. selection_out: int32 [n_kv_heads][n_blocks *
 * block_tokens], tokens of the chosen blocks in ascending order, then -1. HSP_EINVAL: also key_stride shorter than a
 * row; HSP_ELIMIT: n_blocks * block_tokens above INT32_MAX. */
HSP_API int hsp_nsa_select(const hsp_nsa_shape *shape, const void *compressed_keys, size_t key_stride, int32_t n_tokens,
                           const float *query, int32_t *selection_out, void *scratch);

/* The newest `window` (512 in the paper) of n_tokens tokens. selection_out: int32 [window], ascending, then -1. */
HSP_API int hsp_nsa_window(int32_t window, int32_t n_tokens, int32_t *selection_out);

/* out = sigmoid(g0) * compressed + sigmoid(g1) * selected + sigmoid(g2) * window, head by head, added from left to
 * right. gate_logits: float [n_heads][3], what the gates' projection gives. compressed, selected, window, out: float
 * [n_heads][value_dim]; out may be one of the others. HSP_ELIMIT: n_heads or value_dim above 16384. */
HSP_API int hsp_nsa_gate(int32_t n_heads, int32_t value_dim, const float *gate_logits, const float *compressed,
                         const float *selected, const float *window, float *out);

/* -------------------------------------------------------------------------------------- block-sparse attention --
 * MiniMax Sparse Attention (Lai et al., arXiv:2606.13392; MiniMax-M3). score(block) = the greatest scale * q . k over
 * the index keys of its tokens and the index heads of the KV group (in MiniMax-M3 one index head per group, and one
 * index key that all groups share); a score that is NaN counts as -infinity. Index queries and keys are the engine's,
 * after norm and rope. */
typedef struct hsp_block_shape {
    size_t struct_size;   /* sizeof(hsp_block_shape) */
    int32_t n_heads;      /* index query heads, a multiple of n_groups and of n_key_heads; 4 in MiniMax-M3 */
    int32_t n_groups;     /* KV groups; head h is of group h * n_groups / n_heads; 4 */
    int32_t n_key_heads;  /* index keys of a token; head h reads key h * n_key_heads / n_heads; 1 */
    int32_t key_dim;      /* channels of an index key, 128; a row is [n_key_heads][key_dim] */
    int32_t dtype;        /* of index keys: enum hsp_dtype, not HSP_E4M3 */
    int32_t block_tokens; /* 128 */
    int32_t n_blocks;     /* blocks chosen per group, those always in included; 16 */
    int32_t n_first;      /* blocks at the beginning that are always in, 0 */
    int32_t n_local;      /* newest blocks that are always in, at least 1; n_first + n_local is at most n_blocks */
    float scale;          /* above 0; usually key_dim^-0.5. The choice does not depend on it but for rounding */
} hsp_block_shape;

/* Bytes of scratch that hsp_block_select needs for n_tokens. */
HSP_API int hsp_block_scratch(const hsp_block_shape *shape, int32_t n_tokens, size_t *bytes_out);

/* Choose n_blocks blocks of the first n_tokens tokens per group; ties go to the lower block. index_keys: n_tokens rows,
 * key_stride bytes from row to row. index_query: float [n_heads][key_dim]. selection_out: int32
 * [n_groups][n_blocks * block_tokens], tokens of the chosen blocks in ascending order, then -1. HSP_EINVAL: also
 * key_stride shorter than a row; HSP_ELIMIT: n_blocks * block_tokens above INT32_MAX. */
HSP_API int hsp_block_select(const hsp_block_shape *shape, const void *index_keys, size_t key_stride, int32_t n_tokens,
                             const float *index_query, int32_t *selection_out, void *scratch);

/* --------------------------------------------------------------------------------------------- exact selection --
 * A yardstick for selectors, as dear as attention itself: the tokens with the greatest attention probability,
 * softmax(scale * q . K) over all tokens, in float, added over the query heads that share the selection. A probability
 * below e^-87 of its head's greatest is 0. A token whose score is NaN is left out of the softmax of that head and ranks
 * below all others. */
typedef struct hsp_exact_shape {
    size_t struct_size; /* sizeof(hsp_exact_shape) */
    int32_t n_heads;    /* query heads, a multiple of n_kv_heads */
    int32_t n_kv_heads;
    int32_t key_dim;      /* channels of a key; a row is [n_kv_heads][key_dim] */
    int32_t dtype;        /* of keys: enum hsp_dtype, not HSP_E4M3 */
    int32_t n_selections; /* 1: one for all heads; n_kv_heads: one per KV head */
    float scale;          /* usually key_dim^-0.5 */
} hsp_exact_shape;

/* Bytes of scratch that hsp_exact_select needs for n_tokens: about (n_heads + n_selections) * n_tokens floats. */
HSP_API int hsp_exact_scratch(const hsp_exact_shape *shape, int32_t n_tokens, size_t *bytes_out);

/* The k best of n_tokens tokens per selection, ties to the lower token. keys: n_tokens rows, after rope, key_stride
 * bytes from row to row. query: float [n_heads][key_dim]. selection_out: int32 [n_selections][k], ascending, then -1.
 * HSP_EINVAL: also k below 1, or key_stride shorter than a row. */
HSP_API int hsp_exact_select(const hsp_exact_shape *shape, const void *keys, size_t key_stride, int32_t n_tokens,
                             const float *query, int32_t k, int32_t *selection_out, void *scratch);

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

/* Combine tiles 0 .. n_tiles - 1. sink: float [n_heads], or NULL for none; exp(sink) joins the denominator of its head
 * and nothing joins the sum, so -inf has no effect and +inf gives zeros. out: float [n_heads][value_dim], zeros where
 * every row was masked. lse_out: float [n_heads], log of the sum of exponentials without the sink (-inf where all
 * masked), or NULL. */
HSP_API int hsp_gqa_combine(const hsp_gqa_shape *shape, const void *scratch, int32_t n_tiles, const float *sink,
                            float *out, float *lse_out);

/* ------------------------------------------------------------------------------------------------- MLA attention --
 * DeepSeek's latent attention with the query absorbed: all heads share one key a row, of latent_dim channels and then
 * rope_dim, and the value is part of the key. Rows are made float32 and then attended to as above, in tiles of
 * HSP_ATTENTION_TILE in the order given. Row formats, with their bytes as published:
 *
 * HSP_MLA_BF16  One plane: bf16 [latent_dim + rope_dim]. 1152 bytes at 512 + 64. The value is the latent.
 * HSP_MLA_FP8   One plane: e4m3 [latent_dim], fp32 scale [latent_dim / 128], bf16 [rope_dim]. 656 bytes at 512 + 64
 *               (DeepSeek-V3.2, after FlashMLA's README). The value is the latent.
 * HSP_MLA_V4    Two planes. 0: e4m3 [latent_dim], bf16 [rope_dim]; 576 bytes at 448 + 64. 1: ue8m0 scale
 *               [latent_dim / 64], a byte e for 2^(e - 127), 255 for NaN, padded to a multiple of 8; 8 bytes. The value
 *               is the whole key, 512 channels, rope included (MODEL1_FP8Sparse in FlashMLA's tests/quant.py, d_v 512;
 *               DeepSeek-V4's inference code hands one `kv` to its sparse_attn as key and value and turns the last
 *               rope_dim channels of the result back afterwards: that rotation is the caller's). V4 uses a sink.
 *
 * FlashMLA's kernels round unpacked numbers to bf16; here they stay float32, which is the same wherever scales are
 * powers of two. */
enum hsp_mla_format { HSP_MLA_BF16 = 0, HSP_MLA_FP8 = 1, HSP_MLA_V4 = 2 };

typedef struct hsp_mla_shape {
    size_t struct_size; /* sizeof(hsp_mla_shape) */
    int32_t n_heads;
    int32_t latent_dim; /* in HSP_MLA_FP8 a multiple of 128, in HSP_MLA_V4 of 64 */
    int32_t rope_dim;
    int32_t format; /* enum hsp_mla_format */
    float scale;
    int32_t reserved; /* 0 */
} hsp_mla_shape;

/* Write rows into a cache's planes, or anywhere a view describes. rows: float [n_rows][latent_dim + rope_dim], for row
 * ids first .. first + n_rows - 1. planes: hsp_plane_view [1], of HSP_MLA_V4 [2], as hsp_rows gives them. Scales are
 * the least power of two with max(amax, 1e-4) / scale <= 448 (the rule of DeepSeek's code, with which reading is exact
 * even in bf16; fp32 scales that are no powers of two are read as well). What is not finite becomes NaN, or stays what
 * it is in bf16. HSP_ELIMIT: row ids beyond INT32_MAX. */
HSP_API int hsp_mla_pack_rows(const hsp_mla_shape *shape, const float *rows, int32_t first, int32_t n_rows,
                              const hsp_plane_view *planes);

/* Bytes of scratch that hsp_mla_attend needs for n_rows rows, whatever the number of queries. */
HSP_API int hsp_mla_scratch(const hsp_mla_shape *shape, int32_t n_rows, size_t *bytes_out);

/* Attend to the rows named, for every query of a step. query: float [n_queries][n_heads][latent_dim + rope_dim].
 * row_ids: int32 [n_queries][n_rows]; -1 is masked and its row not read; a row named twice counts twice. sink: float
 * [n_heads] or NULL, as above; all queries share it. out: float [n_queries][n_heads][value channels], zeros where every
 * row was masked. lse_out: float [n_queries][n_heads] or NULL, without the sink, as in FlashMLA; -inf where all masked
 * (FlashMLA: +inf). HSP_EINVAL: also a view without base, or whose rows are shorter than the format's. */
HSP_API int hsp_mla_attend(const hsp_mla_shape *shape, const hsp_plane_view *planes, const float *query,
                           const int32_t *row_ids, int32_t n_queries, int32_t n_rows, const float *sink, float *out,
                           float *lse_out, void *scratch);

#ifdef __cplusplus
}
#endif

#endif
