/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of whole numbers as numpy saves them: a .npy file, or a member of an .npz file, read from front to back. */
#ifndef HISPARSE_NPY_H
#define HISPARSE_NPY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { NPY_MOST_DIMS = 4 };

typedef struct npy {
    int n_dims, number_bytes; /* 4 or 8 */
    int64_t dims[NPY_MOST_DIMS];
    char name[512]; /* in messages: "FILE", or "FILE: MEMBER" */
    int64_t offset; /* bytes read so far, of the file or of the member unpacked */
    FILE *file;
    void *archive, *member; /* of libzip */
} npy;

/* Open and read the header. array: the member of an .npz file, without ".npy"; a .npy file has just one array, whatever
 * it is called. Returns 1 when an .npz has no such member; an exit code after the message for what cannot be used: only
 * int32 and int64 in C order are. npy_close after success alone. */
int npy_open(npy *n, const char *path, const char *array);
/* The next numbers as int32; an exit code after the message, for one that does not fit too. */
int npy_read(npy *n, int32_t *numbers_out, int64_t count);
void npy_close(npy *n);

/* An .npz file, by the end of its name? */
int npy_is_archive(const char *path);

#endif
