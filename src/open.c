/* SPDX-License-Identifier: Apache-2.0 */
/* From a config to a cache and back; the footprint is a dry run of the same code. */
#include "cache.h"
#include "config.h"

/* The backend that will serve this config; NULL after writing why there is none. */
static const hsp__backend *find_backend(const hsp_config *config, hsp__error *error) {
    if (hsp__config_check(config, error) != HSP_OK)
        return NULL;
    const hsp__backend *backend = hsp__backend_named(config->backend);
    if (!backend) {
        hsp__fail(error, HSP_EBACKEND, "there is no backend '%s'", config->backend);
        return NULL;
    }
    uint32_t can = backend->capabilities();
    if (!(can & HSP_CAN_RUN)) {
        char why[112];
        backend->describe(why, sizeof why);
        hsp__fail(error, HSP_EBACKEND, "backend '%s' cannot run here: %s", config->backend, why);
        return NULL;
    }
    if (config->host_file[0] && !(can & HSP_CAN_HOST_FILE)) {
        hsp__fail(error, HSP_EUNSUPPORTED, "backend '%s' cannot keep rows in a file", config->backend);
        return NULL;
    }
    return backend;
}

/* Lay out a cache in the arena and set up all of its parts. While the arena counts, the cache is one on the stack. */
static void lay_out(hsp_cache *c, const hsp_config *config, const hsp__backend *backend, hsp__arena *arena,
                    uint64_t *device_state_out) {
    c->config = *config;
    hsp__layout_init(&c->layout, config, arena);
    hsp__host_pool_init(&c->pool, c->layout.n_pages, arena);
    hsp__requests_init(&c->requests, &c->layout, arena);
    c->step_slot = hsp__carve(arena, (size_t)config->max_batch, sizeof(int32_t));
    c->step_first = hsp__carve(arena, (size_t)config->max_batch, sizeof(int32_t));
    c->step_n_new = hsp__carve(arena, (size_t)config->max_batch, sizeof(int32_t));
    c->group_counters = hsp__carve(arena, (size_t)c->layout.n_groups, sizeof(hsp_counters));
    c->batch = -1;
    c->backend = backend;
    hsp__open_args args = {&c->layout, &c->config};
    c->self = backend->carve(&args, arena, device_state_out);
    c->config.layer_group = NULL;
}

static size_t count(const hsp_config *config, const hsp__backend *backend, hsp_footprint_bytes *bytes) {
    hsp__arena arena = {0};
    hsp_cache counted = {0};
    hsp__carve(&arena, 1, sizeof counted);
    lay_out(&counted, config, backend, &arena, &bytes->device_state);
    bytes->device_rows = counted.layout.device_bytes;
    bytes->host_rows = counted.layout.host_bytes;
    bytes->host_state = arena.used;
    return arena.used;
}

int hsp_footprint(const hsp_config *config, hsp_footprint_bytes *bytes_out) {
    hsp__error *error = hsp__thread_error();
    const hsp__backend *backend = find_backend(config, error);
    if (!backend)
        return error->status;
    if (!bytes_out || bytes_out->struct_size < sizeof *bytes_out)
        return hsp__fail(error, HSP_EINVAL, "footprint: set bytes_out->struct_size to its size");
    count(config, backend, bytes_out);
    return HSP_OK;
}

/* Refuse before anything is taken. A backend with memory of its own looks after that itself. */
static int check_room(const hsp_config *config, const hsp__backend *backend, const hsp_footprint_bytes *bytes,
                      hsp__error *error) {
    uint64_t need = bytes->host_state + (config->host_file[0] ? 0 : bytes->host_rows);
    uint64_t available = hsp__memory_available();
    if (!(backend->capabilities() & HSP_OWN_MEMORY))
        need += bytes->device_rows + bytes->device_state;
    if (need > available)
        return hsp__fail(error, HSP_ENOMEM, "the cache needs %llu bytes of memory; the machine has %llu available",
                         (unsigned long long)need, (unsigned long long)available);
    return HSP_OK;
}

int hsp_open(const hsp_config *config, hsp_cache **cache_out) {
    hsp__error *error = hsp__thread_error();
    const hsp__backend *backend = find_backend(config, error);
    hsp_footprint_bytes bytes;
    if (!backend)
        return error->status;
    if (!cache_out)
        return hsp__fail(error, HSP_EINVAL, "open: cache_out must not be NULL");
    size_t size = count(config, backend, &bytes);
    int status = check_room(config, backend, &bytes, error);
    if (status != HSP_OK)
        return status;
    hsp__arena arena = {hsp__alloc(size), 0};
    if (!arena.base)
        return hsp__fail(error, HSP_ENOMEM, "open: cannot have %zu bytes of memory for the handle", size);
    hsp_cache *cache = hsp__carve(&arena, 1, sizeof *cache);
    lay_out(cache, config, backend, &arena, &bytes.device_state);
    cache->bytes = size;
    status = backend->open(cache->self, error);
    if (status != HSP_OK) {
        hsp__free(cache, size);
        return status;
    }
    *cache_out = cache;
    return HSP_OK;
}

void hsp_close(hsp_cache *cache) {
    if (!cache)
        return;
    cache->backend->close(cache->self);
    hsp__free(cache, cache->bytes);
}
