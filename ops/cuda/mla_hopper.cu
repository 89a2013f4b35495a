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
 * There is room for two tiles, and a tile is there for as long as it takes to gather, score, weigh and sum it, so two
 * tiles are all that hides that chain. It is kept short: tile i is in buffer i % 2, in four parts of two columns of 64
 * channels. filled[buffer][part] says that a part is there, upon which it is scored, while the next ones come.
 * emptied[buffer][half] says that both sums have done with the first two or the last two parts, which are then
 * gathered anew. weighed[buffer] says that P is there, which lies where the rope lay: nobody needs that once S is done.
 */
#include "mla_launch.h"
#include "mla_rows.cuh"
#include "mla_wgmma.cuh"

#define TILE         HSP_ATTENTION_TILE
#define HEADS        HSP__MLA_HEADS
#define THREADS      512
#define VALUE_DIM    512
#define COLUMN_BYTES (TILE * 128) /* 64 channels of a tile, or of Q */
#define PARTS        4            /* of a tile, two halves of two */
#define ROPE         8            /* the column that is no value, and then P */

/* Roles, by warpgroup. */
enum { FIRST_SUM = 0, SECOND_SUM = 1, SCORER = 2, LOADER = 3 };

/* Meetings, of the sums and the scorer: Q is there; nobody reads it, nor tiles, any more. Of the scorer: S is done. */
enum { QUERY_THERE = 1, TILES_DONE = 2, SCORED = 3 };

/* Registers a thread of each role; together 4 * 128. The loader of packed rows has a tile on its way in them. */
template <int FORMAT>
struct registers {
    static const int SUM = 160, LOADER = FORMAT == HSP_MLA_BF16 ? 96 : FORMAT == HSP_MLA_FP8 ? 120 : 104;
    static const int SCORER = 512 - 2 * SUM - LOADER;
};

/* At 1024 bytes. Results come over Q and the tiles once nobody reads them any more. */
template <int FORMAT>
struct shared_state {
    unsigned char query[mla_format<FORMAT>::COLUMNS * COLUMN_BYTES];
    unsigned char tile[2][(ROPE + 1) * COLUMN_BYTES];
    float fade[2][HEADS];
    uint64_t filled[2][PARTS], emptied[2][2], weighed[2];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Where piece p of row r is in a column. */
static __device__ __forceinline__ uint32_t swizzled(uint32_t r, uint32_t p) {
    return r * 128 + ((p ^ r % 8) << 4);
}

/* Columns of a part: of each sum's four columns the first two are in the first half of the parts. The last part has the
 * rope, too. */
static __device__ __forceinline__ constexpr int first_column(int part) {
    return part % 2 * 4 + part / 2 * 2;
}

static __device__ __forceinline__ constexpr int end_column(int columns, int part) {
    return part == PARTS - 1 ? columns : first_column(part) + 2;
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

template <int PART>
static __device__ __forceinline__ void copy_part(shared_state<HSP_MLA_BF16> &sm, const char *const (&from)[4],
                                                 const loader_rows &rows, int buffer) {
    const uint32_t to = place_in(sm, buffer);
#pragma unroll
    for (int c = first_column(PART); c < end_column(mla_format<HSP_MLA_BF16>::COLUMNS, PART); c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            hsp__copy16(to + c * COLUMN_BYTES + i * 2048, from[i] + c * 128, rows.id[i] >= 0);
    barrier_arrive_copied(hsp__shared(&sm.filled[buffer][PART]));
}

/* Rows of bf16 go straight to shared memory. The loader never waits for them, only for room. */
static __device__ __forceinline__ void load_tiles(shared_state<HSP_MLA_BF16> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    loader_rows rows = load_ids(a, j, j.tile);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const int buffer = n & 1, parity = (n >> 1 & 1) ^ 1;
        const char *from[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            from[i] = hsp__row_at(a.plane[0], max(rows.id[i], 0)) + threadIdx.x % 8 * 16;
        const loader_rows next = load_ids(a, j, j.tile + n + 1);
        barrier_wait(hsp__shared(&sm.emptied[buffer][0]), parity);
        copy_part<0>(sm, from, rows, buffer);
        copy_part<1>(sm, from, rows, buffer);
        barrier_wait(hsp__shared(&sm.emptied[buffer][1]), parity);
        copy_part<2>(sm, from, rows, buffer);
        copy_part<3>(sm, from, rows, buffer);
        rows = next;
    }
}

template <int FORMAT>
struct loader_state {
    packed_row<FORMAT> row[4];
    loader_rows next;
};

/* A half of a tile out of the registers, and the same half of the next tile into them. */
template <int FORMAT, int HALF>
static __device__ __forceinline__ void unpack_half(shared_state<FORMAT> &sm, const hsp__attention &a, int32_t n,
                                                   loader_state<FORMAT> &l) {
    const int COLUMNS = mla_format<FORMAT>::COLUMNS, lane = threadIdx.x % 8, buffer = n & 1;
    const int LOW = first_column(2 * HALF), HIGH = first_column(2 * HALF + 1), END = end_column(COLUMNS, 2 * HALF + 1);
    const uint32_t to = place_in(sm, buffer);
    barrier_wait(hsp__shared(&sm.emptied[buffer][HALF]), (n >> 1 & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = LOW; c < END; c++)
            if (c < LOW + 2 || c >= HIGH)
                hsp__store16(to + c * COLUMN_BYTES + i * 2048, unpack_piece<FORMAT>(l.row[i], c));
    publish_stores();
    barrier_arrive(hsp__shared(&sm.filled[buffer][2 * HALF]));
    barrier_arrive(hsp__shared(&sm.filled[buffer][2 * HALF + 1]));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        load_columns<FORMAT, LOW, LOW + 2>(a, l.next.id[i], lane, l.row[i]);
        load_columns<FORMAT, HIGH, END>(a, l.next.id[i], lane, l.row[i]);
    }
}

/* Packed rows go through registers, a tile ahead. */
template <int FORMAT>
static __device__ __forceinline__ void load_tiles(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    loader_state<FORMAT> l;
    l.next = load_ids(a, j, j.tile);
#pragma unroll
    for (int i = 0; i < 4; i++)
        load_packed<FORMAT>(a, l.next.id[i], threadIdx.x % 8, l.row[i]);
    l.next = load_ids(a, j, j.tile + 1);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        unpack_half<FORMAT, 0>(sm, a, n, l);
        unpack_half<FORMAT, 1>(sm, a, n, l);
        l.next = load_ids(a, j, j.tile + n + 2);
    }
}

/* Piece p of Q, rounded to bf16; heads there are not: zeros. */
template <int FORMAT>
static __device__ __forceinline__ void store_query(shared_state<FORMAT> &sm, uint32_t i, float4 x, float4 y) {
    const uint32_t PIECES = mla_format<FORMAT>::COLUMNS * 8, head = i / PIECES, piece = i % PIECES;
    __nv_bfloat162 pair[4] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w),
                              __floats2bfloat162_rn(y.x, y.y), __floats2bfloat162_rn(y.z, y.w)};
    hsp__store16(hsp__shared(sm.query) + piece / 8 * COLUMN_BYTES + swizzled(head, piece % 8), *(uint4 *)pair);
}

