/* SPDX-License-Identifier: Apache-2.0 */
#include "toy_parts.h"

void *toy__grab(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    TOY_SAME("memory of the toy", memory != NULL, 1);
    return memory;
}

static void *plain_alloc(size_t bytes) {
    return toy__grab(bytes, 1);
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
    t->group_of = toy__grab((size_t)config->n_layers, sizeof(int));
    t->anchor = toy__grab((size_t)config->n_layers, sizeof(int));
    for (int l = 0; l < config->n_layers; l++) {
        int before = 0;
        while (before < l && !in_same_group(config, before, l))
            before++;
        if (before == l)
            t->anchor[t->n_groups] = l;
        t->group_of[l] = before == l ? t->n_groups++ : t->group_of[before];
    }
    t->config.layer_group = NULL;
    t->request = toy__grab((size_t)config->max_requests, sizeof *t->request);
    t->batch_request = toy__grab((size_t)config->max_batch, sizeof(int));
    t->batch_new = toy__grab((size_t)config->max_batch, sizeof(int));
    t->pages_free = (int)((config->host_tokens + 63) / 64);
    t->batch = -1;
}

static void drop(toy *t, toy_request *q) {
    for (int g = 0; g < t->n_groups && q->group; g++) {
        free(q->group[g].tag);
        free(q->group[g].order);
        free(q->group[g].place);
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
    free(t->layer_copy);
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
    *q = (toy_request){.live = 1, .handle = handle, .max_tokens = max_tokens, .first_id = -1};
    q->rows = toy__grab((size_t)t->config.n_layers * (size_t)max_tokens, (size_t)t->row_bytes);
    q->group = toy__grab((size_t)t->n_groups, sizeof *q->group);
    int ordered = t->config.policy == HSP_LRU || t->config.policy == HSP_FIFO;
    for (int g = 0; g < t->n_groups; g++) {
        q->group[g].tag = toy__grab((size_t)t->config.n_slots, sizeof(int));
        q->group[g].order = toy__grab((size_t)t->config.n_slots, sizeof(int));
        q->group[g].place = toy__grab((size_t)max_tokens, sizeof(int));
        for (int s = 0; s < t->config.n_slots; s++)
            q->group[g].tag[s] = -1, q->group[g].order[s] = ordered ? s : 0;
    }
    t->pages_free -= pages;
    return HSP_OK;
}

int32_t toy_first_id(toy *t, int r) {
    toy_request *q = &t->request[r];
    if (q->first_id < 0)
        TOY_SAME("resident", hsp_resident(t->cache, q->handle, t->config.first_layer, NULL, NULL, NULL, &q->first_id),
                 HSP_OK);
    return q->first_id;
}

static void add_counters(hsp_counters *to, const hsp_counters *more) {
    to->hits += more->hits;
    to->misses += more->misses;
    to->invalid += more->invalid;
    to->none += more->none;
    to->warmed += more->warmed;
    to->fetched_bytes += more->fetched_bytes;
    to->appended_rows += more->appended_rows;
    to->filled_rows += more->filled_rows;
}

void toy_totals(const toy *t, hsp_counters *sum_out) {
    *sum_out = t->retired;
    for (int r = 0; r < t->config.max_requests; r++)
        add_counters(sum_out, &t->request[r].counters);
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
    add_counters(&t->retired, &q->counters);
    drop(t, q);
    return status;
}

int toy_truncate(toy *t, int r, int n_tokens) {
    toy_request *q = &t->request[r];
    int want = n_tokens < 0 || n_tokens > q->length ? HSP_ELIMIT : HSP_OK;
    TOY_SAME("truncate", hsp_truncate(t->cache, q->handle, n_tokens, t->stream), want);
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

const unsigned char *toy_row(const toy *t, int r, int layer, int token) {
    return row_of(t, &t->request[r], layer, token);
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
hsp_row_source toy_source(const toy *t, const void *rows) {
    hsp_row_source source = {{0}, {0}};
    for (int p = 0, offset = 0; p < t->config.n_planes; offset += t->config.plane_bytes[p++]) {
        source.plane[p] = (const char *)rows + offset;
        source.stride[p] = (size_t)t->row_bytes;
    }
    return source;
}

static void fill_piece(toy *t, toy_request *q, int layer, int first, int n) {
    for (int i = 0; i < n; i++)
        write_row(t, q, layer, first + i);
    void *rows = on_device(t, row_of(t, q, layer, first), (size_t)n * (size_t)t->row_bytes);
    hsp_row_source source = toy_source(t, rows);
    TOY_SAME("fill", hsp_fill(t->cache, q->handle, layer + t->config.first_layer, first, n, &source, t->stream),
             HSP_OK);
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
        TOY_SAME("fill too far",
                 hsp_fill(t->cache, q->handle, t->config.first_layer, first, n_tokens, &source, t->stream), HSP_ELIMIT);
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

void toy_new_rows(toy *t, int layer, int per_request, unsigned char *rows) {
    for (int b = 0; b < t->batch; b++) {
        int r = t->batch_request[b];
        for (int i = 0; r >= 0 && i < t->batch_new[b]; i++) {
            toy_request *q = &t->request[r];
            int token = q->length - t->batch_new[b] + i;
            write_row(t, q, layer, token);
            memcpy(rows + (size_t)(b * per_request + i) * (size_t)t->row_bytes, row_of(t, q, layer, token),
                   (size_t)t->row_bytes);
            q->counters.appended_rows++;
        }
    }
}

/* One buffer of new rows as an engine has it: [batch][rows_per_request] rows, poison where nothing is to be read. */
static void append_layer(toy *t, int layer, int per_request) {
    size_t rows = (size_t)(t->batch * per_request) + 1;
    unsigned char *buffer = t->device->alloc(rows * (size_t)t->row_bytes);
    memset(buffer, 0xee, rows * (size_t)t->row_bytes);
    toy_new_rows(t, layer, per_request, buffer);
    hsp_row_source source = toy_source(t, buffer);
    TOY_SAME("append", hsp_append(t->cache, layer + t->config.first_layer, &source, per_request, t->stream), HSP_OK);
    t->device->wait();
    t->device->release(buffer);
}

int toy_begin(toy *t, const int *rs, const int *n_new, int batch) {
    int32_t *handles = toy__grab((size_t)batch, sizeof *handles);
    int want = HSP_OK;
    for (int b = 0; b < batch; b++) {
        handles[b] = rs[b] < 0 ? -1 : t->request[rs[b]].handle;
        if (rs[b] >= 0 && n_new[b] > t->request[rs[b]].max_tokens - t->request[rs[b]].length)
            want = HSP_ELIMIT;
    }
    TOY_SAME("step_begin", hsp_step_begin(t->cache, handles, n_new, batch, t->stream), want);
    memset(handles, 0x7f, (size_t)batch * sizeof *handles); /* the array is the caller's again */
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
    return HSP_OK;
}

int toy_step(toy *t, const int *rs, const int *n_new, int batch) {
    int most = 0, status = toy_begin(t, rs, n_new, batch);
    for (int b = 0; b < batch; b++)
        most = rs[b] >= 0 && n_new[b] > most ? n_new[b] : most;
    for (int l = 0; l < t->config.n_layers && status == HSP_OK; l++)
        append_layer(t, l, most + (most < t->config.max_queries));
    return status;
}

void toy_expect_ids(toy *t, int group, const int32_t *selection, int n, int entries, int32_t *ids_out) {
    for (int e = 0; e < entries * n; e++)
        ids_out[e] = -1;
    for (int b = 0; b < t->batch; b++) {
        toy_request *q = t->batch_request[b] < 0 ? NULL : &t->request[t->batch_request[b]];
        int32_t first_id = q ? toy_first_id(t, t->batch_request[b]) : -1;
        if (q)
            toy__recency_step(t, q, group, selection + b * n, n, &q->counters);
        for (int e = b * n; q && e < (b + 1) * n; e++) {
            int token = selection[e];
            if (token >= q->ring_first && token < q->length)
                ids_out[e] = first_id + t->config.n_slots + token % t->config.ring_rows;
            else if (token >= 0 && token < q->length)
                ids_out[e] = first_id + toy__find_tag(&q->group[group], token);
        }
    }
}

int toy_swap_in(toy *t, int group, const int32_t *selection, int n_queries, int k) {
    int n = n_queries * k;
    size_t bytes = ((size_t)(t->batch * n) + 1) * sizeof(int32_t);
    int32_t *ids = t->device->alloc(bytes), *chosen = on_device(t, selection, bytes - sizeof(int32_t));
    memset(ids, 0x55, bytes);
    TOY_SAME("swap_in",
             hsp_swap_in(t->cache, t->anchor[group] + t->config.first_layer, chosen, n_queries, k, ids, t->stream),
             HSP_OK);
    t->device->wait();
    int32_t *want = toy__grab((size_t)(t->batch * n) + 1, sizeof *want);
    toy_expect_ids(t, group, selection, n, t->batch, want);
    for (int e = 0; e < t->batch * n; e++)
        TOY_SAME("id", ids[e], want[e]);
    if (t->config.flags & HSP_PREFETCH && ++t->n_swap_ins % 3)
        toy__check_anchor(t, group, selection, ids, n, t->batch); /* followers are left on their way */
    else
        toy_check_rows(t, group, selection, ids, n, t->batch);
    free(want);
    TOY_SAME("nothing written past the ids", ids[t->batch * n], 0x55555555);
    t->device->release(ids);
    t->device->release(chosen);
    return HSP_OK;
}

int toy_warm(toy *t, int r, int group, const int32_t *tokens, int n) {
    toy_request *q = &t->request[r];
    hsp_counters seen = {0};
    int32_t *hot = on_device(t, tokens, (size_t)n * sizeof *hot);
    TOY_SAME("warm", hsp_warm(t->cache, q->handle, t->anchor[group] + t->config.first_layer, hot, n, t->stream),
             HSP_OK);
    t->device->wait();
    t->device->release(hot);
    toy__recency_step(t, q, group, tokens, n, &seen);
    q->counters.warmed += seen.misses;
    q->counters.fetched_bytes += seen.fetched_bytes;
    return HSP_OK;
}
