/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA attention for compute capability 9.0. A block has 64 heads and one chunk of the rows. Four warpgroups, each with
 * a part of its own, hand tiles of 64 rows on:
 *
 *   loader    gathers rows into one of two tiles in shared memory, as bf16, swizzled as wgmma wants them
 *   scorer    S = Q K^T, running maximum, weights P = 2^(S - maximum) as bf16 into shared memory, and by how much that
 *             makes earlier sums fade
 *   two sums  O = fade O + P V, 256 channels each, in registers; V is the tile that was K
 *
 * Tile i is in buffer i % 2. filled[buffer][part] says that a third of its columns is there, weighed that P of the
 * latest tile is there, emptied[buffer] that both sums have done with the tile and with P. While the sums work on tile
 * i the scorer works on tile i + 1.
 */
#include "mla_launch.h"
#include "mla_rows.cuh"
#include "mla_wgmma.cuh"

#define TILE         HSP_ATTENTION_TILE
#define HEADS        HSP__MLA_HEADS
#define THREADS      512
#define VALUE_DIM    512
#define COLUMN_BYTES (TILE * 128) /* 64 channels of a tile, or of Q */
#define PARTS        3            /* in which a tile is filled */

/* Roles, by warpgroup, and registers a thread of each; together 4 * 128. */
enum { FIRST_SUM = 0, SECOND_SUM = 1, SCORER = 2, LOADER = 3 };
#define SUM_REGISTERS    160
#define SCORER_REGISTERS 88
#define LOADER_REGISTERS 104

