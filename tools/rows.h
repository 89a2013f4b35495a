/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers and rows whose bytes tell where they belong, for `hisparse verify` and `hisparse bench`. */
#ifndef HISPARSE_ROWS_H
#define HISPARSE_ROWS_H

#include "hisparse.h"

/* A stream of random numbers; the same seed gives the same stream everywhere. */
typedef struct rows_random {
    uint64_t state;
} rows_random;
uint64_t rows_draw(rows_random *random);
/* 0 .. n - 1; 0 for n below 2. */
int32_t rows_below(rows_random *random, int64_t n);
/* A random permutation of 0 .. n - 1. */
void rows_permutation(rows_random *random, int32_t *out, int32_t n);

/* Fill n_rows packed rows of row_bytes bytes (a multiple of 4). Every row gets the bytes of its own label, labels
 * counting up from `label`, so a row in the wrong place or half-copied cannot look right. */
void rows_fill(void *rows, size_t row_bytes, int64_t n_rows, uint64_t label);

/* Packed rows, all planes side by side, as the library takes them. */
hsp_row_source rows_source(const hsp_config *config, const void *rows);
hsp_row_sink rows_sink(const hsp_config *config, void *rows);
size_t rows_bytes(const hsp_config *config); /* of one row, all planes */

/* Does row `id` of the view hold these bytes? */
int rows_same(const hsp_rows_view *view, int64_t id, const void *row);

#endif
