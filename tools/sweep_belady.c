/* SPDX-License-Identifier: Apache-2.0 */
/* L. Belady, "A study of replacement algorithms for a virtual-storage computer" (IBM Systems Journal 5, 1966), a step
 * at a time: the rows used again last make room. Slots hang on lists, one for every step of their next use, so the rows
 * hit in a step are its list, and victims are the ends of the latest ones. */
#include "sweep.h"
#include "tools.h"

#include <stdlib.h>
#include <string.h>

typedef struct future {
    int32_t n_slots;
    int64_t n_words;
    int32_t *head;     /* [n_steps + 1]: first slot of a list, -1: none; the last is "never" */
    int32_t *after;    /* [n_slots]: the next slot of its list */
    int32_t *tag;      /* [n_slots]: token, -1 */
    uint8_t *resident; /* [tokens] */
    uint64_t *filled;  /* [n_words]: bit of every list that is not empty */
    int64_t top;       /* word of the latest one, or a later word */
} future;

static void hang(future *f, int32_t slot, int32_t step) {
    f->after[slot] = f->head[step];
    f->head[step] = slot;
    f->filled[step / 64] |= 1ull << step % 64;
    if (step / 64 > f->top)
        f->top = step / 64;
}

static void take_list(future *f, int32_t step, int32_t rest) {
    f->head[step] = rest;
    if (rest < 0)
        f->filled[step / 64] &= ~(1ull << step % 64);
}

/* The slot whose row is used again last. There is one: slots are at least as many as a step's rows. */
static int32_t take_last(future *f) {
    while (f->filled[f->top] == 0)
        f->top--;
    int32_t step = (int32_t)(f->top * 64 + 63 - __builtin_clzll(f->filled[f->top])), slot = f->head[step];
    take_list(f, step, f->after[slot]);
    return slot;
}

static void restart(future *f, const sweep_stream *s) {
    for (int64_t i = 0; i <= s->n_steps; i++)
        f->head[i] = -1;
    memset(f->filled, 0, (size_t)f->n_words * sizeof *f->filled);
    memset(f->resident, 0, (size_t)s->n_tokens + 1);
    f->top = 0;
    for (int32_t slot = f->n_slots - 1; slot >= 0; slot--) {
        f->tag[slot] = -1;
        hang(f, slot, (int32_t)s->n_steps);
    }
}

static uint32_t step(future *f, const sweep_stream *s, int64_t now, int32_t *next_use) {
    uint32_t n_miss = 0;
    int32_t hit = f->head[now];
    take_list(f, (int32_t)now, -1);
    for (int64_t i = s->first[now]; i < s->first[now + 1]; i++)
        next_use[s->token[i]] = s->next[i];
    int32_t fetched = -1; /* hung up only when all victims are found: none of this step's rows may be one */
    for (int64_t i = s->first[now]; i < s->first[now + 1]; i++) {
        if (f->resident[s->token[i]])
            continue;
        int32_t slot = take_last(f);
        if (f->tag[slot] >= 0)
            f->resident[f->tag[slot]] = 0;
        f->tag[slot] = s->token[i];
        f->after[slot] = fetched;
        fetched = slot;
        n_miss++;
    }
    for (int32_t list = 0; list < 2; list++)
        for (int32_t slot = list ? hit : fetched, rest; slot >= 0; slot = rest) {
            rest = f->after[slot];
            f->resident[f->tag[slot]] = 1;
            hang(f, slot, next_use[f->tag[slot]]);
        }
    return n_miss;
}

int sweep__count_belady(const sweep_stream *s, int32_t n_slots, uint32_t *misses_out) {
    size_t tokens = (size_t)s->n_tokens + 1;
    future f = {.n_slots = n_slots,
                .n_words = s->n_steps / 64 + 1,
                .head = malloc(((size_t)s->n_steps + 1) * sizeof(int32_t)),
                .after = malloc((size_t)n_slots * sizeof(int32_t)),
                .tag = malloc((size_t)n_slots * sizeof(int32_t)),
                .resident = malloc(tokens),
                .filled = malloc(((size_t)s->n_steps / 64 + 1) * sizeof(uint64_t))};
    int32_t *next_use = malloc(tokens * sizeof *next_use);
    int failed = f.head && f.after && f.tag && f.resident && f.filled && next_use ? 0 : -1;
    if (failed == 0)
        restart(&f, s);
    for (int64_t i = 0; failed == 0 && i < s->n_steps; i++) {
        if (s->restart[i])
            restart(&f, s);
        misses_out[i] = step(&f, s, i, next_use);
        failed = tool_interrupted;
    }
    free(f.head);
    free(f.after);
    free(f.tag);
    free(f.resident);
    free(f.filled);
    free(next_use);
    return failed;
}
