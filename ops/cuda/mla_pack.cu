/* SPDX-License-Identifier: Apache-2.0
 *
 * Floats to packed rows of MLA, one warp a row, by the rules of hsp_mla_pack_rows (ops/mla_rows.c).
 */
#include "batch.h"

#include "mla.h"

#include <cfloat>
#include <cstdint>

#include <cuda_bf16.h>

#define LEAST_MAXIMUM 1e-4f
#define WARPS         8

struct pack_call {
    const float *rows;
    char *plane[2];
    uint64_t stride[2];
    int32_t n_rows, latent_dim, rope_dim;
    int32_t group, n_groups; /* channels under a scale, 0: bf16; scales */
    int32_t scale_bytes;     /* 4: behind the latent, float; otherwise, of plane 1, a row with ue8m0 */
};

/* To nearest even; what would round to 480 or more, and what is not finite, is NaN. As e4m3_of in ops/kernels.c. */
static __device__ __forceinline__ uint8_t e4m3_of(float x) {
    const float magnitude = fabsf(x);
    const uint32_t bits = __float_as_uint(magnitude);
    uint32_t code = __float_as_uint(magnitude + 0x1p14f) - 0x46800000u;
    if (!(magnitude < 0x1p-6f))
        code = ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
    if (!(magnitude <= 464.0f))
        code = 0x7f;
    return (uint8_t)(code | (__float_as_uint(x) >> 31 << 7));
}

/* The least k with amax / 448 <= 2^k: 448 is 0.875 * 2^9. Numbers that are not finite have no say. */
static __device__ __forceinline__ int scale_exponent(const float *numbers, int32_t n) {
    float most = LEAST_MAXIMUM;
    int exponent;
    for (int32_t i = threadIdx.x % 32; i < n; i += 32) {
        float x = fabsf(numbers[i]);
        most = x <= FLT_MAX ? fmaxf(most, x) : most;
    }
    for (int other = 16; other > 0; other /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
    float fraction = frexpf(most, &exponent);
    return exponent - 9 + (fraction > 0.875f);
}

/* Bytes: rows may have any alignment. */
static __device__ __forceinline__ void store_bytes(char *to, uint32_t value, int n) {
    for (int i = 0; i < n; i++)
        to[i] = (char)(value >> 8 * i);
}

/* Two at a time, of which one is nothing: ptxas 13.0 makes an integer of the number, not its low byte, when a byte is
 * stored from the register that a conversion of one number has written. */
static __device__ __forceinline__ uint32_t bf16_bits(float x) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(x, 0.0f);
    return *(uint32_t *)&pair;
}

static __device__ __forceinline__ void store_bf16(const float *numbers, int32_t n, char *to) {
    for (int32_t i = threadIdx.x % 32; i < n; i += 32)
        store_bytes(to + 2 * i, bf16_bits(numbers[i]), 2);
}

static __device__ __forceinline__ void pack_group(const pack_call &p, const float *numbers, int32_t g, char *codes,
                                                  char *scales) {
    const int exponent = scale_exponent(numbers, p.group);
    const float shrink = ldexpf(1.0f, -exponent);
    for (int32_t i = threadIdx.x % 32; i < p.group; i += 32)
        codes[i] = (char)e4m3_of(numbers[i] * shrink);
    if (threadIdx.x % 32 != 0)
        return;
    if (p.scale_bytes == 4)
        store_bytes(scales + 4 * g, __float_as_uint(ldexpf(1.0f, exponent)), 4);
    else
        scales[g] = (char)(exponent + 127);
}

__global__ void __launch_bounds__(32 * WARPS) pack_kernel(const __grid_constant__ pack_call p) {
    const int32_t row = (int32_t)(blockIdx.x * WARPS + threadIdx.x / 32);
    if (row >= p.n_rows)
        return;
    const float *numbers = p.rows + (int64_t)row * (p.latent_dim + p.rope_dim);
    char *codes = p.plane[0] + (uint64_t)row * p.stride[0], *scales = codes + p.latent_dim, *rope = scales;
    if (p.group == 0) {
        store_bf16(numbers, p.latent_dim, codes);
        rope += p.latent_dim;
    } else if (p.scale_bytes == 4) {
        rope += 4 * p.n_groups;
    } else {
        scales = p.plane[1] + (uint64_t)row * p.stride[1];
        for (int32_t i = p.n_groups + (int32_t)threadIdx.x % 32; i < p.scale_bytes; i += 32)
            scales[i] = 0;
    }
    for (int32_t g = 0; g < p.n_groups; g++)
        pack_group(p, numbers + g * p.group, g, codes + g * p.group, scales);
    store_bf16(numbers + p.latent_dim, p.rope_dim, rope);
}

int hsp_gpu_mla_pack(const hsp_mla_shape *shape, const float *rows, int32_t n_rows, const hsp_row_sink *rows_out,
                     void *stream) {
    int status = hsp__mla_check(shape);
    if (status)
        return status;
    if (n_rows < 0 || !rows_out || (n_rows && !rows))
        return HSP_EINVAL;
    pack_call p = {};
    for (int i = 0; i < (shape->format == HSP_MLA_V4 ? 2 : 1); i++) {
        p.plane[i] = (char *)rows_out->plane[i];
        p.stride[i] = rows_out->stride[i];
        if (!p.plane[i] || p.stride[i] < hsp__mla_row_bytes(shape, i))
            return HSP_EINVAL;
    }
    p.rows = rows, p.n_rows = n_rows;
    p.latent_dim = shape->latent_dim, p.rope_dim = shape->rope_dim;
    p.group = hsp__mla_group(shape);
    p.n_groups = p.group ? p.latent_dim / p.group : 0;
    p.scale_bytes = shape->format == HSP_MLA_V4 ? (int32_t)hsp__mla_row_bytes(shape, 1) : 4;
    return hsp__gpu_launch((const void *)pack_kernel, dim3((unsigned)hsp__gpu_pieces(n_rows, WARPS)), 32 * WARPS, 1, 0,
                           &p, stream);
}
