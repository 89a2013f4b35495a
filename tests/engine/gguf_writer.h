/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF bytes for tests, written part by part so that any part can be wrong on purpose. */
#ifndef HISPARSE_TESTS_GGUF_WRITER_H
#define HISPARSE_TESTS_GGUF_WRITER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { W_U8, W_I8, W_U16, W_I16, W_U32, W_I32, W_F32, W_BOOL, W_STRING, W_ARRAY, W_U64, W_I64, W_F64 };

typedef struct gguf_writer {
    uint8_t *bytes; /* freed by the user */
    size_t n;
    size_t allocated;
} gguf_writer;

static inline void write_bytes(gguf_writer *w, const void *bytes, size_t n) {
    if (w->n + n > w->allocated) {
        w->allocated = (w->n + n) * 2;
        w->bytes = realloc(w->bytes, w->allocated);
        if (!w->bytes)
            abort();
    }
    memcpy(w->bytes + w->n, bytes, n);
    w->n += n;
}

/* Low n bytes of a number, lowest first. */
static inline void write_number(gguf_writer *w, uint64_t value, int n) {
    for (int i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)(value >> 8 * i);
        write_bytes(w, &byte, 1);
    }
}

static inline void write_u32(gguf_writer *w, uint32_t value) {
    write_number(w, value, 4);
}

static inline void write_u64(gguf_writer *w, uint64_t value) {
    write_number(w, value, 8);
}

static inline void write_f32(gguf_writer *w, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    write_u32(w, bits);
}

static inline void write_text(gguf_writer *w, const char *text) {
    write_u64(w, strlen(text));
    write_bytes(w, text, strlen(text));
}

static inline void write_head(gguf_writer *w, uint64_t n_tensors, uint64_t n_keys) {
    write_bytes(w, "GGUF", 4);
    write_u32(w, 3);
    write_u64(w, n_tensors);
    write_u64(w, n_keys);
}

static inline void write_key(gguf_writer *w, const char *key, uint32_t type) {
    write_text(w, key);
    write_u32(w, type);
}

static inline void write_u32_key(gguf_writer *w, const char *key, uint32_t value) {
    write_key(w, key, W_U32);
    write_u32(w, value);
}

static inline void write_bool_key(gguf_writer *w, const char *key, int value) {
    write_key(w, key, W_BOOL);
    write_number(w, (uint64_t)value, 1);
}

static inline void write_text_key(gguf_writer *w, const char *key, const char *text) {
    write_key(w, key, W_STRING);
    write_text(w, text);
}

static inline void write_array_key(gguf_writer *w, const char *key, uint32_t type, uint64_t n) {
    write_key(w, key, W_ARRAY);
    write_u32(w, type);
    write_u64(w, n);
}

static inline void write_tensor(gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                                uint64_t offset) {
    write_text(w, name);
    write_u32(w, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        write_u64(w, dims[i]);
    write_u32(w, type);
    write_u64(w, offset);
}

static inline void write_padding(gguf_writer *w, size_t alignment) {
    while (w->n % alignment != 0)
        write_number(w, 0, 1);
}

#endif
