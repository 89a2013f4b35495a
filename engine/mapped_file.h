/* SPDX-License-Identifier: Apache-2.0 */
/* A regular file mapped whole, for the readers of model files, and the form of their messages. */
#ifndef HISPARSE_MAPPED_FILE_H
#define HISPARSE_MAPPED_FILE_H

#include <stddef.h>
#include <stdint.h>

/* 0; or -1, with "FILE: reason" in `error`, for a file that cannot be read at all. munmap gives it back. */
int mapped_file_open(const char *path, const uint8_t **bytes_out, uint64_t *n_bytes_out, char *error,
                     size_t error_bytes);

/* Say "NAME: offset N: reason" and return -1. error may be NULL. */
int mapped_file_fail(const char *name, uint64_t offset, char *error, size_t error_bytes, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Text from a file goes to terminals, control bytes must not: a copy with '?' for them, cut to fit; returns text_out.
 */
const char *mapped_file_printable(const char *bytes, size_t n_bytes, char *text_out, size_t text_bytes);

#endif
