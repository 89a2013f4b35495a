/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/cpu.h"

#include <omp.h>
#include <stdio.h>

static uint32_t capabilities(void) {
    return HSP_CAN_RUN | HSP_CAN_HOST_FILE | HSP_CAN_PARALLEL;
}

static void describe(char *detail, size_t bytes) {
    const char *name;
    hsp__copy_choose(&name);
    snprintf(detail, bytes, "%s copies, %d threads", name, omp_get_max_threads());
}

static void *carve(const hsp__open_args *args, hsp__arena *arena, uint64_t *device_state_out) {
    hsp__cpu *self = hsp__carve(arena, 1, sizeof *self);
    size_t batch = (size_t)args->layout->max_batch;
    *device_state_out = hsp__plain_init(self ? &self->plain : NULL, args, arena);
    int64_t *miss_first = hsp__carve(arena, batch + 1, sizeof *miss_first);
    if (self) {
        self->copy = hsp__copy_choose(NULL);
        self->n_threads = args->config->n_threads ? args->config->n_threads : omp_get_max_threads();
        self->miss_first = miss_first;
    }
    return self;
}

const hsp__backend hsp__backend_cpu = {.name = "cpu",
                                       .capabilities = capabilities,
                                       .describe = describe,
                                       .carve = carve,
                                       .open = hsp__plain_open,
                                       .close = hsp__plain_close,
                                       .huge_pages = hsp__plain_huge_pages,
                                       .admit = hsp__plain_admit,
                                       .retire = hsp__plain_retire,
                                       .truncate = hsp__plain_truncate,
                                       .fill = hsp__cpu_fill,
                                       .warm = hsp__cpu_warm,
                                       .read = hsp__plain_read,
                                       .step_begin = hsp__plain_step_begin,
                                       .append = hsp__cpu_append,
                                       .swap_in = hsp__cpu_swap_in,
                                       .wait_rows = hsp__cpu_wait_rows,
                                       .device_rows = hsp__plain_device_rows,
                                       .resident = hsp__plain_resident,
                                       .counters = hsp__plain_counters,
                                       .reset_counters = hsp__plain_reset_counters};
