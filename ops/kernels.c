/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled once per instruction set; HSP_KERNELS names the table. A function that takes `dtype` or `heads` as an int is
 * inlined with constants, so that its loops have no branches on them and sums stay in registers.
 */
#include "kernels.h"

#include "dots.h"

#include <float.h>
#include <math.h>

#define AHEAD 8 /* rows a prefetch runs before its use */

/* --------------------------------------------------------------------------------------------------- conversion -- */

HSP_INLINE void convert(int from, const void *in, int to, void *out, size_t n) {
    const char *source = in;
    char *sink = out;
    size_t whole = n / HSP_LANES * HSP_LANES;
    for (size_t i = 0; i < whole; i += HSP_LANES)
        lanes_store(to, sink + i * dtype_bytes(to), lanes_load(from, source + i * dtype_bytes(from)));
    if (whole < n)
        lanes_store_part(to, sink + whole * dtype_bytes(to),
                         lanes_load_part(from, source + whole * dtype_bytes(from), n - whole), n - whole);
}

/* To nearest even; what would round to 480 or more has no number but NaN, and 464 rounds to 448. Below 2^-6 the sum
 * with 2^14 rounds at the last place of a subnormal, 2^-9; above, integers round. */
static uint8_t e4m3_of(float x) {
    uint32_t bits, code;
    float magnitude = fabsf(x), shifted = magnitude + 0x1p14f;
    memcpy(&bits, &magnitude, sizeof bits);
    memcpy(&code, &shifted, sizeof code);
    code -= 0x46800000;
    if (!(magnitude < 0x1p-6f))
        code = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
    if (!(magnitude <= 464.0f))
        code = 0x7f;
    return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

static void pack_e4m3(const float *values, size_t n, void *packed_out) {
    uint8_t *packed = packed_out;
    for (size_t i = 0; i < n; i++)
        packed[i] = e4m3_of(values[i]);
}

static void unpack_e4m3(const void *packed, size_t n, float *values_out) {
    convert(HSP_E4M3, packed, HSP_F32, values_out, n);
}

/* -------------------------------------------------------------------------------------------------------- quest -- */

HSP_INLINE void quest_page(int dtype, const char *keys, size_t key_stride, int32_t n_rows, int32_t channels, int fresh,
                           char *minima, char *maxima) {
    for (size_t c = 0; c < (size_t)channels; c += HSP_LANES) {
        size_t n = (size_t)channels - c, at = c * dtype_bytes(dtype);
        lanes low = lanes_load_upto(dtype, fresh ? keys + at : minima + at, n);
        lanes high = lanes_load_upto(dtype, fresh ? keys + at : maxima + at, n);
        for (int32_t row = fresh ? 1 : 0; row < n_rows; row++) {
            lanes key = lanes_load_upto(dtype, keys + (size_t)row * key_stride + at, n);
            low = lanes_min(key, low);
            high = lanes_max(key, high);
        }
        lanes_store_upto(dtype, minima + at, low, n);
        lanes_store_upto(dtype, maxima + at, high, n);
    }
}

/* ---------------------------------------------------------------------------------------------------- attention -- */

/* Addresses of the rows of a tile that are not masked, in order. */
struct tile_rows {
    int32_t n;
    const char *key[HSP_ATTENTION_TILE], *value[HSP_ATTENTION_TILE];
};

HSP_INLINE const char *row_address(const hsp_plane_view *plane, int32_t id) {
    if (plane->rows_per_block == 1) /* spares a division */
        return (const char *)plane->base + (size_t)id * plane->block_stride;
    return (const char *)plane->base + (size_t)(id / plane->rows_per_block) * plane->block_stride +
           (size_t)(id % plane->rows_per_block) * plane->row_stride;
}

static void find_rows(const struct hsp__gqa_item *item, struct tile_rows *rows) {
    rows->n = 0;
    for (int32_t i = 0; i < item->n_rows; i++) {
        if (item->row_ids[i] < 0)
            continue;
        rows->key[rows->n] = row_address(&item->key, item->row_ids[i]);
        rows->value[rows->n] = row_address(&item->value, item->row_ids[i]);
        rows->n++;
    }
}

HSP_INLINE void prefetch(const char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i);
}

/* scores[h][i] = scale * q(h) . K(i). Rows lie scattered, so those to come are fetched early, values included. */
HSP_INLINE void score_rows(int dtype, int heads, const struct hsp__gqa_item *item, const float *query,
                           const struct tile_rows *rows, float scores[HEADS][HSP_ATTENTION_TILE]) {
    size_t dim = (size_t)item->key_dim;
    for (int32_t i = 0; i < rows->n; i++) {
        float dots[HEADS];
        prefetch(rows->key[i + AHEAD < rows->n ? i + AHEAD : i], dim * dtype_bytes(dtype));
        prefetch(rows->value[i], (size_t)item->value_dim * dtype_bytes(dtype));
        dot_heads(dtype, heads, rows->key[i], query, dim, dots);
        for (int h = 0; h < heads; h++)
            scores[h][i] = item->scale * dots[h];
    }
}

