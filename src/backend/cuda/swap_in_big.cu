/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in for any policy and up to 65535 entries and slots: one block a request, lists in global memory, everything in
 * rounds of 1024. The same decision as swap_in.cu and src/core, without its speed. */
#include "fetch.cuh"
#include "launch.h"
#include "resolve.cuh"

#define THREADS 1024

/* Scratch of one entry of the batch, in global memory. */
struct lists {
    uint32_t *key, *first; /* table of missed tokens */
    uint32_t table_size;
    hsp__cuda_miss *miss;
    int32_t *token;
    uint32_t *place; /* of each entry: its place in the table + 1, 0 when it is not missing */
    uint16_t *victim, *order;
};

static __host__ __device__ uint32_t table_size(uint32_t n_slots) {
    uint32_t size = 64;
    while (size < 2 * n_slots)
        size *= 2;
    return size;
}

uint64_t hsp__cuda_swap_in_big_words(int n_slots) {
    uint64_t stride = ((uint64_t)n_slots + 15) / 16 * 16;
    return 2 * (uint64_t)table_size((uint32_t)n_slots) + 5 * stride;
}

static __device__ lists view_lists(const hsp__cuda_swap_in &p, uint32_t b) {
    uint32_t *words = p.scratch + b * p.scratch_words;
    lists l;
    l.table_size = table_size(p.n_slots);
    l.key = words;
    l.first = words + l.table_size;
    l.miss = (hsp__cuda_miss *)(l.first + l.table_size);
    l.token = (int32_t *)(l.miss + p.slot_stride);
    l.place = (uint32_t *)(l.token + p.slot_stride);
    l.victim = (uint16_t *)(l.place + p.slot_stride);
    l.order = l.victim + p.slot_stride;
    return l;
}

/* Answer what can be answered at once, mark slots, enter the rest in the table. */
static __device__ void find_hits(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                                 const int32_t *selection, int32_t *ids, uint8_t *selected, uint32_t *odd) {
    miss_table table = {l.key, l.first, l.table_size - 1};
    for (int e = threadIdx.x; e < p.n; e += THREADS) {
        int32_t token = selection[e], answer = -1;
        entry_kind kind = classify(v, token);
        uint32_t place = 0, slot = kind == ENTRY_ROW ? v.where[token] : NO_SLOT;
        if (kind == ENTRY_ROW && slot < (uint32_t)p.n_slots && v.tag[slot] == token) {
            selected[slot] = 1;
            answer = v.first_id + (int32_t)slot;
        } else if (kind == ENTRY_ROW)
            place = table_insert(table, token, (uint32_t)e) + 1;
        else if (kind == ENTRY_RING)
            answer = v.first_id + p.n_slots + token % p.ring_rows;
        else
            atomicAdd(&odd[kind == ENTRY_INVALID], 1u);
        l.place[e] = place;
        if (ids)
            ids[e] = answer;
    }
}

/* Number the misses in order of first appearance; returns how many there are. Atomics went past the L1, so must the
 * reads. */
static __device__ uint32_t list_misses(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                                       const int32_t *selection, uint32_t *warp_total) {
    uint32_t n_miss = 0;
    for (int base = 0; base < p.n; base += THREADS) {
        int e = base + threadIdx.x;
        uint32_t place = e < p.n ? l.place[e] : 0, n_round;
        bool leads = place && __ldcg(&l.first[place - 1]) == (uint32_t)e;
        uint32_t miss = n_miss + count_before<THREADS>(leads, warp_total, &n_round);
        if (leads) {
            int32_t token = selection[e];
            l.token[miss] = token;
            l.miss[miss].host_row =
                (uint32_t)v.page[token / HSP_PAGE_TOKENS] * HSP_PAGE_TOKENS + (uint32_t)token % HSP_PAGE_TOKENS;
        }
        __syncthreads(); /* every entry of this round has looked before any number replaces an entry */
        if (leads)
            __stcg(&l.first[place - 1], miss | 0x80000000u); /* no entry number has that bit */
        n_miss += n_round;
    }
    return n_miss;
}

/* The slot offered i-th by the policy. */
static __device__ uint32_t offered(const hsp__cuda_swap_in &p, const request_view &v, random_walk walk, uint32_t i) {
    uint32_t n = (uint32_t)p.n_slots;
    if (p.policy == HSP_RANDOM)
        return (uint32_t)((walk.start + (uint64_t)i * walk.stride) % n);
    if (p.policy == HSP_CLOCK) {
        uint32_t slot = *v.cursor + i;
        return slot < n ? slot : slot - n;
    }
    return v.order[i];
}

