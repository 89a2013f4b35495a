/* SPDX-License-Identifier: Apache-2.0 */
#include "host_pages.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Prefer the GPU's own node, as the backend does; a machine with one node, or a kernel that refuses, is as good. */
static void prefer_node(void *base, uint64_t bytes, int node) {
    enum { MPOL_PREFERRED_MODE = 1 };
    unsigned long mask = node >= 0 && node < 64 ? 1ul << node : 0;
    if (mask)
        syscall(SYS_mbind, base, bytes, MPOL_PREFERRED_MODE, &mask, sizeof mask * 8, 0);
}

/* Touching decides where pages lie and takes most of the time of making a pool: every core does some. */
static void touch_pages(char *base, uint64_t bytes) {
    int64_t n = (int64_t)(bytes / HOST_PAGE);
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < n; i++)
        for (uint64_t at = 0; at < HOST_PAGE; at += 4096)
            *(volatile char *)(base + (uint64_t)i * HOST_PAGE + at) = 1;
}

char *host_pages_take(uint64_t bytes, int node) {
    char *raw = mmap(NULL, bytes + HOST_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    char *base = (char *)(((uintptr_t)raw + HOST_PAGE - 1) & ~(uintptr_t)(HOST_PAGE - 1));
    if (base > raw)
        munmap(raw, (size_t)(base - raw));
    if (base < raw + HOST_PAGE)
        munmap(base + bytes, (size_t)(raw + HOST_PAGE - base));
    madvise(base, bytes, MADV_HUGEPAGE);
    prefer_node(base, bytes, node);
    touch_pages(base, bytes);
    return base;
}

void host_pages_give_back(char *base, uint64_t bytes) {
    if (base)
        munmap(base, bytes);
}
