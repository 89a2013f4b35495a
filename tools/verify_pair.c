/* SPDX-License-Identifier: Apache-2.0 */
#include "tools.h"
#include "verify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static void differs(verify_pair *p, const char *format, ...) {
    va_list arguments;
    if (p->difference[0])
        return;
    va_start(arguments, format);
    vsnprintf(p->difference, sizeof p->difference, format, arguments);
    va_end(arguments);
}

int verify_lost(verify_pair *p, int side, int status) {
    if (status == HSP_EDEVICE && !p->failed)
        p->failed = tool_fail(TOOL_FAILED, "%s: %s", p->name[side], hsp_last_error(p->cache[side]));
    return p->failed;
}

/* Every operation ends here: the statuses must agree. The status, or HSP_EDEVICE after a difference or a failure. */
static int both(verify_pair *p, const char *call, int status, int other) {
    p->totals->operations++;
    if (verify_lost(p, 0, status) || verify_lost(p, 1, other))
        return HSP_EDEVICE;
    if (status != other)
        differs(p, "%s: %s says %s, %s says %s", call, p->name[0], hsp_status_name(status), p->name[1],
                hsp_status_name(other));
    return p->difference[0] ? HSP_EDEVICE : status;
}

static char *truth(const verify_pair *p, const verify_request *q, int32_t layer, int32_t token) {
    return q->rows + ((size_t)layer * (size_t)q->max_tokens + (size_t)token) * rows_bytes(&p->config);
}

static int in_group(const verify_pair *p, int32_t layer, int32_t anchor) {
    return p->config.layer_group ? p->group_label[layer] == p->group_label[anchor] : layer == anchor;
}

int verify_anchor(const verify_pair *p, int32_t layer) {
    int32_t anchor = 0;
    while (anchor < layer && !in_group(p, layer, anchor))
        anchor++;
    return anchor;
}

/* ----------------------------------------------------------------------------------------------- open and close -- */

static int open_side(verify_pair *p, int side, const verify_choice *choice) {
    const char *name = p->sides->name[side];
    hsp_config config = p->config;
    snprintf(config.backend, sizeof config.backend, "%s", name);
    snprintf(config.host_file, sizeof config.host_file, "%s", choice->host_file);
    config.n_threads = choice->n_threads;
    config.huge_pages = choice->huge_pages;
    config.flags = choice->flags;
    int status = hsp_open(&config, &p->cache[side]);
    if (status != HSP_OK)
        return tool_fail(TOOL_FAILED, "%s: %s", name, hsp_last_error(NULL));
    p->name[side] = name;
    for (int32_t layer = 0; layer < config.n_layers; layer++) {
        p->view[side][layer].struct_size = sizeof(hsp_rows_view);
        if (hsp_rows(p->cache[side], config.first_layer + layer, &p->view[side][layer]) != HSP_OK)
            return tool_fail(TOOL_FAILED, "%s: %s", name, hsp_last_error(p->cache[side]));
    }
    return verify_mirror(p, side);
}

int verify_open(verify_pair *p, const verify_choice choice[2]) {
    p->batch = -1;
    verify_clear_shared(p->sides);
    for (int side = 0; side < 2 && !p->failed; side++)
        p->failed = open_side(p, side, &choice[side]);
    return p->failed;
}

void verify_close(verify_pair *p) {
    for (int side = 0; side < 2; side++) {
        hsp_close(p->cache[side]);
        free(p->mirror[side]);
    }
    for (int r = 0; r < VERIFY_REQUESTS; r++)
        free(p->request[r].rows);
}

/* ----------------------------------------------------------------------------------------------------- requests -- */

void verify_admit(verify_pair *p, int r, int32_t max_tokens) {
    verify_request *q = &p->request[r];
    int32_t handle = -7, other = -7;
    int status =
        both(p, "admit", hsp_admit(p->cache[0], max_tokens, &handle), hsp_admit(p->cache[1], max_tokens, &other));
    if (handle != other)
        differs(p, "admit: %s gives handle %d, %s %d", p->name[0], handle, p->name[1], other);
    if (status != HSP_OK)
        return;
    *q = (verify_request){.live = 1, .handle = handle, .max_tokens = max_tokens};
    q->rows = calloc((size_t)p->config.n_layers * (size_t)max_tokens, rows_bytes(&p->config));
    if (!q->rows)
        p->failed = tool_fail(TOOL_FAILED, "out of memory");
}

/* Also of a request that is gone, whose handle must then be refused. */
void verify_retire(verify_pair *p, int r) {
    verify_request *q = &p->request[r];
    int status = both(p, "retire", hsp_retire(p->cache[0], q->handle), hsp_retire(p->cache[1], q->handle));
    if (status == HSP_OK && !q->live)
        differs(p, "retire: request %d was retired twice", q->handle);
    if (status != HSP_OK)
        return;
    for (int32_t b = 0; b < p->batch; b++)
        if (p->batch_request[b] == r)
            p->batch_request[b] = -1;
    free(q->rows);
    q->rows = NULL;
    q->live = 0;
}

