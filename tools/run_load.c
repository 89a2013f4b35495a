/* SPDX-License-Identifier: Apache-2.0 */
#include "arithmetic.h"
#include "gpu.h"
#include "run.h"
#include "tools.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double run_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *complain(const char *option, const char *path, const char *why) {
    tool_fail(TOOL_BAD_INPUT, "%s '%s': %s", option, path, why);
    return NULL;
}

char *run_read_file(const char *option, const char *path, size_t *bytes_out) {
    struct stat status;
    if (stat(path, &status) != 0)
        return complain(option, path, strerror(errno));
    if (!S_ISREG(status.st_mode)) /* before it is opened: a pipe would wait for its other end */
        return complain(option, path, "not a regular file");
    FILE *file = fopen(path, "rb");
    if (!file)
        return complain(option, path, strerror(errno));
    size_t size = (size_t)status.st_size;
    char *text = malloc(size + 1);
    *bytes_out = text ? fread(text, 1, size, file) : 0;
    int failed = ferror(file) || !text;
    fclose(file);
    if (!failed)
        return text;
    free(text);
    return complain(option, path, "cannot be read into memory");
}

static int set_context(run *r) {
    const run_options *o = &r->options;
    int32_t context = o->context ? o->context : r->m->context;
    if (context > r->m->context)
        return tool_fail(TOOL_BAD_INPUT, "--context is %d; the model has %d tokens of context", context, r->m->context);
    if (o->max_tokens >= context)
        return tool_fail(TOOL_BAD_INPUT, "--max-tokens is %d; a context of %d leaves 1..%d", o->max_tokens, context,
                         context - 1);
    r->max_total = context;
    return 0;
}

/* How many tokens a layer attends to, and with that how many rows the cache is asked for at once. */
int run_set_selection(run *r) {
    run_options *o = &r->options;
    if (o->selector && run_selector(o->selector) != (int)r->m->kind)
        return tool_fail(TOOL_BAD_INPUT, "--selector is '%s'; the model attends in another way", o->selector);
    if (r->m->kind == MODEL_NSA && o->top_k && o->top_k != r->m->top_k)
        return tool_fail(TOOL_BAD_INPUT, "--top-k is %d; the model chooses blocks of %d tokens together", o->top_k,
                         r->m->top_k);
    if (!o->top_k)
        o->top_k = r->m->top_k ? r->m->top_k : 1024;
    if (!o->all_resident && o->cache.n_slots < o->top_k)
        return tool_fail(TOOL_BAD_INPUT, "--slots is %d; it must be at least top-k, %d", o->cache.n_slots, o->top_k);
    o->cache.max_k = o->top_k;
    return 0;
}

int run_encode(run *r, const char *text, size_t bytes, int32_t room) {
    int32_t bos = tokenizer_adds_bos(r->words) ? tokenizer_bos(r->words) : -1, n_bos = bos >= 0 && room > 0;
    r->prompt = malloc(((size_t)room + 1) * sizeof *r->prompt);
    int64_t n = r->prompt ? tokenizer_encode(r->words, text, bytes, 0, r->prompt + n_bos, room - n_bos) : -1;
    if (n < 0)
        return tool_fail(TOOL_FAILED, "not enough memory for the tokens of the text");
    if (n_bos)
        r->prompt[0] = bos;
    if (n == 0)
        return tool_fail(TOOL_BAD_INPUT, "the text is empty: %zu bytes, 0 tokens; a prompt has at least 1", bytes);
    r->n_prompt_in_file = n + n_bos;
    return 0;
}

/* The first tokens of the text, as many as the context has room for. */
static int encode_prompt(run *r) {
    const run_options *o = &r->options;
    int32_t room = r->max_total - o->max_tokens;
    size_t bytes = 0;
    char *text = o->prompt ? strdup(o->prompt) : run_read_file("--prompt-file", o->prompt_file, &bytes);
    if (!text)
        return TOOL_BAD_INPUT;
    int code = run_encode(r, text, o->prompt ? strlen(text) : bytes, room);
    free(text);
    r->n_prompt = (int32_t)(r->n_prompt_in_file < room ? r->n_prompt_in_file : room);
    r->max_total = r->n_prompt + o->max_tokens;
    return code;
}

