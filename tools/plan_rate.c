/* SPDX-License-Identifier: Apache-2.0 */
/* Time: a step is what the GPU's memory or its arithmetic takes, whichever is longer, and launches, and what is exposed
 * of the link. docs/planning.md is the method. */
#include "plan.h"

#include <math.h>

/* LRU with hit promotion, GLM-5.1, 100,384 tokens, k = 2048, mean of 78 layers: 30% at k slots, 13.4% at 2 k, 6.7% at
 * 4 k (HiSparse, arXiv 2608.07009). Straight lines between logarithms; beyond 4 k half as many for twice the slots. */
static double miss_by_slots(double ratio) {
    double first = log2(0.30 / 0.134), second = log2(0.134 / 0.067), doublings = fmax(log2(ratio), 0);
    return 0.30 * exp2(-first * fmin(doublings, 1) - second * fmax(doublings - 1, 0));
}

double plan_miss(const plan_question *q, int slots, double tokens) {
    if (slots == 0 || tokens / q->model.entry_tokens <= slots)
        return 0; /* every entry has its slot */
    return q->miss >= 0 ? q->miss : miss_by_slots((double)slots / q->model.k);
}

/* Entries of a selection: fewer when the context has no more. */
static double selected(const plan_question *q, double tokens) {
    return fmin(q->model.k, ceil(tokens / q->model.entry_tokens));
}

static double tflops(const plan_question *q) {
    return q->weight_bits > 8 ? q->machine.bf16_tflops : q->machine.fp8_tflops;
}

static double active_parameters(const plan_model *m) {
    return m->parameters - m->routed_parameters * (1 - m->active_experts);
}

/* Weights once, as far as the batch's tokens take different experts (each as likely as any other); rows selected and
 * the selector's state of every request. Indexers stay below this: 2 x 64 FLOP a byte, an H200 has 400. */
static double memory_bytes(const plan_question *q, double requests, double per_gpu) {
    const plan_model *m = &q->model;
    double routed, all = plan_weight_bytes(q, &routed);
    double bytes = all - routed + routed * (1 - pow(1 - m->active_experts, requests));
    for (int i = 0; i < q->n_contexts; i++) {
        double entries = q->context[i] / m->entry_tokens;
        double request = selected(q, q->context[i]) * m->paged_layers * plan_row_bytes(q) +
                         entries * plan_index_bytes(q) + q->context[i] * m->resident_rows * plan_row_bytes(q);
        bytes += per_gpu * q->share[i] * request;
    }
    return bytes;
}

/* Rows side by side are one read, which costs like one row while it is short: translation of the address bounds it
 * (docs/calibrate.md). */
static double link_ms(const plan_question *q, double rows_a_layer) {
    const plan_model *m = &q->model;
    double layers = m->paged_layers, parts = ceil((double)m->selections / q->tp);
    double reads = rows_a_layer * parts * (q->apart ? layers : m->groups);
    double bytes = rows_a_layer * layers * plan_row_bytes(q);
    return fmax(reads / q->machine.link_rows_us / 1e3, bytes / q->machine.link_gb_s / 1e6);
}

/* A group's first layer waits for its own rows; those of its followers arrive while layers are computed. */
static double exposed_ms(const plan_question *q, double link, double computing) {
    double anchors = (double)q->model.groups / q->model.paged_layers;
    if (q->apart)
        return link;
    return link * anchors + fmax(0, (link - computing) * (1 - anchors));
}

/* Of prompts, per generated token and request, with nothing else on the GPUs: 2 FLOP a parameter and attention. */
static double prompt_ms(const plan_question *q) {
    const plan_model *m = &q->model;
    double ms = 0;
    for (int i = 0; i < q->n_contexts && q->output > 0; i++) {
        double tokens = q->context[i] - q->output;
        double flop = 2 * active_parameters(m) + m->attention_flop + m->attention_flop_token * tokens / 2;
        ms += q->share[i] * tokens / q->output * flop / (q->gpus * tflops(q) * PLAN_EFFICIENCY * 1e9);
    }
    return ms;
}

static const char *largest(const plan_answer *a) {
    double most = fmax(fmax(a->memory_ms, a->compute_ms), fmax(a->fixed_ms, a->exposed_ms));
    return most == a->exposed_ms  ? "link"
           : most == a->fixed_ms  ? "launches"
           : most == a->memory_ms ? "GPU memory"
                                  : "arithmetic";
}

void plan_rate(const plan_question *q, plan_answer *out) {
    const plan_model *m = &q->model;
    double per_gpu = ceil(out->requests * q->tp / q->gpus), rows = 0, all = 0;
    for (int i = 0; i < q->n_contexts; i++) {
        double n = q->share[i] * selected(q, q->context[i]);
        all += n;
        rows += n * plan_miss(q, out->slots, q->context[i]);
    }
    out->miss_percent = 100 * rows / all;
    out->link_bytes = rows * m->paged_layers * plan_row_bytes(q);
    out->full_bytes = out->slots ? m->k * m->paged_layers * plan_row_bytes(q) : 0;
    out->memory_ms = memory_bytes(q, out->requests, per_gpu) / q->machine.memory_gb_s / 1e6;
    out->compute_ms = 2 * active_parameters(m) * out->requests / (q->gpus * tflops(q) * PLAN_EFFICIENCY * 1e9);
    out->fixed_ms = m->layers * (PLAN_LAYER_MS + (q->gpus > 1 ? PLAN_EXCHANGE_MS : 0)) +
                    (out->slots ? m->groups * PLAN_RESOLVE_MS : 0);
    out->link_ms = link_ms(q, per_gpu * rows);
    double computing = fmax(out->memory_ms, out->compute_ms) + out->fixed_ms;
    out->exposed_ms = exposed_ms(q, out->link_ms, computing);
    out->token_ms = computing + out->exposed_ms + out->requests * prompt_ms(q);
    out->tokens_s = 1e3 * out->requests / out->token_ms;
    out->step_limit = largest(out);
}
