/* SPDX-License-Identifier: Apache-2.0 */
#include "core/followers.h"

void hsp__followers_init(hsp__followers *followers, const hsp__layout *layout, hsp__arena *arena) {
    *followers = (hsp__followers){hsp__carve(arena, (size_t)layout->n_layers, 1), 0};
}

void hsp__followers_start(hsp__followers *followers, const hsp__layout *layout, int32_t group) {
    const int32_t *layer = layout->group_layer + layout->group_first[group];
    for (int32_t i = 1; i < layout->group[group].n_layers; i++) {
        followers->n += !followers->coming[layer[i]];
        followers->coming[layer[i]] = 1;
    }
}

int hsp__followers_arrive(hsp__followers *followers, int32_t layer) {
    int was_coming = followers->coming[layer];
    followers->coming[layer] = 0;
    followers->n -= was_coming;
    return was_coming;
}
