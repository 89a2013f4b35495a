/* SPDX-License-Identifier: Apache-2.0 */
/* Teacher forcing: the decoder is given the text's own tokens, and asked before each how likely it finds it. */
#include "sampler.h"
#include "score.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>

double score_bits(const float *logits, int32_t vocab, int32_t token) {
    double most = logits[0], sum = 0;
    for (int32_t i = 1; i < vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    return (log(sum) + most - (double)logits[token]) / log(2);
}

uint64_t score_digest(uint64_t digest, const void *bytes, size_t n) {
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < n; i++)
        digest = (digest ^ byte[i]) * UINT64_C(0x100000001b3);
    return digest;
}

/* What the logits of the decoder say of the token that the text has next. */
static void take(const run *r, int32_t token, score *s) {
    const float *logits = r->d->logits;
    int32_t vocab = r->m->vocab;
    uint64_t no_seed = 0;
    char bytes[1];
    s->bits_of[s->n] = score_bits(logits, vocab, token);
    s->likeliest[s->n] = sampler_next(logits, vocab, 0, &no_seed);
    s->digest = score_digest(s->digest, logits, (size_t)vocab * sizeof *logits);
    s->bits += s->bits_of[s->n++];
    s->n_bytes += tokenizer_decode(r->words, token, bytes, sizeof bytes);
}

static int step(run *r, score *s) {
    const int32_t *next = r->prompt + r->n_prompt + s->n;
    double start = run_now();
    if (decoder_step(r->d, next[-1]) != 0)
        return tool_fail(TOOL_FAILED, "decode: %s", r->d->rows->error);
    r->decode_seconds += run_now() - start;
    take(r, next[0], s);
    r->stopped = tool_interrupted;
    return 0;
}

int score_tokens(run *r, int32_t n, score *s) {
    s->digest = SCORE_NO_BYTES;
    s->bits_of = calloc((size_t)n, sizeof *s->bits_of);
    s->likeliest = calloc((size_t)n, sizeof *s->likeliest);
    if (!s->bits_of || !s->likeliest)
        return tool_fail(TOOL_FAILED, "not enough memory for the scores of %d tokens", n);
    int code = run_prefill(r);
    while (code == 0 && s->n < n && !r->stopped)
        code = step(r, s);
    return code;
}
