/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of safetensors files: a JSON header that names tensors, then their bytes. The file is memory-mapped and
 * checked whole before anything of it is used: every shape against its bytes, and the tensors against each other, which
 * must fill the data without holes or overlaps. Tensor data is not copied; pointers live until safetensors_close. */
#ifndef HISPARSE_SAFETENSORS_H
#define HISPARSE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_DIMS = 8, SAFETENSORS_I32 = 64 /* no enum hsp_dtype */ };

typedef struct safetensors_tensor {
    const char *name;                   /* UTF-8 */
    int32_t dtype;                      /* HSP_F32, HSP_F16, HSP_BF16, SAFETENSORS_I32; others are refused */
    int32_t n_dims;                     /* 0: one number */
    int64_t dims[SAFETENSORS_MAX_DIMS]; /* dims[n_dims - 1] is the row length; any may be 0 */
    int64_t n_numbers;
    const void *data; /* of any alignment */
    size_t data_bytes;
} safetensors_tensor;

typedef struct safetensors safetensors;

/* Map and check a whole file. On failure NULL, and `error` (of error_bytes) says "FILE: offset N: reason". The file
 * must not shrink while it is open. */
safetensors *safetensors_open(const char *path, char *error, size_t error_bytes);
/* The same over bytes in memory, which must outlive the reader; `name` stands for the file in messages. */
safetensors *safetensors_open_memory(const void *bytes, size_t n_bytes, const char *name, char *error,
                                     size_t error_bytes);
void safetensors_close(safetensors *file);

/* Text under a key of "__metadata__", NULL when there is none. */
const char *safetensors_metadata(const safetensors *file, const char *key);

/* Tensors in the order of their data; by name, NULL when there is none. */
size_t safetensors_count(const safetensors *file);
const safetensors_tensor *safetensors_at(const safetensors *file, size_t index);
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name);

/* Where in the file a key of the header, "__metadata__" included, stands; for messages. */
uint64_t safetensors_place(const safetensors *file, const char *key);
/* Where in the file the data, and with it the first tensor, begins. */
uint64_t safetensors_data_place(const safetensors *file);

#endif
