/* SPDX-License-Identifier: Apache-2.0 */
/* Hash tables of a vocabulary: token text to id, and pair of ids to their merge. */
#ifndef HISPARSE_TOKEN_MAP_H
#define HISPARSE_TOKEN_MAP_H

#include "gguf.h"

typedef struct text_map {
    const gguf_string *texts; /* by id, owned by the caller */
    int32_t *ids;             /* -1: free slot */
    size_t n_slots;           /* a power of two */
} text_map;

typedef struct pair_merge {
    int32_t left; /* -1: free slot */
    int32_t right;
    int32_t merged;
    int32_t rank;
} pair_merge;

typedef struct pair_map {
    pair_merge *merges;
    size_t n_slots; /* a power of two */
} pair_map;

/* Room for n entries. 0, or -1 when out of memory. */
int text_map_open(text_map *map, const gguf_string *texts, int64_t n);
void text_map_close(text_map *map);
/* The first id added under a text keeps it. */
void text_map_add(text_map *map, int32_t id);
/* -1 when the text is no token. */
int32_t text_map_find(const text_map *map, const char *text, size_t n_bytes);

int pair_map_open(pair_map *map, int64_t n);
void pair_map_close(pair_map *map);
void pair_map_add(pair_map *map, pair_merge merge);
const pair_merge *pair_map_find(const pair_map *map, int32_t left, int32_t right);

#endif
