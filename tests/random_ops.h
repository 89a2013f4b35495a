/* SPDX-License-Identifier: Apache-2.0 */
/* One operation on the toy and the cache, chosen by a source of numbers: a generator in the model test, the fuzzer's
 * bytes in the fuzz target. */
#ifndef HSP_RANDOM_OPS_H
#define HSP_RANDOM_OPS_H

#include "toy.h"

typedef struct chooser {
    uint32_t (*below)(struct chooser *c, uint32_t n); /* 0 .. n - 1 */
    void *state;
} chooser;

/* A config with everything drawn: sizes, groups, planes, blocks, policy. map: [16], to live until open. */
void random_config(chooser *c, const char *backend, hsp_config *config_out, int32_t *map);
void random_op(chooser *c, toy *t);

#endif
