/* SPDX-License-Identifier: Apache-2.0 */
#include "core/request.h"

#include <string.h>

#define GENERATIONS 32768

void hsp__requests_init(hsp__requests *requests, const hsp__layout *layout, hsp__arena *arena) {
    size_t n = (size_t)layout->max_requests;
    requests->slot = hsp__carve(arena, n, sizeof *requests->slot);
    requests->page = hsp__carve(arena, n * (size_t)layout->max_pages, sizeof(int32_t));
    requests->filled = hsp__carve(arena, n * (size_t)layout->n_layers, sizeof(int32_t));
    requests->seen = hsp__carve(arena, n, 1);
    requests->n_live = 0;
}

int32_t *hsp__requests_pages(const hsp__requests *requests, const hsp__layout *layout, int32_t slot) {
    return requests->page + (size_t)slot * (size_t)layout->max_pages;
}

static int32_t *filled_of(const hsp__requests *requests, const hsp__layout *layout, int32_t slot) {
    return requests->filled + (size_t)slot * (size_t)layout->n_layers;
}

int hsp__requests_admit(hsp__requests *requests, const hsp__layout *layout, hsp__host_pool *pool, int32_t max_tokens,
                        int32_t *handle_out, int32_t *slot_out, hsp__error *error) {
    if (max_tokens < 1 || max_tokens > layout->max_context)
        return hsp__fail(error, HSP_ELIMIT, "admit: max_tokens is %d; max_context allows 1..%d", max_tokens,
                         layout->max_context);
    int32_t slot = 0, n_pages = (max_tokens + HSP_PAGE_TOKENS - 1) / HSP_PAGE_TOKENS;
    while (slot < layout->max_requests && requests->slot[slot].live)
        slot++;
    if (slot == layout->max_requests)
        return hsp__fail(error, HSP_EBUSY, "admit: all %d request slots (max_requests) are taken",
                         layout->max_requests);
    if (n_pages > layout->n_pages)
        return hsp__fail(error, HSP_ELIMIT, "admit: %d tokens need %d pages; the host pool has %lld in all", max_tokens,
                         n_pages, (long long)layout->n_pages);
    if (hsp__host_pool_take(pool, n_pages, layout->run_align, hsp__requests_pages(requests, layout, slot)) != 0)
        return hsp__fail(error, HSP_EHOSTFULL, "admit: %d tokens need %d pages; %lld of %lld are free", max_tokens,
                         n_pages, (long long)pool->n_free, (long long)pool->n_pages);
    hsp__request *request = &requests->slot[slot];
    *request = (hsp__request){1, (request->generation + 1) % GENERATIONS, 0, max_tokens, n_pages};
    memset(filled_of(requests, layout, slot), 0, (size_t)layout->n_layers * sizeof(int32_t));
    requests->n_live++;
    *handle_out = request->generation << 16 | slot;
    *slot_out = slot;
    return HSP_OK;
}

void hsp__requests_retire(hsp__requests *requests, const hsp__layout *layout, hsp__host_pool *pool, int32_t slot) {
    hsp__host_pool_give(pool, hsp__requests_pages(requests, layout, slot), requests->slot[slot].n_pages);
    requests->slot[slot].live = 0;
    requests->n_live--;
}

int hsp__requests_find(const hsp__requests *requests, const hsp__layout *layout, int32_t handle, hsp__error *error) {
    int32_t slot = handle & 0xffff;
    if (handle < 0 || slot >= layout->max_requests || !requests->slot[slot].live ||
        requests->slot[slot].generation != handle >> 16)
        return hsp__fail(error, HSP_EREQUEST, "request %d is not live", handle);
    return slot;
}

int hsp__requests_check_fill(const hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t layer,
                             int32_t first, int32_t n, hsp__error *error) {
    const hsp__request *request = &requests->slot[slot];
    int32_t filled = filled_of(requests, layout, slot)[layer];
    if (n < 0)
        return hsp__fail(error, HSP_EINVAL, "fill: n_tokens is %d; it must not be negative", n);
    if (first != filled)
        return hsp__fail(error, HSP_ESTATE, "fill: layer %d has %d rows; the next piece starts there, not at %d",
                         layer + layout->first_layer, filled, first);
    if (n > request->max_tokens - first)
        return hsp__fail(error, HSP_ELIMIT, "fill: %d + %d tokens; the request was admitted for %d", first, n,
                         request->max_tokens);
    return HSP_OK;
}

void hsp__requests_filled(hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t layer,
                          int32_t length) {
    filled_of(requests, layout, slot)[layer] = length;
    if (length > requests->slot[slot].length)
        requests->slot[slot].length = length;
}

int hsp__requests_check_truncate(const hsp__requests *requests, int32_t slot, int32_t n_tokens, hsp__error *error) {
    int32_t length = requests->slot[slot].length;
    if (n_tokens < 0 || n_tokens > length)
        return hsp__fail(error, HSP_ELIMIT, "truncate: n_tokens is %d; the request has %d", n_tokens, length);
    return HSP_OK;
}

void hsp__requests_truncated(hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t n_tokens) {
    int32_t *filled = filled_of(requests, layout, slot);
    for (int32_t l = 0; l < layout->n_layers; l++)
        filled[l] = filled[l] < n_tokens ? filled[l] : n_tokens;
    requests->slot[slot].length = n_tokens;
}

static int check_entry(const hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t n_new,
                       hsp__error *error) {
    const hsp__request *request = &requests->slot[slot];
    const int32_t *filled = filled_of(requests, layout, slot);
    if (n_new < 0 || n_new > layout->max_queries)
        return hsp__fail(error, HSP_ELIMIT, "step: n_new is %d; max_queries allows 0..%d", n_new, layout->max_queries);
    if (n_new > request->max_tokens - request->length)
        return hsp__fail(error, HSP_ELIMIT, "step: %d + %d tokens; the request was admitted for %d", request->length,
                         n_new, request->max_tokens);
    for (int32_t l = 0; l < layout->n_layers; l++)
        if (filled[l] != request->length)
            return hsp__fail(error, HSP_ESTATE, "step: layer %d has %d of the request's %d rows; fill it first",
                             l + layout->first_layer, filled[l], request->length);
    return HSP_OK;
}

int hsp__requests_check_step(hsp__requests *requests, const hsp__layout *layout, const int32_t *handles,
                             const int32_t *n_new, int32_t batch, int32_t *slots_out, hsp__error *error) {
    if (batch < 0 || batch > layout->max_batch)
        return hsp__fail(error, HSP_ELIMIT, "step: batch is %d; max_batch allows 0..%d", batch, layout->max_batch);
    memset(requests->seen, 0, (size_t)layout->max_requests);
    for (int32_t b = 0; b < batch; b++) {
        slots_out[b] = -1;
        if (handles[b] == -1)
            continue;
        int32_t slot = hsp__requests_find(requests, layout, handles[b], error);
        if (slot < 0)
            return slot;
        if (requests->seen[slot]++)
            return hsp__fail(error, HSP_EINVAL, "step: request %d is in the batch twice", handles[b]);
        int status = check_entry(requests, layout, slot, n_new ? n_new[b] : 1, error);
        if (status != HSP_OK)
            return status;
        slots_out[b] = slot;
    }
    return HSP_OK;
}

void hsp__requests_grow(hsp__requests *requests, const hsp__layout *layout, int32_t slot, int32_t n_new) {
    int32_t *filled = filled_of(requests, layout, slot), length = requests->slot[slot].length += n_new;
    for (int32_t l = 0; l < layout->n_layers; l++)
        filled[l] = length;
}
