/* SPDX-License-Identifier: Apache-2.0 */
/* Rows on their way to host memory: prefill, and the write-through of new rows. */
#include "backend/cpu/cpu.h"

int hsp__cpu_fill(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens, const hsp_row_source *rows,
                  void *stream, hsp__error *error) {
    hsp__cpu *cpu = self;
    const hsp__layout *layout = cpu->plain.layout;
    int parallel = (int64_t)n_tokens * (int64_t)layout->row_bytes >= HSP__CPU_SERIAL_BYTES;
    int status = hsp__plain_check_fill(&cpu->plain, slot, layer, first, error);
    (void)stream;
    if (status != HSP_OK)
        return status;
#pragma omp parallel for num_threads(cpu->n_threads) if (parallel)
    for (int32_t i = 0; i < n_tokens; i++) {
        char *host = hsp__plain_host_row(&cpu->plain, slot, layer, first + i);
        for (int32_t p = 0; p < layout->n_planes; p++)
            cpu->copy(host + layout->plane_offset[p], hsp__source_row(layout, rows, p, i), layout->plane_bytes[p]);
    }
    hsp__plain_filled(&cpu->plain, slot, layer, first, n_tokens);
    return HSP_OK;
}

static void append_row(const hsp__cpu *cpu, int32_t slot, int32_t layer, int32_t token, const hsp_row_source *rows,
                       int64_t i) {
    const hsp__layout *layout = cpu->plain.layout;
    char *host = hsp__plain_host_row(&cpu->plain, slot, layer, token);
    int32_t id = hsp__ring_id(layout, slot, token);
    for (int32_t p = 0; p < layout->n_planes; p++) {
        const char *row = hsp__source_row(layout, rows, p, i);
        cpu->copy(hsp__plain_device_row(&cpu->plain, layer, id, p), row, layout->plane_bytes[p]);
        cpu->copy(host + layout->plane_offset[p], row, layout->plane_bytes[p]);
    }
}

int hsp__cpu_append(void *self, int32_t layer, const hsp_row_source *rows, int32_t rows_per_request, void *stream,
                    hsp__error *error) {
    hsp__cpu *cpu = self;
    const hsp__slots *slots = &cpu->plain.slots;
    int64_t bytes = (int64_t)slots->batch * rows_per_request * (int64_t)cpu->plain.layout->row_bytes;
    (void)stream, (void)error;
#pragma omp parallel for num_threads(cpu->n_threads) if (bytes >= HSP__CPU_SERIAL_BYTES)
    for (int32_t b = 0; b < slots->batch; b++) {
        int32_t slot = slots->batch_slot[b], first = slots->batch_first[b], n_new = slots->batch_n_new[b];
        if (slot < 0)
            continue;
        for (int32_t i = 0; i < n_new; i++)
            append_row(cpu, slot, layer, first + i, rows, (int64_t)b * rows_per_request + i);
        hsp__plain_appended(&cpu->plain, slot, layer, first, n_new);
    }
    return HSP_OK;
}
