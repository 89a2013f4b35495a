/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the measurements read: a pool like that of the cuda backend, and lists of places in it. */
#include "calibrate.h"
#include "host_pages.h"
#include "tools.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)

/* ----------------------------------------------------------------------------------------------------- the pool -- */

static double free_gib(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    char line[160];
    unsigned long long kib = 0;
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kib) != 1)
            kib = 0;
    if (file)
        fclose(file);
    return (double)kib / (1 << 20);
}

/* A pool with less than a quarter of the free memory to spare would make the machine swap. */
static int choose_size(calibrate *c, int64_t gib, int64_t most) {
    double there = free_gib();
    for (int64_t want = most; gib == 0 && want > 0; want /= 2)
        if ((double)want * 1.25 <= there)
            gib = want;
    c->pool_bytes = (uint64_t)gib * GIB;
    if (gib > 0)
        return TOOL_OK;
    return tool_fail(TOOL_FAILED,
                     "calibrate: it needs 1.25 GiB of free memory; there are %.2f (--span-gib takes what it is told)",
                     there);
}

int calibrate_open_pool(calibrate *c, int64_t gib, int64_t most) {
    gpu_machine machine;
    int code = choose_size(c, gib, most);
    if (code == TOOL_OK)
        code = calibrate_check(c, c->gpu->describe(&machine), "the GPU");
    if (code != TOOL_OK)
        return code;
    char *base = host_pages_take(c->pool_bytes, machine.numa_node);
    if (!base)
        return tool_fail(TOOL_FAILED, "calibrate: cannot have %llu GiB of memory: %s",
                         (unsigned long long)(c->pool_bytes / GIB), strerror(errno));
    code = calibrate_check(c, c->gpu->pin(base, c->pool_bytes, &c->pool), "host memory for the GPU");
    if (code != TOOL_OK)
        host_pages_give_back(base, c->pool_bytes);
    else
        c->base = base;
    return code;
}

void calibrate_close_pool(calibrate *c) {
    if (!c->base)
        return;
    c->gpu->unpin(c->base);
    host_pages_give_back(c->base, c->pool_bytes);
    c->base = NULL;
}

/* ------------------------------------------------------------------------------------------------------- places -- */

static uint32_t draw(uint64_t *seed, uint32_t below) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 32) * below >> 32);
}

uint32_t *calibrate_draw(uint64_t *seed, int lists, int n, uint32_t below) {
    size_t words = below / 32 + 1;
    uint32_t *list = malloc((size_t)lists * (size_t)n * sizeof *list), *taken = malloc(words * sizeof *taken);
    for (int l = 0; l < lists && list && taken; l++) {
        memset(taken, 0, words * sizeof *taken);
        for (int i = 0; i < n; i++) {
            uint32_t number = draw(seed, below);
            while (taken[number / 32] >> number % 32 & 1)
                number = draw(seed, below);
            taken[number / 32] |= 1u << number % 32;
            list[(size_t)l * (size_t)n + (size_t)i] = number;
        }
    }
    if (!taken) {
        free(list);
        list = NULL;
    }
    free(taken);
    return list;
}

uint32_t *calibrate_places(uint64_t *seed, uint64_t first, int n) {
    enum { PLACES = 65536 / 16 };
    uint32_t *place = malloc((size_t)n * sizeof *place);
    for (int i = 0; i < n && place; i++) { /* an insertion at a random place of what is there: a shuffle */
        uint32_t j = draw(seed, (uint32_t)i + 1);
        if (j < (uint32_t)i)
            place[i] = place[j];
        place[j] = (uint32_t)(first / 16) + (uint32_t)i * PLACES + draw(seed, PLACES / 4) * 4;
    }
    return place;
}