/* Q, by the three other warpgroups, six pieces of a thread at a time. */
template <int FORMAT>
static __device__ __forceinline__ void load_query(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    const uint32_t PIECES = mla_format<FORMAT>::COLUMNS * 8;
    const float4 *query = (const float4 *)(a.query + (j.query * a.n_heads + j.first_head) * (int64_t)(PIECES * 8));
    for (uint32_t first = threadIdx.x; first < HEADS * PIECES; first += 6 * 384) {
        float4 x[6] = {}, y[6] = {};
#pragma unroll
        for (uint32_t k = 0; k < 6; k++) {
            const uint32_t i = first + k * 384;
            if (i < (uint32_t)j.n_heads * PIECES)
                x[k] = __ldg(query + 2 * i), y[k] = __ldg(query + 2 * i + 1);
        }
#pragma unroll
        for (uint32_t k = 0; k < 6; k++)
            if (first + k * 384 < HEADS * PIECES)
                store_query(sm, first + k * 384, x[k], y[k]);
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

/* A part's share of S, once it is there. */
template <int FORMAT, int PART>
static __device__ __forceinline__ void score_part(const shared_state<FORMAT> &sm, int buffer, int parity,
                                                  float (&scores)[32]) {
    const uint64_t q = operand_at(hsp__shared(sm.query), 16), k = operand_at(hsp__shared(sm.tile[buffer]), 16);
    barrier_wait(hsp__shared(&sm.filled[buffer][PART]), parity);
    publish_stores();
    products_begin();
#pragma unroll
    for (int c = first_column(PART); c < end_column(mla_format<FORMAT>::COLUMNS, PART); c++)
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
static __device__ __forceinline__ void store_weights(shared_state<FORMAT> &sm, int buffer, const float (&weights)[32],
                                                     const float (&fade)[2]) {
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    unsigned char *to = sm.tile[buffer] + ROPE * COLUMN_BYTES;
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(weights[i], weights[i + 1]);
        *(uint32_t *)(to + swizzled(row + i / 2 % 2 * 8, i / 4) + lane % 4 * 4) = *(uint32_t *)&pair;
    }
    if (lane % 4 == 0)
        sm.fade[buffer][row] = fade[0], sm.fade[buffer][row + 8] = fade[1];
}

template <int FORMAT>
static __device__ __forceinline__ running score_tiles(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                      const hsp__job &j) {
    running run = {{-FLT_MAX, -FLT_MAX}, {0.0f, 0.0f}};
    uint64_t there = rows_there(a, j, j.tile);
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const int buffer = n & 1, parity = n >> 1 & 1;
        float scores[32], fade[2];
        score_part<FORMAT, 0>(sm, buffer, parity, scores);
        score_part<FORMAT, 1>(sm, buffer, parity, scores);
        score_part<FORMAT, 2>(sm, buffer, parity, scores);
        score_part<FORMAT, 3>(sm, buffer, parity, scores);
        products_wait<0>();
        weigh(scores, there, a.scale, run, fade);
        group_sync<SCORED, 128>();
        store_weights(sm, buffer, scores, fade);
        publish_stores();
        barrier_arrive(hsp__shared(&sm.weighed[buffer]));
        there = rows_there(a, j, j.tile + n + 1);
    }
    run.sum[0] = hsp__row_sum(run.sum[0]);
    run.sum[1] = hsp__row_sum(run.sum[1]);
    return run;
}

/* --------------------------------------------------------------------------------------------------------- sums -- */

template <int FORMAT>
static __device__ __forceinline__ void fade_values(const shared_state<FORMAT> &sm, int buffer, float (&values)[2][64]) {
    const uint32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const float fade[2] = {sm.fade[buffer][row], sm.fade[buffer][row + 8]};
    if (__any_sync(~0u, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            values[i / 64][i % 64] *= fade[i / 2 % 2];
    }
}

static __device__ __forceinline__ void sum_half(uint64_t p, uint64_t v, float (&values)[64]) {
#pragma unroll
    for (int step = 0; step < 4; step++)
        product_128(values, p + step * 2, v + step * (2048 >> 4));
    products_commit();
}

static __device__ __forceinline__ void warp_arrive(const uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(hsp__shared(barrier));
}

/* Channels 256 * which and on. */
template <int FORMAT>
static __device__ __forceinline__ void sum_tiles(shared_state<FORMAT> &sm, const hsp__job &j, int which,
                                                 float (&values)[2][64]) {
#pragma unroll
    for (int i = 0; i < 128; i++)
        values[i / 64][i % 64] = 0.0f;
    for (int32_t n = 0; n < j.end - j.tile; n++) {
        const int buffer = n & 1;
        const uint64_t p = operand_at(hsp__shared(sm.tile[buffer]) + ROPE * COLUMN_BYTES, 16);
        const uint64_t v = operand_at(hsp__shared(sm.tile[buffer]) + which * 4 * COLUMN_BYTES, COLUMN_BYTES);
        barrier_wait(hsp__shared(&sm.weighed[buffer]), n >> 1 & 1);
        fade_values(sm, buffer, values);
        products_begin();
        sum_half(p, v, values[0]);
        sum_half(p, v + 2 * (COLUMN_BYTES >> 4), values[1]);
        products_wait<1>();
        warp_arrive(&sm.emptied[buffer][0]);
        products_wait<0>();
        warp_arrive(&sm.emptied[buffer][1]);
    }
}

/* ---------------------------------------------------------------------------------------------------- the roles -- */

template <int FORMAT>
static __device__ __forceinline__ void be_sum(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j,
                                              int which) {
    float values[2][64];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    load_query(sm, a, j);
    group_arrive<QUERY_THERE, 384>();
    sum_tiles(sm, j, which, values);
    group_sync<TILES_DONE, 384>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        hsp__place to = hsp__place_of(a, j, HEADS, &sm, (int32_t)(warp % 4 * 16 + lane / 4 + h * 8));
        if (!to.wanted)
            continue;
#pragma unroll
        for (int i = 2 * h; i < 128; i += 4)
            *(float2 *)(to.values + which * 256 + i / 4 * 8 + lane % 4 * 2) = {values[i / 64][i % 64],
                                                                               values[i / 64][i % 64 + 1]};
    }
    hsp__combine(a, j, HEADS, &sm, (int32_t)warp, THREADS / 32);
}

template <int FORMAT>
static __device__ __forceinline__ void be_scorer(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j) {
    load_query(sm, a, j);
    group_sync<QUERY_THERE, 384>();
    const running run = score_tiles(sm, a, j);
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    group_sync<TILES_DONE, 384>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        hsp__place to = hsp__place_of(a, j, HEADS, &sm, (int32_t)row + h * 8);
        if (to.wanted && lane % 4 == 0)
            *to.sums = {run.top[h], run.sum[h]};
    }
    hsp__combine(a, j, HEADS, &sm, (int32_t)threadIdx.x / 32, THREADS / 32);
}

template <int FORMAT>
static __device__ __forceinline__ void be_loader(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j) {
    load_tiles(sm, a, j);
    hsp__combine(a, j, HEADS, &sm, (int32_t)threadIdx.x / 32, THREADS / 32);
}

template <int FORMAT>
static __device__ __forceinline__ void make_barriers(shared_state<FORMAT> &sm) {
    for (int b = 0; b < 2; b++) {
        for (int part = 0; part < PARTS; part++)
            barrier_init(hsp__shared(&sm.filled[b][part]), 128); /* threads of the loader */
        for (int half = 0; half < 2; half++)
            barrier_init(hsp__shared(&sm.emptied[b][half]), 8); /* warps of the sums */
        barrier_init(hsp__shared(&sm.weighed[b]), 128);         /* threads of the scorer */
    }
    barriers_ready();
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
        take_registers<registers<FORMAT>::LOADER>();
        be_loader(sm, a, job);
    } else if (role == SCORER) {
        take_registers<registers<FORMAT>::SCORER>();
        be_scorer(sm, a, job);
    } else {
        take_registers<registers<FORMAT>::SUM>();
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
