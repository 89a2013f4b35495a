/* SPDX-License-Identifier: Apache-2.0
 *
 * GQA attention over rows by id: checks, and the split into items of one tile and one KV head.
 */
#include "attention.h"

#include "kernels.h"

#include <math.h>

int hsp_gqa_scratch(const hsp_gqa_shape *shape, int32_t n_rows, size_t *bytes_out) {
    int status = hsp__gqa_check(shape);
    if (status)
        return status;
    if (n_rows < 0 || !bytes_out)
        return HSP_EINVAL;
    *bytes_out =
        (size_t)hsp__tiles_of(n_rows) * (size_t)shape->n_heads * hsp__partial_floats(shape->value_dim) * sizeof(float);
    return HSP_OK;
}

static int check_tiles(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values,
                       int32_t n_rows, int32_t first_tile) {
    int status = hsp__gqa_check(shape);
    if (status)
        return status;
    if (n_rows < 0 || first_tile < 0)
        return HSP_EINVAL;
    if ((int64_t)first_tile * HSP_ATTENTION_TILE + n_rows > INT32_MAX)
        return HSP_ELIMIT;
    return hsp__gqa_check_planes(shape, keys, values);
}

/* What is common to all items of a call; everything of KV head 0 and of the first tile. */
static struct hsp__gqa_item first_item(const hsp_gqa_shape *shape, const hsp_plane_view *keys,
                                       const hsp_plane_view *values, const float *query, const int32_t *row_ids,
                                       float *partials) {
    return (struct hsp__gqa_item){.n_heads = shape->n_heads / shape->n_kv_heads,
                                  .key_dim = shape->key_dim,
                                  .value_dim = shape->value_dim,
                                  .scale = shape->scale,
                                  .query = query,
                                  .row_ids = row_ids,
                                  .key = *keys,
                                  .value = *values,
                                  .partial_out = partials};
}

/* Move the item to one tile and KV head. */
static void place_item(const hsp_gqa_shape *shape, int32_t tile, int32_t kv_head, int32_t n_rows,
                       struct hsp__gqa_item *item) {
    size_t head = (size_t)kv_head * (size_t)item->n_heads;
    int32_t first = tile * HSP_ATTENTION_TILE, left = n_rows - first;
    item->n_rows = left < HSP_ATTENTION_TILE ? left : HSP_ATTENTION_TILE;
    item->row_ids += first;
    item->query += head * (size_t)shape->key_dim;
    item->partial_out += ((size_t)tile * (size_t)shape->n_heads + head) * hsp__partial_floats(shape->value_dim);
    item->key.base = (char *)item->key.base +
                     (size_t)kv_head * (hsp__gqa_row_bytes(shape, shape->key_dim) / (size_t)shape->n_kv_heads);
    item->value.base = (char *)item->value.base +
                       (size_t)kv_head * (hsp__gqa_row_bytes(shape, shape->value_dim) / (size_t)shape->n_kv_heads);
}

int hsp_gqa_tiles(const hsp_gqa_shape *shape, const hsp_plane_view *keys, const hsp_plane_view *values,
                  const float *query, const int32_t *row_ids, int32_t n_rows, int32_t first_tile, void *scratch) {
    int status = check_tiles(shape, keys, values, n_rows, first_tile);
    if (status || n_rows == 0)
        return status;
    if (!query || !row_ids || !scratch)
        return HSP_EINVAL;
    const struct hsp__kernels *kernels = hsp__ops();
    size_t tile_floats = (size_t)shape->n_heads * hsp__partial_floats(shape->value_dim);
    const struct hsp__gqa_item first =
        first_item(shape, keys, values, query, row_ids, (float *)scratch + (size_t)first_tile * tile_floats);
    int64_t n_items = (int64_t)hsp__tiles_of(n_rows) * shape->n_kv_heads;
    int64_t work = (int64_t)n_rows * shape->n_heads * (shape->key_dim + shape->value_dim);
#pragma omp parallel for schedule(static) if (work >= HSP__ENOUGH_WORK)
    for (int64_t i = 0; i < n_items; i++) {
        struct hsp__gqa_item item = first;
        place_item(shape, (int32_t)(i / shape->n_kv_heads), (int32_t)(i % shape->n_kv_heads), n_rows, &item);
        kernels->gqa_tile[shape->dtype](&item);
    }
    return HSP_OK;
}

/* In double; the lse has been rounded to float, which with large scores is most of what the sink adds to the error.
 * Where every row is masked the zeros stay: a sink of -inf less an lse of -inf would make them NaN. */
void hsp__apply_sink(float sink, float lse, int32_t value_dim, float *out) {
    if (lse == -INFINITY)
        return;
    double share = 1.0 / (1.0 + exp((double)sink - (double)lse));
    for (int32_t c = 0; c < value_dim; c++)
        out[c] = share == 0.0 ? 0.0f : (float)((double)out[c] * share); /* zeros, whatever the values are */
}

int hsp_gqa_combine(const hsp_gqa_shape *shape, const void *scratch, int32_t n_tiles, const float *sink, float *out,
                    float *lse_out) {
    int status = hsp__gqa_check(shape);
    if (status)
        return status;
    if (n_tiles < 0 || (n_tiles && !scratch) || !out)
        return HSP_EINVAL;
    const struct hsp__kernels *kernels = hsp__ops();
    size_t floats = hsp__partial_floats(shape->value_dim), stride = floats * (size_t)shape->n_heads;
    int64_t work = (int64_t)n_tiles * shape->n_heads * shape->value_dim;
#pragma omp parallel for schedule(static) if (work >= HSP__ENOUGH_WORK)
    for (int32_t h = 0; h < shape->n_heads; h++) {
        float lse, *head_out = out + (size_t)h * (size_t)shape->value_dim;
        kernels->gqa_combine((const float *)scratch + (size_t)h * floats, stride, n_tiles, shape->value_dim, head_out,
                             &lse);
        if (sink)
            hsp__apply_sink(sink[h], lse, shape->value_dim, head_out);
        if (lse_out)
            lse_out[h] = lse;
    }
    return HSP_OK;
}
