/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA attention for compute capability 9.0. A block has 64 heads and one chunk of the rows, which a loader gathers tile
 * by tile (mla_loader.cuh). Two warpgroups, the workers, do the rest. Of the values each sums half of the channels of
 * all tiles, O = fade O + P V, in registers; V is the tile that was K. Of the tiles each scores and weighs every other
 * one: S = Q K^T, running maximum, weights P = 2^(S - maximum) as bf16, and by how much that makes earlier sums fade.
 *
 * Worker n % 2, tile n being its own, makes
 *
 *   the first half of S(n)    of its own half of the channels, which was gathered first
 *   P V of tile n - 1         P from shared memory, when the other worker has weighed it
 *   the second half of S(n)
 *   P(n)                      for the other worker, where the rope lay: nobody needs that once S is done
 *   P V of tile n             P from registers
 *
 * and the other one is then half a round behind, so one's products run while the other one weighs. weighed[buffer]
 * says that P is there. Every value of O is summed in ascending order of tiles, whoever has weighed them.
 */
#include "mla_loader.cuh"

#define THREADS   384
#define VALUE_DIM 512
#define WORKERS   256
#define LAUNCHED  168 /* registers a thread: what 384 threads can have */

enum { LOADER = 2 }; /* the warpgroup that is no worker */

/* Meetings, of the workers: Q is there; nobody reads it, nor tiles, any more. Of one worker (+ 0 or 1): S is done. */
enum { QUERY_THERE = 1, TILES_DONE = 2, SCORED = 3 };

/* Registers a thread of each role; together 3 * LAUNCHED. The loader of packed rows has a tile on its way in them. */
template <int FORMAT>
struct registers {
    static const int LOADER = FORMAT == HSP_MLA_BF16 ? 72 : 120;
    static const int WORKER = (3 * LAUNCHED - LOADER) / 2;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* -------------------------------------------------------------------------------------------------------- query -- */

/* Piece i of Q, rounded to bf16; heads there are not: zeros. */
template <int FORMAT>
static __device__ __forceinline__ void store_query(shared_state<FORMAT> &sm, uint32_t i, float4 x, float4 y) {
    const uint32_t PIECES = mla_format<FORMAT>::COLUMNS * 8, head = i / PIECES, piece = i % PIECES;
    __nv_bfloat162 pair[4] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w),
                              __floats2bfloat162_rn(y.x, y.y), __floats2bfloat162_rn(y.z, y.w)};
    hsp__store16(hsp__shared(sm.query) + piece / 8 * COLUMN_BYTES + swizzled(head, piece % 8), *(uint4 *)pair);
}

/* Q, by the workers, which have registers for all of it and so wait for memory once. */
template <int FORMAT>
static __device__ __forceinline__ void load_query(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                  const hsp__job &j) {
    const uint32_t PIECES = mla_format<FORMAT>::COLUMNS * 8, EACH = HEADS * PIECES / WORKERS;
    const float4 *query = (const float4 *)(a.query + (j.query * a.n_heads + j.first_head) * (int64_t)(PIECES * 8));
    float4 x[EACH] = {}, y[EACH] = {};
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = threadIdx.x + k * WORKERS;
        if (i < (uint32_t)j.n_heads * PIECES)
            x[k] = __ldg(query + 2 * i), y[k] = __ldg(query + 2 * i + 1);
    }
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        store_query(sm, threadIdx.x + k * WORKERS, x[k], y[k]);
    publish_stores();
}

/* ------------------------------------------------------------------------------------------------------ weights -- */

/* What a thread of a worker keeps: of its two heads, lane / 4 and lane / 4 + 8 of the warp's 16, the maximum of all
 * tiles and its share of the sum of weights; two columns' values in each of two. */
struct worker_state {
    float top[2], sum[2];
    float values[2][64];
};

