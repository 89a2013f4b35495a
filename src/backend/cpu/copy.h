/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of single rows with the widest registers this machine has. */
#ifndef HSP_COPY_H
#define HSP_COPY_H

#include <stddef.h>

/* No alignment asked. */
typedef void (*hsp__copy_fn)(void *to, const void *from, size_t bytes);

/* The best copy of this machine; its name ("avx512") in *name_out if not NULL. */
hsp__copy_fn hsp__copy_choose(const char **name_out);

#endif
