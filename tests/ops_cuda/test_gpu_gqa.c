/* SPDX-License-Identifier: Apache-2.0
 *
 * GQA attention on the GPU against the CPU and a double-precision reference.
 */
#include "gpu_common.h"

#include <math.h>

struct gqa_case {
    int32_t n_heads, n_kv_heads, key_dim, value_dim, n_lists, batch, n_queries, n_rows, n_slots, rows_per_block, pad,
        n_chunks;
};

struct problem {
    struct gqa_case c;
    hsp_gqa_shape shape;
    hsp_plane_view host[2], device[2]; /* K and V */
    float *floats[2];                  /* what the planes say: [n_slots][n_kv_heads][dim] */
    char *memory, *device_memory;
    size_t memory_bytes;
    float *query, *sink, *device_query, *device_sink, *out;
    int32_t *row_ids, *device_ids;
    hsp_gpu_batch batch;
    const float *use_sink;
};

static int32_t n_all_queries(const struct problem *p) {
    return p->c.batch * p->c.n_queries;
}

static size_t n_values(const struct problem *p) {
    return (size_t)(n_all_queries(p) * p->c.n_heads) * (size_t)p->c.value_dim;
}

static size_t result_bytes(const struct problem *p) {
    return (n_values(p) + (size_t)(n_all_queries(p) * p->c.n_heads)) * sizeof(float);
}

static size_t n_ids(const struct problem *p) {
    return (size_t)n_all_queries(p) * (size_t)p->c.n_lists * (size_t)p->c.n_rows;
}

static size_t n_query_floats(const struct problem *p) {
    return (size_t)(n_all_queries(p) * p->c.n_heads) * (size_t)p->c.key_dim;
}

static char *row_at(const hsp_plane_view *plane, int32_t id) {
    return (char *)plane->base + (size_t)(id / plane->rows_per_block) * plane->block_stride +
           (size_t)(id % plane->rows_per_block) * plane->row_stride;
}

/* Random numbers that the number format of the rows holds exactly. */
static float *random_numbers(int32_t dtype, size_t n, float size, uint64_t *seed) {
    float *x = allocate(n * sizeof *x);
    uint16_t *packed = allocate(n * sizeof *packed);
    for (size_t i = 0; i < n; i++)
        x[i] = size * random_float(seed);
    assert_int_equal(hsp_pack(dtype, x, n, packed), HSP_OK);
    assert_int_equal(hsp_unpack(dtype, packed, n, x), HSP_OK);
    free(packed);
    return x;
}

/* K and V one after the other in each block of rows. */
static void lay_out(struct problem *p) {
    const struct gqa_case *c = &p->c;
    size_t bytes[2] = {(size_t)(c->n_kv_heads * c->key_dim) * 2, (size_t)(c->n_kv_heads * c->value_dim) * 2};
    size_t rows = (size_t)c->rows_per_block, pad = (size_t)c->pad, block = rows * (bytes[0] + bytes[1] + 2 * pad);
    int32_t n_blocks = (c->n_slots + c->rows_per_block - 1) / c->rows_per_block;
    p->memory_bytes = (size_t)n_blocks * block;
    p->memory = allocate(p->memory_bytes);
    memset(p->memory, 0xff, p->memory_bytes); /* NaN, should any of it be read */
    for (int i = 0; i < 2; i++) {
        char *base = p->memory + (size_t)i * rows * (bytes[0] + pad);
        p->host[i] = (hsp_plane_view){base, bytes[i], bytes[i] + pad, block, c->rows_per_block, 0};
    }
}

static void fill_rows(struct problem *p, uint64_t *seed) {
    for (int i = 0; i < 2; i++) {
        size_t n = (size_t)(p->c.n_kv_heads * (i ? p->c.value_dim : p->c.key_dim));
        p->floats[i] = random_numbers(p->shape.dtype, (size_t)p->c.n_slots * n, 1.0f, seed);
        for (int32_t id = 0; id < p->c.n_slots; id++)
            assert_int_equal(hsp_pack(p->shape.dtype, p->floats[i] + (size_t)id * n, n, row_at(&p->host[i], id)),
                             HSP_OK);
    }
}

