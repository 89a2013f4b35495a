/* SPDX-License-Identifier: Apache-2.0 */
/* What lasts between the calls, compared on both sides. */
#include "tools.h"
#include "verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer requests are read in a window: reading everything after every few steps would be most of the work. */
enum { WINDOW_TOKENS = 4096 };

/* Keeps the first difference, as the calls do. */
#define DIFFERS(p, ...) ((p)->difference[0] ? 0 : snprintf((p)->difference, sizeof(p)->difference, __VA_ARGS__))

static void compare_slots(verify_pair *p, const verify_request *q, int32_t layer) {
    size_t n = (size_t)p->config.n_slots;
    int32_t *list = calloc(4 * n, sizeof *list), ring_first[2] = {0}, first_id[2] = {0};
    if (!list) {
        p->failed = tool_fail(TOOL_FAILED, "out of memory");
        return;
    }
    for (int side = 0; side < 2; side++) {
        int32_t *tokens = list + (size_t)side * 2 * n;
        int status = hsp_resident(p->cache[side], q->handle, layer + p->config.first_layer, tokens, tokens + n,
                                  &ring_first[side], &first_id[side]);
        if (!verify_lost(p, side, status) && status != HSP_OK)
            DIFFERS(p, "resident: %s: %s", p->name[side], hsp_last_error(p->cache[side]));
    }
    for (size_t i = 0; i < 2 * n; i++)
        if (list[i] != list[2 * n + i])
            DIFFERS(p, "resident: layer %d, %s %zu: %s has %d, %s has %d", layer + p->config.first_layer,
                    i < n ? "token in slot" : "order", i % n, p->name[0], list[i], p->name[1], list[2 * n + i]);
    if (ring_first[0] != ring_first[1] || first_id[0] != first_id[1])
        DIFFERS(p, "resident: ring from %d and ids from %d on %s, from %d and %d on %s", ring_first[0], first_id[0],
                p->name[0], ring_first[1], first_id[1], p->name[1]);
    free(list);
}

static void compare_counters(verify_pair *p, const char *what, const hsp_counters *a, const hsp_counters *b) {
    static const char *const names[] = {"hits",   "misses",        "invalid",       "none",
                                        "warmed", "fetched_bytes", "appended_rows", "filled_rows"};
    const uint64_t *left = &a->hits, *right = &b->hits;
    _Static_assert(sizeof *a == sizeof names / sizeof names[0] * sizeof *left, "a name for every counter");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (left[i] != right[i])
            DIFFERS(p, "%s: %s is %llu on %s, %llu on %s", what, names[i], (unsigned long long)left[i], p->name[0],
                    (unsigned long long)right[i], p->name[1]);
}

static void compare_rows(verify_pair *p, const verify_request *q, int32_t layer, rows_random *random) {
    int32_t n = q->written[layer] < WINDOW_TOKENS ? q->written[layer] : WINDOW_TOKENS;
    int32_t first = rows_below(random, q->written[layer] - n + 1);
    size_t bytes = rows_bytes(&p->config);
    char *rows = malloc((size_t)n * bytes + 1);
    hsp_row_sink sink = rows_sink(&p->config, rows);
    for (int side = 0; side < 2 && rows; side++) {
        int status = hsp_read(p->cache[side], q->handle, layer + p->config.first_layer, first, n, &sink);
        if (verify_lost(p, side, status))
            break;
        if (status != HSP_OK)
            DIFFERS(p, "read: %s: %s", p->name[side], hsp_last_error(p->cache[side]));
        else if (memcmp(rows, q->rows + ((size_t)layer * (size_t)q->max_tokens + (size_t)first) * bytes,
                        (size_t)n * bytes) != 0)
            DIFFERS(p, "read: %s, layer %d, tokens %d..%d: not the bytes that were written", p->name[side],
                    layer + p->config.first_layer, first, first + n - 1);
    }
    p->totals->rows_compared += n;
    free(rows);
}

static void compare_request(verify_pair *p, const verify_request *q, rows_random *random) {
    int32_t length[2] = {-1, -2};
    hsp_counters counters[2] = {{0}, {0}};
    for (int side = 0; side < 2; side++) {
        hsp_length(p->cache[side], q->handle, &length[side]);
        verify_lost(p, side, hsp_request_counters(p->cache[side], q->handle, &counters[side]));
    }
    if (length[0] != length[1])
        DIFFERS(p, "length: %d on %s, %d on %s", length[0], p->name[0], length[1], p->name[1]);
    compare_counters(p, "request_counters", &counters[0], &counters[1]);
    for (int32_t layer = 0; layer < p->config.n_layers && !p->failed; layer++) {
        compare_rows(p, q, layer, random);
        if (verify_anchor(p, layer) == layer)
            compare_slots(p, q, layer);
    }
}

static void compare_totals(verify_pair *p) {
    hsp_stats_view stats[2] = {{.struct_size = sizeof stats[0]}, {.struct_size = sizeof stats[0]}};
    const hsp_counters *total = &stats[0].total;
    for (int side = 0; side < 2; side++)
        verify_lost(p, side, hsp_stats(p->cache[side], &stats[side]));
    compare_counters(p, "stats", total, &stats[1].total);
    if (total->hits + total->misses + total->invalid + total->none != (uint64_t)p->entries)
        DIFFERS(p, "stats: the counters add up to %llu entries of %lld",
                (unsigned long long)(total->hits + total->misses + total->invalid + total->none),
                (long long)p->entries);
    if (stats[0].live_requests != stats[1].live_requests || stats[0].host_pages != stats[1].host_pages ||
        stats[0].host_pages_free != stats[1].host_pages_free ||
        stats[0].host_pages_longest != stats[1].host_pages_longest || stats[0].steps != stats[1].steps)
        DIFFERS(p, "stats: requests, pages or steps differ");
    for (int32_t layer = 0; layer < p->config.n_layers; layer++) {
        hsp_counters counters[2] = {{0}, {0}};
        for (int side = 0; side < 2; side++)
            verify_lost(p, side, hsp_layer_counters(p->cache[side], layer + p->config.first_layer, &counters[side]));
        compare_counters(p, "layer_counters", &counters[0], &counters[1]);
    }
}

void verify_state(verify_pair *p, rows_random *random) {
    p->totals->operations++;
    compare_totals(p);
    for (int r = 0; r < VERIFY_REQUESTS && !p->difference[0] && !p->failed; r++)
        if (p->request[r].live)
            compare_request(p, &p->request[r], random);
}
