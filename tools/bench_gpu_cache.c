/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the swap-in bench on a GPU: the yardstick's pool, and two caches of the shape at hand. */
#include "bench_gpu.h"
#include "gpu.h"
#include "gpu/calibrate.h"
#include "host_pages.h"
#include "tools.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_TOKENS = 32768 }; /* tokens made and handed over at once */

int bench_gpu_fails(const bench_gpu_state *s) {
    return tool_fail(TOOL_FAILED, "%s", s->memory->error());
}

/* ---------------------------------------------------------------------------------------------------------- pool -- */

/* Where the library's pool lies: the yardstick must not read from further away. */
static int node_of_gpu(void) {
    const gpu_calibrate *gpu = gpu_table(GPU_CALIBRATE);
    gpu_machine machine;
    return gpu && gpu->describe(&machine) == 0 ? machine.numa_node : -1;
}

int bench_gpu_open_pool(bench_gpu_state *s, size_t bytes) {
    size_t have = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    if (2 * bytes > have) /* the cache needs as much again */
        return tool_fail(TOOL_FAILED, "these cases need twice %zu bytes of host memory; the machine has %zu", bytes,
                         have);
    char *pool = host_pages_take(bytes, node_of_gpu());
    if (!pool)
        return tool_fail(TOOL_FAILED, "cannot have %zu bytes of memory for the pool of the plain gather: %s", bytes,
                         strerror(errno));
    if (s->gpu->map_host(pool, bytes, &s->pool_device) != 0) {
        host_pages_give_back(pool, bytes);
        return bench_gpu_fails(s);
    }
    s->pool = pool;
    s->pool_bytes = bytes;
    return TOOL_OK;
}

void bench_gpu_close_pool(bench_gpu_state *s) {
    if (!s->pool)
        return;
    s->gpu->unmap_host(s->pool);
    host_pages_give_back(s->pool, s->pool_bytes);
    s->pool = NULL;
}

static int fill_pool(bench_gpu_state *s) {
    const bench_shape *shape = &s->shape;
    uint32_t stride = (uint32_t)bench_gpu_stride(shape);
    for (int32_t i = 0; i < shape->layers * shape->batch; i++) {
        gpu_rows rows = {.base = (char *)s->pool_device + (size_t)i * (size_t)shape->context * stride,
                         .row_bytes = (uint32_t)shape->row_bytes,
                         .stride = stride,
                         .layer = (uint32_t)(i / shape->batch)};
        if (s->gpu->make_rows(s->lane, &rows, (uint32_t)(i % shape->batch), 0, (uint32_t)shape->context) != 0)
            return bench_gpu_fails(s);
    }
    return TOOL_OK;
}

/* --------------------------------------------------------------------------------------------------------- cache -- */

/* All rows of one request and layer, piece after piece through `piece`, device memory. */
static int fill_layer(bench_gpu_state *s, bench_cache *b, int32_t entry, int32_t layer, void *piece) {
    uint32_t row_bytes = (uint32_t)rows_bytes(&b->config);
    gpu_rows rows = {piece, row_bytes, row_bytes, (uint32_t)layer};
    hsp_row_source source = rows_source(&b->config, piece);
    int32_t context = s->shape.context;
    for (int32_t first = 0, n; first < context; first += n) {
        n = context - first < PIECE_TOKENS ? context - first : PIECE_TOKENS;
        if (s->gpu->make_rows(s->lane, &rows, (uint32_t)entry, (uint32_t)first, (uint32_t)n) != 0)
            return bench_gpu_fails(s);
        int status = hsp_fill(b->cache, b->request[entry], layer, first, n, &source, s->gpu->stream(s->lane));
        if (status != HSP_OK)
            return bench_library_fails(b->cache, status);
    }
    return TOOL_OK;
}

static int fill_cache(bench_gpu_state *s, bench_cache *b, void *piece) {
    for (int32_t entry = 0; entry < b->config.max_batch; entry++) {
        int status = hsp_admit(b->cache, b->config.max_context, &b->request[entry]);
        if (status != HSP_OK)
            return bench_library_fails(b->cache, status);
        for (int32_t layer = 0; layer < b->config.n_layers; layer++) {
            int code = fill_layer(s, b, entry, layer, piece);
            if (code != TOOL_OK)
                return code;
        }
    }
    return s->memory->wait() == 0 ? TOOL_OK : bench_gpu_fails(s);
}

