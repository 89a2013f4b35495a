/* SPDX-License-Identifier: Apache-2.0
 *
 * Quest against a plain reference: statistics bit by bit, scores in double, and the choice by a full sort.
 */
#include "ops_common.h"

#include "kernels_select.h"

#include <math.h>
#include <omp.h>

struct problem {
    hsp_quest_shape shape;
    int32_t n_tokens, n_pages, channels;
    float *floats; /* keys [n_tokens][channels] after rounding */
    char *keys;    /* the same in dtype, key_stride apart */
    size_t key_stride, stats_bytes;
    void *stats, *scratch;
    float *query; /* [n_heads][head_dim] */
};

static void make_problem(struct problem *p, hsp_quest_shape shape, int32_t n_tokens, size_t pad, uint64_t seed) {
    size_t scratch_bytes, bytes = bytes_of(shape.dtype);
    memset(p, 0, sizeof *p);
    p->shape = shape;
    p->n_tokens = n_tokens;
    p->n_pages = (n_tokens + shape.page_tokens - 1) / shape.page_tokens;
    p->channels = shape.n_kv_heads * shape.head_dim;
    size_t n = (size_t)p->channels;
    p->key_stride = n * bytes + pad;
    p->floats = allocate((size_t)n_tokens * n * sizeof(float));
    p->keys = allocate((size_t)n_tokens * p->key_stride);
    for (int32_t t = 0; t < n_tokens; t++) {
        float *row = p->floats + (size_t)t * n;
        char *key = p->keys + (size_t)t * p->key_stride;
        for (size_t c = 0; c < n; c++)
            row[c] = random_float(&seed);
        assert_int_equal(hsp_pack(shape.dtype, row, n, key), HSP_OK);
        assert_int_equal(hsp_unpack(shape.dtype, key, n, row), HSP_OK);
    }
    p->query = allocate((size_t)(shape.n_heads * shape.head_dim) * sizeof(float));
    for (int32_t i = 0; i < shape.n_heads * shape.head_dim; i++)
        p->query[i] = random_float(&seed);
    assert_int_equal(hsp_quest_bytes(&shape, n_tokens, &p->stats_bytes), HSP_OK);
    assert_int_equal(hsp_quest_scratch(&shape, n_tokens, &scratch_bytes), HSP_OK);
    assert_int_equal(p->stats_bytes, (size_t)p->n_pages * 2 * n * bytes);
    p->stats = allocate(p->stats_bytes);
    memset(p->stats, 0xff, p->stats_bytes);
    p->scratch = allocate(scratch_bytes);
}

static void free_problem(struct problem *p) {
    free(p->floats);
    free(p->keys);
    free(p->stats);
    free(p->scratch);
    free(p->query);
}

static void update(struct problem *p, int32_t first, int32_t n) {
    assert_int_equal(
        hsp_quest_update(&p->shape, p->stats, p->keys + (size_t)first * p->key_stride, p->key_stride, first, n),
        HSP_OK);
}

/* Minimum (sign -1) or maximum (sign 1) of a channel over a page. */
static float extreme(const struct problem *p, int32_t page, int32_t channel, float sign) {
    float best = -INFINITY;
    for (int32_t t = page * p->shape.page_tokens; t < p->n_tokens && t < (page + 1) * p->shape.page_tokens; t++)
        best = fmaxf(best, sign * p->floats[t * p->channels + channel]);
    return sign * best;
}

static void check_stats(const struct problem *p) {
    size_t n = (size_t)p->channels, bytes = bytes_of(p->shape.dtype);
    float *got = allocate(2 * n * sizeof *got);
    for (int32_t page = 0; page < p->n_pages; page++) {
        const char *stats = (const char *)p->stats + (size_t)page * 2 * n * bytes;
        assert_int_equal(hsp_unpack(p->shape.dtype, stats, 2 * n, got), HSP_OK);
        for (int32_t c = 0; c < p->channels; c++) {
            assert_true(got[c] == extreme(p, page, c, -1.0f));
            assert_true(got[p->channels + c] == extreme(p, page, c, 1.0f));
        }
    }
    free(got);
}

