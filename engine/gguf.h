/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of GGUF files (version 3): metadata and tensors of a memory-mapped file, every offset checked against the file
 * before it is followed. Nothing is copied; pointers live until gguf_close. */
#ifndef HISPARSE_GGUF_H
#define HISPARSE_GGUF_H

#include <stddef.h>
#include <stdint.h>

/* Tensor types, numbered as in the format. Others are refused with their number. */
enum gguf_tensor_type {
    GGUF_F32 = 0,
    GGUF_F16 = 1,
    GGUF_Q4_0 = 2,
    GGUF_Q4_1 = 3,
    GGUF_Q5_0 = 6,
    GGUF_Q5_1 = 7,
    GGUF_Q8_0 = 8,
    GGUF_Q4_K = 12,
    GGUF_Q5_K = 13,
    GGUF_Q6_K = 14,
    GGUF_BF16 = 30
};

typedef struct gguf_string {
    const char *bytes; /* not terminated, may hold any byte */
    size_t length;
} gguf_string;

typedef struct gguf_tensor {
    gguf_string name;
    int32_t type; /* enum gguf_tensor_type */
    int32_t n_dims;
    int64_t dims[4]; /* dims[0] is the row length; unused ones are 1 */
    const void *data;
    size_t data_bytes;
} gguf_tensor;

typedef struct gguf gguf;

/* Map and check a whole file. On failure NULL, and `error` (of error_bytes) says "FILE: offset N: reason". The file
 * must not shrink while it is open. */
gguf *gguf_open(const char *path, char *error, size_t error_bytes);
/* The same over bytes in memory, which must outlive the reader; `name` stands for the file in messages. Tensor data is
 * as aligned as the bytes are, up to "general.alignment"; a mapped file always keeps it at 8 or more. */
gguf *gguf_open_memory(const void *bytes, size_t n_bytes, const char *name, char *error, size_t error_bytes);
void gguf_close(gguf *file);

/* Metadata by key. 0 when found and of a fitting type and value, -1 otherwise with nothing written. Integers of every
 * width are accepted where they fit. */
int gguf_get_int(const gguf *file, const char *key, int64_t *value_out);
int gguf_get_float(const gguf *file, const char *key, double *value_out);
int gguf_get_bool(const gguf *file, const char *key, int *value_out);
int gguf_get_string(const gguf *file, const char *key, gguf_string *value_out);

/* Arrays by key: the number of elements, -1 when there is none. Elements of string, float and integer arrays. */
int64_t gguf_array_length(const gguf *file, const char *key);
int gguf_array_string(const gguf *file, const char *key, int64_t index, gguf_string *value_out);
int gguf_array_float(const gguf *file, const char *key, int64_t index, double *value_out);
int gguf_array_int(const gguf *file, const char *key, int64_t index, int64_t *value_out);

/* Tensor by name, NULL when there is none. */
const gguf_tensor *gguf_find_tensor(const gguf *file, const char *name);

/* Bytes of a row of `n` numbers; 0 when the type is unknown or n is not a positive multiple of the type's block. */
size_t gguf_row_bytes(int32_t type, int64_t n);
const char *gguf_type_name(int32_t type); /* NULL: unknown */

/* Turn n numbers of `type` (whole blocks) into float32. */
void gguf_dequantize(int32_t type, const void *data, int64_t n, float *values_out);

#endif