/* At 1024 bytes. The exchange of results comes over Q and the tiles once nobody reads them any more. */
template <int FORMAT>
struct shared_state {
    unsigned char query[mla_format<FORMAT>::COLUMNS * COLUMN_BYTES];
    unsigned char tile[2][mla_format<FORMAT>::COLUMNS * COLUMN_BYTES];
    unsigned char weights[COLUMN_BYTES];
    float fade[HEADS];
    uint64_t filled[2][PARTS], emptied[2], weighed;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Where piece p of row r is in a column. */
static __device__ __forceinline__ uint32_t swizzled(uint32_t r, uint32_t p) {
    return r * 128 + ((p ^ r % 8) << 4);
}

/* The part a column is filled with: thirds, as even as can be. */
static __device__ __forceinline__ constexpr int first_column(int columns, int part) {
    return part * 3 < columns ? part * 3 : columns;
}

/* ------------------------------------------------------------------------------------------------------- loader -- */

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

template <int PART, int COLUMNS>
static __device__ __forceinline__ void copy_part(const char *const (&from)[4], const loader_rows &rows, uint32_t to) {
#pragma unroll
    for (int c = first_column(COLUMNS, PART); c < first_column(COLUMNS, PART + 1); c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            hsp__copy16(to + c * COLUMN_BYTES + i * 2048, from[i] + (rows.id[i] < 0 ? 0 : c * 128), rows.id[i] >= 0);
    hsp__copies_commit();
}

/* Rows of bf16 go straight to shared memory. That a part is there can only be said by its writer, after a fence, so it
 * waits for each; the next tile's buffer does not become free before that. */
static __device__ __forceinline__ void load_plain(shared_state<HSP_MLA_BF16> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    const int COLUMNS = mla_format<HSP_MLA_BF16>::COLUMNS;
    loader_rows rows = load_ids(a, j, j.tile);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const int buffer = n & 1;
        const uint32_t to = place_in(sm, buffer);
        const char *from[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            from[i] = rows.id[i] < 0 ? a.plane[0].base : hsp__row_at(a.plane[0], rows.id[i]) + threadIdx.x % 8 * 16;
        barrier_wait(hsp__shared(&sm.emptied[buffer]), (n >> 1 & 1) ^ 1);
        copy_part<0, COLUMNS>(from, rows, to);
        copy_part<1, COLUMNS>(from, rows, to);
        copy_part<2, COLUMNS>(from, rows, to);
        rows = load_ids(a, j, j.tile + n + 1);
        hsp__copies_wait<2>();
        publish_stores();
        barrier_arrive(hsp__shared(&sm.filled[buffer][0]));
        hsp__copies_wait<1>();
        publish_stores();
        barrier_arrive(hsp__shared(&sm.filled[buffer][1]));
        hsp__copies_wait<0>();
        publish_stores();
        barrier_arrive(hsp__shared(&sm.filled[buffer][2]));
    }
}

template <int FORMAT>
static __device__ __forceinline__ void store_unpacked(const packed_row<FORMAT> &row, uint32_t to) {
#pragma unroll
    for (int c = 0; c < mla_format<FORMAT>::COLUMNS; c++)
        hsp__store16(to + c * COLUMN_BYTES, unpack_piece<FORMAT>(row, c));
}

/* Packed rows go through registers, one of a thread's four ahead of the one that is unpacked. */
template <int FORMAT>
static __device__ __forceinline__ void load_unpacked(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                     const hsp__job &j) {
    const int lane = threadIdx.x % 8;
    loader_rows rows = load_ids(a, j, j.tile);
    packed_row<FORMAT> even, odd;
    load_packed<FORMAT>(a, rows.id[0], lane, even);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const int buffer = n & 1;
        const uint32_t to = place_in<FORMAT>(sm, buffer);
        load_packed<FORMAT>(a, rows.id[1], lane, odd);
        barrier_wait(hsp__shared(&sm.emptied[buffer]), (n >> 1 & 1) ^ 1);
        store_unpacked<FORMAT>(even, to);
        load_packed<FORMAT>(a, rows.id[2], lane, even);
        const loader_rows next = load_ids(a, j, j.tile + n + 1);
        store_unpacked<FORMAT>(odd, to + 2048);
        load_packed<FORMAT>(a, rows.id[3], lane, odd);
        store_unpacked<FORMAT>(even, to + 2 * 2048);
        load_packed<FORMAT>(a, next.id[0], lane, even);
        store_unpacked<FORMAT>(odd, to + 3 * 2048);
        rows = next;
        publish_stores();
        for (int part = 0; part < PARTS; part++)
            barrier_arrive(hsp__shared(&sm.filled[buffer][part]));
    }
}

static __device__ __forceinline__ void load_tiles(shared_state<HSP_MLA_BF16> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    load_plain(sm, a, j);
}

template <int FORMAT>
static __device__ __forceinline__ void load_tiles(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    load_unpacked<FORMAT>(sm, a, j);
}

/* Q, rounded to bf16, by the three other warpgroups; heads there are not: zeros. */
template <int FORMAT>
static __device__ __forceinline__ void load_query(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    const uint32_t PIECES = mla_format<FORMAT>::COLUMNS * 8;
    const float *query = a.query + (j.query * a.n_heads + j.first_head) * (int64_t)(PIECES * 8);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < HEADS * PIECES; i += 384) {
        uint32_t head = i / PIECES, piece = i % PIECES;
        float4 x = {0, 0, 0, 0}, y = x;
        if ((int32_t)head < j.n_heads) {
            x = __ldg((const float4 *)(query + head * PIECES * 8) + 2 * piece);
            y = __ldg((const float4 *)(query + head * PIECES * 8) + 2 * piece + 1);
        }
        __nv_bfloat162 pair[4] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w),
                                  __floats2bfloat162_rn(y.x, y.y), __floats2bfloat162_rn(y.z, y.w)};
        hsp__store16(hsp__shared(sm.query) + piece / 8 * COLUMN_BYTES + swizzled(head, piece % 8), *(uint4 *)pair);
    }
    publish_stores();
}

/* ------------------------------------------------------------------------------------------------------- scorer -- */

/* Which of a tile's rows there are; a warp asks for all 64. */
static __device__ __forceinline__ uint64_t rows_there(const hsp__attention &a, const hsp__job &j, int32_t tile) {
    const int32_t lane = threadIdx.x % 32;
    bool low = tile < j.end && hsp__id_at(a, j, tile * TILE + lane) >= 0;
    bool high = tile < j.end && hsp__id_at(a, j, tile * TILE + 32 + lane) >= 0;
    return __ballot_sync(~0u, low) | (uint64_t)__ballot_sync(~0u, high) << 32;
}

/* The part's share of S. */
template <int FORMAT, int PART>
static __device__ __forceinline__ void score_part(const shared_state<FORMAT> &sm, int buffer, float (&scores)[32]) {
    const int COLUMNS = mla_format<FORMAT>::COLUMNS;
    const uint64_t q = operand_at(hsp__shared(sm.query), 16), k = operand_at(hsp__shared(sm.tile[buffer]), 16);
    products_begin();
#pragma unroll
    for (int c = first_column(COLUMNS, PART); c < first_column(COLUMNS, PART + 1); c++)
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const int at = c * (COLUMN_BYTES >> 4) + step * 2;
            product_64(scores, q + at, k + at, c + step > 0);
        }
    products_commit();
}

