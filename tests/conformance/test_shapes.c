/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of rows, groups, layouts and memory, on every backend. */
#include "alloc.h"
#include "check.h"

#include <stdio.h>
#include <unistd.h>

static const int one_new[4] = {1, 1, 1, 1};

/* A short life with misses, hits, ring rows and roll-back; compared with the toy throughout. */
static void exercise(const hsp_config *config, int steps) {
    toy t;
    uint64_t seed = 23;
    int rs[2] = {0, 1}, two = config->max_requests > 1;
    int32_t *selection = malloc(2 * (size_t)config->max_k * sizeof *selection);
    toy_open(&t, config);
    for (int r = 0; r <= two; r++) {
        assert_int_equal(toy_admit(&t, r, config->max_context), HSP_OK);
        assert_int_equal(toy_fill(&t, r, config->max_context - steps - 1), HSP_OK);
    }
    for (int s = 0; s < steps; s++) {
        assert_int_equal(toy_step(&t, rs, one_new, 1 + two), HSP_OK);
        for (int g = 0; g < t.n_groups; g++) {
            for (int e = 0; e < (1 + two) * config->max_k; e++)
                selection[e] = (int)draw(&seed, (uint32_t)t.request[0].length);
            toy_swap_in(&t, g, selection, 1, config->max_k);
        }
    }
    toy_check(&t);
    toy_close(&t);
    free(selection);
}

static void rows_of_every_size(void **state) {
    static const int sizes[] = {4, 16, 20, 132, 256, 512, 576, 584, 640, 656, 1024, 1028, 1152, 2048, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        hsp_config c = small_config(*state);
        c.n_planes = 1;
        c.plane_bytes[0] = sizes[i];
        exercise(&c, 4);
        c.host_row_align = 128;
        exercise(&c, 4);
    }
}

static void planes_of_different_sizes(void **state) {
    static const int planes[][4] = {{576, 8, 0, 0}, {256, 256, 0, 0}, {512, 16, 128, 0}, {4, 20, 132, 1028}};
    static const int counts[] = {2, 2, 3, 4}, blocks[] = {1, 2, 7, 64};
    for (size_t i = 0; i < 4; i++)
        for (size_t b = 0; b < 4; b++) {
            hsp_config c = small_config(*state);
            c.n_planes = counts[i];
            memcpy(c.plane_bytes, planes[i], sizeof c.plane_bytes);
            c.block_rows = blocks[b];
            c.block_align = blocks[b] == 64 ? 576 : 4;
            exercise(&c, 3);
        }
}

/* DeepSeek-V4's blocks: 64 rows of 576 bytes, then 64 of 8, the block padded to a multiple of 576. */
static void view_of_split_rows(void **state) {
    hsp_config c = small_config(*state);
    hsp_cache *cache;
    hsp_rows_view view = {.struct_size = sizeof view};
    assert_int_equal(hsp_config_set(&c, "planes", "576,8"), HSP_OK);
    c.block_rows = 64;
    c.block_align = 576;
    assert_int_equal(hsp_open(&c, &cache), HSP_OK);
    assert_int_equal(hsp_rows(cache, 1, &view), HSP_OK);
    assert_int_equal(view.n_rows, 3 * 38);
    assert_int_equal(view.plane[0].row_stride, 576);
    assert_int_equal(view.plane[1].row_stride, 8);
    assert_int_equal(view.plane[1].block_stride, 65 * 576); /* 64 * 584 = 37376, padded */
    assert_int_equal((char *)view.plane[1].base - (char *)view.plane[0].base, 64 * 576);
    hsp_close(cache);
}

static void strided_sources(void **state) {
    hsp_config c = small_config(*state);
    hsp_cache *cache;
    int32_t request;
    const toy_device *device = toy_device_of(*state);
    const size_t a_bytes = 10 * 37, b_bytes = 10 * 200;
    unsigned char *a = device->alloc(a_bytes), *b = device->alloc(b_bytes), back_a[10 * 20], back_b[10 * 301];
    hsp_row_source rows = {{a, b}, {37, 200}};
    hsp_row_sink sink = {{back_a, back_b}, {0, 301}};
    for (size_t i = 0; i < b_bytes; i++)
        b[i] = (unsigned char)(i * 7), a[i % a_bytes] = (unsigned char)(i * 5);
    assert_int_equal(hsp_open(&c, &cache), HSP_OK);
    assert_int_equal(hsp_admit(cache, 100, &request), HSP_OK);
    assert_int_equal(hsp_fill(cache, request, 2, 0, 10, &rows, NULL), HSP_OK);
    assert_int_equal(hsp_read(cache, request, 2, 0, 10, &sink), HSP_OK);
    for (int i = 0; i < 10; i++) {
        assert_memory_equal(back_a + i * 20, a + i * 37, 20);
        assert_memory_equal(back_b + i * 301, b + i * 200, 132);
    }
    hsp_close(cache);
    device->release(a);
    device->release(b);
}

