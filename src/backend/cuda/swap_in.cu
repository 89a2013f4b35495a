/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in for LRU with up to 8192 entries and slots, in one launch.
 *
 * A small batch has a cluster of blocks for each request. Every block resolves the whole request by itself, so that it
 * knows the misses without asking the others; block 0 alone writes what is remembered. The leaders of a warp (entries
 * that are the first to miss their token) are dealt to the blocks by their token; the first row of each warp sets off
 * before it is known which slot it will take.
 *
 * A large batch has one block for each request, or two, with half of its misses each; where they are more than a few,
 * they are sorted by their place in the context and fetched when the block's turn comes (turns.cuh). With more than
 * 4096 entries there are no registers for the sorting, and nobody waits.
 *
 * Barriers: after loading, after the tags were compared, in the prefix sum, and before the new order and the victims
 * are read; with misses a few more. */
#include <cooperative_groups.h>

#include "fetch.cuh"
#include "launch.h"
#include "lru.cuh"
#include "turns.cuh"

namespace cg = cooperative_groups;

/* Relaxed: it orders what was read before it, and those values are in registers already. A release would wait for
 * memory. */
static __device__ __forceinline__ void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* The work ahead in the stream is done after the first; the second lets the launch behind prepare itself. Never the
 * other way round: what runs beside this launch must find everything before it done. */
static __device__ __forceinline__ void wait_for_work_ahead(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

static __device__ __forceinline__ void let_next_launch_start(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

struct share {
    uint32_t part, parts; /* of the cluster */
};

/* Answers of this block's entry of the batch; found anew each time, or a pointer would be held from the start. */
static __device__ __forceinline__ int32_t *ids_of(const hsp__cuda_swap_in &p, const share &s) {
    return p.ids + (int64_t)(blockIdx.x / s.parts) * p.n;
}

/* A hint may come before the work ahead is done: it brings the line to the L2, where later stores change it. */
static __device__ __forceinline__ void expect(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

template <int EO>
static __device__ __forceinline__ void load_slots(int4 *tags, places<EO> &o, const request_view &v,
                                                  const hsp__cuda_swap_in &p) {
    load_tags<EO>(tags, v.tag, p.slot_stride);
    load_order(o, v.order, p.slot_stride);
}

/* Look-ups are a sector of the L2 each, and 2,048 of them take 0.6 us. Of a cluster every block makes a part and sends
 * it to the others. One thread expects all words of all blocks. */
template <int EK, int EO>
static __device__ __forceinline__ void expect_look_ups(shared_state<EK, EO> &sm) {
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&sm.looked_up);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp(); /* the init is one instruction of the whole warp, which racecheck takes for its last thread's */
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"((uint32_t)sizeof sm.where)
                     : "memory");
    cluster_arrive();
}

/* A word to the same place in another block, which its barrier counts when it is there. */
template <int EK, int EO>
static __device__ __forceinline__ void send_word(shared_state<EK, EO> &sm, uint32_t at, uint32_t word, uint32_t part) {
    uint32_t to = (uint32_t)__cvta_generic_to_shared(&sm.where[at]),
             barrier = (uint32_t)__cvta_generic_to_shared(&sm.looked_up);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(to) : "r"(part));
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(barrier) : "r"(part));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(word),
                 "r"(barrier)
                 : "memory");
}

template <int EK, int EO>
static __device__ __forceinline__ void wait_for_look_ups(shared_state<EK, EO> &sm) {
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&sm.looked_up), there = 0;
    while (!there)
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(there)
                     : "r"(barrier)
                     : "memory");
}

template <int EK, int EO>
static __device__ __forceinline__ void look_up_together(shared_state<EK, EO> &sm, entries<EK> &e, const request_view &v,
                                                        const share &s, int max_context) {
    cluster_wait(); /* all blocks are there, and their barriers */
    if ((threadIdx.x / 32 & (s.parts - 1)) == s.part) {
        load_where(e, v.where, max_context);
        for (uint32_t to = 0; to < s.parts; to++)
#pragma unroll
            for (int i = 0; i < EK; i += 2)
                send_word(sm, threadIdx.x * (EK / 2) + i / 2, e.where[i] | (uint32_t)e.where[i + 1] << 16, to);
    }
    wait_for_look_ups(sm);
#pragma unroll
    for (int i = 0; i < EK; i += 2)
        split(sm.where[threadIdx.x * (EK / 2) + i / 2], &e.where[i]);
}

