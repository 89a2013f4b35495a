/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen floats at a time: the one vocabulary the kernels are written in. Every instruction set does the same
 * operations in the same order, without fused multiply-add, so all of them give the same bits.
 *
 *   lanes_all(x)                x in every lane
 *   lanes_load_f32, _f16, _bf16 sixteen numbers from memory of any alignment, and lanes_store_* back, to nearest even
 *   lanes_load_e4m3             sixteen numbers of one byte
 *   lanes_add, sub, mul, div    lane by lane
 *   lanes_max, min(a, b)        a if it is the greater (less), else b; so b where either is NaN
 *   lanes_pow2(b)               2^n for b = HSP_LANES_BIAS + n, n a whole number in -126 .. 127
 *   lanes_zero_below(a, x, b)   a, but 0 where x < b
 *   lanes_sum(a), lanes_top(a)  sum and maximum over the lanes: i with i + 8, then + 4, + 2, + 1
 */
#ifndef HSP_LANES_H
#define HSP_LANES_H

#include "hisparse_ops.h"

#include <string.h>

#if defined(__AVX512F__)
#include "lanes_avx512.h"
#elif defined(__AVX2__)
#include "lanes_avx2.h"
#else
#include "lanes_portable.h"
#endif

#define HSP_LANES 16

/* At this size the last place of a float is 1: adding it rounds to a whole number and leaves that in the low bits. */
#define HSP_LANES_BIAS 12582912.0f /* 1.5 * 2^23 */

/* Kernels are written once, with dtype and head count as constants after inlining. */
#define HSP_INLINE static inline __attribute__((always_inline))

HSP_INLINE size_t dtype_bytes(int dtype) {
    return dtype == HSP_F32 ? 4 : dtype == HSP_E4M3 ? 1 : 2;
}

HSP_INLINE lanes lanes_load(int dtype, const void *p) {
    if (dtype == HSP_F16)
        return lanes_load_f16(p);
    if (dtype == HSP_BF16)
        return lanes_load_bf16(p);
    if (dtype == HSP_E4M3)
        return lanes_load_e4m3(p);
    return lanes_load_f32(p);
}

/* Not to HSP_E4M3, which nothing but a conversion stores. */
HSP_INLINE void lanes_store(int dtype, void *p, lanes a) {
    if (dtype == HSP_F16)
        lanes_store_f16(p, a);
    else if (dtype == HSP_BF16)
        lanes_store_bf16(p, a);
    else
        lanes_store_f32(p, a);
}

/* The first n < 16 numbers, zeros after them; nothing behind them is touched. */
HSP_INLINE lanes lanes_load_part(int dtype, const void *p, size_t n) {
    char whole[HSP_LANES * sizeof(float)] = {0};
    memcpy(whole, p, n * dtype_bytes(dtype));
    return lanes_load(dtype, whole);
}

HSP_INLINE void lanes_store_part(int dtype, void *p, lanes a, size_t n) {
    char whole[HSP_LANES * sizeof(float)];
    lanes_store(dtype, whole, a);
    memcpy(p, whole, n * dtype_bytes(dtype));
}

/* Sixteen numbers, or the n that are left. */
HSP_INLINE lanes lanes_load_upto(int dtype, const void *p, size_t n) {
    return n < HSP_LANES ? lanes_load_part(dtype, p, n) : lanes_load(dtype, p);
}

HSP_INLINE void lanes_store_upto(int dtype, void *p, lanes a, size_t n) {
    if (n < HSP_LANES)
        lanes_store_part(dtype, p, a, n);
    else
        lanes_store(dtype, p, a);
}

/* e^x with a relative error below 2e-7 for -87 <= x <= 88; 0 below -87, NaN for NaN.
 * x = n ln 2 + r, |r| <= ln 2 / 2, and e^r = 1 + r + r^2 P(r) with P fitted to the least relative error. */
HSP_INLINE lanes lanes_exp(lanes x) {
    const float p[5] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a2p-7f, 0x1.6a23dp-10f};
    const float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f; /* high has 9 bits: n times it is exact */
    lanes bounded = lanes_max(lanes_all(-87.0f), x);
    lanes biased = lanes_add(lanes_mul(bounded, lanes_all(0x1.715476p+0f)), lanes_all(HSP_LANES_BIAS));
    lanes n = lanes_sub(biased, lanes_all(HSP_LANES_BIAS));
    lanes r = lanes_sub(bounded, lanes_mul(n, lanes_all(ln2_high)));
    r = lanes_sub(r, lanes_mul(n, lanes_all(ln2_low)));
    lanes sum = lanes_all(p[4]);
    for (int i = 3; i >= 0; i--)
        sum = lanes_add(lanes_mul(sum, r), lanes_all(p[i]));
    sum = lanes_add(r, lanes_mul(lanes_mul(r, r), sum));
    sum = lanes_add(lanes_all(1.0f), sum);
    return lanes_zero_below(lanes_mul(sum, lanes_pow2(biased)), x, -87.0f);
}

#endif
