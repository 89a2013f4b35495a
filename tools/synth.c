/* SPDX-License-Identifier: Apache-2.0 */
#include "synth.h"

#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_BINS = 4096 };
static const float LEAST = -16, MOST = 16; /* scores that have a bin of their own, in standard deviations */

typedef struct candidate {
    float score;
    int32_t token;
} candidate;

struct synth {
    float staying, slow, slow_keeps, fast, fast_keeps, whole; /* whole: standard deviation of a score */
    int32_t k, n_next, n_tokens;                              /* tokens that have scores so far */
    rows_random random;
    float *score, *part[3]; /* [max_tokens]: the sum; what stays, slow, fast, each of standard deviation 1 */
    candidate *near;        /* [max_tokens] */
    int32_t bin[N_BINS + 1];
};

/* Nearly normal, of mean 0 and standard deviation 1: four uniform numbers from one draw. */
static float draw_normal(rows_random *random) {
    uint64_t bits = rows_draw(random);
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) + (int32_t)(bits >> 32 & 0xffff) +
                  (int32_t)(bits >> 48);
    return (float)(sum - 131070) * (1.7320508f / 65535);
}

void synth_close(synth *s) {
    if (!s)
        return;
    free(s->score);
    for (int p = 0; p < 3; p++)
        free(s->part[p]);
    free(s->near);
    free(s);
}

synth *synth_open(const synth_locality *l, int32_t k, int32_t n_next, int32_t max_tokens, uint64_t seed) {
    size_t n = (size_t)max_tokens;
    synth *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (synth){.staying = (float)l->staying,
                 .slow = (float)l->slow,
                 .slow_keeps = (float)l->slow_keeps,
                 .fast = (float)l->fast,
                 .fast_keeps = (float)l->fast_keeps,
                 .whole = (float)sqrt(l->staying * l->staying + l->slow * l->slow + l->fast * l->fast),
                 .k = k,
                 .n_next = n_next,
                 .random = {seed},
                 .score = malloc(n * sizeof(float)),
                 .near = malloc(n * sizeof *s->near)};
    int there = s->score && s->near;
    for (int p = 0; p < 3; p++)
        there &= (s->part[p] = malloc(n * sizeof(float))) != NULL;
    if (there)
        return s;
    synth_close(s);
    return NULL;
}

/* Older tokens move on, new ones are drawn. */
static void move_scores(synth *s, int32_t n_tokens) {
    float slow_adds = sqrtf(1 - s->slow_keeps * s->slow_keeps), fast_adds = sqrtf(1 - s->fast_keeps * s->fast_keeps);
    for (int32_t t = 0; t < s->n_tokens; t++) {
        s->part[1][t] = s->part[1][t] * s->slow_keeps + draw_normal(&s->random) * slow_adds;
        s->part[2][t] = s->part[2][t] * s->fast_keeps + draw_normal(&s->random) * fast_adds;
    }
    for (; s->n_tokens < n_tokens; s->n_tokens++)
        for (int p = 0; p < 3; p++)
            s->part[p][s->n_tokens] = draw_normal(&s->random);
    for (int32_t t = 0; t < n_tokens; t++)
        s->score[t] = s->part[0][t] * s->staying + s->part[1][t] * s->slow + s->part[2][t] * s->fast;
    s->score[n_tokens - 1] = MOST * s->whole;
}

static int32_t bin_of(const synth *s, float score) {
    float place = (score / s->whole - LEAST) * (N_BINS / (MOST - LEAST));
    return place < 0 ? 0 : place >= N_BINS ? N_BINS : (int32_t)place;
}

/* The highest bin above and with which there are at least n tokens. */
static int32_t find_bin(synth *s, int32_t n_tokens, int32_t n) {
    int32_t above = 0, bin = N_BINS;
    memset(s->bin, 0, sizeof s->bin);
    for (int32_t t = 0; t < n_tokens; t++)
        s->bin[bin_of(s, s->score[t])]++;
    while (bin > 0 && above + s->bin[bin] < n)
        above += s->bin[bin--];
    return bin;
}

/* Best first; of equals the lower token. */
static int compare_candidates(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

static int compare_tokens(const void *left, const void *right) {
    return *(const int32_t *)left - *(const int32_t *)right;
}

void synth_step(synth *s, int32_t n_tokens, int32_t *selection_out, int32_t *next_out, float *scores_out) {
    int32_t wanted = s->k + s->n_next, n_near = 0;
    move_scores(s, n_tokens);
    int32_t bin = find_bin(s, n_tokens, wanted);
    for (int32_t t = 0; t < n_tokens; t++)
        if (bin_of(s, s->score[t]) >= bin)
            s->near[n_near++] = (candidate){s->score[t], t};
    qsort(s->near, (size_t)n_near, sizeof *s->near, compare_candidates);
    for (int32_t i = 0; i < wanted; i++) {
        candidate c = i < n_near ? s->near[i] : (candidate){0, -1};
        if (i < s->k) {
            selection_out[i] = c.token;
            continue;
        }
        next_out[i - s->k] = c.token;
        scores_out[i - s->k] = c.score;
    }
    qsort(selection_out, (size_t)(n_near < s->k ? n_near : s->k), sizeof *selection_out, compare_tokens);
}
