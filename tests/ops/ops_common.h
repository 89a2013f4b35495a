/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the ops library share: cmocka, random numbers that repeat, and the kernel tables to go through.
 */
#ifndef HSP_OPS_COMMON_H
#define HSP_OPS_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* clang-format off */
#include <cmocka.h> /* needs the headers above it */
/* clang-format on */

#include "../../ops/kernels.h"

static const char *const target_names[] = {"baseline", "avx2", "avx512"};

/* `target` counts 0 .. 2: every table this machine can run, in turn. */
#define FOR_EACH_TARGET(target)                                                                                        \
    for (int target = 0; target < 3; target++)                                                                         \
        if (hsp__ops_force_target(target_names[target]) == 0)

static inline uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32);
}

static inline int32_t random_below(uint64_t *state, int32_t n) {
    return (int32_t)(next_random(state) % (uint32_t)n);
}

/* Even in -1 .. 1, in steps that float32 holds exactly. */
static inline float random_float(uint64_t *state) {
    return (float)((int32_t)(next_random(state) >> 8) - (1 << 23)) / (float)(1 << 23);
}

static inline size_t bytes_of(int32_t dtype) {
    return dtype == HSP_F32 ? 4 : 2;
}

static inline void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    return p;
}

#endif
