/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the GGUF tensor types as float32, block by block. Blocks are read byte by byte: they need no alignment. */
#include "gguf_internal.h"

#include <string.h>

enum { BLOCK = 32, BIG_BLOCK = 256 };

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float read_f16(const uint8_t *bytes) {
    uint32_t half = gguf__u16(bytes);
    uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    if (exponent == 0x1f)
        return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0)
        return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    /* Zero and subnormal: fraction * 2^-24, exact in float32. */
    float magnitude = (float)fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

static void f32_block(const uint8_t *block, float *out) {
    *out = float_of_bits(gguf__u32(block));
}

static void f16_block(const uint8_t *block, float *out) {
    *out = read_f16(block);
}

static void bf16_block(const uint8_t *block, float *out) {
    *out = float_of_bits((uint32_t)gguf__u16(block) << 16);
}

/* f16 scale, 32 signed bytes */
static void q8_0_block(const uint8_t *block, float *out) {
    float scale = read_f16(block);
    for (int i = 0; i < BLOCK; i++)
        out[i] = scale * (float)(int8_t)block[2 + i];
}

/* f16 scale, 16 bytes: the first half of the numbers in the low four bits, the second half in the high */
static void q4_0_block(const uint8_t *block, float *out) {
    float scale = read_f16(block);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = scale * (float)((block[2 + i] & 15) - 8);
        out[i + BLOCK / 2] = scale * (float)((block[2 + i] >> 4) - 8);
    }
}

/* f16 scale, f16 minimum, 16 bytes as above */
static void q4_1_block(const uint8_t *block, float *out) {
    float scale = read_f16(block), minimum = read_f16(block + 2);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = scale * (float)(block[4 + i] & 15) + minimum;
        out[i + BLOCK / 2] = scale * (float)(block[4 + i] >> 4) + minimum;
    }
}

/* f16 scale, 32 fifth bits, 16 bytes of low four bits */
static void q5_0_block(const uint8_t *block, float *out) {
    float scale = read_f16(block);
    uint32_t fifth = gguf__u32(block + 2);
    for (int i = 0; i < BLOCK / 2; i++) {
        uint32_t low = (block[6 + i] & 15) | (fifth >> i & 1) << 4;
        uint32_t high = block[6 + i] >> 4 | (fifth >> (i + 16) & 1) << 4;
        out[i] = scale * (float)((int)low - 16);
        out[i + BLOCK / 2] = scale * (float)((int)high - 16);
    }
}

/* f16 scale, f16 minimum, 32 fifth bits, 16 bytes of low four bits */
static void q5_1_block(const uint8_t *block, float *out) {
    float scale = read_f16(block), minimum = read_f16(block + 2);
    uint32_t fifth = gguf__u32(block + 4);
    for (int i = 0; i < BLOCK / 2; i++) {
        uint32_t low = (block[8 + i] & 15) | (fifth >> i & 1) << 4;
        uint32_t high = block[8 + i] >> 4 | (fifth >> (i + 16) & 1) << 4;
        out[i] = scale * (float)low + minimum;
        out[i + BLOCK / 2] = scale * (float)high + minimum;
    }
}

/* Scale and minimum of sub-block i of 8, six bits each, in the 12 bytes of Q4_K and Q5_K: bytes 0-3 and 4-7 hold those
 * of the first four, and in their top two bits the top of those of the last four, whose low four bits are in bytes
 * 8-11. */
static void read_k_scales(const uint8_t *packed, int i, int *scale_out, int *minimum_out) {
    if (i < 4) {
        *scale_out = packed[i] & 63;
        *minimum_out = packed[i + 4] & 63;
    } else {
        *scale_out = (packed[i + 4] & 15) | packed[i - 4] >> 6 << 4;
        *minimum_out = packed[i + 4] >> 4 | packed[i] >> 6 << 4;
    }
}

/* f16 scale, f16 minimum, 12 bytes of sub-block scales, 128 bytes of four bits: each 32 bytes hold two sub-blocks */
static void q4_k_block(const uint8_t *block, float *out) {
    float scale = read_f16(block), minimum = read_f16(block + 2);
    for (int sub = 0; sub < 8; sub++) {
        const uint8_t *low = block + 16 + sub / 2 * 32;
        int sub_scale, sub_minimum;
        read_k_scales(block + 4, sub, &sub_scale, &sub_minimum);
        float d = scale * (float)sub_scale, m = minimum * (float)sub_minimum;
        for (int i = 0; i < 32; i++)
            out[sub * 32 + i] = d * (float)(low[i] >> sub % 2 * 4 & 15) - m;
    }
}

