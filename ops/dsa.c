/* SPDX-License-Identifier: Apache-2.0
 *
 * The lightning indexer of DeepSeek sparse attention: packed keys and queries, scores, and the choice of tokens.
 */
#include "kernels.h"
#include "shapes.h"
#include "top.h"

#include <math.h>
#include <string.h>

/* Products below which waking threads costs more than it saves: some ten microseconds of one core. */
#define ENOUGH_WORK (1 << 19)

#define TOKENS_TOGETHER 64 /* tokens one thread takes at a time */

#define TOO_GREAT 0x1.ffp127f /* from here on bf16 rounds to infinity */

static size_t key_bytes(const hsp_dsa_shape *shape) {
    size_t dim = (size_t)shape->head_dim;
    return shape->dtype == HSP_E4M3 ? dim + sizeof(float) : dim * 2;
}

static size_t query_floats(const hsp_dsa_shape *shape) {
    return hsp__dsa_groups(shape->n_heads) * 16 * ((size_t)shape->head_dim + 1);
}

int hsp_dsa_key_bytes(const hsp_dsa_shape *shape, size_t *bytes_out) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (!bytes_out)
        return HSP_EINVAL;
    *bytes_out = key_bytes(shape);
    return HSP_OK;
}

int hsp_dsa_query_bytes(const hsp_dsa_shape *shape, size_t *bytes_out) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (!bytes_out)
        return HSP_EINVAL;
    *bytes_out = query_floats(shape) * sizeof(float);
    return HSP_OK;
}

/* Per token a score that becomes a rank in place. */
int hsp_dsa_scratch(const hsp_dsa_shape *shape, int32_t n_tokens, size_t *bytes_out) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    *bytes_out = (size_t)n_tokens * sizeof(float);
    return HSP_OK;
}

/* ------------------------------------------------------------------------------------------------------- packing -- */

/* The least power of two that brings a magnitude to 448 or below, exactly; 448 is 0.875 * 2^9. */
static float scale_for(float greatest) {
    int exponent;
    float fraction = frexpf(greatest > 1e-4f ? greatest : 1e-4f, &exponent);
    return ldexpf(1.0f, exponent - (fraction > 0.875f ? 8 : 9));
}

/* Transform `row`, which is lost, and pack its channels. Returns what the packed numbers are to be multiplied with. A
 * row with an infinity becomes NaN as a whole; one with a NaN keeps what is beside it, and its scores are NaN. */
static float pack_row(const hsp_dsa_shape *shape, float *row, void *packed_out) {
    const struct hsp__kernels *kernels = hsp__ops();
    size_t dim = (size_t)shape->head_dim;
    float greatest = kernels->dsa->hadamard(row, dim, (float)(1.0 / sqrt((double)dim)));
    float scale = greatest >= TOO_GREAT ? NAN : shape->dtype == HSP_E4M3 ? scale_for(greatest) : 1.0f;
    float inverse = 1.0f / scale; /* powers of two: as exact as dividing */
    for (size_t c = 0; c < dim; c++)
        row[c] *= inverse;
    kernels->pack[shape->dtype](row, dim, packed_out);
    return scale;
}

int hsp_dsa_pack_keys(const hsp_dsa_shape *shape, const float *keys, size_t key_stride, int32_t n_tokens,
                      void *rows_out, size_t row_stride) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    size_t dim = (size_t)shape->head_dim;
    if (n_tokens < 0 || (n_tokens && (!keys || !rows_out)))
        return HSP_EINVAL;
    if (n_tokens && (key_stride < dim * sizeof(float) || row_stride < key_bytes(shape)))
        return HSP_EINVAL;
    int64_t work = (int64_t)n_tokens * shape->head_dim * 16; /* a channel costs about as much as sixteen products */
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t token = 0; token < n_tokens; token++) {
        float row[HSP__MAX_DIM];
        char *packed = (char *)rows_out + (size_t)token * row_stride;
        memcpy(row, (const char *)keys + (size_t)token * key_stride, dim * sizeof *row);
        float scale = pack_row(shape, row, packed);
        if (shape->dtype == HSP_E4M3)
            memcpy(packed + dim, &scale, sizeof scale);
    }
    return HSP_OK;
}