/* Everything a block has to load. Only batch_slot, which no kernel that may overlap changes, and with p.early tags and
 * order may be read before the work ahead is done, and past the L1, which only that wait brings up to date. Returns the
 * request slot, -1 for padding. */
template <int EK, int EO, bool PLAIN, bool LATE>
static __device__ __forceinline__ int32_t load(shared_state<EK, EO> &sm, entries<EK> &e, places<EO> &o, request_view &v,
                                               const share &s, const hsp__cuda_swap_in &p, uint32_t b) {
    const int32_t *selection = p.selection + (int64_t)b * p.n;
    int4 tags[(EO + 3) / 4];
    int32_t slot = p.warm_slot >= 0 ? p.warm_slot : __ldcg(&p.state.batch_slot[b]);
    const bool together = s.parts > 1 && slot >= 0;
    if (together)
        expect_look_ups(sm);
    clear(sm);
    if (p.early && entry_of(EK, 0) < p.n)
        expect(&selection[entry_of(EK, 0)]);
    if (p.early && slot >= 0)
        load_slots(tags, o, v = view_request(p, (uint32_t)slot), p);
    wait_for_work_ahead();
    if (p.window == 0) /* a large batch fetches more slowly with the next launch beside it (lab/swap_in.md) */
        let_next_launch_start();
    load_selection(e, selection, p.n);
    if (slot < 0)
        return slot;
    if (!p.early)
        load_slots(tags, o, v = view_request(p, (uint32_t)slot), p);
    load_lengths<PLAIN && !LATE>(v, p);
    if (together)
        look_up_together(sm, e, v, s, p.max_context);
    else
        load_where(e, v.where, p.max_context);
    keep_tags(sm, tags);
    return slot;
}

/* Leaders (entries that are the first to miss their token) are dealt to the blocks of the cluster by their token, so
 * that all blocks agree, and stand in the list in any order: misses are often neighbours in the selection, and a list
 * shares them evenly among the warps. */
template <int EK, int EO>
static __device__ __forceinline__ void list_share(shared_state<EK, EO> &sm, const entries<EK> &e, const leaders &l,
                                                  const request_view &v, const share &s, uint32_t *place) {
#pragma unroll
    for (int i = 0; i < EK; i++) {
        bool ours = __umulhi((uint32_t)e.token[i] * 2246822519u, s.parts) == s.part;
        place[i] = NOT_LISTED;
        if (ours && l.mine >> i & 1) {
            place[i] = atomicAdd(&sm.n_listed, 1u);
            sm.list[place[i]].host_row = host_row_of(e, i, v);
        }
    }
}

/* The largest variant has no registers for places in a list made early: it lists all misses, by number, late. */
template <int EK, int EO>
static __device__ __forceinline__ void list_all(shared_state<EK, EO> &sm, const entries<EK> &e, const leaders &l,
                                                const request_view &v) {
    uint32_t miss = l.miss;
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (l.mine >> i & 1) {
            sm.list[miss] = {host_row_of(e, i, v), miss};
            miss++;
        }
}

/* LATE: the followers' rows come later, by a plan. A block adds the part of its list that it fetches itself; rows stand
 * in the order of the list where it is sorted, else by the number of their miss. */
template <int EK, int EO>
static __device__ __forceinline__ void leave_to_followers(const shared_state<EK, EO> &sm, const hsp__cuda_swap_in &p,
                                                          const share &s, uint32_t first_id, uint32_t first,
                                                          uint32_t end, bool sorted) {
    hsp__cuda_fetched *to = p.fetched + (uint64_t)(hidden(blockIdx.x) / s.parts) * p.most_fetched; /* as in ids_of */
#pragma unroll 1
    for (uint32_t i = first + threadIdx.x; i < end; i += THREADS) {
        hsp__cuda_miss miss = sm.list[i];
        to[sorted ? i : miss.number] = {miss.host_row, first_id + sm.victim[miss.number]};
    }
}

static __device__ __forceinline__ void count_for_followers(const hsp__cuda_swap_in &p, const share &s,
                                                           uint32_t n_miss) {
    if (threadIdx.x == 0)
        p.n_fetched[blockIdx.x / s.parts] = n_miss;
}