void verify_truncate(verify_pair *p, int r, int32_t n_tokens) {
    verify_request *q = &p->request[r];
    int status = both(p, "truncate", hsp_truncate(p->cache[0], q->handle, n_tokens, NULL),
                      hsp_truncate(p->cache[1], q->handle, n_tokens, NULL));
    for (int32_t layer = 0; status == HSP_OK && layer < p->config.n_layers; layer++)
        if (q->written[layer] > n_tokens)
            q->written[layer] = n_tokens;
}

/* The rows are made before it is known whether they will be taken, in a buffer of their own. */
void verify_fill(verify_pair *p, int r, int32_t layer, int32_t n_tokens) {
    verify_request *q = &p->request[r];
    size_t bytes = rows_bytes(&p->config), room = (size_t)n_tokens * bytes;
    int32_t first = q->written[layer], handle = q->handle, number = p->config.first_layer + layer;
    void *rows;
    if (verify_borrow(p, &room, 1, &rows) != TOOL_OK)
        return;
    rows_fill(rows, bytes, n_tokens, p->n_labels);
    hsp_row_source source = rows_source(&p->config, rows);
    int status = both(p, "fill", hsp_fill(p->cache[0], handle, number, first, n_tokens, &source, NULL),
                      hsp_fill(p->cache[1], handle, number, first, n_tokens, &source, NULL));
    if (status == HSP_OK && n_tokens > q->max_tokens - first)
        differs(p, "fill: %d tokens from %d were taken; the request has room for %d", n_tokens, first, q->max_tokens);
    else if (status == HSP_OK) {
        memcpy(truth(p, q, layer, first), rows, room);
        q->written[layer] += n_tokens;
        p->n_labels += (uint64_t)n_tokens;
    }
    verify_give_back(p, &rows, 1);
}

void verify_warm(verify_pair *p, int r, int32_t layer, const int32_t *tokens, int32_t n_tokens) {
    int32_t handle = p->request[r].handle, number = p->config.first_layer + layer;
    size_t bytes = (size_t)n_tokens * sizeof *tokens;
    void *list;
    if (verify_borrow(p, &bytes, 1, &list) != TOOL_OK)
        return;
    memcpy(list, tokens, bytes);
    both(p, "warm", hsp_warm(p->cache[0], handle, number, list, n_tokens, NULL),
         hsp_warm(p->cache[1], handle, number, list, n_tokens, NULL));
    verify_give_back(p, &list, 1);
}

/* --------------------------------------------------------------------------------------------------------- step -- */

int verify_step(verify_pair *p, const int32_t *requests, const int32_t *n_new, int32_t batch) {
    int32_t handle[VERIFY_BATCH + 1] = {0};
    for (int32_t b = 0; b < batch; b++)
        handle[b] = requests[b] < 0 ? -1 : p->request[requests[b]].handle;
    int status = both(p, "step_begin", hsp_step_begin(p->cache[0], handle, n_new, batch, NULL),
                      hsp_step_begin(p->cache[1], handle, n_new, batch, NULL));
    if (status != HSP_OK)
        return status;
    p->batch = batch;
    memcpy(p->batch_request, requests, (size_t)batch * sizeof *requests);
    return HSP_OK;
}

/* New rows come after those the layer has; entries beyond n_new of a request are poison. */
void verify_append(verify_pair *p, int32_t layer, const int32_t *n_new, int32_t rows_per_request) {
    size_t bytes = rows_bytes(&p->config);
    int32_t number = p->config.first_layer + layer;
    int64_t n_rows = p->batch < 0 ? 0 : (int64_t)p->batch * rows_per_request;
    size_t room = (size_t)n_rows * bytes;
    void *rows;
    if (p->batch < 0 || verify_borrow(p, &room, 1, &rows) != TOOL_OK)
        return;
    rows_fill(rows, bytes, n_rows, p->n_labels);
    hsp_row_source source = rows_source(&p->config, rows);
    int status = both(p, "append", hsp_append(p->cache[0], number, &source, rows_per_request, NULL),
                      hsp_append(p->cache[1], number, &source, rows_per_request, NULL));
    p->n_labels += (uint64_t)n_rows;
    for (int32_t b = 0; status == HSP_OK && b < p->batch; b++) {
        verify_request *q = p->batch_request[b] < 0 ? NULL : &p->request[p->batch_request[b]];
        if (!q)
            continue;
        if (n_new[b] > q->max_tokens - q->written[layer]) {
            differs(p, "append: %d rows after %d were taken; the request has room for %d", n_new[b], q->written[layer],
                    q->max_tokens);
            break;
        }
        memcpy(truth(p, q, layer, q->written[layer]), (char *)rows + (size_t)(b * rows_per_request) * bytes,
               (size_t)n_new[b] * bytes);
        q->written[layer] += n_new[b];
    }
    verify_give_back(p, &rows, 1);
}

