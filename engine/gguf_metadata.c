/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata of a GGUF file: reading the keys once, then answering for their values. */
#include "gguf_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A key, its type and a value of one byte: nothing shorter is an entry. */
enum { MIN_VALUE_ENTRY_BYTES = 8 + 4 + 1, MAX_KEY_BYTES = 65535 };

size_t gguf__value_bytes(uint32_t type) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static int check_bools(const gguf_cursor *cursor, const gguf_value *value) {
    for (uint64_t i = 0; i < value->n_elements; i++)
        if (cursor->bytes[value->at + i] > 1)
            return gguf__fail(cursor, value->at + i, "bool is %d, not 0 or 1", cursor->bytes[value->at + i]);
    return 0;
}

/* Strings have no fixed size: note where each begins, so that any of them is found at once later. */
static int read_strings(gguf_cursor *cursor, gguf_value *value) {
    if (value->is_array && value->n_elements > 0) {
        value->string_at = calloc(value->n_elements, sizeof *value->string_at);
        if (!value->string_at)
            return gguf__fail(cursor, cursor->at, "no memory for %" PRIu64 " strings", value->n_elements);
    }
    for (uint64_t i = 0; i < value->n_elements; i++) {
        gguf_string ignored;
        if (value->string_at)
            value->string_at[i] = cursor->at;
        if (gguf__take_string(cursor, "string", &ignored))
            return -1;
    }
    return 0;
}

static int take_type(gguf_cursor *cursor, const char *what, uint32_t *type_out) {
    uint64_t at = cursor->at;
    if (gguf__take_u32(cursor, what, type_out))
        return -1;
    if (*type_out > GGUF_VALUE_F64)
        return gguf__fail(cursor, at, "%s is %" PRIu32 ", known are 0 to %d", what, *type_out, GGUF_VALUE_F64);
    return 0;
}

static int read_array_head(gguf_cursor *cursor, gguf_value *value) {
    uint64_t at = cursor->at;
    if (take_type(cursor, "array element type", &value->type))
        return -1;
    if (value->type == GGUF_VALUE_ARRAY)
        return gguf__fail(cursor, at, "array element type is 9 (array), arrays of arrays are not supported");
    value->is_array = 1;
    /* The shortest string is its length alone. */
    size_t element_bytes = value->type == GGUF_VALUE_STRING ? 8 : gguf__value_bytes(value->type);
    return gguf__take_count(cursor, "array length", element_bytes, &value->n_elements);
}

static int read_value(gguf_cursor *cursor, gguf_value *value) {
    uint64_t at = cursor->at;
    if (gguf__take_string(cursor, "key", &value->key))
        return -1;
    if (value->key.length > MAX_KEY_BYTES)
        return gguf__fail(cursor, at, "key has %zu bytes, limit %d", value->key.length, MAX_KEY_BYTES);
    if (take_type(cursor, "value type", &value->type))
        return -1;
    value->n_elements = 1;
    if (value->type == GGUF_VALUE_ARRAY && read_array_head(cursor, value))
        return -1;
    value->at = cursor->at;
    if (value->type == GGUF_VALUE_STRING)
        return read_strings(cursor, value);
    if (!gguf__take(cursor, gguf__value_bytes(value->type) * value->n_elements, "value"))
        return -1;
    return value->type == GGUF_VALUE_BOOL ? check_bools(cursor, value) : 0;
}

/* The cursor stands after the count of tensors, at the count of keys. */
int gguf__read_metadata(gguf_cursor *cursor, gguf *file) {
    uint64_t n_values;
    if (gguf__take_count(cursor, "number of metadata keys", MIN_VALUE_ENTRY_BYTES, &n_values))
        return -1;
    file->values = calloc(n_values ? n_values : 1, sizeof *file->values);
    if (!file->values)
        return gguf__fail(cursor, cursor->at, "no memory for %" PRIu64 " metadata keys", n_values);
    file->n_values = n_values;
    for (uint64_t i = 0; i < n_values; i++)
        if (read_value(cursor, &file->values[i]))
            return -1;
    return gguf__sort_names(cursor, "key", file->values, n_values, sizeof *file->values);
}

const gguf_value *gguf__find_value(const gguf *file, const char *key) {
    return gguf__find_name(key, file->values, file->n_values, sizeof *file->values);
}

