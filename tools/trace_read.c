/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include "hisparse_ops.h"
#include "mapped_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const trace_note_keys[TRACE_NOTES] = {"model", "selector", "row_bytes", "layers",
                                                  "text",  "licence",  "command"};

typedef struct complaint {
    char *text;
    size_t bytes;
} complaint;

#define FAIL(t, key, c, ...)                                                                                           \
    mapped_file_fail((t)->name, safetensors_place((t)->file, key), (c)->text, (c)->bytes, __VA_ARGS__)

/* -------------------------------------------------------------------------------------------------------- shape -- */

/* The tensor of this name, type and number of dimensions; NULL after the message. */
static const safetensors_tensor *find(const trace *t, const char *name, int32_t dtype, int32_t n_dims,
                                      const complaint *c) {
    const safetensors_tensor *tensor = safetensors_find(t->file, name);
    if (tensor && tensor->dtype == dtype && tensor->n_dims == n_dims)
        return tensor;
    if (!tensor)
        FAIL(t, "__metadata__", c, "no tensor \"%s\"", name);
    else
        FAIL(t, name, c, "tensor \"%s\" must be %s with %d dimensions", name, dtype == HSP_F32 ? "F32" : "I32", n_dims);
    return NULL;
}

static int read_dim(const trace *t, const char *what, int64_t value, int64_t most, const complaint *c) {
    if (value >= 1 && value <= most)
        return (int)value;
    return FAIL(t, "selections", c, "%" PRId64 " %s; allowed are 1 to %" PRId64, value, what, most);
}

static int read_shape(trace *t, const complaint *c) {
    if (!(t->selections = find(t, "selections", SAFETENSORS_I32, 4, c)) ||
        !(t->lengths = find(t, "lengths", SAFETENSORS_I32, 2, c)))
        return -1;
    const int64_t *dims = t->selections->dims;
    int steps = read_dim(t, "steps", dims[0], INT32_MAX, c);
    t->shape = (trace_shape){.n_steps = steps,
                             .n_layers = steps < 0 ? -1 : read_dim(t, "layers", dims[1], TRACE_MOST_LAYERS, c)};
    if (t->shape.n_layers < 0 || (t->shape.n_requests = read_dim(t, "requests", dims[2], TRACE_MOST_REQUESTS, c)) < 0 ||
        (t->shape.k = read_dim(t, "entries of a selection", dims[3], TRACE_MOST_K, c)) < 0)
        return -1;
    if (t->lengths->dims[0] != dims[0] || t->lengths->dims[1] != dims[2])
        return FAIL(t, "lengths", c,
                    "lengths has shape [%" PRId64 ", %" PRId64 "], selections ask for [%" PRId64 ", %" PRId64 "]",
                    t->lengths->dims[0], t->lengths->dims[1], dims[0], dims[2]);
    t->steps_asked = steps;
    return 0;
}

static int read_next(trace *t, const complaint *c) {
    if (!safetensors_find(t->file, "next_tokens") && !safetensors_find(t->file, "next_scores"))
        return 0;
    if (!(t->next_tokens = find(t, "next_tokens", SAFETENSORS_I32, 4, c)) ||
        !(t->next_scores = find(t, "next_scores", HSP_F32, 4, c)))
        return -1;
    for (int i = 0; i < 4; i++)
        if ((i < 3 && t->next_tokens->dims[i] != t->selections->dims[i]) ||
            t->next_scores->dims[i] != t->next_tokens->dims[i])
            return FAIL(t, "next_tokens", c, "dimension %d of next_tokens or next_scores does not fit", i);
    t->shape.n_next = read_dim(t, "candidates", t->next_tokens->dims[3], TRACE_MOST_K, c);
    return t->shape.n_next < 0 ? -1 : 0;
}

/* ----------------------------------------------------------------------------------------------------- metadata -- */

/* A whole number of the metadata; `otherwise` where there is none, -1 where it is not one or not in 0 .. most. */
static int64_t read_number(const trace *t, const char *key, int64_t otherwise, int64_t most, const complaint *c) {
    const char *text = safetensors_metadata(t->file, key);
    char *end, shown[32];
    if (!text)
        return otherwise;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end != text && !*end && !errno && value >= 0 && value <= most)
        return value;
    FAIL(t, key, c, "%s is \"%s\"; it may be 0 to %" PRId64, key,
         mapped_file_printable(text, strlen(text), shown, sizeof shown), most);
    return -1;
}

/* Just n numbers of 0 and more, with commas between? */
static int are_numbers(const char *text, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number > INT32_MAX || *end != (i + 1 < n ? ',' : 0))
            return 0;
        text = end + 1;
    }
    return 1;
}

int trace_check_notes(const trace_shape *shape, const char *const note[TRACE_NOTES], const char **reason_out) {
    if (note[TRACE_LAYERS] && !are_numbers(note[TRACE_LAYERS], shape->n_layers)) {
        *reason_out = "must be one number for each layer, with commas between";
        return TRACE_LAYERS;
    }
    if (note[TRACE_ROW_BYTES] && !are_numbers(note[TRACE_ROW_BYTES], 1)) {
        *reason_out = "must be a number of bytes";
        return TRACE_ROW_BYTES;
    }
    return -1;
}

