/* SPDX-License-Identifier: Apache-2.0
 *
 * The k greatest of many scores by a radix selection. A cluster of blocks shares a row: each keeps its part of the
 * ranks in shared memory, counts digits there, and reads the counts of the others. Which k are chosen is exact, so
 * neither the size of the cluster nor the order of the counting matters.
 *
 * The first digit is sign, exponent and the first bits of the mantissa: few ranks are left for the later rounds.
 *
 * Multiprocessors come in groups that a cluster does not cross, and clusters of eight seldom fill one. Blocks are small
 * enough for three on a multiprocessor, so that 32 rows of 131072 scores are under way at once all the same.
 */
#include "top.h"

#include "ranks.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

enum {
    THREADS = 512,
    WARPS = THREADS / 32,
    CACHED = 960,            /* ranks a warp keeps; it reads the others' scores again */
    MOST_BLOCKS = 8,         /* of a cluster */
    UNITS_A_BLOCK = 1 << 14, /* so many to a block, until the cluster is as large as it may be */
    MOST_DIGITS = 16 * HSP__COARSE
};

struct __align__(16) shared_counts {
    uint32_t even[MOST_DIGITS], odd[MOST_DIGITS / 2]; /* of each digit, in rounds 0 and 2, and 1; of this block */
    uint32_t coarse[2][HSP__COARSE];                  /* sums of neighbouring digits, in even and odd rounds */
    uint32_t total[HSP__COARSE];                      /* these, of all blocks of the cluster */
    uint32_t total_fine[32];                          /* and the digits of one such sum; 0 beyond them */
    uint32_t greater[WARPS], equal[WARPS];
    uint32_t all_greater, all_equal; /* of this block */
};

/* What one warp looks at: units first .. first + n - 1 of a row. */
struct part {
    const float *scores;
    uint32_t *cached; /* shared: ranks of the first n_cached of them */
    int32_t first, n;
    int32_t n_cached, n_first, first_local, lane;
};

static __device__ __forceinline__ uint32_t fresh_rank(const part &t, int32_t unit, float score) {
    return unit < t.n_first || unit >= t.first_local ? HSP__FORCED : hsp__gpu_rank_of(score);
}

/* Of the unit `at` from the part's first on, which is one of its n. */
static __device__ __forceinline__ uint32_t rank_at(const part &t, int32_t at) {
    if (at < t.n_cached)
        return t.cached[at];
    return fresh_rank(t, t.first + at, __ldg(t.scores + t.first + at));
}

/* The first look at the scores: keep ranks, and count their first digit. */
static __device__ __forceinline__ void take_in(const part &t, uint32_t *count) {
    enum { TOGETHER = 8 };
    for (int32_t from = t.lane; from < t.n; from += 32 * TOGETHER) {
        float score[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            score[i] = from + 32 * i < t.n ? __ldg(t.scores + t.first + from + 32 * i) : 0.0f;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            int32_t at = from + 32 * i;
            if (at >= t.n)
                continue;
            uint32_t rank = fresh_rank(t, t.first + at, score[i]);
            if (at < t.n_cached)
                t.cached[at] = rank;
            atomicAdd(&count[hsp__gpu_digit(rank, 0)], 1u);
        }
    }
}

