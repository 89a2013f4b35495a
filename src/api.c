/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points of an open cache: check the arguments, forward them. */
#include "cache.h"
#include "probe.h"
#include "stats.h"

#define CHECK_CACHE(cache)                                                                                             \
    if (!(cache))                                                                                                      \
    return hsp__fail(hsp__thread_error(), HSP_EINVAL, "%s: cache must not be NULL", __func__)

const char *hsp_last_error(const hsp_cache *cache) {
    return cache ? cache->error.text : hsp__thread_error()->text;
}

const char *hsp_version(void) {
    return HSP_VERSION_TEXT;
}

static int need(hsp_cache *cache, const void *pointer, const char *call, const char *name) {
    return pointer ? HSP_OK : hsp__fail(&cache->error, HSP_EINVAL, "%s: %s must not be NULL", call, name);
}

static int find(hsp_cache *cache, int32_t request) {
    return hsp__requests_find(&cache->requests, &cache->layout, request, &cache->error);
}

/* Local number of a layer, or HSP_ELIMIT. */
static int find_layer(hsp_cache *cache, int32_t layer) {
    const hsp__layout *layout = &cache->layout;
    if (layer < layout->first_layer || layer - layout->first_layer >= layout->n_layers)
        return hsp__fail(&cache->error, HSP_ELIMIT, "layer is %d; this cache has %d..%d", layer, layout->first_layer,
                         layout->first_layer + layout->n_layers - 1);
    return layer - layout->first_layer;
}

/* Group of an anchor, or an error. */
static int find_anchor(hsp_cache *cache, int32_t layer, const char *call) {
    int local = find_layer(cache, layer);
    if (local < 0)
        return local;
    int32_t group = cache->layout.group_of[local];
    if (cache->layout.group[group].anchor != local)
        return hsp__fail(&cache->error, HSP_EINVAL, "%s: layer %d follows layer %d; call it for that one", call, layer,
                         cache->layout.group[group].anchor + cache->layout.first_layer);
    return group;
}

static int check_source(hsp_cache *cache, const hsp_row_source *rows, const char *call) {
    if (!rows)
        return need(cache, rows, call, "rows");
    for (int32_t p = 0; p < cache->layout.n_planes; p++) {
        if (!rows->plane[p])
            return hsp__fail(&cache->error, HSP_EINVAL, "%s: rows->plane[%d] must not be NULL", call, p);
        if (rows->stride[p] && rows->stride[p] < cache->layout.plane_bytes[p])
            return hsp__fail(&cache->error, HSP_ELIMIT, "%s: rows->stride[%d] is %zu; a row has %zu bytes", call, p,
                             rows->stride[p], cache->layout.plane_bytes[p]);
    }
    return HSP_OK;
}

/* ----------------------------------------------------------------------------------------------------- requests -- */

int hsp_admit(hsp_cache *cache, int32_t max_tokens, int32_t *request_out) {
    int32_t handle, slot;
    CHECK_CACHE(cache);
    if (need(cache, request_out, "admit", "request_out") != HSP_OK)
        return HSP_EINVAL;
    int status =
        hsp__requests_admit(&cache->requests, &cache->layout, &cache->pool, max_tokens, &handle, &slot, &cache->error);
    if (status != HSP_OK)
        return status;
    status = cache->backend->admit(cache->self, slot, hsp__requests_pages(&cache->requests, &cache->layout, slot),
                                   cache->requests.slot[slot].n_pages, &cache->error);
    if (status != HSP_OK)
        hsp__requests_retire(&cache->requests, &cache->layout, &cache->pool, slot);
    else
        *request_out = handle;
    return status;
}

int hsp_retire(hsp_cache *cache, int32_t request) {
    CHECK_CACHE(cache);
    int slot = find(cache, request);
    if (slot < 0)
        return slot;
    int status = cache->backend->retire(cache->self, slot, &cache->error);
    if (status != HSP_OK)
        return status;
    hsp__requests_retire(&cache->requests, &cache->layout, &cache->pool, slot);
    return HSP_OK;
}

