/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between a transformer, which is the same for every model, and its attention, which is not: what a layer
 * makes of its normed input, what it keeps of every token, and how a token attends. One file for each kind:
 * attend_quest.c, attend_nsa.c, attend_dsa.c. Steps and prefill go through the same functions, with one token or all of
 * a prompt. */
#ifndef HISPARSE_ATTEND_H
#define HISPARSE_ATTEND_H

#include "kv.h"

enum { ATTEND_PARTS = 5 };

/* n tokens side by side on their way through a layer. */
typedef struct activations {
    int32_t n, first;          /* position of the first */
    float *x, *normed;         /* [n][embedding] */
    float *gate, *up;          /* [n][ffn] */
    float *query, *attended;   /* [n][attend_sizes.query], [n][.attended] */
    float *part[ATTEND_PARTS]; /* [n][.part]: what else a kind makes of `normed`; each file names its own */
    char *rows;                /* [stores of a layer][n][row bytes] */
} activations;

/* What a kind of attention needs. */
typedef struct attend_sizes {
    size_t query, attended, part[ATTEND_PARTS]; /* floats a token */
    size_t state;                               /* bytes a layer, of what the selector keeps */
    size_t selection, ids;                      /* numbers */
    size_t floats, select_bytes, attention_bytes;
} attend_sizes;

typedef struct attend_kind attend_kind;

typedef struct attend {
    const model *m;
    const attend_kind *kind;
    int32_t top_k, max_tokens;
    attend_sizes sizes;
} attend;

/* Memory of one token's attention; every thread has its own. */
typedef struct attend_worker {
    int32_t *selection, *ids;
    float *floats;
    void *select_scratch, *attention_scratch;
} attend_worker;

/* Where a token attends. */
typedef struct attend_place {
    int32_t layer;
    int is_prompt;     /* all rows are at hand */
    const void *state; /* of the layer */
    kv *rows;
} attend_place;

struct attend_kind {
    /* Fill in attend->sizes; an hsp_status. */
    int (*measure)(attend *a);
    /* Query, parts and rows of all tokens, out of `normed`. */
    void (*project)(const attend *a, const model_layer *w, const activations *x);
    /* Take all tokens into what the selector keeps. */
    void (*keep)(const attend *a, const model_layer *w, void *state, const activations *x);
    /* Token t of x, whose rows and whose predecessors' are kept: x->attended of it. Several threads may do so at once,
     * where rows->select allows. 0, or -1 with rows->error set. */
    int (*token)(const attend *a, const attend_place *place, const activations *x, int32_t t, const attend_worker *w);
};

extern const attend_kind attend__quest, attend__nsa, attend__dsa;

/* -1 when top_k does not suit the model. */
int attend_open(attend *a, const model *m, int32_t top_k, int32_t max_tokens);

/* Each -1 when out of memory; what was had is freed by close. */
int attend_worker_open(const attend *a, attend_worker *w);
void attend_worker_close(attend_worker *w);
int activations_open(const attend *a, int32_t n, activations *x);
void activations_close(activations *x);

/* Zeroed and aligned for vector loads; NULL when out of memory. */
void *attend_grab(size_t count, size_t size);

/* Before attention: the norm, and what the kind projects. After it: projection of `attended`, and the FFN. */
void layer_begin(const attend *a, int32_t layer, const activations *x);
void layer_end(const attend *a, int32_t layer, const activations *x);

/* Numbers of every token, [n][count], into rows of a store, from byte `offset` of each on, as bfloat16; `stride` floats
 * from token to token. */
void attend_pack(const attend *a, const activations *x, int32_t store, size_t offset, const float *numbers,
                 size_t stride, size_t count);

/* Rows of some selected tokens, as tiles `first_tile` and following of a query of m->attention. */
int attend_rows(const attend *a, kv *rows, int32_t store, const float *query, const int32_t *selection, int32_t n,
                int32_t first_tile, const attend_worker *w);

/* Where the candidates behind a selection are asked for, and the scores of all units go: rows->next, or NULL. */
kv_next *attend_next(const attend_place *place);

/* Fill it in. next->work: scores of n_units units of unit_tokens tokens, which are lost; selection: int32 [k], whole
 * units. */
void attend_rank_next(kv_next *next, int32_t n_units, int32_t unit_tokens, const int32_t *selection, int32_t k);

#endif
