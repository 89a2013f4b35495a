/* SPDX-License-Identifier: Apache-2.0 */
/* Two caches of different backends that get the same calls, beside a copy of every byte written. Whatever can be seen
 * is compared; the first difference is kept as a sentence and later calls do nothing. */
#ifndef HISPARSE_VERIFY_H
#define HISPARSE_VERIFY_H

#include "gpu/memory.h"
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

/* The two backends, and memory that both can address. For all rounds: to make such memory takes as long as many calls.
 */
typedef struct verify_sides {
    const char *name[2];
    uint32_t capabilities[2];
    const gpu_memory *gpu; /* NULL: ordinary memory serves both */
    char *shared;          /* of gpu->alloc_shared */
    size_t shared_bytes, most_lent;
} verify_sides;

/* What is drawn for each side alone: it must not show. */
typedef struct verify_choice {
    int32_t n_threads, huge_pages;
    uint32_t flags;
    char host_file[512];
} verify_choice;

typedef struct verify_pair {
    verify_sides *sides;
    hsp_config config; /* of both, but for backend and choice */
    int32_t group_label[VERIFY_LAYERS];
    hsp_cache *cache[2];
    const char *name[2];
    hsp_rows_view view[2][VERIFY_LAYERS];      /* rows as the CPU can read them */
    const void *device_rows[2][VERIFY_LAYERS]; /* of a side with memory of its own: what the mirror is a copy of */
    char *mirror[2];
    verify_request request[VERIFY_REQUESTS];
    int32_t batch, batch_request[VERIFY_BATCH]; /* of the step: index of the request, -1 for padding */
    int64_t entries;                            /* of all selections, padding excluded */
    uint64_t n_labels;                          /* rows written so far: every row gets a label of its own */
    verify_totals *totals;
    char difference[400]; /* "" while there is none */
    int failed;           /* the machine, not a difference: an exit code, already said */
} verify_pair;

/* TOOL_BAD_INPUT, after saying why, when a backend cannot be had. */
int verify_sides_open(verify_sides *sides, const char *backend, const char *against);
void verify_sides_close(verify_sides *sides);

/* Open both caches: an exit code. */
int verify_open(verify_pair *pair, const verify_choice choice[2]);
void verify_close(verify_pair *pair);

/* Whether there was a failure; one of the device, as the status of a call on one side, is said here. */
int verify_lost(verify_pair *pair, int side, int status);

/* Memory for the arguments of one operation, n pieces, each of a multiple of 4 bytes: an exit code, and no pieces on a
 * failure. Waits until no GPU uses those of the operation before. */
int verify_borrow(verify_pair *pair, const size_t *bytes, int n, void **pieces_out);
void verify_give_back(verify_pair *pair, void **pieces, int n);
/* Before the CPU reads what a call writes there: an exit code. */
int verify_wait(verify_pair *pair);
/* Between rounds: what a backend reads past the end of a piece must be the same when a round is repeated. */
void verify_clear_shared(verify_sides *sides);

/* Make the views of a side readable, where they are not: an exit code. Then bring the rows of a layer up to date. */
int verify_mirror(verify_pair *pair, int side);
void verify_see_rows(verify_pair *pair, int32_t layer);

/* Layers are local: 0 .. n_layers - 1, and beyond to see a refusal. r: index of a request. */
int verify_anchor(const verify_pair *pair, int32_t layer); /* lowest layer of its group */
void verify_admit(verify_pair *pair, int r, int32_t max_tokens);
void verify_retire(verify_pair *pair, int r);
void verify_truncate(verify_pair *pair, int r, int32_t n_tokens);
void verify_fill(verify_pair *pair, int r, int32_t layer, int32_t n_tokens);
void verify_warm(verify_pair *pair, int r, int32_t layer, const int32_t *tokens, int32_t n_tokens);
int verify_step(verify_pair *pair, const int32_t *requests, const int32_t *n_new, int32_t batch); /* a status */
void verify_append(verify_pair *pair, int32_t layer, const int32_t *n_new, int32_t rows_per_request);
/* wait: for the rows of followers, and compare them too. */
void verify_swap_in(verify_pair *pair, int32_t layer, const int32_t *selection, int32_t n_queries, int32_t k, int wait);

/* Compare what lasts: lengths, slots, recency, counters, host rows (of long requests a part chosen by `random`). */
void verify_state(verify_pair *pair, rows_random *random);

/* One round of random operations. TOOL_DIFFERS, TOOL_FAILED: with where and what in a sentence. */
int verify_round(verify_sides *sides, uint64_t seed, verify_totals *totals, char *sentence_out, size_t bytes);

#endif
