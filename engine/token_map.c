/* SPDX-License-Identifier: Apache-2.0 */
#include "token_map.h"

#include <stdlib.h>
#include <string.h>

/* At most half full, so that a search for what is not there ends soon. */
static size_t slots_for(int64_t n) {
    size_t slots = 16;
    while (slots < (size_t)n * 2)
        slots *= 2;
    return slots;
}

static uint64_t mix(uint64_t hash) {
    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_text(const char *text, size_t n_bytes) {
    uint64_t hash = n_bytes, word;
    for (; n_bytes >= 8; n_bytes -= 8, text += 8) {
        memcpy(&word, text, 8);
        hash = mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, text, n_bytes);
    return mix(hash ^ word);
}

/* Slot of a text: the one that holds it, or the free one where it would go. */
static size_t find_slot(const text_map *map, const char *text, size_t n_bytes) {
    size_t slot = hash_text(text, n_bytes) & (map->n_slots - 1);
    for (; map->ids[slot] >= 0; slot = (slot + 1) & (map->n_slots - 1)) {
        gguf_string there = map->texts[map->ids[slot]];
        if (there.length == n_bytes && memcmp(there.bytes, text, n_bytes) == 0)
            break;
    }
    return slot;
}

int text_map_open(text_map *map, const gguf_string *texts, int64_t n) {
    map->texts = texts;
    map->n_slots = slots_for(n);
    map->ids = malloc(map->n_slots * sizeof *map->ids);
    if (!map->ids)
        return -1;
    memset(map->ids, 0xff, map->n_slots * sizeof *map->ids);
    return 0;
}

void text_map_close(text_map *map) {
    free(map->ids);
}

void text_map_add(text_map *map, int32_t id) {
    size_t slot = find_slot(map, map->texts[id].bytes, map->texts[id].length);
    if (map->ids[slot] < 0)
        map->ids[slot] = id;
}

int32_t text_map_find(const text_map *map, const char *text, size_t n_bytes) {
    return map->ids[find_slot(map, text, n_bytes)];
}

static size_t find_pair_slot(const pair_map *map, int32_t left, int32_t right) {
    size_t slot = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & (map->n_slots - 1);
    while (map->merges[slot].left >= 0 && (map->merges[slot].left != left || map->merges[slot].right != right))
        slot = (slot + 1) & (map->n_slots - 1);
    return slot;
}

int pair_map_open(pair_map *map, int64_t n) {
    map->n_slots = slots_for(n);
    map->merges = malloc(map->n_slots * sizeof *map->merges);
    if (!map->merges)
        return -1;
    memset(map->merges, 0xff, map->n_slots * sizeof *map->merges);
    return 0;
}

void pair_map_close(pair_map *map) {
    free(map->merges);
}

void pair_map_add(pair_map *map, pair_merge merge) {
    size_t slot = find_pair_slot(map, merge.left, merge.right);
    if (map->merges[slot].left < 0)
        map->merges[slot] = merge;
}

const pair_merge *pair_map_find(const pair_map *map, int32_t left, int32_t right) {
    const pair_merge *merge = &map->merges[find_pair_slot(map, left, right)];
    return merge->left >= 0 ? merge : NULL;
}
