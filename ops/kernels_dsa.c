/* SPDX-License-Identifier: Apache-2.0
 *
 * The lightning indexer of DSA, compiled once per instruction set as kernels.c is; HSP_DSA_KERNELS names the table.
 *
 * Heads lie side by side in the lanes and channels are added one after another, so that a dot product ends without a
 * sum over lanes. How many keys and heads go together is a matter of registers alone: every sum has its own order.
 */
#include "kernels.h"

#include "lanes.h"

/* Keys and groups of sixteen heads that go together: as many sums as there are registers, less what feeds them. */
#if defined(__AVX512F__)
enum { KEYS = 8, GROUPS = 2 };
#elif defined(__AVX2__)
enum { KEYS = 4, GROUPS = 1 };
#else
enum { KEYS = 2, GROUPS = 1 };
#endif

#define LANES_BYTES (HSP_LANES * sizeof(float))
#define CHANNELS    256 /* of a key that are unpacked at once; more come in several goes */

/* ------------------------------------------------------------------------------------------------------ hadamard -- */

/* Signs of the transform of sixteen numbers: odd are 1, 2, 4, 7, 8, 11, 13 and 14. */
#define SIGN(i) (0x6996 >> (i)&1 ? -1.0f : 1.0f)
#define ROW(i)                                                                                                         \
    {                                                                                                                  \
        SIGN(i & 0), SIGN(i & 1), SIGN(i & 2), SIGN(i & 3), SIGN(i & 4), SIGN(i & 5), SIGN(i & 6), SIGN(i & 7),        \
            SIGN(i & 8), SIGN(i & 9), SIGN(i & 10), SIGN(i & 11), SIGN(i & 12), SIGN(i & 13), SIGN(i & 14),            \
            SIGN(i & 15)                                                                                               \
    }
static const float signs[HSP_LANES][HSP_LANES] = {ROW(0), ROW(1), ROW(2),  ROW(3),  ROW(4),  ROW(5),  ROW(6),  ROW(7),
                                                  ROW(8), ROW(9), ROW(10), ROW(11), ROW(12), ROW(13), ROW(14), ROW(15)};

/* Sixteen numbers as a product with the matrix: more sums than butterflies need, but no number changes its lane. */
HSP_INLINE void transform_sixteen(float *x) {
    lanes sum = lanes_all(0.0f);
    for (int i = 0; i < HSP_LANES; i++)
        sum = lanes_add(sum, lanes_mul(lanes_all(x[i]), lanes_load_f32(signs[i])));
    lanes_store_f32(x, sum);
}

static float dsa_hadamard(float *row, size_t dim, float scale) {
    for (size_t c = 0; c < dim; c += HSP_LANES)
        transform_sixteen(row + c);
    for (size_t span = HSP_LANES; span < dim; span *= 2)
        for (size_t block = 0; block < dim; block += 2 * span)
            for (size_t c = block; c < block + span; c += HSP_LANES) {
                lanes a = lanes_load_f32(row + c), b = lanes_load_f32(row + c + span);
                lanes_store_f32(row + c, lanes_add(a, b));
                lanes_store_f32(row + c + span, lanes_sub(a, b));
            }
    lanes top = lanes_all(0.0f);
    for (size_t c = 0; c < dim; c += HSP_LANES) {
        lanes x = lanes_mul(lanes_load_f32(row + c), lanes_all(scale));
        lanes_store_f32(row + c, x);
        top = lanes_max(top, lanes_max(x, lanes_sub(lanes_all(0.0f), x)));
    }
    return lanes_top(top);
}

/* -------------------------------------------------------------------------------------------------------- scores -- */

/* Keys that are being scored: channels first .. first + n - 1 of them, and the sums of each over the heads so far. */
struct some_keys {
    int32_t n_keys; /* at most KEYS; what the rest holds is worked on, and dropped */
    const char *rows;
    size_t first, n;
    float channels[KEYS][CHANNELS];
    lanes sum[KEYS];
};

HSP_INLINE void unpack_channels(int dtype, size_t stride, struct some_keys *keys) {
    for (int32_t k = 0; k < keys->n_keys; k++) {
        const char *row = keys->rows + (size_t)k * stride + keys->first * dtype_bytes(dtype);
        for (size_t c = 0; c < keys->n; c += HSP_LANES)
            lanes_store_f32(keys->channels[k] + c, lanes_load(dtype, row + c * dtype_bytes(dtype)));
    }
}

