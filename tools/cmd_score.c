/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse score`: how well a model foretells a text when its rows are in the cache, all resident, or all attended to;
 * with a digest by which two such runs are compared to the last bit. */
#include "emit.h"
#include "options.h"
#include "score.h"
#include "tools.h"

#include <stdlib.h>

static const tool_option options[] = {
    {"model", TOOL_TEXT, offsetof(score_options, model), 0, 0, "FILE",
     "a Llama-architecture GGUF file, or a .safetensors file with a Quest, NSA or DSA model (required)"},
    {"text", TOOL_TEXT, offsetof(score_options, text), 0, 0, "FILE", "file with the text (required)"},
    {"prompt-tokens", TOOL_INT, offsetof(score_options, prompt_tokens), 1, 4194304, "TOKENS",
     "tokens read before the first that is scored (1)"},
    {"tokens", TOOL_INT, offsetof(score_options, tokens), 1, 4194304, "TOKENS",
     "tokens scored, each in a step of its own (all that follow)"},
    {"dense", TOOL_FLAG, offsetof(score_options, dense), 0, 0, NULL,
     "every layer attends to every token; all rows are resident"},
    {"all-resident", TOOL_FLAG, offsetof(score_options, all_resident), 0, 0, NULL, "no cache: all rows are resident"},
    {"slots", TOOL_TEXT, offsetof(score_options, slots), 0, 0, "ROWS", "rows per layer kept on the device (2048)"},
    {"backend", TOOL_TEXT, offsetof(score_options, backend), 0, 0, "NAME",
     "which backend keeps the rows: `hisparse info` lists them (cpu); with cuda the GPU computes, too"},
    {"threads", TOOL_INT, offsetof(score_options, threads), 1, 1024, "N", "threads (all)"},
    {"json", TOOL_FLAG, offsetof(score_options, json), 0, 0, NULL,
     "print one JSON object, with token, bits and likeliest token of each step"},
    {"output", TOOL_OUTPUT, offsetof(score_options, output), 0, 0, "FILE",
     "write the results to FILE, whole or not at all"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

static int set_knob(run_options *to, const char *key, const char *value) {
    if (!value || hsp_config_set(&to->cache, key, value) == HSP_OK)
        return TOOL_OK;
    return tool_fail(TOOL_BAD_INPUT, "%s", hsp_last_error(NULL));
}

/* What was asked for, as the parts of `hisparse run` take it. */
static int fill_options(const score_options *o, run_options *to) {
    if (!o->model)
        return tool_fail(TOOL_BAD_INPUT, "--model is needed: a GGUF or safetensors file");
    if (!o->text)
        return tool_fail(TOOL_BAD_INPUT, "--text is needed: a file");
    if (o->slots && o->all_resident)
        return tool_fail(TOOL_BAD_INPUT, "--slots is not for %s, which has no cache",
                         o->dense ? "--dense" : "--all-resident");
    int code = run_start_options(to);
    to->model = o->model;
    to->json = o->json;
    to->all_resident = o->all_resident;
    to->threads = (int32_t)o->threads;
    if (code == TOOL_OK)
        code = set_knob(to, "n_slots", o->slots);
    if (code == TOOL_OK)
        code = set_knob(to, "backend", o->backend);
    return code == TOOL_OK ? run_check_backend(to) : code;
}

/* The text as tokens; *n_out of them are scored. The last one is only foretold, so it needs no place in the context. */
static int read_tokens(const score_options *o, run *r, int32_t *n_out) {
    size_t bytes = 0;
    char *text = run_read_file("--text", o->text, &bytes);
    int code = text ? run_encode(r, text, bytes, r->m->context + 1) : TOOL_BAD_INPUT;
    free(text);
    if (code != TOOL_OK)
        return code;
    int64_t left = r->n_prompt_in_file - o->prompt_tokens, n = o->tokens ? o->tokens : left;
    if (left < 1)
        return tool_fail(TOOL_BAD_INPUT, "--prompt-tokens is %lld; the text has %lld, and one at least is scored",
                         (long long)o->prompt_tokens, (long long)r->n_prompt_in_file);
    if (n > left)
        return tool_fail(TOOL_BAD_INPUT, "--tokens is %lld; after --prompt-tokens, %lld, the text has %lld",
                         (long long)n, (long long)o->prompt_tokens, (long long)left);
    if (o->prompt_tokens + n - 1 > r->m->context)
        return tool_fail(TOOL_BAD_INPUT,
                         "--prompt-tokens and --tokens are %lld and %lld; the model has %d tokens of context",
                         (long long)o->prompt_tokens, (long long)n, r->m->context);
    r->n_prompt = (int32_t)o->prompt_tokens;
    r->max_total = (int32_t)(o->prompt_tokens + n - 1);
    *n_out = (int32_t)n;
    return TOOL_OK;
}

static int load(const score_options *o, run *r, int32_t *n_out) {
    int code = run_open_model(r);
    if (code == TOOL_OK)
        code = read_tokens(o, r, n_out);
    if (code == TOOL_OK && o->dense)
        model_attend_to_all(r->m, r->max_total);
    if (code == TOOL_OK)
        code = run_set_selection(r);
    return code == TOOL_OK ? run_open_decoders(r) : code;
}

/* Print what there is to print, into the file or not. */
static int finish(const score_options *o, const run *r, const score *s, emit_file *file, int code) {
    if (code == TOOL_OK)
        code = score_print(o, r, s, file->stream);
    if (code != TOOL_OK) {
        emit_discard(file);
        return code;
    }
    code = emit_commit(file);
    return code == TOOL_OK && r->stopped ? TOOL_STOPPED : code;
}

int cmd_score(int argc, char **argv) {
    score_options o = {.prompt_tokens = 1};
    run r = {0};
    score s = {0};
    emit_file file;
    int32_t n = 0;
    tool_options(
        options,
        "How well a model foretells a text, its own tokens being decoded one after the other. Two runs have the "
        "same digest when all their logits are equal, bit for bit.",
        argc, argv, &o);
    o.all_resident |= o.dense;
    int code = fill_options(&o, &r.options);
    if (code == TOOL_OK)
        code = load(&o, &r, &n);
    if (code == TOOL_OK)
        code = emit_open(&file, o.output);
    if (code == TOOL_OK) {
        tool_watch_interrupt();
        code = finish(&o, &r, &s, &file, score_tokens(&r, n, &s));
    }
    free(s.bits_of);
    free(s.likeliest);
    run_close(&r);
    return code;
}
