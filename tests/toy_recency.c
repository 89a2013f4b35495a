/* SPDX-License-Identifier: Apache-2.0 */
/* The policies as lists. */
#include "toy_parts.h"

int toy__find_tag(const toy_group *g, int token) {
    return g->tag[g->place[token]] == token ? g->place[token] : -1;
}

static void set_tag(toy_group *g, int slot, int token) {
    g->tag[slot] = token;
    if (token >= 0)
        g->place[token] = slot;
}

/* The slot the next fetched row takes. in_use: slots hit or already given in this step. from: place in the order to go
 * on from. */
static int next_victim(const toy *t, toy_group *g, const char *in_use, int *from) {
    int n = t->config.n_slots;
    if (t->config.policy != HSP_CLOCK) {
        while (in_use[g->order[*from]])
            ++*from;
        return g->order[(*from)++];
    }
    for (;; g->hand = (g->hand + 1) % n) {
        if (in_use[g->hand])
            continue;
        if (!g->order[g->hand])
            break;
        g->order[g->hand] = 0;
    }
    int victim = g->hand;
    g->hand = (g->hand + 1) % n;
    return victim;
}

/* The slots marked go to the end, in the order they have. */
static void move_to_end(int *order, int n, const char *marked) {
    int *moved = toy__grab((size_t)n, sizeof *moved), n_moved = 0, n_kept = 0;
    for (int i = 0; i < n; i++)
        if (marked[order[i]])
            moved[n_moved++] = order[i];
        else
            order[n_kept++] = order[i];
    memcpy(order + n_kept, moved, (size_t)n_moved * sizeof *moved);
    free(moved);
}

/* Mark the slots that are hit, list the tokens that are not there in order of appearance; returns how many. */
static int look_up(const toy_request *q, const toy_group *g, const int32_t *selection, int n, char *hit, int *missed,
                   hsp_counters *seen) {
    char *known = toy__grab((size_t)q->max_tokens, 1); /* tokens in missed */
    int n_missed = 0;
    for (int e = 0; e < n; e++) {
        int token = selection[e];
        if (token < 0 || token >= q->length) {
            seen->none += token == -1;
            seen->invalid += token != -1;
            continue;
        }
        int slot = token >= q->ring_first ? -1 : toy__find_tag(g, token);
        if (slot >= 0)
            hit[slot] = 1;
        if (token >= q->ring_first || slot >= 0 || known[token])
            seen->hits++;
        else {
            seen->misses++;
            known[token] = 1;
            missed[n_missed++] = token;
        }
    }
    free(known);
    return n_missed;
}

/* RANDOM draws from the library's own generator: take over the tags that are there, and check only that no selected row
 * was replaced and every missed one is there. */
static void take_over_tags(const toy *t, const toy_request *q, int group, const char *hit, const int *missed,
                           int n_missed) {
    toy_group *g = &q->group[group];
    int32_t *tags = toy__grab((size_t)t->config.n_slots, sizeof *tags);
    hsp_resident(t->cache, q->handle, t->anchor[group] + t->config.first_layer, tags, NULL, NULL, NULL);
    for (int s = 0; s < t->config.n_slots; s++) {
        if (hit[s])
            TOY_SAME("selected row kept", tags[s], g->tag[s]);
        set_tag(g, s, tags[s]);
    }
    for (int m = 0; m < n_missed; m++)
        TOY_SAME("missed row resident", toy__find_tag(g, missed[m]) >= 0, 1);
    free(tags);
}

static void fetch(const toy *t, toy_group *g, const char *hit, const int *missed, int n_missed) {
    int n_slots = t->config.n_slots, from = 0;
    char *in_use = toy__grab((size_t)n_slots, 1), *taken = toy__grab((size_t)n_slots, 1);
    memcpy(in_use, hit, (size_t)n_slots);
    for (int s = 0; s < n_slots && t->config.policy == HSP_CLOCK; s++)
        if (hit[s])
            g->order[s] = 1;
    for (int m = 0; m < n_missed; m++) {
        int slot = next_victim(t, g, in_use, &from);
        in_use[slot] = taken[slot] = 1;
        set_tag(g, slot, missed[m]);
        if (t->config.policy == HSP_CLOCK)
            g->order[slot] = 1;
    }
    if (t->config.policy == HSP_LRU || t->config.policy == HSP_FIFO)
        move_to_end(g->order, n_slots, taken);
    if (t->config.policy == HSP_LRU)
        move_to_end(g->order, n_slots, hit);
    free(in_use);
    free(taken);
}

void toy__recency_step(toy *t, toy_request *q, int group, const int32_t *selection, int n, hsp_counters *seen) {
    char *hit = toy__grab((size_t)t->config.n_slots, 1);
    int *missed = toy__grab((size_t)n + 1, sizeof(int)), n_layers = 0;
    int n_missed = look_up(q, &q->group[group], selection, n, hit, missed, seen);
    for (int l = 0; l < t->config.n_layers; l++)
        n_layers += t->group_of[l] == group;
    seen->fetched_bytes += (uint64_t)n_missed * (uint64_t)(n_layers * t->row_bytes);
    if (t->config.policy == HSP_RANDOM)
        take_over_tags(t, q, group, hit, missed, n_missed);
    else
        fetch(t, &q->group[group], hit, missed, n_missed);
    free(hit);
    free(missed);
}