/* A path that cannot be a new file is the user's to mend, a disk that fills up later is not. */
static int check_host_file(const char *path) {
    int fd = *path ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (*path && fd < 0)
        return tool_fail(TOOL_BAD_INPUT, "--host-file '%s': %s; it must be the path of a new file", path,
                         strerror(errno));
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    return 0;
}

static int open_gpu(run *r) {
    char error[256];
    if (!r->options.on_gpu)
        return 0;
    r->engine = gpu_table_of(CUDA_ENGINE_LIBRARY, CUDA_ENGINE_VERSION, CUDA_ENGINE_TABLE);
    if (!r->engine)
        return TOOL_BAD_INPUT;
    r->device = r->engine->open(r->m, error, sizeof error);
    return r->device ? 0 : tool_fail(TOOL_FAILED, "%s", error);
}

/* Here or on the GPU. */
static decoder *open_decoder(run *r, kv *rows, char *error, size_t error_bytes) {
    int32_t top_k = r->options.top_k;
    snprintf(error, error_bytes, "not enough memory for %d tokens of activations and rows", r->max_total);
    return r->device ? r->engine->open_decoder(r->device, rows, top_k, r->max_total, error, error_bytes)
                     : decoder_open(r->m, rows, top_k, r->max_total);
}

static decoder *open_resident(run *r, char *error, size_t error_bytes) {
    r->resident = r->device ? r->engine->open_resident(r->device, r->max_total, error, error_bytes)
                            : kv_open_resident(r->m, r->max_total);
    return r->resident ? open_decoder(r, r->resident, error, error_bytes) : NULL;
}

static int open_cache(run *r) {
    run_options *o = &r->options;
    if (check_host_file(o->cache.host_file) != 0)
        return TOOL_BAD_INPUT;
    r->cached = kv_open_cache(r->m, &o->cache, r->max_total);
    if (r->cached)
        return 0;
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    int machine = hsp_footprint(&o->cache, &bytes) == HSP_OK; /* nothing is wrong with the knobs */
    return tool_fail(machine ? TOOL_FAILED : TOOL_BAD_INPUT, "%s", hsp_last_error(NULL));
}

int run_open_decoders(run *r) {
    const run_options *o = &r->options;
    char error[256] = "not enough memory for the rows";
    int code = o->all_resident ? 0 : open_cache(r);
    if (code == 0)
        code = open_gpu(r);
    if (code != 0)
        return code;
    r->d = o->all_resident ? open_resident(r, error, sizeof error) : open_decoder(r, r->cached, error, sizeof error);
    if (r->d && o->verify)
        r->check = open_resident(r, error, sizeof error);
    return r->d && (r->check || !o->verify) ? 0 : tool_fail(TOOL_FAILED, "%s", error);
}

int run_open_model(run *r) {
    char error[512];
    double start = run_now();
    if (r->options.threads)
        math_set_threads(r->options.threads);
    r->m = model_open(r->options.model, error, sizeof error);
    if (r->m)
        r->words = r->m->file ? tokenizer_open(r->m->file, error, sizeof error) : tokenizer_open_bytes();
    if (r->m && !r->m->file && !r->words)
        return tool_fail(TOOL_FAILED, "not enough memory for the tokens");
    if (!r->m || !r->words)
        return tool_fail(TOOL_BAD_INPUT, "--model: %s", error);
    r->load_seconds = run_now() - start;
    return 0;
}

int run_load(run *r) {
    int code = run_open_model(r);
    if (code == 0)
        code = run_set_selection(r);
    if (code == 0)
        code = set_context(r);
    if (code == 0)
        code = encode_prompt(r);
    if (code == 0)
        code = run_open_decoders(r);
    return code == 0 ? run_open_metrics(r) : code;
}

void run_close(run *r) {
    decoder_close(r->d);
    decoder_close(r->check);
    if (r->cached)
        r->cached->close(r->cached);
    if (r->resident)
        r->resident->close(r->resident);
    if (r->device)
        r->engine->close(r->device);
    tokenizer_close(r->words);
    model_close(r->m);
    free(r->prompt);
    free(r->text);
    if (r->metrics)
        fclose(r->metrics);
}
