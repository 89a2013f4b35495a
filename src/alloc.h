/* SPDX-License-Identifier: Apache-2.0 */
/* The only doors to memory: ordinary allocations and anonymous mappings, both counted, both made to fail by tests. */
#ifndef HSP_ALLOC_H
#define HSP_ALLOC_H

#include <stddef.h>
#include <stdint.h>

void *hsp__alloc(size_t bytes); /* zeroed, 64-byte aligned; NULL when there is none */
void hsp__free(void *memory, size_t bytes);

/* Zeroed pages, aligned to 2 MiB, touched so that they are really there; NULL when there are none. huge_pages: asks for
 * pages of 2 MiB; hsp__has_huge_pages says whether the system agreed. */
void *hsp__map(size_t bytes, int huge_pages);
void hsp__unmap(void *memory, size_t bytes);

/* Does the mapping that holds this address have any 2 MiB page? madvise only takes note of the wish. */
int hsp__has_huge_pages(const void *memory);

/* Bytes this process could still take without swapping: the smaller of the machine's and the control group's. */
uint64_t hsp__memory_available(void);

/* Seen and set by tests. fail_at: the n-th call of hsp__alloc or hsp__map from now fails (1 is the next); 0: none. */
typedef struct hsp__alloc_watch {
    uint64_t live_bytes; /* what alloc and map have given and not got back */
    int64_t fail_at;
    uint64_t pretend_available; /* for hsp__memory_available; 0: ask the system */
} hsp__alloc_watch;
extern hsp__alloc_watch hsp__watch;

/* Carves many arrays out of one allocation. With base NULL it only counts, so the same code says how much is needed. */
typedef struct hsp__arena {
    char *base;
    size_t used;
} hsp__arena;

/* count * size bytes, 64-byte aligned, as zeroed as the arena's memory; NULL while counting. */
void *hsp__carve(hsp__arena *arena, size_t count, size_t size);

#endif
