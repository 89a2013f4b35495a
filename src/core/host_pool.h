/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of host memory: which are taken. Gives contiguous runs where it can, because rows side by side share the GPU's
 * address translation (docs/design.md). */
#ifndef HSP_HOST_POOL_H
#define HSP_HOST_POOL_H

#include "alloc.h"

typedef struct hsp__host_pool {
    uint64_t *taken; /* one bit a page */
    int64_t n_pages, n_free;
} hsp__host_pool;

void hsp__host_pool_init(hsp__host_pool *pool, int64_t n_pages, hsp__arena *arena);

/* Take n pages: one run that starts at a multiple of `align`, else one run, else pieces in ascending order. pages_out:
 * [n]. 0, or -1 with nothing changed when fewer than n are free. */
int hsp__host_pool_take(hsp__host_pool *pool, int32_t n, int32_t align, int32_t *pages_out);
void hsp__host_pool_give(hsp__host_pool *pool, const int32_t *pages, int32_t n);

/* Length of the longest run of free pages. */
int64_t hsp__host_pool_longest(const hsp__host_pool *pool);

#endif
