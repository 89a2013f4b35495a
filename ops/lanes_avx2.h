/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen floats in two AVX registers (AVX2 and F16C). See lanes.h for what each function means.
 */
#ifndef HSP_LANES_AVX2_H
#define HSP_LANES_AVX2_H

#include <immintrin.h>

#define HSP_LANES_SIDE_BY_SIDE 1 /* lanes per head a kernel keeps in registers; there are 16 registers */

typedef struct lanes {
    __m256 lo, hi;
} lanes;

static inline lanes lanes_all(float x) {
    return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline lanes lanes_load_f32(const void *p) {
    const float *x = p;
    return (lanes){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}

static inline lanes lanes_load_f16(const void *p) {
    const __m128i *x = p;
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x + 1))};
}

static inline __m256 lanes_widen_bf16(const __m128i *x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(x)), 16));
}

static inline lanes lanes_load_bf16(const void *p) {
    const __m128i *x = p;
    return (lanes){lanes_widen_bf16(x), lanes_widen_bf16(x + 1)};
}

static inline __m256 lanes_widen_e4m3(const void *p) {
    __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
    __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi32(0x7f));
    __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f));
    __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    __m256i bits = _mm256_blendv_epi8(_mm256_castps_si256(value), _mm256_set1_epi32(0x7fc00000), nan);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)), 24);
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
}

static inline lanes lanes_load_e4m3(const void *p) {
    const char *x = p;
    return (lanes){lanes_widen_e4m3(x), lanes_widen_e4m3(x + 8)};
}

static inline void lanes_store_f32(void *p, lanes a) {
    float *x = p;
    _mm256_storeu_ps(x, a.lo);
    _mm256_storeu_ps(x + 8, a.hi);
}

static inline void lanes_store_f16(void *p, lanes a) {
    __m128i *x = p;
    _mm_storeu_si128(x, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(x + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

static inline __m256i lanes_round_bf16(__m256 a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

static inline void lanes_store_bf16(void *p, lanes a) {
    /* The pack works within 128-bit halves; the permutation puts its quarters back in order. */
    __m256i mixed = _mm256_packus_epi32(lanes_round_bf16(a.lo), lanes_round_bf16(a.hi));
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(mixed, 0xd8));
}

static inline lanes lanes_add(lanes a, lanes b) {
    return (lanes){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

static inline lanes lanes_sub(lanes a, lanes b) {
    return (lanes){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

static inline lanes lanes_mul(lanes a, lanes b) {
    return (lanes){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline lanes lanes_div(lanes a, lanes b) {
    return (lanes){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

static inline lanes lanes_max(lanes a, lanes b) {
    return (lanes){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

static inline lanes lanes_min(lanes a, lanes b) {
    return (lanes){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

static inline __m256 lanes_exponent(__m256 biased) {
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(biased), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(127 << 23)));
}

static inline lanes lanes_pow2(lanes biased) {
    return (lanes){lanes_exponent(biased.lo), lanes_exponent(biased.hi)};
}

static inline lanes lanes_zero_below(lanes a, lanes x, float bound) {
    __m256 b = _mm256_set1_ps(bound);
    return (lanes){_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, b, _CMP_NLT_UQ)),
                   _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, b, _CMP_NLT_UQ))};
}

static inline float lanes_sum(lanes a) {
    __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float lanes_top(lanes a) {
    __m256 eight = _mm256_max_ps(a.lo, a.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#endif
