/* SPDX-License-Identifier: Apache-2.0
 *
 * GQA attention by row ids against a plain double-precision reference, and its promise that bits depend on nothing but
 * rows, queries and the order of ids.
 */
#include "ops_common.h"

#include <math.h>
#include <omp.h>

/* A plane pair, a query and ids. Rows are held as float as well, after the rounding to dtype. */
struct problem {
    hsp_gqa_shape shape;
    hsp_plane_view keys, values;
    int32_t n_slots, n_rows;
    float *key_floats, *value_floats; /* [n_slots][n_kv_heads][dim] */
    float *query;
    int32_t *row_ids;
    char *memory;
    void *scratch;
    size_t scratch_bytes;
};

static char *row_at(const hsp_plane_view *plane, int32_t id) {
    return (char *)plane->base + (size_t)(id / plane->rows_per_block) * plane->block_stride +
           (size_t)(id % plane->rows_per_block) * plane->row_stride;
}

static void fill_plane(const hsp_plane_view *plane, int32_t dtype, int32_t n_slots, size_t n, float *floats,
                       uint64_t *seed) {
    for (int32_t id = 0; id < n_slots; id++, floats += n) {
        for (size_t i = 0; i < n; i++)
            floats[i] = random_float(seed);
        assert_int_equal(hsp_pack(dtype, floats, n, row_at(plane, id)), HSP_OK);
        assert_int_equal(hsp_unpack(dtype, row_at(plane, id), n, floats), HSP_OK);
    }
}

/* Both planes in each block, K first, with `pad` bytes after rows and after blocks. The last row ends the allocation,
 * so that reading past it is seen by a sanitizer. */
static void lay_out(struct problem *p, int32_t rows_per_block, size_t pad) {
    const hsp_gqa_shape *s = &p->shape;
    size_t key_bytes = (size_t)(s->n_kv_heads * s->key_dim) * bytes_of(s->dtype);
    size_t value_bytes = (size_t)(s->n_kv_heads * s->value_dim) * bytes_of(s->dtype);
    size_t key_stride = key_bytes + pad, value_stride = value_bytes + pad;
    size_t block_stride = (size_t)rows_per_block * (key_stride + value_stride) + pad;
    int32_t n_blocks = (p->n_slots + rows_per_block - 1) / rows_per_block;
    p->n_slots = n_blocks * rows_per_block;
    size_t bytes = (size_t)n_blocks * block_stride - 2 * pad;
    p->memory = allocate(bytes);
    memset(p->memory, 0xff, bytes); /* NaN in every format */
    p->keys = (hsp_plane_view){p->memory, key_bytes, key_stride, block_stride, rows_per_block, 0};
    p->values = (hsp_plane_view){
        p->memory + (size_t)rows_per_block * key_stride, value_bytes, value_stride, block_stride, rows_per_block, 0};
}

static void make_problem(struct problem *p, hsp_gqa_shape shape, int32_t n_slots, int32_t n_rows,
                         int32_t rows_per_block, size_t pad, uint64_t seed) {
    memset(p, 0, sizeof *p);
    p->shape = shape;
    p->n_slots = n_slots;
    p->n_rows = n_rows;
    lay_out(p, rows_per_block, pad);
    size_t key_n = (size_t)(shape.n_kv_heads * shape.key_dim), value_n = (size_t)(shape.n_kv_heads * shape.value_dim);
    p->key_floats = allocate((size_t)p->n_slots * key_n * sizeof(float));
    p->value_floats = allocate((size_t)p->n_slots * value_n * sizeof(float));
    fill_plane(&p->keys, shape.dtype, p->n_slots, key_n, p->key_floats, &seed);
    fill_plane(&p->values, shape.dtype, p->n_slots, value_n, p->value_floats, &seed);
    p->query = allocate((size_t)(shape.n_heads * shape.key_dim) * sizeof(float));
    for (int32_t i = 0; i < shape.n_heads * shape.key_dim; i++)
        p->query[i] = 4.0f * random_float(&seed);
    p->row_ids = allocate((size_t)n_rows * sizeof *p->row_ids);
    for (int32_t i = 0; i < n_rows; i++) /* one in eight masked, duplicates by chance */
        p->row_ids[i] = random_below(&seed, 8) ? random_below(&seed, p->n_slots) : -1;
    assert_int_equal(hsp_gqa_scratch(&p->shape, n_rows, &p->scratch_bytes), HSP_OK);
    p->scratch = allocate(p->scratch_bytes);
    memset(p->scratch, 0xff, p->scratch_bytes);
}