/* dot[g][k] goes on by the channels at hand; `query` is at the first of them, [dim][16 heads] a group. */
HSP_INLINE void add_products(int groups, const char *query, size_t dim, const struct some_keys *keys,
                             lanes dot[GROUPS][KEYS]) {
    lanes sum[GROUPS][KEYS];
    for (int g = 0; g < groups; g++)
        for (int k = 0; k < KEYS; k++)
            sum[g][k] = dot[g][k];
    for (size_t c = 0; c < keys->n; c++)
        for (int g = 0; g < groups; g++) {
            lanes q = lanes_load_f32(query + ((size_t)g * dim + c) * LANES_BYTES);
            for (int k = 0; k < KEYS; k++)
                sum[g][k] = lanes_add(sum[g][k], lanes_mul(q, lanes_all(keys->channels[k][c])));
        }
    for (int g = 0; g < groups; g++)
        for (int k = 0; k < KEYS; k++)
            dot[g][k] = sum[g][k];
}

/* Not inlined, so that nothing else competes for the registers of these loops. */
static __attribute__((noinline)) void add_products_of_all(const char *query, size_t dim, const struct some_keys *keys,
                                                          lanes dot[GROUPS][KEYS]) {
    add_products(GROUPS, query, dim, keys, dot);
}

static __attribute__((noinline)) void add_products_of_one(const char *query, size_t dim, const struct some_keys *keys,
                                                          lanes dot[GROUPS][KEYS]) {
    add_products(1, query, dim, keys, dot);
}

/* The sum over heads of relu(dot) * weight goes on by one group. NaN stays NaN. Lanes without a head hold zeros, and
 * NaN only where all heads do. */
HSP_INLINE lanes add_heads(lanes sum, lanes dot, const char *weights) {
    return lanes_add(sum, lanes_mul(lanes_max(lanes_all(0.0f), dot), lanes_load_f32(weights)));
}

/* `groups` groups of heads from `group` on. */
HSP_INLINE void score_groups(int dtype, const struct hsp__dsa_item *item, size_t group, size_t groups,
                             struct some_keys *keys) {
    size_t dim = (size_t)item->head_dim;
    const char *query = item->query + group * dim * LANES_BYTES;
    const char *weights = item->query + (hsp__dsa_groups(item->n_heads) * dim + group) * LANES_BYTES;
    lanes dot[GROUPS][KEYS];
    for (int g = 0; g < GROUPS; g++)
        for (int k = 0; k < KEYS; k++)
            dot[g][k] = lanes_all(0.0f);
    for (keys->first = 0; keys->first < dim; keys->first += CHANNELS) {
        keys->n = dim - keys->first < CHANNELS ? dim - keys->first : CHANNELS;
        if (group == 0 || dim > CHANNELS)
            unpack_channels(dtype, item->key_stride, keys);
        (groups == 1 ? add_products_of_one : add_products_of_all)(query + keys->first * LANES_BYTES, dim, keys, dot);
    }
    for (size_t g = 0; g < groups; g++)
        for (int k = 0; k < KEYS; k++)
            keys->sum[k] = add_heads(keys->sum[k], dot[g][k], weights + g * LANES_BYTES);
}

HSP_INLINE void score_keys(int dtype, const struct hsp__dsa_item *item, struct some_keys *keys, float *scores_out) {
    size_t groups = hsp__dsa_groups(item->n_heads), step;
    for (int k = 0; k < KEYS; k++)
        keys->sum[k] = lanes_all(0.0f);
    for (size_t group = 0; group < groups; group += step) {
        step = groups - group < GROUPS ? 1 : GROUPS;
        score_groups(dtype, item, group, step, keys);
    }
    for (int32_t k = 0; k < keys->n_keys; k++) {
        float scale = 1.0f;
        if (dtype == HSP_E4M3)
            memcpy(&scale, keys->rows + (size_t)k * item->key_stride + (size_t)item->head_dim, sizeof scale);
        scores_out[k] = scale * lanes_sum(keys->sum[k]) + 0.0f; /* -0, which would rank below 0, becomes 0 */
    }
}

HSP_INLINE void dsa_scores(int dtype, const struct hsp__dsa_item *item) {
    struct some_keys keys;
    memset(keys.channels, 0, sizeof keys.channels);
    for (int32_t k = 0; k < item->n_keys; k += KEYS) {
        keys.rows = item->keys + (size_t)k * item->key_stride;
        keys.n_keys = item->n_keys - k < KEYS ? item->n_keys - k : KEYS;
        score_keys(dtype, item, &keys, item->scores_out + k);
    }
}

static void dsa_scores_bf16(const struct hsp__dsa_item *item) {
    dsa_scores(HSP_BF16, item);
}

static void dsa_scores_e4m3(const struct hsp__dsa_item *item) {
    dsa_scores(HSP_E4M3, item);
}

extern const struct hsp__dsa_kernels HSP_DSA_KERNELS;
const struct hsp__dsa_kernels HSP_DSA_KERNELS = {
    .hadamard = dsa_hadamard,
    .scores = {NULL, NULL, dsa_scores_bf16, dsa_scores_e4m3},
};