/* As Q4_K, with 32 bytes of fifth bits before the four-bit ones: bit `sub` of byte i belongs to number i of sub-block
 * sub */
static void q5_k_block(const uint8_t *block, float *out) {
    float scale = read_f16(block), minimum = read_f16(block + 2);
    const uint8_t *fifth = block + 16;
    for (int sub = 0; sub < 8; sub++) {
        const uint8_t *low = block + 48 + sub / 2 * 32;
        int sub_scale, sub_minimum;
        read_k_scales(block + 4, sub, &sub_scale, &sub_minimum);
        float d = scale * (float)sub_scale, m = minimum * (float)sub_minimum;
        for (int i = 0; i < 32; i++)
            out[sub * 32 + i] = d * (float)((low[i] >> sub % 2 * 4 & 15) | (fifth[i] >> sub & 1) << 4) - m;
    }
}

/* 128 bytes of low four bits, 64 of high two, 16 signed scales of 16 numbers each, f16 scale. Each half of the block
 * has four runs of 32: runs 0 and 1 in the low, 2 and 3 in the high four bits of 64 bytes; run r has bits 2r of 32
 * bytes. */
static void q6_k_block(const uint8_t *block, float *out) {
    float scale = read_f16(block + 208);
    for (int run = 0; run < 8; run++) {
        const uint8_t *low = block + run / 4 * 64 + run % 2 * 32;
        const uint8_t *high = block + 128 + run / 4 * 32;
        int low_shift = run % 4 / 2 * 4, high_shift = run % 4 * 2;
        for (int i = 0; i < 32; i++) {
            float d = scale * (float)(int8_t)block[192 + run * 2 + i / 16];
            int q = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
            out[run * 32 + i] = d * (float)(q - 32);
        }
    }
}

typedef struct type_traits {
    const char *name;
    void (*block)(const uint8_t *block, float *out);
    int32_t block_numbers;
    int32_t block_bytes;
} type_traits;

static const type_traits traits[] = {
    [GGUF_F32] = {"F32", f32_block, 1, 4},
    [GGUF_F16] = {"F16", f16_block, 1, 2},
    [GGUF_Q4_0] = {"Q4_0", q4_0_block, BLOCK, 18},
    [GGUF_Q4_1] = {"Q4_1", q4_1_block, BLOCK, 20},
    [GGUF_Q5_0] = {"Q5_0", q5_0_block, BLOCK, 22},
    [GGUF_Q5_1] = {"Q5_1", q5_1_block, BLOCK, 24},
    [GGUF_Q8_0] = {"Q8_0", q8_0_block, BLOCK, 34},
    [GGUF_Q4_K] = {"Q4_K", q4_k_block, BIG_BLOCK, 144},
    [GGUF_Q5_K] = {"Q5_K", q5_k_block, BIG_BLOCK, 176},
    [GGUF_Q6_K] = {"Q6_K", q6_k_block, BIG_BLOCK, 210},
    [GGUF_BF16] = {"BF16", bf16_block, 1, 2},
};

static const type_traits *find_traits(int32_t type) {
    if (type < 0 || (size_t)type >= sizeof traits / sizeof *traits || !traits[type].name)
        return NULL;
    return &traits[type];
}

const char *gguf_type_name(int32_t type) {
    const type_traits *of = find_traits(type);
    return of ? of->name : NULL;
}

size_t gguf_row_bytes(int32_t type, int64_t n) {
    const type_traits *of = find_traits(type);
    size_t bytes;
    if (!of || n < 0 || n % of->block_numbers != 0)
        return 0;
    if (__builtin_mul_overflow((size_t)(n / of->block_numbers), (size_t)of->block_bytes, &bytes))
        return 0;
    return bytes;
}

void gguf_dequantize(int32_t type, const void *data, int64_t n, float *values_out) {
    const type_traits *of = find_traits(type);
    const uint8_t *block = data;
    for (int64_t i = 0; of && i + of->block_numbers <= n; i += of->block_numbers, block += of->block_bytes)
        of->block(block, values_out + i);
}
