/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU that failed takes its process with it: what follows runs in processes of its own, this program with an
 * argument. usage: test_device_fault [fault-selection | fault-ids | fault-rows | fault-followers | pool-small-pages |
 * pool-huge-pages] */
#include "check.h"

#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* In the children a difference ends the process: cmocka is the parent's. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("# line %d: %s\n", __LINE__, #condition);                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------------------------------------------- faults -- */

static hsp_config fault_config(void) {
    hsp_config c;
    hsp_config_init(&c, sizeof c);
    CHECK(hsp_config_set(&c, "backend", "cuda") == HSP_OK);
    c.n_layers = 2;
    c.n_planes = 1;
    c.plane_bytes[0] = 64;
    c.max_requests = 2;
    c.max_context = 256;
    c.host_tokens = 512;
    c.n_slots = 32;
    c.ring_rows = 4;
    c.max_k = 16;
    return c;
}

static void expect_lost(const hsp_cache *cache, int status, const char *call) {
    printf("# %s: %s: %s\n", call, hsp_status_name(status), hsp_last_error(cache));
    CHECK(status == HSP_EDEVICE);
    CHECK(strlen(hsp_last_error(cache)) > 10 && strstr(hsp_last_error(cache), "GPU failed earlier"));
}

/* Every call that needs the device says that it is lost. */
static void expect_every_call_lost(hsp_cache *cache, int32_t request, void *memory) {
    hsp_row_source rows = {{memory}, {0}};
    char row[64];
    hsp_row_sink sink = {{row}, {0}};
    hsp_stats_view stats = {.struct_size = sizeof stats};
    hsp_counters counters;
    int32_t other = -7, tags[32];
    expect_lost(cache, hsp_step_begin(cache, &request, NULL, 1, NULL), "step_begin");
    expect_lost(cache, hsp_append(cache, 0, &rows, 1, NULL), "append");
    expect_lost(cache, hsp_swap_in(cache, 0, memory, 1, 1, (int32_t *)memory + 16, NULL), "swap_in");
    expect_lost(cache, hsp_warm(cache, request, 0, memory, 1, NULL), "warm");
    expect_lost(cache, hsp_fill(cache, request, 0, 101, 1, &rows, NULL), "fill");
    expect_lost(cache, hsp_truncate(cache, request, 50, NULL), "truncate");
    expect_lost(cache, hsp_read(cache, request, 0, 0, 1, &sink), "read");
    expect_lost(cache, hsp_stats(cache, &stats), "stats");
    expect_lost(cache, hsp_layer_counters(cache, 0, &counters), "layer_counters");
    expect_lost(cache, hsp_request_counters(cache, request, &counters), "request_counters");
    expect_lost(cache, hsp_stats_reset(cache), "stats_reset");
    expect_lost(cache, hsp_resident(cache, request, 0, tags, NULL, NULL, NULL), "resident");
    expect_lost(cache, hsp_admit(cache, 64, &other), "admit");
    CHECK(other == -7);
    expect_lost(cache, hsp_retire(cache, request), "retire");
}

/* A pointer that is none, given where the device reads or writes. */
static int fault(const char *what) {
    hsp_config c = fault_config();
    hsp_cache *cache = NULL, *second = NULL;
    int32_t request, length = 0, *memory = toy_cuda_device->alloc(65536), *bad = (int32_t *)(uintptr_t)16;
    hsp_row_source rows = {{memory}, {0}}, bad_rows = {{bad}, {0}};
    hsp_stats_view stats = {.struct_size = sizeof stats};
    static const int32_t together[2] = {0, 0};
    int followers = strcmp(what, "fault-followers") == 0;
    if (followers) {
        c.layer_group = together;
        c.flags = HSP_PREFETCH;
    }
    CHECK(hsp_open(&c, &cache) == HSP_OK);
    CHECK(hsp_admit(cache, 256, &request) == HSP_OK);
    for (int layer = 0; layer < 2; layer++)
        CHECK(hsp_fill(cache, request, layer, 0, 100, &rows, NULL) == HSP_OK);
    CHECK(hsp_step_begin(cache, &request, NULL, 1, NULL) == HSP_OK);
    CHECK(hsp_append(cache, 0, strcmp(what, "fault-rows") == 0 ? &bad_rows : &rows, 1, NULL) == HSP_OK);
    int status = hsp_swap_in(cache, 0, followers || strcmp(what, "fault-selection") == 0 ? bad : memory, 1, 16,
                             strcmp(what, "fault-ids") == 0 ? bad : memory + 1024, NULL);
    if (status == HSP_OK) /* a launch may learn of the append's fault; a call that waits must */
        status = hsp_stats(cache, &stats);
    printf("# the first: %s: %s\n", hsp_status_name(status), hsp_last_error(cache));
    CHECK(status == HSP_EDEVICE && strlen(hsp_last_error(cache)) > 10);
    CHECK(!strstr(hsp_last_error(cache), "earlier"));
    for (int again = 0; again < 2; again++)
        expect_every_call_lost(cache, request, memory);
    if (followers)
        expect_lost(cache, hsp_wait_rows(cache, 1, NULL), "wait_rows");
    CHECK(hsp_length(cache, request, &length) == HSP_OK && length >= 50); /* the host's own book is still there */
    double start = now();
    hsp_close(cache);
    printf("# closed in %.3f s\n", now() - start);
    CHECK(now() - start < 5);
    CHECK(hsp_open(&c, &second) != HSP_OK && second == NULL); /* this process has lost its device */
    printf("# open afterwards: %s\n", hsp_last_error(NULL));
    return 0;
}

