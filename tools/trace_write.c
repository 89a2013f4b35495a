/* SPDX-License-Identifier: Apache-2.0 */
/* The file is laid out for all steps at once and grows into its shape: selections first, then lengths, then what comes
 * behind the selections. Room for the header is kept, so that it can be written anew after every step. */
#include "tools.h"
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, N_TENSORS = 4 };

struct trace_writer {
    char *path;
    int fd;
    trace_shape shape;
    int64_t done;        /* steps that are whole */
    json_t *notes;       /* the metadata */
    size_t header_bytes; /* kept for the header, the length before it not counted */
};

static const struct {
    const char *name, *dtype;
} tensors[N_TENSORS] = {{"selections", "I32"}, {"lengths", "I32"}, {"next_tokens", "I32"}, {"next_scores", "F32"}};

/* Bytes that a step adds to a tensor; 0 for one the trace does not have. */
static int64_t step_bytes(const trace_shape *s, int tensor) {
    int64_t places = (int64_t)s->n_layers * s->n_requests * 4;
    const int64_t bytes[N_TENSORS] = {places * s->k, (int64_t)s->n_requests * 4, places * s->n_next,
                                      places * s->n_next};
    return bytes[tensor];
}

/* Where in the data a tensor begins when each has n_steps steps; tensor N_TENSORS: where the data ends. */
static int64_t begin_of(const trace_shape *s, int64_t n_steps, int tensor) {
    int64_t at = 0;
    for (int i = 0; i < tensor; i++)
        at += n_steps * step_bytes(s, i);
    return at;
}

/* ------------------------------------------------------------------------------------------------------- header -- */

/* What stays the same of the metadata; NULL without memory, or when a note is not UTF-8. */
static json_t *notes_json(const trace_shape *shape, const char *const note[TRACE_NOTES]) {
    char number[24];
    snprintf(number, sizeof number, "%d", shape->k);
    json_t *notes = json_pack("{s:s, s:s}", "hisparse_trace", "1", "k", number);
    int failed = 0;
    for (int i = 0; i < TRACE_NOTES; i++)
        if (note[i])
            failed |= json_object_set_new(notes, trace_note_keys[i], json_string(note[i]));
    if (!failed)
        return notes;
    json_decref(notes);
    return NULL;
}

/* Of a file whose tensors have n_steps steps; NULL without memory. */
static json_t *header_json(const trace_writer *w, int64_t n_steps) {
    const trace_shape *s = &w->shape;
    char done[24];
    snprintf(done, sizeof done, "%" PRId64, w->done);
    json_object_set_new(w->notes, "steps", json_string(done));
    json_t *header = json_pack("{s:O}", "__metadata__", w->notes);
    for (int i = 0; header && i < N_TENSORS; i++) {
        json_int_t from = begin_of(s, n_steps, i), to = begin_of(s, n_steps, i + 1);
        json_t *shape = i == 1 ? json_pack("[I, i]", (json_int_t)n_steps, s->n_requests)
                               : json_pack("[I, i, i, i]", (json_int_t)n_steps, s->n_layers, s->n_requests,
                                           i == 0 ? s->k : s->n_next);
        json_t *tensor =
            json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensors[i].dtype, "shape", shape, "data_offsets", from, to);
        if (step_bytes(s, i) > 0)
            json_object_set(header, tensors[i].name, tensor);
        json_decref(tensor);
    }
    return header;
}

/* Its text, as much as fits into `bytes` bytes; returns the whole length, 0 without memory. */
static size_t header_text(const trace_writer *w, int64_t n_steps, char *text_out, size_t bytes) {
    json_t *header = header_json(w, n_steps);
    size_t length = header ? json_dumpb(header, text_out, bytes, JSON_COMPACT | JSON_PRESERVE_ORDER) : 0;
    json_decref(header);
    return length;
}

static int cannot_write(const trace_writer *w) {
    return tool_fail(TOOL_FAILED, "cannot write '%s': %s", w->path, strerror(errno));
}

static int write_at(const trace_writer *w, const void *bytes, int64_t n, int64_t at) {
    for (const char *from = bytes; n > 0;) {
        ssize_t written = pwrite(w->fd, from, (size_t)n, at);
        if (written < 0 && errno != EINTR)
            return cannot_write(w);
        if (written > 0) {
            from += written;
            at += written;
            n -= written;
        }
    }
    return TOOL_OK;
}

