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

int hsp__mla_hopper_launch(const hsp__attention &a, int32_t format, const hsp_gpu_batch *batch, void *stream);
int hsp__mla_mma_launch(const hsp__attention &a, int32_t format, const hsp_gpu_batch *batch, void *stream);

#endif
