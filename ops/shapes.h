/* SPDX-License-Identifier: Apache-2.0
 *
 * What a shape must be like: the same for the library on the CPU and the one on the GPU, which both compile shapes*.c.
 */
#ifndef HSP_SHAPES_H
#define HSP_SHAPES_H

#include "hisparse_ops.h"

#define HSP__MAX_DIM 16384 /* heads and channels a shape may have; keeps every product of two of them in 31 bits */

#ifdef __cplusplus
extern "C" {
#endif

/* HSP_OK, HSP_EINVAL or HSP_ELIMIT. */
int hsp__check_quest(const hsp_quest_shape *shape);
int hsp__check_dsa(const hsp_dsa_shape *shape);
int hsp__check_nsa(const hsp_nsa_shape *shape);
int hsp__check_block(const hsp_block_shape *shape);
int hsp__check_exact(const hsp_exact_shape *shape);

#ifdef __cplusplus
}
#endif

#endif