static int write_header(const trace_writer *w, int64_t n_steps) {
    size_t bytes = LENGTH_BYTES + w->header_bytes;
    char *text = malloc(bytes);
    int code = TOOL_FAILED;
    if (text)
        memset(text, ' ', bytes);
    for (int i = 0; text && i < LENGTH_BYTES; i++)
        text[i] = (char)(w->header_bytes >> 8 * i & 0xff);
    size_t length = text ? header_text(w, n_steps, text + LENGTH_BYTES, w->header_bytes) : 0;
    if (length > 0 && length <= w->header_bytes)
        code = write_at(w, text, (int64_t)bytes, 0);
    else
        tool_fail(code, "cannot write '%s': no memory for its header", w->path);
    free(text);
    return code;
}

static int64_t place_of(const trace_writer *w, int64_t n_steps, int tensor) {
    return (int64_t)(LENGTH_BYTES + w->header_bytes) + begin_of(&w->shape, n_steps, tensor);
}

/* -------------------------------------------------------------------------------------------------------- steps -- */

/* Room for the longest header there will be: a few digits more than the first one has. */
static int keep_header(trace_writer *w) {
    size_t length = header_text(w, w->shape.n_steps, NULL, 0);
    if (!w->notes || length == 0)
        return tool_fail(TOOL_BAD_INPUT, "'%s': its notes must be UTF-8", w->path);
    w->header_bytes = (length + 24 + 511) / 512 * 512 - LENGTH_BYTES;
    if (ftruncate(w->fd, place_of(w, w->shape.n_steps, N_TENSORS)) != 0)
        return cannot_write(w);
    return write_header(w, w->shape.n_steps);
}

trace_writer *trace_create(const char *path, const trace_shape *shape, const char *const note[TRACE_NOTES]) {
    const char *reason;
    int bad = trace_check_notes(shape, note, &reason);
    if (bad >= 0) {
        tool_fail(TOOL_BAD_INPUT, "%s is '%s'; it %s", trace_note_keys[bad], note[bad], reason);
        return NULL;
    }
    trace_writer *w = calloc(1, sizeof *w);
    char *copy = strdup(path);
    if (!w || !copy) {
        tool_fail(TOOL_FAILED, "out of memory");
        free(w);
        free(copy);
        return NULL;
    }
    *w = (trace_writer){.path = copy,
                        .fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666),
                        .shape = *shape,
                        .notes = notes_json(shape, note)};
    if (w->fd < 0)
        tool_fail(TOOL_BAD_INPUT, "cannot write '%s': %s; it must be the path of a new file", path, strerror(errno));
    else if (keep_header(w) == TOOL_OK)
        return w;
    trace_finish(w, TOOL_FAILED);
    return NULL;
}

int trace_append(trace_writer *w, const int32_t *lengths, const int32_t *selections, const int32_t *next_tokens,
                 const float *next_scores) {
    const void *const parts[N_TENSORS] = {selections, lengths, next_tokens, next_scores};
    int code = TOOL_OK;
    for (int i = 0; code == TOOL_OK && i < N_TENSORS; i++) {
        int64_t bytes = step_bytes(&w->shape, i);
        code = write_at(w, parts[i], bytes, place_of(w, w->shape.n_steps, i) + w->done * bytes);
    }
    if (code != TOOL_OK)
        return code;
    w->done++;
    return write_header(w, w->shape.n_steps);
}

/* Move a tensor down to where it lies with fewer steps. */
static int move_tensor(const trace_writer *w, int tensor) {
    char piece[65536];
    int64_t left = w->done * step_bytes(&w->shape, tensor), from = place_of(w, w->shape.n_steps, tensor),
            to = place_of(w, w->done, tensor);
    while (left > 0) {
        ssize_t n = pread(w->fd, piece, left < (int64_t)sizeof piece ? (size_t)left : sizeof piece, from);
        if (n <= 0)
            return cannot_write(w);
        int code = write_at(w, piece, n, to);
        if (code != TOOL_OK)
            return code;
        from += n;
        to += n;
        left -= n;
    }
    return TOOL_OK;
}

static int shorten(const trace_writer *w) {
    int code = TOOL_OK;
    for (int i = 1; code == TOOL_OK && i < N_TENSORS; i++)
        code = move_tensor(w, i);
    if (code == TOOL_OK)
        code = write_header(w, w->done);
    if (code == TOOL_OK && ftruncate(w->fd, place_of(w, w->done, N_TENSORS)) != 0)
        code = cannot_write(w);
    return code;
}

int trace_finish(trace_writer *w, int code) {
    int failed = TOOL_OK;
    if (w->fd >= 0 && w->done > 0 && w->done < w->shape.n_steps)
        failed = shorten(w);
    if (w->fd >= 0 && w->done == 0)
        unlink(w->path);
    if (w->fd >= 0 && close(w->fd) != 0 && failed == TOOL_OK)
        failed = cannot_write(w);
    json_decref(w->notes);
    free(w->path);
    free(w);
    return code == TOOL_OK ? failed : code;
}
