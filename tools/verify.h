/* SPDX-License-Identifier: Apache-2.0 */
/* Two caches of different backends that get the same calls, beside a copy of every byte written. Whatever can be seen
 * is compared; the first difference is kept as a sentence and later calls do nothing. */
#ifndef HISPARSE_VERIFY_H
#define HISPARSE_VERIFY_H

#include "rows.h"

enum { VERIFY_LAYERS = 8, VERIFY_REQUESTS = 4, VERIFY_BATCH = 6 };

typedef struct verify_request {
    int live;
    int32_t handle, max_tokens;
    int32_t written[VERIFY_LAYERS]; /* tokens whose rows have been written */
    char *rows;                     /* [layer][max_tokens] packed rows */
} verify_request;

typedef struct verify_totals {
    int64_t rounds, operations, rows_compared;
} verify_totals;

typedef struct verify_pair {
    hsp_config config; /* of both, but for backend, threads and host file */
    int32_t group_label[VERIFY_LAYERS];
    hsp_cache *cache[2];
    const char *name[2];
    hsp_rows_view view[2][VERIFY_LAYERS];
    verify_request request[VERIFY_REQUESTS];
    int32_t batch, batch_request[VERIFY_BATCH]; /* of the step: index of the request, -1 for padding */
    int64_t entries;                            /* of all selections, padding excluded */
    uint64_t n_labels;                          /* rows written so far: every row gets a label of its own */
    verify_totals *totals;
    char difference[400]; /* "" while there is none */
    int failed;           /* the machine, not a difference: an exit code, already said */
} verify_pair;

/* Open both caches: an exit code. */
int verify_open(verify_pair *pair, const char *const names[2], const int32_t n_threads[2], const char *const files[2]);
void verify_close(verify_pair *pair);

/* Layers are local: 0 .. n_layers - 1, and beyond to see a refusal. r: index of a request. */
int verify_anchor(const verify_pair *pair, int32_t layer); /* lowest layer of its group */
void verify_admit(verify_pair *pair, int r, int32_t max_tokens);
void verify_retire(verify_pair *pair, int r);
void verify_truncate(verify_pair *pair, int r, int32_t n_tokens);
void verify_fill(verify_pair *pair, int r, int32_t layer, int32_t n_tokens);
void verify_warm(verify_pair *pair, int r, int32_t layer, const int32_t *tokens, int32_t n_tokens);
int verify_step(verify_pair *pair, const int32_t *requests, const int32_t *n_new, int32_t batch); /* a status */
void verify_append(verify_pair *pair, int32_t layer, const int32_t *n_new, int32_t rows_per_request);
void verify_swap_in(verify_pair *pair, int32_t layer, const int32_t *selection, int32_t n_queries, int32_t k);

/* Compare what lasts: lengths, slots, recency, counters, host rows (of long requests a part chosen by `random`). */
void verify_state(verify_pair *pair, rows_random *random);

/* One round of random operations. TOOL_DIFFERS: with the sentence. */
int verify_round(const char *const names[2], uint64_t seed, verify_totals *totals, char *difference_out, size_t bytes);

#endif
