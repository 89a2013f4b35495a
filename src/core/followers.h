/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers' rows are still on their way after a swap-in that fetched those of its anchor alone (HSP_PREFETCH). */
#ifndef HSP_FOLLOWERS_H
#define HSP_FOLLOWERS_H

#include "core/layout.h"

typedef struct hsp__followers {
    uint8_t *coming; /* [n_layers] */
    int32_t n;       /* layers that are */
} hsp__followers;

void hsp__followers_init(hsp__followers *followers, const hsp__layout *layout, hsp__arena *arena);

/* Do the followers of a group come later than its anchor's rows? */
static inline int hsp__followers_are_late(const hsp__layout *layout, uint32_t flags, int32_t group) {
    return flags & HSP_PREFETCH && layout->group[group].n_layers > 1;
}

/* After a swap-in of the group. */
void hsp__followers_start(hsp__followers *followers, const hsp__layout *layout, int32_t group);
/* Was the layer on its way? Then it is no longer. */
int hsp__followers_arrive(hsp__followers *followers, int32_t layer);

#endif
