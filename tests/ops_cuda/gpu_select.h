/* SPDX-License-Identifier: Apache-2.0
 *
 * One way to run any selector of the GPU: some requests with keys or statistics of their own, batches of them with
 * padding in between, every selection handed to a check; entries alone against entries together; a graph.
 */
#ifndef HSP_GPU_SELECT_H
#define HSP_GPU_SELECT_H

#include "gpu_common.h"

enum { MOST_ENTRIES = 9, MOST_QUERIES = 3 };

struct selector {
    const void *shape;
    int32_t n_slots, max_tokens, k, n_out; /* n_out: numbers of one query's selections */
    size_t query_floats, scratch_bytes;    /* of one query; of the largest batch */
    uint64_t request_stride, row_stride;
    char *rows, *device_rows; /* [n_slots] requests */
    int (*call)(const struct selector *s, const hsp_gpu_batch *batch);
    void (*check)(const struct selector *s, const char *rows, int32_t n_tokens, const float *query, const int32_t *got);
    void *more; /* of the test */
    /* made by open_selector */
    float *query, *device_query; /* [MOST_ENTRIES][MOST_QUERIES][query_floats] */
    int32_t *device_out;
    void *scratch;
};

static inline size_t out_bytes(const struct selector *s, int32_t batch, int32_t n_queries) {
    return (size_t)batch * (size_t)n_queries * (size_t)s->n_out * sizeof(int32_t);
}

/* rows and query are filled, the query by `fill` or at random. */
static inline void open_selector(struct selector *s, void (*fill)(float *query, size_t n, uint64_t seed),
                                 uint64_t seed) {
    size_t n = s->query_floats * MOST_ENTRIES * MOST_QUERIES;
    s->query = allocate(n * sizeof *s->query);
    for (size_t i = 0; !fill && i < n; i++)
        s->query[i] = random_float(&seed);
    if (fill)
        fill(s->query, n, seed);
    s->device_query = on_device(s->query, n * sizeof *s->query);
    s->device_rows = on_device(s->rows, (size_t)s->n_slots * s->request_stride);
    s->device_out = on_device(NULL, out_bytes(s, MOST_ENTRIES, MOST_QUERIES));
    s->scratch = on_device(NULL, s->scratch_bytes);
}

static inline void close_selector(struct selector *s) {
    free_device(s->device_query);
    free_device(s->device_rows);
    free_device(s->device_out);
    free_device(s->scratch);
    free(s->query);
    free(s->rows);
}

static inline void check_batch(const struct selector *s, int32_t batch, int32_t n_queries, const int32_t *slot,
                               const int32_t *n_tokens) {
    int32_t *got = allocate(out_bytes(s, batch, n_queries));
    from_device(got, s->device_out, out_bytes(s, batch, n_queries));
    for (int32_t i = 0; i < batch * n_queries; i++) {
        int32_t r = slot[i / n_queries];
        const int32_t *mine = got + (size_t)i * (size_t)s->n_out;
        if (r >= 0) {
            s->check(s, s->rows + (uint64_t)r * s->request_stride, n_tokens[i], s->query + (size_t)i * s->query_floats,
                     mine);
            continue;
        }
        for (int32_t j = 0; j < s->n_out; j++)
            assert_int_equal(mine[j], -1);
    }
    free(got);
}

/* One call; `got` may be NULL. */
static inline void run_batch(const struct selector *s, int32_t batch, int32_t n_queries, const int32_t *slot,
                             const int32_t *n_tokens) {
    hsp_gpu_batch b = make_batch(batch, n_queries, s->max_tokens, slot, n_tokens);
    need(cudaMemset(s->device_out, 0x77, out_bytes(s, batch, n_queries)));
    need(cudaDeviceSynchronize());
    assert_int_equal(s->call(s, &b), HSP_OK);
    need(cudaStreamSynchronize(test_stream));
    free_batch(&b);
}

/* A batch with padding and requests that come twice; n_tokens from 0 to max_tokens. */
static inline void any_batch(const struct selector *s, int32_t batch, int32_t n_queries, uint64_t *seed, int32_t *slot,
                             int32_t *n_tokens) {
    for (int32_t i = 0; i < batch; i++) {
        slot[i] = random_below(seed, 4) ? random_below(seed, s->n_slots) : -1;
        int32_t most = random_below(seed, 3) ? s->max_tokens : s->k + 2 < s->max_tokens ? s->k + 2 : s->max_tokens;
        int32_t last = random_below(seed, most + 1);
        for (int32_t q = 0; q < n_queries; q++)
            n_tokens[i * n_queries + q] = last - (n_queries - 1 - q) > 0 ? last - (n_queries - 1 - q) : 0;
    }
}