static void free_problem(struct problem *p) {
    free(p->key_floats);
    free(p->value_floats);
    free(p->query);
    free(p->row_ids);
    free(p->memory);
    free(p->scratch);
}

static int32_t n_tiles(const struct problem *p) {
    return (p->n_rows + HSP_ATTENTION_TILE - 1) / HSP_ATTENTION_TILE;
}

/* [n_heads][value_dim] values, then n_heads logarithms. */
static size_t n_results(const struct problem *p) {
    return (size_t)(p->shape.n_heads * (p->shape.value_dim + 1));
}

static float *combine(const struct problem *p) {
    float *out = allocate(n_results(p) * sizeof *out);
    float *lse = out + (size_t)(p->shape.n_heads * p->shape.value_dim);
    assert_int_equal(hsp_gqa_combine(&p->shape, p->scratch, n_tiles(p), NULL, out, lse), HSP_OK);
    return out;
}

static float *attend(const struct problem *p) {
    assert_int_equal(hsp_gqa_tiles(&p->shape, &p->keys, &p->values, p->query, p->row_ids, p->n_rows, 0, p->scratch),
                     HSP_OK);
    return combine(p);
}

static double score_of(const struct problem *p, int32_t head, int32_t id) {
    const hsp_gqa_shape *s = &p->shape;
    const float *q = p->query + head * s->key_dim;
    const float *k = p->key_floats + (id * s->n_kv_heads + head * s->n_kv_heads / s->n_heads) * s->key_dim;
    double dot = 0.0;
    for (int32_t c = 0; c < s->key_dim; c++)
        dot += (double)q[c] * (double)k[c];
    return dot * (double)s->scale;
}

