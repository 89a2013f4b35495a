/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a swap-in: rows as one flat list of pieces, several independent loads a thread in flight before the
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

static __device__ __forceinline__ const char *host_row_at(const hsp__cuda_rows &rows, uint32_t host_row) {
    return rows.host + (uint64_t)host_row * rows.host_stride;
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

/* PASSING: rows of a whole batch must not push what others need out of the L2, the GPU's translations above all. */
template <bool PASSING, typename piece>
static __device__ __forceinline__ void store_piece(piece *to, piece value) {
    if (PASSING)
        __stcs(to, value);
    else
        *to = value;
}

/* Rows and where they go: both in shared or both in global memory. */
struct fetch_list {
    const hsp__cuda_miss *miss;
    const uint16_t *victim; /* by the number of the miss: its slot */
    uint32_t n, first_id;   /* first_id: row id of slot 0 */
};

/* Fetch the rows of a list with all threads of the block. set_off: called by every thread, once, when its last loads
 * are on their way. */
template <typename piece, int IN_FLIGHT, bool PLAIN, bool PASSING, typename then>
static __device__ __forceinline__ void fetch_pieces(const hsp__cuda_rows &rows, const fetch_list &list, then set_off) {
    const uint32_t total = list.n * rows.row_pieces.by, stride = blockDim.x;
    for (uint32_t base = 0; base < total; base += stride * IN_FLIGHT) {
        const uint32_t c = base + threadIdx.x;
        piece value[IN_FLIGHT];
        piece *to[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            uint32_t i = c + u * stride;
            if (i < total) {
                uint32_t r = divide(i, rows.row_pieces), q = i - r * rows.row_pieces.by;
                hsp__cuda_miss miss = list.miss[r];
                uint32_t id = list.first_id + list.victim[miss.number];
                const piece *from = (const piece *)host_row_at(rows, miss.host_row);
                if (PLAIN)
                    to[u] = plain_piece<piece>(rows, id, q);
                else {
                    uint32_t layer = divide(q, rows.layer_pieces);
                    q -= layer * rows.layer_pieces.by;
                    from += layer * rows.host_layer_pieces;
                    to[u] = device_piece<piece>(rows, rows.group_layer[layer], id, q);
                }
                value[u] = load_host(from + q);
            }
        }
        if (base + stride * IN_FLIGHT >= total)
            set_off();
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (c + u * stride < total)
                store_piece<PASSING>(to[u], value[u]);
    }
}

/* The same for rows of any kind and number, in rounds whose pieces can be counted in 31 bits. Plain rows need no
 * rounds: at most 8192 of 4096 pieces (is_plain in geometry.c). */
template <bool PLAIN, bool PASSING, typename then>
static __device__ __forceinline__ void fetch_rows(const hsp__cuda_rows &rows, const fetch_list &list, int in_flight,
                                                  then set_off) {
    if (PLAIN && in_flight < 4)
        fetch_pieces<uint4, 2, true, PASSING>(rows, list, set_off);
    else if (PLAIN)
        fetch_pieces<uint4, 4, true, PASSING>(rows, list, set_off);
    if (PLAIN)
        return;
    const uint32_t most = 0x7fffffffu / rows.row_pieces.by;
    for (uint32_t first = 0; first < list.n; first += most) {
        fetch_list round = {list.miss + first, list.victim, min(list.n - first, most), list.first_id};
        auto last = [&] {
            if (list.n - first <= most)
                set_off();
        };
        if (rows.piece_bytes == 16)
            fetch_pieces<uint4, 2, false, PASSING>(rows, round, last);
        else if (rows.piece_bytes == 8)
            fetch_pieces<uint2, 2, false, PASSING>(rows, round, last);
        else
            fetch_pieces<uint32_t, 2, false, PASSING>(rows, round, last);
    }
}

/* A warp holds one plain row on its way from host memory: started before the row's slot is known. */
template <int PIECES>
struct held_row {
    uint4 piece[PIECES > 0 ? PIECES : 1];
};

template <int PIECES>
static __device__ __forceinline__ void hold_row(held_row<PIECES> &h, const hsp__cuda_rows &rows, uint32_t host_row) {
    const uint4 *from = (const uint4 *)host_row_at(rows, host_row);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        uint32_t q = threadIdx.x % 32 + 32 * i;
        if (q < rows.row_pieces.by)
            h.piece[i] = load_host(from + q);
    }
}

template <int PIECES>
static __device__ __forceinline__ void put_row(const held_row<PIECES> &h, const hsp__cuda_rows &rows, uint32_t id) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        uint32_t q = threadIdx.x % 32 + 32 * i;
        if (q < rows.row_pieces.by)
            *plain_piece<uint4>(rows, id, q) = h.piece[i];
    }
}

#endif
