/* SPDX-License-Identifier: Apache-2.0 */
/* The golden cases of recency: slots, fetched tokens, victims, order and tags after every step, on every backend. */
#include "check.h"

#include <jansson.h>

#ifndef GOLDEN
#define GOLDEN "tests/golden/recency.json"
#endif

/* Compiled in; a program that was carried to another machine is told by TESTS_GOLDEN where the file is there. */
static const char *golden_file(void) {
    const char *path = getenv("TESTS_GOLDEN");
    return path ? path : GOLDEN;
}

enum { MOST = 512 };

static int read_list(const json_t *step, const char *key, int32_t *out) {
    const json_t *list = json_object_get(step, key);
    int n = (int)json_array_size(list);
    assert_true(json_is_array(list) && n <= MOST);
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static const toy_device *device;

static void fill_to(hsp_cache *cache, int32_t request, int32_t *length, int32_t want) {
    hsp_row_source rows = {{device->alloc(4 * (size_t)want)}, {4}};
    if (*length < want)
        assert_int_equal(hsp_fill(cache, request, 0, *length, want - *length, &rows, NULL), HSP_OK);
    *length = want > *length ? want : *length;
    device->wait();
    device->release((void *)(uintptr_t)rows.plane[0]);
}

/* What the step fetched and where: tags that changed, in the order in which the selection names them. */
static void check_fetched(const json_t *step, const int32_t *before, const int32_t *after, int n_slots) {
    int32_t fetched[MOST], into[MOST], evicted[MOST], changed = 0;
    int n = read_list(step, "fetched", fetched);
    assert_int_equal(read_list(step, "into", into), n);
    assert_int_equal(read_list(step, "evicted", evicted), n);
    for (int s = 0; s < n_slots; s++)
        changed += before[s] != after[s];
    assert_int_equal(changed, n);
    for (int m = 0; m < n; m++) {
        assert_int_equal(after[into[m]], fetched[m]);
        assert_int_equal(before[into[m]], evicted[m]);
    }
}

static void run_step(hsp_cache *cache, int32_t request, const json_t *step, int n_slots, int32_t *length) {
    int32_t *selection = device->alloc(4 * MOST), *ids = device->alloc(4 * MOST), want[MOST], before[MOST], tags[MOST],
            order[MOST], first_id, none = 0;
    int k = read_list(step, "selection", selection);
    fill_to(cache, request, length, (int32_t)json_integer_value(json_object_get(step, "length")));
    hsp_resident(cache, request, 0, before, NULL, NULL, NULL);
    assert_int_equal(hsp_step_begin(cache, &request, &none, 1, NULL), HSP_OK);
    assert_int_equal(hsp_swap_in(cache, 0, selection, 1, k, ids, NULL), HSP_OK);
    device->wait();
    hsp_resident(cache, request, 0, tags, order, NULL, &first_id);
    assert_int_equal(read_list(step, "slots", want), k);
    for (int e = 0; e < k; e++)
        assert_int_equal(ids[e], want[e] < 0 ? -1 : first_id + want[e]);
    check_fetched(step, before, tags, n_slots);
    assert_int_equal(read_list(step, "order", want), n_slots);
    assert_memory_equal(order, want, (size_t)n_slots * sizeof *want);
    assert_int_equal(read_list(step, "tags", want), n_slots);
    assert_memory_equal(tags, want, (size_t)n_slots * sizeof *want);
    device->release(selection);
    device->release(ids);
}

/* Longest selection and context of a case, so that the cache fits it. */
static void measure(const json_t *steps, int32_t *k, int32_t *context) {
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step) {
        int32_t n = (int32_t)json_array_size(json_object_get(step, "selection"));
        int32_t length = (int32_t)json_integer_value(json_object_get(step, "length"));
        *k = n > *k ? n : *k;
        *context = length > *context ? length : *context;
    }
}

static void golden_cases(void **state) {
    need_backend(*state);
    device = toy_device_of(*state);
    json_error_t error;
    json_t *root = json_load_file(golden_file(), 0, &error), *one;
    size_t i, j;
    assert_non_null(root);
    assert_int_equal(json_array_size(json_object_get(root, "cases")), 42);
    json_array_foreach(json_object_get(root, "cases"), i, one) {
        json_t *steps = json_object_get(one, "steps"), *step;
        int n_slots = (int)json_integer_value(json_object_get(one, "n_slots"));
        int32_t request, length = 0, k = 1, context = 1;
        hsp_config c = small_config(*state);
        hsp_cache *cache;
        measure(steps, &k, &context);
        c.n_layers = c.n_planes = 1;
        c.plane_bytes[0] = 4;
        c.n_slots = n_slots;
        c.max_k = k;
        c.max_context = context;
        c.host_tokens = context;
        assert_int_equal(hsp_open(&c, &cache), HSP_OK);
        assert_int_equal(hsp_admit(cache, context, &request), HSP_OK);
        json_array_foreach(steps, j, step) run_step(cache, request, step, n_slots, &length);
        hsp_close(cache);
    }
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {ON_EVERY_BACKEND(golden_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