/* What a thread of the scorer keeps of its two heads, lane / 4 and lane / 4 + 8 of the warp's 16. */
struct running {
    float top[2], sum[2];
};

/* Scores to weights, in place; fade: what earlier sums are to be multiplied with. */
static __device__ __forceinline__ void weigh(float (&scores)[32], uint64_t there, float scale, running &run,
                                             float (&fade)[2]) {
    const uint32_t low = (uint32_t)there >> threadIdx.x % 4 * 2, high = (uint32_t)(there >> 32) >> threadIdx.x % 4 * 2;
    float most[2] = {-FLT_MAX, -FLT_MAX};
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int bit = i / 4 * 8 + i % 2;
        const bool mine = (bit < 32 ? low >> bit : high >> (bit - 32)) & 1;
        scores[i] = mine ? scores[i] * scale : -INFINITY;
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], scores[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = fmaxf(run.top[h], hsp__row_max(most[h]));
        fade[h] = hsp__power(run.top[h] - most[h]);
        run.top[h] = most[h];
        run.sum[h] *= fade[h];
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        scores[i] = hsp__power(scores[i] - most[i / 2 % 2]);
        run.sum[i / 2 % 2] += scores[i];
    }
}

/* P and the fading, for the sums. */
template <int FORMAT>
static __device__ __forceinline__ void store_weights(shared_state<FORMAT> &sm, const float (&weights)[32],
                                                     const float (&fade)[2]) {
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(weights[i], weights[i + 1]);
        *(uint32_t *)(sm.weights + swizzled(row + i / 2 % 2 * 8, i / 4) + lane % 4 * 4) = *(uint32_t *)&pair;
    }
    if (lane % 4 == 0)
        sm.fade[row] = fade[0], sm.fade[row + 8] = fade[1];
}

template <int FORMAT>
static __device__ __forceinline__ running score_tiles(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                      const hsp__job &j) {
    running run = {{-FLT_MAX, -FLT_MAX}, {0.0f, 0.0f}};
    uint64_t there = rows_there(a, j, j.tile);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const int buffer = n & 1, parity = n >> 1 & 1;
        float scores[32], fade[2];
        barrier_wait(hsp__shared(&sm.filled[buffer][0]), parity);
        score_part<FORMAT, 0>(sm, buffer, scores);
        barrier_wait(hsp__shared(&sm.filled[buffer][1]), parity);
        score_part<FORMAT, 1>(sm, buffer, scores);
        barrier_wait(hsp__shared(&sm.filled[buffer][2]), parity);
        score_part<FORMAT, 2>(sm, buffer, scores);
        const uint64_t next = rows_there(a, j, j.tile + n + 1);
        products_wait();
        weigh(scores, there, a.scale, run, fade);
        there = next;
        if (n > 0)
            barrier_wait(hsp__shared(&sm.emptied[buffer ^ 1]), n - 1 >> 1 & 1);
        store_weights(sm, scores, fade);
        publish_stores();
        barrier_arrive(hsp__shared(&sm.weighed));
    }
    run.sum[0] = hsp__row_sum(run.sum[0]);
    run.sum[1] = hsp__row_sum(run.sum[1]);
    return run;
}

/* --------------------------------------------------------------------------------------------------------- sums -- */

template <int FORMAT>
static __device__ __forceinline__ void fade_values(const shared_state<FORMAT> &sm, float (&values)[2][64]) {
    const uint32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const float fade[2] = {sm.fade[row], sm.fade[row + 8]};
    if (__any_sync(~0u, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            values[i / 64][i % 64] *= fade[i / 2 % 2];
    }
}

/* Channels 256 * half and on. */
template <int FORMAT>
static __device__ __forceinline__ void sum_tiles(shared_state<FORMAT> &sm, const hsp__job &j, int half,
                                                 float (&values)[2][64]) {
#pragma unroll
    for (int i = 0; i < 128; i++)
        values[i / 64][i % 64] = 0.0f;
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const int buffer = n & 1;
        const uint64_t p = operand_at(hsp__shared(sm.weights), 16);
        const uint64_t v = operand_at(hsp__shared(sm.tile[buffer]) + half * 4 * COLUMN_BYTES, COLUMN_BYTES);
        barrier_wait(hsp__shared(&sm.weighed), n & 1);
        fade_values(sm, values);
        products_begin();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            product_128(values[0], p + step * 2, v + step * (2048 >> 4));
            product_128(values[1], p + step * 2, v + step * (2048 >> 4) + 2 * (COLUMN_BYTES >> 4));
        }
        products_commit();
        products_wait();
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(hsp__shared(&sm.emptied[buffer]));
    }
}