static int read_metadata(trace *t, const complaint *c) {
    const char *version = safetensors_metadata(t->file, "hisparse_trace");
    if (!version || strcmp(version, "1") != 0)
        return FAIL(t, "__metadata__", c, "metadata \"hisparse_trace\" is not \"1\"; it is no trace, or a newer one");
    for (int i = 0; i < TRACE_NOTES; i++)
        t->note[i] = safetensors_metadata(t->file, trace_note_keys[i]);
    t->shape.n_steps = read_number(t, "steps", t->steps_asked, t->steps_asked, c);
    if (t->shape.n_steps == 0)
        return FAIL(t, "steps", c, "not one step is whole");
    const char *reason;
    int bad = t->shape.n_steps < 0 ? -1 : trace_check_notes(&t->shape, t->note, &reason);
    if (bad >= 0)
        return FAIL(t, trace_note_keys[bad], c, "%s %s", trace_note_keys[bad], reason);
    int64_t k = read_number(t, "k", t->shape.k, TRACE_MOST_K, c);
    if (k >= 0 && k != t->shape.k)
        return FAIL(t, "k", c, "k is %" PRId64 ", selections have %d entries", k, t->shape.k);
    return k < 0 || t->shape.n_steps < 0 ? -1 : 0;
}

/* ------------------------------------------------------------------------------------------------------ numbers -- */

static int32_t number_at(const safetensors_tensor *tensor, int64_t index) {
    int32_t number;
    memcpy(&number, (const char *)tensor->data + index * 4, 4);
    return number;
}

/* Where an entry lies in the file: data of the first tensor begins where the header ends. */
static int fail_at(const trace *t, const safetensors_tensor *tensor, int64_t index, const complaint *c,
                   const char *reason) {
    const char *data = safetensors_at(t->file, 0)->data, *entry = (const char *)tensor->data + index * 4;
    return mapped_file_fail(t->name, safetensors_data_place(t->file) + (uint64_t)(entry - data), c->text, c->bytes,
                            "%s", reason);
}

/* A request only grows, until it ends. */
static int check_lengths(const trace *t, const complaint *c) {
    int64_t requests = t->shape.n_requests;
    for (int64_t i = 0; i < t->shape.n_steps * requests; i++) {
        char reason[128];
        int32_t length = number_at(t->lengths, i), before = i < requests ? 0 : number_at(t->lengths, i - requests);
        if (length < 0 || length > TRACE_MOST_TOKENS)
            snprintf(reason, sizeof reason, "a length of %d tokens; allowed are 0 to %d", length, TRACE_MOST_TOKENS);
        else if (length != 0 && length < before)
            snprintf(reason, sizeof reason, "a length of %d tokens after one of %d; 0 must lie between two requests",
                     length, before);
        else
            continue;
        return fail_at(t, t->lengths, i, c, reason);
    }
    return 0;
}

int32_t trace_length(const trace *t, int64_t step, int32_t request) {
    return number_at(t->lengths, step * t->shape.n_requests + request);
}

static int64_t row_of(const trace *t, int64_t step, int32_t layer, int32_t request) {
    return (step * t->shape.n_layers + layer) * t->shape.n_requests + request;
}

int trace_selection(const trace *t, int64_t step, int32_t layer, int32_t request, int32_t *selection_out, char *error,
                    size_t error_bytes) {
    int32_t k = t->shape.k, length = trace_length(t, step, request), bad = 0;
    int64_t first = row_of(t, step, layer, request) * k;
    memcpy(selection_out, (const char *)t->selections->data + first * 4, (size_t)k * 4);
    for (int32_t e = 0; e < k; e++)
        bad |= selection_out[e] < -1 || selection_out[e] >= length;
    if (!bad)
        return 0;
    complaint c = {error, error_bytes};
    char reason[128];
    int32_t e = 0;
    while (selection_out[e] >= -1 && selection_out[e] < length)
        e++;
    snprintf(reason, sizeof reason, "token %d at step %" PRId64 ", layer %d, request %d, which has %d tokens",
             selection_out[e], step, layer, request, length);
    return fail_at(t, t->selections, first + e, &c, reason);
}

void trace_next(const trace *t, int64_t step, int32_t layer, int32_t request, int32_t n, int32_t *tokens_out,
                float *scores_out) {
    int64_t first = row_of(t, step, layer, request) * t->shape.n_next;
    memcpy(tokens_out, (const char *)t->next_tokens->data + first * 4, (size_t)n * 4);
    memcpy(scores_out, (const char *)t->next_scores->data + first * 4, (size_t)n * 4);
}

int32_t trace_layer_number(const trace *t, int32_t layer) {
    const char *text = t->note[TRACE_LAYERS];
    for (int32_t i = 0; text && i < layer; i++)
        text = strchr(text, ',') + 1; /* as many as there are layers: checked */
    return text ? (int32_t)strtol(text, NULL, 10) : layer;
}

int64_t trace_row_bytes(const trace *t) {
    return t->note[TRACE_ROW_BYTES] ? strtoll(t->note[TRACE_ROW_BYTES], NULL, 10) : 0;
}

/* --------------------------------------------------------------------------------------------------------- open -- */

static trace *open_file(safetensors *file, const char *name, const complaint *c) {
    trace *t = file ? calloc(1, sizeof *t) : NULL;
    if (!t) {
        if (file)
            mapped_file_fail(name, 0, c->text, c->bytes, "no memory");
        safetensors_close(file);
        return NULL;
    }
    t->file = file;
    t->name = name;
    if (read_shape(t, c) == 0 && read_next(t, c) == 0 && read_metadata(t, c) == 0 && check_lengths(t, c) == 0)
        return t;
    trace_close(t);
    return NULL;
}

trace *trace_open(const char *path, char *error, size_t error_bytes) {
    complaint c = {error, error_bytes};
    return open_file(safetensors_open(path, error, error_bytes), path, &c);
}

trace *trace_open_memory(const void *bytes, size_t n_bytes, const char *name, char *error, size_t error_bytes) {
    complaint c = {error, error_bytes};
    return open_file(safetensors_open_memory(bytes, n_bytes, name, error, error_bytes), name, &c);
}

void trace_close(trace *t) {
    if (t)
        safetensors_close(t->file);
    free(t);
}