static int begin_step(bench_gpu_state *s, bench_cache *b) {
    int32_t batch = b->config.max_batch, *none = batch > 0 ? calloc((size_t)batch, sizeof *none) : NULL;
    if (!none)
        return tool_fail(TOOL_FAILED, "out of memory");
    int status = hsp_step_begin(b->cache, b->request, none, batch, s->gpu->stream(s->lane));
    free(none);
    return status == HSP_OK ? TOOL_OK : bench_library_fails(b->cache, status);
}

/* The knobs of a cache of the shape; layer_group: [layers * group], read by hsp_open. */
static int make_config(const bench_gpu_state *s, int32_t row_bytes, int32_t *layer_group, hsp_config *config) {
    const bench_shape *shape = &s->shape;
    bench_options o = *s->o;
    hsp_config defaults;
    o.batch = s->shape.batch, o.context = s->shape.context, o.slots = s->shape.slots, o.row_bytes = row_bytes;
    o.huge_pages = 1;
    int code = bench_config(&o, config);
    hsp_config_init(&defaults, sizeof defaults);
    config->ring_rows = defaults.ring_rows; /* so that slots lie as in use */
    config->n_layers = shape->layers * shape->group;
    for (int32_t layer = 0; layer < config->n_layers; layer++)
        layer_group[layer] = layer / shape->group;
    config->layer_group = layer_group;
    config->max_context += shape->growth;
    config->host_tokens += (int64_t)(shape->growth ? HSP_PAGE_TOKENS : 0) * shape->batch;
    return code;
}

static int open_empty(bench_gpu_state *s, bench_cache *b, int32_t row_bytes, uint32_t flags) {
    int32_t *layer_group = malloc((size_t)(s->shape.layers * s->shape.group) * sizeof *layer_group);
    *b = (bench_cache){.request = calloc((size_t)s->shape.batch, sizeof *b->request)};
    int code = layer_group && b->request ? make_config(s, row_bytes, layer_group, &b->config)
                                         : tool_fail(TOOL_FAILED, "out of memory");
    if (code == TOOL_OK) {
        b->config.flags |= flags;
        int status = hsp_open(&b->config, &b->cache);
        code = status == HSP_OK ? TOOL_OK : bench_library_fails(NULL, status);
    }
    b->config.layer_group = NULL; /* read by now */
    free(layer_group);
    return code;
}

int bench_gpu_open_cache(bench_gpu_state *s, bench_cache *b, int32_t row_bytes, uint32_t flags) {
    void *piece = NULL;
    int code = open_empty(s, b, row_bytes, flags);
    if (code != TOOL_OK)
        return code;
    if (s->memory->alloc((size_t)PIECE_TOKENS * (size_t)row_bytes, &piece) != 0)
        return bench_gpu_fails(s);
    code = fill_cache(s, b, piece);
    s->memory->release(piece);
    return code == TOOL_OK ? begin_step(s, b) : code;
}

/* --------------------------------------------------------------------------------------------------------- shape -- */

/* Device rows for the yardstick, as far apart as the cache's are. */
static int open_target(bench_gpu_state *s) {
    hsp_cache *cache = s->real.cache;
    int32_t layers = s->shape.layers;
    hsp_rows_view last = {.struct_size = sizeof last};
    void *target;
    s->view = last;
    int status = hsp_rows(cache, 0, &s->view);
    if (status == HSP_OK)
        status = hsp_rows(cache, layers - 1, &last);
    if (status != HSP_OK)
        return bench_library_fails(cache, status);
    size_t span = (size_t)((char *)last.plane[0].base - (char *)s->view.plane[0].base);
    s->layer_bytes = layers > 1 ? span / (size_t)(layers - 1) : 0;
    if (s->memory->alloc(span + (size_t)last.n_rows * last.plane[0].row_stride, &target) != 0)
        return bench_gpu_fails(s);
    s->target = target;
    return TOOL_OK;
}

/* Resolving does not depend on the bytes of a row. */
int32_t bench_gpu_oracle_row(const bench_shape *shape) {
    return shape->row_bytes % 16 == 0 ? 16 : shape->row_bytes % 8 == 0 ? 8 : 4;
}

int bench_gpu_open_shape(bench_gpu_state *s, const bench_shape *shape) {
    s->shape = *shape;
    int code = bench_gpu_open_cache(s, &s->real, shape->row_bytes, 0);
    if (code == TOOL_OK)
        code = bench_gpu_open_cache(s, &s->oracle, bench_gpu_oracle_row(shape), HSP_NO_IO);
    if (code == TOOL_OK)
        code = open_target(s);
    return code == TOOL_OK ? fill_pool(s) : code;
}

void bench_gpu_close_shape(bench_gpu_state *s) {
    bench_close(&s->real);
    bench_close(&s->oracle);
    s->memory->release(s->target);
    s->target = NULL;
}
