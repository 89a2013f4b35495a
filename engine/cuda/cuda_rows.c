/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that all lie on the GPU: engine/kv_resident.c there, and one layer of a prompt while it is read. */
#include "cuda_gpu.h"

#include <stdlib.h>
#include <string.h>

typedef struct gpu_rows {
    kv base;
    gpu *g;
    gpu_arena memory;
    char *rows; /* [stores][max_tokens][row_bytes] */
    int32_t stores, max_tokens;
    const int32_t *n_tokens; /* on the device: of the step that is running */
} gpu_rows;

static char *row_of(const gpu_rows *r, int32_t store, int32_t token) {
    size_t row = (size_t)(store % r->stores) * (size_t)r->max_tokens + (size_t)token;
    return r->rows + row * (size_t)r->base.row_bytes;
}

static int checked(gpu_rows *r, int fine) {
    if (!fine)
        r->base.error = r->g->error;
    return fine ? 0 : -1;
}

static int fill(kv *self, int32_t store, int32_t first, int32_t n, const void *rows) {
    gpu_rows *r = (gpu_rows *)self;
    return checked(r,
                   GPU_RUN(r->g, cudaMemcpyAsync(row_of(r, store, first), rows, (size_t)n * (size_t)r->base.row_bytes,
                                                 cudaMemcpyDeviceToDevice, r->g->stream)));
}

static int begin(kv *self, int32_t token) {
    gpu_rows *r = (gpu_rows *)self;
    if (token >= r->max_tokens)
        return checked(r, gpu_fail(r->g, "token %d; there is room for %d", token, r->max_tokens) == 0);
    return 0;
}

static int append(kv *self, int32_t store, const void *row) {
    gpu_rows *r = (gpu_rows *)self;
    return checked(
        r, GPU_RUN(r->g, gpu_put_row(row, (size_t)r->base.row_bytes, r->n_tokens, row_of(r, store, 0), r->g->stream)));
}

/* Every token lies at its own place. */
static int select_rows(kv *self, int32_t store, const int32_t *selection, int32_t n, int32_t *ids_out) {
    gpu_rows *r = (gpu_rows *)self;
    (void)store;
    return checked(r, GPU_RUN(r->g, cudaMemcpyAsync(ids_out, selection, (size_t)n * sizeof *ids_out,
                                                    cudaMemcpyDeviceToDevice, r->g->stream)));
}

static void views(kv *self, int32_t store, hsp_plane_view *planes_out) {
    gpu_rows *r = (gpu_rows *)self;
    const model *m = r->g->m;
    size_t row = (size_t)r->base.row_bytes;
    char *plane = row_of(r, store, 0);
    for (int32_t p = 0; p < m->n_planes; plane += m->plane_bytes[p++])
        planes_out[p] = (hsp_plane_view){plane, (size_t)m->plane_bytes[p], row, row, 1, 0};
}

static int copy(kv *self, void *to, const void *from, size_t bytes) {
    gpu_rows *r = (gpu_rows *)self;
    return checked(r, gpu_wait(r->g) && GPU_RUN(r->g, cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost)));
}

static void close_rows(kv *self) {
    if (self)
        gpu_release(&((gpu_rows *)self)->memory);
    free(self);
}

kv *gpu_rows_open(gpu *g, int32_t stores, int32_t max_tokens) {
    const model *m = g->m;
    gpu_rows *r = calloc(1, sizeof *r);
    if (!r) {
        gpu_fail(g, "not enough memory");
        return NULL;
    }
    *r = (gpu_rows){.g = g, .stores = stores, .max_tokens = max_tokens};
    r->base = (kv){.row_bytes = m->plane_bytes[0] + m->plane_bytes[1],
                   .most_rows = max_tokens,
                   .error = "",
                   .fill = fill,
                   .begin = begin,
                   .append = append,
                   .select = select_rows,
                   .views = views,
                   .close = close_rows,
                   .copy = copy,
                   .stream = g->stream};
    r->rows = gpu_grab(g, &r->memory, (size_t)stores * (size_t)max_tokens, (size_t)r->base.row_bytes);
    if (r->rows)
        return &r->base;
    close_rows(&r->base);
    return NULL;
}

void gpu_rows_follow(kv *rows, const int32_t *n_tokens) {
    ((gpu_rows *)rows)->n_tokens = n_tokens;
}
