/* SPDX-License-Identifier: Apache-2.0
 *
 * Quest: page statistics and page scores. Scoring reads every statistic once and does little else, so what counts is
 * loads under way: lanes share a page (or the part of it that belongs to a KV head), and take four pages at a time.
 */
#include "numbers.cuh"
#include "shapes.h"
#include "top.h"

enum { THREADS = 256, PAGES = 4 };

struct quest {
    hsp_gpu_batch batch;
    unsigned char *stats;
    uint64_t request_stride;
    const float *query;
    float *mean;   /* [entries * queries][channels] */
    float *scores; /* [entries * queries * n_groups][score_stride] */
    uint64_t score_stride;
    const unsigned char *keys; /* new ones */
    uint64_t key_stride;
    int32_t n_new;
    int32_t n_heads, n_kv_heads, head_dim, page_tokens, dtype, channels;
    int32_t n_groups; /* scores of a page: 1 or n_kv_heads */
    int32_t lanes;    /* that share a page's group, a power of two */
};

/* ------------------------------------------------------------------------------------------------------- update -- */

/* Keys of tokens first .. end - 1, all of the page, into its statistics of a channel. */
template <int DTYPE>
static __device__ __forceinline__ void take_in(const quest &p, unsigned char *page, const unsigned char *keys,
                                               int32_t n, bool fresh, int32_t channel) {
    unsigned char *maxima = page + (size_t)p.channels * (DTYPE == HSP_F32 ? 4 : 2);
    float low = number_at<DTYPE>(fresh ? keys : page, channel), high = number_at<DTYPE>(fresh ? keys : maxima, channel);
    for (int32_t i = fresh; i < n; i++) {
        float key = number_at<DTYPE>(keys + i * p.key_stride, channel);
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    store_number<DTYPE>(page, channel, low);
    store_number<DTYPE>(maxima, channel, high);
}

/* A block a page. */
template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) quest_update_kernel(const __grid_constant__ quest p) {
    int32_t entry = blockIdx.y, slot = p.batch.slot[entry];
    int32_t end = hsp__gpu_tokens(p.batch, entry, p.batch.n_queries - 1), skipped = max(p.n_new - end, 0);
    int32_t first = max(end - p.n_new, 0);
    int64_t page = first / p.page_tokens + (int64_t)blockIdx.x, page_first = page * p.page_tokens;
    if (slot < 0 || page_first >= end)
        return;
    int32_t from = (int32_t)max(page_first, (int64_t)first),
            to = (int32_t)min(page_first + p.page_tokens, (int64_t)end);
    unsigned char *stats =
        p.stats + (uint64_t)slot * p.request_stride + (uint64_t)page * 2 * p.channels * (DTYPE == HSP_F32 ? 4 : 2);
    const unsigned char *keys = p.keys + ((uint64_t)entry * p.n_new + skipped + (from - first)) * p.key_stride;
    for (int32_t c = threadIdx.x; c < p.channels; c += THREADS)
        take_in<DTYPE>(p, stats, keys, to - from, from == page_first, c);
}

/* ------------------------------------------------------------------------------------------------------- scores -- */

static __global__ void __launch_bounds__(THREADS) quest_mean_kernel(const __grid_constant__ quest p) {
    int32_t channel = blockIdx.x * THREADS + threadIdx.x, group = p.n_heads / p.n_kv_heads;
    size_t at = blockIdx.y;
    if (channel >= p.channels || p.batch.slot[at / p.batch.n_queries] < 0)
        return;
    const float *query = p.query + (at * p.n_heads + (size_t)(channel / p.head_dim) * group) * p.head_dim;
    float sum = query[channel % p.head_dim];
    for (int32_t h = 1; h < group; h++)
        sum += query[(size_t)h * p.head_dim + channel % p.head_dim];
    p.mean[at * p.channels + channel] = sum / (float)group;
}

