/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor table of a GGUF file: shape, type and place of each, checked against the file. */
#include "gguf_internal.h"

#include <inttypes.h>
#include <stdlib.h>

/* Empty name, dimension count, one dimension, type and offset: nothing shorter is an entry. */
enum { MIN_TENSOR_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8, MAX_DIMS = 4 };

/* Eight keeps tensors of every type aligned in memory for direct access; the format asks for the same. */
enum { MIN_ALIGNMENT = 8, DEFAULT_ALIGNMENT = 32 };

static int read_alignment(const gguf_cursor *cursor, const gguf *file, uint64_t *alignment_out) {
    *alignment_out = DEFAULT_ALIGNMENT;
    const gguf_value *value = gguf__find_value(file, "general.alignment");
    if (!value)
        return 0;
    if (value->is_array || value->type != GGUF_VALUE_U32)
        return gguf__fail(cursor, value->at, "general.alignment is %s of type %" PRIu32 ", not a value of type 4",
                          value->is_array ? "an array" : "a value", value->type);
    uint32_t alignment = gguf__u32(file->bytes + value->at);
    if (alignment < MIN_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return gguf__fail(cursor, value->at, "general.alignment is %" PRIu32 ", not a power of two of at least %d",
                          alignment, MIN_ALIGNMENT);
    *alignment_out = alignment;
    return 0;
}

/* Dimensions whose product fits int64_t, so that no later size computation on them can overflow unseen. */
static int read_dims(gguf_cursor *cursor, gguf_tensor *tensor, int64_t *n_numbers_out) {
    uint64_t at = cursor->at;
    uint32_t n_dims;
    if (gguf__take_u32(cursor, "number of dimensions", &n_dims))
        return -1;
    if (n_dims < 1 || n_dims > MAX_DIMS)
        return gguf__fail(cursor, at, "number of dimensions is %" PRIu32 ", allowed are 1 to %d", n_dims, MAX_DIMS);
    tensor->n_dims = (int32_t)n_dims;
    *n_numbers_out = 1;
    for (uint32_t i = 0; i < MAX_DIMS; i++) {
        uint64_t dim = 1;
        at = cursor->at;
        if (i < n_dims && gguf__take_u64(cursor, "dimension", &dim))
            return -1;
        if (dim < 1 || dim > INT64_MAX)
            return gguf__fail(cursor, at, "dimension %" PRIu32 " is %" PRIu64 ", allowed are 1 to %" PRId64, i, dim,
                              INT64_MAX);
        tensor->dims[i] = (int64_t)dim;
        if (__builtin_mul_overflow(*n_numbers_out, tensor->dims[i], n_numbers_out))
            return gguf__fail(cursor, at, "dimension %" PRIu32 " is %" PRIu64 ", more than 2^63 numbers in all", i,
                              dim);
    }
    return 0;
}

static int read_type(gguf_cursor *cursor, gguf_tensor *tensor, int64_t n_numbers) {
    uint64_t at = cursor->at;
    uint32_t type;
    if (gguf__take_u32(cursor, "tensor type", &type))
        return -1;
    const char *type_name = type <= INT32_MAX ? gguf_type_name((int32_t)type) : NULL;
    if (!type_name)
        return gguf__fail(cursor, at,
                          "tensor type is %" PRIu32 ", known are 0 (F32), 1 (F16), 2, 3, 6, 7, 8 (Q4_0 to Q8_0), "
                          "12, 13, 14 (Q4_K to Q6_K) and 30 (BF16)",
                          type);
    tensor->type = (int32_t)type;
    if (gguf_row_bytes(tensor->type, tensor->dims[0]) == 0)
        return gguf__fail(cursor, at, "tensor row of %" PRId64 " numbers is not whole blocks of type %s",
                          tensor->dims[0], type_name);
    /* Rows are whole blocks, so the tensor is: its bytes are those of one long row. */
    tensor->data_bytes = gguf_row_bytes(tensor->type, n_numbers);
    if (tensor->data_bytes == 0)
        return gguf__fail(cursor, at, "tensor of %" PRId64 " numbers of type %s is more than 2^64 bytes", n_numbers,
                          type_name);
    return 0;
}

static int read_tensor(gguf_cursor *cursor, gguf_tensor *tensor) {
    int64_t n_numbers = 0;
    uint64_t ignored;
    if (gguf__take_string(cursor, "tensor name", &tensor->name) || read_dims(cursor, tensor, &n_numbers) ||
        read_type(cursor, tensor, n_numbers))
        return -1;
    /* The offset counts from the end of the table, not known yet: place_tensor comes back for it. */
    return gguf__take_u64(cursor, "tensor offset", &ignored);
}

static int place_tensor(const gguf_cursor *cursor, gguf_tensor *tensor, uint64_t data_at, uint64_t alignment) {
    const uint8_t *name_end = (const uint8_t *)tensor->name.bytes + tensor->name.length;
    uint64_t at = (uint64_t)(name_end - cursor->bytes) + 4 + 8 * (uint64_t)tensor->n_dims + 4;
    uint64_t offset = gguf__u64(cursor->bytes + at);
    uint64_t limit = data_at < cursor->n_bytes ? cursor->n_bytes - data_at : 0;
    char text[64];
    if (offset % alignment != 0)
        return gguf__fail(cursor, at, "tensor \"%s\" has offset %" PRIu64 ", not a multiple of the alignment %" PRIu64,
                          gguf__printable(tensor->name, text, sizeof text), offset, alignment);
    if (offset > limit || tensor->data_bytes > limit - offset)
        return gguf__fail(cursor, at,
                          "tensor \"%s\" has %zu bytes at offset %" PRIu64 " of the data, which has %" PRIu64 " bytes",
                          gguf__printable(tensor->name, text, sizeof text), tensor->data_bytes, offset, limit);
    tensor->data = cursor->bytes + data_at + offset;
    return 0;
}

int gguf__read_tensors(gguf_cursor *cursor, gguf *file) {
    uint64_t alignment;
    if (read_alignment(cursor, file, &alignment))
        return -1;
    if (file->n_tensors > (cursor->n_bytes - cursor->at) / MIN_TENSOR_ENTRY_BYTES)
        return gguf__fail(cursor, cursor->at, "tensor table of %" PRIu64 " entries, %" PRIu64 " bytes are left",
                          file->n_tensors, cursor->n_bytes - cursor->at);
    file->tensors = calloc(file->n_tensors ? file->n_tensors : 1, sizeof *file->tensors);
    if (!file->tensors)
        return gguf__fail(cursor, cursor->at, "no memory for %" PRIu64 " tensors", file->n_tensors);
    for (uint64_t i = 0; i < file->n_tensors; i++)
        if (read_tensor(cursor, &file->tensors[i]))
            return -1;
    /* No overflow: the cursor is inside a file of less than 2^63 bytes and the alignment is below 2^32. */
    uint64_t data_at = (cursor->at + alignment - 1) / alignment * alignment;
    for (uint64_t i = 0; i < file->n_tensors; i++)
        if (place_tensor(cursor, &file->tensors[i], data_at, alignment))
            return -1;
    return gguf__sort_names(cursor, "tensor", file->tensors, file->n_tensors, sizeof *file->tensors);
}

const gguf_tensor *gguf_find_tensor(const gguf *file, const char *name) {
    return gguf__find_name(name, file->tensors, file->n_tensors, sizeof *file->tensors);
}
