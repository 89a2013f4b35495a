/* SPDX-License-Identifier: Apache-2.0 */
/* A random cache and random operations on it, all from one seed. */
#include "tools.h"
#include "verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How large a round is: many small ones, which reach odd corners quickly, and some as large as in use. */
typedef struct round_size {
    int weight, n_operations;
    int32_t least_context, most_context, most_k, most_spare_slots, most_words, most_layers, most_requests;
} round_size;
static const round_size sizes[] = {
    {24, 150, 1, 300, 40, 40, 40, 5, VERIFY_REQUESTS},
    {7, 80, 300, 8192, 512, 1500, 64, VERIFY_LAYERS, 3},
    {1, 40, 20000, 100000, 2048, 2048, 16, 3, 2},
};

typedef struct round_state {
    verify_pair pair;
    rows_random random;
    const round_size *size;
} round_state;

static int32_t below(round_state *s, int64_t n) {
    return rows_below(&s->random, n);
}
static int32_t upto(round_state *s, int32_t least, int32_t most) {
    return least + below(s, (int64_t)most - least + 1);
}
static int one_in(round_state *s, int32_t n) {
    return below(s, n) == 0;
}

static const round_size *random_size(rows_random *random) {
    int total = 0, n = (int)(sizeof sizes / sizeof sizes[0]), i = 0;
    for (int j = 0; j < n; j++)
        total += sizes[j].weight;
    for (int32_t draw = rows_below(random, total); draw >= sizes[i].weight; i++)
        draw -= sizes[i].weight;
    return &sizes[i];
}

static void random_config(round_state *s) {
    hsp_config *c = &s->pair.config;
    const round_size *z = s->size;
    hsp_config_init(c, sizeof *c);
    c->first_layer = 15 * below(s, 3);
    c->n_layers = upto(s, 1, z->most_layers);
    for (int32_t layer = 0; layer < c->n_layers; layer++)
        s->pair.group_label[layer] = below(s, 3) * 100 - 50;
    c->layer_group = one_in(s, 4) ? NULL : s->pair.group_label;
    c->n_planes = upto(s, 1, HSP_MAX_PLANES);
    for (int32_t plane = 0; plane < c->n_planes; plane++)
        c->plane_bytes[plane] = 4 * upto(s, 1, z->most_words);
    c->max_requests = upto(s, 1, z->most_requests);
    c->max_batch = c->max_requests + below(s, VERIFY_BATCH - VERIFY_REQUESTS + 1);
    c->max_context = upto(s, z->least_context, z->most_context);
    c->host_tokens = 1 + (int64_t)c->max_context * upto(s, 2, 2 * c->max_requests) / 2;
    c->max_queries = upto(s, 1, 3);
    c->max_k = upto(s, 1, z->most_k);
    c->n_slots = c->max_k * c->max_queries + below(s, z->most_spare_slots);
    c->ring_rows = c->max_queries + below(s, one_in(s, 3) ? 200 : 9);
    c->block_rows = one_in(s, 2) ? 1 : upto(s, 1, 70);
    c->block_align = 4 * upto(s, 1, 25);
    c->host_row_align = 16 * upto(s, 1, 8);
    c->policy = below(s, 4);
    c->seed = (uint64_t)below(s, 1000);
}

/* Threads, the place of the host rows, and when followers are given theirs. The draws are the same whatever a backend
 * can do, so that a seed means one round for all of them. */
static int open_pair(round_state *s) {
    const char *folder = getenv("TMPDIR");
    verify_choice choice[2] = {{0}, {0}};
    for (int side = 0; side < 2; side++) {
        uint32_t can = s->pair.sides->capabilities[side];
        int in_file = one_in(s, 4) && can & HSP_CAN_HOST_FILE;
        int32_t n_threads = below(s, 4);
        choice[side].n_threads = can & HSP_CAN_PARALLEL ? n_threads : 0;
        choice[side].huge_pages = one_in(s, 4);
        choice[side].flags = one_in(s, 2) ? HSP_PREFETCH : 0;
        if (in_file)
            snprintf(choice[side].host_file, sizeof choice[side].host_file, "%s/hisparse-verify-%ld-%d",
                     folder && *folder ? folder : "/tmp", (long)getpid(), side);
    }
    return verify_open(&s->pair, choice);
}

