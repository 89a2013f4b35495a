/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_path.h"
#include "gpu.h"
#include "tools.h"

#include <stdlib.h>

enum { MOST_STAMPS = 256 };

int bench_path_open(path_state *p) {
    bench_gpu_state *s = &p->s;
    s->memory = gpu_table(GPU_MEMORY);
    s->gpu = s->memory ? gpu_table(GPU_BENCH) : NULL;
    p->path = s->gpu ? gpu_table(GPU_PATH) : NULL;
    if (!p->path)
        return TOOL_BAD_INPUT;
    if (s->gpu->open(MOST_STAMPS, &s->lane) != 0 || p->path->open(&p->weights) != 0)
        return bench_gpu_fails(s);
    int code = bench_gpu_calibrate(s);
    if (code == TOOL_OK)
        code = bench_path_measure_link(p);
    return code == TOOL_OK ? bench_path_measure_work(p) : code;
}

void bench_path_close(path_state *p) {
    if (!p->path)
        return;
    bench_path_close_shape(p);
    p->path->close(p->weights);
    p->s.gpu->close(p->s.lane);
}

/* -------------------------------------------------------------------------------------------------------- shape -- */

/* Numbers from -1 to 1 on the device: what is multiplied by zeros takes less power. */
static int make_query(path_state *p, size_t n) {
    rows_random random = {1};
    float *query = malloc(n * sizeof *query);
    if (!query)
        return tool_fail(TOOL_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++)
        query[i] = (float)(rows_draw(&random) >> 40) * 0x1p-23f - 1;
    int status = p->s.memory->copy(p->query, query, n * sizeof *query);
    free(query);
    return status == 0 ? TOOL_OK : bench_gpu_fails(&p->s);
}

static int take_arrays(path_state *p) {
    const gpu_memory *memory = p->s.memory;
    size_t batch = (size_t)p->s.shape.batch, rows = batch * (size_t)p->s.shape.row_bytes, heads = batch * PATH_HEADS;
    int32_t *none = calloc(batch, sizeof *none);
    void *query = NULL, *out = NULL, *zeros = NULL;
    int failed = memory->alloc(rows, &p->new_rows) != 0 || memory->alloc(rows, &p->put_rows) != 0 ||
                 memory->alloc(heads * PATH_CHANNELS * sizeof(float), &query) != 0 ||
                 memory->alloc(heads * PATH_LATENT * sizeof(float), &out) != 0 ||
                 memory->alloc(batch * sizeof(int32_t), &zeros) != 0;
    p->query = query, p->out = out, p->zeros = zeros;
    int code = !none ? tool_fail(TOOL_FAILED, "out of memory") : failed ? bench_gpu_fails(&p->s) : TOOL_OK;
    if (code == TOOL_OK && memory->copy(zeros, none, batch * sizeof *none) != 0)
        code = bench_gpu_fails(&p->s);
    free(none);
    return code == TOOL_OK ? make_query(p, heads * PATH_CHANNELS) : code;
}

static int make_new_rows(path_state *p) {
    uint32_t row_bytes = (uint32_t)p->s.shape.row_bytes;
    gpu_rows rows = {p->new_rows, row_bytes, row_bytes, 0};
    int status = p->s.gpu->make_rows(p->s.lane, &rows, 0, 0, (uint32_t)p->s.shape.batch);
    return status == 0 && p->s.memory->wait() == 0 ? TOOL_OK : bench_gpu_fails(&p->s);
}

int bench_path_open_shape(path_state *p, const bench_shape *shape) {
    bench_gpu_state *s = &p->s;
    s->shape = *shape;
    int code = bench_gpu_open_cache(s, &s->real, shape->row_bytes, 0);
    if (code == TOOL_OK && shape->group > 1)
        code = bench_gpu_open_cache(s, &p->prefetched, shape->row_bytes, HSP_PREFETCH);
    if (code == TOOL_OK)
        code = bench_gpu_open_cache(s, &s->oracle, bench_gpu_oracle_row(shape), HSP_NO_IO);
    s->view = (hsp_rows_view){.struct_size = sizeof s->view};
    if (code == TOOL_OK && hsp_rows(s->real.cache, 0, &s->view) != HSP_OK)
        code = tool_fail(TOOL_FAILED, "%s", hsp_last_error(s->real.cache));
    if (code == TOOL_OK)
        code = take_arrays(p);
    return code == TOOL_OK ? make_new_rows(p) : code;
}

void bench_path_close_shape(path_state *p) {
    void *device[] = {p->new_rows, p->put_rows, p->query, p->out, p->zeros};
    bench_close(&p->s.real);
    bench_close(&p->s.oracle);
    bench_close(&p->prefetched);
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        p->s.memory->release(device[i]);
    p->new_rows = p->put_rows = NULL;
    p->query = p->out = NULL;
    p->zeros = NULL;
}