/* As on the CPU: where either is NaN, that of the minimum. */
static __device__ __forceinline__ float better(float query, float minimum, float maximum) {
    float above = query * maximum, below = query * minimum;
    return above > below ? above : below;
}

/* Some numbers of a row that lie together: as many as one load brings, or one. */
template <int DTYPE, bool WIDE>
struct some {
    enum { N = !WIDE ? 1 : DTYPE == HSP_F32 ? 4 : 8 };
    float x[N];
    uint4 packed;
    __device__ __forceinline__ void load(const unsigned char *row, int32_t piece) {
        if (WIDE)
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(packed.x), "=r"(packed.y), "=r"(packed.z), "=r"(packed.w)
                         : "l"((const uint4 *)row + piece));
        else
            packed.x = __float_as_uint(number_at<DTYPE>(row, piece));
    }
    __device__ __forceinline__ void unpack(void) {
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (!WIDE || DTYPE == HSP_F32) {
                x[i] = __uint_as_float(words[WIDE ? i : 0]);
            } else {
                float2 two = two_numbers<DTYPE>(words[i / 2]);
                x[i] = i % 2 ? two.y : two.x;
            }
        }
    }
};

/* As many as there are numbers in a piece; four together have the alignment of 16 bytes. */
template <int N>
static __device__ __forceinline__ void load_mean(const float *mean, float query[N]) {
    if constexpr (N == 1)
        query[0] = __ldg(mean);
    else
#pragma unroll
        for (int i = 0; i < N; i += 4)
            *(float4 *)&query[i] = __ldg((const float4 *)(mean + i));
}

/* What a lane's pieces of PAGES pages add up to. minima: of the first page's group; the group is n_pieces pieces. */
template <int DTYPE, bool WIDE>
static __device__ __forceinline__ void add_pieces(const quest &p, const unsigned char *minima, int32_t n_pages,
                                                  const float *mean, int32_t n_pieces, float sum[PAGES]) {
    typedef some<DTYPE, WIDE> numbers;
    size_t half = (size_t)p.channels * (DTYPE == HSP_F32 ? 4 : 2);
    for (int32_t piece = threadIdx.x & (p.lanes - 1); piece < n_pieces; piece += p.lanes) {
        numbers low[PAGES], high[PAGES];
#pragma unroll
        for (int i = 0; i < PAGES; i++) {
            const unsigned char *page = minima + min(i, n_pages - 1) * 2 * half;
            low[i].load(page, piece);
            high[i].load(page + half, piece);
        }
        alignas(16) float query[numbers::N];
        load_mean<numbers::N>(mean + (size_t)piece * numbers::N, query);
#pragma unroll
        for (int i = 0; i < PAGES; i++) {
            low[i].unpack();
            high[i].unpack();
#pragma unroll
            for (int n = 0; n < numbers::N; n++)
                sum[i] += better(query[n], low[i].x[n], high[i].x[n]);
        }
    }
}