/* Of a warp's first head's thread; the second head is 8 further. */
static __device__ __forceinline__ uint32_t first_row(void) {
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* Which of a tile's rows there are; a warp asks for all 64. */
static __device__ __forceinline__ uint64_t rows_there(const hsp__attention &a, const hsp__job &j, int32_t tile) {
    const int32_t lane = threadIdx.x % 32;
    const bool low = hsp__id_at(a, j, tile * TILE + lane) >= 0, high = hsp__id_at(a, j, tile * TILE + 32 + lane) >= 0;
    return __ballot_sync(~0u, low) | (uint64_t)__ballot_sync(~0u, high) << 32;
}

template <int FORMAT>
static __device__ __forceinline__ void score_columns(const shared_state<FORMAT> &sm, int buffer, int column, int n,
                                                     bool add, float (&scores)[32]) {
    const uint64_t q = operand_at(hsp__shared(sm.query) + column * COLUMN_BYTES, 16);
    const uint64_t k = operand_at(hsp__shared(sm.tile[buffer]) + column * COLUMN_BYTES, 16);
#pragma unroll
    for (int i = 0; i < 4 * n; i++) {
        const int at = i / 4 * (COLUMN_BYTES >> 4) + i % 4 * 2;
        product_64(scores, q + at, k + at, add || i > 0);
    }
}

/* Two parts' share of S, each as soon as it is there, each a group of products. */
template <int FORMAT, int HALF>
static __device__ __forceinline__ void score_half(const shared_state<FORMAT> &sm, int32_t n, float (&scores)[32]) {
    const int buffer = n & 1;
#pragma unroll
    for (int part = 2 * HALF; part < 2 * HALF + 2; part++) {
        barrier_wait(hsp__shared(&sm.filled[buffer][part]), n >> 1 & 1);
        publish_stores();
        products_begin();
        score_columns(sm, buffer, first_column(buffer, part), 2, part > 0, scores);
        if (part == PARTS - 1 && mla_format<FORMAT>::COLUMNS > ROPE)
            score_columns(sm, buffer, ROPE, 1, true, scores);
        products_commit();
    }
}

/* Scale the scores, take out rows that are not there, and find the maxima so far. */
static __device__ __forceinline__ void mask_scores(float (&scores)[32], uint64_t there, float scale, float (&most)[2]) {
#pragma unroll
    for (int i = 0; i < 32; i++)
        scores[i] *= scale;
    if (~there) {
        const uint32_t low = (uint32_t)there >> threadIdx.x % 4 * 2;
        const uint32_t high = (uint32_t)(there >> 32) >> threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int bit = i / 4 * 8 + i % 2;
            scores[i] = (bit < 32 ? low >> bit : high >> (bit - 32)) & 1 ? scores[i] : -INFINITY;
        }
    }
#pragma unroll
    for (int i = 0; i < 32; i++)
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], scores[i]);
    most[0] = hsp__row_max(most[0]);
    most[1] = hsp__row_max(most[1]);
}

/* From here on maxima are `top`; fade: what earlier sums are to be multiplied with. */
static __device__ __forceinline__ void raise(worker_state &w, const float (&top)[2], float (&fade)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        fade[h] = hsp__power(w.top[h] - top[h]);
        w.top[h] = top[h];
        w.sum[h] *= fade[h];
    }
}

/* Scores to weights, as wgmma wants its first operand: four registers for every 16 rows of the tile. */
static __device__ __forceinline__ void weigh(const float (&scores)[32], worker_state &w, uint32_t (&weights)[16]) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const int h = i / 2 % 2;
        const float x = hsp__power(scores[i] - w.top[h]), y = hsp__power(scores[i + 1] - w.top[h]);
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        w.sum[h] += x;
        w.sum[h] += y;
        weights[i / 2] = *(const uint32_t *)&pair;
    }
}

/* P and the maxima, for the other worker. */
template <int FORMAT>
static __device__ __forceinline__ void leave_weights(shared_state<FORMAT> &sm, int buffer, const worker_state &w,
                                                     const uint32_t (&weights)[16]) {
    const uint32_t lane = threadIdx.x % 32, row = first_row();
    const uint32_t to = hsp__shared(sm.tile[buffer]) + ROPE * COLUMN_BYTES +
                        swizzled(threadIdx.x % 128 / 32 * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < 4; step++) /* pieces 2 step and 2 step + 1 */
        store_matrix(to ^ (uint32_t)step << 5, weights + 4 * step);
    if (lane % 4 == 0)
        sm.top[buffer][row] = w.top[0], sm.top[buffer][row + 8] = w.top[1];
    publish_stores();
    barrier_arrive(hsp__shared(&sm.weighed[buffer]));
}

