/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors bytes for tests: a header given as text, so that anything in it can be wrong on purpose, or one written
 * tensor by tensor. */
#ifndef HISPARSE_TESTS_SAFETENSORS_WRITER_H
#define HISPARSE_TESTS_SAFETENSORS_WRITER_H

#include "gguf_writer.h"

#include <stdio.h>

typedef struct safetensors_writer {
    gguf_writer header, data; /* header: what is between the braces */
} safetensors_writer;

static inline void st_text(gguf_writer *w, const char *text) {
    write_bytes(w, text, strlen(text));
}

/* "key": "value" inside __metadata__, quotes and backslashes of the value escaped. */
static inline void st_metadata(safetensors_writer *w, const char *key, const char *value) {
    st_text(&w->header, "\"__metadata__\":{\"");
    st_text(&w->header, key);
    st_text(&w->header, "\":\"");
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            st_text(&w->header, "\\");
        write_bytes(&w->header, value, 1);
    }
    st_text(&w->header, "\"}");
}

/* A tensor whose bytes the caller writes to w->data next. */
static inline void st_tensor(safetensors_writer *w, const char *name, const char *dtype, const int64_t *dims,
                             int n_dims, size_t n_bytes) {
    char entry[512];
    int n =
        snprintf(entry, sizeof entry, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->header.n ? "," : "", name, dtype);
    for (int i = 0; i < n_dims; i++)
        n += snprintf(entry + n, sizeof entry - (size_t)n, "%s%lld", i ? "," : "", (long long)dims[i]);
    snprintf(entry + n, sizeof entry - (size_t)n, "],\"data_offsets\":[%zu,%zu]}", w->data.n, w->data.n + n_bytes);
    st_text(&w->header, entry);
}

/* The file of a header and data, to be freed. */
static inline gguf_writer st_file(const char *header, size_t header_bytes, const void *data, size_t data_bytes) {
    gguf_writer file = {0};
    write_u64(&file, header_bytes);
    write_bytes(&file, header, header_bytes);
    write_bytes(&file, data, data_bytes);
    return file;
}

/* The file of a writer, which is freed. */
static inline gguf_writer st_finish(safetensors_writer *w) {
    gguf_writer header = {0};
    st_text(&header, "{");
    write_bytes(&header, w->header.bytes, w->header.n);
    st_text(&header, "}");
    while (header.n % 8)
        st_text(&header, " ");
    gguf_writer file = st_file((const char *)header.bytes, header.n, w->data.bytes, w->data.n);
    free(header.bytes);
    free(w->header.bytes);
    free(w->data.bytes);
    return file;
}

#endif