/* ------------------------------------------------------------------------------------------------------ choices -- */

/* A live request, or -1. */
static int pick_live(round_state *s) {
    int n = s->pair.config.max_requests, r = below(s, n);
    for (int i = 0; i < n; i++, r = (r + 1) % n)
        if (s->pair.request[r].live)
            return r;
    return -1;
}

static int32_t length_of(const round_state *s, int r) {
    return r < 0 ? 0 : s->pair.request[r].written[0];
}

/* Mostly tokens of the request, often from a part of it that the slots can hold, or the newest; sometimes nonsense. */
static int32_t random_token(round_state *s, int32_t length, int wild) {
    int32_t window = 2 * s->pair.config.n_slots;
    switch (below(s, wild ? 16 : 200)) {
    case 0:
        return -1;
    case 1:
        return below(s, 2000) - 500;
    case 2:
        return one_in(s, 2) ? INT32_MAX : INT32_MIN;
    case 3:
        return length + below(s, 3) - 1;
    case 4:
    case 5:
    case 6:
        return length > 0 ? length - 1 - below(s, length < 70 ? length : 70) : 0;
    case 7:
    case 8:
        return below(s, length);
    default:
        return below(s, length < window ? length : window);
    }
}

static int32_t *random_tokens(round_state *s, const int *requests, int32_t n_requests, int64_t n) {
    int32_t *tokens = malloc((size_t)(n_requests * n + 1) * sizeof *tokens);
    for (int32_t b = 0; tokens && b < n_requests; b++) {
        int wild = one_in(s, 3);
        for (int64_t e = 0; e < n; e++)
            tokens[b * n + e] = random_token(s, length_of(s, requests[b]), wild);
    }
    if (!tokens)
        s->pair.failed = tool_fail(TOOL_FAILED, "out of memory");
    return tokens;
}

/* --------------------------------------------------------------------------------------------------- operations -- */

/* Fill all layers up to the same token, in two pieces; now and then one is left for the next time. */
static void random_fill(round_state *s, int r, int32_t target) {
    verify_pair *p = &s->pair;
    int32_t n_layers = p->config.n_layers, start = below(s, n_layers), left = one_in(s, 10) ? below(s, n_layers) : -1;
    for (int32_t i = 0; i < n_layers; i++) {
        int32_t layer = (start + i) % n_layers, n = target - p->request[r].written[layer];
        if (layer == left || n < 0)
            continue;
        int32_t piece = below(s, n + 1);
        verify_fill(p, r, layer, piece);
        verify_fill(p, r, layer, n - piece);
    }
}

static void random_admit(round_state *s) {
    int r = 0, n = s->pair.config.max_requests;
    while (r < n - 1 && s->pair.request[r].live)
        r++;
    if (s->pair.request[r].live)
        return;
    int32_t max_context = s->pair.config.max_context;
    int32_t max_tokens = one_in(s, 12) ? below(s, max_context + 2) : upto(s, max_context / 2 + 1, max_context);
    verify_admit(&s->pair, r, max_tokens);
    if (s->pair.request[r].live)
        random_fill(s, r, one_in(s, 4) ? below(s, max_tokens + 1) : max_tokens - below(s, max_tokens / 4 + 1));
}

static void random_warm(round_state *s, int r) {
    verify_pair *p = &s->pair;
    int32_t n = one_in(s, 30) ? p->config.n_slots + 1 : below(s, p->config.n_slots + 1);
    int32_t layer = below(s, p->config.n_layers), *tokens = random_tokens(s, &r, 1, n);
    if (tokens)
        verify_warm(p, r, one_in(s, 10) ? layer : verify_anchor(p, layer), tokens, n);
    free(tokens);
}

