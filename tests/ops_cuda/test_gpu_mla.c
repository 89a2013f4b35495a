/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA attention and packing on the GPU against the CPU and a double-precision reference, with both kernels there are.
 * The entries of a batch, and their queries, are the queries of one problem on the CPU.
 */
#include "gpu_common.h"

#include "../ops/mla_problem.h"

#include <float.h>

/* For numbers that are the same in bf16. */
static void round_bf16(float *x, size_t n) {
    uint16_t *packed = allocate(n * sizeof *packed);
    assert_int_equal(hsp_pack(HSP_BF16, x, n, packed), HSP_OK);
    assert_int_equal(hsp_unpack(HSP_BF16, packed, n, x), HSP_OK);
    free(packed);
}

extern int hsp__mla_no_wgmma;

/* 0: the kernel for this GPU; 1: the one for all others; 2: there is no such kernel, the first again. */
static int use_kernel(int kernel) {
    hsp__mla_no_wgmma = kernel == 1;
    return kernel < 2;
}

#define FOR_EACH_KERNEL for (int kernel = 0; use_kernel(kernel); kernel++)

/* A problem on the device, and one call. */
struct device_problem {
    const struct problem *p;
    char *memory;
    hsp_plane_view planes[2];
    float *query, *sink, *out;
    int32_t *row_ids;
    hsp_gpu_batch batch;
    int32_t n_chunks;
    const float *use_sink;
};

static size_t n_ids(const struct problem *p) {
    return (size_t)p->n_queries * (size_t)p->n_rows;
}

static size_t query_bytes(const struct problem *p) {
    return (size_t)(p->n_queries * p->shape.n_heads) * (size_t)p->key_dim * sizeof(float);
}

static void put(struct device_problem *d, const struct problem *p, int32_t batch, int32_t n_chunks) {
    int32_t *slot = allocate((size_t)batch * sizeof *slot);
    int32_t *n_tokens = allocate((size_t)p->n_queries * sizeof *n_tokens);
    for (int32_t b = 0; b < batch; b++)
        slot[b] = b;
    memset(n_tokens, 0, (size_t)p->n_queries * sizeof *n_tokens);
    *d = (struct device_problem){.p = p, .n_chunks = n_chunks};
    d->memory = on_device(p->memory, p->memory_bytes);
    for (int i = 0; i < 2; i++) {
        d->planes[i] = p->planes[i];
        d->planes[i].base = d->memory + ((char *)p->planes[i].base - p->memory);
    }
    d->query = on_device(p->query, query_bytes(p));
    d->sink = on_device(p->sink, (size_t)p->shape.n_heads * sizeof(float));
    d->row_ids = on_device(p->row_ids, n_ids(p) * sizeof(int32_t));
    d->out = on_device(NULL, result_bytes(p));
    d->batch = make_batch(batch, p->n_queries / batch, 1, slot, n_tokens);
    free(slot);
    free(n_tokens);
}

static void drop(struct device_problem *d) {
    free_device(d->memory);
    free_device(d->query);
    free_device(d->sink);
    free_device(d->row_ids);
    free_device(d->out);
    free_batch(&d->batch);
}

static void call(void *argument) {
    const struct device_problem *d = argument;
    assert_int_equal(hsp_gpu_mla_attend(&d->p->shape, d->planes, &d->batch, d->query, d->row_ids, d->p->n_rows,
                                        d->n_chunks, d->use_sink, d->out, d->out + n_values(d->p), test_stream),
                     HSP_OK);
}

static float *result(const struct device_problem *d) {
    float *got = allocate(result_bytes(d->p));
    from_device(got, d->out, result_bytes(d->p));
    return got;
}

static float *attend_on_gpu(struct device_problem *d) {
    need(cudaMemset(d->out, 0x5a, result_bytes(d->p)));
    need(cudaDeviceSynchronize());
    call(d);
    return result(d);
}