/* All ranks of the part, in any order. */
template <class Visit>
static __device__ __forceinline__ void visit_ranks(const part &t, Visit visit) {
#pragma unroll 2
    for (int32_t at = 4 * t.lane; at < t.n_cached; at += 128) {
        uint4 four = *(const uint4 *)(t.cached + at);
        const uint32_t rank[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (at + i < t.n_cached)
                visit(rank[i]);
    }
#pragma unroll 4
    for (int32_t at = t.n_cached + t.lane; at < t.n; at += 32)
        visit(rank_at(t, at));
}

static __device__ __forceinline__ void count_digits(const part &t, int round, uint32_t prefix, uint32_t *count) {
    visit_ranks(t, [&](uint32_t rank) {
        if (hsp__gpu_matches(rank, round, prefix))
            atomicAdd(&count[hsp__gpu_digit(rank, round)], 1u);
    });
}

/* Of 32 * EACH counts, from the last one down: in which the k-th greatest is, and what is left of k in it. Every warp
 * finds it by itself. */
template <int EACH>
static __device__ __forceinline__ uint32_t find_count(const uint32_t *total, uint32_t *k) {
    uint32_t lane = threadIdx.x & 31, top = 32 * EACH - 1 - EACH * lane, counts[EACH], sum = 0, left;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        counts[i] = total[top - i];
        sum += counts[i];
    }
    uint32_t upto = sum;
#pragma unroll
    for (int span = 1; span < 32; span *= 2) {
        uint32_t other = __shfl_up_sync(~0u, upto, span);
        upto += lane >= (uint32_t)span ? other : 0;
    }
    int here = upto >= *k && upto - sum < *k; /* exactly one lane: k is at most the sum of all */
    uint32_t digit = hsp__gpu_pick(counts, EACH, top, *k - (upto - sum), &left);
    int source = __ffs(__ballot_sync(~0u, here)) - 1;
    *k = __shfl_sync(~0u, left, source);
    return __shfl_sync(~0u, digit, source);
}

/* Of one count, over the blocks of the cluster. */
static __device__ __forceinline__ uint32_t whole_count(uint32_t *count) {
    cg::cluster_group cluster = cg::this_cluster();
    uint32_t sum = 0, n_blocks = cluster.num_blocks();
#pragma unroll
    for (uint32_t block = 0; block < MOST_BLOCKS; block++) /* all loads are under way at once */
        sum += block < n_blocks ? *cluster.map_shared_rank(count, block) : 0;
    return sum;
}

/* The digit of a round, when all threads of the cluster have counted. */
template <int ROUND>
static __device__ __forceinline__ uint32_t find_digit(shared_counts &s, uint32_t *digits, uint32_t *k) {
    const int fine = ROUND == 1 ? 8 : 16, i = threadIdx.x;
    uint32_t *coarse = s.coarse[ROUND % 2];
    __syncthreads();
    if (i < HSP__COARSE) {
        const uint4 *of_one = (const uint4 *)(digits + i * fine);
        uint32_t sum = 0;
#pragma unroll
        for (int j = 0; j < fine / 4; j++)
            sum += of_one[j].x + of_one[j].y + of_one[j].z + of_one[j].w;
        coarse[i] = sum;
    }
    cg::this_cluster().sync();
    if (i < HSP__COARSE)
        s.total[i] = whole_count(&coarse[i]);
    if (ROUND == 1) /* which no block reads any more */
        for (int j = i; j < MOST_DIGITS; j += THREADS)
            s.even[j] = 0;
    __syncthreads();
    uint32_t first = find_count<HSP__COARSE / 32>(s.total, k) * fine;
    if (i < 32)
        s.total_fine[i] = i < fine ? whole_count(&digits[first + i]) : 0;
    __syncthreads();
    return first + find_count<1>(s.total_fine, k);
}

/* The rank of the k-th greatest; *k becomes how many of that rank are among the k. */
static __device__ __forceinline__ uint32_t find_least(shared_counts &s, const part &t, uint32_t *k) {
    uint32_t prefix = find_digit<0>(s, s.even, k);
    count_digits(t, 1, prefix, s.odd);
    prefix = hsp__gpu_longer(prefix, 1, find_digit<1>(s, s.odd, k));
    count_digits(t, 2, prefix, s.even);
    return hsp__gpu_longer(prefix, 2, find_digit<2>(s, s.even, k));
}

