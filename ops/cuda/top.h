/* SPDX-License-Identifier: Apache-2.0 */
/* The last step of every selector: out of scores of units (tokens, pages, blocks) the tokens of the best. */
#ifndef HSP_OPS_CUDA_TOP_H
#define HSP_OPS_CUDA_TOP_H

#include "batch.h"

typedef struct hsp__gpu_choice {
    hsp_gpu_batch batch;
    const float *scores; /* row (entry * n_queries + query) * n_groups + group, score_stride floats from row to row */
    uint64_t score_stride;
    int32_t n_groups;
    int32_t unit_tokens;      /* tokens of a unit; the last may be incomplete */
    int32_t n_first, n_local; /* first and newest units that are always in */
    int32_t n_chosen;         /* units */
    int32_t n_cached;         /* ranks a warp keeps; set by the launch */
    int32_t *selection_out;   /* [rows][n_chosen * unit_tokens] */
} hsp__gpu_choice;

int hsp__gpu_choose(const hsp__gpu_choice *choice, void *stream);

#endif
