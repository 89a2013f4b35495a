/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of MLA on their way to bf16, in columns of 64 channels (128 bytes of bf16). Eight lanes take a row: lane p has
 * channels 8p .. 8p + 7 of every column, which are one 16-byte piece of bf16 and, in the packed formats, 8 bytes of
 * e4m3.
 */
#ifndef HSP_MLA_ROWS_CUH
#define HSP_MLA_ROWS_CUH

#include "attention.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

template <int FORMAT>
struct mla_format {
    static const bool PACKED = FORMAT != HSP_MLA_BF16;
    static const int COLUMNS = FORMAT == HSP_MLA_V4 ? 8 : 9;      /* of the key; the last is the rope */
    static const int SCALE_BYTES = FORMAT == HSP_MLA_V4 ? 0 : 16; /* between latent and rope */
};

/* A lane's part of a packed row, as it lies in memory. */
template <int FORMAT>
struct packed_row {
    uint2 latent[mla_format<FORMAT>::COLUMNS - 1], rope[2];
    uint2 scale[FORMAT == HSP_MLA_V4 ? 1 : 2];
};

/* Columns FIRST .. END - 1 of a row. */
template <int FORMAT, int FIRST, int END>
static __device__ __forceinline__ void load_columns(const hsp__attention &a, int32_t id, int lane,
                                                    packed_row<FORMAT> &row_out) {
    const int LATENT = mla_format<FORMAT>::COLUMNS - 1;
    const char *row = id < 0 ? NULL : hsp__row_at(a.plane[0], id);
    const char *rope = row + LATENT * 64 + mla_format<FORMAT>::SCALE_BYTES + lane * 16;
    const uint2 none = {0, 0};
#pragma unroll
    for (int c = FIRST; c < (END < LATENT ? END : LATENT); c++)
        row_out.latent[c] = id < 0 ? none : __ldg((const uint2 *)(row + c * 64 + lane * 8));
#pragma unroll
    for (int i = 0; i < (END > LATENT ? 2 : 0); i++)
        row_out.rope[i] = id < 0 ? none : __ldg((const uint2 *)rope + i);
}

template <int FORMAT>
static __device__ __forceinline__ void load_scales(const hsp__attention &a, int32_t id, packed_row<FORMAT> &row_out) {
    const int N_SCALES = sizeof row_out.scale / sizeof(uint2);
    const char *scales = NULL;
    if (id >= 0 && FORMAT == HSP_MLA_V4)
        scales = hsp__row_at(a.plane[1], id);
    else if (id >= 0)
        scales = hsp__row_at(a.plane[0], id) + (mla_format<FORMAT>::COLUMNS - 1) * 64;
#pragma unroll
    for (int i = 0; i < N_SCALES; i++)
        row_out.scale[i] = id < 0 ? uint2{0, 0} : __ldg((const uint2 *)scales + i);
}

template <int FORMAT>
static __device__ __forceinline__ void load_packed(const hsp__attention &a, int32_t id, int lane,
                                                   packed_row<FORMAT> &row_out) {
    load_columns<FORMAT, 0, mla_format<FORMAT>::COLUMNS>(a, id, lane, row_out);
    load_scales<FORMAT>(a, id, row_out);
}

/* 2^(byte - 127), 255: NaN. 2^-127 is a subnormal. */
static __device__ __forceinline__ float ue8m0(uint32_t byte) {
    return __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23);
}

template <int FORMAT>
static __device__ __forceinline__ float scale_of(const packed_row<FORMAT> &row, int column) {
    if (FORMAT == HSP_MLA_V4)
        return ue8m0((column < 4 ? row.scale[0].x : row.scale[0].y) >> column % 4 * 8 & 0xff);
    const uint2 both = row.scale[FORMAT == HSP_MLA_V4 ? 0 : column / 4];
    return __uint_as_float(column / 2 % 2 ? both.y : both.x);
}

/* Two e4m3 in the low 16 bits. */
static __device__ __forceinline__ uint32_t unpack_pair(uint32_t codes, float scale) {
    __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes & 0xffff), __NV_E4M3);
    float2 both = __half22float2(*(__half2 *)&raw);
    __nv_bfloat162 rounded = __floats2bfloat162_rn(both.x * scale, both.y * scale);
    return *(uint32_t *)&rounded;
}

/* The lane's piece of a column. */
template <int FORMAT>
static __device__ __forceinline__ uint4 unpack_piece(const packed_row<FORMAT> &row, int column) {
    if (column == mla_format<FORMAT>::COLUMNS - 1)
        return {row.rope[0].x, row.rope[0].y, row.rope[1].x, row.rope[1].y};
    const float scale = scale_of<FORMAT>(row, column);
    const uint2 codes = row.latent[column];
    return {unpack_pair(codes.x, scale), unpack_pair(codes.x >> 16, scale), unpack_pair(codes.y, scale),
            unpack_pair(codes.y >> 16, scale)};
}

#endif
