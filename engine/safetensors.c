/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include "hisparse_ops.h"
#include "mapped_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Room for some ten thousand tensors. What JSON takes in memory is bounded by a multiple of this. */
enum { MAX_HEADER_BYTES = 1 << 20, LENGTH_BYTES = 8 };

struct safetensors {
    char *name; /* in messages */
    char *error;
    size_t error_bytes; /* both only while it is opened */
    const uint8_t *bytes;
    uint64_t n_bytes, header_bytes, data_bytes;
    int is_mapped;
    json_t *header;              /* owns the names */
    safetensors_tensor *tensors; /* in the order of their data */
    size_t n_tensors;
};

__attribute__((format(printf, 3, 4))) static int fail(const safetensors *file, uint64_t offset, const char *format,
                                                      ...) {
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return mapped_file_fail(file->name, offset, file->error, file->error_bytes, "%s", reason);
}

/* ------------------------------------------------------------------------------------------------------- header -- */

static int read_header(safetensors *file) {
    json_error_t why;
    if (file->n_bytes < LENGTH_BYTES)
        return fail(file, 0, "length of the header needs %d bytes, %" PRIu64 " are there", LENGTH_BYTES, file->n_bytes);
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        file->header_bytes = file->header_bytes << 8 | file->bytes[i];
    if (file->header_bytes < 2 || file->header_bytes > MAX_HEADER_BYTES)
        return fail(file, 0, "header of %" PRIu64 " bytes, allowed are 2 to %d", file->header_bytes, MAX_HEADER_BYTES);
    if (file->header_bytes > file->n_bytes - LENGTH_BYTES)
        return fail(file, 0, "header of %" PRIu64 " bytes, %" PRIu64 " are left", file->header_bytes,
                    file->n_bytes - LENGTH_BYTES);
    file->data_bytes = file->n_bytes - LENGTH_BYTES - file->header_bytes;
    file->header =
        json_loadb((const char *)file->bytes + LENGTH_BYTES, file->header_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!file->header) {
        uint64_t at = why.position > 0 ? (uint64_t)why.position : 0; /* it may lie one byte beyond the end */
        char text[128];
        return fail(file, LENGTH_BYTES + (at < file->header_bytes ? at : file->header_bytes), "header: %s",
                    mapped_file_printable(why.text, strlen(why.text), text, sizeof text));
    }
    return json_is_object(file->header) ? 0 : fail(file, LENGTH_BYTES, "header is not a JSON object");
}

uint64_t safetensors_place(const safetensors *file, const char *key) {
    char quoted[256];
    int n = snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const uint8_t *header = file->bytes + LENGTH_BYTES;
    const uint8_t *found = n < (int)sizeof quoted ? memmem(header, file->header_bytes, quoted, (size_t)n) : NULL;
    return found ? (uint64_t)(found - file->bytes) : LENGTH_BYTES; /* a name may be written with escapes */
}

uint64_t safetensors_data_place(const safetensors *file) {
    return LENGTH_BYTES + file->header_bytes;
}

