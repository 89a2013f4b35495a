/* SPDX-License-Identifier: Apache-2.0 */
/* Merging neighbours, best first: what byte-level BPE and SentencePiece have in common. A symbol is known by the byte
 * where it begins, so symbols need no list: the next one begins where this one ends. */
#ifndef HISPARSE_MERGE_H
#define HISPARSE_MERGE_H

#include "gguf.h"

typedef struct merge_symbol {
    int32_t id;        /* token, -1: none */
    uint32_t length;   /* bytes; 0: inside another symbol */
    uint32_t previous; /* where the symbol before it begins; not meaningful for the first */
} merge_symbol;

typedef struct merge_candidate {
    double key;      /* smaller merges first; on a tie the one more to the left */
    uint32_t at;     /* where the left symbol begins */
    uint32_t length; /* of both together: they are unchanged as long as this is */
    int32_t id;      /* of the merged symbol */
} merge_candidate;

typedef struct merger {
    const char *text;
    uint32_t n_bytes;
    merge_symbol *symbols; /* one a byte of text */
    size_t n_symbols_allocated;
    merge_candidate *heap;
    size_t n_heap;
    size_t n_heap_allocated;
} merger;

/* Whether the symbols at `left` and `right` merge: fills key and id of the candidate and returns 1, or returns 0. */
typedef int merge_rule(const void *vocabulary, const merger *of, uint32_t left, uint32_t right,
                       merge_candidate *candidate_out);

/* Point a merger, all zero at first, to text whose symbols the caller then fills in. -1: out of memory or too long. */
int merger_start(merger *of, const char *text, size_t n_bytes);
/* Merge until no rule applies. -1: out of memory. */
int merger_run(merger *of, merge_rule *rule, const void *vocabulary);
void merger_close(merger *of);

#endif