/* Followers get their own layer's bytes; maps need not start at 0, be regular, or be contiguous. */
static void groups_of_every_pattern(void **state) {
    static const int32_t maps[][7] = {{0, 0, 0, 0, 0, 0, 0},
                                      {5, 5, 9, 9, 9, 1, 1},
                                      {3, 7, 3, 7, 3, 7, 3},
                                      {-4, 2000000000, -4, 8, 8, 8, 0},
                                      {0, 1, 2, 3, 4, 5, 6}};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        hsp_config c = small_config(*state);
        c.n_layers = 7;
        c.layer_group = maps[i];
        c.first_layer = i % 2 ? 30 : 0;
        exercise(&c, 5);
        c.block_rows = 8;
        c.policy = HSP_CLOCK;
        exercise(&c, 5);
    }
}

static void a_follower_is_refused(void **state) {
    static const int32_t map[3] = {4, 4, 6};
    hsp_config c = small_config(*state);
    hsp_cache *cache;
    const toy_device *device = toy_device_of(*state);
    int32_t request, *token = device->alloc(4), *id = device->alloc(4);
    unsigned char *row = device->alloc(152);
    hsp_row_source rows = {{row, row}, {0}};
    *id = -7;
    c.first_layer = 30;
    c.layer_group = map;
    assert_int_equal(hsp_open(&c, &cache), HSP_OK);
    assert_int_equal(hsp_admit(cache, 10, &request), HSP_OK);
    assert_int_equal(hsp_step_begin(cache, &request, NULL, 1, NULL), HSP_OK);
    assert_int_equal(hsp_append(cache, 30, &rows, 1, NULL), HSP_OK);
    assert_int_equal(hsp_swap_in(cache, 31, token, 1, 1, id, NULL), HSP_EINVAL);
    assert_string_equal(hsp_last_error(cache), "swap_in: layer 31 follows layer 30; call it for that one");
    assert_int_equal(*id, -7);
    assert_int_equal(hsp_swap_in(cache, 29, token, 1, 1, id, NULL), HSP_ELIMIT);
    assert_int_equal(hsp_swap_in(cache, 30, token, 1, 1, id, NULL), HSP_OK);
    hsp_close(cache);
    device->release(token);
    device->release(id);
    device->release(row);
}

/* Fetches large enough to be shared by several threads, across the requests of a batch. */
static void fetches_in_parallel(void **state) {
    static const int32_t map[3] = {1, 1, 2};
    hsp_config c = small_config(*state);
    toy t;
    int rs[3] = {0, 1, 2};
    uint64_t seed = 31;
    c.layer_group = map;
    c.n_planes = 1;
    c.plane_bytes[0] = 1024;
    c.n_slots = c.max_k = 300;
    c.max_context = 900;
    c.host_tokens = 3000;
    c.n_threads = 3;
    toy_open(&t, &c);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(toy_admit(&t, r, 900), HSP_OK);
        assert_int_equal(toy_fill(&t, r, 850), HSP_OK);
    }
    for (int s = 0; s < 6; s++) {
        int32_t selection[3 * 300];
        assert_int_equal(toy_step(&t, rs, one_new, 3), HSP_OK);
        for (int e = 0; e < 900; e++) /* the second request is warm from the second step on */
            selection[e] = e / 300 == 1 ? e % 300 : (int)draw(&seed, 850);
        for (int g = 0; g < 2; g++)
            toy_swap_in(&t, g, selection, 1, 300);
    }
    toy_check(&t);
    toy_close(&t);
}

static void every_policy(void **state) {
    for (int policy = HSP_LRU; policy <= HSP_CLOCK; policy++)
        for (int slots = 31; slots < 80; slots += 16) {
            hsp_config c = small_config(*state);
            c.policy = policy;
            c.n_slots = slots;
            c.seed = 99;
            exercise(&c, 25);
        }
}

