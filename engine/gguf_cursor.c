/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds-checked steps over the bytes of a file, and the one place where its errors are worded. */
#include "gguf_internal.h"
#include "mapped_file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int gguf__fail(const gguf_cursor *cursor, uint64_t offset, const char *format, ...) {
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return mapped_file_fail(cursor->name, offset, cursor->error, cursor->error_bytes, "%s", reason);
}

const char *gguf__printable(gguf_string string, char *text_out, size_t text_bytes) {
    return mapped_file_printable(string.bytes, string.length, text_out, text_bytes);
}

uint16_t gguf__u16(const uint8_t *bytes) {
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

uint32_t gguf__u32(const uint8_t *bytes) {
    return gguf__u16(bytes) | (uint32_t)gguf__u16(bytes + 2) << 16;
}

uint64_t gguf__u64(const uint8_t *bytes) {
    return gguf__u32(bytes) | (uint64_t)gguf__u32(bytes + 4) << 32;
}

const uint8_t *gguf__take(gguf_cursor *cursor, uint64_t n_bytes, const char *what) {
    uint64_t left = cursor->n_bytes - cursor->at;
    if (n_bytes > left) {
        gguf__fail(cursor, cursor->at, "%s needs %" PRIu64 " bytes, %" PRIu64 " are left", what, n_bytes, left);
        return NULL;
    }
    const uint8_t *taken = cursor->bytes + cursor->at;
    cursor->at += n_bytes;
    return taken;
}

int gguf__take_u32(gguf_cursor *cursor, const char *what, uint32_t *value_out) {
    const uint8_t *bytes = gguf__take(cursor, 4, what);
    if (!bytes)
        return -1;
    *value_out = gguf__u32(bytes);
    return 0;
}

int gguf__take_u64(gguf_cursor *cursor, const char *what, uint64_t *value_out) {
    const uint8_t *bytes = gguf__take(cursor, 8, what);
    if (!bytes)
        return -1;
    *value_out = gguf__u64(bytes);
    return 0;
}

int gguf__take_string(gguf_cursor *cursor, const char *what, gguf_string *value_out) {
    uint64_t length;
    if (gguf__take_u64(cursor, what, &length))
        return -1;
    const uint8_t *bytes = gguf__take(cursor, length, what);
    if (!bytes)
        return -1;
    *value_out = (gguf_string){(const char *)bytes, length};
    return 0;
}

int gguf__take_count(gguf_cursor *cursor, const char *what, uint64_t entry_bytes, uint64_t *value_out) {
    uint64_t at = cursor->at, count;
    if (gguf__take_u64(cursor, what, &count))
        return -1;
    uint64_t limit = (cursor->n_bytes - cursor->at) / entry_bytes;
    if (count > limit)
        return gguf__fail(cursor, at, "%s is %" PRIu64 ", the rest of the file holds %" PRIu64 " at most", what, count,
                          limit);
    *value_out = count;
    return 0;
}

static int compare_names(const void *left, const void *right) {
    const gguf_string *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

int gguf__sort_names(const gguf_cursor *cursor, const char *what, void *entries, uint64_t n, size_t entry_bytes) {
    if (n == 0)
        return 0;
    qsort(entries, n, entry_bytes, compare_names);
    for (uint64_t i = 1; i < n; i++) {
        const gguf_string *a = (const void *)((const char *)entries + (i - 1) * entry_bytes);
        const gguf_string *b = (const void *)((const char *)entries + i * entry_bytes);
        if (compare_names(a, b) != 0)
            continue;
        const char *second = a->bytes > b->bytes ? a->bytes : b->bytes;
        char text[64];
        return gguf__fail(cursor, (uint64_t)((const uint8_t *)second - cursor->bytes), "%s \"%s\" is there twice", what,
                          gguf__printable(*a, text, sizeof text));
    }
    return 0;
}

const void *gguf__find_name(const char *name, const void *entries, uint64_t n, size_t entry_bytes) {
    gguf_string wanted = {name, strlen(name)};
    return n ? bsearch(&wanted, entries, n, entry_bytes, compare_names) : NULL;
}
