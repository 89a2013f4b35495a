/* SPDX-License-Identifier: Apache-2.0 */
/* What --verify looks at: the logits of both decoders, and the rows on the device once they differ. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

static const char *row_at(const hsp_plane_view *v, int64_t id) {
    return (const char *)v->base + (size_t)(id / v->rows_per_block) * v->block_stride +
           (size_t)(id % v->rows_per_block) * v->row_stride;
}

/* Is the row with this id in the cache what was written for the token? Both rows come into ordinary memory first. */
static int same_row(const run *r, int32_t store, int32_t token, int64_t id) {
    hsp_plane_view got[HSP_MAX_PLANES], want[HSP_MAX_PLANES];
    int same = 1;
    r->cached->views(r->cached, store, got);
    r->resident->views(r->resident, store, want);
    for (int32_t p = 0; p < r->m->n_planes; p++) {
        size_t bytes = (size_t)r->m->plane_bytes[p];
        char *both = malloc(2 * bytes);
        if (both && r->cached->copy(r->cached, both, row_at(&got[p], id), bytes) == 0 &&
            r->resident->copy(r->resident, both + bytes, row_at(&want[p], token), bytes) == 0)
            same &= memcmp(both, both + bytes, bytes) == 0;
        free(both);
    }
    return same;
}

/* The first row on the device, by layer, KV head and token, that is not the token's own. */
static void find_wrong_row(run *r) {
    hsp_cache *cache = r->cached->cache;
    int32_t n_slots = r->options.cache.n_slots, ring_rows = r->options.cache.ring_rows, ring_first, first_id;
    int32_t *tokens = malloc((size_t)n_slots * sizeof *tokens);
    r->difference.layer = r->difference.token = -1;
    for (int32_t store = 0; tokens && store < r->m->n_layers * r->m->stores && r->difference.layer < 0; store++) {
        hsp_resident(cache, r->cached->request, store, tokens, NULL, &ring_first, &first_id);
        int32_t wrong = INT32_MAX;
        for (int32_t s = 0; s < n_slots; s++)
            if (tokens[s] >= 0 && tokens[s] < wrong && !same_row(r, store, tokens[s], first_id + s))
                wrong = tokens[s];
        for (int32_t t = ring_first < 0 ? 0 : ring_first; t < r->check->length && t < wrong; t++)
            if (!same_row(r, store, t, first_id + n_slots + t % ring_rows))
                wrong = t;
        if (wrong == INT32_MAX)
            continue;
        r->difference.layer = store / r->m->stores;
        r->difference.kv_head = store % r->m->stores;
        r->difference.token = wrong;
    }
    free(tokens);
}

void run_compare(run *r, int32_t step_number) {
    /* Bytes, not values: two zeros of different sign differ. */
    const char *got = (const char *)r->d->logits, *want = (const char *)r->check->logits;
    size_t bytes = (size_t)r->m->vocab * sizeof(float), same = 0;
    while (same < bytes && got[same] == want[same])
        same++;
    if (same == bytes)
        return;
    int32_t entry = (int32_t)(same / sizeof(float));
    r->difference = (run_difference){1, step_number, entry, r->d->logits[entry], r->check->logits[entry], -1, -1, 0};
    find_wrong_row(r);
}
