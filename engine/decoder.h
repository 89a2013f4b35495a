/* SPDX-License-Identifier: Apache-2.0 */
/* One request through the model: prefill of a prompt, then token after token. Rows live wherever `kv` keeps them; the
 * arithmetic does not know. */
#ifndef HISPARSE_DECODER_H
#define HISPARSE_DECODER_H

#include "attend.h"

/* Told the share of a prefill that is done, 0 .. 1; returning non-zero stops it. */
typedef int (*prefill_progress)(void *context, double share);

typedef struct decoder decoder;

/* Where the arithmetic is done: here, or by engine/cuda. */
typedef struct decoder_kind {
    int (*step)(decoder *d, int32_t token);
    int (*prefill)(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                   void *context, const char **error_out);
    void (*close)(decoder *d);
} decoder_kind;

struct decoder {
    const decoder_kind *kind;
    const model *m;
    kv *rows;
    int32_t length;
    int32_t step;       /* tokens decoded so far */
    size_t state_bytes; /* of what the selectors of all layers keep, beside the rows */
    attend attention;
    char *state;   /* [layer][attention.sizes.state]: what the selectors keep */
    activations x; /* of the newest token */
    attend_worker worker;
    float *logits; /* [vocab] */
};

/* top_k: tokens a sparse layer attends to, a multiple of HSP_ATTENTION_TILE, at most what `rows` gives at once; for NSA
 * what the model says. NULL when out of memory or when top_k does not suit. The decoder uses `rows` but does not own
 * it. */
decoder *decoder_open(const model *m, kv *rows, int32_t top_k, int32_t max_tokens);
void decoder_close(decoder *d);

/* Decode one token at position d->length: logits [vocab] in d->logits. -1 on failure, reason in d->rows->error. */
int decoder_step(decoder *d, int32_t token);

/* Run the prompt through the model and fill the rows and selectors of every decoder in ds (all of one model and top_k);
 * logits of the last token in each. Every token attends to what it would attend to if it were decoded, so only the
 * rounding of the matrix products tells a prefill from steps. 0; -1 out of memory or a failure of rows (*error_out says
 * which); 1 stopped. */
int decoder_prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                    void *context, const char **error_out);

/* Logits of one token, whose activations are x [embedding], into d->logits. */
void decoder__finish(decoder *d, const float *x);
int decoder__prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                     void *context, const char **error_out);

#endif