static void make(struct problem *p, const struct mla_case *c, uint64_t seed) {
    make_problem(p, c, seed);
    round_bf16(p->query, query_bytes(p) / sizeof(float));
}

/* ---------------------------------------------------------------------------------------------------- results -- */

static const struct {
    struct mla_case c;
    int32_t batch, n_chunks;
} cases[] = {
    /* format, heads, latent, rope, queries, rows, slots, rows in a block, padding; batch, chunks */
    {{HSP_MLA_BF16, 128, 512, 64, 2, 2048, 2500, 64, 0}, 2, 2}, {{HSP_MLA_FP8, 64, 512, 64, 2, 2048, 2500, 1, 0}, 2, 2},
    {{HSP_MLA_V4, 64, 448, 64, 2, 1024, 2500, 64, 0}, 2, 2},    {{HSP_MLA_BF16, 16, 512, 64, 6, 63, 80, 64, 16}, 3, 1},
    {{HSP_MLA_BF16, 1, 512, 64, 1, 1, 1, 1, 0}, 1, 8},          {{HSP_MLA_BF16, 65, 512, 64, 2, 65, 50, 1, 0}, 1, 1},
    {{HSP_MLA_BF16, 130, 512, 64, 3, 700, 300, 7, 32}, 3, 8},   {{HSP_MLA_FP8, 17, 512, 64, 2, 129, 50, 1, 8}, 2, 4},
    {{HSP_MLA_FP8, 70, 512, 64, 4, 300, 90, 7, 24}, 2, 8},      {{HSP_MLA_V4, 37, 448, 64, 3, 130, 128, 64, 0}, 1, 1},
    {{HSP_MLA_V4, 66, 448, 64, 2, 200, 128, 1, 8}, 2, 2},       {{HSP_MLA_V4, 5, 448, 64, 2, 64, 30, 5, 16}, 2, 4},
    {{HSP_MLA_FP8, 4, 512, 64, 2, 0, 2, 1, 0}, 2, 2},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* The query is bf16 already and rows are exact, so only the weights are rounded, by 2^-9 of themselves at most: the
 * result errs by no more than that times the greatest value, which is 1. Weights are against the maximum of the tiles
 * so far, and sums are not rounded. 2e-5: sums in float. */
static void check(const struct problem *p, const float *sink, const float *got, const char *what) {
    double *expected = allocate((size_t)p->value_dim * sizeof *expected);
    for (int32_t i = 0; i < p->n_queries * p->shape.n_heads; i++) {
        double lse = reference_head(p, i / p->shape.n_heads, i % p->shape.n_heads, sink, expected);
        double got_lse = (double)got[n_values(p) + (size_t)i];
        if (!(lse == got_lse || fabs(got_lse - lse) < 3e-5))
            fail_msg("%s head %d: lse %.9g, not %.9g", what, i, got_lse, lse);
        for (int32_t c = 0; c < p->value_dim; c++) {
            double x = (double)got[(size_t)i * (size_t)p->value_dim + (size_t)c];
            if (!(fabs(x - expected[c]) < 0x1p-9 + 2e-5))
                fail_msg("%s head %d channel %d: %.9g, not %.9g", what, i, c, x, expected[c]);
        }
    }
    free(expected);
}

static void equals_reference(void **state) {
    (void)state;
    need_device();
    for (int i = 0; i < 2 * N_CASES; i++) {
        struct problem p;
        struct device_problem d;
        make(&p, &cases[i / 2].c, (uint64_t)i / 2 + 3);
        put(&d, &p, cases[i / 2].batch, cases[i / 2].n_chunks);
        d.use_sink = i % 2 ? d.sink : NULL;
        float *expected = attend(&p, i % 2 ? p.sink : NULL);
        FOR_EACH_KERNEL {
            float *got = attend_on_gpu(&d);
            if (kernel == 0)
                check(&p, i % 2 ? p.sink : NULL, got, cases[i / 2].c.n_heads > 100 ? "many heads" : "few heads");
            for (size_t v = 0; v < result_bytes(&p) / sizeof(float); v++)
                if (!(got[v] == expected[v] || fabsf(got[v] - expected[v]) < 0x1p-9f + 4e-5f))
                    fail_msg("kernel %d case %d number %zu: %.9g, on the CPU %.9g", kernel, i, v, (double)got[v],
                             (double)expected[v]);
            free(got);
        }
        free(expected);
        drop(&d);
        free_problem(&p);
    }
}

/* With a query of zeros all weights are 1, so nothing is rounded but sums of at most 700 numbers below 1: a row that is
 * missing or counted twice shows as 1e-3. */
static void every_row_counts_once(void **state) {
    (void)state;
    need_device();
    FOR_EACH_KERNEL
    for (int32_t i = 0; i < 12; i++) {
        struct problem p;
        struct device_problem d;
        const struct mla_case c = {i % 3, 20, i % 3 == HSP_MLA_V4 ? 448 : 512, 64, 3, 500 + 67 * (i / 3), 900, 64, 0};
        make(&p, &c, (uint64_t)i);
        memset(p.query, 0, query_bytes(&p));
        put(&d, &p, 3, 1 << i / 3);
        float *got = attend_on_gpu(&d);
        double expected[512];
        for (int32_t h = 0; h < p.n_queries * p.shape.n_heads; h++) {
            double lse = reference_head(&p, h / p.shape.n_heads, 0, NULL, expected);
            double got_lse = (double)got[n_values(&p) + (size_t)h];
            if (!(fabs(got_lse - lse) < 3e-6))
                fail_msg("kernel %d case %d chunks %d head %d: lse %.9g, not %.9g", kernel, i, d.n_chunks, h, got_lse,
                         lse);
            for (int32_t v = 0; v < p.value_dim; v++)
                if (!(fabs((double)got[h * p.value_dim + v] - expected[v]) < 3e-6))
                    fail_msg("kernel %d case %d chunks %d head %d channel %d: %.9g, not %.9g", kernel, i, d.n_chunks, h,
                             v, (double)got[h * p.value_dim + v], expected[v]);
        }
        free(got);
        drop(&d);
        free_problem(&p);
    }
}

/* Every head looks for one row of 2048, so hard that all others weigh nothing, and gets it to the last bit; all places
 * of the selection, and all channels, in turn. */
static void finds_every_row(void **state) {
    (void)state;
    need_device();
    FOR_EACH_KERNEL
    for (int32_t format = 0; format < 3; format++) {
        struct problem p;
        struct device_problem d;
        const struct mla_case c = {format, 128, format == HSP_MLA_V4 ? 448 : 512, 64, 16, 2048, 2048, 64, 0};
        make(&p, &c, 17);
        p.shape.scale = 64.0f;
        for (int32_t i = 0; i < 16 * 2048; i++)
            p.row_ids[i] = (i * 37 + i / 2048) % 2048;
        for (int32_t i = 0; i < 16 * 128; i++) /* head i wants place i, of 2048 */
            memcpy(p.query + (size_t)i * (size_t)p.key_dim,
                   p.keys + (size_t)p.row_ids[i / 128 * 2048 + i] * (size_t)p.key_dim,
                   (size_t)p.key_dim * sizeof(float));
        put(&d, &p, 8, 2);
        float *got = attend_on_gpu(&d);
        int32_t wrong = 0;
        for (int32_t i = 0; i < 16 * 128; i++)
            for (int32_t v = 0; v < p.value_dim; v++) {
                const float expected = p.query[(size_t)i * (size_t)p.key_dim + (size_t)v];
                const float x = got[i * p.value_dim + v];
                if (x != expected && wrong++ % 64 == 0 && wrong < 1024) /* to see which tiles, chunks and channels */
                    print_error("kernel %d format %d place %d channel %d: %.9g, not %.9g\n", kernel, format, i, v,
                                (double)x, (double)expected);
            }
        if (wrong)
            fail_msg("%d of %d are wrong", wrong, 16 * 128 * p.value_dim);
        free(got);
        drop(&d);
        free_problem(&p);
    }
}

/* ------------------------------------------------------------------------------------------------------ same bits --
 */

/* Query q alone, as a batch of one, and among others at another place, with padding around it. */
static void same_bits_in_any_batch(void **state) {
    (void)state;
    need_device();
    FOR_EACH_KERNEL
    for (int32_t format = 0; format < 3; format++) {
        struct problem p, one;
        struct device_problem d, alone;
        const struct mla_case c = {format, 70, format == HSP_MLA_V4 ? 448 : 512, 64, 12, 900, 1000, 64, 0};
        make(&p, &c, 23);
        put(&d, &p, 6, 4);
        d.use_sink = d.sink;
        float *together = attend_on_gpu(&d);
        one = p;
        one.n_queries = 1;
        size_t heads = 70, values = heads * (size_t)p.value_dim;
        for (int32_t q = 0; q < 12; q++) {
            one.query = p.query + (size_t)q * heads * (size_t)p.key_dim;
            one.row_ids = p.row_ids + q * 900;
            put(&alone, &one, 1, 4);
            alone.use_sink = alone.sink;
            float *got = attend_on_gpu(&alone);
            assert_memory_equal(got, together + (size_t)q * values, values * sizeof(float));
            assert_memory_equal(got + values, together + 12 * values + (size_t)q * heads, heads * sizeof(float));
            free(got);
            drop(&alone);
        }
        const int32_t slot[6] = {-1, 3, 5, -1, 0, -7};
        to_device((void *)(uintptr_t)d.batch.slot, slot, sizeof slot);
        float *padded = attend_on_gpu(&d);
        for (size_t q = 0; q < 12; q++)
            for (size_t i = 0; i < values; i++) {
                size_t lse = 12 * values + q * heads + i % heads;
                assert_true(slot[q / 2] < 0
                                ? padded[q * values + i] == 0.0f && padded[lse] == -INFINITY
                                : padded[q * values + i] == together[q * values + i] && padded[lse] == together[lse]);
            }
        free(padded);
        free(together);
        drop(&d);
        free_problem(&p);
    }
}

static void same_bits_wherever_rows_lie(void **state) {
    (void)state;
    need_device();
    FOR_EACH_KERNEL
    for (int32_t format = 0; format < 3; format++) {
        struct problem strewn, packed;
        struct device_problem d, e;
        int32_t latent = format == HSP_MLA_V4 ? 448 : 512;
        make(&strewn, &(struct mla_case){format, 64, latent, 64, 1, 500, 4000, 64, 0}, 5);
        make(&packed, &(struct mla_case){format, 64, latent, 64, 1, 500, 500, 1, 16}, 6);
        memcpy(packed.query, strewn.query, query_bytes(&strewn));
        for (int32_t i = 0; i < 500; i++) {
            int32_t id = strewn.row_ids[i];
            packed.row_ids[i] = id < 0 ? -1 : i;
            for (int plane = 0; id >= 0 && plane < (format == HSP_MLA_V4 ? 2 : 1); plane++)
                memcpy(row_at(&packed.planes[plane], i), row_at(&strewn.planes[plane], id),
                       strewn.planes[plane].row_bytes);
        }
        put(&d, &strewn, 1, 2);
        put(&e, &packed, 1, 2);
        float *a = attend_on_gpu(&d), *b = attend_on_gpu(&e);
        assert_memory_equal(a, b, result_bytes(&strewn));
        free(a);
        free(b);
        drop(&d);
        drop(&e);
        free_problem(&strewn);
        free_problem(&packed);
    }
}

/* Two hundred times the same, a great batch beside nothing else: a race would show. */
static void same_bits_every_time(void **state) {
    (void)state;
    need_device();
    use_kernel(0);
    for (int32_t format = 0; format < 3; format++) {
        struct problem p;
        struct device_problem d;
        const struct mla_case c = {format, 128, format == HSP_MLA_V4 ? 448 : 512, 64, 40, 700, 3000, 64, 0};
        make(&p, &c, 29);
        put(&d, &p, 40, 2);
        float *first = attend_on_gpu(&d);
        for (int i = 0; i < 200; i++) {
            call(&d);
            if (i % 20 != 19)
                continue;
            float *got = result(&d);
            assert_memory_equal(got, first, result_bytes(&p));
            free(got);
        }
        free(first);
        drop(&d);
        free_problem(&p);
    }
}

/* One captured call; ids, queries and padding change between replays. */
static void replays_in_a_graph(void **state) {
    (void)state;
    need_device();
    use_kernel(0);
    struct problem p;
    struct device_problem d;
    uint64_t seed = 3;
    make(&p, &(struct mla_case){HSP_MLA_FP8, 64, 512, 64, 6, 300, 700, 64, 0}, 31);
    put(&d, &p, 3, 2);
    cudaGraphExec_t graph = capture(call, &d);
    for (int i = 0; i < 20; i++) {
        int32_t slot[3];
        for (int b = 0; b < 3; b++)
            slot[b] = random_below(&seed, 4) - 1;
        for (size_t r = 0; r < n_ids(&p); r++)
            p.row_ids[r] = random_below(&seed, 10) < i ? random_below(&seed, 700) : -1;
        to_device((void *)(uintptr_t)d.batch.slot, slot, sizeof slot);
        to_device(d.row_ids, p.row_ids, n_ids(&p) * sizeof(int32_t));
        replay(graph);
        float *got = result(&d);
        for (size_t r = 0; r < n_ids(&p); r++)
            if (slot[r / 600] < 0)
                p.row_ids[r] = -1;
        check(&p, NULL, got, "replay");
        free(got);
    }
    need(cudaGraphExecDestroy(graph));
    drop(&d);
    free_problem(&p);
}

/* ------------------------------------------------------------------------------------------------------ numbers -- */

static void query_is_rounded_to_bf16(void **state) {
    (void)state;
    need_device();
    FOR_EACH_KERNEL {
        struct problem p;
        struct device_problem d;
        make_problem(&p, &(struct mla_case){HSP_MLA_BF16, 64, 512, 64, 1, 200, 300, 64, 0}, 37);
        put(&d, &p, 1, 1);
        float *got = attend_on_gpu(&d);
        round_bf16(p.query, query_bytes(&p) / sizeof(float));
        to_device(d.query, p.query, query_bytes(&p));
        float *rounded = attend_on_gpu(&d);
        assert_memory_equal(got, rounded, result_bytes(&p));
        free(got);
        free(rounded);
        drop(&d);
        free_problem(&p);
    }
}

/* fp32 scales of any kind: the number read is the product, rounded to bf16. V4: from the least scale to a great one,
 * and a subnormal may become 0. */
static void reads_any_scale(void **state) {
    (void)state;
    need_device();
    const float scales[4] = {0.3f, -1.7e-3f, 5e4f, 0.0f};
    const uint8_t powers[8] = {0, 1, 127, 128, 120, 240, 135, 0};
    FOR_EACH_KERNEL
    for (int32_t format = HSP_MLA_FP8; format <= HSP_MLA_V4; format++) {
        struct problem p;
        struct device_problem d;
        const int32_t latent = format == HSP_MLA_V4 ? 448 : 512;
        make(&p, &(struct mla_case){format, 3, latent, 64, 1, 1, 1, 1, 0}, 41);
        for (int32_t c = 0; c < latent; c++)
            row_at(p.planes, 0)[c] = (uint8_t)(c % 127 + c % 2 * 128);
        if (format == HSP_MLA_V4)
            memcpy(row_at(p.planes + 1, 0), powers, sizeof powers);
        else
            memcpy(row_at(p.planes, 0) + 512, scales, sizeof scales);
        p.row_ids[0] = 0;
        memset(p.query, 0, query_bytes(&p));
        read_row(&p, 0, p.keys);
        round_bf16(p.keys, (size_t)p.key_dim);
        put(&d, &p, 1, 2);
        float *got = attend_on_gpu(&d);
        for (int32_t c = 0; c < p.value_dim; c++)
            if (!(got[c] == p.keys[c] || (fabsf(p.keys[c]) < 0x1p-126f && got[c] == 0.0f)))
                fail_msg("kernel %d format %d channel %d: %g, not %g", kernel, format, c, (double)got[c],
                         (double)p.keys[c]);
        free(got);
        row_at(p.planes, 0)[70] = 0xff; /* NaN: the score is NaN, and so is all */
        to_device(d.memory, p.memory, p.memory_bytes);
        got = attend_on_gpu(&d);
        assert_true(isnan(got[70]) && isnan(got[0]) && isnan(got[n_values(&p)]));
        free(got);
        drop(&d);
        free_problem(&p);
    }
}

static void nothing_and_nan(void **state) {
    (void)state;
    need_device();
    FOR_EACH_KERNEL {
        struct problem p;
        struct device_problem d;
        make(&p, &(struct mla_case){HSP_MLA_BF16, 66, 512, 64, 4, 300, 200, 64, 0}, 43);
        for (int32_t i = 0; i < 300; i++) {
            p.row_ids[i] = i % 3 ? -1 : INT32_MIN;
            p.row_ids[300 + i] = i < 128 || i > 270 ? -1 : i - 128; /* two whole tiles of nothing, and a last one */
        }
        p.query[(size_t)(2 * 66 + 65) * 576 + 5] = NAN;
        p.sink[0] = INFINITY;
        p.sink[1] = -INFINITY;
        p.sink[2] = NAN;
        put(&d, &p, 2, 2);
        d.use_sink = d.sink;
        float *got = attend_on_gpu(&d), *lse = got + n_values(&p);
        for (int32_t i = 0; i < 66 * 512; i++)
            assert_true(got[i] == 0.0f && lse[i % 66] == -INFINITY);
        const float *third = got + 2 * 66 * 512;
        for (int32_t c = 0; c < 512; c++)
            assert_true(third[c] == 0.0f && third[512 + c] != 0.0f && isnan(third[1024 + c]) &&
                        isnan(third[65 * 512 + c]) && !isnan(third[64 * 512 + c]));
        assert_true(isnan(lse[2 * 66 + 65]) && !isnan(lse[2 * 66]));
        p.query[(size_t)(2 * 66 + 65) * 576 + 5] = 0.0f;
        to_device(d.query, p.query, query_bytes(&p));
        d.use_sink = NULL;
        float *plain = attend_on_gpu(&d);
        check(&p, NULL, plain, "with masked tiles");
        assert_memory_equal(plain + (2 * 66 + 1) * 512, third + 512, 512 * sizeof(float)); /* a sink of -infinity */
        free(plain);
        free(got);
        drop(&d);
        free_problem(&p);
    }
}

/* Scores in the thousands, ascending and descending over tiles: the running maximum changes, or the first one stays. */
static void survives_great_scores(void **state) {
    (void)state;
    need_device();
    FOR_EACH_KERNEL
    for (int backwards = 0; backwards < 2; backwards++) {
        struct problem p;
        struct device_problem d;
        make(&p, &(struct mla_case){HSP_MLA_BF16, 64, 512, 64, 1, 640, 640, 64, 0}, 47);
        p.shape.scale = 1.0f;
        for (int32_t id = 0; id < 640; id++) {
            float first = 16.0f * (float)(id / 64), x[576];
            memcpy(x, p.keys + id * 576, sizeof x);
            for (int32_t c = 0; c < 576; c++)
                x[c] = c == 575 ? first : c > 511 ? 0.0f : x[c];
            assert_int_equal(hsp_mla_pack_rows(&p.shape, x, id, 1, p.planes), HSP_OK);
            read_row(&p, id, p.keys + id * 576);
            p.row_ids[backwards ? 639 - id : id] = id;
        }
        for (int32_t h = 0; h < 64; h++)
            for (int32_t c = 0; c < 576; c++)
                p.query[h * 576 + c] = c == 575 ? (float)(h - 32) : c < 64 ? p.query[h * 576 + c] / 32.0f : 0.0f;
        round_bf16(p.query, 64 * 576);
        put(&d, &p, 1, 1);
        float *got = attend_on_gpu(&d);
        for (int32_t h = 0; h < 64; h++) { /* a score of thousands has its own rounding */
            double expected[512], lse = reference_head(&p, 0, h, NULL, expected);
            assert_true(fabs((double)got[n_values(&p) + (size_t)h] - lse) < 1e-6 * fabs(lse) + 2e-3);
            for (int32_t c = 0; c < 512; c++)
                if (!(fabs((double)got[h * 512 + c] - expected[c]) < 6e-3))
                    fail_msg("kernel %d head %d channel %d: %.9g, not %.9g", kernel, h, c, (double)got[h * 512 + c],
                             expected[c]);
        }
        free(got);
        drop(&d);
        free_problem(&p);
    }
}

/* ------------------------------------------------------------------------------------------------------ packing -- */

static void equal_rows(const char *got, const char *expected, size_t n, size_t stride, int32_t format, int plane) {
    for (size_t i = 0; i < n * stride; i++)
        if (got[i] != expected[i])
            fail_msg("format %d plane %d row %zu byte %zu: %02x, not %02x", format, plane, i / stride, i % stride,
                     (unsigned char)got[i], (unsigned char)expected[i]);
}

/* Byte for byte what the CPU makes, NaN apart: rows of all sizes, and numbers that are not finite. */
static void packs_as_the_cpu(void **state) {
    (void)state;
    need_device();
    static const int32_t sizes[][3] = {{HSP_MLA_BF16, 512, 64}, {HSP_MLA_FP8, 512, 64}, {HSP_MLA_V4, 448, 64},
                                       {HSP_MLA_BF16, 33, 7},   {HSP_MLA_FP8, 128, 3},  {HSP_MLA_V4, 640, 1}};
    for (int i = 0; i < 6; i++) {
        enum { ROWS = 300 };
        const hsp_mla_shape shape = {sizeof shape, 1, sizes[i][1], sizes[i][2], sizes[i][0], 1.0f, 0};
        size_t dim = (size_t)(shape.latent_dim + shape.rope_dim), bytes[2] = {0, 0}, stride[2];
        uint64_t seed = 53;
        float *rows = random_floats(ROWS * dim, 1.0f, &seed);
        bytes[0] = (size_t)shape.latent_dim * (shape.format == HSP_MLA_BF16 ? 2 : 1) + 2 * (size_t)shape.rope_dim +
                   (shape.format == HSP_MLA_FP8 ? (size_t)shape.latent_dim / 32 : 0);
        bytes[1] = shape.format == HSP_MLA_V4 ? ((size_t)shape.latent_dim / 64 + 7) / 8 * 8 : 1;
        for (size_t c = 0; c < ROWS * dim; c++)
            rows[c] *= ldexpf(1.0f, random_below(&seed, 40) - 25);
        rows[0] = NAN, rows[1] = -INFINITY, rows[2] = 448.0f, rows[dim] = nextafterf(448.0f, 449.0f);
        rows[3 * dim] = 0x1p-130f, rows[4 * dim] = FLT_MAX, rows[5 * dim - 1] = -0.0f;
        char *expected[2], *got[2], *device[2];
        hsp_plane_view planes[2];
        hsp_row_sink to = {{NULL}, {0}};
        for (int plane = 0; plane < 2; plane++) {
            stride[plane] = bytes[plane] + (i > 2 ? 3 : 0);
            expected[plane] = allocate(ROWS * stride[plane]);
            got[plane] = allocate(ROWS * stride[plane]);
            memset(expected[plane], 0x5a, ROWS * stride[plane]);
            device[plane] = on_device(NULL, ROWS * stride[plane]);
            planes[plane] = (hsp_plane_view){expected[plane], bytes[plane], stride[plane], stride[plane], 1, 0};
            to.plane[plane] = device[plane];
            to.stride[plane] = stride[plane];
        }
        float *device_rows = on_device(rows, ROWS * dim * sizeof(float));
        assert_int_equal(hsp_mla_pack_rows(&shape, rows, 0, ROWS, planes), HSP_OK);
        assert_int_equal(hsp_gpu_mla_pack(&shape, device_rows, ROWS, &to, test_stream), HSP_OK);
        for (int plane = 0; plane < 2; plane++) {
            from_device(got[plane], device[plane], ROWS * stride[plane]);
            if (plane == 0 && shape.format == HSP_MLA_BF16)
                memcpy(got[0], expected[0], 2); /* the NaN: any */
            else if (plane == 0)
                got[0][0] = (char)(got[0][0] & 0x7f), expected[0][0] = (char)(expected[0][0] & 0x7f);
            equal_rows(got[plane], expected[plane], ROWS, stride[plane], shape.format, plane);
            free(expected[plane]);
            free(got[plane]);
            free_device(device[plane]);
        }
        free_device(device_rows);
        free(rows);
    }
}

/* ------------------------------------------------------------------------------------------------------ refusals -- */

static int try_attend(const struct device_problem *d, hsp_mla_shape shape, const hsp_plane_view *planes,
                      hsp_gpu_batch batch, int32_t n_rows, int32_t n_chunks) {
    return hsp_gpu_mla_attend(&shape, planes, &batch, d->query, d->row_ids, n_rows, n_chunks, NULL, d->out, NULL,
                              test_stream);
}

static void refuses(void **state) {
    (void)state;
    need_device();
    struct problem p;
    struct device_problem d;
    make(&p, &(struct mla_case){HSP_MLA_BF16, 4, 512, 64, 1, 10, 20, 64, 0}, 59);
    put(&d, &p, 1, 1);
    hsp_mla_shape other = p.shape, small = p.shape;
    hsp_plane_view odd = d.planes[0], shorter = d.planes[0];
    hsp_gpu_batch no_queries = d.batch, none = d.batch;
    other.latent_dim = 256;
    small.struct_size--;
    odd.base = (char *)odd.base + 8;
    shorter.row_bytes--;
    no_queries.n_queries = 0;
    none.batch = 0;
    assert_int_equal(try_attend(&d, other, d.planes, d.batch, 10, 1), HSP_EUNSUPPORTED);
    assert_int_equal(try_attend(&d, small, d.planes, d.batch, 10, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, &odd, d.batch, 10, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, &shorter, d.batch, 10, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, d.planes, no_queries, 10, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, d.planes, d.batch, -1, 1), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, d.planes, d.batch, 10, 0), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, d.planes, d.batch, 10, 3), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, d.planes, d.batch, 10, 16), HSP_EINVAL);
    assert_int_equal(try_attend(&d, p.shape, d.planes, d.batch, INT32_MAX, 1), HSP_ELIMIT);
    assert_int_equal(try_attend(&d, p.shape, d.planes, none, 10, 1), HSP_OK);
    float *got = result(&d);
    for (size_t i = 0; i < n_values(&p); i++) {
        uint32_t bits;
        memcpy(&bits, got + i, sizeof bits);
        assert_int_equal(bits, 0x5a5a5a5a);
    }
    free(got);
    drop(&d);
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
        cmocka_unit_test(query_is_rounded_to_bf16),
        cmocka_unit_test(reads_any_scale),
        cmocka_unit_test(nothing_and_nan),
        cmocka_unit_test(survives_great_scores),
        cmocka_unit_test(packs_as_the_cpu),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
