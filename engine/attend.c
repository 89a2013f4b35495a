/* SPDX-License-Identifier: Apache-2.0 */
#include "attend.h"

#include <stdlib.h>
#include <string.h>

int attend_open(attend *a, const model *m, int32_t top_k, int32_t max_tokens) {
    static const attend_kind *const kinds[] = {
        [MODEL_QUEST] = &attend__quest, [MODEL_NSA] = &attend__nsa, [MODEL_DSA] = &attend__dsa};
    *a = (attend){.m = m, .kind = kinds[m->kind], .top_k = top_k, .max_tokens = max_tokens};
    return a->kind->measure(a) == HSP_OK ? 0 : -1;
}

void *attend_grab(size_t count, size_t size) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, count * size + 64) == 0 ? memset(memory, 0, count * size) : NULL;
}

int attend_worker_open(const attend *a, attend_worker *w) {
    const attend_sizes *s = &a->sizes;
    *w = (attend_worker){.selection = attend_grab(s->selection, sizeof(int32_t)),
                         .ids = attend_grab(s->ids, sizeof(int32_t)),
                         .floats = attend_grab(s->floats, sizeof(float)),
                         .select_scratch = attend_grab(s->select_bytes, 1),
                         .attention_scratch = attend_grab(s->attention_bytes, 1)};
    return w->selection && w->ids && w->floats && w->select_scratch && w->attention_scratch ? 0 : -1;
}

void attend_worker_close(attend_worker *w) {
    free(w->selection);
    free(w->ids);
    free(w->floats);
    free(w->select_scratch);
    free(w->attention_scratch);
}

void attend_pack(const attend *a, const activations *x, int32_t store, size_t offset, const float *numbers,
                 size_t stride, size_t count) {
    size_t row_bytes = (size_t)a->m->plane_bytes[0] + (size_t)a->m->plane_bytes[1];
    char *rows = x->rows + (size_t)store * (size_t)x->n * row_bytes + offset;
#pragma omp parallel for if (x->n > 16)
    for (int32_t t = 0; t < x->n; t++)
        hsp_pack(HSP_BF16, numbers + (size_t)t * stride, count, rows + (size_t)t * row_bytes);
}

int attend_rows(const attend *a, kv *rows, int32_t store, const float *query, const int32_t *selection, int32_t n,
                int32_t first_tile, const attend_worker *w) {
    hsp_plane_view planes[HSP_MAX_PLANES];
    if (rows->select(rows, store, selection, n, w->ids) != 0)
        return -1;
    rows->views(rows, store, planes);
    hsp_gqa_tiles(&a->m->attention, &planes[0], &planes[1], query, w->ids, n, first_tile, w->attention_scratch);
    return 0;
}
