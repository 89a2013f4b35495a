/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the GGUF reader share: the opened file, and the cursor that reads it the first time. */
#ifndef HISPARSE_GGUF_INTERNAL_H
#define HISPARSE_GGUF_INTERNAL_H

#include "gguf.h"

/* Value types of metadata, numbered as in the format. */
enum gguf_value_type {
    GGUF_VALUE_U8 = 0,
    GGUF_VALUE_I8 = 1,
    GGUF_VALUE_U16 = 2,
    GGUF_VALUE_I16 = 3,
    GGUF_VALUE_U32 = 4,
    GGUF_VALUE_I32 = 5,
    GGUF_VALUE_F32 = 6,
    GGUF_VALUE_BOOL = 7,
    GGUF_VALUE_STRING = 8,
    GGUF_VALUE_ARRAY = 9,
    GGUF_VALUE_U64 = 10,
    GGUF_VALUE_I64 = 11,
    GGUF_VALUE_F64 = 12
};

typedef struct gguf_value {
    gguf_string key;     /* first, as in gguf_tensor: both are sorted and searched by it */
    uint64_t at;         /* file offset of the value, or of an array's first element */
    uint64_t n_elements; /* 1 for a single value */
    uint64_t *string_at; /* file offset of each string of a string array, else NULL */
    uint32_t type;       /* of the value or of the elements; never GGUF_VALUE_ARRAY */
    int is_array;
} gguf_value;

struct gguf {
    char *name; /* in messages */
    const uint8_t *bytes;
    size_t n_bytes;
    int is_mapped;
    gguf_value *values; /* sorted by key */
    uint64_t n_values;
    gguf_tensor *tensors; /* sorted by name */
    uint64_t n_tensors;
};

typedef struct gguf_cursor {
    const uint8_t *bytes;
    uint64_t n_bytes;
    uint64_t at;
    const char *name; /* the file, in messages */
    char *error;
    size_t error_bytes;
} gguf_cursor;

/* Say "NAME: offset N: reason" and return -1. */
int gguf__fail(const gguf_cursor *cursor, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Printable form of a string from the file, cut to fit; returns text_out. */
const char *gguf__printable(gguf_string string, char *text_out, size_t text_bytes);

/* Step over n_bytes, which are then known to be inside the file; NULL and a message when they are not. */
const uint8_t *gguf__take(gguf_cursor *cursor, uint64_t n_bytes, const char *what);
int gguf__take_u32(gguf_cursor *cursor, const char *what, uint32_t *value_out);
int gguf__take_u64(gguf_cursor *cursor, const char *what, uint64_t *value_out);
int gguf__take_string(gguf_cursor *cursor, const char *what, gguf_string *value_out);
/* A count of entries of at least entry_bytes each: refused when so many cannot be in the rest of the file, so that what
 * is allocated for them is bounded by the file's own size. */
int gguf__take_count(gguf_cursor *cursor, const char *what, uint64_t entry_bytes, uint64_t *value_out);

/* Little-endian numbers at any address. */
uint16_t gguf__u16(const uint8_t *bytes);
uint32_t gguf__u32(const uint8_t *bytes);
uint64_t gguf__u64(const uint8_t *bytes);

/* Bytes of a metadata value of fixed size; 0 for strings, arrays and unknown types. */
size_t gguf__value_bytes(uint32_t type);
/* Value of a key, NULL when there is none. */
const gguf_value *gguf__find_value(const gguf *file, const char *key);

/* Sort entries that begin with a gguf_string; a name given twice is refused. `what` names the entries in the message.
 */
int gguf__sort_names(const gguf_cursor *cursor, const char *what, void *entries, uint64_t n, size_t entry_bytes);
const void *gguf__find_name(const char *name, const void *entries, uint64_t n, size_t entry_bytes);

int gguf__read_metadata(gguf_cursor *cursor, gguf *file);
int gguf__read_tensors(gguf_cursor *cursor, gguf *file);

#endif
