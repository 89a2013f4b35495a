/* SPDX-License-Identifier: Apache-2.0 */
#include "random_ops.h"

void random_config(chooser *c, const char *backend, hsp_config *config, int32_t *map) {
    hsp_config_init(config, sizeof *config);
    TOY_SAME("backend", hsp_config_set(config, "backend", backend), HSP_OK);
    config->first_layer = (int32_t)c->below(c, 3) * 15;
    config->n_layers = 1 + (int32_t)c->below(c, 5);
    for (int l = 0; l < config->n_layers; l++)
        map[l] = (int32_t)c->below(c, 3) * 100 - 50;
    config->layer_group = c->below(c, 4) ? map : NULL;
    config->n_planes = 1 + (int32_t)c->below(c, HSP_MAX_PLANES);
    for (int p = 0; p < config->n_planes; p++)
        config->plane_bytes[p] = 4 * (1 + (int32_t)c->below(c, 40));
    config->max_requests = 1 + (int32_t)c->below(c, 4);
    config->max_batch = config->max_requests + (int32_t)c->below(c, 3);
    config->max_context = 1 + (int32_t)c->below(c, 300);
    config->host_tokens = 1 + c->below(c, 700);
    config->max_queries = 1 + (int32_t)c->below(c, 3);
    config->max_k = 1 + (int32_t)c->below(c, 40);
    config->n_slots = config->max_k * config->max_queries + (int32_t)c->below(c, 40);
    config->ring_rows = config->max_queries + (int32_t)c->below(c, 9);
    config->block_rows = c->below(c, 2) ? 1 : 1 + (int32_t)c->below(c, 70);
    config->block_align = 4 * (1 + (int32_t)c->below(c, 25));
    config->host_row_align = 16 * (1 + (int32_t)c->below(c, 8));
    config->policy = (int32_t)c->below(c, 4);
    config->seed = c->below(c, 1000);
    config->n_threads = (int32_t)c->below(c, 4);
    config->flags = c->below(c, 2) ? HSP_PREFETCH : 0;
}

/* A live request, or -1. */
static int pick_live(chooser *c, const toy *t) {
    int r = (int)c->below(c, (uint32_t)t->config.max_requests);
    for (int i = 0; i < t->config.max_requests; i++, r = (r + 1) % t->config.max_requests)
        if (t->request[r].live)
            return r;
    return -1;
}

/* Mostly tokens of the request, often near each other or near the end; sometimes nonsense. */
static int32_t random_token(chooser *c, int length) {
    switch (c->below(c, 16)) {
    case 0:
        return -1;
    case 1:
        return (int32_t)c->below(c, 2000) - 500;
    case 2:
        return c->below(c, 2) ? INT32_MAX : INT32_MIN;
    case 3:
        return length - 1;
    default:
        break;
    }
    uint32_t span = c->below(c, 3) ? 60 : 4096;
    return length > 0 ? (int32_t)(c->below(c, span) % (uint32_t)length) : 0;
}

static void random_admit(chooser *c, toy *t) {
    int r = 0;
    while (r < t->config.max_requests && t->request[r].live)
        r++;
    int max_tokens = (int)c->below(c, (uint32_t)t->config.max_context + 2);
    if (r == t->config.max_requests) {
        int32_t handle;
        TOY_SAME("admit when full", hsp_admit(t->cache, 1, &handle), HSP_EBUSY);
    } else if (toy_admit(t, r, max_tokens) == HSP_OK)
        toy_fill(t, r, (int)c->below(c, (uint32_t)max_tokens + 2));
}

static void random_step(chooser *c, toy *t) {
    int rs[8], n_new[8], batch = (int)c->below(c, (uint32_t)t->config.max_batch + 1), r = pick_live(c, t);
    for (int b = 0; b < batch; b++) {
        int again = 0, candidate = r < 0 ? -1 : (r + b) % t->config.max_requests;
        for (int a = 0; a < b; a++)
            again |= rs[a] == candidate;
        rs[b] = again || candidate < 0 || !t->request[candidate].live || c->below(c, 5) == 0 ? -1 : candidate;
        n_new[b] = (int)c->below(c, (uint32_t)t->config.max_queries + 1);
    }
    toy_step(t, rs, n_new, batch);
}

static void random_swap_in(chooser *c, toy *t) {
    int n_queries = (int)c->below(c, (uint32_t)t->config.max_queries + 1);
    int k = (int)c->below(c, (uint32_t)t->config.max_k + 1), n = n_queries * k;
    if (t->batch < 0)
        return;
    int32_t *selection = malloc(((size_t)t->batch * (size_t)n + 1) * sizeof *selection);
    for (int b = 0; b < t->batch; b++)
        for (int e = 0; e < n; e++)
            selection[b * n + e] =
                random_token(c, t->batch_request[b] < 0 ? 50 : t->request[t->batch_request[b]].length);
    toy_swap_in(t, (int)c->below(c, (uint32_t)t->n_groups), selection, n_queries, k);
    free(selection);
}

static void random_warm(chooser *c, toy *t) {
    int r = pick_live(c, t), n = (int)c->below(c, (uint32_t)t->config.n_slots + 1);
    if (r < 0)
        return;
    int32_t *tokens = malloc(((size_t)n + 1) * sizeof *tokens);
    for (int i = 0; i < n; i++)
        tokens[i] = random_token(c, t->request[r].length);
    toy_warm(t, r, (int)c->below(c, (uint32_t)t->n_groups), tokens, n);
    free(tokens);
}

void random_op(chooser *c, toy *t) {
    int r = pick_live(c, t);
    switch (c->below(c, 16)) {
    case 0:
        random_admit(c, t);
        break;
    case 1:
        if (c->below(c, 4) == 0 && r >= 0)
            toy_retire(t, r);
        break;
    case 2:
        if (r >= 0)
            toy_truncate(t, r, t->request[r].length - (int)c->below(c, c->below(c, 2) ? 6 : 300) + 1);
        break;
    case 3:
        if (r >= 0)
            toy_fill(t, r, (int)c->below(c, 40));
        break;
    case 4:
        random_warm(c, t);
        break;
    case 5:
    case 6:
    case 7:
        random_step(c, t);
        break;
    default:
        random_swap_in(c, t);
        break;
    }
}
