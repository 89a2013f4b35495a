/* SPDX-License-Identifier: Apache-2.0 */
/* A small file with every type of value and tensors of several types, to be read as it is or spoilt. */
#ifndef HISPARSE_TESTS_GOOD_GGUF_H
#define HISPARSE_TESTS_GOOD_GGUF_H

#include "gguf.h"
#include "gguf_writer.h"

/* Where in the good file the fields are that tests spoil. */
typedef struct layout {
    size_t n_tensors, n_keys, key_length, value_type, string_length, truth, element_type, array_length, element_length,
        alignment, name_length, n_dims, dims, type, offset;
} layout;

enum { HEAD_VERSION = 4, N_KEYS = 19, N_TENSORS = 3 };

static inline void write_scalars(gguf_writer *w, layout *at) {
    at->key_length = w->n;
    write_key(w, "u8", W_U8);
    at->value_type = w->n - 4;
    write_number(w, 200, 1);
    write_key(w, "i8", W_I8);
    write_number(w, (uint64_t)-100, 1);
    write_key(w, "u16", W_U16);
    write_number(w, 60000, 2);
    write_key(w, "i16", W_I16);
    write_number(w, (uint64_t)-30000, 2);
    write_u32_key(w, "u32", 4000000000u);
    write_key(w, "i32", W_I32);
    write_u32(w, (uint32_t)-2000000000);
    write_key(w, "f32", W_F32);
    write_f32(w, 1.5f);
    write_bool_key(w, "yes", 1);
    at->truth = w->n - 1;
    write_bool_key(w, "no", 0);
    write_text_key(w, "string", "some text");
    at->string_length = w->n - 9 - 8;
    write_key(w, "u64", W_U64);
    write_u64(w, 1ull << 60);
    write_key(w, "huge", W_U64);
    write_u64(w, 1ull << 63);
    write_key(w, "i64", W_I64);
    write_u64(w, (uint64_t)-5);
    write_key(w, "f64", W_F64);
    write_u64(w, 0x3fb999999999999aull); /* 0.1 */
}

static inline void write_arrays(gguf_writer *w, layout *at) {
    write_array_key(w, "words", W_STRING, 3);
    at->element_type = w->n - 12;
    at->array_length = w->n - 8;
    at->element_length = w->n;
    write_text(w, "one");
    write_text(w, "");
    write_text(w, "three");
    write_array_key(w, "floats", W_F32, 2);
    write_f32(w, 0.25f);
    write_f32(w, -8);
    write_array_key(w, "shorts", W_I16, 2);
    write_number(w, 7, 2);
    write_number(w, 0xffff, 2);
    write_array_key(w, "empty", W_STRING, 0);
    write_u32_key(w, "general.alignment", 16);
    at->alignment = w->n - 4;
}

static inline void write_tensors(gguf_writer *w, layout *at) {
    at->name_length = w->n;
    write_tensor(w, "floats", 2, (const uint64_t[]){3, 2}, GGUF_F32, 0);
    at->offset = w->n - 8;
    at->type = w->n - 12;
    at->dims = w->n - 28;
    at->n_dims = w->n - 32;
    write_tensor(w, "blocks", 1, (const uint64_t[]){64}, GGUF_Q8_0, 32);
    write_tensor(w, "cube", 4, (const uint64_t[]){1, 2, 3, 1}, GGUF_F16, 112);
    write_padding(w, 16);
    for (int i = 0; i < 6; i++)
        write_f32(w, (float)i);
    write_padding(w, 16);
    for (int i = 0; i < 80; i++)
        write_number(w, (uint64_t)i, 1);
    for (int i = 0; i < 6; i++)
        write_number(w, 0x3c00, 2);
}

static inline gguf_writer good_file(layout *at) {
    gguf_writer w = {0};
    write_head(&w, N_TENSORS, N_KEYS);
    at->n_tensors = 8;
    at->n_keys = 16;
    write_scalars(&w, at);
    write_arrays(&w, at);
    write_tensors(&w, at);
    return w;
}

#endif