int hsp_truncate(hsp_cache *cache, int32_t request, int32_t n_tokens, void *stream) {
    CHECK_CACHE(cache);
    int slot = find(cache, request);
    if (slot < 0)
        return slot;
    int status = hsp__requests_check_truncate(&cache->requests, slot, n_tokens, &cache->error);
    if (status == HSP_OK)
        status = cache->backend->truncate(cache->self, slot, n_tokens, stream, &cache->error);
    if (status == HSP_OK)
        hsp__requests_truncated(&cache->requests, &cache->layout, slot, n_tokens);
    return status;
}

int hsp_fill(hsp_cache *cache, int32_t request, int32_t layer, int32_t first, int32_t n_tokens,
             const hsp_row_source *rows, void *stream) {
    CHECK_CACHE(cache);
    int slot = find(cache, request), local = slot < 0 ? slot : find_layer(cache, layer);
    if (local < 0)
        return local;
    int status = check_source(cache, rows, "fill");
    if (status == HSP_OK)
        status =
            hsp__requests_check_fill(&cache->requests, &cache->layout, slot, local, first, n_tokens, &cache->error);
    if (status == HSP_OK && n_tokens > 0)
        status = cache->backend->fill(cache->self, slot, local, first, n_tokens, rows, stream, &cache->error);
    if (status == HSP_OK)
        hsp__requests_filled(&cache->requests, &cache->layout, slot, local, first + n_tokens);
    return status;
}

int hsp_warm(hsp_cache *cache, int32_t request, int32_t layer, const int32_t *tokens, int32_t n_tokens, void *stream) {
    CHECK_CACHE(cache);
    int slot = find(cache, request), group = slot < 0 ? slot : find_anchor(cache, layer, "warm");
    if (group < 0)
        return group;
    if (need(cache, tokens, "warm", "tokens") != HSP_OK)
        return HSP_EINVAL;
    if (n_tokens < 0 || n_tokens > cache->layout.n_slots)
        return hsp__fail(&cache->error, HSP_ELIMIT, "warm: n_tokens is %d; n_slots allows 0..%d", n_tokens,
                         cache->layout.n_slots);
    if (n_tokens == 0)
        return HSP_OK;
    return cache->backend->warm(cache->self, slot, group, tokens, n_tokens, stream, &cache->error);
}

int hsp_read(hsp_cache *cache, int32_t request, int32_t layer, int32_t first, int32_t n_tokens,
             const hsp_row_sink *rows_out) {
    hsp_row_source as_source;
    CHECK_CACHE(cache);
    int slot = find(cache, request), local = slot < 0 ? slot : find_layer(cache, layer);
    if (local < 0)
        return local;
    for (int p = 0; rows_out && p < HSP_MAX_PLANES; p++)
        as_source.plane[p] = rows_out->plane[p], as_source.stride[p] = rows_out->stride[p];
    int status = check_source(cache, rows_out ? &as_source : NULL, "read");
    if (status != HSP_OK)
        return status;
    return cache->backend->read(cache->self, slot, local, first, n_tokens, rows_out, &cache->error);
}

/* --------------------------------------------------------------------------------------------------------- step -- */

int hsp_step_begin(hsp_cache *cache, const int32_t *requests, const int32_t *n_new, int32_t batch, void *stream) {
    CHECK_CACHE(cache);
    hsp__requests *r = &cache->requests;
    if (batch > 0 && need(cache, requests, "step_begin", "requests") != HSP_OK)
        return HSP_EINVAL;
    int status = hsp__requests_check_step(r, &cache->layout, requests, n_new, batch, cache->step_slot, &cache->error);
    if (status != HSP_OK)
        return status;
    int32_t most_new = 0;
    for (int32_t b = 0; b < batch; b++) {
        int32_t slot = cache->step_slot[b], n = slot < 0 ? 0 : n_new ? n_new[b] : 1;
        cache->step_first[b] = slot < 0 ? 0 : r->slot[slot].length;
        cache->step_n_new[b] = n;
        most_new = n > most_new ? n : most_new;
    }
    HSP__BEGIN(step_begin, cache, batch);
    status = cache->backend->step_begin(cache->self, cache->step_slot, cache->step_first, cache->step_n_new, batch,
                                        stream, &cache->error);
    HSP__END(step_begin, cache, status);
    if (status != HSP_OK)
        return status;
    for (int32_t b = 0; b < batch; b++)
        if (cache->step_slot[b] >= 0)
            hsp__requests_grow(r, &cache->layout, cache->step_slot[b], cache->step_n_new[b]);
    cache->batch = batch;
    cache->most_new = most_new;
    cache->steps++;
    return HSP_OK;
}

