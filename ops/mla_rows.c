/* SPDX-License-Identifier: Apache-2.0
 *
 * The three row formats of MLA: floats to rows and back.
 *
 * Sources. HSP_MLA_FP8: "FP8 KV Cache" in FlashMLA's README. HSP_MLA_V4: MODEL1_FP8Sparse in FlashMLA's tests/quant.py;
 * vLLM's quantize_and_insert_k_cache writes the same bytes. Scales: tests/quant.py and vLLM's V4 writer take powers of
 * two, 2^ceil(log2(amax / 448)), in both formats; vLLM's writer of 656-byte rows takes amax / 448 as it is. Readers
 * multiply by what they find, so rows of either kind are read here; powers of two are written because a reader that
 * goes through bf16, as FlashMLA's kernels do, then loses nothing. The least amax is 1e-4, as in DeepSeek-V4's
 * inference code and vLLM; tests/quant.py has a greater one, which only makes tiny rows coarser.
 */
#include "attention.h"
#include "kernels.h"
#include "mla.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define LEAST_MAXIMUM 1e-4f

static size_t scale_bytes(const hsp_mla_shape *shape) {
    return shape->format == HSP_MLA_FP8 ? 4 : 1;
}

static size_t n_groups(const hsp_mla_shape *shape) {
    return (size_t)(shape->latent_dim / hsp__mla_group(shape));
}

/* Where the parts of a row begin; scales: NULL in bf16 rows. */
struct parts {
    char *latent, *scales, *rope;
};

static char *row_at(const hsp_plane_view *plane, int32_t id) {
    return (char *)plane->base + (size_t)(id / plane->rows_per_block) * plane->block_stride +
           (size_t)(id % plane->rows_per_block) * plane->row_stride;
}

static struct parts parts_of(const hsp_mla_shape *shape, const hsp_plane_view *planes, int32_t id) {
    char *row = row_at(planes, id), *after = row + shape->latent_dim;
    if (shape->format == HSP_MLA_FP8)
        return (struct parts){row, after, after + n_groups(shape) * scale_bytes(shape)};
    if (shape->format == HSP_MLA_V4)
        return (struct parts){row, row_at(planes + 1, id), after};
    return (struct parts){row, NULL, after + shape->latent_dim};
}

/* 2^(byte - 127), 255: NaN (ue8m0 of the OCP microscaling formats, 2023). 2^-127 is a subnormal of float. */
static float ue8m0(uint8_t byte) {
    uint32_t bits = byte == 0 ? 0x00400000 : byte == 255 ? 0x7fc00000 : (uint32_t)byte << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

static float load_scale(const hsp_mla_shape *shape, const char *scales, size_t group) {
    float scale;
    if (shape->format == HSP_MLA_V4)
        return ue8m0(((const uint8_t *)scales)[group]);
    memcpy(&scale, scales + group * sizeof scale, sizeof scale);
    return scale;
}

void hsp__mla_unpack_row(const hsp_mla_shape *shape, const hsp_plane_view *planes, int32_t id, float *row_out) {
    const struct hsp__kernels *kernels = hsp__ops();
    const struct parts parts = parts_of(shape, planes, id);
    size_t latent = (size_t)shape->latent_dim, group = (size_t)hsp__mla_group(shape);
    kernels->unpack[parts.scales ? HSP_E4M3 : HSP_BF16](parts.latent, latent, row_out);
    for (size_t g = 0; parts.scales && g < n_groups(shape); g++) {
        float scale = load_scale(shape, parts.scales, g), *numbers = row_out + g * group;
        for (size_t c = 0; c < group; c++)
            numbers[c] *= scale;
    }
    kernels->unpack[HSP_BF16](parts.rope, (size_t)shape->rope_dim, row_out + latent);
}

/* The least k with amax / 448 <= 2^k, without a rounding: 448 is 0.875 * 2^9. Numbers that are not finite have no say
 * in it; they become NaN beside any scale. */
static int scale_exponent(const float *numbers, size_t n) {
    float amax = LEAST_MAXIMUM;
    int exponent;
    for (size_t i = 0; i < n; i++)
        if (fabsf(numbers[i]) > amax && fabsf(numbers[i]) <= FLT_MAX)
            amax = fabsf(numbers[i]);
    float fraction = frexpf(amax, &exponent);
    return exponent - 9 + (fraction > 0.875f);
}

static void store_scale(const hsp_mla_shape *shape, int exponent, char *scales, size_t group) {
    float scale = ldexpf(1.0f, exponent);
    if (shape->format == HSP_MLA_V4)
        ((uint8_t *)scales)[group] = (uint8_t)(exponent + 127);
    else
        memcpy(scales + group * sizeof scale, &scale, sizeof scale);
}

static void pack_row(const hsp_mla_shape *shape, const float *row, const hsp_plane_view *planes, int32_t id) {
    const struct hsp__kernels *kernels = hsp__ops();
    const struct parts parts = parts_of(shape, planes, id);
    size_t latent = (size_t)shape->latent_dim, group = (size_t)hsp__mla_group(shape);
    if (!parts.scales)
        kernels->pack[HSP_BF16](row, latent, parts.latent);
    for (size_t g = 0; parts.scales && g < n_groups(shape); g++) {
        float scaled[128];
        int exponent = scale_exponent(row + g * group, group);
        for (size_t c = 0; c < group; c++)
            scaled[c] = row[g * group + c] * ldexpf(1.0f, -exponent);
        store_scale(shape, exponent, parts.scales, g);
        kernels->pack[HSP_E4M3](scaled, group, parts.latent + g * group);
    }
    if (parts.scales && shape->format == HSP_MLA_V4)
        memset(parts.scales + n_groups(shape), 0, hsp__mla_row_bytes(shape, 1) - n_groups(shape));
    kernels->pack[HSP_BF16](row + latent, (size_t)shape->rope_dim, parts.rope);
}

int hsp_mla_pack_rows(const hsp_mla_shape *shape, const float *rows, int32_t first, int32_t n_rows,
                      const hsp_plane_view *planes) {
    int status = hsp__mla_check(shape);
    if (status)
        return status;
    if (first < 0 || n_rows < 0 || (n_rows && !rows))
        return HSP_EINVAL;
    if (n_rows > INT32_MAX - first)
        return HSP_ELIMIT;
    status = hsp__mla_check_planes(shape, planes);
    if (status)
        return status;
    size_t dim = (size_t)hsp__mla_key_dim(shape);
    int64_t work = (int64_t)n_rows * (int64_t)dim;
#pragma omp parallel for schedule(static) if (work >= HSP__ENOUGH_WORK)
    for (int32_t i = 0; i < n_rows; i++)
        pack_row(shape, rows + (size_t)i * dim, planes, first + i);
    return HSP_OK;
}