template <int DTYPE, bool WIDE>
static __global__ void __launch_bounds__(THREADS, 3) quest_scores_kernel(const __grid_constant__ quest p) {
    int32_t entry = blockIdx.z, query = blockIdx.y, slot = p.batch.slot[entry];
    int32_t n_tokens = slot < 0 ? 0 : hsp__gpu_tokens(p.batch, entry, query);
    int32_t n_pages = n_tokens / p.page_tokens + (n_tokens % p.page_tokens != 0);
    int32_t dims = p.channels / p.n_groups, n_pieces = dims / some<DTYPE, WIDE>::N, at_once = 32 / p.lanes;
    int64_t n_units = (int64_t)((n_pages + PAGES - 1) / PAGES) * p.n_groups,
            step = gridDim.x * (THREADS / 32) * at_once;
    size_t at = (size_t)entry * p.batch.n_queries + query, number = DTYPE == HSP_F32 ? 4 : 2;
    const unsigned char *stats = p.stats + (uint64_t)(slot < 0 ? 0 : slot) * p.request_stride;
    for (int64_t base = (int64_t)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * at_once; base < n_units;
         base += step) {
        int64_t unit = min(base + (threadIdx.x & 31) / p.lanes, n_units - 1);
        int32_t page = (int32_t)(unit / p.n_groups) * PAGES, group = unit % p.n_groups, left = n_pages - page;
        float sum[PAGES] = {};
        add_pieces<DTYPE, WIDE>(p, stats + ((size_t)page * 2 * p.channels + (size_t)group * dims) * number, left,
                                p.mean + at * p.channels + (size_t)group * dims, n_pieces, sum);
        for (int span = p.lanes / 2; span > 0; span /= 2)
#pragma unroll
            for (int i = 0; i < PAGES; i++)
                sum[i] += __shfl_xor_sync(~0u, sum[i], span);
        float *scores = p.scores + (at * p.n_groups + group) * p.score_stride + page;
#pragma unroll
        for (int i = 0; i < PAGES; i++)
            if ((threadIdx.x & (p.lanes - 1)) == 0 && i < left)
                scores[i] = sum[i];
    }
}

/* -------------------------------------------------------------------------------------------------- entry points -- */

static size_t number_bytes(const hsp_quest_shape *shape) {
    return shape->dtype == HSP_F32 ? 4 : 2;
}

static quest quest_of(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, const void *stats,
                      uint64_t request_stride) {
    quest p = {};
    p.batch = *batch;
    p.stats = (unsigned char *)stats;
    p.request_stride = request_stride;
    p.n_heads = shape->n_heads;
    p.n_kv_heads = shape->n_kv_heads;
    p.head_dim = shape->head_dim;
    p.page_tokens = shape->page_tokens;
    p.dtype = shape->dtype;
    p.channels = shape->n_kv_heads * shape->head_dim;
    p.score_stride = (uint64_t)hsp__gpu_pieces(batch->max_tokens, shape->page_tokens);
    return p;
}

