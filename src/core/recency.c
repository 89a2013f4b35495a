/* SPDX-License-Identifier: Apache-2.0 */
#include "core/recency.h"

#include <string.h>

void hsp__recency_reset(const hsp__recency *recency) {
    int ordered = recency->policy == HSP_LRU || recency->policy == HSP_FIFO;
    for (int32_t i = 0; i < recency->n_slots; i++)
        recency->order[i] = ordered ? (uint16_t)i : 0;
    *recency->cursor = 0;
}

/* Unselected slots stay in front in their old order, hits go behind in theirs; the oldest n_miss of the unselected are
 * the victims and stand between the two. No branch depends on the data: half the slots are hit in a typical step. */
static void lru_step(const hsp__recency *recency, const uint8_t *selected, int32_t n_miss, uint16_t *victims,
                     uint16_t *hits) {
    uint16_t *order = recency->order;
    int32_t n_kept = 0, n_hits = 0;
#pragma GCC unroll 4 /* else its speed depends on where the linker puts the loop: 7.1 against 4.8 us a resolve */
    for (int32_t i = 0; i < recency->n_slots; i++) {
        uint16_t slot = order[i];
        int32_t hit = selected[slot];
        order[n_kept] = slot;
        hits[n_hits] = slot;
        n_kept += 1 - hit;
        n_hits += hit;
    }
    memcpy(victims, order, (size_t)n_miss * sizeof *victims);
    memmove(order, order + n_miss, (size_t)(n_kept - n_miss) * sizeof *order);
    memcpy(order + n_kept - n_miss, victims, (size_t)n_miss * sizeof *order);
    memcpy(order + n_kept, hits, (size_t)n_hits * sizeof *order);
}

static void fifo_step(const hsp__recency *recency, const uint8_t *selected, int32_t n_miss, uint16_t *victims) {
    uint16_t *order = recency->order;
    int32_t n_victims = 0, n_kept = 0;
    for (int32_t i = 0; n_miss > 0 && i < recency->n_slots; i++) {
        uint16_t slot = order[i];
        if (n_victims < n_miss && !selected[slot])
            victims[n_victims++] = slot;
        else
            order[n_kept++] = slot;
    }
    memcpy(order + n_kept, victims, (size_t)n_victims * sizeof *order);
}

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014): the output function. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t hsp__recency_seed(uint64_t seed, int32_t slot, int32_t group) {
    return mix(seed ^ mix((uint64_t)(uint32_t)slot << 32 | (uint32_t)group));
}

static uint32_t gcd(uint32_t a, uint32_t b) {
    return b ? gcd(b, a % b) : a;
}

/* Slots in the order (start + i * stride) mod n_slots: one multiplication a slot, so that a GPU ranks all slots at
 * once. */
static void random_step(const hsp__recency *recency, const uint8_t *selected, int32_t n_miss, uint16_t *victims) {
    uint32_t n = (uint32_t)recency->n_slots;
    uint64_t draw = mix(recency->seed + (*recency->cursor)++);
    uint32_t stride = (uint32_t)draw % n, slot = (uint32_t)(draw >> 32) % n;
    while (gcd(stride, n) != 1)
        stride = (stride + 1) % n;
    for (int32_t n_victims = 0; n_victims < n_miss; slot = (slot + stride) % n)
        if (!selected[slot])
            victims[n_victims++] = (uint16_t)slot;
}

static void clock_step(const hsp__recency *recency, uint8_t *selected, int32_t n_miss, uint16_t *victims) {
    uint32_t n = (uint32_t)recency->n_slots, hand = *recency->cursor;
    for (uint32_t slot = 0; slot < n; slot++)
        recency->order[slot] |= selected[slot];
    for (int32_t n_victims = 0; n_victims < n_miss; hand = hand + 1 < n ? hand + 1 : 0) {
        if (selected[hand])
            continue; /* in use now: its mark stays */
        if (recency->order[hand]) {
            recency->order[hand] = 0;
            continue;
        }
        victims[n_victims++] = (uint16_t)hand;
        selected[hand] = 1;
        recency->order[hand] = 1;
    }
    *recency->cursor = hand;
}

void hsp__recency_step(const hsp__recency *recency, uint8_t *selected, int32_t n_miss, uint16_t *victims_out,
                       uint16_t *scratch) {
    switch (recency->policy) {
    case HSP_FIFO:
        fifo_step(recency, selected, n_miss, victims_out);
        break;
    case HSP_RANDOM:
        random_step(recency, selected, n_miss, victims_out);
        break;
    case HSP_CLOCK:
        clock_step(recency, selected, n_miss, victims_out);
        break;
    default:
        lru_step(recency, selected, n_miss, victims_out, scratch);
        break;
    }
}