/* What this block fetches: the rows after those that its warps hold, then those. */
template <int EK, int EO, bool PLAIN, bool LATE, int PIECES>
static __device__ __forceinline__ void fetch_share(shared_state<EK, EO> &sm, const hsp__cuda_swap_in &p, const share &s,
                                                   uint32_t first_id, uint32_t n_miss, const held_row<PIECES> &h,
                                                   bool held) {
    const uint32_t warp = threadIdx.x / 32, each = (n_miss + s.parts - 1) / s.parts;
    uint32_t first = EK < 8 ? (held ? THREADS / 32 : 0) : each * s.part,
             end = EK < 8 ? sm.n_listed : min(n_miss, first + each);
    if (first < end)
        fetch_rows<PLAIN, false>(p.rows, {sm.list + first, sm.victim, end - first, first_id}, EK < 8 ? p.in_flight : 2,
                                 [] {});
    if (PIECES > 0 && held && warp < end)
        put_row(h, p.rows, first_id + sm.victim[sm.list[warp].number]);
    if (LATE) /* the link is at work by now */
        leave_to_followers(sm, p, s, first_id, EK < 8 ? 0 : first, end, false);
}

/* ------------------------------------------------------------------------------------------------- large batches -- */

/* Misses are listed by parts of the context, at most THREADS of them and powers of two long: where they stand inside
 * one does not matter. */
static __device__ __forceinline__ uint32_t bucket_of(int32_t token, int32_t length) {
    return (uint32_t)token >> max(0, 22 - __clz(length - 1));
}

template <int EK, int EO>
static __device__ __forceinline__ void count_buckets(shared_state<EK, EO> &sm, const entries<EK> &e, const leaders &l,
                                                     int32_t length, uint32_t *place) {
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (l.mine >> i & 1)
            place[i] = atomicAdd(&sm.bucket[bucket_of(e.token[i], length)], 1u);
}

/* Each bucket's count becomes its first place. One barrier. */
template <int EK, int EO>
static __device__ __forceinline__ void sum_buckets(shared_state<EK, EO> &sm) {
    uint32_t mine = sm.bucket[threadIdx.x], upto = mine, total;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        uint32_t other = __shfl_up_sync(~0u, upto, d);
        upto += threadIdx.x % 32 >= d ? other : 0;
    }
    uint32_t before = sum_of_earlier_warps<THREADS>(__shfl_sync(~0u, upto, 31), sm.warp_bucket, &total);
    sm.bucket[threadIdx.x] = before + upto - mine;
}

/* Where the second of two blocks begins: at a bucket, for inside one each block has an order of its own. */
template <int EK, int EO>
static __device__ __forceinline__ void find_split(shared_state<EK, EO> &sm, uint32_t n_miss) {
    uint32_t begin = sm.bucket[threadIdx.x], end = threadIdx.x + 1 < THREADS ? sm.bucket[threadIdx.x + 1] : n_miss;
    if (begin <= n_miss / 2 && n_miss / 2 < end)
        sm.split = begin;
}

/* A request that misses half of what it looks for has little beside it on the link, and needs more loads in flight. */
template <int EK, int EO, bool PLAIN, bool LATE>
static __device__ __forceinline__ void fetch_sorted(shared_state<EK, EO> &sm, const entries<EK> &e, const leaders &l,
                                                    const hsp__cuda_swap_in &p, const request_view &v, const share &s,
                                                    const uint32_t *place, uint32_t n_miss) {
    uint32_t miss = l.miss;
#pragma unroll
    for (int i = 0; i < EK; i++)
        if (l.mine >> i & 1)
            sm.list[sm.bucket[bucket_of(e.token[i], v.readable)] + place[i]] = {host_row_of(e, i, v), miss++};
    if (s.parts > 1)
        find_split(sm, n_miss);
    __syncthreads();
    const uint32_t first = s.part == 0 ? 0 : sm.split, end = s.part + 1 == s.parts ? n_miss : sm.split;
    if (first == end)
        return;
    if (LATE)
        leave_to_followers(sm, p, s, (uint32_t)v.first_id, first, end, true);
    wait_for_turn(p);
    fetch_rows<PLAIN, true>(p.rows, {sm.list + first, sm.victim, end - first, (uint32_t)v.first_id},
                            2 * n_miss > (uint32_t)p.n ? 4 : p.in_flight, [&] {
                                /* The turn ends when all that is left has set off: the next block's rows fill the link
                                 * meanwhile. */
                                if (threadIdx.x % 32 == 0 && atomicAdd(&sm.n_set_off, 1u) == THREADS / 32 - 1)
                                    end_turn(p);
                            });
}