/* layer: an anchor; now and then another one, which is refused. */
static void random_swap_in(round_state *s, int32_t layer) {
    verify_pair *p = &s->pair;
    int32_t n_queries = upto(s, 0, p->config.max_queries), k = p->config.max_k - below(s, p->config.max_k / 2 + 1);
    if (one_in(s, 30))
        k = p->config.max_k + 1;
    if (p->batch < 0)
        return;
    int32_t *selection = random_tokens(s, p->batch_request, p->batch, (int64_t)n_queries * k);
    if (selection)
        verify_swap_in(p, one_in(s, 30) ? below(s, p->config.n_layers + 1) : layer, selection, n_queries, k,
                       !one_in(s, 3));
    free(selection);
}

static void random_step(round_state *s) {
    verify_pair *p = &s->pair;
    int32_t requests[VERIFY_BATCH], n_new[VERIFY_BATCH], most = 0, batch = upto(s, 1, p->config.max_batch);
    int r = pick_live(s), n_requests = p->config.max_requests;
    for (int32_t b = 0; b < batch; b++) {
        requests[b] = r < 0 || b >= n_requests || one_in(s, 6) ? -1 : (r + b) % n_requests;
        if (requests[b] >= 0 && !p->request[requests[b]].live)
            requests[b] = -1;
        n_new[b] = below(s, p->config.max_queries + 1);
        most = requests[b] >= 0 && n_new[b] > most ? n_new[b] : most;
    }
    if (one_in(s, 40) && batch > 1)
        requests[1] = requests[0]; /* refused */
    if (verify_step(p, requests, n_new, batch) != HSP_OK)
        return;
    for (int32_t layer = 0; layer < p->config.n_layers; layer++) {
        verify_append(p, layer, n_new, upto(s, most, p->config.max_queries));
        if (verify_anchor(p, layer) == layer)
            random_swap_in(s, layer);
    }
}

static void random_operation(round_state *s) {
    verify_pair *p = &s->pair;
    int r = pick_live(s);
    int32_t draw = below(s, 20), length = length_of(s, r);
    if (draw < 2 || r < 0)
        random_admit(s);
    else if (draw == 2 && one_in(s, 3))
        verify_retire(p, one_in(s, 4) ? below(s, p->config.max_requests) : r);
    else if (draw == 3)
        verify_truncate(p, r, length + 1 - below(s, one_in(s, 3) ? length + 2 : 8));
    else if (draw == 4)
        random_fill(s, r, length + below(s, 40));
    else if (draw == 5)
        random_warm(s, r);
    else if (draw < 13)
        random_step(s);
    else if (draw < 17)
        random_swap_in(s, verify_anchor(p, below(s, p->config.n_layers)));
    else
        verify_state(p, &s->random);
}

int verify_round(verify_sides *sides, uint64_t seed, verify_totals *totals, char *sentence_out, size_t bytes) {
    round_state s = {.random = {seed}};
    s.pair.sides = sides;
    s.pair.totals = totals;
    s.size = random_size(&s.random);
    random_config(&s);
    open_pair(&s);
    int done = 0;
    while (!s.pair.failed && !s.pair.difference[0] && !tool_interrupted && done < s.size->n_operations) {
        random_operation(&s);
        done++;
    }
    if (!s.pair.failed && !s.pair.difference[0])
        verify_state(&s.pair, &s.random);
    verify_close(&s.pair);
    snprintf(sentence_out, bytes, "operation %d, %s", done, s.pair.failed ? "the machine failed" : s.pair.difference);
    if (s.pair.failed)
        return s.pair.failed;
    totals->rounds += !tool_interrupted || s.pair.difference[0];
    return s.pair.difference[0] ? TOOL_DIFFERS : TOOL_OK;
}