/* Turn n scores into exponentials, in place; leave their maximum and sum in the partial. */
static void weigh_scores(float *scores, int32_t n, float *partial) {
    int32_t padded = (n + HSP_LANES - 1) / HSP_LANES * HSP_LANES;
    for (int32_t i = n; i < padded; i++)
        scores[i] = -INFINITY; /* whose exponential is 0 */
    lanes top = lanes_load_f32(scores);
    for (int32_t i = HSP_LANES; i < padded; i += HSP_LANES)
        top = lanes_max(top, lanes_load_f32(scores + i));
    /* Where every score is -infinity the sum must be 0, as of a tile that is masked, and not NaN. */
    partial[HSP__MAXIMUM] = lanes_top(top) < -FLT_MAX ? -FLT_MAX : lanes_top(top);
    lanes sum = lanes_all(0.0f);
    for (int32_t i = 0; i < padded; i += HSP_LANES) {
        lanes weight = lanes_exp(lanes_sub(lanes_load_f32(scores + i), lanes_all(partial[HSP__MAXIMUM])));
        lanes_store_f32(scores + i, weight);
        sum = lanes_add(sum, weight);
    }
    partial[HSP__SUM] = lanes_sum(sum);
}

/* `width` times 16 channels from c on of the weighted values of `heads` heads; n < 16: only so many channels. */
HSP_INLINE void sum_values(int dtype, int heads, int width, size_t n, const struct tile_rows *rows, size_t c,
                           float weights[HEADS][HSP_ATTENTION_TILE], float *partial, size_t partial_floats) {
    lanes sum[HEADS][HSP_LANES_SIDE_BY_SIDE];
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < width; w++)
            sum[h][w] = lanes_all(0.0f);
    for (int32_t i = 0; i < rows->n; i++) {
        const char *value = rows->value[i] + c * dtype_bytes(dtype);
        for (int w = 0; w < width; w++) {
            lanes v = lanes_load_upto(dtype, value + (size_t)w * HSP_LANES * dtype_bytes(dtype), n);
            for (int h = 0; h < heads; h++)
                sum[h][w] = lanes_add(sum[h][w], lanes_mul(v, lanes_all(weights[h][i])));
        }
    }
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < width; w++)
            lanes_store_f32(partial + (size_t)h * partial_floats + HSP__VALUES + c + (size_t)w * HSP_LANES, sum[h][w]);
}

HSP_INLINE void gqa_heads(int dtype, int heads, const struct hsp__gqa_item *item, const struct tile_rows *rows,
                          const float *query, float *partial) {
    float weights[HEADS][HSP_ATTENTION_TILE];
    size_t dim = (size_t)item->value_dim, step = HSP_LANES_SIDE_BY_SIDE * HSP_LANES, c = 0;
    size_t floats = hsp__partial_floats(item->value_dim);
    score_rows(dtype, heads, item, query, rows, weights);
    for (int h = 0; h < heads; h++)
        weigh_scores(weights[h], rows->n, partial + (size_t)h * floats);
    for (; c + step <= dim; c += step)
        sum_values(dtype, heads, HSP_LANES_SIDE_BY_SIDE, HSP_LANES, rows, c, weights, partial, floats);
    for (; c + HSP_LANES <= dim; c += HSP_LANES)
        sum_values(dtype, heads, 1, HSP_LANES, rows, c, weights, partial, floats);
    if (c < dim)
        sum_values(dtype, heads, 1, dim - c, rows, c, weights, partial, floats);
}

HSP_INLINE void gqa_tile(int dtype, const struct hsp__gqa_item *item) {
    struct tile_rows rows;
    size_t floats = hsp__partial_floats(item->value_dim);
    find_rows(item, &rows);
    for (int32_t h = 0; h < item->n_heads; h += HEADS) {
        const float *query = item->query + (size_t)h * (size_t)item->key_dim;
        float *partial = item->partial_out + (size_t)h * floats;
        int32_t heads = item->n_heads - h < HEADS ? item->n_heads - h : HEADS;
        if (rows.n == 0)
            for (int32_t i = 0; i < heads; i++)
                partial[(size_t)i * floats + HSP__SUM] = 0.0f;
        else if (heads == 1)
            gqa_heads(dtype, 1, item, &rows, query, partial);
        else if (heads == 2)
            gqa_heads(dtype, 2, item, &rows, query, partial);
        else if (heads == 3)
            gqa_heads(dtype, 3, item, &rows, query, partial);
        else
            gqa_heads(dtype, HEADS, item, &rows, query, partial);
    }
}

