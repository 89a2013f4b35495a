/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in for LRU with up to 8192 entries and slots: one cluster a request, everything in registers and shared memory.
 *
 * Every block of a cluster resolves the whole request by itself, so that it knows the misses without asking the others;
 * block 0 alone writes what is remembered. Then the blocks share the rows to fetch. Barriers: one after loading, one
 * after the tags were compared, one in the prefix sum, one before the new order and the lists of misses are read.
 *
 * Thread t has entries t * EK .. and places t * EO .. of the order, so that sums over threads keep both orders. */
#include <cooperative_groups.h>

#include "fetch.cuh"
#include "launch.h"
#include "resolve.cuh"
#include "turns.cuh"

namespace cg = cooperative_groups;

#define THREADS 1024

template <int EK, int EO>
struct shared_state {
    uint32_t key[2 * THREADS * (EK * THREADS > 4096 ? EK / 2 : EK)]; /* table of missed tokens */
    uint32_t first[2 * THREADS * (EK * THREADS > 4096 ? EK / 2 : EK)];
    int32_t tag[THREADS * EO];
    uint32_t host_row[THREADS * EK];
    int32_t token[THREADS * EK]; /* of each miss */
    uint16_t victim[THREADS * EK];
    uint8_t selected[THREADS * EO];
    __align__(16) uint16_t order[THREADS * EO]; /* the new one, so that it leaves in whole lines */
    uint32_t warp_total[32];
    uint32_t odd[2]; /* entries of -1, entries out of range */
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
            pair[0] = ((const uint32_t *)order)[threadIdx.x];
        else if (EO == 4) {
            uint2 v = ((const uint2 *)order)[threadIdx.x];
            pair[0] = v.x;
            pair[1] = v.y;
        } else {
#pragma unroll
            for (int i = 0; i < EO / 8; i++) {
                uint4 v = ((const uint4 *)order)[threadIdx.x * (EO / 8) + i];
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
static __device__ __forceinline__ void load_state(shared_state<EK, EO> &sm, entries<EK> &e, places<EO> &o,
                                                  const request_view &v, const hsp__cuda_swap_in &p) {
#pragma unroll
    for (int i = 0; i < EK; i++)
        e.where[i] = (uint32_t)e.token[i] < (uint32_t)p.max_context ? v.where[e.token[i]] : (uint16_t)NO_SLOT;
        /* The stride of slots is a multiple of 16: vectors never leave the request's part. */
#pragma unroll
    for (int i = 0; i < EO; i += 4) {
        uint32_t at = threadIdx.x * 4 + i * THREADS;
        if (at < (uint32_t)p.slot_stride)
            *(int4 *)&sm.tag[at] = *(const int4 *)&v.tag[at];
    }
    load_order(o, v.order, p.slot_stride);
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
    if (threadIdx.x < 2)
        sm.odd[threadIdx.x] = 0;
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

/* Which of this thread's entries were the first to miss their token, one bit each. */
template <int EK, int EO>
static __device__ __forceinline__ uint32_t first_to_miss(const shared_state<EK, EO> &sm, const entries<EK> &e) {
    uint32_t leads = 0;
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (e.missing >> i & 1 && sm.first[-2 - e.answer[i]] == (uint32_t)entry_of(EK, i))
            leads |= 1u << i;
    return leads;
}

/* Mark the places whose slot was hit; one bit each, those past the last slot count as hit. */
template <int EK, int EO>
static __device__ __forceinline__ void find_hit_places(const shared_state<EK, EO> &sm, places<EO> &o, int n_slots) {
    o.hit = 0;
#pragma unroll
    for (int i = 0; i < EO; i++)
        o.hit |= (uint32_t)(sm.selected[o.slot[i]] | (entry_of(EO, i) >= n_slots)) << i;
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

/* Number the misses in order of first appearance and note what each needs. */
template <int EK, int EO>
static __device__ __forceinline__ void list_misses(shared_state<EK, EO> &sm, const entries<EK> &e, uint32_t leads,
                                                   uint32_t miss) {
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (leads >> i & 1) {
            sm.host_row[miss] = (uint32_t)e.page[i] * HSP_PAGE_TOKENS + (uint32_t)e.token[i] % HSP_PAGE_TOKENS;
            sm.token[miss] = e.token[i];
            sm.first[-2 - e.answer[i]] = miss++;
        }
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

template <int EK, int EO>
static __device__ __forceinline__ void store_misses(const shared_state<EK, EO> &sm, entries<EK> &e,
                                                    const request_view &v, uint32_t n_miss) {
    for (uint32_t m = threadIdx.x; m < n_miss; m += THREADS) {
        v.tag[sm.victim[m]] = sm.token[m];
        v.where[sm.token[m]] = sm.victim[m];
    }
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (e.answer[i] < -1)
            e.answer[i] = v.first_id + sm.victim[sm.first[-2 - e.answer[i]]];
}

/* ------------------------------------------------------------------------------------------------------- kernel -- */

template <int EK, int EO, bool PLAIN>
__global__ void __launch_bounds__(THREADS, 1) swap_in_kernel(const __grid_constant__ hsp__cuda_swap_in p) {
    extern __shared__ __align__(16) unsigned char memory[];
    shared_state<EK, EO> &sm = *(shared_state<EK, EO> *)memory;
    cg::cluster_group cluster = cg::this_cluster();
    const uint32_t parts = cluster.num_blocks(), part = cluster.block_rank(), b = blockIdx.x / parts;
    int32_t *ids = p.ids ? p.ids + (int64_t)b * p.n : NULL;
    entries<EK> e;
    places<EO> o;

    int32_t slot = p.warm_slot >= 0 ? p.warm_slot : p.state.batch_slot[b];
    load_selection(e, p.selection + (int64_t)b * p.n, p.n);
    if (slot < 0) {
        for (int i = part * THREADS + threadIdx.x; ids && i < p.n; i += parts * THREADS)
            ids[i] = -1;
        give_turn(p, b, part);
        return;
    }
    request_view v = view_request<PLAIN>(p, (uint32_t)slot);
    load_state(sm, e, o, v, p);
    clear(sm);
    __syncthreads();
    find_hits(sm, e, v, p);
    int any_missing = __syncthreads_or(e.missing);
    if (part == 0 && ids && !e.missing)
        store_ids(e, ids, p.n);

    uint32_t n_all, warp_kept, warp_missed = 0, miss = 0, leads = 0;
    find_hit_places(sm, o, p.n_slots);
    if (parts > 1)
        cluster_arrive(); /* this block has read all it will read of what block 0 is about to change */
    uint32_t rank = count_in_warp<EO>(~o.hit, &warp_kept);
    if (any_missing) {
        leads = first_to_miss(sm, e);
        miss = count_in_warp<EK>(leads, &warp_missed);
    }
    uint32_t before = sum_of_earlier_warps<THREADS>(warp_kept << 16 | warp_missed, sm.warp_total, &n_all);
    rank += before >> 16;
    miss += before & 0xffff;
    const uint32_t n_miss = n_all & 0xffff, n_unselected = n_all >> 16;
    if (n_miss > 0) {
        list_misses(sm, e, leads, miss);
        list_victims(sm, o, rank, n_miss);
    }
    if (part == 0)
        make_order(sm, o, rank, n_unselected, n_miss, p.n_slots);
    if (part == 0 || n_miss > 0)
        __syncthreads();
    if (part == 0) {
        if (parts > 1)
            cluster_wait();
        store_order(sm, v.order, p.slot_stride);
        store_misses(sm, e, v, n_miss);
        if (ids && e.missing)
            store_ids(e, ids, p.n);
        count(p, v, sm.odd, n_miss);
    }
    if (n_miss > 0 && !p.no_io) {
        wait_for_turn(p, b, part);
        fetch_rows<PLAIN>(p.rows, sm.host_row, sm.victim, n_miss, (uint32_t)v.first_id, part, parts);
    }
    give_turn(p, b, part);
    if (parts > 1 && part != 0)
        cluster_wait();
}

/* ------------------------------------------------------------------------------------------------------- launch -- */

typedef struct variant {
    int most_entries, most_slots; /* what it holds */
    const void *kernel[2];        /* general, plain */
    int shared_bytes;
} variant;

#define VARIANT(EK, EO)                                                                                                \
    {                                                                                                                  \
        EK *THREADS, EO *THREADS,                                                                                      \
            {(const void *)swap_in_kernel<EK, EO, false>, (const void *)swap_in_kernel<EK, EO, true>},                 \
            (int)sizeof(shared_state<EK, EO>)                                                                          \
    }
/* In this order: the first that is large enough is the fastest. */
static const variant variants[] = {VARIANT(2, 2), VARIANT(2, 4), VARIANT(2, 8), VARIANT(4, 8), VARIANT(8, 8)};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

int hsp__cuda_swap_in_fits(int policy, int n, int n_slots) {
    const variant *largest = &variants[N_VARIANTS - 1];
    return policy == HSP_LRU && n <= largest->most_entries && n_slots <= largest->most_slots;
}

cudaError_t hsp__cuda_swap_in_prepare(void) {
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < 2 * N_VARIANTS && status == cudaSuccess; i++)
        status = hsp__cuda_prepare(variants[i / 2].kernel[i % 2], variants[i / 2].shared_bytes);
    return status;
}

cudaError_t hsp__cuda_swap_in_launch(const hsp__cuda_swap_in *p, int batch, int parts, cudaStream_t stream) {
    const variant *v = variants;
    while (p->n > v->most_entries || p->n_slots > v->most_slots)
        v++;
    return hsp__cuda_launch(v->kernel[p->plain], batch * parts, THREADS, parts, v->shared_bytes, p, stream);
}
