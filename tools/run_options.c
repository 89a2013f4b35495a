/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "tools.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    MODEL = 256,
    PROMPT_FILE,
    PROMPT,
    CONTEXT,
    BACKEND,
    SELECTOR,
    TOP_K,
    SLOTS,
    POLICY,
    HOST_FILE,
    THREADS,
    SEED,
    TEMPERATURE,
    MAX_TOKENS,
    VERIFY,
    JSON,
    METRICS,
    IGNORE_EOS
};

static const struct argp_option options_table[] = {
    {"model", MODEL, "FILE", 0,
     "a Llama-architecture GGUF file, or a .safetensors file with a Quest, NSA or DSA model (required)", 0},
    {"prompt-file", PROMPT_FILE, "FILE", 0, "file with the text to go on from (required, or --prompt)", 0},
    {"prompt", PROMPT, "TEXT", 0, "text to go on from (required, or --prompt-file)", 0},
    {"context", CONTEXT, "TOKENS", 0,
     "prompt and generated tokens together (default: the model's); a longer text is cut", 0},
    {"max-tokens", MAX_TOKENS, "TOKENS", 0, "tokens to generate (default 64)", 0},
    {"selector", SELECTOR, "NAME", 0,
     "who chooses the rows: quest, nsa or dsa; each model has one, and another is refused", 0},
    {"top-k", TOP_K, "TOKENS", 0, "tokens a sparse layer attends to, a multiple of 64 (default: the model's, or 1024)",
     0},
    {"slots", SLOTS, "ROWS", 0, "rows per layer kept on the device (default 2048)", 0},
    {"policy", POLICY, "NAME", 0, "which slot a fetched row takes: lru (default), fifo, random, clock", 0},
    {"backend", BACKEND, "NAME", 0,
     "which backend keeps the rows: `hisparse info` lists them (default cpu); with cuda the GPU computes, too", 0},
    {"host-file", HOST_FILE, "FILE", 0, "keep the rows in this new file instead of memory", 0},
    {"threads", THREADS, "N", 0, "threads (default: all)", 0},
    {"temperature", TEMPERATURE, "T", 0, "0 takes the likeliest token (default), more draws", 0},
    {"seed", SEED, "N", 0, "of the draws and of the random policy", 0},
    {"ignore-eos", IGNORE_EOS, 0, 0, "go on after an end-of-text token", 0},
    {"verify", VERIFY, 0, 0, "decode a second time with every row resident and compare every logit bit for bit", 0},
    {"json", JSON, 0, 0, "print one JSON object instead of text and table", 0},
    {"metrics-file", METRICS, "FILE", 0,
     "write one JSON line a step; to a FILE that ends in .prom all counters as Prometheus text, anew after each step",
     0},
    {0}};

int run_read_int(struct argp_state *state, const char *name, const char *text, long least, long most, int32_t *out) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < least || value > most) {
        argp_failure(state, TOOL_BAD_INPUT, 0, "--%s is '%s'; it may be %ld..%ld", name, text, least, most);
        return EINVAL;
    }
    *out = (int32_t)value;
    return 0;
}

static int set_knob(struct argp_state *state, hsp_config *config, const char *key, const char *value) {
    if (hsp_config_set(config, key, value) == HSP_OK)
        return 0;
    argp_failure(state, TOOL_BAD_INPUT, 0, "%s", hsp_last_error(NULL));
    return EINVAL;
}

static int read_temperature(struct argp_state *state, const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0 && value <= 100)) {
        argp_failure(state, TOOL_BAD_INPUT, 0, "--temperature is '%s'; it may be 0..100", text);
        return EINVAL;
    }
    *out = value;
    return 0;
}

