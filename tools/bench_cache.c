/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "tools.h"

#include <stdio.h>
#include <stdlib.h>

int bench_library_fails(const hsp_cache *cache, int status) {
    return tool_fail(status > HSP_ENOMEM || status == HSP_EBACKEND ? TOOL_BAD_INPUT : TOOL_FAILED, "%s",
                     hsp_last_error(cache));
}

int bench_config(const bench_options *o, hsp_config *config) {
    hsp_config_init(config, sizeof *config);
    int status = hsp_config_set(config, "backend", o->backend);
    if (status == HSP_OK)
        status = hsp_config_set(config, "policy", o->policy);
    if (status != HSP_OK)
        return bench_library_fails(NULL, status);
    if (o->profile && hsp_config_profile(config, o->profile) != HSP_OK)
        return tool_fail(TOOL_BAD_INPUT, "%s", hsp_last_error(NULL));
    config->n_planes = 1;
    config->plane_bytes[0] = (int32_t)o->row_bytes;
    config->max_requests = config->max_batch = (int32_t)o->batch;
    config->max_context = (int32_t)o->context;
    config->host_tokens = (o->context + HSP_PAGE_TOKENS - 1) / HSP_PAGE_TOKENS * HSP_PAGE_TOKENS * o->batch;
    config->n_slots = (int32_t)o->slots;
    config->max_k = (int32_t)o->k;
    config->ring_rows = 1; /* new tokens are not what is measured */
    config->n_threads = (int32_t)o->threads;
    config->huge_pages = o->huge_pages;
    if (o->fetch_blocks)
        config->fetch_blocks = (int32_t)o->fetch_blocks;
    return TOOL_OK;
}

static int fill(bench_cache *b, int32_t entry, const char *rows) {
    const hsp_config *c = &b->config;
    int status = hsp_admit(b->cache, c->max_context, &b->request[entry]);
    hsp_row_source source = rows_source(c, rows + (size_t)entry * (size_t)c->max_context * rows_bytes(c));
    for (int32_t layer = 0; status == HSP_OK && layer < c->n_layers; layer++)
        status = hsp_fill(b->cache, b->request[entry], layer, 0, c->max_context, &source, NULL);
    return status == HSP_OK ? TOOL_OK : bench_library_fails(b->cache, status);
}

int bench_open(bench_cache *b, const hsp_config *config, const void *rows) {
    *b = (bench_cache){.config = *config};
    b->request = calloc((size_t)config->max_batch, sizeof *b->request);
    if (!b->request)
        return tool_fail(TOOL_FAILED, "out of memory");
    int status = hsp_open(config, &b->cache), code = status == HSP_OK ? TOOL_OK : bench_library_fails(NULL, status);
    for (int32_t entry = 0; code == TOOL_OK && entry < config->max_batch; entry++)
        code = fill(b, entry, rows);
    if (code == TOOL_OK) {
        int32_t *none = calloc((size_t)config->max_batch, sizeof *none);
        status = none ? hsp_step_begin(b->cache, b->request, none, config->max_batch, NULL) : HSP_ENOMEM;
        code = status == HSP_OK ? TOOL_OK : bench_library_fails(b->cache, status);
        free(none);
    }
    if (code != TOOL_OK)
        bench_close(b);
    return code;
}

void bench_close(bench_cache *b) {
    hsp_close(b->cache);
    free(b->request);
    *b = (bench_cache){.cache = NULL};
}

int bench_warm(bench_cache *b, int32_t entry, int32_t layer, const int32_t *tokens) {
    int status = hsp_warm(b->cache, b->request[entry], layer, tokens, b->config.n_slots, NULL);
    return status == HSP_OK ? TOOL_OK : bench_library_fails(b->cache, status);
}