static double reference_score(const struct problem *p, int32_t page) {
    int32_t group = p->shape.n_heads / p->shape.n_kv_heads, dim = p->shape.head_dim;
    double score = 0.0;
    for (int32_t c = 0; c < p->channels; c++) {
        double mean = 0.0;
        for (int32_t h = 0; h < group; h++)
            mean += (double)p->query[(c / dim * group + h) * dim + c % dim];
        mean /= group;
        score += fmax(mean * (double)extreme(p, page, c, 1.0f), mean * (double)extreme(p, page, c, -1.0f));
    }
    return score;
}

/* Scores are sums of up to 384 products below 1, in 16 chains: off by less than this. */
#define SCORE_ERROR 1e-4

static void check_scores(const struct problem *p) {
    float *scores = allocate((size_t)p->n_pages * sizeof *scores);
    assert_int_equal(hsp_quest_scores(&p->shape, p->stats, p->n_tokens, p->query, scores, p->scratch), HSP_OK);
    for (int32_t page = 0; page < p->n_pages; page++)
        assert_true(fabs(reference_score(p, page) - (double)scores[page]) <= SCORE_ERROR);
    free(scores);
}

/* The selection is whole pages, ascending, with the newest; no page left out beats one taken by more than rounding. */
static void check_selection(const struct problem *p, int32_t k, const int32_t *selection) {
    int32_t pt = p->shape.page_tokens, n_chosen = k / pt < p->n_pages ? k / pt : p->n_pages, n = 0, taken = 0;
    char *in = allocate((size_t)p->n_pages);
    double worst_in = INFINITY, best_out = -INFINITY;
    memset(in, 0, (size_t)p->n_pages);
    for (int32_t last = -1; n < k && selection[n] >= 0; taken++) {
        int32_t page = selection[n] / pt;
        assert_true(page > last && page < p->n_pages);
        for (int32_t t = page * pt; t < p->n_tokens && t < (page + 1) * pt; t++)
            assert_int_equal(selection[n++], t);
        in[page] = 1;
        last = page;
    }
    while (n < k)
        assert_int_equal(selection[n++], -1);
    assert_int_equal(taken, n_chosen);
    assert_true(in[p->n_pages - 1]);
    for (int32_t page = 0; page < p->n_pages - 1; page++) {
        double score = reference_score(p, page);
        worst_in = in[page] ? fmin(worst_in, score) : worst_in;
        best_out = in[page] ? best_out : fmax(best_out, score);
    }
    assert_true(best_out <= worst_in + SCORE_ERROR);
    free(in);
}

static void select_tokens(const struct problem *p, int32_t k, int32_t *selection_out) {
    assert_int_equal(hsp_quest_select(&p->shape, p->stats, p->n_tokens, p->query, k, selection_out, p->scratch),
                     HSP_OK);
}

static hsp_quest_shape shape_of(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim, int32_t page, int32_t dtype) {
    return (hsp_quest_shape){sizeof(hsp_quest_shape), n_heads, n_kv_heads, head_dim, page, dtype};
}

