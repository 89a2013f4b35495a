/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen floats as four vectors of the compiler's own kind, which every target has some form of (SSE2, NEON). See
 * lanes.h for what each function means.
 */
#ifndef HSP_LANES_PORTABLE_H
#define HSP_LANES_PORTABLE_H

#include <stdint.h>
#include <string.h>

#define HSP_LANES_SIDE_BY_SIDE 1 /* lanes per head a kernel keeps in registers; there are 16 or 32 */

typedef float floats4 __attribute__((vector_size(16)));
typedef int32_t ints4 __attribute__((vector_size(16)));
typedef uint32_t bits4 __attribute__((vector_size(16)));
typedef uint16_t halves4 __attribute__((vector_size(8)));
typedef uint8_t bytes4 __attribute__((vector_size(4)));

typedef struct lanes {
    floats4 a, b, c, d;
} lanes;

/* Casts between vectors keep the bits. */
static inline floats4 floats4_choose(ints4 condition, floats4 yes, floats4 no) {
    return (floats4)((condition & (ints4)yes) | (~condition & (ints4)no));
}

static inline bits4 bits4_choose(ints4 condition, bits4 yes, bits4 no) {
    return ((bits4)condition & yes) | (~(bits4)condition & no);
}

static inline bits4 bits4_load(const char *p) {
    halves4 half;
    memcpy(&half, p, sizeof half);
    return __builtin_convertvector(half, bits4);
}

static inline void bits4_store(char *p, bits4 bits) {
    halves4 half = __builtin_convertvector(bits, halves4);
    memcpy(p, &half, sizeof half);
}

/* Exponent and mantissa move into place; the factor 2^112 moves the bias, and makes subnormals right on the way. */
static inline floats4 floats4_from_f16(bits4 half) {
    bits4 magnitude = (half & 0x7fff) << 13;
    bits4 bits = (bits4)((floats4)magnitude * 0x1p112f);
    bits |= (bits4)((ints4)magnitude >= 0x0f800000) & 0x7f800000;
    bits |= (bits4)((ints4)magnitude > 0x0f800000) & 0x00400000;
    return (floats4)(bits | (half & 0x8000) << 16);
}

/* Below 2^-14 the addition of 0.5 rounds at the last place of a float16 subnormal; above, integers round, and run over
 * into infinity by themselves. */
static inline bits4 floats4_to_f16(floats4 x) {
    bits4 magnitude = (bits4)x & 0x7fffffff;
    bits4 small = (bits4)((floats4)magnitude + 0.5f) - 0x3f000000;
    bits4 normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    bits4 infinite = (magnitude & 0) + 0x7c00;
    bits4 half = bits4_choose((ints4)magnitude < 0x38800000, small, normal);
    half = bits4_choose((ints4)magnitude >= 0x47800000, infinite, half);
    half = bits4_choose((ints4)magnitude > 0x7f800000, 0x7e00 | (magnitude >> 13 & 0x3ff), half);
    return half | ((bits4)x >> 16 & 0x8000);
}

/* As from float16, with a bias that 2^120 moves, no infinity, and one NaN of each sign. */
static inline floats4 floats4_from_e4m3(const char *p) {
    bytes4 packed;
    memcpy(&packed, p, sizeof packed);
    bits4 wide = __builtin_convertvector(packed, bits4), magnitude = wide & 0x7f;
    bits4 value = (bits4)((floats4)(magnitude << 20) * 0x1p120f), nan = (magnitude & 0) + 0x7fc00000;
    return (floats4)(bits4_choose((ints4)(magnitude == 0x7f), nan, value) | (wide & 0x80) << 24);
}

static inline bits4 floats4_to_bf16(floats4 x) {
    bits4 bits = (bits4)x;
    bits4 rounded = bits + 0x7fff + (bits >> 16 & 1);
    return bits4_choose(x != x, bits | 0x400000, rounded) >> 16;
}

static inline lanes lanes_all(float x) {
    floats4 all = {x, x, x, x};
    return (lanes){all, all, all, all};
}