static int check_metadata(const safetensors *file, json_t *metadata) {
    const char *key;
    json_t *value;
    uint64_t at = safetensors_place(file, "__metadata__");
    if (!json_is_object(metadata))
        return fail(file, at, "__metadata__ is not an object");
    json_object_foreach(metadata, key, value) {
        char text[64];
        if (!json_is_string(value))
            return fail(file, at, "__metadata__: \"%s\" is not a text",
                        mapped_file_printable(key, strlen(key), text, sizeof text));
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------ tensors -- */

/* An error about a tensor, at its name. */
__attribute__((format(printf, 3, 4))) static int fail_tensor(const safetensors *file, const char *name,
                                                             const char *format, ...) {
    char reason[192], text[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return fail(file, safetensors_place(file, name), "tensor \"%s\" %s",
                mapped_file_printable(name, strlen(name), text, sizeof text), reason);
}

static int read_dtype(const safetensors *file, const char *name, json_t *entry, safetensors_tensor *tensor) {
    static const struct {
        const char *name;
        int32_t dtype;
    } known[] = {{"F32", HSP_F32}, {"F16", HSP_F16}, {"BF16", HSP_BF16}, {"I32", SAFETENSORS_I32}};
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    char text[32];
    if (!dtype)
        return fail_tensor(file, name, "has no dtype, or one that is not a text");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(dtype, known[i].name) == 0) {
            tensor->dtype = known[i].dtype;
            return 0;
        }
    return fail_tensor(file, name, "has dtype \"%s\", known are F32, F16, BF16 and I32",
                       mapped_file_printable(dtype, strlen(dtype), text, sizeof text));
}

/* Dimensions whose product fits int64_t, so that no later size computation on them can overflow unseen. */
static int read_shape(const safetensors *file, const char *name, json_t *entry, safetensors_tensor *tensor) {
    json_t *shape = json_object_get(entry, "shape"), *dim;
    size_t i;
    if (!json_is_array(shape))
        return fail_tensor(file, name, "has no shape, or one that is not an array");
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return fail_tensor(file, name, "has %zu dimensions, allowed are 0 to %d", json_array_size(shape),
                           SAFETENSORS_MAX_DIMS);
    tensor->n_dims = (int32_t)json_array_size(shape);
    tensor->n_numbers = 1;
    json_array_foreach(shape, i, dim) {
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return fail_tensor(file, name, "has a dimension %zu that is not an integer of 0 or more", i);
        tensor->dims[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(tensor->n_numbers, tensor->dims[i], &tensor->n_numbers))
            return fail_tensor(file, name, "has %" PRId64 " as dimension %zu, more than 2^63 numbers in all",
                               tensor->dims[i], i);
    }
    return 0;
}

static int64_t number_bytes(int32_t dtype) {
    return dtype == HSP_F32 || dtype == SAFETENSORS_I32 ? 4 : 2;
}

static int read_offsets(const safetensors *file, const char *name, json_t *entry, safetensors_tensor *tensor) {
    json_t *offsets = json_object_get(entry, "data_offsets");
    json_t *first = json_array_get(offsets, 0), *after = json_array_get(offsets, 1);
    int64_t from = json_integer_value(first), to = json_integer_value(after), bytes;
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(after))
        return fail_tensor(file, name, "has no data_offsets, or ones that are not two integers");
    if (from < 0 || to < from || (uint64_t)to > file->data_bytes)
        return fail_tensor(file, name, "has data_offsets [%" PRId64 ", %" PRId64 "], the data has %" PRIu64 " bytes",
                           from, to, file->data_bytes);
    if (__builtin_mul_overflow(tensor->n_numbers, number_bytes(tensor->dtype), &bytes) || bytes != to - from)
        return fail_tensor(file, name, "has %" PRId64 " numbers in %" PRId64 " bytes", tensor->n_numbers, to - from);
    tensor->data = file->bytes + LENGTH_BYTES + file->header_bytes + from;
    tensor->data_bytes = (size_t)bytes;
    return 0;
}

static int read_tensor(const safetensors *file, const char *name, json_t *entry, safetensors_tensor *tensor) {
    tensor->name = name;
    if (!json_is_object(entry))
        return fail_tensor(file, name, "is not described by an object");
    if (read_dtype(file, name, entry, tensor) || read_shape(file, name, entry, tensor))
        return -1;
    return read_offsets(file, name, entry, tensor);
}

/* By data; where tensors without bytes begin at the same place, they come first. */
static int compare_places(const void *left, const void *right) {
    const safetensors_tensor *a = left, *b = right;
    if (a->data != b->data)
        return a->data < b->data ? -1 : 1;
    return (a->data_bytes > b->data_bytes) - (a->data_bytes < b->data_bytes);
}

/* The format allows no byte that belongs to no tensor, or to two. */
static int check_coverage(const safetensors *file) {
    const uint8_t *data = file->bytes + LENGTH_BYTES + file->header_bytes, *at = data;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const safetensors_tensor *t = &file->tensors[i];
        const uint8_t *begin = t->data;
        if (begin != at)
            return fail_tensor(file, t->name, "begins at byte %td of the data, %s byte %td", begin - data,
                               begin < at ? "inside the one that ends before" : "with nothing from", at - data);
        at = begin + t->data_bytes;
    }
    uint64_t covered = (uint64_t)(at - data);
    if (covered != file->data_bytes)
        return fail(file, LENGTH_BYTES + file->header_bytes + covered,
                    "%" PRIu64 " bytes follow that belong to no tensor", file->data_bytes - covered);
    return 0;
}

static int read_tensors(safetensors *file) {
    const char *name;
    json_t *entry;
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return fail(file, LENGTH_BYTES, "no memory for %zu tensors", json_object_size(file->header));
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            if (check_metadata(file, entry))
                return -1;
        } else if (read_tensor(file, name, entry, &file->tensors[file->n_tensors++])) {
            return -1;
        }
    }
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, compare_places);
    return check_coverage(file);
}

/* ---------------------------------------------------------------------------------------------- open and look up -- */

/* Takes over the mapping, if it is one: it is unmapped on failure too. */
static safetensors *open_bytes(const safetensors *from) {
    safetensors *file = malloc(sizeof *file);
    char *name = strdup(from->name);
    if (!file || !name) {
        fail(from, 0, "no memory");
        free(file);
        free(name);
        if (from->is_mapped)
            munmap((void *)from->bytes, from->n_bytes);
        return NULL;
    }
    *file = *from;
    file->name = name;
    if (read_header(file) || read_tensors(file)) {
        safetensors_close(file);
        return NULL;
    }
    file->error = NULL;
    return file;
}

safetensors *safetensors_open_memory(const void *bytes, size_t n_bytes, const char *name, char *error,
                                     size_t error_bytes) {
    const safetensors from = {
        .name = (char *)name, .error = error, .error_bytes = error_bytes, .bytes = bytes, .n_bytes = n_bytes};
    return open_bytes(&from);
}

safetensors *safetensors_open(const char *path, char *error, size_t error_bytes) {
    safetensors from = {.name = (char *)path, .error = error, .error_bytes = error_bytes, .is_mapped = 1};
    if (mapped_file_open(path, &from.bytes, &from.n_bytes, error, error_bytes))
        return NULL;
    return open_bytes(&from);
}

void safetensors_close(safetensors *file) {
    if (!file)
        return;
    json_decref(file->header);
    free(file->tensors);
    free(file->name);
    if (file->is_mapped)
        munmap((void *)file->bytes, file->n_bytes);
    free(file);
}

const char *safetensors_metadata(const safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

size_t safetensors_count(const safetensors *file) {
    return file->n_tensors;
}

const safetensors_tensor *safetensors_at(const safetensors *file, size_t index) {
    return &file->tensors[index];
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name) {
    for (size_t i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}