static int in_step(hsp_cache *cache, const char *call) {
    return cache->batch >= 0
               ? HSP_OK
               : hsp__fail(&cache->error, HSP_ESTATE, "%s: there is no step; call step_begin first", call);
}

int hsp_append(hsp_cache *cache, int32_t layer, const hsp_row_source *rows, int32_t rows_per_request, void *stream) {
    CHECK_CACHE(cache);
    int local = find_layer(cache, layer);
    if (local < 0)
        return local;
    int status = in_step(cache, "append");
    if (status == HSP_OK)
        status = check_source(cache, rows, "append");
    if (status != HSP_OK)
        return status;
    if (rows_per_request < cache->most_new || rows_per_request > cache->layout.max_queries)
        return hsp__fail(&cache->error, HSP_ELIMIT, "append: rows_per_request is %d; this step takes %d..%d",
                         rows_per_request, cache->most_new, cache->layout.max_queries);
    HSP__BEGIN(append, cache, layer);
    status = cache->backend->append(cache->self, local, rows, rows_per_request, stream, &cache->error);
    HSP__END(append, cache, status);
    return status;
}

int hsp_swap_in(hsp_cache *cache, int32_t layer, const int32_t *selection, int32_t n_queries, int32_t k,
                int32_t *row_ids_out, void *stream) {
    CHECK_CACHE(cache);
    int group = find_anchor(cache, layer, "swap_in");
    if (group < 0)
        return group;
    if (in_step(cache, "swap_in") != HSP_OK)
        return HSP_ESTATE;
    if (n_queries < 0 || n_queries > cache->layout.max_queries)
        return hsp__fail(&cache->error, HSP_ELIMIT, "swap_in: n_queries is %d; max_queries allows 0..%d", n_queries,
                         cache->layout.max_queries);
    if (k < 0 || k > cache->layout.max_k)
        return hsp__fail(&cache->error, HSP_ELIMIT, "swap_in: k is %d; max_k allows 0..%d", k, cache->layout.max_k);
    if (cache->batch == 0 || n_queries == 0 || k == 0)
        return HSP_OK;
    if (need(cache, selection, "swap_in", "selection") != HSP_OK ||
        need(cache, row_ids_out, "swap_in", "row_ids_out") != HSP_OK)
        return HSP_EINVAL;
    HSP__BEGIN(swap_in, cache, layer);
    int status =
        cache->backend->swap_in(cache->self, group, selection, n_queries, k, row_ids_out, stream, &cache->error);
    HSP__END(swap_in, cache, status);
    return status;
}

int hsp_wait_rows(hsp_cache *cache, int32_t layer, void *stream) {
    CHECK_CACHE(cache);
    const hsp__layout *layout = &cache->layout;
    int local = find_layer(cache, layer);
    if (local < 0)
        return local;
    if (layout->index_in_group[local] == 0 ||
        !hsp__followers_are_late(layout, cache->config.flags, layout->group_of[local]))
        return HSP_OK;
    HSP__BEGIN(wait_rows, cache, layer);
    int status = cache->backend->wait_rows(cache->self, local, stream, &cache->error);
    HSP__END(wait_rows, cache, status);
    return status;
}

int hsp_rows(hsp_cache *cache, int32_t layer, hsp_rows_view *view_out) {
    CHECK_CACHE(cache);
    const hsp__layout *layout = &cache->layout;
    int local = find_layer(cache, layer);
    if (local < 0)
        return local;
    if (!view_out || view_out->struct_size < sizeof *view_out)
        return hsp__fail(&cache->error, HSP_EINVAL, "rows: set view_out->struct_size to its size");
    view_out->n_rows = layout->n_rows;
    view_out->n_planes = layout->n_planes;
    for (int32_t p = 0; p < layout->n_planes; p++) {
        char *base = (char *)cache->backend->device_rows(cache->self) + hsp__device_offset(layout, local, 0, p);
        size_t stride = layout->block_rows == 1 ? layout->block_stride : layout->plane_bytes[p];
        view_out->plane[p] =
            (hsp_plane_view){base, layout->plane_bytes[p], stride, layout->block_stride, layout->block_rows, 0};
    }
    return HSP_OK;
}

