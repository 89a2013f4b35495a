/* SPDX-License-Identifier: Apache-2.0 */
/* Steps with any number of swap-ins of any groups one behind the other, on one stream, as calls or as the replay of a
 * graph that holds some of them; the host waits only to compare. The toy takes every step of the policy at the moment
 * its swap-in is queued. */
#ifndef HSP_CHAIN_H
#define HSP_CHAIN_H

#include "check.h"
#include "queue.h"

enum { CHAIN_MOST = 10 };

typedef struct chain {
    toy t;
    queue q;
    int most_k, entries, n_calls;
    int group[CHAIN_MOST], k[CHAIN_MOST];    /* of each call; one query */
    int first, n_captured, captured_entries; /* calls in the graph; the batch it was captured with */
    int32_t *selection, *ids;                /* device: [call][entry][k], most_k apart, one more of ids as a guard */
    int32_t *chosen, *got, *poison;          /* pinned, likewise */
    int32_t *want;
    unsigned char *rows, *new_rows; /* device, pinned: [layer][entry][max_queries] rows */
    unsigned char *slab;            /* pinned: a copy of a layer */
    size_t n_ids, rows_bytes, slab_bytes;
    int n_run, n_missing; /* calls, and those of them that fetched something */
    uint64_t seed;
} chain;

/* n_calls of most_k entries, of group 0 unless set otherwise. */
void chain_open(chain *c, const hsp_config *config, int n_calls, int most_k);
void chain_close(chain *c);
void chain_admit_all(chain *c, int max_tokens, int n_fill);

/* step_begin, and every layer's append; r -1: padding. One step at a time: compare before the next. */
void chain_begin(chain *c, const int *rs, const int *n_new, int batch);
void chain_begin_nobody(chain *c, int batch); /* nothing but padding, as for a capture */
void chain_begin_any(chain *c);               /* a random batch; requests without room are cut back before */
/* What call i selects for entry b. */
int32_t *chain_selection(chain *c, int i, int b);
/* At random, so that something must be fetched; for a few entries what an earlier call of the group selects. */
void chain_choose(chain *c, int i);
void chain_send(chain *c); /* the selections to the device, poison to the ids */

void chain_call(chain *c, int i);
void chain_wait(chain *c); /* for the followers of all groups: nothing to do without HSP_PREFETCH */
void chain_capture(chain *c, int first, int n); /* with the batch of the step */
void chain_queue_captured(void *chain_pointer); /* what chain_capture captures: the calls, and a wait behind them */
void chain_replay(chain *c);

/* Wait; ids of all calls, bytes of every row that is resident. */
void chain_compare(chain *c);

#endif
