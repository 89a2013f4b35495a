/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of the decision of a swap-in that are the same whatever its size: what an entry is, and who was first to miss
 * a token. The contract is src/core/plan.c and src/core/recency.c; this mirrors them bit for bit. */
#ifndef HSP_CUDA_RESOLVE_CUH
#define HSP_CUDA_RESOLVE_CUH

#include "device.cuh"
#include "params.h"

#define NO_SLOT 0xffffu

/* What one request and group look like during a launch. */
typedef struct request_view {
    int32_t *tag;
    uint16_t *order, *where;
    uint32_t *cursor;
    const int32_t *page;
    hsp_counters *counters;
    int32_t written, readable, ring_first, first_id;
    uint32_t slot;
} request_view;

/* Where things are. Reads nothing: load_lengths has the rest. */
static __device__ __forceinline__ request_view view_request(const hsp__cuda_swap_in &p, uint32_t slot) {
    request_view v = {};
    const hsp__cuda_group_state &state = p.state;
    v.tag = state.tag + (uint64_t)slot * state.slot_array_stride;
    v.order = state.order + (uint64_t)slot * state.slot_array_stride;
    v.where = state.where + (uint64_t)slot * state.where_stride;
    v.cursor = state.cursor + (uint64_t)slot * state.n_groups;
    v.page = state.page + (uint64_t)slot * state.max_pages;
    v.counters = state.counters + (uint64_t)slot * state.n_groups;
    v.first_id = (int32_t)slot * p.rows_per_request;
    v.slot = slot;
    return v;
}

template <bool ONE_LAYER>
static __device__ __forceinline__ void load_lengths(request_view &v, const hsp__cuda_swap_in &p) {
    const int32_t *written = p.state.written + (uint64_t)v.slot * p.state.n_layers;
    v.ring_first = p.state.ring_first[v.slot];
    v.written = v.readable = written[0];
    if (!ONE_LAYER)
        for (int i = 1; i < p.rows.n_layers; i++)
            v.readable = min(v.readable, written[p.rows.group_layer[i] - p.rows.anchor]);
}

/* What a launch adds to the counters, by threads of different warps, without waiting for what is there. odd: entries of
 * -1, entries out of range. */
static __device__ __forceinline__ void count(const hsp__cuda_swap_in &p, const request_view &v, const uint32_t *odd,
                                             uint32_t n_miss) {
    if (threadIdx.x == 0 && p.warm_slot < 0)
        add_to(&v.counters->hits, p.n - odd[0] - odd[1] - n_miss);
    if (n_miss > 0 && threadIdx.x == 32)
        add_to(p.warm_slot < 0 ? &v.counters->misses : &v.counters->warmed, n_miss);
    if (n_miss > 0 && threadIdx.x == 64)
        add_to(&v.counters->fetched_bytes, (uint64_t)n_miss * p.miss_bytes);
    if (odd[0] && threadIdx.x == 96 && p.warm_slot < 0)
        add_to(&v.counters->none, odd[0]);
    if (odd[1] && threadIdx.x == 128 && p.warm_slot < 0)
        add_to(&v.counters->invalid, odd[1]);
}

/* Entries that have an answer at once, before any slot is looked at. */
enum entry_kind { ENTRY_NONE, ENTRY_INVALID, ENTRY_RING, ENTRY_ROW };

static __device__ __forceinline__ entry_kind classify(const request_view &v, int32_t token) {
    bool in_ring = token >= v.ring_first;
    if ((uint32_t)token >= (uint32_t)(in_ring ? v.written : v.readable))
        return token == -1 ? ENTRY_NONE : ENTRY_INVALID;
    return in_ring ? ENTRY_RING : ENTRY_ROW;
}

/* Open-addressed table of the tokens missed in this launch: which entry named each first. keys are token + 1, 0 is
 * empty. The place is the top of a product: strides do not crowd (Knuth, The Art of Computer Programming, 6.4). */
typedef struct miss_table {
    uint32_t *key;
    uint32_t *first; /* smallest entry, then the number of the miss */
    uint32_t mask;
} miss_table;

static __device__ __forceinline__ uint32_t table_insert(const miss_table &t, int32_t token, uint32_t entry) {
    uint32_t key = (uint32_t)token + 1, at = __umulhi(key * 2654435761u, t.mask + 1);
    for (;; at = (at + 1) & t.mask) {
        uint32_t before = atomicCAS(&t.key[at], 0u, key);
        if (before == 0 || before == key)
            break;
    }
    atomicMin(&t.first[at], entry);
    return at;
}

/* Steele, Lea, Flood (OOPSLA 2014), as in src/core/recency.c. */
static __device__ __forceinline__ uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Walk of HSP_RANDOM over the slots: (start + i * stride) mod n. */
typedef struct random_walk {
    uint32_t start, stride;
} random_walk;

static __device__ random_walk draw_walk(uint64_t seed, uint64_t seed_key, uint32_t cursor, uint32_t n) {
    uint64_t draw = mix(mix(seed ^ mix(seed_key)) + cursor);
    random_walk w = {(uint32_t)(draw >> 32) % n, (uint32_t)draw % n};
    for (;; w.stride = (w.stride + 1) % n) {
        uint32_t a = w.stride, b = n;
        while (b) {
            uint32_t r = a % b;
            a = b;
            b = r;
        }
        if (a == 1)
            return w;
    }
}

#endif
