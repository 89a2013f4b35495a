/* SPDX-License-Identifier: Apache-2.0 */
#include "toy.h"

#include <stdio.h>

static void *grab(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    TOY_SAME("memory of the toy", memory != NULL, 1);
    return memory;
}

static void *plain_alloc(size_t bytes) {
    return grab(bytes, 1);
}

static void plain_read(void *to, const void *device, size_t bytes) {
    memcpy(to, device, bytes);
}

static void plain_wait(void) {}

const toy_device toy_plain_device = {plain_alloc, free, plain_read, plain_wait};

const toy_device *toy_device_of(const char *backend) {
    return strcmp(backend, "cuda") == 0 ? toy_cuda_device : &toy_plain_device;
}

/* A copy of `from` where the backend can read it. */
static void *on_device(const toy *t, const void *from, size_t bytes) {
    void *memory = t->device->alloc(bytes + 1);
    memcpy(memory, from, bytes);
    return memory;
}

static int in_same_group(const hsp_config *c, int a, int b) {
    return c->layer_group ? c->layer_group[a] == c->layer_group[b] : a == b;
}

void toy_open(toy *t, const hsp_config *config) {
    memset(t, 0, sizeof *t);
    t->config = *config;
    t->device = toy_device_of(config->backend);
    TOY_SAME("open", hsp_open(config, &t->cache), HSP_OK);
    for (int p = 0; p < config->n_planes; p++)
        t->row_bytes += config->plane_bytes[p];
    t->group_of = grab((size_t)config->n_layers, sizeof(int));
    t->anchor = grab((size_t)config->n_layers, sizeof(int));
    for (int l = 0; l < config->n_layers; l++) {
        int before = 0;
        while (before < l && !in_same_group(config, before, l))
            before++;
        if (before == l)
            t->anchor[t->n_groups] = l;
        t->group_of[l] = before == l ? t->n_groups++ : t->group_of[before];
    }
    t->config.layer_group = NULL;
    t->request = grab((size_t)config->max_requests, sizeof *t->request);
    t->batch_request = grab((size_t)config->max_batch, sizeof(int));
    t->batch_new = grab((size_t)config->max_batch, sizeof(int));
    t->pages_free = (int)((config->host_tokens + 63) / 64);
    t->batch = -1;
}

static void drop(toy *t, toy_request *q) {
    for (int g = 0; g < t->n_groups && q->group; g++) {
        free(q->group[g].tag);
        free(q->group[g].order);
    }
    free(q->group);
    free(q->rows);
    memset(q, 0, sizeof *q);
}

void toy_close(toy *t) {
    hsp_close(t->cache);
    for (int r = 0; r < t->config.max_requests; r++)
        drop(t, &t->request[r]);
    free(t->request);
    free(t->group_of);
    free(t->anchor);
    free(t->batch_request);
    free(t->batch_new);
}

static int live_count(const toy *t) {
    int n = 0;
    for (int r = 0; r < t->config.max_requests; r++)
        n += t->request[r].live;
    return n;
}

int toy_admit(toy *t, int r, int max_tokens) {
    toy_request *q = &t->request[r];
    int pages = (max_tokens + 63) / 64, handle = -7, want = HSP_OK;
    if (max_tokens < 1 || max_tokens > t->config.max_context)
        want = HSP_ELIMIT;
    else if (live_count(t) == t->config.max_requests)
        want = HSP_EBUSY;
    else if (pages > (t->config.host_tokens + 63) / 64)
        want = HSP_ELIMIT;
    else if (pages > t->pages_free)
        want = HSP_EHOSTFULL;
    TOY_SAME("admit", hsp_admit(t->cache, max_tokens, &handle), want);
    if (want != HSP_OK) {
        TOY_SAME("handle after a refusal", handle, -7);
        return want;
    }
    drop(t, q);
    *q = (toy_request){.live = 1, .handle = handle, .max_tokens = max_tokens};
    q->rows = grab((size_t)t->config.n_layers * (size_t)max_tokens, (size_t)t->row_bytes);
    q->group = grab((size_t)t->n_groups, sizeof *q->group);
    int ordered = t->config.policy == HSP_LRU || t->config.policy == HSP_FIFO;
    for (int g = 0; g < t->n_groups; g++) {
        q->group[g].tag = grab((size_t)t->config.n_slots, sizeof(int));
        q->group[g].order = grab((size_t)t->config.n_slots, sizeof(int));
        for (int s = 0; s < t->config.n_slots; s++)
            q->group[g].tag[s] = -1, q->group[g].order[s] = ordered ? s : 0;
    }
    t->pages_free -= pages;
    return HSP_OK;
}

