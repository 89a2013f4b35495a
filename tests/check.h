/* SPDX-License-Identifier: Apache-2.0 */
/* What every test of the cache starts with: cmocka, the toy, a generator, and a list of tests run on every backend. */
#ifndef HSP_CHECK_H
#define HSP_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "toy.h"

/* A test that runs on one backend, whose name is in *state. */
#define ON(backend, test)                                                                                              \
    { #test " on " backend, test, NULL, NULL, (void *)(uintptr_t)backend }
#define ON_PLAIN_BACKENDS(test) ON("ref", test), ON("cpu", test)
#define ON_EVERY_BACKEND(test)  ON("ref", test), ON("cpu", test), ON("cuda", test)

/* A test on a backend that cannot run here says so and counts as skipped. */
static inline void need_backend(const char *backend) {
    hsp_backend_desc desc = {.struct_size = sizeof desc};
    for (int32_t i = 0; hsp_backend_info(i, &desc) == HSP_OK; i++)
        if (strcmp(desc.name, backend) == 0 && (desc.capabilities & HSP_CAN_RUN) && toy_device_of(backend))
            return;
    print_message("skipped: no device for %s: %s\n", backend, desc.detail);
    skip();
}

/* A small cache with shapes that are no powers of two. */
static inline hsp_config small_config(const char *backend) {
    hsp_config c;
    need_backend(backend);
    hsp_config_init(&c, sizeof c);
    assert_int_equal(hsp_config_set(&c, "backend", backend), HSP_OK);
    c.n_layers = 3;
    c.n_planes = 2;
    c.plane_bytes[0] = 20;
    c.plane_bytes[1] = 132;
    c.max_requests = 3;
    c.max_batch = 4;
    c.max_context = 400;
    c.host_tokens = 1200;
    c.n_slots = 33;
    c.ring_rows = 5;
    c.max_k = 31;
    return c;
}

static inline uint32_t draw(uint64_t *seed, uint32_t below) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % below);
}

#endif
