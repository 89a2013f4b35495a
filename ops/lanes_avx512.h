/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen floats in one AVX-512 register. See lanes.h for what each function means.
 */
#ifndef HSP_LANES_AVX512_H
#define HSP_LANES_AVX512_H

#include <immintrin.h>

#define HSP_LANES_SIDE_BY_SIDE 2 /* lanes per head a kernel keeps in registers; there are 32 registers */

typedef struct lanes {
    __m512 v;
} lanes;

static inline lanes lanes_all(float x) {
    return (lanes){_mm512_set1_ps(x)};
}

static inline lanes lanes_load_f32(const void *p) {
    return (lanes){_mm512_loadu_ps(p)};
}

static inline lanes lanes_load_f16(const void *p) {
    return (lanes){_mm512_cvtph_ps(_mm256_loadu_si256(p))};
}

static inline lanes lanes_load_bf16(const void *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return (lanes){_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

static inline lanes lanes_load_e4m3(const void *p) {
    __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
    __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi32(0x7f));
    __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), _mm512_set1_ps(0x1p120f));
    __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    __m512i bits = _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan, _mm512_set1_epi32(0x7fc00000));
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)), 24);
    return (lanes){_mm512_castsi512_ps(_mm512_or_si512(bits, sign))};
}

static inline void lanes_store_f32(void *p, lanes a) {
    _mm512_storeu_ps(p, a.v);
}

static inline void lanes_store_f16(void *p, lanes a) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

static inline void lanes_store_bf16(void *p, lanes a) {
    __m512i bits = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    __m512i chosen = _mm512_mask_mov_epi32(rounded, nan, quiet);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}

static inline lanes lanes_add(lanes a, lanes b) {
    return (lanes){_mm512_add_ps(a.v, b.v)};
}
static inline lanes lanes_sub(lanes a, lanes b) {
    return (lanes){_mm512_sub_ps(a.v, b.v)};
}
static inline lanes lanes_mul(lanes a, lanes b) {
    return (lanes){_mm512_mul_ps(a.v, b.v)};
}
static inline lanes lanes_div(lanes a, lanes b) {
    return (lanes){_mm512_div_ps(a.v, b.v)};
}
static inline lanes lanes_max(lanes a, lanes b) {
    return (lanes){_mm512_max_ps(a.v, b.v)};
}
static inline lanes lanes_min(lanes a, lanes b) {
    return (lanes){_mm512_min_ps(a.v, b.v)};
}

static inline lanes lanes_pow2(lanes biased) {
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(biased.v), 23);
    return (lanes){_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(127 << 23)))};
}

static inline lanes lanes_zero_below(lanes a, lanes x, float bound) {
    __mmask16 keep = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_NLT_UQ);
    return (lanes){_mm512_maskz_mov_ps(keep, a.v)};
}

static inline __m256 lanes_upper(lanes a) {
    return _mm512_extractf32x8_ps(a.v, 1);
}
static inline __m256 lanes_lower(lanes a) {
    return _mm512_castps512_ps256(a.v);
}

static inline float lanes_sum(lanes a) {
    __m256 eight = _mm256_add_ps(lanes_lower(a), lanes_upper(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float lanes_top(lanes a) {
    __m256 eight = _mm256_max_ps(lanes_lower(a), lanes_upper(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#endif
