/* SPDX-License-Identifier: Apache-2.0 */
/* What `hisparse sweep` counts is what a cache does: miss for miss against the cpu backend, the best possible against
 * every possible choice, and the policies the library does not have against cases worked out by hand. */
#include "with_cmocka.h"

#include "hisparse.h"
#include "sweep.h"
#include "tools.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

volatile int tool_interrupted;

int tool_fail(int code, const char *format, ...) {
    (void)format; /* nothing is to be read here */
    return code;
}

static uint64_t draws;

static int32_t below(int32_t n) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((draws >> 33) % (uint64_t)n);
}

/* ------------------------------------------------------------------------------------------------------- traces -- */

enum { STEPS = 60, LAYERS = 2, SEATS = 3, MOST_K = 24, CONTEXT = 300 };

typedef struct made {
    int32_t k, lengths[STEPS][SEATS], selections[STEPS][LAYERS][SEATS][MOST_K];
    trace *t;
} made;

/* Tokens near those of the step before, far ones, the newest, repetitions and -1. */
static int32_t draw_token(const int32_t *before, int32_t k, int32_t length) {
    switch (below(8)) {
    case 0:
        return -1;
    case 1:
        return length - 1 - below(length < 12 ? length : 12);
    case 2:
        return below(length);
    default:
        return before ? before[below(k)] : below(length);
    }
}

/* Requests grow by 0 or 1; the one in the middle ends and another takes its place. */
static void draw_lengths(made *m) {
    for (int s = 0; s < STEPS; s++)
        for (int r = 0; r < SEATS; r++) {
            int32_t before = s ? m->lengths[s - 1][r] : 0;
            int gone = r == 1 && (s % 20 == 13 || s % 20 == 14);
            m->lengths[s][r] = gone ? 0 : before == 0 ? 20 + below(100) : before + (below(4) > 0);
        }
}

static made *make_trace(int32_t k, uint64_t seed) {
    static const char *const note[TRACE_NOTES] = {NULL};
    const trace_shape shape = {STEPS, LAYERS, SEATS, k, 0};
    char error[512];
    made *m = calloc(1, sizeof *m);
    assert_non_null(m);
    draws = seed;
    m->k = k;
    draw_lengths(m);
    unlink("sweep.trace");
    trace_writer *w = trace_create("sweep.trace", &shape, note);
    assert_non_null(w);
    for (int s = 0; s < STEPS; s++) {
        int32_t packed[LAYERS * SEATS * MOST_K], *out = packed;
        for (int l = 0; l < LAYERS; l++)
            for (int r = 0; r < SEATS; r++)
                for (int32_t e = 0; e < k; e++) {
                    int32_t length = m->lengths[s][r];
                    int32_t *before = s && m->lengths[s - 1][r] && length ? m->selections[s - 1][l][r] : NULL;
                    m->selections[s][l][r][e] = *out++ = length ? draw_token(before, k, length) : -1;
                }
        assert_int_equal(trace_append(w, m->lengths[s], packed, NULL, NULL), TOOL_OK);
    }
    assert_int_equal(trace_finish(w, TOOL_OK), TOOL_OK);
    m->t = trace_open("sweep.trace", error, sizeof error);
    assert_non_null(m->t);
    unlink("sweep.trace"); /* it stays open */
    return m;
}

static void unmake(made *m) {
    trace_close(m->t);
    free(m);
}

/* ------------------------------------------------------------------------------------------------ against a cache --
 */

static hsp_cache *open_cache(const char *backend, int policy, int32_t k, int32_t n_slots, int32_t ring_rows) {
    hsp_config config;
    hsp_cache *cache = NULL;
    hsp_config_init(&config, sizeof config);
    assert_int_equal(hsp_config_set(&config, "planes", "4"), HSP_OK);
    assert_int_equal(hsp_config_set(&config, "backend", backend), HSP_OK);
    config.n_layers = LAYERS;
    config.max_requests = config.max_batch = SEATS;
    config.max_context = CONTEXT;
    config.host_tokens = (int64_t)SEATS * CONTEXT;
    config.n_slots = n_slots;
    config.ring_rows = ring_rows;
    config.max_k = k;
    config.policy = policy;
    config.n_threads = 1;
    if (hsp_open(&config, &cache) != HSP_OK)
        fail_msg("%s", hsp_last_error(NULL));
    return cache;
}

/* Retire and admit as the lengths say; what each request grows by is in n_new. */
static void seat(hsp_cache *cache, const made *m, int s, int32_t *requests, int32_t *n_new) {
    static float rows[CONTEXT];
    const hsp_row_source source = {.plane = {rows}};
    for (int r = 0; r < SEATS; r++) {
        int32_t before = s ? m->lengths[s - 1][r] : 0, length = m->lengths[s][r];
        n_new[r] = before && length ? length - before : length > 0;
        if (before && !length) {
            assert_int_equal(hsp_retire(cache, requests[r]), HSP_OK);
            requests[r] = -1;
        }
        if (before || !length)
            continue;
        assert_int_equal(hsp_admit(cache, CONTEXT, &requests[r]), HSP_OK);
        for (int l = 0; l < LAYERS; l++)
            assert_int_equal(hsp_fill(cache, requests[r], l, 0, length - 1, &source, NULL), HSP_OK);
    }
}