/* Heads, KV heads, channels, page, tokens, pages wanted, padding of key rows. */
static const int32_t cases[][7] = {
    {9, 3, 64, 16, 1000, 20, 0}, {4, 4, 40, 16, 333, 5, 4}, {6, 2, 17, 5, 101, 1, 6},    {1, 1, 1, 1, 50, 7, 0},
    {2, 1, 128, 64, 64, 3, 8},   {3, 3, 15, 16, 17, 2, 2},  {8, 2, 96, 16, 2049, 64, 0}, {2, 2, 16, 16, 1, 1, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void make_case(struct problem *p, int i, int32_t dtype) {
    const int32_t *c = cases[i];
    make_problem(p, shape_of(c[0], c[1], c[2], c[3], dtype), c[4], (size_t)c[6] / bytes_of(dtype) * bytes_of(dtype),
                 (uint64_t)i + 3);
}

static void equals_reference(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
            struct problem p;
            make_case(&p, i, dtype);
            int32_t k = cases[i][5] * p.shape.page_tokens, *selection = allocate((size_t)k * sizeof *selection);
            FOR_EACH_TARGET(target) {
                memset(p.stats, 0xff, p.stats_bytes);
                update(&p, 0, p.n_tokens);
                check_stats(&p);
                check_scores(&p);
                select_tokens(&p, k, selection);
                check_selection(&p, k, selection);
            }
            free(selection);
            free_problem(&p);
        }
}

/* Token by token, or in uneven pieces: the same statistics as all at once. */
static void pieces_give_the_same(void **state) {
    (void)state;
    for (int32_t dtype = HSP_F32; dtype <= HSP_BF16; dtype++) {
        struct problem p;
        make_problem(&p, shape_of(6, 2, 24, 16, dtype), 300, 0, 9);
        char *whole = allocate(p.stats_bytes);
        FOR_EACH_TARGET(target)
        for (int32_t piece = 1; piece < 40; piece += 6) {
            update(&p, 0, p.n_tokens);
            memcpy(whole, p.stats, p.stats_bytes);
            memset(p.stats, 0xff, p.stats_bytes);
            for (int32_t t = 0; t < p.n_tokens; t += piece)
                update(&p, t, t + piece < p.n_tokens ? piece : p.n_tokens - t);
            assert_memory_equal(whole, p.stats, p.stats_bytes);
        }
        free(whole);
        free_problem(&p);
    }
}

/* Cut inside a page, go on with other keys: fed from the start of the page, nothing of the old tokens remains. */
static void truncation_leaves_no_trace(void **state) {
    (void)state;
    struct problem old, new;
    make_problem(&old, shape_of(6, 2, 24, 16, HSP_BF16), 100, 0, 13);
    make_problem(&new, old.shape, 100, 0, 14);
    memcpy(new.keys, old.keys, 41 * old.key_stride);
    memcpy(new.floats, old.floats, (size_t)(41 * old.channels) * sizeof(float));
    FOR_EACH_TARGET(target) {
        update(&old, 0, 100);
        memcpy(new.stats, old.stats, old.stats_bytes);
        update(&new, 32, 68); /* 41 tokens stay; their page begins at 32 */
        check_stats(&new);
    }
    free_problem(&old);
    free_problem(&new);
}

static void same_bits_with_any_threads_and_target(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(8, 4, 96, 16, HSP_F16), 16 * 900 - 5, 0, 17);
    int32_t k = 16 * 100, *expected = allocate((size_t)k * sizeof *expected);
    int32_t *got = allocate((size_t)k * sizeof *got);
    char *stats = allocate(p.stats_bytes);
    size_t n_scores = (size_t)p.channels + (size_t)p.n_pages; /* scratch, too: the scores to the last bit */
    float *scratch = allocate(n_scores * sizeof *scratch);
    hsp__ops_force_target("baseline");
    omp_set_num_threads(1);
    update(&p, 0, p.n_tokens);
    select_tokens(&p, k, expected);
    memcpy(stats, p.stats, p.stats_bytes);
    memcpy(scratch, p.scratch, n_scores * sizeof *scratch);
    FOR_EACH_TARGET(target)
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        memset(p.stats, 0xff, p.stats_bytes);
        update(&p, 0, p.n_tokens);
        select_tokens(&p, k, got);
        assert_memory_equal(stats, p.stats, p.stats_bytes);
        assert_memory_equal(expected, got, (size_t)k * sizeof *got);
        assert_memory_equal(scratch, p.scratch, n_scores * sizeof *scratch);
    }
    free(expected);
    free(got);
    free(stats);
    free(scratch);
    free_problem(&p);
}

