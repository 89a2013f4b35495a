/* SPDX-License-Identifier: Apache-2.0 */
/* The k greatest of given scores against a radix selection on the CPU: every size of cluster, ties, NaN, infinities. */
#include "gpu_select.h"

#include "../../ops/select.h"
#include "../../ops/top.h"

#include <math.h>

static void expect(const float *scores, int32_t n, int32_t k, int32_t *out) {
    uint32_t *ranks = allocate((size_t)n * sizeof *ranks);
    for (int32_t i = 0; i < n; i++)
        ranks[i] = hsp__rank_of(scores[i] + 0.0f); /* -0 becomes 0 */
    hsp__emit_blocks(ranks, 1, n, k, out);
    free(ranks);
}

/* What kind of numbers a row has. */
enum kind { EVEN, FEW, EQUAL, CLOSE, WILD, FALLING, N_KINDS };

static float score_of(enum kind kind, int32_t i, uint64_t *seed) {
    static const float wild[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f};
    float x = random_float(seed);
    if (kind == FEW)
        return (float)random_below(seed, 5) - 2.0f;
    if (kind == EQUAL)
        return -1.5f;
    if (kind == CLOSE) /* differ in the last digit only */
        return 1.0f + (float)random_below(seed, 200) * 0x1p-23f;
    if (kind == WILD && random_below(seed, 3))
        return wild[random_below(seed, 10)];
    return kind == FALLING ? (float)-i : x;
}

/* Each entry a kind; every row n long, of max_tokens. */
static void check(int32_t max_tokens, int32_t n, int32_t k, int32_t n_queries, uint64_t seed) {
    int32_t batch = N_KINDS + 1, slot[N_KINDS + 1], n_tokens[2 * (N_KINDS + 1)];
    size_t floats = (size_t)batch * (size_t)n_queries * (size_t)max_tokens;
    size_t ints = (size_t)batch * (size_t)n_queries * (size_t)k;
    float *scores = allocate(floats * sizeof *scores);
    int32_t *got = allocate(ints * sizeof *got), *want = allocate((size_t)k * sizeof *want);
    for (int32_t b = 0; b < batch; b++) {
        slot[b] = b < N_KINDS ? b : -1;
        for (int32_t q = 0; q < n_queries; q++) {
            n_tokens[b * n_queries + q] = n - q > 0 ? n - q : 0;
            float *row = scores + (size_t)(b * n_queries + q) * (size_t)max_tokens;
            for (int32_t i = 0; i < max_tokens; i++) /* beyond n too: nothing there may be chosen */
                row[i] = i < n - q ? score_of((enum kind)b, i, &seed) : INFINITY;
        }
    }
    hsp_gpu_batch b = make_batch(batch, n_queries, max_tokens, slot, n_tokens);
    float *device_scores = on_device(scores, floats * sizeof *scores);
    int32_t *out = on_device(NULL, ints * sizeof *out);
    assert_int_equal(hsp_gpu_top(&b, device_scores, k, out, test_stream), HSP_OK);
    from_device(got, out, ints * sizeof *got);
    for (int32_t i = 0; i < batch * n_queries; i++) {
        if (slot[i / n_queries] < 0)
            hsp__emit_none((size_t)k, want);
        else
            expect(scores + (size_t)i * (size_t)max_tokens, n_tokens[i], k, want);
        assert_memory_equal(got + (size_t)i * (size_t)k, want, (size_t)k * sizeof *want);
    }
    free_batch(&b);
    free_device(device_scores);
    free_device(out);
    free(scores);
    free(got);
    free(want);
}

static void small_rows(void **state) {
    (void)state;
    need_device();
    for (int32_t n = 0; n <= 130; n += n < 6 ? 1 : 31)
        for (int32_t k = 1; k <= n + 2; k += 1 + n / 4)
            check(130, n, k, 1 + n % 2, (uint64_t)(n * 1000 + k));
}

static void every_cluster(void **state) {
    (void)state;
    need_device();
    static const int32_t sizes[] = {512, 4097, 16384, 16385, 40000, 65537, 131072, 200001};
    static const int32_t ks[] = {1, 511, 512, 1024, 2048, 8192};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = i % 2; j < sizeof ks / sizeof *ks; j += 2) {
            check(sizes[i], sizes[i], ks[j], 1, i * 100 + j);
            check(sizes[i], sizes[i] / 3, ks[j], 2, i * 100 + j + 50); /* some blocks have nothing */
        }
}

/* More ranks than the blocks of a cluster keep. */
static void a_million(void **state) {
    (void)state;
    need_device();
    check((1 << 20) + 5, (1 << 20) + 5, 2048, 1, 7);
    check((1 << 20) + 5, 1 << 20, 8192, 1, 8);
    check((1 << 20) + 5, 3000, 2048, 1, 9);
}

static void greater_counts_are_cut(void **state) {
    (void)state;
    need_device();
    const int32_t slot[2] = {0, 1}, n_tokens[2] = {5000, -3};
    float scores[200];
    int32_t got[20], want[20];
    uint64_t seed = 5;
    for (int i = 0; i < 200; i++)
        scores[i] = random_float(&seed);
    hsp_gpu_batch b = make_batch(2, 1, 100, slot, n_tokens);
    float *device_scores = on_device(scores, sizeof scores);
    int32_t *out = on_device(NULL, sizeof got);
    assert_int_equal(hsp_gpu_top(&b, device_scores, 10, out, test_stream), HSP_OK);
    from_device(got, out, sizeof got);
    expect(scores, 100, 10, want);
    hsp__emit_none(10, want + 10);
    assert_memory_equal(got, want, sizeof got);
    free_batch(&b);
    free_device(device_scores);
    free_device(out);
}

static void refusals(void **state) {
    (void)state;
    int32_t x[4] = {0};
    float s[4] = {0};
    hsp_gpu_batch good = {sizeof good, 1, 1, 4, x, x}, bad[7];
    for (int i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].struct_size--;
    bad[1].batch = -1;
    bad[2].n_queries = 0;
    bad[3].max_tokens = -1;
    bad[4].slot = NULL;
    bad[5].n_tokens = NULL;
    bad[6].batch = 65536;
    for (int i = 0; i < 7; i++)
        assert_int_equal(hsp_gpu_top(&bad[i], s, 1, x, NULL), i == 6 ? HSP_ELIMIT : HSP_EINVAL);
    assert_int_equal(hsp_gpu_top(NULL, s, 1, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_top(&good, s, 0, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_top(&good, NULL, 1, x, NULL), HSP_EINVAL);
    assert_int_equal(hsp_gpu_top(&good, s, 1, NULL, NULL), HSP_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_rows), cmocka_unit_test(every_cluster),
        cmocka_unit_test(a_million),  cmocka_unit_test(greater_counts_are_cut),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