int toy_retire(toy *t, int r) {
    toy_request *q = &t->request[r];
    int status = hsp_retire(t->cache, q->live ? q->handle : r);
    TOY_SAME("retire", status, q->live ? HSP_OK : HSP_EREQUEST);
    if (!q->live)
        return status;
    TOY_SAME("retire twice", hsp_retire(t->cache, q->handle), HSP_EREQUEST);
    t->pages_free += (q->max_tokens + 63) / 64;
    for (int b = 0; b < t->batch; b++)
        if (t->batch_request[b] == r)
            t->batch_request[b] = -1;
    drop(t, q);
    return status;
}

int toy_truncate(toy *t, int r, int n_tokens) {
    toy_request *q = &t->request[r];
    int want = n_tokens < 0 || n_tokens > q->length ? HSP_ELIMIT : HSP_OK;
    TOY_SAME("truncate", hsp_truncate(t->cache, q->handle, n_tokens, NULL), want);
    if (want != HSP_OK)
        return want;
    q->length = n_tokens;
    if (n_tokens < q->ring_first)
        q->ring_first = n_tokens;
    for (int g = 0; g < t->n_groups; g++)
        for (int s = 0; s < t->config.n_slots; s++)
            if (q->group[g].tag[s] >= n_tokens)
                q->group[g].tag[s] = -1;
    return want;
}

static unsigned char *row_of(const toy *t, const toy_request *q, int layer, int token) {
    return q->rows + ((size_t)layer * (size_t)q->max_tokens + (size_t)token) * (size_t)t->row_bytes;
}

/* Bytes no other row has: layer, token and a version go in, so a mixed-up row cannot look right. */
static void write_row(toy *t, toy_request *q, int layer, int token) {
    unsigned char *row = row_of(t, q, layer, token);
    unsigned x = (unsigned)layer * 2654435761u ^ (unsigned)token * 40503u ^ t->version++ * 97u;
    for (int i = 0; i < t->row_bytes; i++) {
        x = x * 1664525u + 1013904223u;
        row[i] = (unsigned char)(x >> 24);
    }
}

/* Planes of consecutive rows, as the calls take them: pointers into the packed rows with their stride. */
static hsp_row_source source_at(const toy *t, const unsigned char *row) {
    hsp_row_source source = {{0}, {0}};
    for (int p = 0, offset = 0; p < t->config.n_planes; offset += t->config.plane_bytes[p++]) {
        source.plane[p] = row + offset;
        source.stride[p] = (size_t)t->row_bytes;
    }
    return source;
}

static void fill_piece(toy *t, toy_request *q, int layer, int first, int n) {
    for (int i = 0; i < n; i++)
        write_row(t, q, layer, first + i);
    void *rows = on_device(t, row_of(t, q, layer, first), (size_t)n * (size_t)t->row_bytes);
    hsp_row_source source = source_at(t, rows);
    TOY_SAME("fill", hsp_fill(t->cache, q->handle, layer + t->config.first_layer, first, n, &source, NULL), HSP_OK);
    t->device->wait();
    t->device->release(rows);
    q->counters.filled_rows += (uint64_t)n;
}

int toy_fill(toy *t, int r, int n_tokens) {
    toy_request *q = &t->request[r];
    int n_layers = t->config.n_layers, first = q->length;
    if (n_tokens > q->max_tokens - first) {
        unsigned char nothing[4] = {0};
        hsp_row_source source = {{nothing, nothing, nothing, nothing}, {0}};
        TOY_SAME("fill too far", hsp_fill(t->cache, q->handle, t->config.first_layer, first, n_tokens, &source, NULL),
                 HSP_ELIMIT);
        return HSP_ELIMIT;
    }
    for (int i = 0; i < n_layers; i++) {
        int layer = (i * 5 + 3) % n_layers;
        if (n_layers % 5 == 0)
            layer = n_layers - 1 - i;
        fill_piece(t, q, layer, first, n_tokens / 3);
        fill_piece(t, q, layer, first + n_tokens / 3, n_tokens - n_tokens / 3);
    }
    q->length = first + n_tokens;
    if (n_tokens > 0 && q->ring_first < q->length)
        q->ring_first = q->length;
    return HSP_OK;
}

