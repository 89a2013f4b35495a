/* SPDX-License-Identifier: Apache-2.0 */
#include "decode_step.h"

static hsp_rows_view rows_of(const decode *d, int layer) {
    hsp_rows_view view = {.struct_size = sizeof view};
    TOY_SAME("rows", hsp_rows(d->t.cache, layer + d->t.config.first_layer, &view), HSP_OK);
    return view;
}

/* -------------------------------------------------------------------------------------------------- open, close -- */

static void make_log(decode *d, decode_log *log) {
    size_t layers = (size_t)d->t.config.n_layers;
    log->selection = queue_alloc_host(&d->q, d->n_ids * sizeof(int32_t));
    log->ids = queue_alloc_host(&d->q, d->n_ids * sizeof(int32_t));
    log->new_rows = queue_alloc_host(&d->q, d->rows_bytes);
    log->slabs = queue_alloc_host(&d->q, layers * d->slab_bytes);
    log->want = toy_plain_device.alloc(d->n_ids * sizeof(int32_t));
    log->bytes = toy_plain_device.alloc(layers * (size_t)(d->entries * d->n * d->t.row_bytes));
}

static void drop_log(decode *d, decode_log *log) {
    queue_release_host(&d->q, log->selection);
    queue_release_host(&d->q, log->ids);
    queue_release_host(&d->q, log->new_rows);
    queue_release_host(&d->q, log->slabs);
    free(log->want);
    free(log->bytes);
}

static void make_buffers(decode *d) {
    const hsp_config *c = &d->t.config;
    hsp_rows_view view = rows_of(d, 0);
    size_t blocks = (size_t)((view.n_rows + c->block_rows - 1) / c->block_rows);
    d->slab_bytes = blocks * view.plane[0].block_stride;
    d->n_ids = (size_t)(d->t.n_groups * d->entries * d->n) + 1;
    d->rows_bytes = (size_t)c->n_layers * (size_t)(d->entries * d->per_request * d->t.row_bytes);
    d->selection = queue_alloc(&d->q, d->n_ids * sizeof(int32_t));
    d->ids = queue_alloc(&d->q, d->n_ids * sizeof(int32_t));
    d->rows = queue_alloc(&d->q, d->rows_bytes);
    d->poison = queue_alloc_host(&d->q, d->n_ids * sizeof(int32_t));
    memset(d->poison, 0x55, d->n_ids * sizeof(int32_t));
    d->log = toy_plain_device.alloc((size_t)d->depth * sizeof *d->log);
    for (int i = 0; i < d->depth; i++)
        make_log(d, &d->log[i]);
}

static void append(decode *d, int l, const queue *on) {
    size_t at = (size_t)l * (d->rows_bytes / (size_t)d->t.config.n_layers);
    hsp_row_source source = toy_source(&d->t, d->rows + at);
    int layer = l + d->t.config.first_layer;
    TOY_SAME("append", hsp_append(d->t.cache, layer, &source, d->per_request, on->stream), HSP_OK);
}

static void swap_in(decode *d, int l) {
    int layer = l + d->t.config.first_layer;
    size_t at = (size_t)(d->t.group_of[l] * d->entries * d->n);
    TOY_SAME("swap_in",
             hsp_swap_in(d->t.cache, layer, d->selection + at, d->n_queries, d->k, d->ids + at, d->on->stream), HSP_OK);
}

/* An anchor's swap-in; what a follower has to wait for. */
static void have_rows(decode *d, int l) {
    if (d->t.anchor[d->t.group_of[l]] == l)
        swap_in(d, l);
    else
        TOY_SAME("wait_rows", hsp_wait_rows(d->t.cache, l + d->t.config.first_layer, d->on->stream), HSP_OK);
}

/* The calls of a step after its begin. */
static void make_calls(void *argument) {
    decode *d = argument;
    int n_layers = d->t.config.n_layers;
    if (d->order == FORKED)
        queue_follow(&d->side, d->on);
    for (int l = 0; l < n_layers; l++) {
        append(d, l, d->order == FORKED ? &d->side : d->on);
        if (d->order == FORKED)
            queue_follow(d->on, &d->side);
        if (d->order != APPENDS_FIRST)
            have_rows(d, l);
    }
    for (int l = 0; l < n_layers && d->order == APPENDS_FIRST; l++)
        have_rows(d, l);
}

static void admit(decode *d, int r) {
    int max_tokens = d->t.config.max_context - (int)draw(&d->seed, 60);
    if (toy_admit(&d->t, r, max_tokens) == HSP_OK)
        toy_fill(&d->t, r, (int)draw(&d->seed, (uint32_t)max_tokens * 2 / 3));
}

/* A step of nothing but padding: the launches that are captured have the largest batch. */
static void capture(decode *d) {
    int *nobody = malloc((size_t)d->entries * sizeof(int)), *none = calloc((size_t)d->entries, sizeof(int));
    assert_true(nobody && none);
    memset(nobody, 0xff, (size_t)d->entries * sizeof(int));
    assert_int_equal(toy_begin(&d->t, nobody, none, d->entries), HSP_OK);
    queue_capture(&d->q, make_calls, d);
    free(nobody);
    free(none);
}