/* Tokens that every layer of the group can give. */
static int32_t readable(const verify_pair *p, const verify_request *q, int32_t anchor) {
    int32_t least = q->written[anchor];
    for (int32_t layer = anchor; layer < p->config.n_layers; layer++)
        if (in_group(p, layer, anchor) && q->written[layer] < least)
            least = q->written[layer];
    return least;
}

/* An id that both gave for a token: is it right that there is one, and does it address the token's bytes everywhere? */
static void check_id(verify_pair *p, const verify_request *q, int32_t anchor, int32_t ring_first, int32_t token,
                     int32_t id, int32_t last_layer) {
    int32_t end = token >= ring_first ? q->written[anchor] : readable(p, q, anchor);
    if ((id >= 0) != (token >= 0 && token < end))
        differs(p, "swap_in: layer %d, token %d of %d has id %d on both", anchor + p->config.first_layer, token, end,
                id);
    for (int32_t layer = anchor; id >= 0 && layer <= last_layer && !p->difference[0]; layer++) {
        if (!in_group(p, layer, anchor) || token >= q->written[layer])
            continue;
        for (int side = 0; side < 2; side++)
            if (!rows_same(&p->view[side][layer], id, truth(p, q, layer, token)))
                differs(p, "swap_in: %s, layer %d, token %d, row %d: not the bytes that were written", p->name[side],
                        layer + p->config.first_layer, token, id);
        p->totals->rows_compared++;
    }
}

/* Both sides: an anchor's and lone layers need no waiting, whatever the flags. */
static void wait_rows(verify_pair *p, int32_t layer) {
    int32_t number = p->config.first_layer + layer;
    both(p, "wait_rows", hsp_wait_rows(p->cache[0], number, NULL), hsp_wait_rows(p->cache[1], number, NULL));
    verify_see_rows(p, layer);
}

/* Rows of the layers of the group up to last_layer. */
static void check_ids(verify_pair *p, int32_t anchor, const int32_t *selection, int64_t n, const int32_t *ids,
                      const int32_t *other, int32_t last_layer) {
    for (int64_t e = 0; e <= p->batch * n; e++) /* one more: nothing may be written past the end */
        if (ids[e] != other[e])
            differs(p, "swap_in: layer %d, entry %lld, token %d: %s gives row %d, %s row %d",
                    anchor + p->config.first_layer, (long long)e, e < p->batch * n ? selection[e] : -1, p->name[0],
                    ids[e], p->name[1], other[e]);
    if (ids[p->batch * n] != 0x55555555)
        differs(p, "swap_in: both wrote past the row ids");
    for (int32_t layer = anchor; layer <= last_layer; layer++)
        if (in_group(p, layer, anchor))
            wait_rows(p, layer);
    for (int32_t b = 0; b < p->batch; b++) {
        const verify_request *q = p->batch_request[b] < 0 ? NULL : &p->request[p->batch_request[b]];
        int32_t ring_first = 0;
        if (q)
            verify_lost(
                p, 0,
                hsp_resident(p->cache[0], q->handle, anchor + p->config.first_layer, NULL, NULL, &ring_first, NULL));
        for (int64_t e = b * n; e < (b + 1) * n && !p->difference[0]; e++)
            if (q)
                check_id(p, q, anchor, ring_first, selection[e], ids[e], last_layer);
            else if (ids[e] != -1)
                differs(p, "swap_in: padding got row %d on both", ids[e]);
        p->entries += q ? n : 0;
    }
}

void verify_swap_in(verify_pair *p, int32_t layer, const int32_t *selection, int32_t n_queries, int32_t k, int wait) {
    int64_t n = (int64_t)n_queries * k;
    int32_t number = p->config.first_layer + layer;
    size_t list = p->batch < 0 ? 0 : (size_t)(p->batch * n) * sizeof *selection, room = list + sizeof *selection;
    void *pieces[3];
    if (verify_borrow(p, (size_t[]){list, room, room}, 3, pieces) != TOOL_OK)
        return;
    int32_t *ids = memset(pieces[1], 0x55, room), *other = memset(pieces[2], 0x55, room);
    memcpy(pieces[0], selection, list);
    int status = both(p, "swap_in", hsp_swap_in(p->cache[0], number, pieces[0], n_queries, k, ids, NULL),
                      hsp_swap_in(p->cache[1], number, pieces[0], n_queries, k, other, NULL));
    if (verify_wait(p) == TOOL_OK && status == HSP_OK)
        check_ids(p, layer, selection, n, ids, other, wait ? p->config.n_layers - 1 : layer);
    else if (!p->failed && (ids[0] != 0x55555555 || other[0] != 0x55555555))
        differs(p, "swap_in: row ids were written though it failed");
    verify_give_back(p, pieces, 3);
}
