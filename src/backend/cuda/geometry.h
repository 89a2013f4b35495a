/* SPDX-License-Identifier: Apache-2.0 */
/* Filling in the params of a launch from the layout. */
#ifndef HSP_CUDA_GEOMETRY_H
#define HSP_CUDA_GEOMETRY_H

#include "backend/cuda/cuda_backend.h"

/* late: the group's followers come later, and a plan is left for them. */
hsp__cuda_swap_in hsp__cuda_swap_in_params(const hsp__cuda *cuda, int32_t group, int late, const int32_t *selection,
                                           int32_t n, int32_t *ids);
/* By the plan that the latest swap-in of its group left, with the batch of the step. */
hsp__cuda_follow hsp__cuda_follow_params(const hsp__cuda *cuda, int32_t layer);
hsp__cuda_write hsp__cuda_write_params(const hsp__cuda *cuda, int32_t layer, const hsp_row_source *rows);
hsp__cuda_admit hsp__cuda_admit_params(const hsp__cuda *cuda, int32_t slot);

/* ring_first and the batch arrays lie one after the other on the device and are replaced in one copy: its bytes, and
 * the arrays in the host's copy. */
size_t hsp__cuda_step_bytes(const hsp__layout *layout);
hsp__slots hsp__cuda_step_view(const hsp__cuda *cuda);

#endif