void decode_open(decode *d, const hsp_config *config, int n_queries, int k, int depth, enum decode_order order) {
    *d = (decode){.k = k,
                  .n_queries = n_queries,
                  .n = n_queries * k,
                  .entries = config->max_batch,
                  .per_request = config->max_queries,
                  .depth = depth,
                  .order = order,
                  .seed = 1};
    hsp_config one_thread = *config;
    one_thread.n_threads = 1; /* of cpu: a thousand short calls are not worth waking others */
    toy_open(&d->t, &one_thread);
    queue_open(&d->q, config->backend);
    queue_open(&d->side, config->backend);
    d->on = &d->q;
    d->t.stream = d->q.stream;
    make_buffers(d);
    capture(d); /* from here on requests come and go on the stream of the steps */
    for (int r = 0; r < config->max_requests; r += 2)
        admit(d, r);
    toy_check(&d->t);
}

void decode_close(decode *d) {
    toy_close(&d->t);
    for (int i = 0; i < d->depth; i++)
        drop_log(d, &d->log[i]);
    free(d->log);
    queue_release(&d->q, d->selection);
    queue_release(&d->q, d->ids);
    queue_release(&d->q, d->rows);
    queue_release_host(&d->q, d->poison);
    queue_close(&d->side);
    queue_close(&d->q);
}

/* ------------------------------------------------------------------------------------------------- a random step -- */

static void cut_back(decode *d, int r, uint32_t most) {
    toy_request *q = &d->t.request[r];
    int back = (int)draw(&d->seed, most + 1);
    toy_truncate(&d->t, r, back < q->length ? q->length - back : 0);
}

static int has_room(const decode *d, const toy_request *q) {
    return q->live && q->length + d->t.config.max_queries <= q->max_tokens;
}

void decode_change(decode *d) {
    for (int r = 0; r < d->t.config.max_requests; r++) {
        toy_request *q = &d->t.request[r];
        uint32_t what = draw(&d->seed, 40);
        if (!q->live) {
            if (what < 5)
                admit(d, r);
        } else if (what == 0 || !has_room(d, q)) {
            toy_retire(&d->t, r);
            if (draw(&d->seed, 2))
                admit(d, r); /* into the slot that work in flight may still read */
        } else if (what == 1)
            cut_back(d, r, 60);
    }
    decode_reject(d);
}

void decode_reject(decode *d) {
    for (int r = 0; r < d->t.config.max_requests; r++)
        if (d->t.request[r].live && draw(&d->seed, 8) == 0)
            cut_back(d, r, (uint32_t)d->per_request);
}

/* Any number of entries, the live requests among them in any order, some of them left out. Padding up to the largest
 * batch follows. */
static int draw_batch(decode *d, int *rs, int *n_new) {
    const hsp_config *c = &d->t.config;
    int batch = (int)draw(&d->seed, (uint32_t)c->max_batch + 1), at = (int)draw(&d->seed, (uint32_t)c->max_requests);
    for (int b = 0; b < c->max_batch; b++) {
        int r = b < batch && b < c->max_requests ? (at + b) % c->max_requests : -1;
        rs[b] = r >= 0 && has_room(d, &d->t.request[r]) && draw(&d->seed, 8) ? r : -1;
        n_new[b] = (int)draw(&d->seed, (uint32_t)c->max_queries + 1);
    }
    return batch;
}

static int32_t draw_token(decode *d, const toy_request *q, const int32_t *earlier, int n_earlier) {
    static const int32_t hostile[] = {INT32_MIN, INT32_MAX, -2, 1 << 30};
    int window = d->t.config.n_slots * 3 / 2, length = q->length > 0 ? q->length : 1;
    switch (draw(&d->seed, 16)) {
    case 0:
        return -1;
    case 1:
        return draw(&d->seed, 3) ? q->length + (int)draw(&d->seed, 70) : hostile[draw(&d->seed, 4)];
    case 2:
    case 3:
        return q->length - 1 - (int)draw(&d->seed, (uint32_t)(d->t.config.ring_rows + d->per_request));
    case 4:
    case 5:
        return n_earlier ? earlier[draw(&d->seed, (uint32_t)n_earlier)] : -1;
    case 6:
        return (int)draw(&d->seed, (uint32_t)length);
    default: /* a window that drifts with the length */
        return (int)((uint32_t)(length * 3 / 2) + draw(&d->seed, (uint32_t)window)) % length;
    }
}

/* Selections of the entries that are there; the others keep what an earlier step left. */
static void draw_selections(decode *d, decode_log *log) {
    for (int g = 0; g < d->t.n_groups; g++)
        for (int b = 0; b < d->t.batch; b++) {
            int32_t *selection = log->selection + (g * d->entries + b) * d->n;
            for (int e = 0; e < d->n && d->t.batch_request[b] >= 0; e++)
                selection[e] = draw_token(d, &d->t.request[d->t.batch_request[b]], selection, e);
        }
}

