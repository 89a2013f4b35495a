/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse plan`: published figures of capacity come out to the byte, and what follows from them is consistent. */
#include "check.h"
#include "hisparse.h"
#include "plan_shape.h"
#include "tools.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char said[1024];

int tool_fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    return code;
}

/* GLM-5.3 on eight H200, as the published calculator has it. */
static plan_question glm(double context) {
    plan_question q = {.gpus = 8,
                       .tp = 8,
                       .format = PLAN_FP8,
                       .utilization = 0.92,
                       .reserve_bytes = 15.0 * (1 << 30),
                       .n_contexts = 1,
                       .context = {context},
                       .share = {1},
                       .miss = -1};
    assert_int_equal(plan_read_model(NULL, "glm-5.3", &q.model), TOOL_OK);
    assert_int_equal(plan_read_machine(NULL, "h200", &q.machine), TOOL_OK);
    return q;
}

static plan_answer answer(const plan_question *q, int slots) {
    plan_answer a;
    plan_answer_for(q, slots, &a);
    return a;
}

static void published_bytes(void **state) {
    plan_question q = glm(131072);
    plan_answer all = answer(&q, 0), slots = answer(&q, 4096);
    (void)state;
    assert_true(all.block_bytes == 3052800);
    assert_true(slots.host_block_bytes == 2875392);
    assert_true(slots.index_bytes == 177408);
    assert_true(slots.block_bytes == 184320);
    assert_true(fabs(all.free_bytes / (1 << 30) - 17.85) < 0.005);
    q.format = PLAN_BF16; /* of the same calculator */
    assert_true(answer(&q, 0).block_bytes == 5928192);
    assert_true(answer(&q, 4096).block_bytes == 294912);
    assert_true(answer(&q, 4096).host_block_bytes == 5750784);
    q.format = PLAN_FP8_BLOCK; /* rows of 656 bytes: 104.8 MB */
    assert_true(answer(&q, 4096).full_bytes == 2048.0 * 78 * 656);
}

static void published_requests(void **state) {
    static const struct {
        double context;
        int resident, slots;
    } cases[] = {{32768, 12, 56}, {131072, 3, 30}, {1048576, 0, 5}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan_question q = glm(cases[i].context);
        assert_int_equal(answer(&q, 0).requests, cases[i].resident);
        assert_int_equal(answer(&q, 4096).requests, cases[i].slots);
    }
    plan_question q = glm(131072);
    double even = answer(&q, 4096).even_tokens;
    assert_true(even > 5350 && even < 5450);
    assert_true(plan_request_bytes(&q, 0, even) > plan_request_bytes(&q, 4096, even));
    assert_true(plan_request_bytes(&q, 0, even - 1) <= plan_request_bytes(&q, 4096, even - 1));
}

static void misses_by_slots(void **state) {
    plan_question q = glm(100384);
    double before = 1;
    (void)state;
    assert_true(fabs(plan_miss(&q, 2048, 100384) - 0.30) < 1e-9);
    assert_true(fabs(plan_miss(&q, 4096, 100384) - 0.134) < 1e-9);
    assert_true(fabs(plan_miss(&q, 8192, 100384) - 0.067) < 1e-9);
    for (int slots = 2048; slots < 65536; slots += 512) {
        double miss = plan_miss(&q, slots, 100384);
        assert_true(miss > 0 && miss < before);
        before = miss;
    }
    assert_true(plan_miss(&q, 4096, 4096) == 0); /* each entry has a slot */
    assert_true(plan_miss(&q, 0, 100384) == 0);
    q.miss = 0.5;
    assert_true(plan_miss(&q, 4096, 100384) == 0.5);
}

static void a_mix_is_its_mean(void **state) {
    plan_question q = glm(32768), other = glm(131072);
    double mean = (answer(&q, 4096).device_bytes + 3 * answer(&other, 4096).device_bytes) / 4;
    (void)state;
    q.n_contexts = 2;
    q.context[1] = 131072;
    q.share[0] = 0.25;
    q.share[1] = 0.75;
    assert_true(fabs(answer(&q, 4096).device_bytes - mean) < 1);
    assert_int_equal(answer(&q, 4096).requests, floor(answer(&q, 4096).free_bytes / mean));
}

static void slabs_are_the_footprint(void **state) {
    plan_question q = glm(131072);
    hsp_config c;
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    int32_t group[78];
    (void)state;
    q.slabs = 1;
    hsp_config_init(&c, sizeof c);
    for (int i = 0; i < 78; i++)
        group[i] = i % 21;
    c.n_layers = 78;
    c.layer_group = group;
    c.n_planes = 1;
    c.plane_bytes[0] = 576;
    c.max_context = c.host_tokens = 131072;
    c.n_slots = 4096;
    c.max_k = 2048;
    c.max_requests = c.max_batch = 30;
    assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
    double one = answer(&q, 4096).device_bytes - 2048 * 177408.0,
           all = (double)(bytes.device_rows + bytes.device_state);
    assert_true(fabs(30 * one / all - 1) < 0.01); /* what a cache takes but once is the rest */
    q.context[0] = 1e9;
    assert_int_equal(plan_capacity(&q, 4096, &(plan_answer){0}), 0);
}

static void time_of_a_step(void **state) {
    plan_question q = glm(131072);
    plan_answer slots = answer(&q, 4096), all = answer(&q, 0);
    (void)state;
    assert_true(all.link_ms == 0 && all.miss_percent == 0);
    assert_true(fabs(slots.link_bytes - 0.134 * slots.full_bytes) < 1);
    assert_true(slots.exposed_ms < slots.link_ms); /* followers hide */
    assert_true(fabs(slots.tokens_s - 1e3 * slots.requests / slots.token_ms) < 1e-6);
    q.apart = 1;
    plan_answer apart = answer(&q, 4096);
    assert_true(apart.exposed_ms == apart.link_ms && apart.link_ms > slots.link_ms);
    q.output = 8192; /* prompts cost time */
    assert_true(answer(&q, 4096).tokens_s < apart.tokens_s);
    q = glm(131072);
    q.miss = 0;
    assert_true(answer(&q, 4096).exposed_ms == 0 && answer(&q, 4096).tokens_s > slots.tokens_s);
}

static void verdicts(void **state) {
    static const struct {
        double context, requests, host, weight_bits;
        int worth;
        const char *why;
    } cases[] = {{131072, 0, 0, 0, 1, "Worth it: 30 requests at once with 4096 slots, 3 with everything"},
                 {1048576, 0, 0, 0, 1, "Worth it: no request fits with everything on the GPU, 5 with"},
                 {4096, 0, 0, 0, 0, "only requests of 5377 tokens and more"},
                 {131072, 2, 0, 0, 0, "3 of these requests fit with everything on the GPU, and 2 are asked for"},
                 {131072, 0, 50e9, 0, 0, "what limits is host memory, in a step"},
                 {131072, 0, 1e9, 0, 0, "not even one request fits; what limits is host memory"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan_question q = glm(cases[i].context);
        char text[512];
        q.requests = cases[i].requests;
        q.host_bytes = cases[i].host;
        plan_answer all = answer(&q, 0), slots = answer(&q, 4096);
        assert_int_equal(plan_verdict(&q, &all, &slots, text, sizeof text), cases[i].worth);
        if (!strstr(text, cases[i].why))
            fail_msg("%s", text);
    }
    plan_question q = glm(131072);
    q.host_bytes = 2000e9;
    plan_answer slots = answer(&q, 4096);
    q.requests = slots.even_requests;
    assert_true(answer(&q, 4096).tokens_s > answer(&q, 0).tokens_s);
}

static void the_chosen_slots_are_the_best(void **state) {
    plan_question q = glm(131072);
    double best = answer(&q, plan_choose_slots(&q)).tokens_s;
    (void)state;
    for (int slots = 2048; slots <= plan_most_slots(&q); slots *= 2)
        assert_true(answer(&q, slots).tokens_s <= 1.01 * best);
    q.machine.link_rows_us /= 8; /* a slow link wants fewer misses */
    q.machine.link_gb_s /= 8;
    assert_true(plan_choose_slots(&q) > 2048);
}

/* Every preset is read, and what this program counts is what the presets say. */
static void every_preset(void **state) {
    static const struct {
        const char *id;
        int paged, groups, k, entry_tokens, selections;
        double kv_bf16, index; /* bytes of a token */
    } cases[] = {
        {"deepseek-v3.2", 61, 61, 2048, 1, 1, 70272, 8052}, {"glm-5.1", 78, 78, 2048, 1, 1, 89856, 10296},
        {"glm-5.2", 78, 21, 2048, 1, 1, 89856, 2772},       {"deepseek-v4-flash", 21, 21, 512, 4, 1, 5536, 693},
        {"deepseek-v4-pro", 30, 30, 1024, 4, 1, 7928, 990}, {"qwen3-30b", 48, 48, 2048, 1, 1, 98304, 6144},
        {"minimax-m3", 57, 57, 2048, 1, 4, 122880, 7296}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan_model m;
        assert_int_equal(plan_read_model(NULL, cases[i].id, &m), TOOL_OK);
        assert_int_equal(m.paged_layers, cases[i].paged);
        assert_int_equal(m.groups, cases[i].groups);
        assert_int_equal(m.k, cases[i].k);
        assert_int_equal(m.entry_tokens, cases[i].entry_tokens);
        assert_int_equal(m.selections, cases[i].selections);
        double rows = (double)m.paged_layers / m.entry_tokens + m.resident_rows;
        assert_true(fabs(rows * m.row_bytes[PLAN_BF16] - cases[i].kv_bf16) < 0.5);
        assert_true(fabs(m.groups * m.index_bytes / m.entry_tokens - cases[i].index) < 0.5);
    }
}

static void every_machine(void **state) {
    static const char *const id[] = {"h100",  "h200",         "b200",  "gb200", "gb200-superchip",
                                     "gh200", "rtx-pro-6000", "mi355x"};
    plan_machine m;
    (void)state;
    for (size_t i = 0; i < sizeof id / sizeof id[0]; i++) {
        assert_int_equal(plan_read_machine(NULL, id[i], &m), TOOL_OK);
        assert_true(m.link_rows_us > 10 && m.link_rows_us < 200 && m.link_gb_s > 30 && m.link_gb_s < 400);
        assert_true(m.memory_bytes > 50e9 && m.memory_bytes < 300e9);
    }
    assert_int_equal(plan_read_machine(NULL, "gh200-144gb", &m), TOOL_BAD_INPUT); /* its bandwidth is not known */
    assert_int_equal(plan_read_machine(NULL, "h300", &m), TOOL_BAD_INPUT);
    assert_non_null(strstr(said, "gb200-per-gpu"));
}

/* A config.json gives what the preset of the same model gives. */
static void a_config_is_the_preset(void **state) {
    static const struct {
        const char *id, *config;
    } cases[] = {
        {"glm-5.2",
         "{\"model_type\": \"glm_moe_dsa\", \"num_hidden_layers\": 78, \"first_k_dense_replace\": 3, \"hidden_size\": "
         "6144,"
         "\"vocab_size\": 154880, \"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"qk_nope_head_dim\": 192,"
         "\"qk_rope_head_dim\": 64, \"v_head_dim\": 256, \"q_lora_rank\": 2048, \"kv_lora_rank\": 512, "
         "\"index_n_heads\": 32,"
         "\"index_head_dim\": 128, \"index_topk\": 2048, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 3,"
         "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, "
         "\"n_shared_experts\": 1,"
         "\"intermediate_size\": 12288}"},
        {"qwen3-30b",
         "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 48, \"hidden_size\": 2048, \"vocab_size\": 151936,"
         "\"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": 128, \"num_experts\": 128,"
         "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 768, \"intermediate_size\": 6144}"}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char path[] = "test_plan_XXXXXX.json";
        int fd = mkstemps(path, 5);
        plan_model preset, config;
        assert_true(fd >= 0 && write(fd, cases[i].config, strlen(cases[i].config)) > 0);
        close(fd);
        assert_int_equal(plan_read_model(NULL, cases[i].id, &preset), TOOL_OK);
        assert_int_equal(plan_read_model(NULL, path, &config), TOOL_OK);
        unlink(path);
        assert_true(fabs(config.parameters / preset.parameters - 1) < 1e-3);
        assert_memory_equal(config.row_bytes, preset.row_bytes, sizeof config.row_bytes);
        snprintf(config.id, sizeof config.id, "%s", preset.id);
        config.parameters = preset.parameters;
        memset(config.id, 0, sizeof config.id);
        memset(preset.id, 0, sizeof preset.id);
        assert_memory_equal(&config, &preset, offsetof(plan_model, shared_bytes));
        assert_true(config.attention_flop == preset.attention_flop);
        assert_true(config.attention_flop_token == preset.attention_flop_token);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_bytes),
        cmocka_unit_test(published_requests),
        cmocka_unit_test(misses_by_slots),
        cmocka_unit_test(a_mix_is_its_mean),
        cmocka_unit_test(slabs_are_the_footprint),
        cmocka_unit_test(time_of_a_step),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(the_chosen_slots_are_the_best),
        cmocka_unit_test(every_preset),
        cmocka_unit_test(every_machine),
        cmocka_unit_test(a_config_is_the_preset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
