/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of a serving engine: prompts of two requests are filled in, then steps with a batch, appends, a selector,
 * swap-in and attention for every layer. Queries and keys are made up; everything around them is as an engine has it.
 */
#include <hisparse_ops.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 4, HEADS = 4, DIM = 32, K = 64, PROMPT = 1500, STEPS = 20, REQUESTS = 2 };

static void check(int status, const hsp_cache *cache) {
    if (status == HSP_OK)
        return;
    fprintf(stderr, "%s: %s\n", hsp_status_name(status), hsp_last_error(cache));
    exit(1);
}

static void make_up(float *numbers, int n, uint32_t *seed) {
    for (int i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        numbers[i] = (float)(*seed >> 8) / 8388608.0f - 1.0f;
    }
}

static const hsp_quest_shape quest = {sizeof quest, HEADS, 1, DIM, 16, HSP_F32};
static const hsp_gqa_shape attention = {sizeof attention, HEADS, 1, DIM, DIM, HSP_F32, 0.17677669f};

/* One layer of one step for the whole batch. stats: page statistics of each request. */
static float run_layer(hsp_cache *cache, int layer, int length, void *stats[REQUESTS], uint32_t *seed, void *scratch) {
    float row[REQUESTS][2 * DIM], query[REQUESTS][HEADS * DIM], out[HEADS * DIM], sum = 0;
    int32_t selection[REQUESTS][K], ids[REQUESTS][K];
    hsp_rows_view view = {.struct_size = sizeof view};
    for (int b = 0; b < REQUESTS; b++) {
        make_up(row[b], 2 * DIM, seed);
        make_up(query[b], HEADS * DIM, seed);
    }

    hsp_row_source rows = {{row, &row[0][DIM]}, {sizeof row[0], sizeof row[0]}};
    check(hsp_append(cache, layer, &rows, 1, NULL), cache);
    for (int b = 0; b < REQUESTS; b++) {
        hsp_quest_update(&quest, stats[b], row[b], sizeof row[b], length - 1, 1);
        hsp_quest_select(&quest, stats[b], length, query[b], K, selection[b], scratch);
    }
    check(hsp_swap_in(cache, layer, &selection[0][0], 1, K, &ids[0][0], NULL), cache);
    check(hsp_rows(cache, layer, &view), cache);
    for (int b = 0; b < REQUESTS; b++) {
        hsp_gqa_tiles(&attention, &view.plane[0], &view.plane[1], query[b], ids[b], K, 0, scratch);
        hsp_gqa_combine(&attention, scratch, K / HSP_ATTENTION_TILE, NULL, out, NULL);
        sum += out[0];
    }
    return sum;
}

int main(void) {
    hsp_config config;
    hsp_cache *cache;
    hsp_stats_view stats_now = {.struct_size = sizeof stats_now};
    int32_t request[REQUESTS];
    uint32_t seed = 1;
    size_t bytes, select_bytes, attention_bytes;
    float sum = 0;

    hsp_config_init(&config, sizeof config);
    config.n_layers = LAYERS;
    config.n_planes = 2;
    config.plane_bytes[0] = config.plane_bytes[1] = DIM * sizeof(float);
    config.max_requests = config.max_batch = REQUESTS;
    config.max_context = PROMPT + STEPS;
    config.host_tokens = 2 * 64 * (int64_t)((PROMPT + STEPS + 63) / 64);
    config.max_k = K;
    config.n_slots = 2 * K;
    check(hsp_open(&config, &cache), NULL);

    hsp_quest_bytes(&quest, PROMPT + STEPS, &bytes);
    hsp_quest_scratch(&quest, PROMPT + STEPS, &select_bytes);
    hsp_gqa_scratch(&attention, K, &attention_bytes);
    void *scratch = malloc(select_bytes > attention_bytes ? select_bytes : attention_bytes);
    float *prompt = malloc(sizeof(float) * PROMPT * 2 * DIM);
    void *stats[LAYERS][REQUESTS];

    for (int b = 0; b < REQUESTS; b++) {
        check(hsp_admit(cache, PROMPT + STEPS, &request[b]), cache);
        for (int layer = 0; layer < LAYERS; layer++) {
            make_up(prompt, PROMPT * 2 * DIM, &seed);
            size_t stride = 2 * DIM * sizeof(float);
            hsp_row_source rows = {{prompt, prompt + DIM}, {stride, stride}};
            check(hsp_fill(cache, request[b], layer, 0, PROMPT, &rows, NULL), cache);
            stats[layer][b] = calloc(1, bytes);
            hsp_quest_update(&quest, stats[layer][b], prompt, stride, 0, PROMPT);
        }
    }
    for (int step = 0; step < STEPS; step++) {
        check(hsp_step_begin(cache, request, NULL, REQUESTS, NULL), cache);
        for (int layer = 0; layer < LAYERS; layer++)
            sum += run_layer(cache, layer, PROMPT + step + 1, stats[layer], &seed, scratch);
    }
    check(hsp_stats(cache, &stats_now), cache);
    printf("%d steps, %llu entries hit, %llu rows fetched, sum %.6f\n", STEPS, (unsigned long long)stats_now.total.hits,
           (unsigned long long)stats_now.total.misses, (double)sum);
    for (int b = 0; b < REQUESTS; b++) {
        check(hsp_retire(cache, request[b]), cache);
        for (int layer = 0; layer < LAYERS; layer++)
            free(stats[layer][b]);
    }
    free(prompt);
    free(scratch);
    hsp_close(cache);
    return 0;
}