/* ------------------------------------------------------------------------------------------------------- kernel -- */

/* What is remembered, and the answers that had to wait for it. */
template <int EK, int EO>
static __device__ __forceinline__ void store_state(shared_state<EK, EO> &sm, entries<EK> &e, const leaders &l,
                                                   const request_view &view, const hsp__cuda_swap_in &p, const share &s,
                                                   uint32_t n_miss) {
    const request_view v = view_request(p, hidden(view.slot)); /* or six pointers would be held from the start */
    store_order(sm, v.order, p.slot_stride);
    if (n_miss > 0) {
        store_misses(sm, e, l, v);
        answer_misses(sm, e, v);
        if (p.ids && e.missing)
            store_ids(e, ids_of(p, s), p.n);
    }
}

template <int EK, int EO, bool PLAIN, bool LATE>
static __device__ __forceinline__ void swap_in(shared_state<EK, EO> &sm, entries<EK> &e, places<EO> &o,
                                               const request_view &v, const share &s, const hsp__cuda_swap_in &p) {
    enum { PIECES = !PLAIN || EK > 2 ? 0 : EO > 4 ? 2 : 3 }; /* a lane holds: what the registers have room for */
    uint32_t n_all, warp_kept, place[EK];
    leaders l = {0, 0, 0, 0};
    held_row<PIECES> h;
    __syncthreads();
    find_hits(sm, e, v, p);
    if (s.part == 0 && p.ids && !e.missing)
        store_ids(e, ids_of(p, s), p.n);
    /* A large batch spends a barrier to know early who has nothing to fetch, and who so much that it sorts. */
    const int missing = p.window > 0 ? __syncthreads_count(e.missing) : THREADS;
    const bool sorted = EK < 8 && p.window > 0 && missing > p.few && !p.no_io,
               held = PIECES > 0 && !sorted && !p.no_io && p.rows.row_pieces.by <= 32 * PIECES;
    if (p.window == 0)
        __syncthreads();
    if (missing == 0)
        let_next_launch_start();
    find_hit_places(sm, o, p.n_slots);
    if (s.parts > 1)
        cluster_arrive(); /* this block has read all it will read of what block 0 is about to change */
    uint32_t rank = count_in_warp<EO>(~o.hit, &warp_kept);
    if (__any_sync(~0u, e.missing)) {
        l = find_leaders(sm, e);
        if (sorted)
            count_buckets(sm, e, l, v.readable, place);
        else if (EK < 8)
            list_share(sm, e, l, v, s, place);
    }
    uint32_t before = sum_of_earlier_warps<THREADS>(warp_kept << 16 | l.in_warp, sm.warp_total, &n_all);
    rank += before >> 16;
    l.miss = (before & 0xffff) + l.before_in_warp;
    const uint32_t n_miss = n_all & 0xffff, n_unselected = n_all >> 16;
    if (held && threadIdx.x / 32 < sm.n_listed)
        hold_row(h, p.rows, sm.list[threadIdx.x / 32].host_row);
    if (n_miss > 0) {
        number_misses(sm, e, l, place, EK < 8 && !sorted);
        if (EK == 8)
            list_all(sm, e, l, v);
        list_victims(sm, o, rank, n_miss);
        if (sorted)
            sum_buckets(sm);
    }
    if (s.part == 0)
        make_order(sm, o, rank, n_unselected, n_miss, p.n_slots);
    if (s.part == 0 || n_miss > 0)
        __syncthreads();
    if (s.part == 0) {
        if (s.parts > 1)
            cluster_wait();
        store_state(sm, e, l, v, p, s, n_miss);
    }
    if (s.part == s.parts - 1) { /* of a cluster not the block that has the order to store */
        count(p, view_request(p, hidden(v.slot)), sm.odd, n_miss);
        if (LATE)
            count_for_followers(p, s, n_miss);
    }
    if (sorted)
        fetch_sorted<EK, EO, PLAIN, LATE>(sm, e, l, p, v, s, place, n_miss);
    else if (n_miss > 0 && !p.no_io)
        fetch_share<EK, EO, PLAIN, LATE>(sm, p, s, (uint32_t)v.first_id, n_miss, h, held);
}

