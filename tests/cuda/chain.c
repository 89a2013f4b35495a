/* SPDX-License-Identifier: Apache-2.0 */
#include "chain.h"

static hsp_rows_view rows_of(const chain *c, int layer) {
    hsp_rows_view view = {.struct_size = sizeof view};
    TOY_SAME("rows", hsp_rows(c->t.cache, layer + c->t.config.first_layer, &view), HSP_OK);
    return view;
}

/* -------------------------------------------------------------------------------------------------- open, close -- */

static void make_buffers(chain *c) {
    const hsp_config *config = &c->t.config;
    hsp_rows_view view = rows_of(c, 0);
    size_t blocks = (size_t)((view.n_rows + config->block_rows - 1) / config->block_rows);
    c->slab_bytes = blocks * view.plane[0].block_stride;
    c->n_ids = (size_t)c->n_calls * (size_t)(c->entries * c->most_k) + 1;
    c->rows_bytes = (size_t)config->n_layers * (size_t)(c->entries * config->max_queries * c->t.row_bytes);
    c->selection = queue_alloc(&c->q, c->n_ids * sizeof(int32_t));
    c->ids = queue_alloc(&c->q, c->n_ids * sizeof(int32_t));
    c->rows = queue_alloc(&c->q, c->rows_bytes);
    c->chosen = queue_alloc_host(&c->q, c->n_ids * sizeof(int32_t));
    c->got = queue_alloc_host(&c->q, c->n_ids * sizeof(int32_t));
    c->poison = queue_alloc_host(&c->q, c->n_ids * sizeof(int32_t));
    c->new_rows = queue_alloc_host(&c->q, c->rows_bytes);
    c->slab = queue_alloc_host(&c->q, c->slab_bytes);
    c->want = toy_plain_device.alloc(c->n_ids * sizeof(int32_t));
    memset(c->poison, 0x55, c->n_ids * sizeof(int32_t));
}

void chain_open(chain *c, const hsp_config *config, int n_calls, int most_k) {
    hsp_config one_thread = *config;
    one_thread.n_threads = 1; /* of cpu: short calls are not worth waking others */
    *c = (chain){.most_k = most_k, .entries = config->max_batch, .n_calls = n_calls, .seed = 1};
    assert_true(n_calls <= CHAIN_MOST);
    for (int i = 0; i < n_calls; i++)
        c->k[i] = most_k;
    toy_open(&c->t, &one_thread);
    queue_open(&c->q, config->backend);
    c->t.stream = c->q.stream;
    make_buffers(c);
}

void chain_close(chain *c) {
    toy_close(&c->t);
    queue_release(&c->q, c->selection);
    queue_release(&c->q, c->ids);
    queue_release(&c->q, c->rows);
    queue_release_host(&c->q, c->chosen);
    queue_release_host(&c->q, c->got);
    queue_release_host(&c->q, c->poison);
    queue_release_host(&c->q, c->new_rows);
    queue_release_host(&c->q, c->slab);
    free(c->want);
    queue_close(&c->q);
}

void chain_admit_all(chain *c, int max_tokens, int n_fill) {
    for (int r = 0; r < c->t.config.max_requests; r++) {
        assert_int_equal(toy_admit(&c->t, r, max_tokens), HSP_OK);
        assert_int_equal(toy_fill(&c->t, r, n_fill), HSP_OK);
        toy_first_id(&c->t, r); /* now, so that nothing waits for it later */
    }
}

/* --------------------------------------------------------------------------------------------------------- step -- */

void chain_begin(chain *c, const int *rs, const int *n_new, int batch) {
    const hsp_config *config = &c->t.config;
    size_t layer_bytes = c->rows_bytes / (size_t)config->n_layers;
    assert_int_equal(toy_begin(&c->t, rs, n_new, batch), HSP_OK);
    for (int l = 0; l < config->n_layers; l++)
        toy_new_rows(&c->t, l, config->max_queries, c->new_rows + (size_t)l * layer_bytes);
    queue_copy(&c->q, c->rows, c->new_rows, c->rows_bytes);
    for (int l = 0; l < config->n_layers; l++) {
        hsp_row_source source = toy_source(&c->t, c->rows + (size_t)l * layer_bytes);
        TOY_SAME("append", hsp_append(c->t.cache, l + config->first_layer, &source, config->max_queries, c->q.stream),
                 HSP_OK);
    }
}

