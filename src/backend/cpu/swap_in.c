/* SPDX-License-Identifier: Apache-2.0 */
/* Swap-in: requests are resolved side by side, then the misses of the whole batch are fetched as one list, so that one
 * cold request among warm ones does not leave threads idle. */
#include "backend/cpu/cpu.h"

#include <omp.h>
#include <string.h>

/* Rows ahead of the copy whose source is asked for: host rows are scattered, and each is a few lines long. */
enum { ROWS_AHEAD = 4 };

static const char *source_of(const hsp__cpu *cpu, int32_t slot, int32_t group, int32_t token) {
    const hsp__layout *layout = cpu->plain.layout;
    return cpu->plain.host.base +
           hsp__host_offset(layout, group, 0, hsp__slots_page(&cpu->plain.slots, layout, slot, token), token);
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

/* Misses first .. first + n - 1 of a plan, all layers of the group. */
static void fetch(const hsp__cpu *cpu, const hsp__plan *plan, int32_t slot, int32_t group, int32_t first, int32_t n) {
    const hsp__layout *layout = cpu->plain.layout;
    const hsp__group *g = &layout->group[group];
    const int32_t *layer = layout->group_layer + layout->group_first[group];
    size_t bytes = layout->host_row_stride * (size_t)g->n_layers;
    int64_t first_id = (int64_t)slot * layout->rows_per_request;
    for (int32_t m = first; m < first + n; m++) {
        if (m + ROWS_AHEAD < first + n)
            prefetch_row(source_of(cpu, slot, group, plan->token[m + ROWS_AHEAD]), bytes);
        const char *rows = source_of(cpu, slot, group, plan->token[m]);
        for (int32_t i = 0; i < g->n_layers; i++)
            copy_row(cpu, layer[i], first_id + plan->slot[m], rows + (size_t)i * layout->host_row_stride);
    }
}

static int64_t miss_bytes(const hsp__cpu *cpu, int32_t group, int64_t n_miss) {
    return n_miss * (int64_t)cpu->plain.layout->row_bytes * cpu->plain.layout->group[group].n_layers;
}

/* The part of thread `part` of `n_parts` of the misses of the whole batch. */
static void fetch_part(const hsp__cpu *cpu, int32_t group, int part, int n_parts) {
    const hsp__slots *slots = &cpu->plain.slots;
    int64_t total = cpu->miss_first[slots->batch];
    int64_t from = total * part / n_parts, to = total * (part + 1) / n_parts;
    for (int32_t b = 0; b < slots->batch && cpu->miss_first[b] < to; b++) {
        int64_t first = from > cpu->miss_first[b] ? from : cpu->miss_first[b];
        int64_t last = to < cpu->miss_first[b + 1] ? to : cpu->miss_first[b + 1];
        if (first < last)
            fetch(cpu, &cpu->plan[b], slots->batch_slot[b], group, (int32_t)(first - cpu->miss_first[b]),
                  (int32_t)(last - first));
    }
}

static void fetch_all(const hsp__cpu *cpu, int32_t group) {
    int64_t bytes = miss_bytes(cpu, group, cpu->miss_first[cpu->plain.slots.batch]);
    if (cpu->plain.config->flags & HSP_NO_IO || bytes == 0)
        return;
    if (cpu->n_threads == 1 || bytes < HSP__CPU_SERIAL_BYTES) {
        fetch_part(cpu, group, 0, 1);
        return;
    }
#pragma omp parallel num_threads(cpu->n_threads)
    fetch_part(cpu, group, omp_get_thread_num(), omp_get_num_threads());
}

static void resolve_entry(const hsp__cpu *cpu, int32_t group, int32_t b, const int32_t *selection, int64_t n,
                          int32_t *ids) {
    const hsp__slots *slots = &cpu->plain.slots;
    int32_t slot = slots->batch_slot[b];
    cpu->plan[b].n_miss = 0;
    if (slot < 0)
        memset(ids + b * n, 0xff, (size_t)n * sizeof(int32_t));
    else
        hsp__plan_resolve(&cpu->plan[b], slots, cpu->plain.layout, cpu->plain.config, slot, group, selection + b * n, n,
                          ids + b * n, HSP__FIND_BY_MAP,
                          &slots->counters[hsp__slots_index(cpu->plain.layout, slot, group)]);
}

int hsp__cpu_swap_in(void *self, int32_t group, const int32_t *selection, int32_t n_queries, int32_t k,
                     int32_t *row_ids_out, void *stream, hsp__error *error) {
    hsp__cpu *cpu = self;
    int32_t batch = cpu->plain.slots.batch;
    int64_t n = (int64_t)n_queries * k;
    (void)stream, (void)error;
#pragma omp parallel for num_threads(cpu->n_threads) schedule(dynamic) if (batch > 1)
    for (int32_t b = 0; b < batch; b++)
        resolve_entry(cpu, group, b, selection, n, row_ids_out);
    cpu->miss_first[0] = 0;
    for (int32_t b = 0; b < batch; b++)
        cpu->miss_first[b + 1] = cpu->miss_first[b] + cpu->plan[b].n_miss;
    fetch_all(cpu, group);
    return HSP_OK;
}

int hsp__cpu_warm(void *self, int32_t slot, int32_t group, const int32_t *tokens, int32_t n, void *stream,
                  hsp__error *error) {
    hsp__cpu *cpu = self;
    hsp__plan *plan = &cpu->plan[0];
    hsp_counters seen = {0};
    (void)stream, (void)error;
    hsp__plan_resolve(plan, &cpu->plain.slots, cpu->plain.layout, cpu->plain.config, slot, group, tokens, n, NULL,
                      HSP__FIND_BY_MAP, &seen);
    if (!(cpu->plain.config->flags & HSP_NO_IO))
        fetch(cpu, plan, slot, group, 0, plan->n_miss);
    hsp__plain_count_warm(&cpu->plain, slot, group, &seen);
    return HSP_OK;
}
