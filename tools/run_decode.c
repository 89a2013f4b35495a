/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "sampler.h"
#include "tools.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------ prefill -- */

typedef struct progress {
    int32_t tokens;
    double start, last;
    int shown;
} progress;

static int show_progress(void *context, double share) {
    progress *p = context;
    double now = run_now(), seconds = now - p->start;
    if (p->shown && (now - p->last > 0.2 || share >= 1)) {
        int bars = (int)(share * 30);
        p->last = now;
        fprintf(stderr, "\rprefill [%.*s%.*s] %3.0f%%  %5.0f tokens/s  %3.0f s left ", bars,
                "##############################", 30 - bars, "..............................", 100 * share,
                share * p->tokens / seconds, share > 0 ? seconds / share * (1 - share) : 0);
    }
    return tool_interrupted;
}

int run_prefill(run *r) {
    decoder *both[2] = {r->d, r->check};
    const char *error;
    progress p = {r->n_prompt - 1, run_now(), 0, isatty(STDERR_FILENO)};
    if (!r->options.json) /* without a terminal there is no bar, and nothing else to see for a while */
        fprintf(stderr, "reading %d token%s\n", r->n_prompt, r->n_prompt == 1 ? "" : "s");
    int result = r->n_prompt < 2
                     ? 0
                     : decoder_prefill(both, r->check ? 2 : 1, r->prompt, r->n_prompt - 1, show_progress, &p, &error);
    if (p.shown)
        fprintf(stderr, "\r\033[K");
    r->prefill_seconds = run_now() - p.start;
    r->stopped = result == 1;
    return result < 0 ? tool_fail(TOOL_FAILED, "prefill: %s", error) : 0;
}

/* ------------------------------------------------------------------------------------------------------- decode -- */

/* Keep the bytes of a token and, unless JSON was asked for, show them. */
static int take_token(run *r, int32_t token) {
    char bytes[512];
    int64_t n = tokenizer_decode(r->words, token, bytes, sizeof bytes);
    size_t length = n < 0 ? 0 : n > (int64_t)sizeof bytes ? sizeof bytes : (size_t)n;
    char *text = realloc(r->text, r->text_bytes + length + 1);
    if (!text)
        return tool_fail(TOOL_FAILED, "not enough memory for the generated text");
    memcpy(text + r->text_bytes, bytes, length);
    r->text = text;
    r->text_bytes += length;
    text[r->text_bytes] = 0;
    if (!r->options.json && (fwrite(bytes, 1, length, stdout) != length || fflush(stdout) != 0))
        return tool_fail(TOOL_FAILED, "cannot write to standard output: %s", strerror(errno));
    return 0;
}

int32_t run_stores(const run *r) {
    return r->m->n_layers * r->m->stores;
}

double run_swap_seconds(const run *r, int32_t from, int32_t to) {
    double sum = r->device ? NAN : 0;
    for (int32_t store = from; store < to && store < run_stores(r); store++)
        sum += r->cached->select_seconds[store];
    return sum;
}

static int step(run *r, int32_t token, hsp_counters *before, int32_t *next_out) {
    double start = run_now(), selected = run_swap_seconds(r, 0, run_stores(r));
    if (decoder_step(r->d, token) != 0)
        return tool_fail(TOOL_FAILED, "decode: %s", r->cached->error);
    double seconds = run_now() - start;
    r->decode_seconds += seconds;
    int code = r->after_step ? r->after_step(r->after_step_context) : 0;
    if (code != 0)
        return code;
    if (r->check) {
        start = run_now();
        if (decoder_step(r->check, token) != 0)
            return tool_fail(TOOL_FAILED, "decode, all resident: %s", r->resident->error);
        r->resident_seconds += run_now() - start;
        run_compare(r, r->n_generated);
    }
    *next_out = sampler_next(r->d->logits, r->m->vocab, r->options.temperature, &r->options.seed);
    return run_write_metrics(r, *next_out, seconds, run_swap_seconds(r, 0, run_stores(r)) - selected, before);
}

int run_decode(run *r) {
    int32_t token = r->prompt[r->n_prompt - 1], eos = tokenizer_eos(r->words);
    hsp_counters before = {0};
    int code = 0;
    while (code == 0 && r->n_generated < r->options.max_tokens && !r->stopped && !r->difference.found) {
        code = step(r, token, &before, &token);
        if (code != 0 || (token == eos && !r->options.ignore_eos))
            break;
        r->n_generated++;
        code = take_token(r, token);
        r->stopped = tool_interrupted;
    }
    if (!r->options.json && code == 0)
        printf("\n");
    return code;
}
