/* SPDX-License-Identifier: Apache-2.0 */
/* The decision of a swap-in for LRU with up to 8192 entries and slots, in the registers and the shared memory of one
 * block. Thread t has entries t * EK .. and places t * EO .. of the order, so that sums over threads keep both orders.
 */
#ifndef HSP_CUDA_LRU_CUH
#define HSP_CUDA_LRU_CUH

#include "resolve.cuh"

#define THREADS    1024
#define NOT_LISTED 0xffffffffu

template <int EK, int EO>
struct shared_state {
    uint32_t key[2 * THREADS * (EK * THREADS > 4096 ? EK / 2 : EK)]; /* table of missed tokens */
    uint32_t first[2 * THREADS * (EK * THREADS > 4096 ? EK / 2 : EK)];
    int32_t tag[THREADS * EO];
    hsp__cuda_miss list[THREADS * EK]; /* rows this block fetches */
    uint32_t bucket[THREADS];          /* misses by place in the context, when they are sorted */
    uint16_t victim[THREADS * EK];
    uint8_t selected[THREADS * EO];
    __align__(16) uint16_t order[THREADS * EO]; /* the new one, so that it leaves in whole lines */
    uint32_t warp_total[32], warp_bucket[32];
    uint32_t odd[2];                  /* entries of -1, entries out of range */
    uint32_t where[THREADS * EK / 2]; /* of all entries, two a word, looked up by the blocks of a cluster together */
    __align__(8) uint64_t looked_up;  /* barrier: all words of `where` are there */
    uint32_t n_listed;
    uint32_t split;     /* of the sorted misses: the second block's first */
    uint32_t n_set_off; /* warps that have started on the last they fetch */
};

template <int EK>
struct entries {
    int32_t token[EK], answer[EK]; /* answer: a row id, -1, or -2 - place in the table */
    uint16_t where[EK];
    int32_t page[EK];
    uint32_t missing; /* one bit each */
};

template <int EO>
struct places {
    uint16_t slot[EO];
    uint32_t hit; /* one bit each */
};

/* Misses of this thread that are the first of their token, and where they stand. */
struct leaders {
    uint32_t mine; /* one bit an entry */
    uint32_t before_in_warp, in_warp;
    uint32_t miss; /* number of the first */
};

static __device__ __forceinline__ int entry_of(int per_thread, int i) {
    return threadIdx.x * per_thread + i;
}

/* ------------------------------------------------------------------------------------------------------ loading -- */

template <int EK>
static __device__ __forceinline__ void load_selection(entries<EK> &e, const int32_t *selection, int n) {
    bool whole = n % EK == 0 && ((uintptr_t)selection & (EK * 4 - 1)) == 0;
    if (whole && EK == 2 && entry_of(EK, 1) < n) {
        int2 v = ((const int2 *)selection)[threadIdx.x];
        e.token[0] = v.x;
        e.token[1] = v.y;
        return;
    }
    if (whole && EK == 4 && entry_of(EK, 3) < n) {
        int4 v = ((const int4 *)selection)[threadIdx.x];
        e.token[0] = v.x;
        e.token[1] = v.y;
        e.token[EK > 2 ? 2 : 0] = v.z;
        e.token[EK > 2 ? 3 : 0] = v.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < EK; i++)
        e.token[i] = entry_of(EK, i) < n ? selection[entry_of(EK, i)] : -1;
}

template <int EK>
static __device__ __forceinline__ void load_where(entries<EK> &e, const uint16_t *where, int max_context) {
#pragma unroll
    for (int i = 0; i < EK; i++)
        e.where[i] = (uint32_t)e.token[i] < (uint32_t)max_context ? where[e.token[i]] : (uint16_t)NO_SLOT;
}

/* The stride of slots is a multiple of 16: vectors never leave the request's part. */
template <int EO>
static __device__ __forceinline__ void load_tags(int4 *tags, const int32_t *tag, int slot_stride) {
#pragma unroll
    for (int i = 0; i < EO; i += 4) {
        uint32_t at = threadIdx.x * 4 + i * THREADS;
        if (at < (uint32_t)slot_stride)
            tags[i / 4] = __ldcg((const int4 *)&tag[at]);
    }
}

template <int EK, int EO>
static __device__ __forceinline__ void keep_tags(shared_state<EK, EO> &sm, const int4 *tags) {
#pragma unroll
    for (int i = 0; i < EO; i += 4)
        if (threadIdx.x * 4 + i * THREADS < THREADS * EO)
            *(int4 *)&sm.tag[threadIdx.x * 4 + i * THREADS] = tags[i / 4];
}

static __device__ __forceinline__ void split(uint32_t pair, uint16_t *slot) {
    slot[0] = (uint16_t)pair;
    slot[1] = (uint16_t)(pair >> 16);
}

