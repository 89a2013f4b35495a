/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <string.h>

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014). */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t rows_draw(rows_random *random) {
    return mix(random->state += 0x9e3779b97f4a7c15u);
}

int32_t rows_below(rows_random *random, int64_t n) {
    uint64_t draw = rows_draw(random) >> 32;
    return n < 2 ? 0 : (int32_t)(draw * (uint64_t)n >> 32);
}

void rows_permutation(rows_random *random, int32_t *out, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t j = rows_below(random, i + 1);
        out[i] = out[j];
        out[j] = i;
    }
}

void rows_fill(void *rows, size_t row_bytes, int64_t n_rows, uint64_t label) {
    char *row = rows;
    for (int64_t r = 0; r < n_rows; r++, row += row_bytes) {
        uint64_t word = mix(label + (uint64_t)r + 1);
        for (size_t i = 0; i + 4 <= row_bytes; i += 4) {
            uint32_t upper = (uint32_t)(word >> 32);
            memcpy(row + i, &upper, 4);
            word = word * 6364136223846793005u + 1442695040888963407u;
        }
    }
}

size_t rows_bytes(const hsp_config *config) {
    size_t bytes = 0;
    for (int32_t p = 0; p < config->n_planes; p++)
        bytes += (size_t)config->plane_bytes[p];
    return bytes;
}

hsp_row_source rows_source(const hsp_config *config, const void *rows) {
    hsp_row_source source = {{NULL}, {0}};
    const char *plane = rows;
    for (int32_t p = 0; p < config->n_planes; plane += config->plane_bytes[p++]) {
        source.plane[p] = plane;
        source.stride[p] = rows_bytes(config);
    }
    return source;
}

hsp_row_sink rows_sink(const hsp_config *config, void *rows) {
    hsp_row_sink sink = {{NULL}, {0}};
    char *plane = rows;
    for (int32_t p = 0; p < config->n_planes; plane += config->plane_bytes[p++]) {
        sink.plane[p] = plane;
        sink.stride[p] = rows_bytes(config);
    }
    return sink;
}

int rows_same(const hsp_rows_view *view, int64_t id, const void *row) {
    const char *want = row;
    if (id < 0 || id >= view->n_rows)
        return 0;
    for (int32_t p = 0; p < view->n_planes; want += view->plane[p++].row_bytes) {
        const hsp_plane_view *v = &view->plane[p];
        size_t block = (size_t)(id / v->rows_per_block), within = (size_t)(id % v->rows_per_block);
        if (memcmp((const char *)v->base + block * v->block_stride + within * v->row_stride, want, v->row_bytes) != 0)
            return 0;
    }
    return 1;
}