extern "C" int hsp_gpu_quest_update(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, void *stats,
                                    uint64_t request_stride, const void *keys, uint64_t key_stride, int32_t n_new,
                                    void *stream) {
    static const void *const kernels[] = {(const void *)quest_update_kernel<HSP_F32>,
                                          (const void *)quest_update_kernel<HSP_F16>,
                                          (const void *)quest_update_kernel<HSP_BF16>};
    int status = hsp__check_quest(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (n_new < 0 || (n_new && (!stats || !keys)) ||
        ((uintptr_t)stats | (uintptr_t)keys | request_stride | key_stride) % number_bytes(shape))
        return HSP_EINVAL;
    quest p = quest_of(shape, batch, stats, request_stride);
    p.keys = (const unsigned char *)keys;
    p.key_stride = key_stride;
    p.n_new = n_new;
    int64_t pages = n_new ? ((int64_t)n_new - 1) / shape->page_tokens + 2 : 0; /* that n_new tokens can touch */
    return hsp__gpu_launch(kernels[shape->dtype], dim3((unsigned)pages, (unsigned)batch->batch), THREADS, 1, 0, &p,
                           stream);
}

/* Where the mean queries end, in floats, and the scores begin. */
static size_t mean_floats(const hsp_quest_shape *shape, size_t queries) {
    return (queries * shape->n_kv_heads * shape->head_dim + 3) / 4 * 4;
}

extern "C" int hsp_gpu_quest_scratch(const hsp_quest_shape *shape, int32_t max_batch, int32_t n_queries,
                                     int32_t max_tokens, size_t *bytes_out) {
    int status = hsp__check_quest(shape);
    if (status)
        return status;
    if (max_batch < 0 || n_queries < 1 || max_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    size_t queries = (size_t)max_batch * n_queries;
    size_t pages = (size_t)hsp__gpu_pieces(max_tokens, shape->page_tokens);
    *bytes_out = (mean_floats(shape, queries) + queries * shape->n_kv_heads * pages) * sizeof(float);
    return HSP_OK;
}

/* Lanes that share a page's group of so many pieces. */
static int lanes_for(int32_t n_pieces) {
    int lanes = 1;
    while (lanes < 32 && lanes < n_pieces)
        lanes *= 2;
    return lanes;
}

static int score_pages(quest *p, void *stream) {
    static const void *const kernels[2][3] = {
        {(const void *)quest_scores_kernel<HSP_F32, false>, (const void *)quest_scores_kernel<HSP_F16, false>,
         (const void *)quest_scores_kernel<HSP_BF16, false>},
        {(const void *)quest_scores_kernel<HSP_F32, true>, (const void *)quest_scores_kernel<HSP_F16, true>,
         (const void *)quest_scores_kernel<HSP_BF16, true>}};
    int32_t dims = p->channels / p->n_groups, number = p->dtype == HSP_F32 ? 4 : 2;
    int wide = ((uintptr_t)p->stats | p->request_stride) % 16 == 0 && (int64_t)dims * number % 16 == 0 &&
               (int64_t)p->channels * number % 16 == 0;
    p->lanes = lanes_for(wide ? dims / (16 / number) : dims);
    int64_t queries = (int64_t)p->batch.batch * p->batch.n_queries;
    if (queries > 65535)
        return HSP_ELIMIT;
    if (queries == 0 || p->batch.max_tokens == 0)
        return HSP_OK;
    int status = hsp__gpu_launch((const void *)quest_mean_kernel,
                                 dim3((unsigned)hsp__gpu_pieces(p->channels, THREADS), (unsigned)queries), THREADS, 1,
                                 0, p, stream);
    int64_t units = hsp__gpu_pieces((int64_t)p->score_stride, PAGES) * p->n_groups;
    int64_t blocks = hsp__gpu_pieces(units * p->lanes, THREADS), wanted = 8192 / queries + 8;
    dim3 grid((unsigned)(blocks < wanted ? blocks : wanted), (unsigned)p->batch.n_queries, (unsigned)p->batch.batch);
    return status ? status : hsp__gpu_launch(kernels[wide][p->dtype], grid, THREADS, 1, 0, p, stream);
}

static int select(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, const void *stats, uint64_t request_stride,
                  const float *query, int32_t k, bool groups, int32_t *selection_out, void *scratch, void *stream) {
    int status = hsp__check_quest(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (k < 1 || k % shape->page_tokens || !selection_out ||
        ((uintptr_t)stats | request_stride) % number_bytes(shape) || (uintptr_t)scratch % 16)
        return HSP_EINVAL;
    if (batch->max_tokens && (!stats || !query || !scratch))
        return HSP_EINVAL;
    quest p = quest_of(shape, batch, stats, request_stride);
    p.query = query;
    p.mean = (float *)scratch;
    p.scores = p.mean + mean_floats(shape, (size_t)batch->batch * batch->n_queries);
    p.n_groups = groups ? shape->n_kv_heads : 1;
    status = score_pages(&p, stream);
    hsp__gpu_choice choice = {*batch, p.scores, p.score_stride,         p.n_groups, shape->page_tokens,
                              0,      1,        k / shape->page_tokens, 0,          selection_out};
    return status ? status : hsp__gpu_choose(&choice, stream);
}

extern "C" int hsp_gpu_quest_select(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, const void *stats,
                                    uint64_t request_stride, const float *query, int32_t k, int32_t *selection_out,
                                    void *scratch, void *stream) {
    return select(shape, batch, stats, request_stride, query, k, false, selection_out, scratch, stream);
}

extern "C" int hsp_gpu_quest_select_groups(const hsp_quest_shape *shape, const hsp_gpu_batch *batch, const void *stats,
                                           uint64_t request_stride, const float *query, int32_t k,
                                           int32_t *selection_out, void *scratch, void *stream) {
    return select(shape, batch, stats, request_stride, query, k, true, selection_out, scratch, stream);
}