/* One head, the obvious way; returns the logarithm of the sum. */
static double reference_head(const struct problem *p, int32_t head, double *out) {
    const hsp_gqa_shape *s = &p->shape;
    double top = -INFINITY, sum = 0.0;
    for (int32_t i = 0; i < p->n_rows; i++)
        if (p->row_ids[i] >= 0)
            top = fmax(top, score_of(p, head, p->row_ids[i]));
    for (int32_t c = 0; c < s->value_dim; c++)
        out[c] = 0.0;
    for (int32_t i = 0; i < p->n_rows; i++) {
        int32_t id = p->row_ids[i];
        if (id < 0)
            continue;
        const float *v = p->value_floats + (id * s->n_kv_heads + head * s->n_kv_heads / s->n_heads) * s->value_dim;
        double weight = exp(score_of(p, head, id) - top);
        sum += weight;
        for (int32_t c = 0; c < s->value_dim; c++)
            out[c] += weight * (double)v[c];
    }
    for (int32_t c = 0; c < s->value_dim && sum > 0.0; c++)
        out[c] /= sum;
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

/* A score is a sum of key_dim products, each below 4 and rounded at 2^-24 of itself, over 16 chains, times
 * key_dim^-1/2. Were all errors of one sign it could be off by 4e-5 at 576 channels and 2e-6 at 64; they are not, and
 * the sums stay near key_dim^1/2, so a tenth of that is left. A weight carries the score's error as a relative one, and
 * values are at most 1. A bf16 rounding anywhere on the way would show as 1e-3. */
static void check(const struct problem *p, const float *got) {
    double *expected = allocate((size_t)p->shape.value_dim * sizeof *expected);
    for (int32_t h = 0; h < p->shape.n_heads; h++) {
        double lse = reference_head(p, h, expected), got_lse = (double)got[p->shape.n_heads * p->shape.value_dim + h];
        assert_true(lse == got_lse || fabs(got_lse - lse) < 1e-5);
        for (int32_t c = 0; c < p->shape.value_dim; c++) {
            double x = (double)got[h * p->shape.value_dim + c];
            if (!(fabs(x - expected[c]) < 5e-6))
                fail_msg("%s dtype %d head %d channel %d: %.9g, not %.9g", hsp_ops_target(), p->shape.dtype, h, c, x,
                         expected[c]);
        }
    }
    free(expected);
}

static hsp_gqa_shape shape_of(int32_t n_heads, int32_t n_kv_heads, int32_t key_dim, int32_t value_dim, int32_t dtype) {
    float scale = 1.0f / sqrtf((float)key_dim);
    return (hsp_gqa_shape){sizeof(hsp_gqa_shape), n_heads, n_kv_heads, key_dim, value_dim, dtype, scale};
}

/* Heads, KV heads, key and value channels; rows and slots; rows in a block and padding. */
static const int32_t cases[][8] = {
    {9, 3, 64, 64, 1024, 1500, 1, 0}, {9, 3, 64, 64, 1000, 700, 64, 16}, {4, 4, 128, 128, 130, 300, 64, 256},
    {1, 1, 1, 1, 1, 1, 1, 0},         {6, 1, 40, 24, 65, 80, 7, 4},      {10, 2, 17, 33, 63, 50, 1, 2},
    {8, 1, 96, 48, 64, 64, 16, 0},    {7, 7, 15, 130, 200, 10, 3, 6},    {16, 1, 576, 512, 96, 128, 64, 8},
    {12, 4, 80, 80, 257, 400, 1, 12}, {2, 1, 32, 16, 16, 30, 2, 2},      {4, 2, 48, 95, 300, 5, 64, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void make_case(struct problem *p, int i, int32_t dtype) {
    const int32_t *c = cases[i];
    size_t pad = (size_t)c[7] / bytes_of(dtype) * bytes_of(dtype);
    make_problem(p, shape_of(c[0], c[1], c[2], c[3], dtype), c[5], c[4], c[6], pad, (uint64_t)i + 11);
}

static void equals_reference(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
            struct problem p;
            make_case(&p, i, dtype);
            FOR_EACH_TARGET(target) {
                float *got = attend(&p);
                check(&p, got);
                free(got);
            }
            free_problem(&p);
        }
}

static void same_bits_on_every_target(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
            struct problem p;
            make_case(&p, i, dtype);
            hsp__ops_force_target("baseline");
            float *expected = attend(&p);
            FOR_EACH_TARGET(target) {
                float *got = attend(&p);
                assert_memory_equal(got, expected, n_results(&p) * sizeof *got);
                free(got);
            }
            free(expected);
            free_problem(&p);
        }
}

static void same_bits_with_any_threads(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(9, 3, 64, 64, HSP_BF16), 4096, 4000, 1, 0, 5);
    FOR_EACH_TARGET(target) {
        omp_set_num_threads(1);
        float *expected = attend(&p);
        for (int threads = 2; threads <= 3; threads++) {
            omp_set_num_threads(threads);
            memset(p.scratch, 0xff, p.scratch_bytes);
            float *got = attend(&p);
            assert_memory_equal(got, expected, n_results(&p) * sizeof *got);
            free(got);
        }
        free(expected);
    }
    /* Enough heads and tiles for the combination to go parallel too. */
    free_problem(&p);
    make_problem(&p, shape_of(64, 4, 16, 256, HSP_F32), 300, 40 * 64, 1, 0, 6);
    omp_set_num_threads(1);
    float *expected = attend(&p);
    omp_set_num_threads(3);
    float *got = attend(&p);
    assert_memory_equal(got, expected, n_results(&p) * sizeof *got);
    free(expected);
    free(got);
    free_problem(&p);
}