/* Offer the slots in the policy's order and let the first n_miss takers be the victims. marked: CLOCK's second round
 * offers only slots whose mark the first round removed. Returns how many were there to be taken. */
static __device__ uint32_t choose_victims(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                                          random_walk walk, const uint8_t *selected, uint32_t n_miss, int marked,
                                          uint32_t *warp_total, uint32_t *last) {
    uint32_t n_free = 0;
    for (int base = 0; base < p.n_slots; base += THREADS) {
        int i = base + threadIdx.x;
        uint32_t n_round, slot = i < p.n_slots ? offered(p, v, walk, i) : 0;
        bool free = i < p.n_slots && !selected[slot] && (p.policy != HSP_CLOCK || v.order[slot] == marked);
        uint32_t rank = n_free + count_before<THREADS>(free, warp_total, &n_round);
        if (free && rank < n_miss) {
            l.victim[rank] = (uint16_t)slot;
            if (rank == n_miss - 1)
                *last = i;
        }
        n_free += n_round;
        __syncthreads();
    }
    return n_free;
}

/* LRU and FIFO: the new order goes to scratch, then back. */
static __device__ void reorder(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                               const uint8_t *selected, uint32_t n_miss, uint32_t n_unselected, uint32_t *warp_total) {
    uint32_t n_free = 0;
    for (int base = 0; base < p.n_slots; base += THREADS) {
        int i = base + threadIdx.x;
        uint32_t n_round, slot = i < p.n_slots ? v.order[i] : 0, hit = selected[slot];
        bool free = i < p.n_slots && !hit;
        uint32_t rank = n_free + count_before<THREADS>(free, warp_total, &n_round), to;
        if (free && rank < n_miss)
            to = (p.policy == HSP_LRU ? n_unselected : (uint32_t)p.n_slots) - n_miss + rank;
        else if (p.policy == HSP_LRU)
            to = hit ? n_unselected + i - rank : rank - n_miss;
        else
            to = i - min(rank, n_miss);
        if (i < p.n_slots)
            l.order[to] = (uint16_t)slot;
        n_free += n_round;
        __syncthreads();
    }
    for (int i = threadIdx.x; i < p.n_slots; i += THREADS)
        v.order[i] = l.order[i];
}

/* CLOCK's marks after the victims are known: selected and fetched rows are marked; the hand removed the marks it
 * passed. */
static __device__ void move_hand(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                                 const uint8_t *selected, uint32_t n_miss, bool second_round, uint32_t last) {
    uint32_t n = (uint32_t)p.n_slots, hand = *v.cursor;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t slot = hand + i < n ? hand + i : hand + i - n;
        if (selected[slot])
            v.order[slot] = 1;
        else if (n_miss > 0 && (second_round || i < last))
            v.order[slot] = 0;
    }
    __syncthreads();
    for (uint32_t m = threadIdx.x; m < n_miss; m += THREADS)
        v.order[l.victim[m]] = 1;
    if (threadIdx.x == 0 && n_miss > 0)
        *v.cursor = (hand + last + 1) % n;
}

static __device__ void clock_step(const hsp__cuda_swap_in &p, const request_view &v, lists l, const uint8_t *selected,
                                  uint32_t n_miss, uint32_t *warp_total, uint32_t *last) {
    random_walk none = {0, 0};
    uint32_t unmarked = n_miss ? choose_victims(p, v, l, none, selected, n_miss, 0, warp_total, last) : 0;
    bool second_round = unmarked < n_miss;
    if (second_round) {
        lists rest = l;
        rest.victim += unmarked;
        choose_victims(p, v, rest, none, selected, n_miss - unmarked, 1, warp_total, last);
    }
    __syncthreads();
    move_hand(p, v, l, selected, n_miss, second_round, *last);
}

static __device__ void policy_step(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                                   const uint8_t *selected, uint32_t n_miss, uint32_t *warp_total, uint32_t *last) {
    random_walk walk = {0, 0};
    if (p.policy == HSP_CLOCK) {
        clock_step(p, v, l, selected, n_miss, warp_total, last);
        return;
    }
    if (p.policy == HSP_RANDOM)
        walk = draw_walk(p.seed, (uint64_t)v.slot << 32 | (uint32_t)p.group, *v.cursor, (uint32_t)p.n_slots);
    uint32_t n_unselected = choose_victims(p, v, l, walk, selected, n_miss, 0, warp_total, last);
    if (p.policy == HSP_RANDOM && threadIdx.x == 0)
        ++*v.cursor;
    if (p.policy == HSP_LRU || (p.policy == HSP_FIFO && n_miss > 0))
        reorder(p, v, l, selected, n_miss, n_unselected, warp_total);
}

