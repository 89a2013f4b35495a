/* SPDX-License-Identifier: Apache-2.0 */
/* The actions of `hisparse trace`, and what they share. */
#ifndef HISPARSE_TRACE_TOOLS_H
#define HISPARSE_TRACE_TOOLS_H

#include "options.h"
#include "trace.h"

int trace_import(int argc, char **argv);
int trace_info(int argc, char **argv);
int trace_record(int argc, char **argv);
int trace_cut(int argc, char **argv);
int trace_synth(int argc, char **argv);

/* Open a trace that a user named; NULL after saying what is wrong with it. */
trace *trace_open_named(const char *path);

/* How many files were named, and are needed: TOOL_OK, or the code after the message. */
int trace_check_words(const tool_words *words, int needed, const char *what);

/* A step of a trace in memory. */
typedef struct trace_step {
    int32_t *lengths, *selections; /* [n_requests], [n_layers][n_requests][k] */
    int32_t *next_tokens;          /* [n_layers][n_requests][n_next] */
    float *next_scores;
} trace_step;
int trace_step_open(trace_step *step, const trace_shape *shape); /* an exit code after the message */
void trace_step_close(trace_step *step);
/* All requests are of this length. */
void trace_step_set_lengths(trace_step *step, int32_t n_requests, int64_t length);

#endif