/* Everything that may have changed on the host. */
static void put(struct problem *p) {
    to_device(p->device_memory, p->memory, p->memory_bytes);
    to_device(p->device_query, p->query, n_query_floats(p) * sizeof(float));
    to_device(p->device_sink, p->sink, (size_t)p->c.n_heads * sizeof(float));
    to_device(p->device_ids, p->row_ids, n_ids(p) * sizeof(int32_t));
}

static void make_problem(struct problem *p, const struct gqa_case *c, int32_t dtype, uint64_t seed) {
    int32_t *slot = allocate((size_t)c->batch * sizeof *slot);
    int32_t *n_tokens = calloc((size_t)(c->batch * c->n_queries), sizeof *n_tokens);
    assert_non_null(n_tokens);
    memset(p, 0, sizeof *p);
    p->c = *c;
    p->shape = (hsp_gqa_shape){
        sizeof p->shape, c->n_heads, c->n_kv_heads, c->key_dim, c->value_dim, dtype, 1.0f / sqrtf((float)c->key_dim)};
    lay_out(p);
    fill_rows(p, &seed);
    p->query = random_numbers(dtype, n_query_floats(p), 4.0f, &seed);
    p->sink = random_numbers(dtype, (size_t)c->n_heads, 4.0f, &seed);
    p->row_ids = allocate(n_ids(p) * sizeof(int32_t));
    for (size_t i = 0; i < n_ids(p); i++) /* one in eight masked, duplicates by chance */
        p->row_ids[i] = random_below(&seed, 8) ? random_below(&seed, c->n_slots) : -1;
    for (int32_t b = 0; b < c->batch; b++)
        slot[b] = b;
    p->device_memory = on_device(NULL, p->memory_bytes);
    p->device_query = on_device(NULL, n_query_floats(p) * sizeof(float));
    p->device_sink = on_device(NULL, (size_t)c->n_heads * sizeof(float));
    p->device_ids = on_device(NULL, n_ids(p) * sizeof(int32_t));
    p->out = on_device(NULL, result_bytes(p));
    p->batch = make_batch(c->batch, c->n_queries, 1, slot, n_tokens);
    for (int i = 0; i < 2; i++) {
        p->device[i] = p->host[i];
        p->device[i].base = p->device_memory + ((char *)p->host[i].base - p->memory);
    }
    put(p);
    free(slot);
    free(n_tokens);
}

static void free_problem(struct problem *p) {
    free(p->memory);
    free(p->floats[0]);
    free(p->floats[1]);
    free(p->query);
    free(p->sink);
    free(p->row_ids);
    free_device(p->device_memory);
    free_device(p->device_query);
    free_device(p->device_sink);
    free_device(p->device_ids);
    free_device(p->out);
    free_batch(&p->batch);
}

static void call(void *argument) {
    const struct problem *p = argument;
    assert_int_equal(hsp_gpu_gqa_attend(&p->shape, &p->device[0], &p->device[1], &p->batch, p->device_query,
                                        p->device_ids, p->c.n_lists, p->c.n_rows, p->c.n_chunks, p->use_sink, p->out,
                                        p->out + n_values(p), test_stream),
                     HSP_OK);
}

static float *result(const struct problem *p) {
    float *got = allocate(result_bytes(p));
    from_device(got, p->out, result_bytes(p));
    return got;
}

static float *attend(struct problem *p) {
    need(cudaMemset(p->out, 0x5a, result_bytes(p)));
    need(cudaDeviceSynchronize());
    call(p);
    return result(p);
}

/* ---------------------------------------------------------------------------------------------------- reference -- */

static int32_t kv_head_of(const struct problem *p, int32_t head) {
    return head / (p->c.n_heads / p->c.n_kv_heads);
}

static const int32_t *ids_of(const struct problem *p, int32_t q, int32_t head) {
    int32_t list = p->c.n_lists == 1 ? 0 : kv_head_of(p, head);
    return p->row_ids + ((size_t)q * (size_t)p->c.n_lists + (size_t)list) * (size_t)p->c.n_rows;
}

static const float *row_of(const struct problem *p, int plane, int32_t head, int32_t id) {
    int32_t dim = plane ? p->c.value_dim : p->c.key_dim;
    return p->floats[plane] + ((size_t)id * (size_t)p->c.n_kv_heads + (size_t)kv_head_of(p, head)) * (size_t)dim;
}

