/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA attention over rows by id. The rows of a query are made floats once, whatever their format and however many heads
 * share them, and are then the keys and the values of GQA with one KV head. So no format needs a kernel of its own, and
 * rows of bf16 give the very bits that hsp_gqa_tiles gives on the same plane.
 */
#include "mla.h"

#include "attention.h"
#include "kernels.h"

/* Heads one item of work takes over a tile, a multiple of the four that go over a row together. Splitting tiles by
 * heads as well keeps many cores busy on one query, which has 32 tiles at most in the models known. */
#define HEADS_TOGETHER 16

/* One query. */
struct job {
    const hsp_mla_shape *shape;
    const hsp_plane_view *planes;
    const float *query, *sink;
    const int32_t *row_ids;
    int32_t n_rows;
    float *out, *lse_out;
    float *rows;     /* [n_rows][key_dim] in the order of row_ids; masked ones are left unwritten */
    float *partials; /* [n_tiles][n_heads] */
};

static size_t row_floats(const hsp_mla_shape *shape, int32_t n_rows) {
    return (size_t)n_rows * (size_t)hsp__mla_key_dim(shape);
}

int hsp_mla_scratch(const hsp_mla_shape *shape, int32_t n_rows, size_t *bytes_out) {
    int status = hsp__mla_check(shape);
    if (status)
        return status;
    if (n_rows < 0 || !bytes_out)
        return HSP_EINVAL;
    size_t partials = (size_t)hsp__tiles_of(n_rows) * (size_t)shape->n_heads;
    *bytes_out =
        (row_floats(shape, n_rows) + partials * hsp__partial_floats(hsp__mla_value_dim(shape))) * sizeof(float);
    return HSP_OK;
}

/* The three steps of a query. Each is called by all threads of a team, which share its loop and meet at its end. */

static void unpack_rows(const struct job *job) {
    size_t dim = (size_t)hsp__mla_key_dim(job->shape);
#pragma omp for schedule(static)
    for (int32_t i = 0; i < job->n_rows; i++)
        if (job->row_ids[i] >= 0)
            hsp__mla_unpack_row(job->shape, job->planes, job->row_ids[i], job->rows + (size_t)i * dim);
}

static void attend_tile(const struct job *job, int32_t tile, int32_t head) {
    const hsp_mla_shape *shape = job->shape;
    int32_t first = tile * HSP_ATTENTION_TILE, rows_left = job->n_rows - first, heads_left = shape->n_heads - head;
    int32_t key_dim = hsp__mla_key_dim(shape), value_dim = hsp__mla_value_dim(shape), ids[HSP_ATTENTION_TILE];
    size_t row_bytes = (size_t)key_dim * sizeof(float);
    const hsp_plane_view rows = {job->rows + row_floats(shape, first), row_bytes, row_bytes, row_bytes, 1, 0};
    const struct hsp__gqa_item item = {
        .n_heads = heads_left < HEADS_TOGETHER ? heads_left : HEADS_TOGETHER,
        .n_rows = rows_left < HSP_ATTENTION_TILE ? rows_left : HSP_ATTENTION_TILE,
        .key_dim = key_dim,
        .value_dim = value_dim,
        .scale = shape->scale,
        .query = job->query + (size_t)head * (size_t)key_dim,
        .row_ids = ids,
        .key = rows,
        .value = rows,
        .partial_out =
            job->partials + ((size_t)tile * (size_t)shape->n_heads + (size_t)head) * hsp__partial_floats(value_dim),
    };
    for (int32_t i = 0; i < item.n_rows; i++)
        ids[i] = job->row_ids[first + i] < 0 ? -1 : i;
    hsp__ops()->gqa_tile[HSP_F32](&item);
}

static void attend_tiles(const struct job *job) {
    int64_t head_groups = (job->shape->n_heads + HEADS_TOGETHER - 1) / HEADS_TOGETHER;
    int64_t n_items = hsp__tiles_of(job->n_rows) * head_groups;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n_items; i++)
        attend_tile(job, (int32_t)(i / head_groups), (int32_t)(i % head_groups) * HEADS_TOGETHER);
}

static void combine_heads(const struct job *job) {
    int32_t value_dim = hsp__mla_value_dim(job->shape), n_heads = job->shape->n_heads;
    size_t floats = hsp__partial_floats(value_dim);
#pragma omp for schedule(static)
    for (int32_t h = 0; h < n_heads; h++) {
        float lse, *out = job->out + (size_t)h * (size_t)value_dim;
        const float *partials = job->n_rows ? job->partials + (size_t)h * floats : NULL;
        hsp__ops()->gqa_combine(partials, floats * (size_t)n_heads, hsp__tiles_of(job->n_rows), value_dim, out, &lse);
        if (job->sink)
            hsp__apply_sink(job->sink[h], lse, value_dim, out);
        if (job->lse_out)
            job->lse_out[h] = lse;
    }
}

/* Query q of those that `first` begins. They follow each other through the same scratch. */
static struct job job_of(const struct job *first, int32_t q) {
    struct job job = *first;
    size_t heads = (size_t)q * (size_t)job.shape->n_heads;
    job.query += heads * (size_t)hsp__mla_key_dim(job.shape);
    job.row_ids = job.n_rows ? job.row_ids + (size_t)q * (size_t)job.n_rows : NULL;
    job.out += heads * (size_t)hsp__mla_value_dim(job.shape);
    job.lse_out = job.lse_out ? job.lse_out + heads : NULL;
    return job;
}

int hsp_mla_attend(const hsp_mla_shape *shape, const hsp_plane_view *planes, const float *query, const int32_t *row_ids,
                   int32_t n_queries, int32_t n_rows, const float *sink, float *out, float *lse_out, void *scratch) {
    int status = hsp__mla_check(shape);
    if (status)
        return status;
    if (n_queries < 0 || n_rows < 0 || (n_queries && (!query || !out)))
        return HSP_EINVAL;
    if (n_queries && n_rows && (!row_ids || !scratch))
        return HSP_EINVAL;
    status = hsp__mla_check_planes(shape, planes);
    if (status)
        return status;
    int32_t value_dim = hsp__mla_value_dim(shape);
    const struct job first = {.shape = shape,
                              .planes = planes,
                              .query = query,
                              .sink = sink,
                              .row_ids = row_ids,
                              .n_rows = n_rows,
                              .out = out,
                              .lse_out = lse_out,
                              .rows = scratch,
                              .partials = n_queries && n_rows ? (float *)scratch + row_floats(shape, n_rows) : NULL};
    double work = (double)n_queries * n_rows * shape->n_heads * (hsp__mla_key_dim(shape) + value_dim);
#pragma omp parallel if (work >= HSP__ENOUGH_WORK)
    for (int32_t q = 0; q < n_queries; q++) {
        const struct job job = job_of(&first, q);
        unpack_rows(&job);
        attend_tiles(&job);
        combine_heads(&job);
    }
    return HSP_OK;
}
