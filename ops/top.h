/* SPDX-License-Identifier: Apache-2.0 */
/* The k greatest of many scores, the same for every selector. */
#ifndef HSP_TOP_H
#define HSP_TOP_H

#include <stdint.h>

/* A number that is ordered as the score is: 0 for NaN, 0xffffffff for none, so that a caller may force an entry in. A
 * score must not be -0, which would come out below 0: sums begun at 0 never are. */
uint32_t hsp__rank_of(float score);

/* The k-th greatest of n ranks, and in *n_equal_out how many of the k are equal to it. Linear whatever the ranks are.
 * 1 <= k <= n. */
uint32_t hsp__kth_rank(const uint32_t *ranks, int32_t n, int32_t k, int32_t *n_equal_out);

#endif