static uint64_t misses_of(hsp_cache *cache, int32_t request) {
    hsp_counters counters = {0};
    if (request >= 0)
        assert_int_equal(hsp_request_counters(cache, request, &counters), HSP_OK);
    return counters.misses;
}

/* misses_out [LAYERS][SEATS][STEPS] */
static void run_cache(hsp_cache *cache, const made *m, uint32_t *misses_out) {
    int32_t requests[SEATS] = {-1, -1, -1}, n_new[SEATS], ids[SEATS * MOST_K];
    float rows[SEATS] = {0};
    const hsp_row_source source = {.plane = {rows}};
    for (int s = 0; s < STEPS; s++) {
        seat(cache, m, s, requests, n_new);
        assert_int_equal(hsp_step_begin(cache, requests, n_new, SEATS, NULL), HSP_OK);
        for (int l = 0; l < LAYERS; l++) {
            int32_t selection[SEATS * MOST_K];
            uint64_t before[SEATS];
            for (int r = 0; r < SEATS; r++) {
                before[r] = misses_of(cache, requests[r]);
                memcpy(selection + r * m->k, m->selections[s][l][r], (size_t)m->k * sizeof *selection);
            }
            assert_int_equal(hsp_append(cache, l, &source, 1, NULL), HSP_OK);
            assert_int_equal(hsp_swap_in(cache, l, selection, 1, m->k, ids, NULL), HSP_OK);
            for (int r = 0; r < SEATS; r++)
                misses_out[(l * SEATS + r) * STEPS + s] = (uint32_t)(misses_of(cache, requests[r]) - before[r]);
        }
    }
}

static void compare(const made *m, const char *backend, int policy, int32_t n_slots, int32_t ring_rows) {
    uint32_t want[LAYERS * SEATS * STEPS], got[STEPS];
    hsp_cache *cache = open_cache(backend, policy, m->k, n_slots, ring_rows);
    sweep_stream stream = {0};
    run_cache(cache, m, want);
    hsp_close(cache);
    for (int i = 0; i < LAYERS * SEATS; i++) {
        assert_int_equal(sweep_stream_read(&stream, m->t, i / SEATS, i % SEATS, ring_rows), TOOL_OK);
        assert_int_equal(sweep_count(&stream, (enum sweep_policy)policy, n_slots, got), 0);
        for (int s = 0; s < STEPS; s++)
            if (got[s] != want[i * STEPS + s])
                fail_msg("%s, %s, k %d, %d slots, ring %d: layer %d, seat %d, step %d: %u misses counted, %u were",
                         backend, sweep_policy_names[policy], m->k, n_slots, ring_rows, i / SEATS, i % SEATS, s, got[s],
                         want[i * STEPS + s]);
    }
    sweep_stream_close(&stream);
}

static void equals_the_library(void **state) {
    static const int32_t ks[] = {1, 5, 16, MOST_K}, rings[] = {1, 8, 64};
    (void)state;
    for (int i = 0; i < 4; i++) {
        made *m = make_trace(ks[i], (uint64_t)i + 1);
        for (int policy = HSP_LRU; policy <= HSP_CLOCK; policy++)
            for (int ring = 0; ring < 3; ring++)
                for (int32_t n_slots = m->k; n_slots <= 4 * m->k; n_slots += n_slots < m->k + 2 ? 1 : m->k) {
                    compare(m, "cpu", policy, n_slots, rings[ring]);
                    compare(m, "ref", policy, n_slots, rings[ring]);
                }
        unmake(m);
    }
}

/* -------------------------------------------------------------------------------------------------- small streams --
 */

enum { FEW_STEPS = 7, FEW_K = 2 };

/* A stream of steps of up to FEW_K different tokens each; -1 is none. next is looked up the obvious way. */
static sweep_stream small_stream(int n_steps, int32_t (*tokens)[FEW_K], int64_t *first, int32_t *token, int32_t *next,
                                 uint8_t *restart) {
    sweep_stream s = {.n_steps = n_steps, .first = first, .token = token, .next = next, .restart = restart};
    int32_t n = 0;
    for (int step = 0; step < n_steps; step++) {
        restart[step] = step == 0;
        first[step] = n;
        for (int e = 0; e < FEW_K; e++)
            if (tokens[step][e] >= 0) {
                token[n] = tokens[step][e];
                s.n_tokens = token[n] >= s.n_tokens ? token[n] + 1 : s.n_tokens;
                int later = step + 1;
                while (later < n_steps && tokens[later][0] != token[n] && tokens[later][1] != token[n])
                    later++;
                next[n++] = later;
            }
    }
    first[n_steps] = n;
    return s;
}

