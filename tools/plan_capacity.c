/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes: what a request takes on the GPU and in host memory, and how many requests that leaves room for. */
#include "hisparse.h"
#include "plan.h"

#include <math.h>

const char *const plan_format_name[PLAN_FORMATS] = {"bf16", "fp8", "fp8-block"};

enum { NEWEST_BLOCKS = 2 /* beside the slots of a group of layers: where new tokens go */ };

/* Of what is made of `shards` equal parts, those of the GPU that has most of them. */
static double part_of_gpu(const plan_question *q, int shards) {
    return ceil((double)shards / q->tp) / shards;
}

double plan_row_bytes(const plan_question *q) {
    return q->model.row_bytes[q->format] * part_of_gpu(q, q->model.kv_shards);
}

double plan_index_bytes(const plan_question *q) {
    const plan_model *m = &q->model;
    return m->groups * m->index_bytes * part_of_gpu(q, m->index_shards);
}

static double index_block(const plan_question *q) {
    return PLAN_BLOCK * plan_index_bytes(q);
}

static double blocks_of(const plan_question *q, double tokens) {
    return ceil(tokens / (PLAN_BLOCK * q->model.entry_tokens));
}

/* Rows that stay on the GPU in either way, of a block and of a request. */
static double resident_block(const plan_question *q) {
    return PLAN_BLOCK * q->model.entry_tokens * q->model.resident_rows * plan_row_bytes(q);
}

/* One pool of equal blocks, as vLLM has it (the calculator of its blog; presets/models.json, glm-5.3): a block holds
 * the pages of a few layers, or the index keys of 64 tokens, in whole pages. Layers go together as in a group, or as
 * many as index keys fill where that is more: the last is our reading, the calculator has one model. */
static int layers_of_block(const plan_question *q) {
    double page = PLAN_BLOCK * plan_row_bytes(q);
    return (int)fmax(q->model.group_layers, floor(index_block(q) / page));
}

static double equal_block(const plan_question *q) {
    double page = PLAN_BLOCK * plan_row_bytes(q);
    return page * ceil(fmax(layers_of_block(q) * page, index_block(q)) / page);
}

static double fixed_of_blocks(const plan_question *q, int slots) {
    double pools = ceil((double)q->model.paged_layers / layers_of_block(q));
    return equal_block(q) * pools * (ceil((double)slots / PLAN_BLOCK) + NEWEST_BLOCKS);
}

/* What the library itself takes for one request more: slots, ring, tags, order, look-up. Asked of hsp_footprint, so
 * that the two cannot differ. */
static double slab_bytes(const plan_question *q, int slots, double tokens) {
    const plan_model *m = &q->model;
    hsp_footprint_bytes one = {.struct_size = sizeof one}, two = {.struct_size = sizeof two};
    static int32_t group[4096];
    hsp_config c;
    hsp_config_init(&c, sizeof c);
    for (int i = 0; i < m->paged_layers; i++)
        group[i] = (int32_t)((int64_t)i * m->groups / m->paged_layers);
    c.n_layers = m->paged_layers;
    c.layer_group = group;
    c.n_planes = 1;
    c.plane_bytes[0] = (int32_t)(4 * ceil(plan_row_bytes(q) / 4));
    c.max_context = (int32_t)ceil(tokens / m->entry_tokens);
    c.host_tokens = c.max_context;
    c.max_k = m->k;
    c.n_slots = slots;
    c.max_requests = c.max_batch = 1;
    int failed = hsp_footprint(&c, &one) != HSP_OK;
    c.max_requests = c.max_batch = 2;
    if (failed || hsp_footprint(&c, &two) != HSP_OK)
        return NAN;
    return (double)(two.device_rows - one.device_rows + two.device_state - one.device_state);
}

double plan_request_bytes(const plan_question *q, int slots, double tokens) {
    const plan_model *m = &q->model;
    double blocks = blocks_of(q, tokens), window = m->window_rows * plan_row_bytes(q);
    if (!slots)
        return blocks * (PLAN_BLOCK * m->paged_layers * plan_row_bytes(q) + index_block(q) + resident_block(q)) +
               window;
    if (q->slabs)
        return blocks * (index_block(q) + resident_block(q)) + window + slab_bytes(q, slots, tokens);
    return blocks * (equal_block(q) + resident_block(q)) + window + fixed_of_blocks(q, slots);
}

/* The calculator's formula (presets/models.json, glm-5.3, derived.weight_bytes_per_gpu_formula): what all tokens use is
 * shared out over tp, routed experts over all GPUs. Without published bytes: parameters times bits. */
double plan_weight_bytes(const plan_question *q, double *routed_out) {
    const plan_model *m = &q->model;
    int published = q->weight_bits == 0 && m->shared_bytes > 0;
    double bytes = (q->weight_bits > 0 ? q->weight_bits : 8) / 8;
    double shared = published ? m->shared_bytes : (m->parameters - m->routed_parameters) * bytes;
    *routed_out = (published ? m->routed_bytes : m->routed_parameters * bytes) / q->gpus;
    return shared / q->tp + *routed_out;
}

static void set_blocks(const plan_question *q, int slots, plan_answer *out) {
    double rows = PLAN_BLOCK * q->model.paged_layers * plan_row_bytes(q);
    out->index_bytes = index_block(q);
    out->host_block_bytes = slots ? rows : 0;
    out->block_bytes = (slots == 0 ? rows + index_block(q)
                        : q->slabs ? index_block(q)
                                   : equal_block(q)) +
                       resident_block(q);
}

int plan_capacity(const plan_question *q, int slots, plan_answer *out) {
    double routed, host = q->host_bytes > 0 ? q->host_bytes / q->gpus : q->machine.host_bytes;
    *out = (plan_answer){.slots = slots, .weight_bytes = plan_weight_bytes(q, &routed)};
    set_blocks(q, slots, out);
    for (int i = 0; i < q->n_contexts; i++) {
        out->device_bytes += q->share[i] * plan_request_bytes(q, slots, q->context[i]);
        out->host_bytes += q->share[i] * blocks_of(q, q->context[i]) * out->host_block_bytes;
    }
    if (isnan(out->device_bytes))
        return 0; /* the library has no such cache; hsp_last_error says why */
    out->fixed_bytes =
        slots ? plan_request_bytes(q, slots, 1) - out->block_bytes : q->model.window_rows * plan_row_bytes(q);
    out->free_bytes = q->machine.memory_bytes * q->utilization - out->weight_bytes - q->reserve_bytes;
    double replicas = (double)q->gpus / q->tp;
    out->fit_device = out->free_bytes > 0 ? floor(out->free_bytes / out->device_bytes) * replicas : 0;
    out->fit_host = slots ? floor(host / out->host_bytes) * replicas : INFINITY;
    out->requests = fmin(out->fit_device, out->fit_host);
    out->fit_limit = out->fit_device <= out->fit_host ? "GPU memory" : "host memory";
    if (q->requests > 0 && q->requests <= out->requests) {
        out->requests = q->requests;
        out->fit_limit = "requests";
    }
    return out->requests >= 1;
}
