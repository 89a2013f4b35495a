/* SPDX-License-Identifier: Apache-2.0 */
/* Where host rows live: anonymous memory, or a file of their own. */
#ifndef HSP_HOST_TIER_H
#define HSP_HOST_TIER_H

#include "status.h"

typedef struct hsp__host_tier {
    char *base;
    uint64_t bytes;
    int is_file;
    int huge_pages; /* 1: the system gave 2 MiB pages */
} hsp__host_tier;

int hsp__host_tier_open(hsp__host_tier *tier, const hsp_config *config, uint64_t bytes, hsp__error *error);
void hsp__host_tier_close(hsp__host_tier *tier);

#endif
