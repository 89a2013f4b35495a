/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include <stdlib.h>
#include <time.h>

typedef struct cached {
    kv base;
    hsp_cache *cache;
    int32_t request;
} cached;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int checked(cached *c, int status) {
    if (status != HSP_OK)
        c->base.error = hsp_last_error(c->cache);
    return status == HSP_OK ? 0 : -1;
}

static hsp_row_source source_of(const cached *c, const void *rows) {
    size_t stride = (size_t)c->base.row_bytes;
    return (hsp_row_source){{rows, (const char *)rows + stride / 2}, {stride, stride}};
}

static int fill(kv *self, int32_t layer, int32_t first, int32_t n, const void *rows) {
    cached *c = (cached *)self;
    hsp_row_source source = source_of(c, rows);
    return checked(c, hsp_fill(c->cache, c->request, layer, first, n, &source, NULL));
}

static int begin(kv *self, int32_t token) {
    cached *c = (cached *)self;
    (void)token;
    return checked(c, hsp_step_begin(c->cache, &c->request, NULL, 1, NULL));
}

static int append(kv *self, int32_t layer, const void *row) {
    cached *c = (cached *)self;
    hsp_row_source source = source_of(c, row);
    return checked(c, hsp_append(c->cache, layer, &source, 1, NULL));
}

static int select_rows(kv *self, int32_t layer, const int32_t *selection, int32_t n, int32_t *ids_out) {
    cached *c = (cached *)self;
    double start = now();
    int status = hsp_swap_in(c->cache, layer, selection, 1, n, ids_out, NULL);
    c->base.select_seconds[layer] += now() - start;
    return checked(c, status);
}

static void views(kv *self, int32_t layer, hsp_plane_view *keys_out, hsp_plane_view *values_out) {
    cached *c = (cached *)self;
    hsp_rows_view view = {.struct_size = sizeof view};
    hsp_rows(c->cache, layer, &view);
    *keys_out = view.plane[0];
    *values_out = view.plane[1];
}

static void close_cache(kv *self) {
    cached *c = (cached *)self;
    if (!c)
        return;
    hsp_close(c->cache);
    free(c->base.select_seconds);
    free(c);
}

kv *kv_open_cache(const model *m, hsp_config *config, int32_t max_tokens) {
    cached *c = calloc(1, sizeof *c);
    int32_t plane = m->n_kv_heads * m->head_dim * 2;
    if (!c)
        return NULL;
    config->n_layers = m->n_layers;
    config->n_planes = 2;
    config->plane_bytes[0] = config->plane_bytes[1] = plane;
    config->max_requests = config->max_batch = config->max_queries = 1;
    config->max_context = max_tokens;
    config->host_tokens = max_tokens;
    c->base =
        (kv){plane * 2,   config->max_k, "",         calloc((size_t)m->n_layers, sizeof(double)), fill, begin, append,
             select_rows, views,         close_cache};
    if (c->base.select_seconds && hsp_open(config, &c->cache) == HSP_OK &&
        hsp_admit(c->cache, max_tokens, &c->request) == HSP_OK)
        return &c->base;
    close_cache(&c->base);
    return NULL;
}

hsp_cache *kv_cache(const kv *self) {
    return ((const cached *)self)->cache;
}

int32_t kv_request(const kv *self) {
    return ((const cached *)self)->request;
}
