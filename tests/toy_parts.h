/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the toy share. */
#ifndef HSP_TOY_PARTS_H
#define HSP_TOY_PARTS_H

#include "toy.h"

void *toy__grab(size_t count, size_t size); /* zeroed; never NULL */

/* One step of one request and group; adds to *seen what a swap-in of these entries must count. */
void toy__recency_step(toy *t, toy_request *q, int group, const int32_t *selection, int n, hsp_counters *seen);
/* toy_check_rows for the anchor alone, which needs no waiting. */
void toy__check_anchor(toy *t, int group, const int32_t *selection, const int32_t *ids, int n, int entries);
/* The slot a token is in, or -1. */
int toy__find_tag(const toy_group *g, int token);

#endif
