/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of plain keys for NSA, block and exact: rows in the format of the keys, and the same as floats. */
#ifndef HSP_GPU_KEYS_H
#define HSP_GPU_KEYS_H

#include "gpu_select.h"

#include "../ops/select_common.h"

enum { KEY_SLOTS = 3 };

/* Keys of every slot, `pad` bytes between rows, into s->rows; whole: small whole numbers. */
static inline void make_requests(struct selector *s, struct keys keys[KEY_SLOTS], int32_t dtype, int32_t n,
                                 int32_t channels, size_t pad, int whole, uint64_t seed) {
    s->n_slots = KEY_SLOTS;
    for (int32_t i = 0; i < KEY_SLOTS; i++) {
        keys[i] = make_keys(dtype, n, channels, pad, 1.0f, seed + (uint64_t)i);
        if (whole)
            whole_numbers(keys[i].floats, (size_t)n * (size_t)channels, seed + (uint64_t)i);
        for (int32_t t = 0; whole && t < n; t++)
            pack_key(&keys[i], t);
    }
    s->row_stride = keys[0].stride;
    s->request_stride = ((size_t)n * keys[0].stride + 15) / 16 * 16 + (pad ? bytes_of(dtype) : 0);
    s->rows = allocate(KEY_SLOTS * s->request_stride);
    for (int32_t i = 0; i < KEY_SLOTS; i++)
        memcpy(s->rows + (size_t)i * s->request_stride, keys[i].rows, (size_t)n * keys[i].stride);
    s->more = keys;
}

static inline void free_requests(struct keys keys[KEY_SLOTS]) {
    for (int32_t i = 0; i < KEY_SLOTS; i++)
        free_keys(&keys[i]);
}

/* The keys of the request whose rows these are, the first n of them. */
static inline struct keys keys_of(const struct selector *s, const char *rows, int32_t n) {
    struct keys keys = ((const struct keys *)s->more)[(size_t)(rows - s->rows) / s->request_stride];
    keys.n = n;
    return keys;
}

#endif