/* --------------------------------------------------------------------------------------------------------- sums -- */

static __device__ __forceinline__ void fade_values(worker_state &w, const float (&fade)[2]) {
    if (__any_sync(~0u, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            w.values[i / 64][i % 64] *= fade[i / 2 % 2];
    }
}

static __device__ __forceinline__ const uint32_t *operand_step(const uint32_t (&weights)[16], int step) {
    return weights + 4 * step;
}

static __device__ __forceinline__ uint64_t operand_step(uint64_t weights, int step) {
    return weights + 2 * (uint64_t)step;
}

/* Half `which` of the channels of a buffer's tile, in two groups of products. */
template <int FORMAT, typename operand>
static __device__ __forceinline__ void sum_tile(const shared_state<FORMAT> &sm, int buffer, int which,
                                                const operand &weights, worker_state &w) {
    const uint64_t v = operand_at(hsp__shared(sm.tile[buffer]) + which * 4 * COLUMN_BYTES, COLUMN_BYTES);
    products_begin();
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
#pragma unroll
        for (int step = 0; step < 4; step++)
            product_128(w.values[pair], operand_step(weights, step),
                        v + pair * 2 * (COLUMN_BYTES >> 4) + step * (2048 >> 4));
        products_commit();
    }
}

/* A warp's last word on a part of a tile. */
static __device__ __forceinline__ void release(const uint64_t *emptied) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(hsp__shared(emptied));
}

/* Tile n of the other worker, in two groups of products. */
template <int FORMAT>
static __device__ __forceinline__ void sum_theirs(const shared_state<FORMAT> &sm, int32_t n, worker_state &w) {
    const int buffer = n & 1;
    float fade[2];
    barrier_wait(hsp__shared(&sm.weighed[buffer]), n >> 1 & 1);
    const float top[2] = {sm.top[buffer][first_row()], sm.top[buffer][first_row() + 8]};
    raise(w, top, fade);
    fade_values(w, fade);
    sum_tile(sm, buffer, buffer ^ 1, operand_at(hsp__shared(sm.tile[buffer]) + ROPE * COLUMN_BYTES, 16), w);
}

/* S of tile n and, but for the block's first tile, the sums of tile n - 1. */
template <int FORMAT, bool FIRST>
static __device__ __forceinline__ uint64_t score_tile(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                      const hsp__job &j, int32_t n, float (&scores)[32],
                                                      worker_state &w) {
    score_half<FORMAT, 0>(sm, n, scores);
    if (!FIRST)
        sum_theirs(sm, n - 1, w);
    score_half<FORMAT, 1>(sm, n, scores);
    const uint64_t there = rows_there(a, j, j.tile + n);
    if (!FIRST) { /* the second half of S is two groups */
        products_wait<3>();
        release(&sm.emptied[(n & 1) ^ 1][2]);
        products_wait<2>();
        release(&sm.emptied[(n & 1) ^ 1][3]);
    }
    products_wait<0>();
    return there;
}

/* All of tile n that is its own worker's. */
template <int FORMAT, bool FIRST>
static __device__ __forceinline__ void own_tile(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j,
                                                int32_t n, worker_state &w) {
    const int buffer = n & 1;
    float scores[32], fade[2];
    uint32_t weights[16];
    const uint64_t there = score_tile<FORMAT, FIRST>(sm, a, j, n, scores, w);
    float most[2] = {w.top[0], w.top[1]}; /* of tile n - 1 by now */
    mask_scores(scores, there, a.scale, most);
    raise(w, most, fade);
    weigh(scores, w, weights);
    group_sync<128>(SCORED + buffer);
    leave_weights(sm, buffer, w, weights);
    fade_values(w, fade);
    sum_tile(sm, buffer, buffer, weights, w);
    products_wait<1>();
    release(&sm.emptied[buffer][0]);
    products_wait<0>();
    release(&sm.emptied[buffer][1]);
}

