/* SPDX-License-Identifier: Apache-2.0 */
/* What a cache takes of the GPU and of the machine is its footprint, nothing is taken later, and all of it comes back.
 */
#include "check.h"
#include "queue.h"

#include <stdio.h>

#define MIB ((uint64_t)1 << 20)

static hsp_config config_of(const char *backend) {
    hsp_config c = small_config(backend);
    c.n_layers = 4;
    c.n_planes = 1;
    c.plane_bytes[0] = 656;
    c.max_requests = c.max_batch = 8;
    c.max_context = 8192;
    c.host_tokens = 65536;
    c.n_slots = 4096;
    c.max_k = 2048;
    return c;
}

/* Every call once. */
static void live(toy *t) {
    int rs[8] = {0, 1}, one[8] = {1, 1};
    int32_t selection[2 * 64];
    for (int r = 0; r < 2; r++) {
        assert_int_equal(toy_admit(t, r, 4000), HSP_OK);
        assert_int_equal(toy_fill(t, r, 3000), HSP_OK);
    }
    for (int s = 0; s < 3; s++) {
        assert_int_equal(toy_step(t, rs, one, 2), HSP_OK);
        for (int e = 0; e < 128; e++)
            selection[e] = (e * 37 + s * 11) % 3000;
        for (int g = 0; g < t->n_groups; g++)
            toy_swap_in(t, g, selection, 1, 64);
    }
    toy_warm(t, 0, 0, selection, 64);
    toy_truncate(t, 0, 2000);
    toy_check(t);
    toy_retire(t, 0);
    toy_retire(t, 1);
}

static uint64_t resident(void) {
    char line[256];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtoull(line + 6, NULL, 10);
    if (f)
        fclose(f);
    return kib << 10;
}

/* The driver gives memory in pieces of 2 MiB, and may take one for the stream and the event of a cache. */
static void bytes_are_the_footprint(void **state) {
    hsp_config c = config_of(*state);
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    toy t;
    assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
    toy_open(&t, &c); /* what the driver takes once: the context, the kernels */
    live(&t);
    toy_close(&t);
    uint64_t before = queue_cuda->device_free(), small = resident();
    toy_open(&t, &c);
    uint64_t opened = queue_cuda->device_free(), large = resident();
    live(&t);
    uint64_t later = queue_cuda->device_free();
    toy_close(&t);
    uint64_t after = queue_cuda->device_free(), small_again = resident(), need = bytes.device_rows + bytes.device_state;
    print_message("device: %llu of footprint, %llu taken, %lld later, %lld kept\n", (unsigned long long)need,
                  (unsigned long long)(before - opened), (long long)opened - (long long)later,
                  (long long)before - (long long)after);
    print_message("host: %llu + %llu of footprint, %lld taken, %lld kept\n", (unsigned long long)bytes.host_rows,
                  (unsigned long long)bytes.host_state, (long long)large - (long long)small,
                  (long long)small_again - (long long)small);
    assert_true(before - opened >= need && before - opened <= need + 4 * MIB);
    assert_true(later + 2 * MIB >= opened);
    assert_true(after + 2 * MIB >= before);
    assert_true(large - small >= bytes.host_rows && large - small <= bytes.host_rows + bytes.host_state + 16 * MIB);
    assert_true(small_again <= small + 16 * MIB);
}

static void opening_often_keeps_nothing(void **state) {
    hsp_config c = config_of(*state);
    uint64_t before = 0;
    for (int i = 0; i < 20; i++) {
        hsp_cache *cache;
        assert_int_equal(hsp_open(&c, &cache), HSP_OK);
        hsp_close(cache);
        if (i == 1)
            before = queue_cuda->device_free();
    }
    assert_true(queue_cuda->device_free() + 2 * MIB >= before);
}

/* More than the GPU has: refused with both numbers, and nothing was taken. */
static void more_than_the_gpu_has(void **state) {
    hsp_config c = config_of(*state);
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    hsp_cache *cache = NULL;
    char need[32];
    hsp_config small = c;
    assert_int_equal(hsp_open(&small, &cache), HSP_OK); /* the context is there */
    hsp_close(cache);
    cache = NULL;
    c.n_slots = 65535;
    c.n_layers = 64;
    c.max_requests = 256; /* 64 * 256 * 65540 rows of 656 bytes: 704 GB */
    uint64_t before = queue_cuda->device_free();
    assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
    assert_int_equal(hsp_open(&c, &cache), HSP_ENOMEM);
    assert_null(cache);
    print_message("%s\n", hsp_last_error(NULL));
    snprintf(need, sizeof need, "%llu bytes", (unsigned long long)(bytes.device_rows + bytes.device_state));
    assert_non_null(strstr(hsp_last_error(NULL), need));
    assert_non_null(strstr(hsp_last_error(NULL), "free"));
    assert_true(queue_cuda->device_free() + 2 * MIB >= before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cuda", bytes_are_the_footprint),
        ON("cuda", opening_often_keeps_nothing),
        ON("cuda", more_than_the_gpu_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
