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

/* Three rounds of 11, 10 and 11 bits, from the top. A round's counts are searched in two steps: 128 sums of as many
 * neighbouring digits as hsp__gpu_fine says, then these. */
enum { HSP__ROUNDS = 3, HSP__COARSE = 128 };

HSP__BOTH uint32_t hsp__gpu_fine(int round) {
    return round == 1 ? 8 : 16;
}

HSP__BOTH uint32_t hsp__gpu_digit(uint32_t rank, int round) {
    return round == 0 ? rank >> 21 : round == 1 ? rank >> 11 & 1023 : rank & 2047;
}

/* Has this rank the digits chosen before `round`? prefix: these digits, as a number. */
HSP__BOTH int hsp__gpu_matches(uint32_t rank, int round, uint32_t prefix) {
    return round == 0 || rank >> (round == 1 ? 21 : 11) == prefix;
}

HSP__BOTH uint32_t hsp__gpu_longer(uint32_t prefix, int round, uint32_t digit) {
    return prefix << (round == 1 ? 10 : 11) | digit;
}

/* counts[0 .. n - 1] of digits top, top - 1, ..: in which the k-th greatest is, and in *k_left the k that is left in
 * it. Their sum is at least k. */
HSP__BOTH uint32_t hsp__gpu_pick(const uint32_t *counts, int n, uint32_t top, uint32_t k, uint32_t *k_left) {
    uint32_t digit = top, left = k;
    int found = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < n; i++) {
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