static inline lanes lanes_load_f32(const void *p) {
    lanes r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline lanes lanes_load_f16(const void *p) {
    const char *half = p;
    return (lanes){floats4_from_f16(bits4_load(half)), floats4_from_f16(bits4_load(half + 8)),
                   floats4_from_f16(bits4_load(half + 16)), floats4_from_f16(bits4_load(half + 24))};
}

static inline lanes lanes_load_bf16(const void *p) {
    const char *half = p;
    return (lanes){(floats4)(bits4_load(half) << 16), (floats4)(bits4_load(half + 8) << 16),
                   (floats4)(bits4_load(half + 16) << 16), (floats4)(bits4_load(half + 24) << 16)};
}

static inline lanes lanes_load_e4m3(const void *p) {
    const char *x = p;
    return (lanes){floats4_from_e4m3(x), floats4_from_e4m3(x + 4), floats4_from_e4m3(x + 8), floats4_from_e4m3(x + 12)};
}

static inline void lanes_store_f32(void *p, lanes x) {
    memcpy(p, &x, sizeof x);
}

static inline void lanes_store_f16(void *p, lanes x) {
    char *half = p;
    bits4_store(half, floats4_to_f16(x.a));
    bits4_store(half + 8, floats4_to_f16(x.b));
    bits4_store(half + 16, floats4_to_f16(x.c));
    bits4_store(half + 24, floats4_to_f16(x.d));
}

static inline void lanes_store_bf16(void *p, lanes x) {
    char *half = p;
    bits4_store(half, floats4_to_bf16(x.a));
    bits4_store(half + 8, floats4_to_bf16(x.b));
    bits4_store(half + 16, floats4_to_bf16(x.c));
    bits4_store(half + 24, floats4_to_bf16(x.d));
}

static inline lanes lanes_add(lanes x, lanes y) {
    return (lanes){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}
static inline lanes lanes_sub(lanes x, lanes y) {
    return (lanes){x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}
static inline lanes lanes_mul(lanes x, lanes y) {
    return (lanes){x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}
static inline lanes lanes_div(lanes x, lanes y) {
    return (lanes){x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}

static inline floats4 floats4_max(floats4 x, floats4 y) {
    return floats4_choose(x > y, x, y);
}
static inline floats4 floats4_min(floats4 x, floats4 y) {
    return floats4_choose(x < y, x, y);
}

static inline lanes lanes_max(lanes x, lanes y) {
    return (lanes){floats4_max(x.a, y.a), floats4_max(x.b, y.b), floats4_max(x.c, y.c), floats4_max(x.d, y.d)};
}

static inline lanes lanes_min(lanes x, lanes y) {
    return (lanes){floats4_min(x.a, y.a), floats4_min(x.b, y.b), floats4_min(x.c, y.c), floats4_min(x.d, y.d)};
}

static inline floats4 floats4_pow2(floats4 biased) {
    return (floats4)(((bits4)biased << 23) + (127u << 23));
}

static inline lanes lanes_pow2(lanes biased) {
    return (lanes){floats4_pow2(biased.a), floats4_pow2(biased.b), floats4_pow2(biased.c), floats4_pow2(biased.d)};
}

static inline floats4 floats4_zero_below(floats4 v, floats4 x, float bound) {
    return (floats4)((ints4)v & ~(x < bound));
}

static inline lanes lanes_zero_below(lanes v, lanes x, float bound) {
    return (lanes){floats4_zero_below(v.a, x.a, bound), floats4_zero_below(v.b, x.b, bound),
                   floats4_zero_below(v.c, x.c, bound), floats4_zero_below(v.d, x.d, bound)};
}

static inline float lanes_sum(lanes x) {
    floats4 four = (x.a + x.c) + (x.b + x.d);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

static inline float lanes_top(lanes x) {
    floats4 four = floats4_max(floats4_max(x.a, x.c), floats4_max(x.b, x.d));
    float even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
    return even > odd ? even : odd;
}

#endif