/* What the ids and the rows they address must be, by the toy as it is now. */
static void expect(decode *d, decode_log *log) {
    toy *t = &d->t;
    int per_group = d->entries * d->n, row_bytes = t->row_bytes;
    memcpy(log->want, d->poison, d->n_ids * sizeof *log->want);
    for (int g = 0; g < t->n_groups; g++)
        toy_expect_ids(t, g, log->selection + g * per_group, d->n, log->entries, log->want + g * per_group);
    for (int l = 0; l < t->config.n_layers; l++)
        for (int e = 0; e < log->entries * d->n; e++) {
            int at = t->group_of[l] * per_group + e;
            if (log->want[at] >= 0)
                memcpy(log->bytes + ((size_t)l * (size_t)per_group + (size_t)e) * (size_t)row_bytes,
                       toy_row(t, t->batch_request[e / d->n], l, log->selection[at]), (size_t)row_bytes);
        }
}

void decode_queue(decode *d) {
    const decode_log *last = &d->log[(d->n_queued + d->depth - 1) % d->depth];
    decode_log *log = &d->log[d->n_queued++];
    int rs[64], n_new[64];
    assert_true(d->n_queued <= d->depth && d->entries <= 64);
    memmove(log->selection, last->selection, d->n_ids * sizeof(int32_t));
    memmove(log->new_rows, last->new_rows, d->rows_bytes);
    int batch = draw_batch(d, rs, n_new);
    if (d->q.kind == &queue_plain && !d->as_calls)
        batch = d->entries; /* calls that are repeated do not know of entries past the batch; launches do */
    assert_int_equal(toy_begin(&d->t, rs, n_new, batch), HSP_OK);
    memset(rs, 0x7f, sizeof rs); /* the arrays are the caller's again */
    memset(n_new, 0x7f, sizeof n_new);
    log->entries = d->as_calls ? batch : d->entries;
    draw_selections(d, log);
    for (int l = 0; l < d->t.config.n_layers; l++)
        toy_new_rows(&d->t, l, d->per_request,
                     log->new_rows + (size_t)l * (d->rows_bytes / (size_t)d->t.config.n_layers));
    queue_copy(d->on, d->selection, log->selection, d->n_ids * sizeof(int32_t));
    queue_copy(d->on, d->ids, d->poison, d->n_ids * sizeof(int32_t));
    queue_copy(d->on, d->rows, log->new_rows, d->rows_bytes);
    if (d->as_calls)
        make_calls(d);
    else
        queue_replay(d->on);
    queue_copy(d->on, log->ids, d->ids, d->n_ids * sizeof(int32_t));
    for (int l = 0; l < d->t.config.n_layers; l++)
        queue_copy(d->on, log->slabs + (size_t)l * d->slab_bytes, rows_of(d, l).plane[0].base, d->slab_bytes);
    expect(d, log);
}

/* ------------------------------------------------------------------------------------------------------ compare -- */

static void compare_row(const decode *d, const hsp_rows_view *view, const unsigned char *slab, int32_t id,
                        const unsigned char *want) {
    for (int p = 0; p < view->n_planes; p++) {
        const hsp_plane_view *v = &view->plane[p];
        size_t at = (size_t)((const char *)v->base - (const char *)view->plane[0].base) +
                    (size_t)(id / v->rows_per_block) * v->block_stride +
                    (size_t)(id % v->rows_per_block) * v->row_stride;
        assert_true(at + v->row_bytes <= d->slab_bytes);
        TOY_SAME("bytes of a row", memcmp(slab + at, want, v->row_bytes), 0);
        want += v->row_bytes;
    }
}

static void compare(const decode *d, const decode_log *log) {
    int per_group = d->entries * d->n;
    for (size_t e = 0; e < d->n_ids; e++)
        TOY_SAME("id", log->ids[e], log->want[e]);
    for (int l = 0; l < d->t.config.n_layers; l++) {
        hsp_rows_view view = rows_of(d, l);
        for (int e = 0; e < log->entries * d->n; e++) {
            int32_t id = log->want[d->t.group_of[l] * per_group + e];
            size_t row = (size_t)l * (size_t)per_group + (size_t)e;
            if (id >= 0)
                compare_row(d, &view, log->slabs + (size_t)l * d->slab_bytes, id,
                            log->bytes + row * (size_t)d->t.row_bytes);
        }
    }
}

void decode_switch(decode *d) {
    queue *next = d->on == &d->q ? &d->side : &d->q;
    queue_follow(next, d->on);
    d->on = next;
    d->t.stream = next->stream;
}

void decode_collect(decode *d) {
    queue_wait(d->on);
    for (int i = 0; i < d->n_queued; i++)
        compare(d, &d->log[i]);
    /* The next step goes on from what the last one left in the buffers. */
    if (d->n_queued > 0) {
        memmove(d->log[d->depth - 1].selection, d->log[d->n_queued - 1].selection, d->n_ids * sizeof(int32_t));
        memmove(d->log[d->depth - 1].new_rows, d->log[d->n_queued - 1].new_rows, d->rows_bytes);
    }
    d->n_queued = 0;
}
