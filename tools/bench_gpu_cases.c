/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_gpu.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows scattered over less than this are found faster than in use: the GPU remembers their translations. The other
 * bound is for two such pools, the cache's and the yardstick's, in the machine that this was made for. */
#define LEAST_POOL ((size_t)16 << 30)
#define MOST_POOL  ((size_t)40 << 30)
enum { LEAST_LAYERS = 4, MOST_LAYERS = 256, LONG_CONTEXT = 131072, SHORT_CONTEXT = 32768, MOST_LONG_BATCH = 32 };

/* Lists by name. `lonely`: miss rates that only batch 1 has. */
typedef struct case_list {
    const char *name;
    tool_reals batch, miss, lonely, row_bytes, slots;
    int layers; /* 0: as many as LEAST_POOL takes */
    int skew;
} case_list;

static const case_list lists[] = {
    {"short", {2, {1, 32}}, {3, {0, 5, 13.4}}, {0, {0}}, {1, {656}}, {1, {4096}}, 0, 1},
    /* The table of the first prototype: a shape of its own, so that numbers compare. */
    {"floor", {4, {1, 8, 32, 128}}, {6, {0, 1, 5, 10, 13.4, 25}}, {1, {100}}, {1, {656}}, {1, {4096}}, 4, 0},
    {"full",
     {9, {1, 2, 4, 8, 16, 32, 64, 128, 256}},
     {8, {0, 1, 5, 10, 13.4, 25, 50, 100}},
     {0, {0}},
     {6, {512, 576, 584, 656, 1152, 2048}},
     {3, {2048, 4096, 8192}},
     0,
     1},
};
enum { N_LISTS = sizeof lists / sizeof lists[0] };

static const case_list *find_list(const char *name) {
    for (int i = 0; i < N_LISTS; i++)
        if (strcmp(name, lists[i].name) == 0)
            return &lists[i];
    return NULL;
}

int bench_gpu_known_list(const char *name) {
    const char *names[N_LISTS];
    for (int i = 0; i < N_LISTS; i++)
        names[i] = lists[i].name;
    if (find_list(name))
        return TOOL_OK;
    return tool_unknown("case list", name, names, N_LISTS, "hisparse bench swap-in --help");
}

/* The library pads host rows to 16 bytes. */
size_t bench_gpu_stride(const bench_shape *shape) {
    return ((size_t)shape->row_bytes + 15) / 16 * 16;
}

static size_t layer_pool(const bench_shape *shape) {
    return (size_t)shape->batch * (size_t)shape->context * bench_gpu_stride(shape);
}

size_t bench_gpu_pool_bytes(const bench_shape *shape) {
    return layer_pool(shape) * (size_t)shape->layers;
}

static int32_t layers_for(const bench_shape *shape) {
    size_t one = layer_pool(shape), layers = (LEAST_POOL + one - 1) / one;
    layers = layers < LEAST_LAYERS ? LEAST_LAYERS : layers > MOST_LAYERS ? MOST_LAYERS : layers;
    while (layers > 1 && layers * one > MOST_POOL)
        layers--;
    return (int32_t)layers;
}

/* ------------------------------------------------------------------------------------------------------- options -- */

static tool_reals given_or(const tool_reals *given, tool_reals otherwise) {
    return given->n ? *given : otherwise;
}

static int all_whole(const char *name, const tool_reals *list) {
    for (int i = 0; i < list->n; i++)
        if (list->value[i] != floor(list->value[i]))
            return tool_fail(TOOL_BAD_INPUT, "--%s: %g is not a whole number", name, list->value[i]);
    return TOOL_OK;
}

