/* SPDX-License-Identifier: Apache-2.0 */
/* Characters of UTF-8 text and the four classes that pre-tokenization tells apart. */
#ifndef HISPARSE_UNICODE_H
#define HISPARSE_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum unicode_class { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

/* Code point of a byte that is not part of well-formed UTF-8. */
#define UNICODE_INVALID 0xFFFFFFFFu

/* First character of n > 0 bytes: its length in bytes; 1 and UNICODE_INVALID when they do not begin with UTF-8. */
size_t unicode_decode(const char *bytes, size_t n, uint32_t *code_out);
/* Bytes of a code point below 0x800 as UTF-8: the number written, 1 or 2. */
size_t unicode_encode_short(uint32_t code, char *bytes_out);
enum unicode_class unicode_classify(uint32_t code);

#endif
