/* SPDX-License-Identifier: Apache-2.0 */
/* State of the cpu backend. */
#ifndef HSP_CPU_H
#define HSP_CPU_H

#include "backend/cpu/copy.h"
#include "backend/plain.h"

typedef struct hsp__cpu {
    hsp__plain plain; /* first: the plain ops see only this */
    hsp__copy_fn copy;
    int32_t n_threads;
    int64_t *miss_first; /* [max_batch + 1]: number of misses before each entry, while they are fetched */
} hsp__cpu;

int hsp__cpu_fill(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens, const hsp_row_source *rows,
                  void *stream, hsp__error *error);
int hsp__cpu_append(void *self, int32_t layer, const hsp_row_source *rows, int32_t rows_per_request, void *stream,
                    hsp__error *error);
int hsp__cpu_warm(void *self, int32_t slot, int32_t group, const int32_t *tokens, int32_t n, void *stream,
                  hsp__error *error);
int hsp__cpu_swap_in(void *self, int32_t group, const int32_t *selection, int32_t n_queries, int32_t k,
                     int32_t *row_ids_out, void *stream, hsp__error *error);
int hsp__cpu_wait_rows(void *self, int32_t layer, void *stream, hsp__error *error);

/* Work smaller than this is done by one thread: waking others takes longer. */
#define HSP__CPU_SERIAL_BYTES ((int64_t)256 << 10)

#endif