void chain_begin_nobody(chain *c, int batch) {
    int *nobody = malloc((size_t)batch * sizeof *nobody), *none = calloc((size_t)batch, sizeof *none);
    assert_true(nobody && none);
    memset(nobody, 0xff, (size_t)batch * sizeof *nobody);
    chain_begin(c, nobody, none, batch);
    free(nobody);
    free(none);
}

/* At least one entry; the live requests among them in turn, some of them left out. */
void chain_begin_any(chain *c) {
    const hsp_config *config = &c->t.config;
    int rs[64], n_new[64], batch = 1 + (int)draw(&c->seed, (uint32_t)c->entries), lead = (int)draw(&c->seed, 64);
    assert_true(c->entries <= 64);
    for (int b = 0; b < batch; b++) {
        int r = (lead + b) % config->max_requests;
        toy_request *q = &c->t.request[r];
        n_new[b] = (int)draw(&c->seed, (uint32_t)config->max_queries + 1);
        rs[b] = b < config->max_requests && q->live && (b == 0 || draw(&c->seed, 8)) ? r : -1;
        if (rs[b] >= 0 && q->length + config->max_queries > q->max_tokens)
            toy_truncate(&c->t, r, q->length * 2 / 3);
    }
    chain_begin(c, rs, n_new, batch);
}

static size_t place_of(const chain *c, int i) {
    return (size_t)i * (size_t)(c->entries * c->most_k);
}

int32_t *chain_selection(chain *c, int i, int b) {
    return c->chosen + place_of(c, i) + b * c->k[i];
}

static int32_t draw_token(chain *c, const toy_request *q, const int32_t *earlier, int n_earlier) {
    int window = c->t.config.n_slots * 3 / 2, length = q->length > 0 ? q->length : 1;
    switch (draw(&c->seed, 16)) {
    case 0:
        return draw(&c->seed, 2) ? -1 : length + (int)draw(&c->seed, 9);
    case 1:
        return n_earlier ? earlier[draw(&c->seed, (uint32_t)n_earlier)] : -1;
    case 2:
        return length - 1 - (int)draw(&c->seed, (uint32_t)(c->t.config.ring_rows < length ? c->t.config.ring_rows : 1));
    default:
        return (int)((uint32_t)(length * 3 / 2) + draw(&c->seed, (uint32_t)window)) % length;
    }
}

/* A call before this one, of the same group and no smaller; -1. */
static int earlier_call(const chain *c, int i) {
    int j = i - 1;
    while (j >= 0 && (c->group[j] != c->group[i] || c->k[j] < c->k[i]))
        j--;
    return j;
}

void chain_choose(chain *c, int i) {
    int j = earlier_call(c, i);
    for (int b = 0; b < c->t.batch; b++) {
        int32_t *selection = chain_selection(c, i, b);
        if (j >= 0 && draw(&c->seed, 4) == 0) {
            memcpy(selection, chain_selection(c, j, b), (size_t)c->k[i] * sizeof *selection);
            continue;
        }
        for (int e = 0; e < c->k[i] && c->t.batch_request[b] >= 0; e++)
            selection[e] = draw_token(c, &c->t.request[c->t.batch_request[b]], selection, e);
    }
}

void chain_send(chain *c) {
    queue_copy(&c->q, c->selection, c->chosen, c->n_ids * sizeof(int32_t));
    queue_copy(&c->q, c->ids, c->poison, c->n_ids * sizeof(int32_t));
    memcpy(c->want, c->poison, c->n_ids * sizeof(int32_t));
}

/* -------------------------------------------------------------------------------------------------------- calls -- */

