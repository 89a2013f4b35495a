/* SPDX-License-Identifier: Apache-2.0 */
/* One request through the model: prefill of a prompt, then token after token. The first layers attend to everything,
 * the others to what Quest selects. Rows live wherever `kv` keeps them; the arithmetic does not know. */
#ifndef HISPARSE_DECODER_H
#define HISPARSE_DECODER_H

#include "hisparse_ops.h"
#include "kv.h"

#define DECODER_DENSE_LAYERS 2  /* Quest leaves layers 0 and 1 dense */
#define DECODER_PAGE_TOKENS  16 /* tokens of a Quest page */

typedef struct decoder {
    const model *m;
    kv *rows;
    int32_t top_k, max_tokens, length;
    int32_t step; /* tokens decoded so far */
    hsp_quest_shape quest;
    hsp_gqa_shape attention;
    char *page_stats;                                                        /* [layer][stats of max_tokens tokens] */
    size_t page_stats_bytes;                                                 /* of one layer */
    float *x, *normed, *query, *key, *value, *attended, *gate, *up, *logits; /* activations of one token */
    void *row;                                                               /* K and V of the newest token, bfloat16 */
    int32_t *selection, *ids;                                                /* [max(max_tokens, top_k)] */
    void *select_scratch, *attention_scratch;
} decoder;

/* top_k: a multiple of HSP_ATTENTION_TILE, at most what `rows` gives at once. NULL when out of memory. The decoder uses
 * `rows` but does not own it. */
decoder *decoder_open(const model *m, kv *rows, int32_t top_k, int32_t max_tokens);
void decoder_close(decoder *d);

/* Decode one token at position d->length: logits [vocab] in d->logits. -1 on failure, reason in d->rows->error. */
int decoder_step(decoder *d, int32_t token);

/* Told the share of a prefill that is done, 0 .. 1; returning non-zero stops it. */
typedef int (*prefill_progress)(void *context, double share);

/* Run the prompt through the model and fill the rows and page statistics of every decoder in ds (all of one model);
 * logits of the last token in each. 0; -1 out of memory or a failure of rows (*error_out says which); 1 stopped. */
int decoder_prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                    void *context, const char **error_out);

#endif
