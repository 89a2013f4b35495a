/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct cached {
    kv base;
    const model *m;
} cached;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int checked(cached *c, int status) {
    if (status != HSP_OK)
        c->base.error = hsp_last_error(c->base.cache);
    return status == HSP_OK ? 0 : -1;
}

static hsp_row_source source_of(const cached *c, const void *rows) {
    hsp_row_source source = {{NULL}, {0}};
    const char *plane = rows;
    for (int32_t p = 0; p < c->m->n_planes; plane += c->m->plane_bytes[p++]) {
        source.plane[p] = plane;
        source.stride[p] = (size_t)c->base.row_bytes;
    }
    return source;
}

static int fill(kv *self, int32_t store, int32_t first, int32_t n, const void *rows) {
    cached *c = (cached *)self;
    hsp_row_source source = source_of(c, rows);
    return checked(c, hsp_fill(c->base.cache, c->base.request, store, first, n, &source, c->base.stream));
}

static int begin(kv *self, int32_t token) {
    cached *c = (cached *)self;
    (void)token;
    return checked(c, hsp_step_begin(c->base.cache, &c->base.request, NULL, 1, c->base.stream));
}

static int append(kv *self, int32_t store, const void *row) {
    cached *c = (cached *)self;
    hsp_row_source source = source_of(c, row);
    return checked(c, hsp_append(c->base.cache, store, &source, 1, c->base.stream));
}

static int select_rows(kv *self, int32_t store, const int32_t *selection, int32_t n, int32_t *ids_out) {
    cached *c = (cached *)self;
    double start = now();
    int status = hsp_swap_in(c->base.cache, store, selection, 1, n, ids_out, c->base.stream);
    c->base.select_seconds[store] += now() - start;
    return checked(c, status);
}

static void views(kv *self, int32_t store, hsp_plane_view *planes_out) {
    cached *c = (cached *)self;
    hsp_rows_view view = {.struct_size = sizeof view};
    hsp_rows(c->base.cache, store, &view);
    memcpy(planes_out, view.plane, (size_t)view.n_planes * sizeof *planes_out);
}

static void close_cache(kv *self) {
    cached *c = (cached *)self;
    if (!c)
        return;
    hsp_close(c->base.cache);
    free(c->base.select_seconds);
    free(c);
}

static void set_shape(const model *m, hsp_config *config, int32_t max_tokens) {
    config->n_layers = m->n_layers * m->stores;
    config->n_planes = m->n_planes;
    memcpy(config->plane_bytes, m->plane_bytes, sizeof m->plane_bytes);
    config->max_requests = config->max_batch = config->max_queries = 1;
    config->max_context = max_tokens;
    config->host_tokens = max_tokens;
    if (config->max_k < m->window) /* 0 where there is none */
        config->max_k = m->window;
    if (config->ring_rows < m->window)
        config->ring_rows = m->window;
}

kv *kv_open_cache(const model *m, hsp_config *config, int32_t max_tokens) {
    cached *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    set_shape(m, config, max_tokens);
    c->m = m;
    c->base = (kv){.row_bytes = m->plane_bytes[0] + m->plane_bytes[1],
                   .most_rows = config->max_k,
                   .error = "",
                   .select_seconds = calloc((size_t)config->n_layers, sizeof(double)),
                   .fill = fill,
                   .begin = begin,
                   .append = append,
                   .select = select_rows,
                   .views = views,
                   .close = close_cache,
                   .copy = kv_copy_plain};
    if (c->base.select_seconds && hsp_open(config, &c->base.cache) == HSP_OK &&
        hsp_admit(c->base.cache, max_tokens, &c->base.request) == HSP_OK)
        return &c->base;
    close_cache(&c->base);
    return NULL;
}

int kv_copy_plain(kv *self, void *to, const void *from, size_t bytes) {
    (void)self;
    memcpy(to, from, bytes);
    return 0;
}