/* The same rows in selection order at ids 0, 1, 2 .. of a plain array, instead of strewn over blocks. */
static void same_bits_wherever_rows_lie(void **state) {
    (void)state;
    for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
        struct problem strewn, packed;
        make_problem(&strewn, shape_of(9, 3, 72, 40, dtype), 900, 500, 64, 64, 21);
        make_problem(&packed, strewn.shape, 500, 500, 1, 0, 22);
        memcpy(packed.query, strewn.query, (size_t)(9 * 72) * sizeof(float));
        for (int32_t i = 0; i < 500; i++) {
            int32_t id = strewn.row_ids[i];
            packed.row_ids[i] = id < 0 ? -1 : i;
            if (id < 0)
                continue;
            memcpy(row_at(&packed.keys, i), row_at(&strewn.keys, id), strewn.keys.row_bytes);
            memcpy(row_at(&packed.values, i), row_at(&strewn.values, id), strewn.values.row_bytes);
        }
        FOR_EACH_TARGET(target) {
            float *a = attend(&strewn), *b = attend(&packed);
            assert_memory_equal(a, b, n_results(&strewn) * sizeof *a);
            free(a);
            free(b);
        }
        free_problem(&strewn);
        free_problem(&packed);
    }
}

static void run_chunk(const struct problem *p, int32_t first_tile, int32_t tiles) {
    int32_t first = first_tile * HSP_ATTENTION_TILE, n = tiles * HSP_ATTENTION_TILE;
    if (first + n > p->n_rows)
        n = p->n_rows - first;
    assert_int_equal(
        hsp_gqa_tiles(&p->shape, &p->keys, &p->values, p->query, p->row_ids + first, n, first_tile, p->scratch),
        HSP_OK);
}

static void same_bits_in_any_chunks(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(6, 2, 64, 48, HSP_F16), 700, 64 * 9 + 13, 1, 0, 31);
    FOR_EACH_TARGET(target) {
        float *expected = attend(&p);
        for (int32_t tiles = 1; tiles <= 4; tiles++)
            for (int backwards = 0; backwards < 2; backwards++) {
                int32_t n_chunks = (n_tiles(&p) + tiles - 1) / tiles;
                memset(p.scratch, 0xff, p.scratch_bytes);
                for (int32_t i = 0; i < n_chunks; i++)
                    run_chunk(&p, (backwards ? n_chunks - 1 - i : i) * tiles, tiles);
                float *got = combine(&p);
                assert_memory_equal(got, expected, n_results(&p) * sizeof *got);
                free(got);
            }
        free(expected);
    }
    free_problem(&p);
}

/* Masked tiles at the start, in the middle and at the end; the memory of scratch is NaN where no tile wrote. */
static void masked_tiles_add_nothing(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(6, 2, 64, 40, HSP_BF16), 300, 64 * 6 + 5, 1, 0, 41);
    for (int32_t i = 0; i < p.n_rows; i++)
        if (i / 64 == 0 || i / 64 == 3 || i / 64 == 6)
            p.row_ids[i] = -1;
    FOR_EACH_TARGET(target) {
        memset(p.scratch, 0xff, p.scratch_bytes);
        float *got = attend(&p);
        check(&p, got);
        free(got);
    }
    free_problem(&p);
}

static void all_masked_gives_zeros(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(6, 2, 64, 40, HSP_F32), 100, 100, 1, 0, 42);
    for (int32_t i = 0; i < p.n_rows; i++)
        p.row_ids[i] = -1;
    FOR_EACH_TARGET(target)
    for (int32_t tiles = 0; tiles <= n_tiles(&p); tiles += n_tiles(&p)) {
        float out[6 * 40], lse[6];
        assert_int_equal(hsp_gqa_tiles(&p.shape, &p.keys, &p.values, p.query, p.row_ids, p.n_rows, 0, p.scratch),
                         HSP_OK);
        assert_int_equal(hsp_gqa_combine(&p.shape, p.scratch, tiles, NULL, out, lse), HSP_OK);
        for (int i = 0; i < 6 * 40; i++)
            assert_true(out[i] == 0.0f);
        for (int h = 0; h < 6; h++)
            assert_true(isinf(lse[h]) && lse[h] < 0.0f);
    }
    free_problem(&p);
}