/* How many ranks of earlier warps, and of earlier blocks, are greater than `least` or equal to it. */
static __device__ __forceinline__ void count_earlier(shared_counts &s, const part &t, uint32_t least,
                                                     uint32_t *greater_out, uint32_t *equal_out) {
    cg::cluster_group cluster = cg::this_cluster();
    int warp = threadIdx.x / 32;
    uint32_t greater = 0, equal = 0;
    visit_ranks(t, [&](uint32_t rank) {
        greater += rank > least;
        equal += rank == least;
    });
    greater = __reduce_add_sync(~0u, greater);
    equal = __reduce_add_sync(~0u, equal);
    if (t.lane == 0) {
        s.greater[warp] = greater;
        s.equal[warp] = equal;
    }
    __syncthreads();
    uint32_t of_warp = t.lane < WARPS ? s.greater[t.lane] : 0, same = t.lane < WARPS ? s.equal[t.lane] : 0;
    if (threadIdx.x < 32) {
        s.all_greater = __reduce_add_sync(~0u, of_warp);
        s.all_equal = __reduce_add_sync(~0u, same);
    }
    greater = __reduce_add_sync(~0u, t.lane < warp ? of_warp : 0);
    equal = __reduce_add_sync(~0u, t.lane < warp ? same : 0);
    cluster.sync();
    for (uint32_t block = 0; block < cluster.block_rank(); block++) {
        greater += *cluster.map_shared_rank(&s.all_greater, block);
        equal += *cluster.map_shared_rank(&s.all_equal, block);
    }
    cluster.sync(); /* no block ends while another reads its counts */
    *greater_out = greater;
    *equal_out = equal;
}

static __device__ __forceinline__ uint32_t lanes_below(void) {
    uint32_t mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    return mask;
}

/* Tokens of the units that lanes have chosen, in the order of the lanes; place: of its unit in the selection. */
static __device__ __forceinline__ void write_tokens(const hsp__gpu_choice &p, int32_t *out, bool chosen, int32_t unit,
                                                    uint32_t place, int32_t n_tokens) {
    if (p.unit_tokens == 1) {
        if (chosen)
            out[place] = unit;
        return;
    }
    for (uint32_t votes = __ballot_sync(~0u, chosen); votes; votes &= votes - 1) {
        int source = __ffs(votes) - 1;
        int32_t token = __shfl_sync(~0u, unit, source) * p.unit_tokens;
        int32_t *to = out + (size_t)__shfl_sync(~0u, place, source) * p.unit_tokens;
        for (int32_t i = threadIdx.x & 31; i < p.unit_tokens; i += 32)
            to[i] = i < n_tokens - token ? token + i : -1;
    }
}

static __device__ __forceinline__ void write_selection(const hsp__gpu_choice &p, const part &t, uint32_t least,
                                                       uint32_t n_equal, uint32_t greater, uint32_t equal,
                                                       int32_t n_tokens, int32_t *out) {
    for (int32_t from = 0; from < t.n; from += 32) {
        int32_t at = from + t.lane;
        uint32_t rank = at < t.n ? rank_at(t, at) : 0;
        bool more = at < t.n && rank > least, same = at < t.n && rank == least;
        if (!__any_sync(~0u, more || same)) /* as nearly everywhere when few are chosen out of many */
            continue;
        uint32_t votes_more = __ballot_sync(~0u, more), votes_same = __ballot_sync(~0u, same);
        uint32_t more_before = greater + __popc(votes_more & lanes_below());
        uint32_t same_before = equal + __popc(votes_same & lanes_below());
        uint32_t place = more_before + (same_before < n_equal ? same_before : n_equal);
        write_tokens(p, out, more || (same && same_before < n_equal), t.first + at, place, n_tokens);
        greater += __popc(votes_more);
        equal += __popc(votes_same);
    }
}

