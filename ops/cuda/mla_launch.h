/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ways MLA attention is computed: for GPUs with wgmma (compute capability 9.0), and for all others.
 */
#ifndef HSP_MLA_LAUNCH_H
#define HSP_MLA_LAUNCH_H

#include "attention.cuh"

#define HSP__MLA_HEADS 64 /* of a block */

/* For tests: not 0: as on a GPU that has none. */
extern "C" int hsp__mla_no_wgmma;

/* Of the kernel for rows of bf16 and wgmma, for the bench, until one is left: the sums of tile n - 1 between the halves
 * of S(n), or behind S(n) and beside its weighing; and the first without rows fetched to the L2 ahead. */
enum { HSP__MLA_SUMS_BETWEEN = 0, HSP__MLA_SUMS_BEHIND = 1, HSP__MLA_NO_FETCH_AHEAD = 2, HSP__MLA_VARIANTS = 3 };
extern "C" int hsp__mla_variant;

int hsp__mla_hopper_launch(const hsp__attention &a, int32_t format, const hsp_gpu_batch *batch, void *stream);
int hsp__mla_mma_launch(const hsp__attention &a, int32_t format, const hsp_gpu_batch *batch, void *stream);

#endif