static const gguf_value *find_single(const gguf *file, const char *key) {
    const gguf_value *value = gguf__find_value(file, key);
    return value && !value->is_array ? value : NULL;
}

static const gguf_value *find_element(const gguf *file, const char *key, int64_t index) {
    const gguf_value *value = gguf__find_value(file, key);
    return value && value->is_array && index >= 0 && (uint64_t)index < value->n_elements ? value : NULL;
}

static int as_int(const gguf *file, const gguf_value *value, int64_t index, int64_t *value_out) {
    const uint8_t *bytes = file->bytes + value->at + (uint64_t)index * gguf__value_bytes(value->type);
    switch (value->type) {
    case GGUF_VALUE_U8:
        *value_out = *bytes;
        return 0;
    case GGUF_VALUE_I8:
        /* NOLINTNEXTLINE(bugprone-signed-char-misuse): a number and not a character, so its sign counts */
        *value_out = (int8_t)*bytes;
        return 0;
    case GGUF_VALUE_U16:
        *value_out = gguf__u16(bytes);
        return 0;
    case GGUF_VALUE_I16:
        *value_out = (int16_t)gguf__u16(bytes);
        return 0;
    case GGUF_VALUE_U32:
        *value_out = gguf__u32(bytes);
        return 0;
    case GGUF_VALUE_I32:
        *value_out = (int32_t)gguf__u32(bytes);
        return 0;
    case GGUF_VALUE_U64:
        if (gguf__u64(bytes) > INT64_MAX)
            return -1;
        *value_out = (int64_t)gguf__u64(bytes);
        return 0;
    case GGUF_VALUE_I64:
        *value_out = (int64_t)gguf__u64(bytes);
        return 0;
    default:
        return -1;
    }
}

static int as_float(const gguf *file, const gguf_value *value, int64_t index, double *value_out) {
    const uint8_t *bytes = file->bytes + value->at + (uint64_t)index * gguf__value_bytes(value->type);
    if (value->type == GGUF_VALUE_F32) {
        uint32_t bits = gguf__u32(bytes);
        float number;
        memcpy(&number, &bits, sizeof number);
        *value_out = number;
        return 0;
    }
    if (value->type == GGUF_VALUE_F64) {
        uint64_t bits = gguf__u64(bytes);
        memcpy(value_out, &bits, sizeof *value_out);
        return 0;
    }
    return -1;
}

static gguf_string string_at(const gguf *file, uint64_t at) {
    return (gguf_string){(const char *)file->bytes + at + 8, gguf__u64(file->bytes + at)};
}

int gguf_get_int(const gguf *file, const char *key, int64_t *value_out) {
    const gguf_value *value = find_single(file, key);
    return value ? as_int(file, value, 0, value_out) : -1;
}

int gguf_get_float(const gguf *file, const char *key, double *value_out) {
    const gguf_value *value = find_single(file, key);
    return value ? as_float(file, value, 0, value_out) : -1;
}

int gguf_get_bool(const gguf *file, const char *key, int *value_out) {
    const gguf_value *value = find_single(file, key);
    if (!value || value->type != GGUF_VALUE_BOOL)
        return -1;
    *value_out = file->bytes[value->at];
    return 0;
}

int gguf_get_string(const gguf *file, const char *key, gguf_string *value_out) {
    const gguf_value *value = find_single(file, key);
    if (!value || value->type != GGUF_VALUE_STRING)
        return -1;
    *value_out = string_at(file, value->at);
    return 0;
}

int64_t gguf_array_length(const gguf *file, const char *key) {
    const gguf_value *value = gguf__find_value(file, key);
    return value && value->is_array ? (int64_t)value->n_elements : -1;
}

int gguf_array_string(const gguf *file, const char *key, int64_t index, gguf_string *value_out) {
    const gguf_value *value = find_element(file, key, index);
    if (!value || value->type != GGUF_VALUE_STRING)
        return -1;
    *value_out = string_at(file, value->string_at[index]);
    return 0;
}

int gguf_array_float(const gguf *file, const char *key, int64_t index, double *value_out) {
    const gguf_value *value = find_element(file, key, index);
    return value ? as_float(file, value, index, value_out) : -1;
}

int gguf_array_int(const gguf *file, const char *key, int64_t index, int64_t *value_out) {
    const gguf_value *value = find_element(file, key, index);
    return value ? as_int(file, value, index, value_out) : -1;
}
