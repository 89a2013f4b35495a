/* SPDX-License-Identifier: Apache-2.0 */
#include "core/host_pool.h"

void hsp__host_pool_init(hsp__host_pool *pool, int64_t n_pages, hsp__arena *arena) {
    pool->taken = hsp__carve(arena, (size_t)(n_pages + 63) / 64, sizeof(uint64_t));
    pool->n_pages = pool->n_free = n_pages;
}

static int is_taken(const hsp__host_pool *pool, int64_t page) {
    return (int)(pool->taken[page / 64] >> (page % 64) & 1);
}

/* First page at or after `from` that is taken (1) or free (0); n_pages when there is none. Skips whole words. */
static int64_t next_page(const hsp__host_pool *pool, int64_t from, int taken) {
    int64_t page = from;
    while (page < pool->n_pages) {
        uint64_t word = pool->taken[page / 64];
        uint64_t wanted = (taken ? word : ~word) >> (page % 64);
        if (wanted) {
            page += __builtin_ctzll(wanted);
            return page < pool->n_pages ? page : pool->n_pages;
        }
        page = (page / 64 + 1) * 64;
    }
    return pool->n_pages;
}

/* The first free run at or after *start; its first page in *start, its length returned, 0 when there is none. */
static int64_t next_run(const hsp__host_pool *pool, int64_t *start) {
    *start = next_page(pool, *start, 0);
    return *start < pool->n_pages ? next_page(pool, *start, 1) - *start : 0;
}

/* First page of a run of n that starts at a multiple of align; -1 when there is none. */
static int64_t find_run(const hsp__host_pool *pool, int32_t n, int32_t align) {
    int64_t start = 0, length;
    while ((length = next_run(pool, &start)) > 0) {
        int64_t aligned = (start + align - 1) / align * align;
        if (aligned + n <= start + length)
            return aligned;
        start += length;
    }
    return -1;
}

int hsp__host_pool_take(hsp__host_pool *pool, int32_t n, int32_t align, int32_t *pages_out) {
    if (n > pool->n_free)
        return -1;
    int64_t page = find_run(pool, n, align);
    if (page < 0)
        page = find_run(pool, n, 1);
    if (page < 0)
        page = 0;
    for (int32_t i = 0; i < n; i++, page++) {
        page = next_page(pool, page, 0);
        pool->taken[page / 64] |= (uint64_t)1 << (page % 64);
        pages_out[i] = (int32_t)page;
    }
    pool->n_free -= n;
    return 0;
}

void hsp__host_pool_give(hsp__host_pool *pool, const int32_t *pages, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (is_taken(pool, pages[i])) {
            pool->taken[pages[i] / 64] &= ~((uint64_t)1 << (pages[i] % 64));
            pool->n_free++;
        }
}

int64_t hsp__host_pool_longest(const hsp__host_pool *pool) {
    int64_t start = 0, length, longest = 0;
    while ((length = next_run(pool, &start)) > 0) {
        longest = length > longest ? length : longest;
        start += length;
    }
    return longest;
}
