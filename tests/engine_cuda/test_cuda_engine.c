/* SPDX-License-Identifier: Apache-2.0 */
/* The engine on a GPU: tiny models of every kind against the engine on the CPU, prefill against steps, and rows in a
 * cache against rows kept whole, these bit for bit. */
#include "../engine/small_model.h"
#include "../engine/tiny_model.h"
#include "../engine/with_cmocka.h"
#include "cuda/cuda_engine.h"

extern const cuda_engine cuda_engine_table;
static const char *const backend = "cuda";

/* Heads of 16 channels: what tensor cores take. */
static const small_shape shapes[] = {
    {.architecture = "gqa_quest",
     .dtype = "BF16",
     .layers = 3,
     .embedding = 32,
     .ffn = 48,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .dense_layers = 1,
     .page_tokens = 8,
     .top_k = 64,
     .theta = 5e5,
     .seed = 1},
    {.architecture = "gqa_nsa",
     .dtype = "BF16",
     .layers = 3,
     .embedding = 32,
     .ffn = 48,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 16,
     .compress_tokens = 8,
     .compress_stride = 4,
     .block_tokens = 16,
     .n_blocks = 4,
     .n_first = 1,
     .n_local = 2,
     .window = 24,
     .theta = 5e5,
     .seed = 2},
    {.architecture = "mla_dsa",
     .dtype = "BF16",
     .layers = 3,
     .embedding = 32,
     .ffn = 48,
     .heads = 4,
     .latent = 32,
     .rope = 16,
     .nope = 12,
     .value = 10,
     .index_heads = 3,
     .index_dim = 16,
     .index_rope = 8,
     .index_dtype = "e4m3",
     .top_k = 64,
     .theta = 5e5,
     .seed = 4},
    {.architecture = "mla_dsa",
     .dtype = "BF16",
     .layers = 2,
     .embedding = 40,
     .ffn = 24,
     .heads = 3,
     .latent = 16,
     .rope = 16,
     .nope = 7,
     .value = 9,
     .index_heads = 5,
     .index_dim = 32,
     .index_rope = 32,
     .index_dtype = "bf16",
     .top_k = 64,
     .theta = 1e4,
     .seed = 5},
};
static const tiny_shape llama = {.layers = 4, /* of which two are dense */
                                 .embedding = 32,
                                 .ffn = 48,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 16,
                                 .vocab = 61,
                                 .tied = 1,
                                 .seed = 6};
enum { N_SMALL = sizeof shapes / sizeof shapes[0], N_MODELS = N_SMALL + 1, MOST = 340, TOP_K = 64 };

/* Logits are of size 1. Attention on the GPU rounds the query and the weights of rows to bfloat16, NSA's compressed
 * rows too: doing so on the CPU moves these logits by 0.075 at most and 0.005 on average. Where tokens are left out a
 * choice near a tie turns now and then, and moves all logits of a step: 0.03 on average. A wrong position or row moves
 * them by 0.3 and more on average. */
static const double CLOSE = 0.2, CLOSE_ON_AVERAGE = 0.02, CLOSE_WHERE_CHOICES_TURN = 0.1;

static model *models[N_MODELS];
static gpu *gpus[N_MODELS];
static small_model *opened[N_SMALL];

static int there_is_a_device(void) {
    hsp_backend_desc desc = {.struct_size = sizeof desc};
    for (int32_t i = 0; hsp_backend_info(i, &desc) == HSP_OK; i++)
        if (strcmp(desc.name, backend) == 0)
            return (desc.capabilities & HSP_CAN_RUN) != 0;
    return 0;
}

static void need_device(void) {
    char error[256];
    if (!there_is_a_device()) {
        print_message("skipped: no device\n");
        skip();
    }
    for (int i = 0; i < N_MODELS && !gpus[i]; i++) {
        if (i < N_SMALL)
            opened[i] = small_open(&shapes[i]);
        models[i] = i < N_SMALL ? opened[i]->m : tiny_model(&llama);
        assert_non_null(models[i]);
        gpus[i] = cuda_engine_table.open(models[i], error, sizeof error);
        if (!gpus[i])
            fail_msg("%s", error);
    }
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        cuda_engine_table.close(gpus[i]);
        if (i < N_SMALL && opened[i])
            small_close(opened[i]);
        else
            model_close(models[i]);
    }
    return 0;
}

static decoder *decoder_over(int i, kv *rows) {
    char error[256];
    decoder *d = cuda_engine_table.open_decoder(gpus[i], rows, TOP_K, MOST, error, sizeof error);
    if (!d)
        fail_msg("%s", error);
    return d;
}