static double score_of(const struct problem *p, int32_t q, int32_t head, int32_t id) {
    const float *query = p->query + (size_t)(q * p->c.n_heads + head) * (size_t)p->c.key_dim;
    const float *key = row_of(p, 0, head, id);
    double dot = 0.0;
    for (int32_t c = 0; c < p->c.key_dim; c++)
        dot += (double)query[c] * (double)key[c];
    return dot * (double)p->shape.scale;
}

/* One head; returns the logarithm of the sum without the sink. */
static double reference_head(const struct problem *p, int32_t q, int32_t head, const float *sink, double *out) {
    const int32_t *ids = ids_of(p, q, head);
    double top = -INFINITY, sum = 0.0, *scores = allocate((size_t)p->c.n_rows * sizeof *scores);
    memset(out, 0, (size_t)p->c.value_dim * sizeof *out);
    for (int32_t i = 0; i < p->c.n_rows; i++)
        if (ids[i] >= 0)
            top = fmax(top, scores[i] = score_of(p, q, head, ids[i]));
    for (int32_t i = 0; i < p->c.n_rows; i++) {
        if (ids[i] < 0)
            continue;
        double weight = exp(scores[i] - top);
        sum += weight;
        for (int32_t c = 0; c < p->c.value_dim; c++)
            out[c] += weight * (double)row_of(p, 1, head, ids[i])[c];
    }
    free(scores);
    double denominator = sum + (sink && sum > 0.0 ? exp((double)sink[head] - top) : 0.0);
    for (int32_t c = 0; c < p->c.value_dim && sum > 0.0; c++)
        out[c] /= denominator;
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

/* Weights are rounded by 2^-9 of themselves at most in bf16, 2^-12 in fp16, or, where they are below 2^-14 there, by
 * 2^-25 of the greatest; values are at most 1, and rows at most 2048. 2e-5: sums in float. */
static void check_against(const struct problem *p, const float *sink, const float *got, double slack) {
    double *expected = allocate((size_t)p->c.value_dim * sizeof *expected);
    for (int32_t i = 0; i < n_all_queries(p) * p->c.n_heads; i++) {
        double lse = reference_head(p, i / p->c.n_heads, i % p->c.n_heads, sink, expected);
        double got_lse = (double)got[n_values(p) + (size_t)i];
        if (!(lse == got_lse || fabs(got_lse - lse) < 3e-5))
            fail_msg("head %d: lse %.9g, not %.9g", i, got_lse, lse);
        for (int32_t c = 0; c < p->c.value_dim; c++) {
            double x = (double)got[(size_t)i * (size_t)p->c.value_dim + (size_t)c];
            if (!(fabs(x - expected[c]) < slack))
                fail_msg("dtype %d head %d channel %d: %.9g, not %.9g", p->shape.dtype, i, c, x, expected[c]);
        }
    }
    free(expected);
}

static void check(const struct problem *p, const float *sink, const float *got) {
    check_against(p, sink, got, p->shape.dtype == HSP_BF16 ? 0x1p-9 + 2e-5 : 0x1p-12 + 0x1p-14 + 2e-5);
}

/* The CPU's result for one query with one list of ids; [n_heads][value_dim], then logarithms. */
static float *attend_on_cpu(const struct problem *p, int32_t q) {
    size_t bytes, heads = (size_t)p->c.n_heads, values = heads * (size_t)p->c.value_dim;
    float *out = allocate((values + heads) * sizeof *out);
    assert_int_equal(hsp_gqa_scratch(&p->shape, p->c.n_rows, &bytes), HSP_OK);
    void *scratch = allocate(bytes);
    assert_int_equal(hsp_gqa_tiles(&p->shape, &p->host[0], &p->host[1],
                                   p->query + (size_t)q * heads * (size_t)p->c.key_dim, ids_of(p, q, 0), p->c.n_rows, 0,
                                   scratch),
                     HSP_OK);
    assert_int_equal(
        hsp_gqa_combine(&p->shape, scratch, (p->c.n_rows + 63) / 64, p->use_sink ? p->sink : NULL, out, out + values),
        HSP_OK);
    free(scratch);
    return out;
}

static void check_against_cpu(const struct problem *p, const float *got) {
    size_t heads = (size_t)p->c.n_heads, values = heads * (size_t)p->c.value_dim;
    for (int32_t q = 0; q < n_all_queries(p); q++) {
        float *expected = attend_on_cpu(p, q);
        for (size_t i = 0; i < values; i++)
            assert_true(fabsf(got[(size_t)q * values + i] - expected[i]) < 0x1p-9f + 4e-5f);
        for (size_t h = 0; h < heads; h++) {
            float lse = got[n_values(p) + (size_t)q * heads + h];
            assert_true(lse == expected[values + h] || fabsf(lse - expected[values + h]) < 4e-5f);
        }
        free(expected);
    }
}

/* ---------------------------------------------------------------------------------------------------- results -- */

static const struct gqa_case cases[] = {
    /* heads, KV heads, key, value; lists, batch, queries, rows; slots, rows in a block, padding; chunks */
    {32, 8, 128, 128, 1, 2, 1, 2048, 2500, 64, 0, 4},
    {8, 8, 128, 128, 1, 2, 1, 300, 400, 1, 0, 1},
    {64, 4, 192, 128, 4, 1, 2, 1024, 1500, 64, 16, 8},
    {9, 3, 64, 64, 3, 3, 2, 63, 70, 7, 32, 2},
    {1, 1, 16, 16, 1, 1, 1, 1, 1, 1, 0, 8},
    {40, 2, 80, 48, 2, 2, 1, 257, 300, 64, 0, 2},
    {70, 1, 576, 512, 1, 2, 1, 200, 300, 64, 0, 2},
    {6, 2, 256, 256, 1, 2, 2, 130, 200, 16, 48, 1},
    {130, 2, 48, 240, 1, 1, 2, 65, 64, 1, 16, 8},
    {4, 1, 576, 512, 1, 1, 1, 100, 64, 64, 0, 4},
    {34, 2, 32, 512, 2, 1, 1, 150, 99, 1, 0, 1},
    {5, 5, 112, 16, 5, 2, 1, 64, 64, 64, 0, 2},
    {4, 2, 64, 64, 1, 2, 1, 0, 8, 1, 0, 2},
    {36, 2, 64, 128, 1, 2, 1, 128, 99, 1, 0, 2},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void equals_reference(void **state) {
    (void)state;
    need_device();
    for (int i = 0; i < 4 * N_CASES; i++) {
        struct problem p;
        make_problem(&p, &cases[i / 4], i % 2 ? HSP_F16 : HSP_BF16, (uint64_t)i / 4 + 11);
        p.use_sink = i / 2 % 2 ? p.device_sink : NULL;
        float *got = attend(&p);
        check(&p, i / 2 % 2 ? p.sink : NULL, got);
        if (p.c.n_lists == 1)
            check_against_cpu(&p, got);
        free(got);
        free_problem(&p);
    }
}

/* With a query of zeros all weights are 1: nothing is rounded but sums, so a row missing or counted twice shows. */
static void every_row_counts_once(void **state) {
    (void)state;
    need_device();
    for (int i = 0; i < 2 * N_CASES; i++) {
        struct problem p;
        make_problem(&p, &cases[i / 2], i % 2 ? HSP_F16 : HSP_BF16, (uint64_t)i + 5);
        memset(p.query, 0, n_query_floats(&p) * sizeof(float));
        put(&p);
        float *got = attend(&p);
        check_against(&p, NULL, got, 5e-6);
        free(got);
        free_problem(&p);
    }
}

/* Every head looks for one row, so hard that all others weigh nothing, and gets its value to the last bit. */
static void finds_every_row(void **state) {
    (void)state;
    need_device();
    static const struct gqa_case shapes[] = {{16, 2, 128, 128, 1, 4, 8, 512, 512, 64, 0, 2},
                                             {64, 1, 128, 512, 1, 2, 4, 512, 512, 1, 0, 4},
                                             {64, 2, 192, 256, 1, 2, 4, 512, 512, 64, 0, 1}};
    for (int i = 0; i < 6; i++) {
        struct problem p;
        make_problem(&p, &shapes[i / 2], i % 2 ? HSP_F16 : HSP_BF16, 17);
        p.shape.scale = 64.0f;
        int32_t n_all = n_all_queries(&p) * p.c.n_heads;
        for (size_t r = 0; r < n_ids(&p); r++)
            p.row_ids[r] = (int32_t)((r * 37 + r / 512) % 512);
        for (int32_t h = 0; h < n_all; h++)
            memcpy(p.query + (size_t)h * (size_t)p.c.key_dim,
                   row_of(&p, 0, h % p.c.n_heads, ids_of(&p, h / p.c.n_heads, 0)[h % 512]),
                   (size_t)p.c.key_dim * sizeof(float));
        put(&p);
        float *got = attend(&p);
        for (int32_t h = 0; h < n_all; h++) {
            const float *value = row_of(&p, 1, h % p.c.n_heads, ids_of(&p, h / p.c.n_heads, 0)[h % 512]);
            for (int32_t c = 0; c < p.c.value_dim; c++)
                if (got[(size_t)h * (size_t)p.c.value_dim + (size_t)c] != value[c])
                    fail_msg("case %d head %d channel %d: %.9g, not %.9g", i, h, c,
                             (double)got[(size_t)h * (size_t)p.c.value_dim + (size_t)c], (double)value[c]);
        }
        free(got);
        free_problem(&p);
    }
}

/* ------------------------------------------------------------------------------------------------------ same bits --
 */

/* Each entry alone, as a batch of one, and with others taken out of the batch. */
static void same_bits_in_any_batch(void **state) {
    (void)state;
    need_device();
    static const struct gqa_case shapes[] = {{12, 3, 64, 96, 3, 5, 2, 700, 600, 64, 0, 4},
                                             {34, 2, 64, 96, 1, 5, 1, 700, 600, 64, 0, 2}};
    for (int i = 0; i < 4; i++) {
        struct problem p;
        make_problem(&p, &shapes[i / 2], i % 2 ? HSP_F16 : HSP_BF16, 23);
        p.use_sink = p.device_sink;
        float *together = attend(&p);
        size_t values = n_values(&p) / 5, heads = (size_t)(p.c.n_queries * p.c.n_heads);
        for (int32_t b = 0; b < 5; b++) {
            struct problem one = p;
            one.c.batch = one.batch.batch = 1;
            one.device_query = p.device_query + (size_t)b * n_query_floats(&p) / 5;
            one.device_ids = p.device_ids + (size_t)b * n_ids(&p) / 5;
            float *got = attend(&one);
            assert_memory_equal(got, together + (size_t)b * values, values * sizeof(float));
            assert_memory_equal(got + values, together + 5 * values + (size_t)b * heads, heads * sizeof(float));
            free(got);
        }
        const int32_t slot[5] = {-1, 4, -1, 1, -3};
        to_device((void *)(uintptr_t)p.batch.slot, slot, sizeof slot);
        float *padded = attend(&p);
        for (size_t v = 0; v < n_values(&p); v++)
            assert_true(padded[v] == (slot[v / values] < 0 ? 0.0f : together[v]));
        for (size_t h = 0; h < 5 * heads; h++)
            assert_true(padded[5 * values + h] == (slot[h / heads] < 0 ? -INFINITY : together[5 * values + h]));
        free(padded);
        free(together);
        free_problem(&p);
    }
}

static void same_bits_wherever_rows_lie(void **state) {
    (void)state;
    need_device();
    struct problem strewn, packed;
    make_problem(&strewn, &(struct gqa_case){12, 3, 64, 48, 1, 1, 1, 500, 3000, 64, 64, 2}, HSP_BF16, 5);
    make_problem(&packed, &(struct gqa_case){12, 3, 64, 48, 1, 1, 1, 500, 500, 1, 0, 2}, HSP_BF16, 6);
    memcpy(packed.query, strewn.query, n_query_floats(&strewn) * sizeof(float));
    for (int32_t i = 0; i < 500; i++) {
        int32_t id = strewn.row_ids[i];
        packed.row_ids[i] = id < 0 ? -1 : i;
        for (int plane = 0; id >= 0 && plane < 2; plane++)
            memcpy(row_at(&packed.host[plane], i), row_at(&strewn.host[plane], id), strewn.host[plane].row_bytes);
    }
    put(&packed);
    float *a = attend(&strewn), *b = attend(&packed);
    assert_memory_equal(a, b, result_bytes(&strewn));
    free(a);
    free(b);
    free_problem(&strewn);
    free_problem(&packed);
}

static void same_bits_every_time(void **state) {
    (void)state;
    need_device();
    struct problem p;
    make_problem(&p, &(struct gqa_case){32, 8, 128, 128, 8, 40, 1, 700, 3000, 64, 0, 2}, HSP_BF16, 29);
    float *first = attend(&p);
    for (int i = 0; i < 200; i++) {
        call(&p);
        if (i % 20 != 19)
            continue;
        float *got = result(&p);
        assert_memory_equal(got, first, result_bytes(&p));
        free(got);
    }
    free(first);
    free_problem(&p);
}

/* One captured call; ids and padding change between replays. */
static void replays_in_a_graph(void **state) {
    (void)state;
    need_device();
    struct problem p;
    uint64_t seed = 3;
    make_problem(&p, &(struct gqa_case){12, 3, 64, 64, 3, 3, 2, 300, 700, 64, 0, 2}, HSP_F16, 31);
    cudaGraphExec_t graph = capture(call, &p);
    for (int i = 0; i < 20; i++) {
        int32_t slot[3];
        for (int b = 0; b < 3; b++)
            slot[b] = random_below(&seed, 4) - 1;
        for (size_t r = 0; r < n_ids(&p); r++)
            p.row_ids[r] = random_below(&seed, 10) < i ? random_below(&seed, 700) : -1;
        to_device((void *)(uintptr_t)p.batch.slot, slot, sizeof slot);
        put(&p);
        replay(graph);
        float *got = result(&p);
        for (size_t r = 0; r < n_ids(&p); r++)
            if (slot[r / (n_ids(&p) / 3)] < 0)
                p.row_ids[r] = -1;
        check(&p, NULL, got);
        free(got);
    }
    need(cudaGraphExecDestroy(graph));
    free_problem(&p);
}

/* ------------------------------------------------------------------------------------------------------ numbers -- */

static void nothing_and_nan(void **state) {
    (void)state;
    need_device();
    struct problem p;
    make_problem(&p, &(struct gqa_case){6, 2, 64, 32, 1, 3, 1, 300, 200, 64, 0, 2}, HSP_BF16, 43);
    for (int32_t i = 0; i < 300; i++) {
        p.row_ids[i] = i % 3 ? -1 : INT32_MIN;
        p.row_ids[300 + i] = i < 128 || i > 270 ? -1 : i - 128; /* two whole tiles of nothing, and a last one */
    }
    p.query[(size_t)(2 * 6 + 5) * 64 + 3] = NAN;
    p.sink[0] = INFINITY;
    p.sink[1] = -INFINITY;
    p.sink[2] = NAN;
    p.use_sink = p.device_sink;
    put(&p);
    float *got = attend(&p), *lse = got + n_values(&p), *third = got + 2 * 6 * 32;
    for (int32_t i = 0; i < 6 * 32; i++)
        assert_true(got[i] == 0.0f && lse[i % 6] == -INFINITY);
    for (int32_t c = 0; c < 32; c++)
        assert_true(third[c] == 0.0f && third[32 + c] != 0.0f && isnan(third[2 * 32 + c]) && isnan(third[5 * 32 + c]) &&
                    !isnan(third[4 * 32 + c]));
    assert_true(isnan(lse[2 * 6 + 5]) && !isnan(lse[2 * 6]));
    p.query[(size_t)(2 * 6 + 5) * 64 + 3] = 0.0f;
    p.use_sink = NULL;
    put(&p);
    float *plain = attend(&p);
    check(&p, NULL, plain);
    assert_memory_equal(plain + (2 * 6 + 1) * 32, third + 32, 32 * sizeof(float)); /* a sink of -infinity */
    free(plain);
    free(got);
    free_problem(&p);
}

/* A whole tile of scores that are -infinity weighs nothing; +infinity gives NaN. */
static void infinities_do_not_spread(void **state) {
    (void)state;
    need_device();
    struct problem p;
    make_problem(&p, &(struct gqa_case){1, 1, 16, 16, 1, 1, 1, 128, 128, 1, 0, 1}, HSP_BF16, 47);
    for (int great = 0; great < 2; great++)
        for (int chunks = 1; chunks <= 2; chunks++) {
            const float one = 1.0f, far = great ? 3e38f : -3e38f, zero = 0.0f;
            for (int32_t i = 0; i < 128; i++) {
                for (size_t c = 0; c < 16; c++) {
                    hsp_pack(HSP_BF16, i < 64 ? &far : &zero, 1, row_at(&p.host[0], i) + 2 * c);
                    hsp_pack(HSP_BF16, &one, 1, row_at(&p.host[1], i) + 2 * c);
                }
                p.row_ids[i] = i;
            }
            for (int c = 0; c < 16; c++)
                p.query[c] = 2.0f;
            p.c.n_chunks = chunks;
            put(&p);
            float *got = attend(&p);
            for (int c = 0; c < 16; c++)
                assert_true(great ? isnan(got[c]) : got[c] == 1.0f);
            assert_true(great ? isnan(got[16]) : fabsf(got[16] - logf(64.0f)) < 1e-5f);
            free(got);
        }
    free_problem(&p);
}

static void query_is_rounded(void **state) {
    (void)state;
    need_device();
    for (int32_t dtype = HSP_F16; dtype <= HSP_BF16; dtype++) {
        struct problem p;
        make_problem(&p, &(struct gqa_case){8, 2, 64, 64, 1, 1, 1, 200, 200, 64, 0, 1}, dtype, 37);
        uint16_t packed[8 * 64];
        for (int i = 0; i < 8 * 64; i++)
            p.query[i] *= 1.0f + 0x1p-13f;
        put(&p);
        float *got = attend(&p);
        assert_int_equal(hsp_pack(dtype, p.query, 8 * 64, packed), HSP_OK);
        assert_int_equal(hsp_unpack(dtype, packed, 8 * 64, p.query), HSP_OK);
        put(&p);
        float *rounded = attend(&p);
        assert_memory_equal(got, rounded, result_bytes(&p));
        free(got);
        free(rounded);
        free_problem(&p);
    }
}

/* ------------------------------------------------------------------------------------------------------ refusals -- */

static int try_attend(const struct problem *p, hsp_gqa_shape shape, hsp_plane_view values, int32_t n_lists,
                      int32_t n_rows, int32_t n_chunks) {
    return hsp_gpu_gqa_attend(&shape, &p->device[0], &values, &p->batch, p->device_query, p->device_ids, n_lists,
                              n_rows, n_chunks, NULL, p->out, NULL, test_stream);
}

static void refuses(void **state) {
    (void)state;
    need_device();
    struct problem p;
    make_problem(&p, &(struct gqa_case){4, 2, 64, 64, 1, 1, 1, 10, 20, 64, 0, 1}, HSP_BF16, 59);
    hsp_gqa_shape s = p.shape;
    hsp_plane_view good = p.device[1], odd = good, shorter = good;
    odd.row_stride += 8;
    shorter.row_bytes--;
    for (int i = 0; i < 4; i++) {
        hsp_gqa_shape other = s;
        other.dtype = i == 0 ? HSP_F32 : s.dtype;
        other.key_dim = i == 1 ? 56 : i == 2 ? 592 : s.key_dim;
        other.value_dim = i == 3 ? 528 : s.value_dim;
        assert_int_equal(try_attend(&p, other, good, 1, 10, 1), HSP_EUNSUPPORTED);
    }
    s.n_kv_heads = 3;
    assert_int_equal(try_attend(&p, s, good, 1, 10, 1), HSP_EINVAL);
    s = p.shape;
    assert_int_equal(try_attend(&p, s, odd, 1, 10, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&p, s, shorter, 1, 10, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&p, s, good, 3, 10, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&p, s, good, 1, -1, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&p, s, good, 1, 10, 5), HSP_EINVAL);
    assert_int_equal(try_attend(&p, s, good, 1, INT32_MAX, 1), HSP_ELIMIT);
    float *got = result(&p);
    for (size_t i = 0; i < n_values(&p); i++) {
        uint32_t bits;
        memcpy(&bits, got + i, sizeof bits);
        assert_int_equal(bits, 0x5a5a5a5a);
    }
    free(got);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_counts_once),
        cmocka_unit_test(finds_every_row),
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(same_bits_in_any_batch),
        cmocka_unit_test(same_bits_wherever_rows_lie),
        cmocka_unit_test(same_bits_every_time),
        cmocka_unit_test(replays_in_a_graph),
        cmocka_unit_test(nothing_and_nan),
        cmocka_unit_test(infinities_do_not_spread),
        cmocka_unit_test(query_is_rounded),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
