/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled once per instruction set; HSP_SELECT_KERNELS names the table. As in kernels.c, `dtype` and `heads` are
 * constants after inlining.
 */
#include "kernels_select.h"

#include "dots.h"

#include <float.h>
#include <math.h>

#define AHEAD 8 /* keys a prefetch runs before its use; rows of several KV heads are a stride the machine misses */

/* ------------------------------------------------------------------------------------------------------- scores -- */

/* + 0: a product that underflows may be -0, which would rank below 0. An infinite score would make the softmax of its
 * head NaN; it counts as the greatest number. NaN stays. */
HSP_INLINE float bounded(float score) {
    return score > FLT_MAX ? FLT_MAX : score < -FLT_MAX ? -FLT_MAX : score + 0.0f;
}

HSP_INLINE void score_heads(int dtype, int heads, const struct hsp__score_item *item, int32_t first_head) {
    size_t dim = (size_t)item->key_dim;
    const float *query = item->query + (size_t)first_head * dim;
    float *scores = item->scores_out + (size_t)first_head * item->score_stride;
    for (int32_t i = 0; i < item->n_keys; i++) {
        const char *key = (const char *)item->keys + (size_t)i * item->key_stride;
        const char *next = i + AHEAD < item->n_keys ? key + AHEAD * item->key_stride : key;
        for (size_t at = 0; at < dim * dtype_bytes(dtype); at += 64)
            __builtin_prefetch(next + at);
        float dots[HEADS];
        dot_heads(dtype, heads, key, query, dim, dots);
        for (int h = 0; h < heads; h++)
            scores[(size_t)h * item->score_stride + (size_t)i] = bounded(item->scale * dots[h]);
    }
    for (int h = 0; h < heads; h++)
        for (size_t i = (size_t)item->n_keys; i < hsp__padded(item->n_keys); i++)
            scores[(size_t)h * item->score_stride + i] = -INFINITY;
}

HSP_INLINE void scores(int dtype, const struct hsp__score_item *item) {
    for (int32_t h = 0; h < item->n_heads; h += HEADS) {
        int32_t heads = item->n_heads - h < HEADS ? item->n_heads - h : HEADS;
        if (heads == 1)
            score_heads(dtype, 1, item, h);
        else if (heads == 2)
            score_heads(dtype, 2, item, h);
        else if (heads == 3)
            score_heads(dtype, 3, item, h);
        else
            score_heads(dtype, HEADS, item, h);
    }
}

HSP_INLINE void page_scores(int dtype, const float *query, const char *pages, size_t half, size_t page_stride,
                            int32_t n_pages, int32_t channels, float *scores_out) {
    size_t dim = (size_t)channels;
    for (int32_t page = 0; page < n_pages; page++) {
        lanes sum = lanes_all(0.0f);
        for (size_t c = 0; c < dim; c += HSP_LANES) {
            const char *minima = pages + (size_t)page * page_stride + c * dtype_bytes(dtype);
            lanes q = lanes_load_upto(HSP_F32, query + c, dim - c);
            lanes below = lanes_mul(q, lanes_load_upto(dtype, minima, dim - c));
            lanes above = lanes_mul(q, lanes_load_upto(dtype, minima + half, dim - c));
            sum = lanes_add(sum, lanes_max(above, below));
        }
        scores_out[page] = lanes_sum(sum);
    }
}

/* ------------------------------------------------------------------------------------------------------ softmax -- */

static float top(const float *scores, size_t n) {
    lanes most = lanes_all(-INFINITY);
    for (size_t i = 0; i < n; i += HSP_LANES)
        most = lanes_max(lanes_load_f32(scores + i), most); /* in this order a NaN leaves `most` as it is */
    return lanes_top(most);
}

static float exponentials(float *scores, size_t n, float top) {
    lanes sum = lanes_all(0.0f), zero = lanes_all(0.0f);
    for (size_t i = 0; i < n; i += HSP_LANES) {
        lanes weight = lanes_exp(lanes_sub(lanes_load_f32(scores + i), lanes_all(top)));
        lanes_store_f32(scores + i, weight);
        sum = lanes_add(sum, lanes_max(weight, zero)); /* 0 for NaN */
    }
    return lanes_sum(sum);
}

static void add_quotients(const float *weights, size_t n, float total, float *sums) {
    for (size_t i = 0; i < n; i += HSP_LANES) {
        lanes share = lanes_div(lanes_load_f32(weights + i), lanes_all(total));
        lanes_store_f32(sums + i, lanes_add(lanes_load_f32(sums + i), share));
    }
}

/* --------------------------------------------------------------------------------------------------------- gate -- */

/* With e = e^-|x|, which cannot overflow: 1 / (1 + e), and for x < 0 e times that. */
static void sigmoids(const float x[3], float out[3]) {
    float folded[HSP_LANES] = {0}, e[HSP_LANES];
    for (int i = 0; i < 3; i++)
        folded[i] = -fabsf(x[i]);
    lanes_store_f32(e, lanes_exp(lanes_load_f32(folded)));
    for (int i = 0; i < 3; i++)
        out[i] = (x[i] < 0.0f ? e[i] : 1.0f) / (1.0f + e[i]);
}

static void gate(const float logits[3], const float *const branches[3], int32_t value_dim, float *out) {
    float gates[3];
    size_t dim = (size_t)value_dim;
    sigmoids(logits, gates);
    for (size_t c = 0; c < dim; c += HSP_LANES) {
        lanes sum = lanes_mul(lanes_all(gates[0]), lanes_load_upto(HSP_F32, branches[0] + c, dim - c));
        for (int b = 1; b < 3; b++)
            sum = lanes_add(sum, lanes_mul(lanes_all(gates[b]), lanes_load_upto(HSP_F32, branches[b] + c, dim - c)));
        if (dim - c < HSP_LANES)
            lanes_store_part(HSP_F32, out + c, sum, dim - c);
        else
            lanes_store_f32(out + c, sum);
    }
}

/* -------------------------------------------------------------------------------------------------------- table -- */

#define FOR_DTYPE(suffix, dtype)                                                                                       \
    static void scores_##suffix(const struct hsp__score_item *item) {                                                  \
        scores(dtype, item);                                                                                           \
    }                                                                                                                  \
    static void page_scores_##suffix(const float *query, const void *pages, size_t half, size_t page_stride,           \
                                     int32_t n_pages, int32_t channels, float *scores_out) {                           \
        page_scores(dtype, query, pages, half, page_stride, n_pages, channels, scores_out);                            \
    }

FOR_DTYPE(f32, HSP_F32)
FOR_DTYPE(f16, HSP_F16)
FOR_DTYPE(bf16, HSP_BF16)

#define PER_DTYPE(name)                                                                                                \
    { name##_f32, name##_f16, name##_bf16 }

extern const struct hsp__select_kernels HSP_SELECT_KERNELS;
const struct hsp__select_kernels HSP_SELECT_KERNELS = {
    .scores = PER_DTYPE(scores),
    .top = top,
    .exponentials = exponentials,
    .add_quotients = add_quotients,
    .page_scores = PER_DTYPE(page_scores),
    .gate = gate,
};
