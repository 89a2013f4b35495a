/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a swap-in: misses as one flat list of pieces, several independent loads a thread in flight before the
 * first store. */
#ifndef HSP_CUDA_FETCH_CUH
#define HSP_CUDA_FETCH_CUH

#include "device.cuh"
#include "params.h"

/* PLAIN rows: pieces of 16 bytes, one layer, a row's planes side by side. The common shape gets code of its own: the
 * general one has four times as many instructions. */
template <typename piece>
static __device__ __forceinline__ piece *plain_piece(const hsp__cuda_rows &rows, uint32_t id, uint32_t q) {
    return (piece *)(rows.device_anchor + (uint64_t)id * rows.plain_stride) + q;
}

/* A piece of a row of one layer: where it goes on the device. q: number of the piece in the layer's row. */
template <typename piece>
static __device__ __forceinline__ piece *device_piece(const hsp__cuda_rows &rows, int32_t layer, uint32_t id,
                                                      uint32_t q) {
    char *base = rows.device + (uint64_t)layer * rows.layer_bytes;
    uint32_t at = q * (uint32_t)sizeof(piece);
    if (rows.block_rows == 1)
        return (piece *)(base + (uint64_t)id * rows.block_stride + at);
    uint32_t block = id / (uint32_t)rows.block_rows, row = id - block * (uint32_t)rows.block_rows;
    int p = 0;
    while (p + 1 < rows.n_planes && at >= rows.plane_offset[p + 1])
        p++;
    return (piece *)(base + block * rows.block_stride + (uint64_t)rows.plane_offset[p] * (uint32_t)rows.block_rows +
                     (uint64_t)row * rows.plane_bytes[p] + (at - rows.plane_offset[p]));
}

static __device__ __forceinline__ uint32_t divide(uint32_t x, hsp__cuda_divisor d) {
    if (d.magic == 0)
        return x;
    uint32_t quotient = __umulhi(x, d.magic);
    return quotient - (quotient * d.by > x);
}

/* Fetch m rows: host_row and slot (shared or global) name them, first_id is the request's first row id. This block is
 * `part` of `parts` that share the work. */
template <typename piece, int IN_FLIGHT, bool PLAIN>
static __device__ __forceinline__ void fetch_pieces(const hsp__cuda_rows &rows, const uint32_t *host_row,
                                                    const uint16_t *slot, uint32_t m, uint32_t first_id, uint32_t part,
                                                    uint32_t parts) {
    const uint32_t total = m * rows.row_pieces.by, stride = parts * blockDim.x;
    for (uint32_t c = part * blockDim.x + threadIdx.x; c < total; c += stride * IN_FLIGHT) {
        piece value[IN_FLIGHT];
        piece *to[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            uint32_t i = c + u * stride;
            if (i < total) {
                uint32_t r = divide(i, rows.row_pieces), q = i - r * rows.row_pieces.by;
                const piece *from = (const piece *)(rows.host + (uint64_t)host_row[r] * rows.host_stride);
                if (PLAIN)
                    to[u] = plain_piece<piece>(rows, first_id + slot[r], q);
                else {
                    uint32_t layer = divide(q, rows.layer_pieces);
                    q -= layer * rows.layer_pieces.by;
                    from += layer * rows.host_layer_pieces;
                    to[u] = device_piece<piece>(rows, rows.group_layer[layer], first_id + slot[r], q);
                }
                value[u] = load_host(from + q);
            }
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (c + u * stride < total)
                *to[u] = value[u];
    }
}

/* The same for any number of rows, in rounds whose pieces can be counted in 31 bits. */
template <bool PLAIN>
static __device__ __forceinline__ void fetch_rows(const hsp__cuda_rows &rows, const uint32_t *host_row,
                                                  const uint16_t *slot, uint32_t m, uint32_t first_id, uint32_t part,
                                                  uint32_t parts) {
    if (PLAIN) { /* at most 8192 rows of 4096 pieces: is_plain in geometry.c sees to it */
        fetch_pieces<uint4, 4, true>(rows, host_row, slot, m, first_id, part, parts);
        return;
    }
    const uint32_t round = 0x7fffffffu / rows.row_pieces.by;
    for (uint32_t first = 0; first < m; first += round) {
        uint32_t n = m - first < round ? m - first : round;
        if (rows.piece_bytes == 16)
            fetch_pieces<uint4, 4, false>(rows, host_row + first, slot + first, n, first_id, part, parts);
        else if (rows.piece_bytes == 8)
            fetch_pieces<uint2, 4, false>(rows, host_row + first, slot + first, n, first_id, part, parts);
        else
            fetch_pieces<uint32_t, 4, false>(rows, host_row + first, slot + first, n, first_id, part, parts);
    }
}

#endif