static kv *resident(int i) {
    char error[256];
    kv *rows = cuda_engine_table.open_resident(gpus[i], MOST, error, sizeof error);
    if (!rows)
        fail_msg("%s", error);
    return rows;
}

static kv *cached(int i, int32_t n_slots, int32_t policy) {
    hsp_config c;
    hsp_config_init(&c, sizeof c);
    assert_int_equal(hsp_config_set(&c, "backend", backend), HSP_OK);
    c.policy = policy;
    c.n_slots = n_slots;
    c.max_k = TOP_K;
    c.ring_rows = 1 + n_slots % 3;
    c.block_rows = policy == HSP_LRU ? 1 : 16;
    kv *rows = kv_open_cache(models[i], &c, MOST);
    if (!rows)
        fail_msg("%s", hsp_last_error(NULL));
    return rows;
}

static int32_t token_at(int i, int32_t t) {
    return (int32_t)((uint32_t)(t * 7919 + i * 31 + t * t % 13) % (uint32_t)models[i]->vocab);
}

static void prefill(decoder *const *ds, int n_decoders, int i, int32_t n) {
    int32_t tokens[MOST];
    const char *error;
    for (int32_t t = 0; t < n; t++)
        tokens[t] = token_at(i, t);
    if (decoder_prefill(ds, n_decoders, tokens, n, NULL, NULL, &error) != 0)
        fail_msg("%s", error);
    assert_int_equal(ds[0]->length, n);
}

static void step(decoder *d, int i) {
    if (decoder_step(d, token_at(i, d->length)) != 0)
        fail_msg("%s", d->rows->error);
}

static void stop(decoder *d) {
    kv *rows = d->rows;
    decoder_close(d);
    rows->close(rows);
}

/* Sum and greatest of the differences of two decoders' logits. */
typedef struct distance {
    double sum, greatest;
    int64_t n;
} distance;

static void measure(distance *x, const decoder *a, const decoder *b) {
    for (int32_t v = 0; v < a->m->vocab; v++, x->n++) {
        double apart = fabs((double)a->logits[v] - (double)b->logits[v]);
        assert_true(apart >= 0); /* no NaN */
        x->sum += apart;
        x->greatest = fmax(x->greatest, apart);
    }
}

/* ------------------------------------------------------------------------------------------------------- the CPU -- */

static void steps_are_near_the_cpu(void **state) {
    (void)state;
    need_device();
    for (int i = 0; i < N_MODELS; i++) {
        decoder *got = decoder_over(i, resident(i));
        decoder *want = decoder_open(models[i], kv_open_resident(models[i], MOST), TOP_K, MOST);
        distance near = {0}, far = {0};
        for (int32_t t = 0; t < MOST; t++) {
            step(got, i);
            step(want, i);
            measure(t < TOP_K ? &near : &far, got, want);
        }
        print_message("model %d: all tokens chosen: %g at most, %g on average; later %g, %g\n", i, near.greatest,
                      near.sum / (double)near.n, far.greatest, far.sum / (double)far.n);
        assert_true(near.greatest < CLOSE);
        assert_true(near.sum / (double)near.n < CLOSE_ON_AVERAGE);
        assert_true(far.sum / (double)far.n < CLOSE_WHERE_CHOICES_TURN);
        stop(got);
        stop(want);
    }
}

static void prefill_is_near_steps(void **state) {
    (void)state;
    need_device();
    for (int i = 0; i < N_MODELS; i++)
        for (int32_t n = 1; n < MOST; n = n < 40 ? 40 : n + 250) { /* 290: more than go through a layer at once */
            if (models[i]->kind == MODEL_QUEST && n > TOP_K)
                continue; /* a prompt attends to everything, a step does not */
            decoder *whole = decoder_over(i, resident(i)), *steps = decoder_over(i, resident(i));
            distance apart = {0};
            prefill(&whole, 1, i, n);
            while (steps->length < n)
                step(steps, i);
            measure(&apart, whole, steps);
            for (int32_t t = 0; t < 20; t++) {
                step(whole, i);
                step(steps, i);
                measure(&apart, whole, steps);
            }
            print_message("model %d, %d tokens: %g at most, %g on average\n", i, n, apart.greatest,
                          apart.sum / (double)apart.n);
            assert_true(apart.sum / (double)apart.n < (n < TOP_K ? CLOSE_ON_AVERAGE : CLOSE_WHERE_CHOICES_TURN));
            stop(whole);
            stop(steps);
        }
}

/* ----------------------------------------------------------------------------------------------------- the cache -- */