/* Scores hundreds apart: the far ones vanish, none overflows. */
static void survives_great_scores(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(4, 2, 64, 64, HSP_F32), 300, 300, 1, 0, 51);
    p.shape.scale = 64.0f;
    FOR_EACH_TARGET(target) {
        float *got = attend(&p);
        for (int32_t h = 0; h < 4; h++) {
            double expected[64], lse = reference_head(&p, h, expected);
            /* scores near 2000, so an error of a few 2^-13 in each, and as much relatively in the weights */
            assert_true(fabs((double)got[4 * 64 + h] - lse) < 4e-3);
            for (int32_t c = 0; c < 64; c++)
                assert_true(fabs((double)got[h * 64 + c] - expected[c]) < 4e-3);
        }
        free(got);
    }
    free_problem(&p);
}

/* A softmax over one row and a copy of it, score difference x, shows e^x: out = e^x / (1 + e^x) for values 1 and 0. */
static void exponential_is_accurate(void **state) {
    (void)state;
    const hsp_gqa_shape shape = shape_of(1, 1, 1, 1, HSP_F32);
    const float one = 1.0f, values[2] = {0.0f, 1.0f};
    const int32_t ids[2] = {0, 1};
    char scratch[256];
    FOR_EACH_TARGET(target)
    for (int i = 0; i <= 20000; i++) {
        float keys[2] = {0.0f, -86.9f * (float)i / 20000.0f}, out, lse;
        hsp_plane_view k = {keys, 4, 4, 4, 1, 0}, v = {(void *)(uintptr_t)values, 4, 4, 4, 1, 0};
        assert_int_equal(hsp_gqa_tiles(&shape, &k, &v, &one, ids, 2, 0, scratch), HSP_OK);
        assert_int_equal(hsp_gqa_combine(&shape, scratch, 1, NULL, &out, &lse), HSP_OK);
        double e = exp((double)keys[1]), expected = e / (1.0 + e);
        /* 2e-7 of the exponential, and a rounding each of the sum and the division */
        assert_true(fabs((double)out - expected) <= (2e-7 + 0x1p-23) * expected);
    }
}

static void nan_comes_out_as_nan(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(2, 2, 32, 32, HSP_F32), 50, 50, 1, 0, 61);
    p.query[3] = NAN;
    FOR_EACH_TARGET(target) {
        float *got = attend(&p);
        for (int c = 0; c < 32; c++)
            assert_true(isnan(got[c]) && !isnan(got[32 + c]));
        free(got);
    }
    free_problem(&p);
}

static int try_tiles(const struct problem *p, hsp_gqa_shape shape, hsp_plane_view keys, int32_t n_rows,
                     int32_t first_tile) {
    return hsp_gqa_tiles(&shape, &keys, &p->values, p->query, p->row_ids, n_rows, first_tile, p->scratch);
}

static void refuses_shapes(void **state) {
    (void)state;
    hsp_gqa_shape good = shape_of(4, 2, 64, 64, HSP_BF16), bad[8];
    size_t bytes = 12345;
    float out = 1.0f, lse = 2.0f;
    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].struct_size -= 1;
    bad[1].n_heads = 0;
    bad[2].n_kv_heads = 3;
    bad[3].key_dim = -64;
    bad[4].value_dim = 0;
    bad[5].dtype = 3;
    bad[6].n_kv_heads = 0;
    bad[7].key_dim = 1 << 20;
    for (int i = 0; i < 8; i++) {
        int expected = i == 7 ? HSP_ELIMIT : HSP_EINVAL;
        assert_int_equal(hsp_gqa_scratch(&bad[i], 64, &bytes), expected);
        assert_int_equal(hsp_gqa_combine(&bad[i], &bytes, 1, NULL, &out, &lse), expected);
    }
    assert_int_equal(hsp_gqa_scratch(NULL, 64, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_gqa_scratch(&good, -1, &bytes), HSP_EINVAL);
    assert_int_equal(hsp_gqa_combine(&good, &bytes, -1, NULL, &out, &lse), HSP_EINVAL);
    assert_int_equal(hsp_gqa_combine(&good, NULL, 1, NULL, &out, &lse), HSP_EINVAL);
    assert_true(bytes == 12345 && out == 1.0f && lse == 2.0f);
}