static error_t parse_text(int key, char *arg, struct argp_state *state, run_options *o) {
    switch (key) {
    case MODEL:
        o->model = arg;
        return 0;
    case PROMPT_FILE:
        o->prompt_file = arg;
        return 0;
    case PROMPT:
        o->prompt = arg;
        return 0;
    case METRICS:
        o->metrics_file = arg;
        return 0;
    case VERIFY:
        o->verify = 1;
        return 0;
    case JSON:
        o->json = 1;
        return 0;
    case IGNORE_EOS:
        o->ignore_eos = 1;
        return 0;
    case SELECTOR:
        if (run_selector(arg) < 0)
            argp_failure(state, TOOL_BAD_INPUT, 0, "--selector is '%s'; it may be quest, nsa or dsa", arg);
        o->selector = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_end(struct argp_state *state, const run_options *o) {
    if (!o->model)
        argp_failure(state, TOOL_BAD_INPUT, 0, "--model is needed: a GGUF or safetensors file");
    if (o->prompt && o->prompt_file)
        argp_failure(state, TOOL_BAD_INPUT, 0, "only one of --prompt and --prompt-file may be given");
    if (!o->prompt && !o->prompt_file)
        argp_failure(state, TOOL_BAD_INPUT, 0, "one of --prompt and --prompt-file is needed");
    if (o->top_k % HSP_ATTENTION_TILE)
        argp_failure(state, TOOL_BAD_INPUT, 0, "--top-k is %d; it must be a multiple of %d", o->top_k,
                     HSP_ATTENTION_TILE);
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    run_options *o = state->input;
    switch (key) {
    case CONTEXT:
        return run_read_int(state, "context", arg, 2, 4194304, &o->context);
    case MAX_TOKENS:
        return run_read_int(state, "max-tokens", arg, 1, 4194304, &o->max_tokens);
    case TOP_K:
        return run_read_int(state, "top-k", arg, HSP_ATTENTION_TILE, 65472, &o->top_k);
    case THREADS:
        return run_read_int(state, "threads", arg, 1, 1024, &o->threads);
    case SLOTS:
        return set_knob(state, &o->cache, "n_slots", arg);
    case POLICY:
        return set_knob(state, &o->cache, "policy", arg);
    case BACKEND:
        return set_knob(state, &o->cache, "backend", arg);
    case HOST_FILE:
        return set_knob(state, &o->cache, "host_file", arg);
    case SEED:
        return set_knob(state, &o->cache, "seed", arg);
    case TEMPERATURE:
        return read_temperature(state, arg, &o->temperature);
    case ARGP_KEY_ARG:
        argp_failure(state, TOOL_BAD_INPUT, 0, "'%s' is not an option", arg);
        return EINVAL;
    case ARGP_KEY_END:
        return parse_end(state, o);
    default:
        return parse_text(key, arg, state, o);
    }
}

int run_selector(const char *name) {
    static const char *const names[] = {[MODEL_QUEST] = "quest", [MODEL_NSA] = "nsa", [MODEL_DSA] = "dsa"};
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

int run_start_options(run_options *options) {
    *options = (run_options){.max_tokens = 64};
    hsp_config_init(&options->cache, sizeof options->cache);
    options->cache.n_slots = 2048;
    return hsp_config_env(&options->cache) == HSP_OK ? 0 : tool_fail(TOOL_BAD_INPUT, "%s", hsp_last_error(NULL));
}

int run_check_backend(run_options *options) {
    if (tool_check_backend(options->cache.backend, &options->on_gpu) != TOOL_OK)
        return TOOL_BAD_INPUT;
    if (options->on_gpu && options->threads)
        return tool_fail(TOOL_BAD_INPUT, "--threads is %d; with --backend %s the GPU computes", options->threads,
                         options->cache.backend);
    options->cache.n_threads = options->threads;
    return 0;
}

const struct argp run_argp = {options_table,
                              parse_option,
                              NULL,
                              "Decode a text with a bounded KV cache.\vFor example: hisparse run --model m.gguf "
                              "--prompt-file book.txt --top-k 1024 --slots 2048 --verify",
                              NULL,
                              NULL,
                              NULL};

int run_parse(int argc, char **argv, const struct argp *argp, void *input, run_options *options) {
    if (run_start_options(options) != 0 || argp_parse(argp, argc, argv, 0, NULL, input) != 0)
        return TOOL_BAD_INPUT;
    /* Here, for it may come from the environment. */
    if (run_check_backend(options) != 0)
        return TOOL_BAD_INPUT;
    options->seed = options->cache.seed;
    return 0;
}