static void run_beside_resident(int i, int32_t n_slots, int32_t policy, int32_t n_prompt) {
    decoder *ds[2] = {decoder_over(i, cached(i, n_slots, policy)), decoder_over(i, resident(i))};
    if (n_prompt)
        prefill(ds, 2, i, n_prompt);
    for (int32_t t = 0; t < 80; t++) {
        step(ds[0], i);
        step(ds[1], i);
        if (memcmp(ds[0]->logits, ds[1]->logits, (size_t)models[i]->vocab * sizeof(float)) != 0)
            fail_msg("model %d, %d slots, policy %d, prompt of %d: step %d differs", i, n_slots, policy, n_prompt, t);
    }
    hsp_counters c;
    assert_int_equal(hsp_request_counters(ds[0]->rows->cache, ds[0]->rows->request, &c), HSP_OK);
    assert_true(c.hits > 0 && (c.misses > 0 || !n_prompt) && c.invalid == 0);
    stop(ds[0]);
    stop(ds[1]);
}

static void cached_equals_resident(void **state) {
    (void)state;
    need_device();
    for (int i = 0; i < N_MODELS; i++) {
        for (int32_t n_slots = TOP_K; n_slots <= 4 * TOP_K; n_slots *= 2)
            run_beside_resident(i, n_slots, HSP_LRU, 200);
        for (int32_t policy = HSP_FIFO; policy <= HSP_CLOCK; policy++)
            run_beside_resident(i, TOP_K + 17, policy, 259);
        run_beside_resident(i, TOP_K, HSP_LRU, 0);
    }
}

/* What --verify does with a difference: rows come out of both stores as they were written. */
static void rows_can_be_copied(void **state) {
    (void)state;
    need_device();
    for (int i = 0; i < N_MODELS; i++) {
        decoder *ds[2] = {decoder_over(i, cached(i, 4 * TOP_K, HSP_FIFO)), decoder_over(i, resident(i))};
        unsigned char got[256], want[256];
        hsp_plane_view views[2][HSP_MAX_PLANES];
        int32_t tokens[4 * TOP_K], ring_first, first_id, n = 0;
        prefill(ds, 2, i, 100);
        for (int k = 0; k < 2; k++) {
            step(ds[k], i);
            ds[k]->rows->views(ds[k]->rows, 0, views[k]);
        }
        assert_int_equal(
            hsp_resident(ds[0]->rows->cache, ds[0]->rows->request, 0, tokens, NULL, &ring_first, &first_id), HSP_OK);
        for (int32_t s = 0; s < 4 * TOP_K; s++)
            for (int32_t p = 0; tokens[s] >= 0 && p < models[i]->n_planes; p++, n++) {
                const hsp_plane_view *v = &views[0][p], *w = &views[1][p];
                int32_t id = first_id + s;
                const char *from = (const char *)v->base + (size_t)(id / v->rows_per_block) * v->block_stride +
                                   (size_t)(id % v->rows_per_block) * v->row_stride;
                const char *other = (const char *)w->base + (size_t)tokens[s] * w->row_stride;
                assert_int_equal(ds[0]->rows->copy(ds[0]->rows, got, from, v->row_bytes), 0);
                assert_int_equal(ds[1]->rows->copy(ds[1]->rows, want, other, w->row_bytes), 0);
                assert_memory_equal(got, want, v->row_bytes);
            }
        assert_true(n > 0);
        stop(ds[0]);
        stop(ds[1]);
    }
}

/* -------------------------------------------------------------------------------------------------------- limits -- */

static void bad_shapes_are_refused(void **state) {
    char error[256] = "";
    (void)state;
    need_device();
    small_shape narrow = shapes[0];
    narrow.head_dim = 8;
    small_model *sm = small_open(&narrow);
    gpu *g = cuda_engine_table.open(sm->m, error, sizeof error);
    assert_non_null(g);
    kv *rows = cuda_engine_table.open_resident(g, MOST, error, sizeof error);
    assert_non_null(rows);
    assert_null(cuda_engine_table.open_decoder(g, rows, TOP_K, MOST, error, sizeof error));
    assert_non_null(strstr(error, "multiple of 16"));
    rows->close(rows);
    cuda_engine_table.close(g);
    small_close(sm);
}

static void a_full_text_ends(void **state) {
    (void)state;
    need_device();
    decoder *d = decoder_over(0, cached(0, TOP_K, HSP_LRU));
    prefill(&d, 1, 0, MOST - 1);
    step(d, 0);
    assert_int_equal(decoder_step(d, 0), -1);
    assert_non_null(strstr(d->rows->error, "340"));
    stop(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_near_the_cpu), cmocka_unit_test(prefill_is_near_steps),
        cmocka_unit_test(cached_equals_resident), cmocka_unit_test(rows_can_be_copied),
        cmocka_unit_test(bad_shapes_are_refused), cmocka_unit_test(a_full_text_ends),
    };
    return cmocka_run_group_tests(tests, NULL, close_all);
}
