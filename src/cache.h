/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSP_CACHE_H
#define HSP_CACHE_H

#include "backend/backend.h"
#include "core/request.h"

/* One allocation holds this and everything it points to, apart from the memory of the backend. */
struct hsp_cache {
    hsp_config config;
    hsp__layout layout;
    hsp__host_pool pool;
    hsp__requests requests;
    int32_t *step_slot, *step_first, *step_n_new; /* [max_batch]: the step as the backend is told */
    int32_t batch;                                /* of the current step; -1 before the first */
    int32_t most_new;                             /* largest n_new of the current step */
    uint64_t steps;
    hsp_counters *group_counters; /* [n_groups]: scratch of hsp_stats_text */
    const hsp__backend *backend;
    void *self; /* of the backend */
    size_t bytes;
    hsp__error error;
};

#endif
