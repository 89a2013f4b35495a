/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_path.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of all requests together, so that the pool is as large with one request as with many, as far as contexts may
 * be long or short. */
enum { TOKENS = 1 << 20, SHORT_CONTEXT = 16384, LAYERS = 8 };

typedef struct case_list {
    const char *name;
    tool_reals batch, miss, row_bytes, group;
} case_list;

static const case_list lists[] = {
    {"short", {2, {1, 32}}, {3, {0, 5, 13.4}}, {1, {656}}, {2, {1, 4}}},
    {"full", {4, {1, 8, 32, 128}}, {4, {0, 5, 13.4, 30}}, {2, {656, 1152}}, {2, {1, 4}}},
};
enum { N_LISTS = sizeof lists / sizeof lists[0] };

int32_t bench_path_layers(const bench_shape *shape) {
    return shape->layers * shape->group;
}

size_t bench_path_pool_bytes(const bench_shape *shape) {
    return bench_gpu_pool_bytes(shape) * (size_t)shape->group;
}

static int find_list(const char *name, case_list *list_out) {
    const char *names[N_LISTS];
    for (int i = 0; i < N_LISTS; i++) {
        names[i] = lists[i].name;
        if (strcmp(name, lists[i].name) == 0) {
            *list_out = lists[i];
            return TOOL_OK;
        }
    }
    return tool_unknown("case list", name, names, N_LISTS, "hisparse bench decode-path --help");
}

/* What is typed takes the place of that part of the list. */
static int choose_list(const path_options *o, case_list *list_out) {
    int code = find_list(o->bench.cases ? o->bench.cases : "short", list_out);
    const struct {
        const tool_reals *given;
        tool_reals *part;
    } parts[] = {{&o->bench.batches, &list_out->batch},
                 {&o->bench.misses, &list_out->miss},
                 {&o->bench.row_sizes, &list_out->row_bytes},
                 {&o->groups, &list_out->group}};
    for (size_t i = 0; code == TOOL_OK && i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].given->n)
            *parts[i].part = *parts[i].given;
    return code;
}

static int32_t context_for(int32_t batch) {
    return TOKENS / batch > SHORT_CONTEXT ? TOKENS / batch : SHORT_CONTEXT;
}

static int make_shape(const path_options *o, double batch, double row_bytes, double group, bench_shape *shape_out) {
    int32_t layers = (int32_t)(o->bench.layers ? o->bench.layers : LAYERS);
    if (batch != floor(batch) || group != floor(group))
        return tool_fail(TOOL_BAD_INPUT, "--%s: %g is not a whole number", batch != floor(batch) ? "batch" : "group",
                         batch != floor(batch) ? batch : group);
    if (row_bytes != 656 && row_bytes != 1152)
        return tool_fail(TOOL_BAD_INPUT, "--row-bytes: %g; attention reads rows of 656 or 1152 bytes", row_bytes);
    if (layers % (int32_t)group)
        return tool_fail(TOOL_BAD_INPUT, "--layers is %d; it must be a multiple of every --group, also of %g", layers,
                         group);
    int32_t context = (int32_t)o->bench.context;
    *shape_out = (bench_shape){.batch = (int32_t)batch,
                               .context = context ? context : context_for((int32_t)batch),
                               .slots = (int32_t)o->bench.slots,
                               .row_bytes = (int32_t)row_bytes,
                               .layers = layers / (int32_t)group,
                               .group = (int32_t)group,
                               .growth = 1};
    return TOOL_OK;
}

static int check_shape(const path_options *o, const bench_shape *shape) {
    long long turnover = bench_turnover(o->bench.k, shape->slots);
    if (shape->slots < o->bench.k)
        return tool_fail(TOOL_BAD_INPUT, "--slots is %d; it must be at least --k, %lld", shape->slots,
                         (long long)o->bench.k);
    if (shape->context < turnover)
        return tool_fail(TOOL_BAD_INPUT, "the context is %d; with these --slots and --k it must be at least %lld",
                         shape->context, turnover);
    if (bench_path_pool_bytes(shape) / bench_gpu_stride(shape) > UINT32_MAX)
        return tool_fail(TOOL_BAD_INPUT, "batch %d, context %d and %d layers are more than 2^32 rows", shape->batch,
                         shape->context, bench_path_layers(shape));
    return TOOL_OK;
}

int bench_path_cases(const path_options *o, bench_cases *cases_out) {
    case_list list = {.name = NULL};
    *cases_out = (bench_cases){NULL, 0};
    int code = choose_list(o, &list);
    if (code != TOOL_OK)
        return code;
    int shapes = list.row_bytes.n * list.batch.n * list.group.n;
    cases_out->item = calloc((size_t)shapes * (size_t)list.miss.n, sizeof *cases_out->item);
    if (!cases_out->item)
        return tool_fail(TOOL_FAILED, "out of memory");
    for (int i = 0; code == TOOL_OK && i < shapes; i++) {
        bench_shape shape = {.batch = 0};
        int group = i % list.group.n, batch = i / list.group.n % list.batch.n, row = i / list.group.n / list.batch.n;
        code = make_shape(o, list.batch.value[batch], list.row_bytes.value[row], list.group.value[group], &shape);
        if (code == TOOL_OK)
            code = check_shape(o, &shape);
        for (int m = 0; code == TOOL_OK && m < list.miss.n; m++)
            cases_out->item[cases_out->n++] = (bench_case){shape, list.miss.value[m], 0};
    }
    return code;
}
