/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse run`: its options, what it measures, and the parts it is made of. */
#ifndef HISPARSE_RUN_H
#define HISPARSE_RUN_H

#include <stdio.h>

#include "cuda/cuda_engine.h"
#include "tokenizer.h"

typedef struct run_options {
    const char *model, *prompt, *prompt_file, *metrics_file;
    const char *selector; /* NULL: the model's */
    int32_t top_k;        /* 0 until the model is known, where none was given */
    int32_t max_tokens, context, threads;
    int verify, json, ignore_eos;
    int all_resident; /* no cache: every row stays where it was put */
    int on_gpu;       /* the backend has memory of its own: everything is computed there */
    double temperature;
    uint64_t seed;
    hsp_config cache; /* knobs of the cache, but for the shape */
} run_options;

/* Where a verification found the first difference. */
typedef struct run_difference {
    int found;
    int32_t step, vocab_entry; /* first logit that differs */
    float got, want;
    int32_t layer, token; /* first row on the device that is not the row that was written; -1: all rows are right */
    int32_t kv_head;      /* whose row it is, where KV heads have rows of their own; else 0 */
} run_difference;

typedef struct run {
    run_options options;
    model *m;
    tokenizer *words;
    int32_t *prompt; /* token ids */
    int32_t n_prompt, n_generated, max_total;
    int64_t n_prompt_in_file; /* tokens of the whole text, of which the first n_prompt are used */
    kv *cached, *resident;    /* NULL where not wanted: resident is for all_resident and --verify */
    decoder *d, *check;
    const cuda_engine *engine; /* on a GPU, and the GPU; else NULL */
    gpu *device;
    char *text; /* what was generated */
    size_t text_bytes;
    FILE *metrics;
    double load_seconds, prefill_seconds, decode_seconds, resident_seconds;
    int stopped; /* by Ctrl-C */
    int (*after_step)(
        void *context); /* called with after_step_context once a token is decoded; an exit code. NULL: not */
    void *after_step_context;
    run_difference difference;
} run;

double run_now(void);

/* The model_kind that attends by what a selector of this name chooses, -1 for none. */
int run_selector(const char *name);

/* Layers of rows of the whole model. */
int32_t run_stores(const run *r);

/* Seconds spent in swap-in so far, in stores from .. to - 1; NAN on a GPU, where a step is one piece. */
double run_swap_seconds(const run *r, int32_t from, int32_t to);

/* The options of `hisparse run`; another command may have them as its own through a child of its parser. */
struct argp;
extern const struct argp run_argp;

/* Set defaults, parse with a parser that is run_argp or has it for a child, given `input`, and check; returns 0, or an
 * exit code after the message. */
int run_parse(int argc, char **argv, const struct argp *argp, void *input, run_options *options);

/* A whole number of an option of the parser, least .. most; 0, or EINVAL after the message. */
struct argp_state;
int run_read_int(struct argp_state *state, const char *name, const char *text, long least, long most, int32_t *out);

/* Each returns 0, or an exit code after the message. */
int run_start_options(run_options *options); /* defaults, and knobs of the environment */
int run_check_backend(run_options *options); /* once all are set */
int run_load(run *r);                        /* model, prompt, cache, decoders */
int run_prefill(run *r);                     /* all but the last token of the prompt */
int run_decode(run *r);
int run_open_metrics(run *r); /* once there is a cache */

/* What --metrics-file asks for after a step of `seconds`, of which select_seconds in swap-in. before: counters up to
 * the last call, which become those of now. */
int run_write_metrics(run *r, int32_t token, double seconds, double select_seconds, hsp_counters *before);

/* The parts of run_load, in this order; each as above. */
int run_open_model(run *r); /* and its tokenizer */
int run_set_selection(run *r);
/* Tokens of a text into r->prompt, at most `room`, after a beginning-of-text token where the model wants one;
 * r->n_prompt_in_file: how many there are. */
int run_encode(run *r, const char *text, size_t bytes, int32_t room);
int run_open_decoders(run *r); /* for r->max_total tokens */

/* A whole file in memory; NULL after a message that calls it the file of this option. */
char *run_read_file(const char *option, const char *path, size_t *bytes_out);

void run_close(run *r);

/* Compare the logits of both decoders bit for bit; on a difference look for the row that caused it. */
void run_compare(run *r, int32_t step);

int run_print(const run *r); /* table or JSON; an exit code */

#endif
