/* SPDX-License-Identifier: Apache-2.0 */
/* Who makes room for whom: the rules of include/hisparse.h for the policies the library has, and three more to compare
 * them with. A policy is asked once a step for as many victims as there are misses, among the slots not selected. */
#include "sweep.h"
#include "tools.h"

#include <stdlib.h>
#include <string.h>

const char *const sweep_policy_names[SWEEP_POLICIES] = {"lru",      "fifo",      "random", "clock",
                                                        "lru-flat", "segmented", "belady"};

enum { NOWHERE = 0xffff }; /* no slot has this number */

typedef struct slots {
    int32_t n;
    int32_t *tag;             /* [n]: token in a slot, -1: none */
    uint16_t *where;          /* [tokens]: slot of a token, NOWHERE */
    uint8_t *selected;        /* [n] */
    uint16_t *order;          /* [n]: LRU, FIFO: oldest first; SEGMENTED: those on probation; CLOCK: marks */
    uint16_t *kept;           /* [n]: SEGMENTED: those that are protected */
    uint16_t *hits, *victims; /* [n] */
    int32_t *missed;          /* [n]: tokens to fetch */
    int32_t n_order, n_kept;  /* SEGMENTED */
    uint32_t hand;            /* CLOCK */
    uint64_t seed, draws;     /* RANDOM */
} slots;

/* ----------------------------------------------------------------------------------------------------- policies -- */

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), as the library draws. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Split a list into slots that were not selected, which stay in its front, and those that were; returns how many
 * stay. */
static int32_t split(uint16_t *list, int32_t n, const uint8_t *selected, uint16_t *hits, int32_t *n_hits) {
    int32_t stay = 0, hit = 0;
#pragma GCC unroll 4
    for (int32_t i = 0; i < n; i++) { /* no branch depends on the data */
        uint16_t slot = list[i];
        int32_t is_hit = selected[slot];
        list[stay] = slot;
        hits[hit] = slot;
        stay += 1 - is_hit;
        hit += is_hit;
    }
    *n_hits = hit;
    return stay;
}

static uint16_t *put(uint16_t *to, const uint16_t *from, int32_t n) {
    memmove(to, from, (size_t)n * sizeof *to);
    return to + n;
}

/* Oldest first: not selected, then fetched and hit; without promotion hit and fetched. */
static void lru(slots *s, int32_t n_miss, int flat) {
    int32_t n_hits, stay = split(s->order, s->n, s->selected, s->hits, &n_hits);
    memcpy(s->victims, s->order, (size_t)n_miss * sizeof *s->victims);
    uint16_t *end = put(s->order, s->order + n_miss, stay - n_miss);
    end = flat ? put(end, s->hits, n_hits) : put(end, s->victims, n_miss);
    put(end, flat ? s->victims : s->hits, flat ? n_miss : n_hits);
}

static void fifo(slots *s, int32_t n_miss) {
    int32_t found = 0, stay = 0, i = 0;
    for (; found < n_miss; i++) {
        uint16_t slot = s->order[i];
        if (s->selected[slot])
            s->order[stay++] = slot;
        else
            s->victims[found++] = slot;
    }
    put(put(s->order + stay, s->order + i, s->n - i), s->victims, n_miss);
}

static uint32_t gcd(uint32_t a, uint32_t b) {
    return b ? gcd(b, a % b) : a;
}

static void at_random(slots *s, int32_t n_miss) {
    uint32_t n = (uint32_t)s->n;
    uint64_t draw = mix(s->seed + s->draws++);
    uint32_t stride = (uint32_t)draw % n, slot = (uint32_t)(draw >> 32) % n;
    while (gcd(stride, n) != 1)
        stride = (stride + 1) % n;
    for (int32_t found = 0; found < n_miss; slot = (slot + stride) % n)
        if (!s->selected[slot])
            s->victims[found++] = (uint16_t)slot;
}

static void second_chance(slots *s, int32_t n_miss) {
    for (int32_t slot = 0; slot < s->n; slot++)
        s->order[slot] |= s->selected[slot];
    for (int32_t found = 0; found < n_miss; s->hand = s->hand + 1 < (uint32_t)s->n ? s->hand + 1 : 0) {
        if (s->selected[s->hand])
            continue;
        if (s->order[s->hand]) {
            s->order[s->hand] = 0;
            continue;
        }
        s->victims[found++] = (uint16_t)s->hand;
        s->selected[s->hand] = 1;
        s->order[s->hand] = 1;
    }
}

/* Victims are the oldest on probation, then the oldest of the protected. Rows hit are protected from now on; the oldest
 * of them that are too many go back on probation, ahead of what is fetched. */