/* --------------------------------------------------------------------------------------------------- inspection -- */

int hsp_stats(hsp_cache *cache, hsp_stats_view *stats_out) {
    hsp_counters total;
    CHECK_CACHE(cache);
    if (!stats_out || stats_out->struct_size < sizeof *stats_out)
        return hsp__fail(&cache->error, HSP_EINVAL, "stats: set stats_out->struct_size to its size");
    int status = cache->backend->counters(cache->self, -1, -1, &total, &cache->error);
    if (status != HSP_OK)
        return status;
    *stats_out = (hsp_stats_view){.struct_size = stats_out->struct_size,
                                  .live_requests = cache->requests.n_live,
                                  .host_huge_pages = cache->backend->huge_pages(cache->self),
                                  .host_pages = cache->pool.n_pages,
                                  .host_pages_free = cache->pool.n_free,
                                  .host_pages_longest = hsp__host_pool_longest(&cache->pool),
                                  .steps = cache->steps,
                                  .total = total};
    return HSP_OK;
}

int hsp_layer_counters(hsp_cache *cache, int32_t layer, hsp_counters *counters_out) {
    CHECK_CACHE(cache);
    int local = find_layer(cache, layer);
    if (local < 0)
        return local;
    if (need(cache, counters_out, "layer_counters", "counters_out") != HSP_OK)
        return HSP_EINVAL;
    return cache->backend->counters(cache->self, -1, cache->layout.group_of[local], counters_out, &cache->error);
}

int hsp_request_counters(hsp_cache *cache, int32_t request, hsp_counters *counters_out) {
    CHECK_CACHE(cache);
    int slot = find(cache, request);
    if (slot < 0)
        return slot;
    if (need(cache, counters_out, "request_counters", "counters_out") != HSP_OK)
        return HSP_EINVAL;
    return cache->backend->counters(cache->self, slot, -1, counters_out, &cache->error);
}

int hsp_stats_reset(hsp_cache *cache) {
    CHECK_CACHE(cache);
    int status = cache->backend->reset_counters(cache->self, &cache->error);
    if (status == HSP_OK)
        cache->steps = 0;
    return status;
}

int hsp_stats_text(hsp_cache *cache, char *text_out, size_t size, size_t *bytes_out) {
    hsp_stats_view stats = {.struct_size = sizeof stats};
    CHECK_CACHE(cache);
    if ((size && need(cache, text_out, "stats_text", "text_out") != HSP_OK) ||
        need(cache, bytes_out, "stats_text", "bytes_out") != HSP_OK)
        return HSP_EINVAL;
    int status = hsp_stats(cache, &stats);
    for (int32_t g = 0; g < cache->layout.n_groups && status == HSP_OK; g++)
        status = cache->backend->counters(cache->self, -1, g, &cache->group_counters[g], &cache->error);
    if (status != HSP_OK)
        return status;
    size_t bytes = hsp__stats_text(cache, &stats, NULL, 0);
    if (text_out && size <= bytes)
        return hsp__fail(&cache->error, HSP_ELIMIT, "stats_text: size is %zu; the text takes %zu", size, bytes + 1);
    if (text_out)
        hsp__stats_text(cache, &stats, text_out, size);
    *bytes_out = bytes;
    return HSP_OK;
}

int hsp_length(hsp_cache *cache, int32_t request, int32_t *n_tokens_out) {
    CHECK_CACHE(cache);
    int slot = find(cache, request);
    if (slot < 0)
        return slot;
    if (need(cache, n_tokens_out, "length", "n_tokens_out") != HSP_OK)
        return HSP_EINVAL;
    *n_tokens_out = cache->requests.slot[slot].length;
    return HSP_OK;
}

int hsp_resident(hsp_cache *cache, int32_t request, int32_t layer, int32_t *tokens_out, int32_t *order_out,
                 int32_t *ring_first_out, int32_t *first_id_out) {
    CHECK_CACHE(cache);
    int slot = find(cache, request), local = slot < 0 ? slot : find_layer(cache, layer);
    if (local < 0)
        return local;
    int status = cache->backend->resident(cache->self, slot, cache->layout.group_of[local], tokens_out, order_out,
                                          ring_first_out, &cache->error);
    if (status == HSP_OK && first_id_out)
        *first_id_out = slot * cache->layout.rows_per_request;
    return status;
}