template <int FORMAT>
static __device__ __forceinline__ void work(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j,
                                            int which, worker_state &w) {
    const int32_t n_tiles = j.end - j.tile;
    int32_t n = which;
    if (n_tiles <= 0)
        return;
    if (which == 0) {
        own_tile<FORMAT, true>(sm, a, j, 0, w);
        n = 2;
    }
    for (; n < n_tiles; n += 2)
        own_tile<FORMAT, false>(sm, a, j, n, w);
    if (n == n_tiles) { /* the last tile is the other's */
        sum_theirs(sm, n - 1, w);
        products_wait<0>();
    }
}

/* ---------------------------------------------------------------------------------------------------- the roles -- */

/* Of one of a thread's heads. */
template <int FORMAT>
static __device__ __forceinline__ void leave_results(shared_state<FORMAT> &sm, const hsp__attention &a,
                                                     const hsp__job &j, int which, int h, const worker_state &w) {
    const uint32_t lane = threadIdx.x % 32, row = first_row() + (uint32_t)h * 8;
    hsp__place to = hsp__place_of(a, j, HEADS, &sm, (int32_t)row);
    if (!to.wanted)
        return;
    if (which == 0 && lane % 4 == 0)
        *to.sums = {w.top[h], w.sum[h] + sm.sum[row]};
#pragma unroll
    for (int i = 2 * h; i < 128; i += 4)
        *(float2 *)(to.values + which * 256 + i / 4 * 8 + lane % 4 * 2) = {w.values[i / 64][i % 64],
                                                                           w.values[i / 64][i % 64 + 1]};
}

template <int FORMAT>
static __device__ __forceinline__ void be_worker(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j,
                                                 int which) {
    load_query(sm, a, j);
    group_sync<WORKERS>(QUERY_THERE);
    worker_state w = {{-FLT_MAX, -FLT_MAX}, {0.0f, 0.0f}, {}};
    work<FORMAT>(sm, a, j, which, w);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.sum[h] = hsp__row_sum(w.sum[h]);
        if (which == 1 && threadIdx.x % 4 == 0)
            sm.sum[first_row() + h * 8] = w.sum[h];
    }
    group_sync<WORKERS>(TILES_DONE);
    leave_results(sm, a, j, which, 0, w);
    leave_results(sm, a, j, which, 1, w);
    hsp__combine<VALUE_DIM>(a, j, HEADS, &sm, (int32_t)threadIdx.x / 32, THREADS / 32);
}

template <int FORMAT>
static __device__ __forceinline__ void be_loader(shared_state<FORMAT> &sm, const hsp__attention &a, const hsp__job &j) {
    load_tiles(sm, a, j);
    hsp__combine<VALUE_DIM>(a, j, HEADS, &sm, (int32_t)threadIdx.x / 32, THREADS / 32);
}

template <int FORMAT>
static __device__ __forceinline__ void make_barriers(shared_state<FORMAT> &sm) {
    for (int b = 0; b < 2; b++) {
        for (int part = 0; part < PARTS; part++) {
            barrier_init(hsp__shared(&sm.filled[b][part]), 128); /* threads of the loader */
            barrier_init(hsp__shared(&sm.emptied[b][part]), 4);  /* warps of a worker */
        }
        barrier_init(hsp__shared(&sm.weighed[b]), 128); /* threads of a worker */
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
    const int role = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* which says that it is the same in all of a warp */
    if (role == LOADER) {
        take_registers<registers<FORMAT>::LOADER, LAUNCHED>();
        be_loader<FORMAT>(sm, a, job);
    } else {
        take_registers<registers<FORMAT>::WORKER, LAUNCHED>();
        be_worker<FORMAT>(sm, a, job, role);
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
    if (format == HSP_MLA_FP8)
        return launch<HSP_MLA_FP8>(a, batch, stream);
    if (format == HSP_MLA_V4)
        return launch<HSP_MLA_V4>(a, batch, stream);
    return launch<HSP_MLA_BF16>(a, batch, stream);
}
