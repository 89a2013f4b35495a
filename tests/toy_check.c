/* SPDX-License-Identifier: Apache-2.0 */
/* What the toy compares. */
#include "toy_parts.h"

/* Bytes of a layer that a GPU copies in the time it takes to be asked for one row. */
enum { ROW_COSTS = 32768 };

/* The layer's first byte where rows can be read: the memory itself or, for more than a few rows of a GPU, a copy. */
static const char *look(toy *t, const hsp_rows_view *view, int n_rows) {
    const hsp_plane_view *v = &view->plane[0];
    size_t bytes = (size_t)((view->n_rows + v->rows_per_block - 1) / v->rows_per_block) * v->block_stride;
    if (t->device == &toy_plain_device || bytes > (size_t)n_rows * ROW_COSTS)
        return v->base;
    if (t->layer_copy_bytes < bytes) {
        free(t->layer_copy);
        t->layer_copy = toy__grab(bytes, 1);
        t->layer_copy_bytes = bytes;
    }
    t->device->read(t->layer_copy, v->base, bytes);
    return (const char *)t->layer_copy;
}

static void check_row(const toy *t, const hsp_rows_view *view, const char *rows, const unsigned char *want, int id) {
    TOY_SAME("id in range", id >= 0 && id < view->n_rows, 1);
    for (int p = 0; p < view->n_planes; p++) {
        const hsp_plane_view *v = &view->plane[p];
        const char *got = rows + ((const char *)v->base - (const char *)view->plane[0].base) +
                          (size_t)(id / v->rows_per_block) * v->block_stride +
                          (size_t)(id % v->rows_per_block) * v->row_stride;
        char row[65536];
        if (rows == view->plane[0].base) {
            t->device->read(row, got, v->row_bytes);
            got = row;
        }
        TOY_SAME("bytes of a row", memcmp(got, want, v->row_bytes), 0);
        want += v->row_bytes;
    }
}

static void check_layer(toy *t, int layer, const int32_t *selection, const int32_t *ids, int n, int entries) {
    hsp_rows_view view = {.struct_size = sizeof view};
    TOY_SAME("rows", hsp_rows(t->cache, layer + t->config.first_layer, &view), HSP_OK);
    const char *rows = look(t, &view, n * entries);
    for (int b = 0; b < entries && b < t->batch; b++) {
        int r = t->batch_request[b];
        for (int e = b * n; r >= 0 && e < (b + 1) * n; e++)
            if (ids[e] >= 0 && (!(t->config.flags & HSP_NO_IO) || selection[e] >= t->request[r].ring_first))
                check_row(t, &view, rows, toy_row(t, r, layer, selection[e]), ids[e]);
    }
}

void toy__check_anchor(toy *t, int group, const int32_t *selection, const int32_t *ids, int n, int entries) {
    check_layer(t, t->anchor[group], selection, ids, n, entries);
}

static void wait_rows(toy *t, int layer) {
    TOY_SAME("wait_rows", hsp_wait_rows(t->cache, layer + t->config.first_layer, t->stream), HSP_OK);
    t->device->wait();
}

void toy_check_rows(toy *t, int group, const int32_t *selection, const int32_t *ids, int n, int entries) {
    for (int l = 0; l < t->config.n_layers; l++)
        if (t->group_of[l] == group) {
            wait_rows(t, l);
            check_layer(t, l, selection, ids, n, entries);
        }
}

/* Whatever the slots hold, for a later selection to hit. */
static void check_slots_of_layer(toy *t, int layer) {
    hsp_rows_view view = {.struct_size = sizeof view};
    TOY_SAME("rows", hsp_rows(t->cache, layer + t->config.first_layer, &view), HSP_OK);
    wait_rows(t, layer);
    const char *rows = look(t, &view, t->config.max_requests * t->config.n_slots);
    for (int r = 0; r < t->config.max_requests; r++) {
        const toy_request *q = &t->request[r];
        int32_t first_id = q->live ? toy_first_id(t, r) : -1;
        for (int s = 0; q->live && s < t->config.n_slots; s++) {
            int token = q->group[t->group_of[layer]].tag[s];
            if (token >= 0)
                check_row(t, &view, rows, toy_row(t, r, layer, token), first_id + s);
        }
    }
}

static void check_host_rows(toy *t, const toy_request *q) {
    unsigned char *rows = toy__grab((size_t)q->length + 1, (size_t)t->row_bytes);
    for (int l = 0; l < t->config.n_layers; l++) {
        hsp_row_sink sink = {{0}, {0}};
        for (int p = 0, offset = 0; p < t->config.n_planes; offset += t->config.plane_bytes[p++]) {
            sink.plane[p] = rows + offset;
            sink.stride[p] = (size_t)t->row_bytes;
        }
        TOY_SAME("read", hsp_read(t->cache, q->handle, l + t->config.first_layer, 0, q->length, &sink), HSP_OK);
        TOY_SAME("host rows",
                 memcmp(rows, toy_row(t, (int)(q - t->request), l, 0), (size_t)q->length * (size_t)t->row_bytes), 0);
        TOY_SAME("read past the end", hsp_read(t->cache, q->handle, l + t->config.first_layer, q->length, 1, &sink),
                 HSP_ELIMIT);
    }
    free(rows);
}

static void check_slots(toy *t, const toy_request *q, int group) {
    int n = t->config.n_slots;
    int32_t *tags = toy__grab((size_t)n, sizeof *tags), *order = toy__grab((size_t)n, sizeof *order), ring_first;
    hsp_resident(t->cache, q->handle, t->anchor[group] + t->config.first_layer, tags, order, &ring_first, NULL);
    TOY_SAME("ring_first", ring_first, q->ring_first);
    for (int s = 0; s < n; s++) {
        TOY_SAME("tag", tags[s], q->group[group].tag[s]);
        TOY_SAME("order", order[s], q->group[group].order[s]);
    }
    free(tags);
    free(order);
}

static void check_counters(toy *t, const toy_request *q) {
    hsp_counters got;
    TOY_SAME("request_counters", hsp_request_counters(t->cache, q->handle, &got), HSP_OK);
    TOY_SAME("hits", got.hits, q->counters.hits);
    TOY_SAME("misses", got.misses, q->counters.misses);
    TOY_SAME("invalid", got.invalid, q->counters.invalid);
    TOY_SAME("none", got.none, q->counters.none);
    TOY_SAME("warmed", got.warmed, q->counters.warmed);
    TOY_SAME("appended", got.appended_rows, q->counters.appended_rows);
    TOY_SAME("filled", got.filled_rows, q->counters.filled_rows);
    TOY_SAME("fetched bytes", got.fetched_bytes, q->counters.fetched_bytes);
}

void toy_check(toy *t) {
    hsp_stats_view stats = {.struct_size = sizeof stats};
    int live = 0;
    for (int r = 0; r < t->config.max_requests; r++) {
        toy_request *q = &t->request[r];
        int32_t length;
        if (!q->live)
            continue;
        live++;
        TOY_SAME("length", (hsp_length(t->cache, q->handle, &length), length), q->length);
        check_host_rows(t, q);
        for (int g = 0; g < t->n_groups; g++)
            check_slots(t, q, g);
        check_counters(t, q);
    }
    for (int l = 0; l < t->config.n_layers && t->config.flags == HSP_PREFETCH; l++)
        check_slots_of_layer(t, l);
    TOY_SAME("stats", hsp_stats(t->cache, &stats), HSP_OK);
    TOY_SAME("live requests", stats.live_requests, live);
    TOY_SAME("free pages", stats.host_pages_free, t->pages_free);
}
