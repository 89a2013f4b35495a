/* SPDX-License-Identifier: Apache-2.0 */
/* The product of a few query heads with one key, as every kernel that scores keys makes it. */
#ifndef HSP_DOTS_H
#define HSP_DOTS_H

#include "lanes.h"

#define HEADS 4 /* query heads that go over a key together */

/* dots_out[h] = q(h) . key for `heads` queries of dim channels, one after the other at `query`. */
HSP_INLINE void dot_heads(int dtype, int heads, const char *key, const float *query, size_t dim,
                          float dots_out[HEADS]) {
    size_t whole = dim / HSP_LANES * HSP_LANES, rest = dim - whole;
    lanes sum[HEADS];
    for (int h = 0; h < heads; h++)
        sum[h] = lanes_all(0.0f);
    for (size_t c = 0; c < whole; c += HSP_LANES) {
        lanes k = lanes_load(dtype, key + c * dtype_bytes(dtype));
        for (int h = 0; h < heads; h++)
            sum[h] = lanes_add(sum[h], lanes_mul(k, lanes_load_f32(query + (size_t)h * dim + c)));
    }
    if (rest) {
        lanes k = lanes_load_part(dtype, key + whole * dtype_bytes(dtype), rest);
        for (int h = 0; h < heads; h++)
            sum[h] = lanes_add(sum[h], lanes_mul(k, lanes_load_part(HSP_F32, query + (size_t)h * dim + whole, rest)));
    }
    for (int h = 0; h < heads; h++)
        dots_out[h] = lanes_sum(sum[h]);
}

#endif
