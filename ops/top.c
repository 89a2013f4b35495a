/* SPDX-License-Identifier: Apache-2.0 */
#include "top.h"

#include <string.h>

uint32_t hsp__rank_of(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    if (score != score)
        return 0;
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

/* Radix selection, one byte at a time from the top. */
uint32_t hsp__kth_rank(const uint32_t *ranks, int32_t n, int32_t k, int32_t *n_equal_out) {
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0};
        int32_t digit = 255;
        for (int32_t i = 0; i < n; i++)
            if ((ranks[i] & mask) == prefix)
                count[ranks[i] >> shift & 255]++;
        for (; count[digit] < k; digit--)
            k -= count[digit];
        prefix |= (uint32_t)digit << shift;
        mask |= UINT32_C(255) << shift;
    }
    *n_equal_out = k;
    return prefix;
}