/* Up to sixteen tiles that saw a row, so that one exponential serves them all. */
struct live_tiles {
    int32_t n;
    const float *partial[HSP_LANES];
    float weight[HSP_LANES];
};

/* The next live tiles from *tile on, weighted against the maximum `top` of all tiles. */
static void next_live(const float *partials, size_t stride, int32_t n_tiles, float top, int32_t *tile,
                      struct live_tiles *live) {
    float maximum[HSP_LANES] = {0};
    live->n = 0;
    for (; *tile < n_tiles && live->n < HSP_LANES; ++*tile) {
        const float *partial = partials + (size_t)*tile * stride;
        if (partial[HSP__SUM] == 0.0f)
            continue;
        maximum[live->n] = partial[HSP__MAXIMUM];
        live->partial[live->n++] = partial;
    }
    lanes_store_f32(live->weight, lanes_exp(lanes_sub(lanes_load_f32(maximum), lanes_all(top))));
}

static void gqa_combine(const float *partials, size_t stride, int32_t n_tiles, int32_t value_dim, float *out,
                        float *lse_out) {
    struct live_tiles live;
    float top = -INFINITY, total = 0.0f;
    size_t dim = (size_t)value_dim;
    for (int32_t t = 0; t < n_tiles; t++) {
        const float *partial = partials + (size_t)t * stride;
        if (partial[HSP__SUM] != 0.0f && partial[HSP__MAXIMUM] > top)
            top = partial[HSP__MAXIMUM];
    }
    memset(out, 0, dim * sizeof *out);
    for (int32_t t = 0; t < n_tiles;) {
        next_live(partials, stride, n_tiles, top, &t, &live);
        for (int32_t i = 0; i < live.n; i++)
            total += live.weight[i] * live.partial[i][HSP__SUM];
        for (size_t c = 0; c < dim; c += HSP_LANES) {
            lanes sum = lanes_load_upto(HSP_F32, out + c, dim - c);
            for (int32_t i = 0; i < live.n; i++)
                sum = lanes_add(
                    sum, lanes_mul(lanes_all(live.weight[i]), lanes_load_f32(live.partial[i] + HSP__VALUES + c)));
            lanes_store_upto(HSP_F32, out + c, sum, dim - c);
        }
    }
    for (size_t c = 0; c < dim && total != 0.0f; c += HSP_LANES)
        lanes_store_upto(HSP_F32, out + c, lanes_div(lanes_load_upto(HSP_F32, out + c, dim - c), lanes_all(total)),
                         dim - c);
    if (lse_out)
        *lse_out = total != 0.0f ? top + logf(total) : -INFINITY;
}

/* -------------------------------------------------------------------------------------------------------- table -- */

#define FOR_DTYPE(suffix, dtype)                                                                                       \
    static void pack_##suffix(const float *values, size_t n, void *packed_out) {                                       \
        convert(HSP_F32, values, dtype, packed_out, n);                                                                \
    }                                                                                                                  \
    static void unpack_##suffix(const void *packed, size_t n, float *values_out) {                                     \
        convert(dtype, packed, HSP_F32, values_out, n);                                                                \
    }                                                                                                                  \
    static void gqa_tile_##suffix(const struct hsp__gqa_item *item) {                                                  \
        gqa_tile(dtype, item);                                                                                         \
    }                                                                                                                  \
    static void quest_page_##suffix(const void *keys, size_t key_stride, int32_t n_rows, int32_t channels, int fresh,  \
                                    void *minima, void *maxima) {                                                      \
        quest_page(dtype, keys, key_stride, n_rows, channels, fresh, minima, maxima);                                  \
    }

FOR_DTYPE(f32, HSP_F32)
FOR_DTYPE(f16, HSP_F16)
FOR_DTYPE(bf16, HSP_BF16)

#define PER_DTYPE(name)                                                                                                \
    { name##_f32, name##_f16, name##_bf16 }

extern const struct hsp__dsa_kernels HSP_DSA_KERNELS;
extern const struct hsp__select_kernels HSP_SELECT_KERNELS;
extern const struct hsp__kernels HSP_KERNELS;
const struct hsp__kernels HSP_KERNELS = {
#if defined(__AVX512F__)
    .name = "avx512",
#elif defined(__AVX2__)
    .name = "avx2",
#else
    .name = "baseline",
#endif
    .dsa = &HSP_DSA_KERNELS,
    .select = &HSP_SELECT_KERNELS,
    .pack = {pack_f32, pack_f16, pack_bf16, pack_e4m3},
    .unpack = {unpack_f32, unpack_f16, unpack_bf16, unpack_e4m3},
    .gqa_tile = PER_DTYPE(gqa_tile),
    .gqa_combine = gqa_combine,
    .quest_page = PER_DTYPE(quest_page),
};
