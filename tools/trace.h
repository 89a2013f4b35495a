/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: what a selector chose, step by step, in a safetensors file (docs/trace-format.md). Reader and writer stream:
 * neither ever holds more than a step, however long the file is. */
#ifndef HISPARSE_TRACE_H
#define HISPARSE_TRACE_H

#include "safetensors.h"

/* Bounds of a trace, those of the cache it is meant for. */
enum { TRACE_MOST_LAYERS = 65535, TRACE_MOST_REQUESTS = 65535, TRACE_MOST_K = 65535, TRACE_MOST_TOKENS = 4194304 };

typedef struct trace_shape {
    int64_t n_steps;
    int32_t n_layers;   /* layers or groups, each with a selection of its own */
    int32_t n_requests; /* of a step */
    int32_t k;          /* entries of a selection */
    int32_t n_next;     /* candidates ranked behind each selection, with scores; 0: not recorded */
} trace_shape;

/* What is known about where a trace comes from; texts, NULL where it is not. */
enum trace_note {
    TRACE_MODEL,
    TRACE_SELECTOR,
    TRACE_ROW_BYTES, /* of one token, all planes, all layers that share a selection */
    TRACE_LAYERS,    /* "0,1,2,6": number in the model of each layer of the trace */
    TRACE_TEXT,
    TRACE_LICENCE,
    TRACE_COMMAND, /* that made it */
    TRACE_NOTES
};
extern const char *const trace_note_keys[TRACE_NOTES];
/* The first note that is not of its form, and why; -1 when all are. */
int trace_check_notes(const trace_shape *shape, const char *const note[TRACE_NOTES], const char **reason_out);

typedef struct trace {
    trace_shape shape;   /* n_steps: those that are whole */
    int64_t steps_asked; /* more than n_steps where the recording was cut short */
    const char *note[TRACE_NOTES];
    safetensors *file;
    const char *name;                                                           /* in messages */
    const safetensors_tensor *selections, *lengths, *next_tokens, *next_scores; /* the last two NULL without */
} trace;

/* Map a trace and check its shape and lengths. NULL on failure, and `error` says "FILE: offset N: reason". */
trace *trace_open(const char *path, char *error, size_t error_bytes);
trace *trace_open_memory(const void *bytes, size_t n_bytes, const char *name, char *error, size_t error_bytes);
void trace_close(trace *t);

/* Tokens of a request at a step, the newest one included; 0: it is not there. */
int32_t trace_length(const trace *t, int64_t step, int32_t request);
/* One selection, int32 [k]: every entry -1 or below the request's length; 0, or -1 with the error of a token that is
 * not. Any thread. */
int trace_selection(const trace *t, int64_t step, int32_t layer, int32_t request, int32_t *selection_out, char *error,
                    size_t error_bytes);
/* The best n of the candidates behind it, best first: int32 and float [n]; n <= n_next. */
void trace_next(const trace *t, int64_t step, int32_t layer, int32_t request, int32_t n, int32_t *tokens_out,
                float *scores_out);
/* Number in the model of a layer of the trace: as the notes say, else its place. */
int32_t trace_layer_number(const trace *t, int32_t layer);
/* Of the notes; 0 where it is not known. */
int64_t trace_row_bytes(const trace *t);

typedef struct trace_writer trace_writer;

/* A new file of at most shape->n_steps steps; a path that exists is refused. It is a whole safetensors file after every
 * step: what is not written yet reads as zeros, and metadata "steps" counts what is. NULL after saying why. */
trace_writer *trace_create(const char *path, const trace_shape *shape, const char *const note[TRACE_NOTES]);
/* Add a step: lengths [n_requests], selections [n_layers][n_requests][k], and with n_next [..][n_next] of each; an exit
 * code after the message. */
int trace_append(trace_writer *w, const int32_t *lengths, const int32_t *selections, const int32_t *next_tokens,
                 const float *next_scores);
/* Close; a file with fewer steps than asked for is made shorter, one without any is removed. code: what the caller
 * returns, or the code of a failure here. */
int trace_finish(trace_writer *w, int code);

#endif