/* EO places of the order in as few loads as there can be. */
template <int EO>
static __device__ __forceinline__ void load_order(places<EO> &o, const uint16_t *order, int slot_stride) {
    uint32_t pair[EO / 2];
#pragma unroll
    for (int i = 0; i < EO / 2; i++)
        pair[i] = 0;
    if (entry_of(EO, 0) < slot_stride) {
        if (EO == 2)
            pair[0] = __ldcg((const uint32_t *)order + threadIdx.x);
        else if (EO == 4) {
            uint2 v = __ldcg((const uint2 *)order + threadIdx.x);
            pair[0] = v.x;
            pair[1] = v.y;
        } else {
#pragma unroll
            for (int i = 0; i < EO / 8; i++) {
                uint4 v = __ldcg((const uint4 *)order + threadIdx.x * (EO / 8) + i);
                pair[4 * i] = v.x;
                pair[4 * i + 1] = v.y;
                pair[4 * i + 2 < EO / 2 ? 4 * i + 2 : 0] = v.z;
                pair[4 * i + 3 < EO / 2 ? 4 * i + 3 : 0] = v.w;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EO / 2; i++)
        split(pair[i], &o.slot[2 * i]);
}

template <int EK, int EO>
static __device__ __forceinline__ void clear(shared_state<EK, EO> &sm) {
#pragma unroll
    for (int i = 0; i < (int)sizeof sm.key / 16; i += THREADS) {
        ((uint4 *)sm.key)[i + threadIdx.x] = make_uint4(0, 0, 0, 0);
        ((uint4 *)sm.first)[i + threadIdx.x] = make_uint4(~0u, ~0u, ~0u, ~0u);
    }
#pragma unroll
    for (int i = 0; i < (int)sizeof sm.selected / 4; i += THREADS)
        if (i + threadIdx.x < sizeof sm.selected / 4)
            ((uint32_t *)sm.selected)[i + threadIdx.x] = 0;
    sm.bucket[threadIdx.x] = 0;
    if (threadIdx.x < 2)
        sm.odd[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        sm.n_listed = sm.n_set_off = 0;
}

/* ---------------------------------------------------------------------------------------------------- resolving -- */

/* What is left when an entry is not a row in a slot: nothing, a token in the ring, or a row to fetch. */
template <int EK, int EO>
static __device__ __forceinline__ void find_other(shared_state<EK, EO> &sm, entries<EK> &e, const request_view &v,
                                                  const hsp__cuda_swap_in &p, int i, bool there) {
    miss_table table = {sm.key, sm.first, sizeof sm.key / 4 - 1};
    int32_t token = e.token[i];
    if (!there) {
        if (entry_of(EK, i) < p.n)
            atomicAdd(&sm.odd[token != -1], 1u);
    } else if (token >= v.ring_first)
        e.answer[i] = v.first_id + p.n_slots + token % p.ring_rows;
    else {
        if (EK < 8)
            e.page[i] = v.page[token / HSP_PAGE_TOKENS];
        e.answer[i] = -2 - (int32_t)table_insert(table, token, (uint32_t)entry_of(EK, i));
        e.missing |= 1u << i;
    }
}

/* Answer what can be answered, mark the slots hit, enter the rest in the table of misses. A tag is always below
 * ring_first and below what is readable, so a tag that fits needs no other check than that the token is one. */
template <int EK, int EO>
static __device__ __forceinline__ void find_hits(shared_state<EK, EO> &sm, entries<EK> &e, const request_view &v,
                                                 const hsp__cuda_swap_in &p) {
    e.missing = 0;
#pragma unroll
    for (int i = 0; i < EK; i++) {
        int32_t token = e.token[i];
        uint32_t slot = min((uint32_t)e.where[i], (uint32_t)(THREADS * EO - 1));
        bool there = (uint32_t)token < (uint32_t)(token >= v.ring_first ? v.written : v.readable);
        bool hit = there && e.where[i] == slot && sm.tag[slot] == token;
        e.answer[i] = hit ? v.first_id + (int32_t)slot : -1;
        if (hit)
            sm.selected[slot] = 1;
        else
            find_other(sm, e, v, p, i, there);
    }
}

template <int EK>
static __device__ __forceinline__ void store_ids(const entries<EK> &e, int32_t *ids, int n) {
    if (EK == 2 && n % 2 == 0 && ((uintptr_t)ids & 7) == 0 && entry_of(EK, 1) < n) {
        ((int2 *)ids)[threadIdx.x] = make_int2(e.answer[0], e.answer[1]);
        return;
    }
    if (EK == 4 && n % 4 == 0 && ((uintptr_t)ids & 15) == 0 && entry_of(EK, 3) < n) {
        ((int4 *)ids)[threadIdx.x] =
            make_int4(e.answer[0], e.answer[1], e.answer[EK > 2 ? 2 : 0], e.answer[EK > 2 ? 3 : 0]);
        return;
    }
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (entry_of(EK, i) < n)
            ids[entry_of(EK, i)] = e.answer[i];
}

/* How many of N flags (bits of `flags`) are set in the threads of this warp before this one; all of the warp in *total.
 */
template <int N>
static __device__ __forceinline__ uint32_t count_in_warp(uint32_t flags, uint32_t *total) {
    uint32_t below = lanes_below(), before = 0;
    *total = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t votes = __ballot_sync(~0u, flags >> i & 1);
        *total += __popc(votes);
        before += __popc(votes & below);
    }
    return before;
}

/* Which of this thread's entries were the first to miss their token. */
template <int EK, int EO>
static __device__ __forceinline__ leaders find_leaders(const shared_state<EK, EO> &sm, const entries<EK> &e) {
    leaders l = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (e.missing >> i & 1 && sm.first[-2 - e.answer[i]] == (uint32_t)entry_of(EK, i))
            l.mine |= 1u << i;
    l.before_in_warp = count_in_warp<EK>(l.mine, &l.in_warp);
    return l;
}

/* Mark the places whose slot was hit; one bit each, those past the last slot count as hit. */
template <int EK, int EO>
static __device__ __forceinline__ void find_hit_places(const shared_state<EK, EO> &sm, places<EO> &o, int n_slots) {
    o.hit = 0;
#pragma unroll
    for (int i = 0; i < EO; i++)
        o.hit |= (uint32_t)(sm.selected[o.slot[i]] | (entry_of(EO, i) >= n_slots)) << i;
}

/* The largest variant has no registers to keep pages in, and looks them up again. */
template <int EK>
static __device__ __forceinline__ uint32_t host_row_of(const entries<EK> &e, int i, const request_view &v) {
    int32_t page = EK < 8 ? e.page[i] : v.page[e.token[i] / HSP_PAGE_TOKENS];
    return (uint32_t)page * HSP_PAGE_TOKENS + (uint32_t)e.token[i] % HSP_PAGE_TOKENS;
}

/* The oldest n_miss unselected slots are the victims. */
template <int EK, int EO>
static __device__ __forceinline__ void list_victims(shared_state<EK, EO> &sm, const places<EO> &o, uint32_t rank,
                                                    uint32_t n_miss) {
#pragma unroll
    for (int i = 0; i < EO; i++)
        if (!(o.hit >> i & 1)) {
            if (rank < n_miss)
                sm.victim[rank] = o.slot[i];
            rank++;
        }
}

/* New order, oldest first: the unselected that stay, the victims with their new rows, the hits. No branches: neighbours
 * differ. To shared memory: scattered stores of two bytes to global memory took 2100 of the 7400 cycles of a launch. */
template <int EK, int EO>
static __device__ __forceinline__ void make_order(shared_state<EK, EO> &sm, const places<EO> &o, uint32_t rank,
                                                  uint32_t n_unselected, uint32_t n_miss, int n_slots) {
    uint32_t hit_to = n_unselected + threadIdx.x * EO - rank, kept_to = rank - n_miss,
             victim_to = n_unselected + kept_to;
#pragma unroll
    for (int i = 0; i < EO; i++) {
        uint32_t hit = o.hit >> i & 1, unhit_to = rank < n_miss ? victim_to : kept_to;
        uint32_t to = hit ? hit_to : unhit_to;
        if (entry_of(EO, i) >= n_slots) /* places past the last stay */
            to = (uint32_t)entry_of(EO, i);
        sm.order[to] = o.slot[i];
        hit_to += hit;
        kept_to += 1 - hit;
        victim_to += 1 - hit;
        rank += 1 - hit;
    }
}

template <int EK, int EO>
static __device__ __forceinline__ void store_order(const shared_state<EK, EO> &sm, uint16_t *order, int slot_stride) {
#pragma unroll
    for (int i = 0; i < EO * THREADS; i += 8 * THREADS) {
        int at = i + threadIdx.x * 8;
        if (at < slot_stride && at < EO * THREADS)
            *(uint4 *)&order[at] = *(const uint4 *)&sm.order[at];
    }
}

/* The number of a miss replaces the entry that named it first; the barrier before this one ended all reading of that.
 * place: of the entry in the list, where it is `listed` already; NOT_LISTED. */
template <int EK, int EO>
static __device__ __forceinline__ void number_misses(shared_state<EK, EO> &sm, const entries<EK> &e, const leaders &l,
                                                     const uint32_t *place, bool listed) {
    uint32_t miss = l.miss;
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (l.mine >> i & 1) {
            if (listed && place[i] != NOT_LISTED)
                sm.list[place[i]].number = miss;
            sm.first[-2 - e.answer[i]] = miss++;
        }
}

template <int EK, int EO>
static __device__ __forceinline__ void store_misses(const shared_state<EK, EO> &sm, const entries<EK> &e,
                                                    const leaders &l, const request_view &v) {
    uint32_t miss = l.miss;
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (l.mine >> i & 1) {
            uint16_t slot = sm.victim[miss++];
            v.tag[slot] = e.token[i];
            v.where[e.token[i]] = slot;
        }
}

template <int EK, int EO>
static __device__ __forceinline__ void answer_misses(const shared_state<EK, EO> &sm, entries<EK> &e,
                                                     const request_view &v) {
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (e.answer[i] < -1)
            e.answer[i] = v.first_id + sm.victim[sm.first[-2 - e.answer[i]]];
}

#endif