/* Heads go side by side, sixteen of a group, as the kernel reads them. */
int hsp_dsa_pack_query(const hsp_dsa_shape *shape, const float *query, const float *weights, void *query_out) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (!query || !weights || !query_out)
        return HSP_EINVAL;
    const struct hsp__kernels *kernels = hsp__ops();
    size_t dim = (size_t)shape->head_dim, heads = (size_t)shape->n_heads, groups = hsp__dsa_groups(shape->n_heads);
    float row[HSP__MAX_DIM], of_heads = (float)(1.0 / sqrt((double)heads)), of_dim = (float)(1.0 / sqrt((double)dim));
    char packed[2 * HSP__MAX_DIM], *out = query_out, *weights_out = out + groups * dim * 16 * sizeof(float);
    memset(query_out, 0, query_floats(shape) * sizeof(float));
    for (size_t h = 0; h < heads; h++) {
        memcpy(row, query + h * dim, dim * sizeof *row);
        float weight = weights[h] * of_heads * pack_row(shape, row, packed) * of_dim;
        kernels->unpack[shape->dtype](packed, dim, row);
        for (size_t c = 0; c < dim; c++)
            memcpy(out + ((h / 16 * dim + c) * 16 + h % 16) * sizeof(float), row + c, sizeof(float));
        memcpy(weights_out + h * sizeof(float), &weight, sizeof weight);
    }
    return HSP_OK;
}

/* -------------------------------------------------------------------------------------------------------- scores -- */

/* Scores of n tokens, as they are or, to choose from, as ranks in their place. */
static void score_tokens(const hsp_dsa_shape *shape, const char *rows, size_t row_stride, int32_t n_tokens,
                         const void *query, int as_ranks, float *scores_out) {
    const struct hsp__kernels *kernels = hsp__ops();
    int64_t work = (int64_t)n_tokens * shape->n_heads * shape->head_dim;
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t block = 0; block <= (n_tokens - 1) / TOKENS_TOGETHER; block++) {
        int32_t first = block * TOKENS_TOGETHER, left = n_tokens - first;
        int32_t n = left < TOKENS_TOGETHER ? left : TOKENS_TOGETHER;
        float *scores = scores_out + first;
        kernels->dsa->scores[shape->dtype](&(struct hsp__dsa_item){
            .n_heads = shape->n_heads,
            .head_dim = shape->head_dim,
            .n_keys = n,
            .query = query,
            .keys = rows + (size_t)first * row_stride,
            .key_stride = row_stride,
            .scores_out = scores,
        });
        for (int32_t i = 0; as_ranks && i < n; i++)
            ((uint32_t *)(void *)scores)[i] = hsp__rank_of(scores[i]);
    }
}

static int check_rows(const hsp_dsa_shape *shape, const void *rows, size_t row_stride, const void *query) {
    return rows && query && row_stride >= key_bytes(shape) ? HSP_OK : HSP_EINVAL;
}

int hsp_dsa_scores(const hsp_dsa_shape *shape, const void *rows, size_t row_stride, int32_t first, int32_t n_tokens,
                   const void *query, float *scores_out) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (first < 0 || n_tokens < 0 || (n_tokens && (!scores_out || check_rows(shape, rows, row_stride, query))))
        return HSP_EINVAL;
    if (n_tokens > INT32_MAX - first)
        return HSP_ELIMIT;
    if (n_tokens)
        score_tokens(shape, (const char *)rows + (size_t)first * row_stride, row_stride, n_tokens, query, 0,
                     scores_out);
    return HSP_OK;
}

/* Tokens of the k greatest ranks, ascending; k < n_tokens. */
static void emit_tokens(const uint32_t *ranks, int32_t n_tokens, int32_t k, int32_t *selection_out) {
    int32_t n_equal, n_out = 0;
    uint32_t least = hsp__kth_rank(ranks, n_tokens, k, &n_equal);
    for (int32_t token = 0; n_out < k; token++)
        if (ranks[token] > least || (ranks[token] == least && n_equal-- > 0))
            selection_out[n_out++] = token;
}

int hsp_dsa_select(const hsp_dsa_shape *shape, const void *rows, size_t row_stride, int32_t n_tokens, const void *query,
                   int32_t k, int32_t *selection_out, void *scratch) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (n_tokens < 0 || k < 1 || !selection_out)
        return HSP_EINVAL;
    if (n_tokens && (!scratch || check_rows(shape, rows, row_stride, query)))
        return HSP_EINVAL;
    if (n_tokens > k) {
        score_tokens(shape, rows, row_stride, n_tokens, query, 1, scratch);
        emit_tokens(scratch, n_tokens, k, selection_out);
        return HSP_OK;
    }
    for (int32_t i = 0; i < k; i++) /* all of them, and no score is needed */
        selection_out[i] = i < n_tokens ? i : -1;
    return HSP_OK;
}
