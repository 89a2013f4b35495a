/* SPDX-License-Identifier: Apache-2.0
 *
 * Quest: running minima and maxima per page, and the choice of the best pages for a query.
 */
#include "kernels.h"
#include "select.h"
#include "shapes.h"
#include "top.h"

/* Numbers read below which waking threads costs more than it saves: some ten microseconds of one core. */
#define ENOUGH_WORK (1 << 19)

#define PAGES_TOGETHER 64 /* pages one thread scores at a time */

static int32_t channels_of(const hsp_quest_shape *shape) {
    return shape->n_kv_heads * shape->head_dim;
}

static size_t key_bytes(const hsp_quest_shape *shape) {
    return (size_t)channels_of(shape) * (shape->dtype == HSP_F32 ? 4 : 2);
}

static int32_t pages_of(const hsp_quest_shape *shape, int32_t n_tokens) {
    return hsp__pieces(n_tokens, shape->page_tokens);
}

int hsp_quest_bytes(const hsp_quest_shape *shape, int32_t max_tokens, size_t *bytes_out) {
    int status = hsp__check_quest(shape);
    if (status)
        return status;
    if (max_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    *bytes_out = (size_t)pages_of(shape, max_tokens) * 2 * key_bytes(shape);
    return HSP_OK;
}

int hsp_quest_update(const hsp_quest_shape *shape, void *stats, const void *keys, size_t key_stride, int32_t first,
                     int32_t n_tokens) {
    int status = hsp__check_quest(shape);
    if (status)
        return status;
    if (first < 0 || n_tokens < 0 || (n_tokens && (!stats || !keys)))
        return HSP_EINVAL;
    if (n_tokens > INT32_MAX - first)
        return HSP_ELIMIT;
    if (n_tokens == 0)
        return HSP_OK;
    const struct hsp__kernels *kernels = hsp__ops();
    int32_t end = first + n_tokens, last_page = (end - 1) / shape->page_tokens;
    int64_t work = (int64_t)n_tokens * channels_of(shape);
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t page = first / shape->page_tokens; page <= last_page; page++) {
        int64_t page_first = (int64_t)page * shape->page_tokens, page_end = page_first + shape->page_tokens;
        int32_t from = page_first > first ? (int32_t)page_first : first, to = page_end < end ? (int32_t)page_end : end;
        char *minima = (char *)stats + (size_t)page * 2 * key_bytes(shape);
        kernels->quest_page[shape->dtype]((const char *)keys + (size_t)(from - first) * key_stride, key_stride,
                                          to - from, channels_of(shape), from == page_first, minima,
                                          minima + key_bytes(shape));
    }
    return HSP_OK;
}

/* The mean query, and per page a score that becomes a rank in place. */
int hsp_quest_scratch(const hsp_quest_shape *shape, int32_t n_tokens, size_t *bytes_out) {
    int status = hsp__check_quest(shape);
    if (status)
        return status;
    if (n_tokens < 0 || !bytes_out)
        return HSP_EINVAL;
    *bytes_out = ((size_t)channels_of(shape) + (size_t)pages_of(shape, n_tokens)) * sizeof(float);
    return HSP_OK;
}

static void mean_query(const hsp_quest_shape *shape, const float *query, float *mean_out) {
    int32_t group = shape->n_heads / shape->n_kv_heads;
    size_t dim = (size_t)shape->head_dim;
    for (int32_t kv_head = 0; kv_head < shape->n_kv_heads; kv_head++, query += (size_t)group * dim, mean_out += dim)
        for (size_t c = 0; c < dim; c++) {
            float sum = query[c];
            for (int32_t h = 1; h < group; h++)
                sum += query[(size_t)h * dim + c];
            mean_out[c] = sum / (float)group;
        }
}