/* One channel, pages of one token, query 1: the score of a page is its key. */
static void select_from(const float *keys, int32_t n, float query, int32_t k, int32_t *selection_out) {
    struct problem p;
    make_problem(&p, shape_of(1, 1, 1, 1, HSP_F32), n, 0, 1);
    memcpy(p.keys, keys, (size_t)n * sizeof *keys);
    p.query[0] = query;
    update(&p, 0, n);
    select_tokens(&p, k, selection_out);
    free_problem(&p);
}

static void ties_go_to_the_lower_page(void **state) {
    (void)state;
    const float keys[8] = {0.0f, 2.0f, 2.0f, -0.0f, 2.0f, 0.0f, 2.0f, -5.0f};
    const int32_t three[3] = {1, 2, 7}, six[6] = {0, 1, 2, 4, 6, 7}, seven[7] = {0, 1, 2, 3, 4, 6, 7};
    int32_t got[7];
    FOR_EACH_TARGET(target) {
        select_from(keys, 8, 1.0f, 3, got);
        assert_memory_equal(got, three, sizeof three);
        select_from(keys, 8, 1.0f, 6, got);
        assert_memory_equal(got, six, sizeof six);
        select_from(keys, 8, 1.0f, 7, got); /* the two zeros are equal */
        assert_memory_equal(got, seven, sizeof seven);
    }
}

static void newest_page_is_always_in(void **state) {
    (void)state;
    const float keys[5] = {9.0f, INFINITY, 8.0f, 7.0f, -INFINITY};
    const int32_t one[1] = {4}, two[2] = {1, 4};
    int32_t got[2];
    FOR_EACH_TARGET(target) {
        select_from(keys, 5, 1.0f, 1, got);
        assert_memory_equal(got, one, sizeof one);
        select_from(keys, 5, 1.0f, 2, got);
        assert_memory_equal(got, two, sizeof two);
    }
}

static void nan_ranks_lowest(void **state) {
    (void)state;
    const float keys[6] = {NAN, -3.0f, -INFINITY, -2.0f, NAN, 0.0f};
    const int32_t four[4] = {1, 2, 3, 5}, five[5] = {0, 1, 2, 3, 5}, nan_query[3] = {0, 1, 5};
    int32_t got[5];
    FOR_EACH_TARGET(target) {
        select_from(keys, 6, 1.0f, 4, got);
        assert_memory_equal(got, four, sizeof four);
        select_from(keys, 6, 1.0f, 5, got);
        assert_memory_equal(got, five, sizeof five);
        select_from(keys, 6, NAN, 3, got); /* all alike: the lowest pages and the newest */
        assert_memory_equal(got, nan_query, sizeof nan_query);
    }
}

/* Ranks with few distinct values, against counting: a selection method that loses count shows here. */
static void many_ties_against_a_sort(void **state) {
    (void)state;
    float keys[500];
    int32_t got[500], expected[500];
    for (int32_t k = 1; k <= 500; k += 13) {
        uint64_t seed = (uint64_t)k;
        for (int i = 0; i < 500; i++)
            keys[i] = (float)(random_below(&seed, 7) - 3) * (i % 2 ? 1.0f : 1e-20f);
        select_from(keys, 500, 1.0f, k, got);
        int32_t n = 0;
        for (int32_t i = 0; i < 500; i++) {
            int32_t better = i != 499; /* page 499 beats all */
            for (int32_t j = 0; j < 499; j++)
                better += keys[j] > keys[i] || (keys[j] == keys[i] && j < i);
            if (i == 499 || better < k)
                expected[n++] = i;
        }
        assert_int_equal(n, k);
        assert_memory_equal(got, expected, (size_t)k * sizeof *got);
    }
}