static void file_tier(void **state) {
    hsp_config c = small_config(*state);
    char path[] = "/tmp/hisparse-test-XXXXXX";
    int fd = mkstemp(path);
    hsp_cache *cache = NULL;
    assert_true(fd >= 0);
    close(fd);
    snprintf(c.host_file, sizeof c.host_file, "%s", path);
    assert_int_equal(hsp_open(&c, &cache), HSP_EIO); /* never over a file that is there */
    assert_non_null(strstr(hsp_last_error(NULL), path));
    assert_null(cache);
    unlink(path);
    exercise(&c, 5);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(c.host_file, sizeof c.host_file, "/nonexistent/rows");
    assert_int_equal(hsp_open(&c, &cache), HSP_EIO);
}

/* Pool offsets beyond 2^32: a file holds 5 GB of rows of which only a few are ever touched. */
static void pools_beyond_four_gigabytes(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    int rs[1] = {1}, none[1] = {0};
    int32_t selection[31];
    c.n_planes = 1;
    c.plane_bytes[0] = 4096;
    c.n_layers = 2;
    c.max_context = 1300000;
    c.host_tokens = 1300000 / 2 + 400;
    snprintf(c.host_file, sizeof c.host_file, "hisparse-test-big-%d", (int)getpid());
    toy_open(&t, &c);
    int32_t filler;
    assert_int_equal(hsp_admit(t.cache, 1300000 / 2, &filler), HSP_OK); /* takes the low pages, never written */
    t.pages_free -= (1300000 / 2 + 63) / 64;
    assert_int_equal(toy_admit(&t, 1, 300), HSP_OK);
    assert_int_equal(toy_fill(&t, 1, 300), HSP_OK);
    assert_int_equal(toy_step(&t, rs, none, 1), HSP_OK);
    for (int e = 0; e < 31; e++)
        selection[e] = 299 - 9 * e;
    toy_swap_in(&t, 0, selection, 1, 31);
    toy_swap_in(&t, 1, selection, 1, 31);
    assert_int_equal(hsp_retire(t.cache, filler), HSP_OK);
    t.pages_free += (1300000 / 2 + 63) / 64;
    toy_check(&t);
    toy_close(&t);
}

/* Device rows beyond 2^32 bytes: the third request's slots lie there. */
static void slabs_beyond_four_gigabytes(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    int rs[1] = {2}, none[1] = {0};
    int32_t selection[31];
    if (hsp__memory_available() < (uint64_t)7 << 30)
        skip();
    c.n_planes = 1;
    c.plane_bytes[0] = 16384;
    c.n_layers = 1;
    c.n_slots = 65535;
    c.ring_rows = 40000;
    toy_open(&t, &c);
    for (int r = 0; r < 3; r++)
        assert_int_equal(toy_admit(&t, r, 64), HSP_OK);
    assert_int_equal(toy_fill(&t, 2, 64), HSP_OK);
    assert_int_equal(toy_step(&t, rs, none, 1), HSP_OK);
    for (int e = 0; e < 31; e++)
        selection[e] = 63 - 2 * e;
    toy_swap_in(&t, 0, selection, 1, 31);
    int32_t first_id;
    hsp_resident(t.cache, t.request[2].handle, 0, NULL, NULL, NULL, &first_id);
    assert_true((uint64_t)first_id * 16384 > (uint64_t)3 << 30);
    toy_check(&t);
    toy_close(&t);
}

static void tokens_beyond_a_million(void **state) {
    hsp_config c = small_config(*state);
    toy t;
    int rs[1] = {0};
    uint64_t seed = 5;
    int32_t selection[31];
    c.n_planes = 1;
    c.plane_bytes[0] = 4;
    c.n_layers = 1;
    c.max_context = c.host_tokens = 1200000;
    toy_open(&t, &c);
    assert_int_equal(toy_admit(&t, 0, c.max_context), HSP_OK);
    assert_int_equal(toy_fill(&t, 0, 1100000), HSP_OK);
    for (int s = 0; s < 4; s++) {
        assert_int_equal(toy_step(&t, rs, one_new, 1), HSP_OK);
        for (int e = 0; e < 31; e++)
            selection[e] = (1 << 20) + (int)draw(&seed, 52000);
        toy_swap_in(&t, 0, selection, 1, 31);
    }
    toy_check(&t);
    toy_close(&t);
}