/* The scores of some KV heads together; mean: their mean queries, one after the other. */
static void score_pages(const hsp_quest_shape *shape, const void *stats, int32_t first_head, int32_t n_heads,
                        const float *mean, int32_t n_pages, float *scores_out) {
    const struct hsp__select_kernels *kernels = hsp__ops()->select;
    size_t half = key_bytes(shape), offset = (size_t)first_head * (half / (size_t)shape->n_kv_heads);
    int32_t channels = n_heads * shape->head_dim;
    int64_t work = (int64_t)n_pages * 2 * channels;
#pragma omp parallel for schedule(static) if (work >= ENOUGH_WORK)
    for (int32_t block = 0; block <= (n_pages - 1) / PAGES_TOGETHER; block++) {
        int32_t page = block * PAGES_TOGETHER, left = n_pages - page;
        kernels->page_scores[shape->dtype](mean, (const char *)stats + (size_t)page * 2 * half + offset, half, 2 * half,
                                           left < PAGES_TOGETHER ? left : PAGES_TOGETHER, channels, scores_out + page);
    }
}

/* Scores become ranks in place; the page of the newest token is always in. */
static void select_pages(const hsp_quest_shape *shape, float *scores, int32_t n_tokens, int32_t k,
                         int32_t *selection_out) {
    int32_t n_pages = pages_of(shape, n_tokens);
    uint32_t *ranks = (uint32_t *)(void *)scores;
    for (int32_t page = 0; page < n_pages; page++)
        ranks[page] = hsp__rank_of(scores[page]);
    hsp__force_blocks(ranks, n_pages, 0, 1);
    hsp__emit_blocks(ranks, shape->page_tokens, n_tokens, k / shape->page_tokens, selection_out);
}

int hsp_quest_scores(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens, const float *query,
                     float *scores_out, void *scratch) {
    int status = hsp__check_quest(shape);
    if (status)
        return status;
    if (n_tokens < 0 || (n_tokens && (!stats || !query || !scores_out || !scratch)))
        return HSP_EINVAL;
    if (n_tokens == 0)
        return HSP_OK;
    mean_query(shape, query, scratch);
    score_pages(shape, stats, 0, shape->n_kv_heads, scratch, pages_of(shape, n_tokens), scores_out);
    return HSP_OK;
}

static int check_select(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens, const float *query,
                        int32_t k, const int32_t *selection_out, const void *scratch) {
    int status = hsp__check_quest(shape);
    if (status)
        return status;
    if (n_tokens < 0 || k < 1 || k % shape->page_tokens || !selection_out)
        return HSP_EINVAL;
    return n_tokens && (!stats || !query || !scratch) ? HSP_EINVAL : HSP_OK;
}

int hsp_quest_select(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens, const float *query, int32_t k,
                     int32_t *selection_out, void *scratch) {
    int status = check_select(shape, stats, n_tokens, query, k, selection_out, scratch);
    if (status)
        return status;
    if (n_tokens == 0) {
        hsp__emit_none((size_t)k, selection_out);
        return HSP_OK;
    }
    float *mean = scratch, *scores = mean + channels_of(shape);
    mean_query(shape, query, mean);
    score_pages(shape, stats, 0, shape->n_kv_heads, mean, pages_of(shape, n_tokens), scores);
    select_pages(shape, scores, n_tokens, k, selection_out);
    return HSP_OK;
}

/* One KV head after another, in the scratch of one. */
int hsp_quest_select_groups(const hsp_quest_shape *shape, const void *stats, int32_t n_tokens, const float *query,
                            int32_t k, int32_t *selection_out, void *scratch) {
    int status = check_select(shape, stats, n_tokens, query, k, selection_out, scratch);
    if (status)
        return status;
    if (n_tokens == 0) {
        hsp__emit_none((size_t)shape->n_kv_heads * (size_t)k, selection_out);
        return HSP_OK;
    }
    float *mean = scratch, *scores = mean + channels_of(shape);
    mean_query(shape, query, mean);
    for (int32_t kv_head = 0; kv_head < shape->n_kv_heads; kv_head++) {
        score_pages(shape, stats, kv_head, 1, mean + (size_t)kv_head * (size_t)shape->head_dim,
                    pages_of(shape, n_tokens), scores);
        select_pages(shape, scores, n_tokens, k, selection_out + (size_t)kv_head * (size_t)k);
    }
    return HSP_OK;
}