static void make_call(chain *c, int i) {
    size_t at = place_of(c, i);
    int layer = c->t.anchor[c->group[i]] + c->t.config.first_layer;
    TOY_SAME("swap_in", hsp_swap_in(c->t.cache, layer, c->selection + at, 1, c->k[i], c->ids + at, c->q.stream),
             HSP_OK);
}

static void expect(chain *c, int i, int entries) {
    hsp_counters before, after;
    toy_totals(&c->t, &before);
    toy_expect_ids(&c->t, c->group[i], c->chosen + place_of(c, i), c->k[i], entries, c->want + place_of(c, i));
    toy_totals(&c->t, &after);
    c->n_run++;
    c->n_missing += after.misses > before.misses;
}

void chain_call(chain *c, int i) {
    make_call(c, i);
    expect(c, i, c->t.batch);
}

void chain_wait(chain *c) {
    const hsp_config *config = &c->t.config;
    for (int l = config->n_layers - 1; l >= 0; l--) /* in no order that the cache could have in mind */
        TOY_SAME("wait_rows", hsp_wait_rows(c->t.cache, l + config->first_layer, c->q.stream), HSP_OK);
}

void chain_queue_captured(void *chain_pointer) {
    chain *c = chain_pointer;
    for (int i = c->first; i < c->first + c->n_captured; i++)
        make_call(c, i);
    chain_wait(c);
}

void chain_capture(chain *c, int first, int n) {
    chain_wait(c);
    c->first = first;
    c->n_captured = n;
    c->captured_entries = c->t.batch;
    queue_capture(&c->q, chain_queue_captured, c);
}

void chain_replay(chain *c) {
    /* calls that are repeated do not know of entries past the batch; launches do */
    int entries = c->q.kind == &queue_plain ? c->t.batch : c->captured_entries;
    queue_replay(&c->q);
    for (int i = c->first; i < c->first + c->n_captured; i++)
        expect(c, i, entries);
}

/* ------------------------------------------------------------------------------------------------------ compare -- */

static void compare_row(const chain *c, const hsp_rows_view *view, int32_t id, const unsigned char *want) {
    TOY_SAME("id in range", id >= 0 && id < view->n_rows, 1);
    for (int p = 0; p < view->n_planes; p++) {
        const hsp_plane_view *v = &view->plane[p];
        size_t at = (size_t)((const char *)v->base - (const char *)view->plane[0].base) +
                    (size_t)(id / v->rows_per_block) * v->block_stride +
                    (size_t)(id % v->rows_per_block) * v->row_stride;
        assert_true(at + v->row_bytes <= c->slab_bytes);
        TOY_SAME("bytes of a row", memcmp(c->slab + at, want, v->row_bytes), 0);
        want += v->row_bytes;
    }
}

/* Whatever the slots and the ring of a request hold by the toy, for a later selection to hit. */
static void compare_request(chain *c, const hsp_rows_view *view, int layer, int r) {
    const toy_request *q = &c->t.request[r];
    const toy_group *g = &q->group[c->t.group_of[layer]];
    int32_t first_id = toy_first_id(&c->t, r);
    for (int s = 0; s < c->t.config.n_slots; s++)
        if (g->tag[s] >= 0)
            compare_row(c, view, first_id + s, toy_row(&c->t, r, layer, g->tag[s]));
    for (int token = q->ring_first; token < q->length; token++)
        compare_row(c, view, first_id + c->t.config.n_slots + token % c->t.config.ring_rows,
                    toy_row(&c->t, r, layer, token));
}

void chain_compare(chain *c) {
    chain_wait(c);
    queue_copy(&c->q, c->got, c->ids, c->n_ids * sizeof(int32_t));
    queue_wait(&c->q);
    for (size_t e = 0; e < c->n_ids; e++)
        TOY_SAME("id", c->got[e], c->want[e]);
    for (int l = 0; l < c->t.config.n_layers; l++) {
        hsp_rows_view view = rows_of(c, l);
        queue_copy(&c->q, c->slab, view.plane[0].base, c->slab_bytes);
        queue_wait(&c->q);
        for (int r = 0; r < c->t.config.max_requests; r++)
            if (c->t.request[r].live)
                compare_request(c, &view, l, r);
    }
}