/* The list that was named, or the one that was typed: what is not typed is what most models have. */
static int choose_list(const bench_options *o, case_list *list_out) {
    int typed = o->batches.n || o->misses.n || o->row_sizes.n || o->slot_counts.n;
    if (o->cases && typed)
        return tool_fail(TOOL_BAD_INPUT, "--cases names batches, misses, rows and slots; give none of them beside it");
    if (!typed) {
        *list_out = *find_list(o->cases ? o->cases : "short");
        list_out->skew |= o->skew;
    } else
        *list_out = (case_list){.name = "",
                                .batch = given_or(&o->batches, (tool_reals){1, {1}}),
                                .miss = given_or(&o->misses, (tool_reals){8, {0, 1, 5, 10, 13.4, 25, 50, 100}}),
                                .row_bytes = given_or(&o->row_sizes, (tool_reals){1, {656}}),
                                .slots = given_or(&o->slot_counts, (tool_reals){1, {4096}}),
                                .skew = o->skew};
    int code = all_whole("batch", &list_out->batch);
    if (code == TOOL_OK)
        code = all_whole("row-bytes", &list_out->row_bytes);
    return code == TOOL_OK ? all_whole("slots", &list_out->slots) : code;
}

static int check_shape(const bench_options *o, const bench_shape *shape) {
    long long turnover = bench_turnover(o->k, shape->slots);
    if (shape->row_bytes % 4)
        return tool_fail(TOOL_BAD_INPUT, "--row-bytes is %d; it must be a multiple of 4", shape->row_bytes);
    if (shape->slots < o->k)
        return tool_fail(TOOL_BAD_INPUT, "--slots is %d; it must be at least --k, %lld", shape->slots, (long long)o->k);
    if (shape->context < turnover)
        return tool_fail(TOOL_BAD_INPUT, "--context is %d; with these --slots and --k it must be at least %lld",
                         shape->context, turnover);
    if (bench_gpu_pool_bytes(shape) / bench_gpu_stride(shape) > UINT32_MAX)
        return tool_fail(TOOL_BAD_INPUT, "batch %d, context %d and %d layers are more than 2^32 rows", shape->batch,
                         shape->context, shape->layers);
    return TOOL_OK;
}

static bench_shape make_shape(const bench_options *o, const case_list *list, int batch, int row, int slots) {
    bench_shape shape = {.batch = (int32_t)list->batch.value[batch],
                         .context = (int32_t)o->context,
                         .slots = (int32_t)list->slots.value[slots],
                         .row_bytes = (int32_t)list->row_bytes.value[row],
                         .layers = (int32_t)o->layers,
                         .group = 1};
    if (!shape.context)
        shape.context = shape.batch <= MOST_LONG_BATCH ? LONG_CONTEXT : SHORT_CONTEXT;
    if (!shape.layers)
        shape.layers = list->layers ? list->layers : layers_for(&shape);
    return shape;
}

static void add_cases(const case_list *list, const bench_shape *shape, bench_cases *cases) {
    for (int i = 0; i < list->miss.n; i++)
        cases->item[cases->n++] = (bench_case){*shape, list->miss.value[i], 0};
    for (int i = 0; shape->batch == 1 && i < list->lonely.n; i++)
        cases->item[cases->n++] = (bench_case){*shape, list->lonely.value[i], 0};
    if (list->skew && shape->batch > 1)
        cases->item[cases->n++] = (bench_case){*shape, 100.0 / shape->batch, 1};
}

int bench_gpu_cases(const bench_options *o, bench_cases *cases_out) {
    case_list list = {.name = NULL};
    int code = choose_list(o, &list);
    if (code != TOOL_OK)
        return code;
    int shapes = list.batch.n * list.row_bytes.n * list.slots.n, most = shapes * (list.miss.n + list.lonely.n + 1);
    *cases_out = (bench_cases){calloc((size_t)most + 1, sizeof(bench_case)), 0};
    if (!cases_out->item)
        return tool_fail(TOOL_FAILED, "out of memory");
    for (int i = 0; code == TOOL_OK && i < shapes; i++) {
        int slots = i % list.slots.n, row = i / list.slots.n % list.row_bytes.n;
        bench_shape shape = make_shape(o, &list, i / list.slots.n / list.row_bytes.n, row, slots);
        code = check_shape(o, &shape);
        if (code == TOOL_OK)
            add_cases(&list, &shape, cases_out);
    }
    if (code != TOOL_OK)
        free(cases_out->item);
    return code;
}
