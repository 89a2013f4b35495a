/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in: requests are resolved side by side, then the misses of the whole batch are fetched as one list, so that one
 * cold request among warm ones does not leave threads idle. */
#include "backend/cpu/cpu.h"

#include <omp.h>
#include <string.h>

/* Rows ahead of the copy whose source is asked for: host rows are scattered, and each is a few lines long. */
enum { ROWS_AHEAD = 4 };

/* Which layers of a group are fetched: n of them, from one on. */
typedef struct layers {
    int32_t group, first, n;
} layers;

static const char *source_of(const hsp__cpu *cpu, int32_t slot, const layers *l, int32_t token) {
    const hsp__layout *layout = cpu->plain.layout;
    int32_t page = hsp__slots_page(&cpu->plain.slots, layout, slot, token);
    return cpu->plain.host.base + hsp__host_offset(layout, l->group, l->first, page, token);
}

static void prefetch_row(const char *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(row + i, 0, 0);
}

/* One row of one layer. Planes lie packed in host memory, and on the device too unless blocks hold several rows. */
static void copy_row(const hsp__cpu *cpu, int32_t layer, int64_t id, const char *row) {
    const hsp__layout *layout = cpu->plain.layout;
    if (layout->block_rows == 1) {
        cpu->copy(hsp__plain_device_row(&cpu->plain, layer, id, 0), row, layout->row_bytes);
        return;
    }
    for (int32_t p = 0; p < layout->n_planes; p++)
        cpu->copy(hsp__plain_device_row(&cpu->plain, layer, id, p), row + layout->plane_offset[p],
                  layout->plane_bytes[p]);
}

/* Misses first .. first + n - 1 of a plan. */
static void fetch(const hsp__cpu *cpu, const hsp__plan *plan, const layers *l, int32_t first, int32_t n) {
    const hsp__layout *layout = cpu->plain.layout;
    const int32_t *layer = layout->group_layer + layout->group_first[l->group] + l->first;
    size_t bytes = layout->host_row_stride * (size_t)l->n;
    int64_t first_id = (int64_t)plan->request * layout->rows_per_request;
    for (int32_t m = first; m < first + n; m++) {
        if (m + ROWS_AHEAD < first + n)
            prefetch_row(source_of(cpu, plan->request, l, plan->token[m + ROWS_AHEAD]), bytes);
        const char *rows = source_of(cpu, plan->request, l, plan->token[m]);
        for (int32_t i = 0; i < l->n; i++)
            copy_row(cpu, layer[i], first_id + plan->slot[m], rows + (size_t)i * layout->host_row_stride);
    }
}

/* The part of thread `part` of `n_parts` of the misses of all plans. */
static void fetch_part(const hsp__cpu *cpu, const hsp__plan *plan, const layers *l, int part, int n_parts) {
    int32_t batch = cpu->plain.layout->max_batch;
    int64_t total = cpu->miss_first[batch];
    int64_t from = total * part / n_parts, to = total * (part + 1) / n_parts;
    for (int32_t b = 0; b < batch && cpu->miss_first[b] < to; b++) {
        int64_t first = from > cpu->miss_first[b] ? from : cpu->miss_first[b];
        int64_t last = to < cpu->miss_first[b + 1] ? to : cpu->miss_first[b + 1];
        if (first < last)
            fetch(cpu, &plan[b], l, (int32_t)(first - cpu->miss_first[b]), (int32_t)(last - first));
    }
}

/* plan: [max_batch]. */
static void fetch_all(const hsp__cpu *cpu, const hsp__plan *plan, const layers *l) {
    int32_t batch = cpu->plain.layout->max_batch;
    cpu->miss_first[0] = 0;
    for (int32_t b = 0; b < batch; b++)
        cpu->miss_first[b + 1] = cpu->miss_first[b] + plan[b].n_miss;
    int64_t bytes = cpu->miss_first[batch] * (int64_t)cpu->plain.layout->row_bytes * l->n;
    if (cpu->plain.config->flags & HSP_NO_IO || bytes == 0)
        return;
    if (cpu->n_threads == 1 || bytes < HSP__CPU_SERIAL_BYTES) {
        fetch_part(cpu, plan, l, 0, 1);
        return;
    }
#pragma omp parallel num_threads(cpu->n_threads)
    fetch_part(cpu, plan, l, omp_get_thread_num(), omp_get_num_threads());
}

int hsp__cpu_wait_rows(void *self, int32_t layer, void *stream, hsp__error *error) {
    hsp__cpu *cpu = self;
    const hsp__layout *layout = cpu->plain.layout;
    layers l = {layout->group_of[layer], layout->index_in_group[layer], 1};
    (void)stream, (void)error;
    if (hsp__followers_arrive(&cpu->plain.plans.followers, layer))
        fetch_all(cpu, hsp__plans_of(&cpu->plain.plans, layout, cpu->plain.config->flags, l.group), &l);
    return HSP_OK;
}

static void resolve_entry(const hsp__cpu *cpu, hsp__plan *plan, int32_t group, int32_t b, const int32_t *selection,
                          int64_t n, int32_t *ids) {
    const hsp__slots *slots = &cpu->plain.slots;
    int32_t slot = slots->batch_slot[b];
    if (slot < 0)
        memset(ids + b * n, 0xff, (size_t)n * sizeof(int32_t));
    else
        hsp__plan_resolve(plan, slots, cpu->plain.layout, cpu->plain.config, slot, group, selection + b * n, n,
                          ids + b * n, HSP__FIND_BY_MAP,
                          &slots->counters[hsp__slots_index(cpu->plain.layout, slot, group)]);
}

int hsp__cpu_swap_in(void *self, int32_t group, const int32_t *selection, int32_t n_queries, int32_t k,
                     int32_t *row_ids_out, void *stream, hsp__error *error) {
    hsp__cpu *cpu = self;
    int32_t batch = cpu->plain.slots.batch;
    int64_t n = (int64_t)n_queries * k;
    (void)stream, (void)error;
    hsp__plain_wait_group(&cpu->plain, group, hsp__cpu_wait_rows);
    hsp__plan *plan = hsp__plain_new_plans(&cpu->plain, group);
    layers l = {group, 0, hsp__plain_layers_at_once(&cpu->plain, group)};
#pragma omp parallel for num_threads(cpu->n_threads) schedule(dynamic) if (batch > 1)
    for (int32_t b = 0; b < batch; b++)
        resolve_entry(cpu, &plan[b], group, b, selection, n, row_ids_out);
    fetch_all(cpu, plan, &l);
    return HSP_OK;
}

int hsp__cpu_warm(void *self, int32_t slot, int32_t group, const int32_t *tokens, int32_t n, void *stream,
                  hsp__error *error) {
    hsp__cpu *cpu = self;
    hsp__plan *plan = &cpu->plain.plans.plan[0];
    layers l = {group, 0, cpu->plain.layout->group[group].n_layers};
    hsp_counters seen = {0};
    (void)stream, (void)error;
    hsp__plain_wait_group(&cpu->plain, group, hsp__cpu_wait_rows);
    hsp__plan_resolve(plan, &cpu->plain.slots, cpu->plain.layout, cpu->plain.config, slot, group, tokens, n, NULL,
                      HSP__FIND_BY_MAP, &seen);
    if (!(cpu->plain.config->flags & HSP_NO_IO))
        fetch(cpu, plan, &l, 0, plan->n_miss);
    hsp__plain_count_warm(&cpu->plain, slot, group, &seen);
    return HSP_OK;
}
