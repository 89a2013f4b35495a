/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA attention with mma.sync: GQA with one KV head whose values are the beginning of its keys.
 */
#include "attention_mma.cuh"
#include "mla_launch.h"
#include "mla_rows.cuh"

template <int FORMAT>
struct mla_tile {
    typedef __nv_bfloat16 number;
    static const bool VALUE_IS_KEY = true;

    template <int THREADS>
    static __device__ __forceinline__ void load(const hsp__attention &a, const hsp__job &, const int32_t *ids,
                                                uint32_t stage, const tile_layout &) {
        const int COLUMNS = mla_format<FORMAT>::COLUMNS, lane = threadIdx.x % 8;
        for (int r = threadIdx.x / 8; r < TILE; r += THREADS / 8) {
            const uint32_t to = stage + (uint32_t)r * pitch_of(COLUMNS * 64) + (uint32_t)lane * 16;
            if constexpr (mla_format<FORMAT>::PACKED) {
                packed_row<FORMAT> row;
                load_packed<FORMAT>(a, ids[r], lane, row);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    hsp__store16(to + c * 128, unpack_piece<FORMAT>(row, c));
            } else {
                const char *from = ids[r] < 0 ? a.plane[0].base : hsp__row_at(a.plane[0], ids[r]) + lane * 16;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    hsp__copy16(to + c * 128, ids[r] < 0 ? from : from + c * 128, ids[r] >= 0);
            }
        }
    }
};

int hsp__mla_mma_launch(const hsp__attention &a, int32_t format, const hsp_gpu_batch *batch, void *stream) {
    if (format == HSP_MLA_BF16)
        return attend_launch<mla_tile<HSP_MLA_BF16>, 4, 2, 32>(a, batch, stream);
    if (format == HSP_MLA_FP8)
        return attend_launch<mla_tile<HSP_MLA_FP8>, 4, 2, 32>(a, batch, stream);
    return attend_launch<mla_tile<HSP_MLA_V4>, 4, 2, 32>(a, batch, stream);
}