/* Group of one, one KV head: no key of a page has a product with the query above the page's score. */
static void score_is_an_upper_bound(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(1, 1, 48, 16, HSP_F32), 16 * 20, 0, 23);
    FOR_EACH_TARGET(target) {
        update(&p, 0, p.n_tokens);
        float scores[20];
        hsp__ops()->select->page_scores[HSP_F32](p.query, p.stats, 48 * sizeof(float), 2 * 48 * sizeof(float), 20, 48,
                                                 scores);
        for (int32_t t = 0; t < p.n_tokens; t++) {
            double dot = 0.0;
            for (int32_t c = 0; c < 48; c++)
                dot += (double)p.query[c] * (double)p.floats[t * 48 + c];
            assert_true(dot <= (double)scores[t / 16] + 1e-5);
            assert_true(fabs(reference_score(&p, t / 16) - (double)scores[t / 16]) < 1e-5);
        }
    }
    free_problem(&p);
}

static void refuses_shapes(void **state) {
    (void)state;
    hsp_quest_shape bad[8];
    size_t bytes = 4321;
    int32_t selection[16] = {77};
    float query[64] = {0};
    for (int i = 0; i < 8; i++)
        bad[i] = shape_of(4, 2, 16, 16, HSP_BF16);
    bad[0].struct_size += 8;
    bad[1].n_heads = 5;
    bad[2].n_kv_heads = 0;
    bad[3].head_dim = 0;
    bad[4].page_tokens = -16;
    bad[5].dtype = -1;
    bad[6].n_heads = -4;
    bad[7].head_dim = 1 << 20;
    for (int i = 0; i < 8; i++) {
        int expected = i == 7 ? HSP_ELIMIT : HSP_EINVAL;
        char before[64], stats[64];
        memset(before, 3, sizeof before);
        memset(stats, 3, sizeof stats);
        assert_int_equal(hsp_quest_bytes(&bad[i], 16, &bytes), expected);
        assert_int_equal(hsp_quest_scratch(&bad[i], 16, &bytes), expected);
        assert_int_equal(hsp_quest_update(&bad[i], stats, query, 64, 0, 1), expected);
        assert_int_equal(hsp_quest_select(&bad[i], stats, 16, query, 16, selection, stats), expected);
        assert_memory_equal(before, stats, sizeof stats);
    }
    assert_true(bytes == 4321 && selection[0] == 77);
}

static void refuses_counts(void **state) {
    (void)state;
    struct problem p;
    make_problem(&p, shape_of(4, 2, 16, 16, HSP_F32), 40, 0, 29);
    int32_t selection[32] = {77};
    float scores[3];
    const hsp_quest_shape *s = &p.shape;
    assert_int_equal(hsp_quest_select(s, p.stats, 40, p.query, 0, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_select(s, p.stats, 40, p.query, -16, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_select(s, p.stats, 40, p.query, 24, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_select(s, p.stats, -1, p.query, 32, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_select(s, NULL, 40, p.query, 32, selection, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_scores(s, NULL, 40, p.query, scores, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_scores(s, p.stats, 40, p.query, NULL, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_scores(s, p.stats, -1, p.query, scores, p.scratch), HSP_EINVAL);
    assert_int_equal(hsp_quest_update(s, p.stats, p.keys, p.key_stride, -1, 2), HSP_EINVAL);
    assert_int_equal(hsp_quest_update(s, p.stats, p.keys, p.key_stride, 0, -2), HSP_EINVAL);
    assert_int_equal(hsp_quest_update(s, p.stats, p.keys, p.key_stride, INT32_MAX, 2), HSP_ELIMIT);
    assert_int_equal(selection[0], 77);
    assert_int_equal(hsp_quest_select(s, p.stats, 0, p.query, 32, selection, p.scratch), HSP_OK);
    for (int i = 0; i < 32; i++)
        assert_int_equal(selection[i], -1);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(pieces_give_the_same),
        cmocka_unit_test(truncation_leaves_no_trace),
        cmocka_unit_test(same_bits_with_any_threads_and_target),
        cmocka_unit_test(ties_go_to_the_lower_page),
        cmocka_unit_test(newest_page_is_always_in),
        cmocka_unit_test(nan_ranks_lowest),
        cmocka_unit_test(many_ties_against_a_sort),
        cmocka_unit_test(score_is_an_upper_bound),
        cmocka_unit_test(refuses_shapes),
        cmocka_unit_test(refuses_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