static void refuses_planes_and_counts(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(4, 2, 64, 64, HSP_BF16), 64, 64, 1, 0, 71);
    char *before = allocate(p.scratch_bytes);
    memcpy(before, p.scratch, p.scratch_bytes);
    hsp_gqa_shape no_kv_head = p.shape;
    no_kv_head.n_kv_heads = 0;
    hsp_plane_view short_row = p.keys, no_base = p.keys, no_block = p.keys;
    short_row.row_bytes -= 2;
    no_base.base = NULL;
    no_block.rows_per_block = 0;
    assert_int_equal(try_tiles(&p, no_kv_head, p.keys, 64, 0), HSP_EINVAL);
    assert_int_equal(try_tiles(&p, p.shape, short_row, 64, 0), HSP_EINVAL);
    assert_int_equal(try_tiles(&p, p.shape, no_base, 64, 0), HSP_EINVAL);
    assert_int_equal(try_tiles(&p, p.shape, no_block, 64, 0), HSP_EINVAL);
    assert_int_equal(try_tiles(&p, p.shape, p.keys, -1, 0), HSP_EINVAL);
    assert_int_equal(try_tiles(&p, p.shape, p.keys, 64, -1), HSP_EINVAL);
    assert_int_equal(try_tiles(&p, p.shape, p.keys, 64, INT32_MAX / 64), HSP_ELIMIT);
    assert_int_equal(try_tiles(&p, p.shape, p.keys, 0, 0), HSP_OK);
    assert_memory_equal(before, p.scratch, p.scratch_bytes);
    free(before);
    free_problem(&p);
}

/* A whole tile of scores that are -infinity weighs nothing, as it would among others; a sink of +infinity leaves
 * nothing, whatever the values are. */
static void infinities_do_not_spread(void **state) {
    (void)state;
    const hsp_gqa_shape shape = {sizeof shape, 1, 1, 1, 1, HSP_F32, 1.0f};
    float keys[128], values[128], out, lse, scratch[512];
    const float query = 2.0f, sink = INFINITY;
    int32_t ids[128];
    size_t bytes;
    for (int i = 0; i < 128; i++) {
        keys[i] = i < 64 ? -3e38f : 0.0f;
        values[i] = 1.0f;
        ids[i] = i;
    }
    const hsp_plane_view key = {keys, 4, 4, 4, 1, 0}, value = {values, 4, 4, 4, 1, 0};
    assert_int_equal(hsp_gqa_scratch(&shape, 128, &bytes), HSP_OK);
    assert_true(bytes <= sizeof scratch);
    FOR_EACH_TARGET(target) {
        assert_int_equal(hsp_gqa_tiles(&shape, &key, &value, &query, ids, 128, 0, scratch), HSP_OK);
        assert_int_equal(hsp_gqa_combine(&shape, scratch, 2, NULL, &out, &lse), HSP_OK);
        assert_true(out == 1.0f && fabsf(lse - logf(64.0f)) < 1e-5f);
        assert_int_equal(hsp_gqa_combine(&shape, scratch, 2, &sink, &out, NULL), HSP_OK);
        assert_true(out == 0.0f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(infinities_do_not_spread),
        cmocka_unit_test(same_bits_on_every_target),
        cmocka_unit_test(same_bits_with_any_threads),
        cmocka_unit_test(same_bits_wherever_rows_lie),
        cmocka_unit_test(same_bits_in_any_chunks),
        cmocka_unit_test(masked_tiles_add_nothing),
        cmocka_unit_test(all_masked_gives_zeros),
        cmocka_unit_test(survives_great_scores),
        cmocka_unit_test(exponential_is_accurate),
        cmocka_unit_test(nan_comes_out_as_nan),
        cmocka_unit_test(refuses_shapes),
        cmocka_unit_test(refuses_planes_and_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