/* One buffer of new rows as an engine has it: [batch][rows_per_request] rows, poison where nothing is to be read. */
static void append_layer(toy *t, int layer, int per_request) {
    size_t rows = (size_t)(t->batch * per_request) + 1;
    unsigned char *buffer = t->device->alloc(rows * (size_t)t->row_bytes);
    memset(buffer, 0xee, rows * (size_t)t->row_bytes);
    for (int b = 0; b < t->batch; b++) {
        int r = t->batch_request[b];
        for (int i = 0; r >= 0 && i < t->batch_new[b]; i++) {
            toy_request *q = &t->request[r];
            int token = q->length - t->batch_new[b] + i;
            write_row(t, q, layer, token);
            memcpy(buffer + (size_t)(b * per_request + i) * (size_t)t->row_bytes, row_of(t, q, layer, token),
                   (size_t)t->row_bytes);
            q->counters.appended_rows++;
        }
    }
    hsp_row_source source = source_at(t, buffer);
    TOY_SAME("append", hsp_append(t->cache, layer + t->config.first_layer, &source, per_request, NULL), HSP_OK);
    t->device->wait();
    t->device->release(buffer);
}

int toy_step(toy *t, const int *rs, const int *n_new, int batch) {
    int32_t *handles = grab((size_t)batch, sizeof *handles), most = 0;
    int want = HSP_OK;
    for (int b = 0; b < batch; b++) {
        handles[b] = rs[b] < 0 ? -1 : t->request[rs[b]].handle;
        if (rs[b] >= 0 && n_new[b] > t->request[rs[b]].max_tokens - t->request[rs[b]].length)
            want = HSP_ELIMIT;
        most = rs[b] >= 0 && n_new[b] > most ? n_new[b] : most;
    }
    TOY_SAME("step_begin", hsp_step_begin(t->cache, handles, n_new, batch, NULL), want);
    free(handles);
    if (want != HSP_OK)
        return want;
    t->batch = batch;
    for (int b = 0; b < batch; b++) {
        t->batch_request[b] = rs[b];
        t->batch_new[b] = n_new[b];
        if (rs[b] < 0)
            continue;
        toy_request *q = &t->request[rs[b]];
        q->length += n_new[b];
        if (q->ring_first < q->length - t->config.ring_rows)
            q->ring_first = q->length - t->config.ring_rows;
    }
    for (int l = 0; l < t->config.n_layers; l++)
        append_layer(t, l, most + (most < t->config.max_queries));
    return HSP_OK;
}

/* -------------------------------------------------------------------------------------------- recency, as lists -- */

static void move_to_end(int *list, int n, int value) {
    int i = 0;
    while (list[i] != value)
        i++;
    memmove(list + i, list + i + 1, (size_t)(n - 1 - i) * sizeof *list);
    list[n - 1] = value;
}

/* The slot the next fetched row takes. in_use: slots hit or already given in this step. */
static int next_victim(const toy *t, toy_group *g, const char *in_use) {
    int n = t->config.n_slots;
    if (t->config.policy != HSP_CLOCK) {
        int i = 0;
        while (in_use[g->order[i]])
            i++;
        return g->order[i];
    }
    for (;; g->hand = (g->hand + 1) % n) {
        if (in_use[g->hand])
            continue;
        if (!g->order[g->hand])
            break;
        g->order[g->hand] = 0;
    }
    int victim = g->hand;
    g->hand = (g->hand + 1) % n;
    return victim;
}

static int find_tag(const toy *t, const toy_group *g, int token) {
    for (int s = 0; s < t->config.n_slots; s++)
        if (g->tag[s] == token)
            return s;
    return -1;
}

/* One step of one request and group; counts what a swap-in of these entries must count. RANDOM draws from the library's
 * own generator, so there the toy takes over the tags it sees and checks only that no selected row was replaced. */