static inline void random_batches(const struct selector *s, int n, uint64_t seed) {
    int32_t slot[MOST_ENTRIES], n_tokens[MOST_ENTRIES * MOST_QUERIES];
    for (int i = 0; i < n; i++) {
        int32_t batch = 1 + random_below(&seed, MOST_ENTRIES), n_queries = 1 + random_below(&seed, MOST_QUERIES);
        any_batch(s, batch, n_queries, &seed, slot, n_tokens);
        run_batch(s, batch, n_queries, slot, n_tokens);
        check_batch(s, batch, n_queries, slot, n_tokens);
    }
}

/* Given lengths, all of them in one batch of one query; slots in turn. */
static inline void lengths(const struct selector *s, int32_t n, const int32_t *wanted) {
    int32_t slot[MOST_ENTRIES], n_tokens[MOST_ENTRIES];
    for (int32_t i = 0; i < n; i++) {
        slot[i] = i % s->n_slots;
        n_tokens[i] = wanted[i] < s->max_tokens ? wanted[i] : s->max_tokens;
    }
    run_batch(s, n, 1, slot, n_tokens);
    check_batch(s, n, 1, slot, n_tokens);
}

/* The first query of the storage is that of each entry in turn, so that an entry alone is asked the same. */
static inline void alone_as_together(struct selector *s, uint64_t seed) {
    int32_t slot[MOST_ENTRIES], n_tokens[MOST_ENTRIES];
    size_t bytes = out_bytes(s, 1, 1), query_bytes = s->query_floats * sizeof(float);
    int32_t *together = allocate(bytes * MOST_ENTRIES), *alone = allocate(bytes);
    any_batch(s, MOST_ENTRIES, 1, &seed, slot, n_tokens);
    slot[0] = 0;
    slot[MOST_ENTRIES - 1] = s->n_slots - 1;
    n_tokens[0] = n_tokens[MOST_ENTRIES - 1] = s->max_tokens;
    run_batch(s, MOST_ENTRIES, 1, slot, n_tokens);
    from_device(together, s->device_out, bytes * MOST_ENTRIES);
    for (int32_t i = 0; i < MOST_ENTRIES; i++) {
        to_device(s->device_query, s->query + (size_t)i * s->query_floats, query_bytes);
        run_batch(s, 1, 1, slot + i, n_tokens + i);
        from_device(alone, s->device_out, bytes);
        assert_memory_equal(alone, (char *)together + (size_t)i * bytes, bytes);
    }
    to_device(s->device_query, s->query, query_bytes);
    free(together);
    free(alone);
}

struct captured_call {
    const struct selector *s;
    const hsp_gpu_batch *batch;
};

static inline void make_call(void *argument) {
    struct captured_call *c = argument;
    assert_int_equal(c->s->call(c->s, c->batch), HSP_OK);
}

/* One graph for all steps: slots and lengths change under it. */
static inline void replays(const struct selector *s, int32_t n_queries, int n, uint64_t seed) {
    int32_t slot[MOST_ENTRIES], n_tokens[MOST_ENTRIES * MOST_QUERIES];
    any_batch(s, MOST_ENTRIES, n_queries, &seed, slot, n_tokens);
    hsp_gpu_batch b = make_batch(MOST_ENTRIES, n_queries, s->max_tokens, slot, n_tokens);
    struct captured_call c = {s, &b};
    cudaGraphExec_t graph = capture(make_call, &c);
    for (int i = 0; i < n; i++) {
        any_batch(s, MOST_ENTRIES, n_queries, &seed, slot, n_tokens);
        to_device((void *)(uintptr_t)b.slot, slot, sizeof slot);
        to_device((void *)(uintptr_t)b.n_tokens, n_tokens, (size_t)MOST_ENTRIES * (size_t)n_queries * sizeof *n_tokens);
        replay(graph);
        check_batch(s, MOST_ENTRIES, n_queries, slot, n_tokens);
    }
    need(cudaGraphExecDestroy(graph));
    free_batch(&b);
}

/* Whole numbers from -4 to 4: products and sums of some hundred of them are exact in any order. */
static inline void whole_numbers(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(random_below(&seed, 9) - 4);
}

#endif