/* ---------------------------------------------------------------------------------------------------- the roles -- */

template <int FORMAT>
static __device__ __forceinline__ void be_sum(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j,
                                              int half) {
    float values[2][64];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    load_query(sm, a, j);
    asm volatile("bar.arrive 1, 384;" ::: "memory");
    sum_tiles(sm, j, half, values);
    hsp__cluster_sync();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        hsp__place to = hsp__place_of(a, j, HEADS, &sm, (int32_t)(warp % 4 * 16 + lane / 4 + h * 8));
        if (!to.wanted)
            continue;
#pragma unroll
        for (int i = 2 * h; i < 128; i += 4)
            hsp__send(to.values + 4 * (half * 256 + i / 4 * 8 + lane % 4 * 2), values[i / 64][i % 64],
                      values[i / 64][i % 64 + 1]);
    }
    hsp__cluster_sync();
    hsp__combine(a, j, HEADS, (const float *)&sm, (int32_t)warp, 8);
}

template <int FORMAT>
static __device__ __forceinline__ void be_scorer(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j) {
    load_query(sm, a, j);
    asm volatile("bar.sync 1, 384;" ::: "memory");
    const running run = score_tiles(sm, a, j);
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    hsp__cluster_sync();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        hsp__place to = hsp__place_of(a, j, HEADS, &sm, (int32_t)row + h * 8);
        if (to.wanted && lane % 4 == 0)
            hsp__send(to.sums, run.top[h], run.sum[h]);
    }
    hsp__cluster_sync();
}

template <int FORMAT>
static __device__ __forceinline__ void be_loader(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j) {
    load_tiles(sm, a, j);
    hsp__cluster_sync();
    hsp__cluster_sync();
}

template <int FORMAT>
static __device__ __forceinline__ void make_barriers(shared_state<FORMAT> &sm) {
    for (int b = 0; b < 2; b++) {
        for (int part = 0; part < PARTS; part++)
            barrier_init(hsp__shared(&sm.filled[b][part]), 128); /* threads of the loader */
        barrier_init(hsp__shared(&sm.emptied[b]), 8);            /* warps of the sums */
    }
    barrier_init(hsp__shared(&sm.weighed), 128); /* threads of the scorer */
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

template <int FORMAT>
static __device__ __forceinline__ void attend(const hsp__attention &a, unsigned char *memory) {
    shared_state<FORMAT> &sm = *(shared_state<FORMAT> *)memory;
    const hsp__job job = hsp__job_of(a, HEADS);
    if (threadIdx.x == 0) {
        if (hsp__shared(memory) % 1024)
            __trap(); /* descriptors and swizzle count on it */
        make_barriers(sm);
    }
    __syncthreads();
    const int role = threadIdx.x / 128;
    if (role == LOADER) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
        be_loader(sm, a, job);
    } else if (role == SCORER) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SCORER_REGISTERS));
        be_scorer(sm, a, job);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(SUM_REGISTERS));
        be_sum(sm, a, job, role);
    }
}
#endif

template <int FORMAT>
__global__ void __launch_bounds__(THREADS, 1) mla_hopper_kernel(const __grid_constant__ hsp__attention a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char memory[];
    attend<FORMAT>(a, memory);
#endif
}

template <int FORMAT>
static int launch(const hsp__attention &a, const hsp_gpu_batch *batch, void *stream) {
    unsigned blocks;
    int status = hsp__attention_blocks(a, batch, &blocks);
    return status ? status
                  : hsp__gpu_launch((const void *)mla_hopper_kernel<FORMAT>, dim3(blocks), THREADS, a.n_chunks,
                                    sizeof(shared_state<FORMAT>), &a, stream);
}

int hsp__mla_hopper_launch(const hsp__attention &a, int32_t format, const hsp_gpu_batch *batch, void *stream) {
    if (format == HSP_MLA_BF16)
        return launch<HSP_MLA_BF16>(a, batch, stream);
    return format == HSP_MLA_FP8 ? launch<HSP_MLA_FP8>(a, batch, stream) : launch<HSP_MLA_V4>(a, batch, stream);
}