static void recency_step(toy *t, toy_request *q, int group, const int32_t *selection, int n, hsp_counters *seen) {
    toy_group *g = &q->group[group];
    int n_slots = t->config.n_slots, n_missed = 0;
    char *hit = grab((size_t)n_slots, 1), *in_use;
    int *missed = grab((size_t)n + 1, sizeof(int)), *taken;
    for (int e = 0; e < n; e++) {
        int token = selection[e], slot, again = 0;
        if (token < 0 || token >= q->length) {
            seen->none += token == -1;
            seen->invalid += token != -1;
            continue;
        }
        seen->hits++;
        if (token >= q->ring_first)
            continue;
        slot = find_tag(t, g, token);
        if (slot >= 0) {
            hit[slot] = 1;
            continue;
        }
        for (int m = 0; m < n_missed; m++)
            again |= missed[m] == token;
        if (!again) {
            missed[n_missed++] = token;
            seen->hits--;
            seen->misses++;
        }
    }
    in_use = grab((size_t)n_slots, 1);
    taken = grab((size_t)n_missed + 1, sizeof(int));
    memcpy(in_use, hit, (size_t)n_slots);
    if (t->config.policy == HSP_RANDOM) {
        int32_t *tags = grab((size_t)n_slots, sizeof *tags);
        hsp_resident(t->cache, q->handle, t->anchor[group] + t->config.first_layer, tags, NULL, NULL, NULL);
        for (int s = 0; s < n_slots; s++) {
            if (hit[s])
                TOY_SAME("selected row kept", tags[s], g->tag[s]);
            g->tag[s] = tags[s];
        }
        for (int m = 0; m < n_missed; m++)
            TOY_SAME("missed row resident", find_tag(t, g, missed[m]) >= 0, 1);
        free(tags);
        n_missed = 0;
    }
    if (t->config.policy == HSP_CLOCK)
        for (int s = 0; s < n_slots; s++)
            if (hit[s])
                g->order[s] = 1;
    for (int m = 0; m < n_missed; m++) {
        taken[m] = next_victim(t, g, in_use);
        in_use[taken[m]] = 1;
        g->tag[taken[m]] = missed[m];
        if (t->config.policy == HSP_CLOCK)
            g->order[taken[m]] = 1;
    }
    if (t->config.policy == HSP_LRU || t->config.policy == HSP_FIFO)
        for (int m = 0; m < n_missed; m++)
            move_to_end(g->order, n_slots, taken[m]);
    if (t->config.policy == HSP_LRU) {
        int *old = grab((size_t)n_slots, sizeof(int));
        memcpy(old, g->order, (size_t)n_slots * sizeof(int));
        for (int i = 0; i < n_slots; i++)
            if (hit[old[i]])
                move_to_end(g->order, n_slots, old[i]);
        free(old);
    }
    free(hit);
    free(in_use);
    free(missed);
    free(taken);
}

/* Does the id address this token's row in every layer of the group? */
static void check_row(const toy *t, const toy_request *q, int group, int token, int id) {
    for (int l = 0; l < t->config.n_layers; l++) {
        if (t->group_of[l] != group)
            continue;
        hsp_rows_view view = {.struct_size = sizeof view};
        TOY_SAME("rows", hsp_rows(t->cache, l + t->config.first_layer, &view), HSP_OK);
        TOY_SAME("id in range", id >= 0 && id < view.n_rows, 1);
        const unsigned char *want = row_of(t, q, l, token);
        for (int p = 0; p < view.n_planes; p++) {
            const hsp_plane_view *v = &view.plane[p];
            const char *got = (const char *)v->base + (size_t)(id / v->rows_per_block) * v->block_stride +
                              (size_t)(id % v->rows_per_block) * v->row_stride;
            char row[65536];
            t->device->read(row, got, v->row_bytes);
            TOY_SAME("bytes of a row", memcmp(row, want, v->row_bytes), 0);
            want += v->row_bytes;
        }
    }
}

static void check_ids(const toy *t, const toy_request *q, int group, const int32_t *selection, const int32_t *ids,
                      int n) {
    const toy_group *g = &q->group[group];
    int32_t first_id;
    hsp_resident(t->cache, q->handle, t->anchor[group] + t->config.first_layer, NULL, NULL, NULL, &first_id);
    for (int e = 0; e < n; e++) {
        int token = selection[e];
        if (token < 0 || token >= q->length) {
            TOY_SAME("id of nothing", ids[e], -1);
            continue;
        }
        int place = token >= q->ring_first ? t->config.n_slots + token % t->config.ring_rows : find_tag(t, g, token);
        TOY_SAME("id", ids[e], first_id + place);
        if (!(t->config.flags & HSP_NO_IO) || token >= q->ring_first)
            check_row(t, q, group, token, ids[e]);
    }
}

