/* SPDX-License-Identifier: Apache-2.0 */
/* Counters as text. */
#ifndef HSP_STATS_H
#define HSP_STATS_H

#include "cache.h"

/* Bytes of the text of hsp_stats_text, without the zero at its end; the text itself where `size` is more than that.
 * cache->group_counters and `stats` hold the numbers. */
size_t hsp__stats_text(const hsp_cache *cache, const hsp_stats_view *stats, char *text_out, size_t size);

#endif