/* -------------------------------------------------------------------------------------------------- a large pool -- */

static uint64_t kib_of(const char *file, const char *key) {
    char line[256];
    uint64_t kib = 0;
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoull(line + strlen(key), NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

static uint64_t available(void) {
    return kib_of("/proc/meminfo", "MemAvailable:") << 10;
}

static uint64_t resident(void) {
    return kib_of("/proc/self/status", "VmRSS:") << 10;
}

#define GIB ((uint64_t)1 << 30)

/* Within a second of close what was taken is there again; other programs of the machine may have a part of it. */
static int pool(int huge_pages) {
    hsp_config c = fault_config();
    hsp_cache *cache = NULL;
    CHECK(hsp_open(&c, &cache) == HSP_OK); /* what the driver takes once and keeps */
    hsp_close(cache);
    c.n_layers = 1;
    c.plane_bytes[0] = 4096;
    c.host_tokens = 2 << 20;
    c.huge_pages = huge_pages;
    for (int round = 0; round < 2; round++) {
        uint64_t before = available(), small = resident();
        double start = now();
        CHECK(hsp_open(&c, &cache) == HSP_OK);
        double opened = now();
        uint64_t least = available(), large = resident();
        hsp_close(cache);
        double closed = now(), back = closed;
        while (available() + 2 * GIB < before && back - closed < 1)
            back = now();
        printf("# 8 GiB: opened in %.2f s, closed in %.2f s, back after %.2f s more; available %.1f, %.1f, %.1f GiB, "
               "resident %.1f, %.1f, %.1f GiB\n",
               opened - start, closed - opened, back - closed, (double)before / GIB, (double)least / GIB,
               (double)available() / GIB, (double)small / GIB, (double)large / GIB, (double)resident() / GIB);
        CHECK(large >= small + 8 * GIB - GIB / 4);
        CHECK(resident() < small + GIB / 4);
        CHECK(available() + 2 * GIB >= before);
        CHECK(closed - opened < 5);
    }
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- children -- */

static int child(const char *what) {
    alarm(90); /* what hangs is killed */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strncmp(what, "pool", 4) == 0)
        return pool(strcmp(what, "pool-huge-pages") == 0);
    return fault(what);
}

static void run_child(const char *backend, const char *what) {
    extern char **environ;
    char self[] = "/proc/self/exe", argument[32], *arguments[] = {self, argument, NULL};
    pid_t pid;
    int status = -1;
    need_backend(backend);
    snprintf(argument, sizeof argument, "%s", what);
    fflush(stdout);
    assert_int_equal(posix_spawn(&pid, self, NULL, NULL, arguments, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void bad_selection(void **state) {
    run_child(*state, "fault-selection");
}

static void bad_ids(void **state) {
    run_child(*state, "fault-ids");
}

static void bad_selection_with_followers(void **state) {
    run_child(*state, "fault-followers");
}

static void bad_rows(void **state) {
    run_child(*state, "fault-rows");
}

static void large_pool_comes_back(void **state) {
    need_backend(*state);
    if (available() < 16 * GIB) {
        print_message("skipped: %.1f GiB of memory are available, 16 are needed\n", (double)available() / GIB);
        skip();
    }
    run_child(*state, "pool-small-pages");
    run_child(*state, "pool-huge-pages");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        ON("cuda", bad_selection), ON("cuda", bad_selection_with_followers), ON("cuda", bad_ids),
        ON("cuda", bad_rows),      ON("cuda", large_pool_comes_back),
    };
    if (argc > 1)
        return child(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
