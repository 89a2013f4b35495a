/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse score`: what it is asked, what it counts, and how that is printed. */
#ifndef HISPARSE_SCORE_H
#define HISPARSE_SCORE_H

#include "run.h"

typedef struct score_options {
    const char *model, *text, *slots, *backend, *output;
    int64_t prompt_tokens, tokens, threads; /* tokens 0: all that follow */
    int dense, all_resident, json;
} score_options;

typedef struct score {
    int32_t n;          /* tokens scored so far */
    int64_t n_bytes;    /* of text in them */
    double bits;        /* the sum of bits_of */
    double *bits_of;    /* [n]: -log2 of the probability that the logits give to the text's token */
    int32_t *likeliest; /* [n]: token with the greatest logit, the lowest of equals */
    uint64_t digest;    /* FNV-1a of the bytes of all logits, in order */
} score;

/* -log2 softmax(logits)[token], in double. */
double score_bits(const float *logits, int32_t vocab, int32_t token);

/* FNV-1a, 64 bits (Fowler, Noll and Vo), of what `digest` is of and then these bytes; SCORE_NO_BYTES to begin with. */
#define SCORE_NO_BYTES UINT64_C(0xcbf29ce484222325)
uint64_t score_digest(uint64_t digest, const void *bytes, size_t n);

/* Prefill r's first tokens, but for the last, and decode from there, one step for each of the n tokens that follow: 0,
 * or an exit code after the message. */
int score_tokens(run *r, int32_t n, score *s);

/* Table or JSON. */
int score_print(const score_options *o, const run *r, const score *s, FILE *to);

#endif
