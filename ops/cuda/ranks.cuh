/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of scores and one step of a radix selection, as plain functions that the host's tests compile as well.
 */
#ifndef HSP_OPS_CUDA_RANKS_CUH
#define HSP_OPS_CUDA_RANKS_CUH

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HSP__BOTH static __host__ __device__ __forceinline__
#else
#define HSP__BOTH static inline
#endif

#define HSP__FORCED 0xffffffffu /* no score has this rank */

/* Ordered as the score is; 0 for NaN. -0 is made 0 first. */
HSP__BOTH uint32_t hsp__gpu_rank_of(float score) {
    uint32_t bits;
    float plain = score + 0.0f;
#ifdef __CUDA_ARCH__
    bits = __float_as_uint(plain);
#else
    memcpy(&bits, &plain, sizeof bits);
#endif
    if (score != score)
        return 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Digits go from the top, eight bits a round. */
HSP__BOTH uint32_t hsp__gpu_digit(uint32_t rank, int round) {
    return rank >> (24 - 8 * round) & 255;
}

/* Has this rank the digits chosen before `round`? prefix: these digits, as a number. */
HSP__BOTH int hsp__gpu_matches(uint32_t rank, int round, uint32_t prefix) {
    return round == 0 || rank >> (32 - 8 * round) == prefix;
}

/* counts[0 .. 7] of digits top, top - 1, ..: in which the k-th greatest is, and in *k_left the k that is left in it.
 * Their sum is at least k. */
HSP__BOTH uint32_t hsp__gpu_pick(const uint32_t counts[8], uint32_t top, uint32_t k, uint32_t *k_left) {
    uint32_t digit = top, left = k;
    int found = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < 8; i++) {
        if (!found && counts[i] < left)
            left -= counts[i];
        else if (!found) {
            found = 1;
            digit = top - (uint32_t)i;
        }
    }
    *k_left = left;
    return digit;
}

#endif