static void segmented(slots *s, int32_t n_miss) {
    int32_t n_hits, n_kept_hits, room = s->n * 4 / 5;
    int32_t stay = split(s->order, s->n_order, s->selected, s->hits, &n_hits);
    int32_t kept = split(s->kept, s->n_kept, s->selected, s->hits + n_hits, &n_kept_hits);
    int32_t young = n_miss < stay ? n_miss : stay, old = n_miss - young;
    put(put(s->victims, s->order, young), s->kept, old);
    uint16_t *end = put(s->kept, s->kept + old, kept - old);
    end = put(put(end, s->hits + n_hits, n_kept_hits), s->hits, n_hits);
    s->n_kept = (int32_t)(end - s->kept);
    int32_t many = s->n_kept > room ? s->n_kept - room : 0;
    end = put(s->order, s->order + young, stay - young);
    end = put(put(end, s->kept, many), s->victims, n_miss);
    s->n_order = (int32_t)(end - s->order);
    put(s->kept, s->kept + many, s->n_kept -= many);
}

static void find_victims(slots *s, enum sweep_policy policy, int32_t n_miss) {
    switch (policy) {
    case SWEEP_FIFO:
        fifo(s, n_miss);
        break;
    case SWEEP_RANDOM:
        at_random(s, n_miss);
        break;
    case SWEEP_CLOCK:
        second_chance(s, n_miss);
        break;
    case SWEEP_SEGMENTED:
        segmented(s, n_miss);
        break;
    default:
        lru(s, n_miss, policy == SWEEP_LRU_FLAT);
        break;
    }
}

/* -------------------------------------------------------------------------------------------------------- steps -- */

static void restart(slots *s, const sweep_stream *stream, enum sweep_policy policy) {
    for (int32_t i = 0; i < s->n; i++) {
        s->tag[i] = -1;
        s->order[i] = policy == SWEEP_CLOCK ? 0 : (uint16_t)i;
    }
    s->n_order = s->n;
    s->n_kept = 0;
    s->hand = 0;
    s->draws = 0;
    s->seed = mix(0 ^ mix((uint64_t)(uint32_t)stream->seat << 32 | (uint32_t)stream->number)); /* knob seed: 0 */
}

static int32_t step(slots *s, enum sweep_policy policy, const int32_t *token, int64_t n) {
    int32_t n_miss = 0;
    memset(s->selected, 0, (size_t)s->n);
    for (int64_t i = 0; i < n; i++) {
        uint16_t slot = s->where[token[i]];
        if (slot != NOWHERE)
            s->selected[slot] = 1;
        else
            s->missed[n_miss++] = token[i];
    }
    find_victims(s, policy, n_miss);
    for (int32_t m = 0; m < n_miss; m++) {
        int32_t gone = s->tag[s->victims[m]];
        if (gone >= 0)
            s->where[gone] = NOWHERE;
        s->tag[s->victims[m]] = s->missed[m];
        s->where[s->missed[m]] = s->victims[m];
    }
    return n_miss;
}

static void close_slots(slots *s) {
    free(s->tag);
    free(s->where);
    free(s->selected);
    free(s->order);
    free(s->kept);
    free(s->hits);
    free(s->victims);
    free(s->missed);
}

static int open_slots(slots *s, const sweep_stream *stream, int32_t n_slots) {
    size_t n = (size_t)n_slots + 1,
           tokens = (size_t)stream->n_tokens + 1; /* a hit past the last is written, not kept */
    *s = (slots){.n = n_slots,
                 .tag = calloc(n, sizeof(int32_t)),
                 .where = malloc(tokens * sizeof(uint16_t)),
                 .selected = calloc(n, 1),
                 .order = calloc(n, sizeof(uint16_t)),
                 .kept = calloc(n, sizeof(uint16_t)),
                 .hits = calloc(n, sizeof(uint16_t)),
                 .victims = calloc(n, sizeof(uint16_t)),
                 .missed = malloc(n * sizeof(int32_t))};
    if (!s->tag || !s->where || !s->selected || !s->order || !s->kept || !s->hits || !s->victims || !s->missed)
        return -1;
    memset(s->where, 0xff, tokens * sizeof(uint16_t));
    return 0;
}

int sweep_count(const sweep_stream *stream, enum sweep_policy policy, int32_t n_slots, uint32_t *misses_out) {
    slots s;
    if (policy == SWEEP_BELADY)
        return sweep__count_belady(stream, n_slots, misses_out);
    int failed = open_slots(&s, stream, n_slots);
    if (failed == 0)
        restart(&s, stream, policy);
    for (int64_t i = 0; failed == 0 && i < stream->n_steps; i++) {
        if (stream->restart[i])
            restart(&s, stream, policy);
        const int32_t *token = stream->token + stream->first[i];
        misses_out[i] = (uint32_t)step(&s, policy, token, stream->first[i + 1] - stream->first[i]);
        failed = tool_interrupted;
    }
    close_slots(&s);
    return failed;
}