static void footprint_to_the_byte(void **state) {
    for (int variant = 0; variant < 6; variant++) {
        hsp_config c = small_config(*state);
        hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
        hsp_cache *cache;
        int32_t map[3] = {1, 1, variant % 2};
        c.layer_group = variant % 2 ? map : NULL;
        c.block_rows = variant % 3 ? 64 : 1;
        c.n_slots = 33 + 31 * variant;
        c.max_context = 400 + variant;
        c.host_tokens = 1200 + 70 * variant;
        uint64_t before = hsp__watch.live_bytes;
        assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
        assert_int_equal(hsp__watch.live_bytes, before);
        assert_int_equal(hsp_open(&c, &cache), HSP_OK);
        assert_int_equal(hsp__watch.live_bytes - before,
                         bytes.device_rows + bytes.device_state + bytes.host_rows + bytes.host_state);
        uint64_t open_bytes = hsp__watch.live_bytes;
        int32_t request;
        assert_int_equal(hsp_admit(cache, 100, &request), HSP_OK);
        assert_int_equal(hsp__watch.live_bytes, open_bytes);
        hsp_close(cache);
        assert_int_equal(hsp__watch.live_bytes, before);
    }
}

/* FIELD.md section 7's arithmetic for one block of 64 tokens of GLM-5.3: 78 layers of 576 bytes in host memory. */
static void host_bytes_of_a_published_model(void **state) {
    hsp_config c = small_config(*state);
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    int32_t group[78];
    for (int l = 0; l < 78; l++) /* anchors 0, 1, 2, 6, 10, ..., 74 */
        group[l] = l < 3 ? l : 2 + (l - 2) / 4;
    assert_int_equal(hsp_config_set(&c, "planes", "576"), HSP_OK);
    c.n_layers = 78;
    c.layer_group = group;
    c.host_tokens = 64 * 1024;
    c.max_context = 64;
    assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
    assert_int_equal(bytes.host_rows, (uint64_t)1024 * 2875392);
}

static void more_memory_than_there_is(void **state) {
    hsp_config c = small_config(*state);
    hsp_cache *cache = NULL;
    c.host_tokens = (int64_t)1 << 34;
    c.plane_bytes[1] = 65536;
    uint64_t before = hsp__watch.live_bytes;
    hsp__watch.pretend_available = 123456789;
    assert_int_equal(hsp_open(&c, &cache), HSP_ENOMEM);
    hsp__watch.pretend_available = 0;
    assert_non_null(strstr(hsp_last_error(NULL), "123456789 available"));
    assert_null(cache);
    assert_int_equal(hsp__watch.live_bytes, before);
    if (strcmp(*state, "cpu") != 0)
        return;
    c = small_config(*state); /* the handle counts too: this backend has scratch for every entry of the batch */
    c.max_batch = c.n_slots = 65535;
    hsp__watch.pretend_available = 1000000000;
    assert_int_equal(hsp_open(&c, &cache), HSP_ENOMEM);
    hsp__watch.pretend_available = 0;
    assert_int_equal(hsp__watch.live_bytes, before);
}

static void huge_pages_when_asked(void **state) {
    hsp_config c = small_config(*state);
    c.huge_pages = 1;
    c.plane_bytes[1] = 4096;
    exercise(&c, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EVERY_BACKEND(rows_of_every_size),
        ON_EVERY_BACKEND(planes_of_different_sizes),
        ON_EVERY_BACKEND(view_of_split_rows),
        ON_EVERY_BACKEND(strided_sources),
        ON_EVERY_BACKEND(groups_of_every_pattern),
        ON_EVERY_BACKEND(a_follower_is_refused),
        ON_EVERY_BACKEND(fetches_in_parallel),
        ON_EVERY_BACKEND(every_policy),
        ON_PLAIN_BACKENDS(file_tier),
        ON_PLAIN_BACKENDS(pools_beyond_four_gigabytes),
        ON_EVERY_BACKEND(slabs_beyond_four_gigabytes),
        ON_EVERY_BACKEND(tokens_beyond_a_million),
        ON_PLAIN_BACKENDS(footprint_to_the_byte),
        ON_EVERY_BACKEND(host_bytes_of_a_published_model),
        ON_PLAIN_BACKENDS(more_memory_than_there_is),
        ON_EVERY_BACKEND(huge_pages_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
