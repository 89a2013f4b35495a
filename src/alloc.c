/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

hsp__alloc_watch hsp__watch;

static int made_to_fail(void) {
    return __atomic_load_n(&hsp__watch.fail_at, __ATOMIC_RELAXED) > 0 &&
           __atomic_sub_fetch(&hsp__watch.fail_at, 1, __ATOMIC_RELAXED) == 0;
}

static void count_live(int64_t bytes) {
    __atomic_add_fetch(&hsp__watch.live_bytes, (uint64_t)bytes, __ATOMIC_RELAXED);
}

void *hsp__alloc(size_t bytes) {
    void *memory = NULL;
    if (made_to_fail() || posix_memalign(&memory, 64, bytes ? bytes : 1) != 0)
        return NULL;
    count_live((int64_t)bytes);
    return memset(memory, 0, bytes);
}

void hsp__free(void *memory, size_t bytes) {
    if (!memory)
        return;
    count_live(-(int64_t)bytes);
    free(memory);
}

static size_t whole_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static void touch(char *memory, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (size_t i = 0; i < bytes; i += 4096)
        *(volatile char *)(memory + i) = 0;
}

void *hsp__map(size_t bytes, int huge_pages) {
    size_t size = whole_pages(bytes), span = size + HUGE_PAGE;
    if (made_to_fail() || span < bytes)
        return NULL;
    char *raw = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    char *memory = (char *)(((uintptr_t)raw + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (memory > raw)
        munmap(raw, (size_t)(memory - raw));
    if (memory + size < raw + span)
        munmap(memory + size, (size_t)(raw + span - (memory + size)));
    if (huge_pages)
        madvise(memory, size, MADV_HUGEPAGE);
    touch(memory, size);
    count_live((int64_t)bytes);
    return memory;
}

void hsp__unmap(void *memory, size_t bytes) {
    if (!memory)
        return;
    count_live(-(int64_t)bytes);
    munmap(memory, whole_pages(bytes));
}

/* First number of the first line of `path` that starts with `key`; UINT64_MAX when there is none ("max" in a group). */
static uint64_t read_number(const char *path, const char *key) {
    FILE *file = fopen(path, "re");
    char line[160];
    unsigned long long value = 0;
    uint64_t number = UINT64_MAX;
    while (file && number == UINT64_MAX && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%llu", &value) == 1)
            number = value;
    if (file)
        fclose(file);
    return number;
}

int hsp__has_huge_pages(const void *memory) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[256];
    int inside = 0, huge = 0;
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long from, to, kib;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            inside = (uintptr_t)memory >= from && (uintptr_t)memory < to;
        else if (inside && sscanf(line, "AnonHugePages: %llu", &kib) == 1)
            huge = kib > 0;
    }
    if (file)
        fclose(file);
    return huge;
}

/* What a control group of version 2 leaves: its limit less what is in use, of which files read lately can be dropped.
 */
static uint64_t left_in_group(const char *folder) {
    char path[4200];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    uint64_t limit = read_number(path, "");
    snprintf(path, sizeof path, "%s/memory.current", folder);
    uint64_t used = read_number(path, "");
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t droppable = read_number(path, "inactive_file ");
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    used -= droppable != UINT64_MAX && droppable < used ? droppable : 0;
    return limit > used ? limit - used : 0;
}

/* The tightest of this process's control group and of all it lies in. */
static uint64_t left_in_groups(void) {
    char line[4096] = "", folder[4160];
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && strncmp(line, "0::", 3) != 0 && fgets(line, sizeof line, file))
        line[strcspn(line, "\n")] = 0;
    if (file)
        fclose(file);
    snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", strncmp(line, "0::/", 4) == 0 ? line + 3 : "");
    uint64_t least = UINT64_MAX;
    for (char *slash = folder; slash; slash = strrchr(folder, '/')) {
        uint64_t left = left_in_group(folder);
        least = left < least ? left : least;
        if (strcmp(folder, "/sys/fs/cgroup") == 0)
            break;
        *strrchr(folder, '/') = 0;
    }
    return least;
}

uint64_t hsp__memory_available(void) {
    if (hsp__watch.pretend_available)
        return hsp__watch.pretend_available;
    uint64_t kib = read_number("/proc/meminfo", "MemAvailable:");
    uint64_t machine = kib == UINT64_MAX ? UINT64_MAX : kib * 1024, groups = left_in_groups();
    return groups < machine ? groups : machine;
}

void *hsp__carve(hsp__arena *arena, size_t count, size_t size) {
    arena->used = (arena->used + 63) / 64 * 64;
    void *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += count * size;
    return memory;
}