int toy_swap_in(toy *t, int group, const int32_t *selection, int n_queries, int k) {
    int n = n_queries * k;
    size_t bytes = ((size_t)(t->batch * n) + 1) * sizeof(int32_t);
    int32_t *ids = t->device->alloc(bytes), *chosen = on_device(t, selection, bytes - sizeof(int32_t));
    memset(ids, 0x55, bytes);
    TOY_SAME("swap_in",
             hsp_swap_in(t->cache, t->anchor[group] + t->config.first_layer, chosen, n_queries, k, ids, NULL), HSP_OK);
    t->device->wait();
    for (int b = 0; b < t->batch; b++) {
        int r = t->batch_request[b];
        if (r < 0) {
            for (int e = 0; e < n; e++)
                TOY_SAME("id of padding", ids[b * n + e], -1);
            continue;
        }
        recency_step(t, &t->request[r], group, selection + b * n, n, &t->request[r].counters);
        check_ids(t, &t->request[r], group, selection + b * n, ids + b * n, n);
    }
    TOY_SAME("nothing written past the ids", ids[t->batch * n], 0x55555555);
    t->device->release(ids);
    t->device->release(chosen);
    return HSP_OK;
}

int toy_warm(toy *t, int r, int group, const int32_t *tokens, int n) {
    toy_request *q = &t->request[r];
    hsp_counters seen = {0};
    int32_t *hot = on_device(t, tokens, (size_t)n * sizeof *hot);
    TOY_SAME("warm", hsp_warm(t->cache, q->handle, t->anchor[group] + t->config.first_layer, hot, n, NULL), HSP_OK);
    t->device->wait();
    t->device->release(hot);
    recency_step(t, q, group, tokens, n, &seen);
    q->counters.warmed += seen.misses;
    return HSP_OK;
}

/* ------------------------------------------------------------------------------------------------------- checks -- */

static void check_host_rows(toy *t, const toy_request *q) {
    unsigned char *rows = grab((size_t)q->length + 1, (size_t)t->row_bytes);
    for (int l = 0; l < t->config.n_layers; l++) {
        hsp_row_sink sink = {{0}, {0}};
        for (int p = 0, offset = 0; p < t->config.n_planes; offset += t->config.plane_bytes[p++]) {
            sink.plane[p] = rows + offset;
            sink.stride[p] = (size_t)t->row_bytes;
        }
        TOY_SAME("read", hsp_read(t->cache, q->handle, l + t->config.first_layer, 0, q->length, &sink), HSP_OK);
        TOY_SAME("host rows", memcmp(rows, row_of(t, q, l, 0), (size_t)q->length * (size_t)t->row_bytes), 0);
        TOY_SAME("read past the end", hsp_read(t->cache, q->handle, l + t->config.first_layer, q->length, 1, &sink),
                 HSP_ELIMIT);
    }
    free(rows);
}

static void check_slots(toy *t, const toy_request *q, int group) {
    int n = t->config.n_slots;
    int32_t *tags = grab((size_t)n, sizeof *tags), *order = grab((size_t)n, sizeof *order), ring_first;
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
}

void toy_check(toy *t) {
    hsp_stats_view stats = {.struct_size = sizeof stats};
    for (int r = 0; r < t->config.max_requests; r++) {
        toy_request *q = &t->request[r];
        int32_t length;
        if (!q->live)
            continue;
        TOY_SAME("length", (hsp_length(t->cache, q->handle, &length), length), q->length);
        check_host_rows(t, q);
        for (int g = 0; g < t->n_groups; g++)
            check_slots(t, q, g);
        check_counters(t, q);
    }
    TOY_SAME("stats", hsp_stats(t->cache, &stats), HSP_OK);
    TOY_SAME("live requests", stats.live_requests, live_count(t));
    TOY_SAME("free pages", stats.host_pages_free, t->pages_free);
}
