/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the formats of rows, one at a time. */
#ifndef HSP_OPS_CUDA_NUMBERS_CUH
#define HSP_OPS_CUDA_NUMBERS_CUH

#include "hisparse_ops.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* As hsp_pack: to nearest even, NaN above 464; below 2^-6 the sum with 2^14 rounds at the last place of a subnormal. */
static __device__ __forceinline__ uint8_t e4m3_of(float x) {
    float magnitude = fabsf(x);
    uint32_t bits = __float_as_uint(magnitude), code = __float_as_uint(magnitude + 0x1p14f) - 0x46800000;
    if (!(magnitude < 0x1p-6f))
        code = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
    if (!(magnitude <= 464.0f))
        code = 0x7f;
    return (uint8_t)(code | (__float_as_uint(x) >> 31) << 7);
}

static __device__ __forceinline__ float from_e4m3(uint8_t packed) {
    uint32_t magnitude = packed & 0x7f, sign = (uint32_t)(packed & 0x80) << 24;
    uint32_t bits = magnitude == 0x7f ? 0x7fc00000 : __float_as_uint(__uint_as_float(magnitude << 20) * 0x1p120f);
    return __uint_as_float(bits | sign);
}

static __device__ __forceinline__ float from_bf16(uint32_t low_half) {
    return __uint_as_float(low_half << 16);
}

static __device__ __forceinline__ uint16_t bf16_of(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* Number i of a row in `dtype`, HSP_F32, HSP_F16 or HSP_BF16. */
template <int DTYPE>
static __device__ __forceinline__ float number_at(const void *row, int64_t i) {
    if (DTYPE == HSP_F32)
        return ((const float *)row)[i];
    uint16_t half = ((const uint16_t *)row)[i];
    return DTYPE == HSP_F16 ? __half2float(__ushort_as_half(half)) : from_bf16(half);
}

template <int DTYPE>
static __device__ __forceinline__ void store_number(void *row, int64_t i, float x) {
    if (DTYPE == HSP_F32)
        ((float *)row)[i] = x;
    else
        ((uint16_t *)row)[i] = DTYPE == HSP_F16 ? __half_as_ushort(__float2half_rn(x)) : bf16_of(x);
}

/* Two packed numbers of a word. */
template <int DTYPE>
static __device__ __forceinline__ float2 two_numbers(uint32_t word) {
    if (DTYPE == HSP_F16)
        return make_float2(__half2float(__ushort_as_half((unsigned short)word)),
                           __half2float(__ushort_as_half((unsigned short)(word >> 16))));
    return make_float2(from_bf16(word), __uint_as_float(word & 0xffff0000));
}

#endif
