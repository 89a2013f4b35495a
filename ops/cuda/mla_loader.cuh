/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in a block's shared memory in MLA attention for compute capability 9.0, and the warpgroup that gathers rows
 * into it, as bf16, swizzled as wgmma wants them.
 *
 * There is room for two tiles, so two are all that hides the chain of gathering, scoring, weighing and summing. Tile n
 * of the block is in buffer n % 2, in four parts of two columns of 64 channels, which come and go each by itself.
 * filled[buffer][part]: the part is there. emptied[buffer][part]: its last reader has done with it. Worker n % 2 is
 * first to be done with its half of the channels (mla_hopper.cu), so that half makes parts 0 and 1, is gathered anew
 * first, and scored first.
 */
#ifndef HSP_MLA_LOADER_CUH
#define HSP_MLA_LOADER_CUH

#include "mla_launch.h"
#include "mla_rows.cuh"
#include "mla_wgmma.cuh"

#define TILE         HSP_ATTENTION_TILE
#define HEADS        HSP__MLA_HEADS
#define COLUMN_BYTES (TILE * 128) /* 64 channels of a tile, or of Q */
#define PARTS        4
#define ROPE         8 /* the column that is no value, and then P */

/* At 1024 bytes. Results come over Q and the tiles once nobody reads them any more. */
template <int FORMAT>
struct shared_state {
    unsigned char query[mla_format<FORMAT>::COLUMNS * COLUMN_BYTES];
    unsigned char tile[2][(ROPE + 1) * COLUMN_BYTES];
    float top[2][HEADS]; /* running maximum once the buffer's tile has been weighed */
    float sum[HEADS];    /* worker 1's share */
    uint64_t filled[2][PARTS], emptied[2][PARTS], weighed[2];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Where piece p of row r is in a column. */
static __device__ __forceinline__ uint32_t swizzled(uint32_t r, uint32_t p) {
    return r * 128 + ((p ^ r % 8) << 4);
}

/* The first of a part's two columns. The last part has the rope, too, where that is a ninth column. */
static __device__ __forceinline__ int first_column(int buffer, int part) {
    return (part / 2 ^ buffer) * 4 + part % 2 * 2;
}

/* Rows r, r + 16, r + 32 and r + 48 of a tile are a thread's, with the seven threads beside it. */
struct loader_rows {
    int32_t id[4];
};

static __device__ __forceinline__ loader_rows load_ids(const hsp__attention &a, const hsp__job &j, int32_t tile) {
    loader_rows rows;
#pragma unroll
    for (int i = 0; i < 4; i++)
        rows.id[i] = tile < j.end ? hsp__id_at(a, j, tile * TILE + (int32_t)(threadIdx.x % 128 / 8) + i * 16) : -1;
    return rows;
}

template <int FORMAT>
static __device__ __forceinline__ uint32_t place_in(const shared_state<FORMAT> &sm, int buffer) {
    return hsp__shared(sm.tile[buffer]) + swizzled(threadIdx.x % 128 / 8, threadIdx.x % 8);
}

/* --------------------------------------------------------------------------------------------------------- bf16 -- */

static __device__ __forceinline__ void copy_column(uint32_t to, const char *const (&from)[4], const loader_rows &rows,
                                                   int column) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        hsp__copy16(to + column * COLUMN_BYTES + i * 2048, from[i] + column * 128, rows.id[i] >= 0);
}

template <int PART>
static __device__ __forceinline__ void copy_part(shared_state<HSP_MLA_BF16> &sm, const char *const (&from)[4],
                                                 const loader_rows &rows, int32_t n) {
    const int buffer = n & 1, column = first_column(buffer, PART);
    const uint32_t to = place_in(sm, buffer);
    barrier_wait(hsp__shared(&sm.emptied[buffer][PART]), (n >> 1 & 1) ^ 1);
    copy_column(to, from, rows, column);
    copy_column(to, from, rows, column + 1);
    if (PART == PARTS - 1)
        copy_column(to, from, rows, ROPE);
    barrier_arrive_copied(hsp__shared(&sm.filled[buffer][PART]));
}