/* Blocks of the cluster take one stretch of the row after the other, and their warps of these. */
static __device__ __forceinline__ part part_of(const hsp__gpu_choice &p, uint32_t row, int32_t n_units,
                                               uint32_t *cached) {
    cg::cluster_group cluster = cg::this_cluster();
    int32_t warp = threadIdx.x / 32, n_blocks = (int32_t)cluster.num_blocks();
    int32_t of_warp = ((n_units + n_blocks - 1) / n_blocks + THREADS - 1) / THREADS * 32;
    part t;
    t.lane = threadIdx.x & 31;
    t.scores = p.scores + row * p.score_stride;
    t.cached = cached + warp * p.n_cached;
    t.first = ((int32_t)cluster.block_rank() * WARPS + warp) * of_warp;
    t.n = n_units - t.first < of_warp ? n_units - t.first : of_warp; /* below 1: nothing */
    t.n_cached = max(min(t.n, p.n_cached), 0);
    t.n_first = p.n_first;
    t.first_local = n_units - p.n_local;
    return t;
}

static __global__ void __launch_bounds__(THREADS, 3) choose_kernel(const __grid_constant__ hsp__gpu_choice p) {
    extern __shared__ __align__(16) uint32_t cached[];
    __shared__ shared_counts s;
    cg::cluster_group cluster = cg::this_cluster();
    uint32_t n_blocks = cluster.num_blocks(), row = blockIdx.x / n_blocks, of_queries = row / p.n_groups;
    int32_t entry = of_queries / p.batch.n_queries;
    int32_t n_tokens = p.batch.slot[entry] < 0 ? 0 : hsp__gpu_tokens(p.batch, entry, of_queries % p.batch.n_queries);
    int32_t n_units = n_tokens / p.unit_tokens + (n_tokens % p.unit_tokens != 0), n_out = p.n_chosen * p.unit_tokens;
    int32_t *out = p.selection_out + (size_t)row * n_out;
    if (n_units <= p.n_chosen) { /* all of them, and no score is needed */
        for (int64_t i = cluster.block_rank() * THREADS + threadIdx.x; i < n_out; i += n_blocks * THREADS)
            out[i] = i < n_tokens ? (int32_t)i : -1;
        return;
    }
    for (int i = threadIdx.x; i < MOST_DIGITS; i += THREADS)
        s.even[i] = s.odd[i / 2] = 0;
    __syncthreads();
    part t = part_of(p, row, n_units, cached);
    uint32_t n_equal = p.n_chosen, greater, equal;
    take_in(t, s.even);
    uint32_t least = find_least(s, t, &n_equal);
    count_earlier(s, t, least, &greater, &equal);
    write_selection(p, t, least, n_equal, greater, equal, n_tokens, out);
}

/* ------------------------------------------------------------------------------------------------------- launch -- */

int hsp__gpu_choose(const hsp__gpu_choice *choice, void *stream) {
    hsp__gpu_choice p = *choice;
    int64_t n_units = hsp__gpu_pieces(p.batch.max_tokens, p.unit_tokens), cluster = 1, rows;
    while (cluster < MOST_BLOCKS && n_units > cluster * UNITS_A_BLOCK)
        cluster *= 2;
    int64_t of_warp = hsp__gpu_pieces(hsp__gpu_pieces(n_units, cluster), THREADS) * 32;
    p.n_cached = (int32_t)(of_warp < CACHED ? of_warp : CACHED);
    rows = (int64_t)p.batch.batch * p.batch.n_queries * p.n_groups;
    if (rows * cluster > INT32_MAX)
        return HSP_ELIMIT;
    return hsp__gpu_launch((const void *)choose_kernel, dim3((unsigned)(rows * cluster)), THREADS, (int)cluster,
                           (size_t)p.n_cached * WARPS * sizeof(uint32_t), &p, stream);
}

extern "C" int hsp_gpu_top(const hsp_gpu_batch *batch, const float *scores, int32_t k, int32_t *selection_out,
                           void *stream) {
    int status = hsp__gpu_check(batch);
    if (status)
        return status;
    if (k < 1 || !selection_out || (batch->max_tokens && !scores))
        return HSP_EINVAL;
    hsp__gpu_choice choice = {*batch, scores, (uint64_t)batch->max_tokens, 1, 1, 0, 0, k, 0, selection_out};
    return hsp__gpu_choose(&choice, stream);
}