static __device__ void store_misses(const hsp__cuda_swap_in &p, const request_view &v, const lists &l, int32_t *ids,
                                    uint32_t n_miss) {
    for (uint32_t m = threadIdx.x; m < n_miss; m += THREADS) {
        v.tag[l.victim[m]] = l.token[m];
        v.where[l.token[m]] = l.victim[m];
        l.miss[m].number = m;
    }
    for (int e = threadIdx.x; ids && n_miss > 0 && e < p.n; e += THREADS)
        if (l.place[e])
            ids[e] = v.first_id + l.victim[__ldcg(&l.first[l.place[e] - 1]) & 0x7fffffffu];
}

static __device__ void leave_to_followers(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                                          uint32_t n_miss) {
    hsp__cuda_fetched *to = p.fetched + (uint64_t)blockIdx.x * p.most_fetched;
    for (uint32_t m = threadIdx.x; m < n_miss; m += THREADS)
        to[m] = {l.miss[m].host_row, (uint32_t)v.first_id + l.victim[m]};
}

static __device__ void swap_in(const hsp__cuda_swap_in &p, const request_view &v, const lists &l,
                               const int32_t *selection, int32_t *ids, uint8_t *selected) {
    __shared__ uint32_t warp_total[32], odd[2], last;
    for (uint32_t i = threadIdx.x; i < l.table_size; i += THREADS) {
        __stcg(&l.key[i], 0u);
        __stcg(&l.first[i], ~0u);
    }
    for (int i = threadIdx.x; i < p.n_slots; i += THREADS)
        selected[i] = 0;
    if (threadIdx.x < 2)
        odd[threadIdx.x] = 0;
    __syncthreads();
    find_hits(p, v, l, selection, ids, selected, odd);
    __syncthreads();
    uint32_t n_miss = list_misses(p, v, l, selection, warp_total);
    __syncthreads();
    policy_step(p, v, l, selected, n_miss, warp_total, &last);
    __syncthreads();
    store_misses(p, v, l, ids, n_miss);
    count(p, v, odd, n_miss);
    if (p.n_fetched && threadIdx.x == 0)
        p.n_fetched[blockIdx.x] = n_miss;
    if (n_miss > 0 && !p.no_io) {
        __syncthreads();
        if (p.n_fetched)
            leave_to_followers(p, v, l, n_miss);
        fetch_rows<false, false>(p.rows, {l.miss, l.victim, n_miss, (uint32_t)v.first_id}, 2, [] {});
    }
}

__global__ void __launch_bounds__(THREADS, 1) swap_in_big_kernel(const __grid_constant__ hsp__cuda_swap_in p) {
    extern __shared__ uint8_t selected[];
    const uint32_t b = blockIdx.x;
    const int32_t *selection = p.selection + (int64_t)b * p.n;
    int32_t *ids = p.ids ? p.ids + (int64_t)b * p.n : NULL;
    int32_t slot = p.warm_slot >= 0 ? p.warm_slot : p.state.batch_slot[b];
    if (slot >= 0) {
        request_view v = view_request(p, (uint32_t)slot);
        load_lengths<false>(v, p);
        swap_in(p, v, view_lists(p, b), selection, ids, selected);
    } else {
        for (int e = threadIdx.x; ids && e < p.n; e += THREADS)
            ids[e] = -1;
        if (p.n_fetched && threadIdx.x == 0)
            p.n_fetched[b] = 0;
    }
}

/* The attribute belongs to the kernel, not to a launch: set once, to the most any cache may need. */
cudaError_t hsp__cuda_swap_in_big_prepare(void) {
    return hsp__cuda_prepare((const void *)swap_in_big_kernel, 65536);
}

cudaError_t hsp__cuda_swap_in_big_launch(const hsp__cuda_swap_in *p, cudaStream_t stream) {
    hsp__cuda_shape shape = {p->batch, THREADS, 1, p->slot_stride, 0};
    return hsp__cuda_launch((const void *)swap_in_big_kernel, shape, p, stream);
}