/* Rows of bf16 go straight to shared memory. The loader never waits for them, only for room. */
static __device__ __forceinline__ void load_tiles(shared_state<HSP_MLA_BF16> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    loader_rows rows = load_ids(a, j, j.tile);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const char *from[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            from[i] = hsp__row_at(a.plane[0], max(rows.id[i], 0)) + threadIdx.x % 8 * 16;
        const loader_rows next = load_ids(a, j, j.tile + n + 1);
        copy_part<0>(sm, from, rows, n);
        copy_part<1>(sm, from, rows, n);
        copy_part<2>(sm, from, rows, n);
        copy_part<3>(sm, from, rows, n);
        rows = next;
    }
}

/* ------------------------------------------------------------------------------------------------------- packed -- */

template <int FORMAT>
struct loader_state {
    packed_row<FORMAT> row[4];
    loader_rows next;
};

/* Half HALF of the next tile's channels into the registers; with the LAST one what all columns need. */
template <int FORMAT, int HALF, int LAST>
static __device__ __forceinline__ void fetch_half(const hsp__attention &a, loader_state<FORMAT> &l) {
    const int lane = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        load_columns<FORMAT, HALF * 4, HALF * 4 + 4>(a, l.next.id[i], lane, l.row[i]);
        if (LAST && mla_format<FORMAT>::COLUMNS > ROPE)
            load_columns<FORMAT, ROPE, ROPE + 1>(a, l.next.id[i], lane, l.row[i]);
        if (LAST)
            load_scales<FORMAT>(a, l.next.id[i], l.row[i]);
    }
}

/* A half of tile n out of the registers, and the same half of the next tile into them. */
template <int FORMAT, int HALF, int LAST>
static __device__ __forceinline__ void unpack_half(shared_state<FORMAT> &sm, const hsp__attention &a, int32_t n,
                                                   loader_state<FORMAT> &l) {
    const int buffer = n & 1, parity = (n >> 1 & 1) ^ 1;
    const int END = LAST ? mla_format<FORMAT>::COLUMNS : ROPE;
    const uint32_t to = place_in(sm, buffer);
    barrier_wait(hsp__shared(&sm.emptied[buffer][2 * LAST]), parity);
    barrier_wait(hsp__shared(&sm.emptied[buffer][2 * LAST + 1]), parity);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = HALF * 4; c < END; c++)
            if (c < HALF * 4 + 4 || c == ROPE)
                hsp__store16(to + c * COLUMN_BYTES + i * 2048, unpack_piece<FORMAT>(l.row[i], c));
    publish_stores();
    barrier_arrive(hsp__shared(&sm.filled[buffer][2 * LAST]));
    barrier_arrive(hsp__shared(&sm.filled[buffer][2 * LAST + 1]));
    fetch_half<FORMAT, HALF, LAST>(a, l);
}

/* Packed rows go through registers, a tile ahead. */
template <int FORMAT>
static __device__ __forceinline__ void load_tiles(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    loader_state<FORMAT> l;
    l.next = load_ids(a, j, j.tile);
    fetch_half<FORMAT, 0, 0>(a, l);
    fetch_half<FORMAT, 1, 1>(a, l);
    l.next = load_ids(a, j, j.tile + 1);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        if (n & 1) {
            unpack_half<FORMAT, 1, 0>(sm, a, n, l);
            unpack_half<FORMAT, 0, 1>(sm, a, n, l);
        } else {
            unpack_half<FORMAT, 0, 0>(sm, a, n, l);
            unpack_half<FORMAT, 1, 1>(sm, a, n, l);
        }
        l.next = load_ids(a, j, j.tile + n + 2);
    }
}

#endif
#endif
