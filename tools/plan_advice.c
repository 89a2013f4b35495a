/* SPDX-License-Identifier: Apache-2.0 */
/* What follows: from where on it pays, how many slots, and whether at all. */
#include "plan.h"

#include <math.h>
#include <stdio.h>

enum { MOST_TOKENS = 1 << 22, MOST_REQUESTS = 1 << 16, MOST_SLOTS = 65535 /* the library's */ };
#define WORTH 1.1 /* less is within what the arithmetic does not know */

/* The shortest request that takes less of the GPU with slots than without; both grow with tokens, one faster. */
static double even_tokens(const plan_question *q, int slots) {
    int low = 0, high = MOST_TOKENS;
    if (plan_request_bytes(q, 0, high) <= plan_request_bytes(q, slots, high))
        return NAN;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (plan_request_bytes(q, 0, middle) > plan_request_bytes(q, slots, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

static double rate_of(const plan_question *q, plan_answer answer, double requests) {
    answer.requests = requests;
    plan_rate(q, &answer);
    return answer.tokens_s;
}

/* The fewest requests with which slots give more tokens a second than everything on the GPU, which then has a queue. */
static double even_requests(const plan_question *q, const plan_answer *sparse) {
    plan_answer resident;
    plan_capacity(q, 0, &resident);
    double most = fmin(fmin(sparse->fit_device, sparse->fit_host), MOST_REQUESTS);
    double best = resident.fit_device >= 1 ? rate_of(q, resident, resident.fit_device) : 0;
    for (int n = (int)fmin(resident.fit_device, MOST_REQUESTS) + 1; n <= most; n++)
        if (rate_of(q, *sparse, n) > best)
            return n;
    return NAN;
}

int plan_answer_for(const plan_question *q, int slots, plan_answer *out) {
    int fits = plan_capacity(q, slots, out);
    plan_rate(q, out);
    out->even_tokens = out->even_requests = NAN;
    if (!fits)
        out->tokens_s = 0, out->token_ms = NAN;
    if (slots) {
        out->even_tokens = even_tokens(q, slots);
        out->even_requests = even_requests(q, out);
    }
    return fits;
}

int plan_most_slots(const plan_question *q) {
    return q->model.k < MOST_SLOTS / 16 ? 16 * q->model.k : MOST_SLOTS;
}

int plan_choose_slots(const plan_question *q) {
    int best = q->model.k;
    double most = 0;
    for (int slots = q->model.k; slots <= plan_most_slots(q); slots *= 2) {
        plan_answer a;
        if (!plan_capacity(q, slots, &a))
            continue;
        plan_rate(q, &a);
        if (a.tokens_s > 1.01 * most) {
            most = a.tokens_s;
            best = a.slots;
        }
    }
    return best;
}

static double longest(const plan_question *q) {
    double most = 0;
    for (int i = 0; i < q->n_contexts; i++)
        most = fmax(most, q->context[i]);
    return most;
}

int plan_verdict(const plan_question *q, const plan_answer *resident, const plan_answer *sparse, char *text,
                 int bytes) {
    size_t size = (size_t)bytes;
    double gain = sparse->tokens_s / resident->tokens_s;
    if (sparse->requests < 1) {
        snprintf(text, size, "Not possible: not even one request fits; what limits is %s.", sparse->fit_limit);
        return 0;
    }
    if (q->requests > 0 && resident->fit_device >= q->requests) {
        snprintf(text, size,
                 "Not worth it: %.0f of these requests fit with everything on the GPU, and %.0f are asked for.",
                 resident->fit_device, q->requests);
        return 0;
    }
    if (resident->requests < 1) {
        snprintf(text, size, "Worth it: no request fits with everything on the GPU, %.0f with %d slots.",
                 sparse->requests, sparse->slots);
        return 1;
    }
    if (isnan(sparse->even_tokens))
        snprintf(text, size, "Not worth it: with %d slots a request of no length takes less of the GPU.",
                 sparse->slots);
    else if (longest(q) < sparse->even_tokens)
        snprintf(text, size, "Not worth it: with %d slots only requests of %.0f tokens and more take less of the GPU.",
                 sparse->slots, sparse->even_tokens);
    else if (gain < WORTH)
        snprintf(text, size, "Not worth it: %.2f times the tokens a second; what limits is %s, in a step %s.", gain,
                 sparse->fit_limit, sparse->step_limit);
    else
        snprintf(text, size,
                 "Worth it: %.0f requests at once with %d slots, %.0f with everything on the GPU; %.2f times the "
                 "tokens a second.",
                 sparse->requests, sparse->slots, resident->requests, gain);
    return gain >= WORTH && longest(q) >= sparse->even_tokens;
}