/* An entry of padding. */
template <bool LATE>
static __device__ __forceinline__ void swap_in_padding(const hsp__cuda_swap_in &p, const share &s) {
    let_next_launch_start();
    if (LATE && s.part == 0)
        count_for_followers(p, s, 0);
    for (int i = s.part * THREADS + threadIdx.x; p.ids && i < p.n; i += s.parts * THREADS)
        ids_of(p, s)[i] = -1;
}

template <int EK, int EO, bool PLAIN, bool LATE>
__global__ void __launch_bounds__(THREADS, 1) swap_in_kernel(const __grid_constant__ hsp__cuda_swap_in p) {
    extern __shared__ __align__(16) unsigned char memory[];
    shared_state<EK, EO> &sm = *(shared_state<EK, EO> *)memory;
    cg::cluster_group cluster = cg::this_cluster();
    const share s = {cluster.block_rank(), cluster.num_blocks()};
    const uint32_t b = blockIdx.x / s.parts;
    entries<EK> e;
    places<EO> o;
    request_view v;
    const bool live = load<EK, EO, PLAIN, LATE>(sm, e, o, v, s, p, b) >= 0;
    if (live)
        swap_in<EK, EO, PLAIN, LATE>(sm, e, o, v, s, p);
    else
        swap_in_padding<LATE>(p, s);
    if (live && s.parts > 1 && s.part != 0)
        cluster_wait();
}

/* ------------------------------------------------------------------------------------------------------- launch -- */

typedef struct variant {
    int most_entries, most_slots; /* what it holds */
    const void *kernel[2][2];     /* followers come at once, later; general, plain */
    int shared_bytes;
} variant;

#define VARIANT(EK, EO)                                                                                                \
    {                                                                                                                  \
        EK *THREADS, EO *THREADS,                                                                                      \
            {{(const void *)swap_in_kernel<EK, EO, false, false>, (const void *)swap_in_kernel<EK, EO, true, false>},  \
             {(const void *)swap_in_kernel<EK, EO, false, true>, (const void *)swap_in_kernel<EK, EO, true, true>}},   \
            (int)sizeof(shared_state<EK, EO>)                                                                          \
    }
/* In this order: the first that is large enough is the fastest. */
static const variant variants[] = {VARIANT(2, 2), VARIANT(2, 4), VARIANT(2, 8), VARIANT(4, 8), VARIANT(8, 8)};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

int hsp__cuda_swap_in_fits(int policy, int n, int n_slots) {
    const variant *largest = &variants[N_VARIANTS - 1];
    return policy == HSP_LRU && n <= largest->most_entries && n_slots <= largest->most_slots;
}

/* Only what a cache of so many slots can use: a smaller GPU may not have the shared memory for the rest. */
cudaError_t hsp__cuda_swap_in_prepare(int n_slots, int with_late) {
    cudaError_t status = cudaSuccess;
    for (const variant *v = variants; v < variants + N_VARIANTS && status == cudaSuccess; v++) {
        for (int i = 0; i < (with_late ? 4 : 2) && v->most_slots >= n_slots && status == cudaSuccess; i++)
            status = hsp__cuda_prepare(v->kernel[i / 2][i % 2], v->shared_bytes);
        if (v->most_entries >= n_slots && v->most_slots >= n_slots)
            break;
    }
    return status;
}

cudaError_t hsp__cuda_swap_in_launch(const hsp__cuda_swap_in *p, int parts, int overlaps, cudaStream_t stream) {
    const variant *v = variants;
    while (p->n > v->most_entries || p->n_slots > v->most_slots)
        v++;
    hsp__cuda_shape shape = {p->batch * parts, THREADS, parts, v->shared_bytes, overlaps};
    return hsp__cuda_launch(v->kernel[p->n_fetched != NULL][p->plain], shape, p, stream);
}