static uint32_t total(const sweep_stream *s, enum sweep_policy policy, int32_t n_slots) {
    uint32_t misses[FEW_STEPS], sum = 0;
    assert_int_equal(sweep_count(s, policy, n_slots, misses), 0);
    for (int64_t i = 0; i < s->n_steps; i++)
        sum += misses[i];
    return sum;
}

/* Fewest misses from a step on, when the tokens of mask `held` are resident: every set that keeps the step's tokens and
 * drops others is tried. */
static uint32_t fewest(const sweep_stream *s, int64_t step, unsigned held, int32_t n_slots) {
    uint32_t best = UINT32_MAX;
    unsigned asked = 0;
    if (step == s->n_steps)
        return 0;
    for (int64_t i = s->first[step]; i < s->first[step + 1]; i++)
        asked |= 1u << s->token[i];
    for (unsigned kept = held;; kept = (kept - 1) & held) {
        if (__builtin_popcount(kept | asked) <= n_slots) {
            uint32_t misses = fewest(s, step + 1, kept | asked, n_slots);
            best = misses < best ? misses : best;
        }
        if (kept == 0)
            return best + (uint32_t)__builtin_popcount(asked & ~held);
    }
}

static void belady_is_the_best(void **state) {
    (void)state;
    draws = 5;
    for (int round = 0; round < 400; round++) {
        int32_t tokens[FEW_STEPS][FEW_K], token[FEW_STEPS * FEW_K], next[FEW_STEPS * FEW_K], n = 3 + below(5);
        int64_t first[FEW_STEPS + 1];
        uint8_t restart[FEW_STEPS];
        for (int step = 0; step < FEW_STEPS; step++) {
            tokens[step][0] = below(n);
            tokens[step][1] = below(n + 1) - 1;
            if (tokens[step][1] == tokens[step][0])
                tokens[step][1] = -1;
        }
        sweep_stream s = small_stream(FEW_STEPS, tokens, first, token, next, restart);
        for (int32_t n_slots = 2; n_slots <= 4; n_slots++) {
            uint32_t best = fewest(&s, 0, 0, n_slots);
            assert_int_equal(total(&s, SWEEP_BELADY, n_slots), best);
            for (int p = 0; p < SWEEP_POLICIES; p++)
                assert_true(total(&s, (enum sweep_policy)p, n_slots) >= best);
        }
    }
}

static void check_case(int n_steps, int32_t (*tokens)[FEW_K], enum sweep_policy policy, int32_t n_slots,
                       const uint32_t *want) {
    int32_t token[FEW_STEPS * FEW_K], next[FEW_STEPS * FEW_K];
    int64_t first[FEW_STEPS + 1];
    uint8_t restart[FEW_STEPS];
    uint32_t got[FEW_STEPS];
    sweep_stream s = small_stream(n_steps, tokens, first, token, next, restart);
    assert_int_equal(sweep_count(&s, policy, n_slots, got), 0);
    for (int i = 0; i < n_steps; i++)
        if (got[i] != want[i])
            fail_msg("%s, %d slots, step %d: %u misses, not %u", sweep_policy_names[policy], n_slots, i, got[i],
                     want[i]);
}

static void cases_worked_out_by_hand(void **state) {
    int32_t known[5][FEW_K] = {{2, 5}, {2, 6}, {3, 6}, {2, 5}, {4, 5}};
    int32_t tells_apart[6][FEW_K] = {{1, 2}, {2, 3}, {4, 5}, {2, 5}, {1, 3}, {2, 5}};
    (void)state;
    check_case(5, known, SWEEP_LRU, 4, (const uint32_t[]){2, 1, 1, 0, 1});
    check_case(5, known, SWEEP_LRU, 2, (const uint32_t[]){2, 1, 1, 2, 1});
    check_case(6, tells_apart, SWEEP_LRU, 3, (const uint32_t[]){2, 1, 2, 0, 2, 1});
    check_case(6, tells_apart, SWEEP_LRU_FLAT, 3, (const uint32_t[]){2, 1, 2, 1, 2, 1});
    check_case(6, tells_apart, SWEEP_SEGMENTED, 3, (const uint32_t[]){2, 1, 2, 0, 2, 1});
}

/* A row hit twice outlives many that were asked for once, where LRU loses it. */
static void segments_resist_a_scan(void **state) {
    int32_t scan[FEW_STEPS][FEW_K] = {{0, 1}, {0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 1}, {0, 1}};
    (void)state;
    check_case(FEW_STEPS, scan, SWEEP_SEGMENTED, 5, (const uint32_t[]){2, 0, 2, 2, 2, 0, 0});
    check_case(FEW_STEPS, scan, SWEEP_LRU, 5, (const uint32_t[]){2, 0, 2, 2, 2, 2, 0});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_library),
        cmocka_unit_test(belady_is_the_best),
        cmocka_unit_test(cases_worked_out_by_hand),
        cmocka_unit_test(segments_resist_a_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
