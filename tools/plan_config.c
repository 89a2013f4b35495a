/* SPDX-License-Identifier: Apache-2.0 */
/* A config.json as Hugging Face keeps it beside a model. */
#include "plan_shape.h"
#include "tools.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *model_type;
    int mla;
} known[] = {{"deepseek_v3", 1}, {"deepseek_v32", 1}, {"glm_moe_dsa", 1}, {"qwen3_moe", 0}};

/* -1 after the message. */
static int kind_of(const char *path, const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (type && strcmp(type, known[i].model_type) == 0)
            return known[i].mla;
    tool_fail(TOOL_BAD_INPUT, "'%s': model_type is '%s'; it may be deepseek_v3, deepseek_v32, glm_moe_dsa or qwen3_moe",
              path, type ? type : "missing");
    return -1;
}

static int need(const char *path, const char *key, double value) {
    return value > 0 ? TOOL_OK : tool_fail(TOOL_BAD_INPUT, "'%s': %s is missing", path, key);
}

static int check(const char *path, const plan_shape *s, int mla) {
    if (!mla)
        return need(path, "head_dim", s->head_dim);
    if (s->k <= 0)
        return tool_fail(TOOL_BAD_INPUT,
                         "'%s': index_topk is missing; without a selector every row is read, and paging is of no use",
                         path);
    int code = need(path, "kv_lora_rank", s->latent);
    if (code == TOOL_OK)
        code = need(path, "qk_rope_head_dim", s->rope);
    return code == TOOL_OK ? need(path, "index_head_dim", s->index_dim) : code;
}

/* Layer i selects for itself where max(i - offset + 1, 0) is a multiple of freq; engines take 2 when no offset is given
 * (presets/NOTES.md). */
static int count_indexers(const char *path, const json_t *config, plan_shape *s) {
    double offset = plan_number(config, "index_skip_topk_offset", 2);
    if (!(offset >= 0 && offset <= s->layers))
        return tool_fail(TOOL_BAD_INPUT, "'%s': index_skip_topk_offset is %.16g; it may be 0..%.0f", path, offset,
                         s->layers);
    for (int i = 0; i < (int)s->layers; i++)
        s->indexers += (int)fmax(i - offset + 1, 0) % (int)fmax(s->sharing, 1) == 0;
    s->followers = s->layers - s->indexers;
    return TOOL_OK;
}

static int set_model(const char *path, const json_t *config, plan_model *m) {
    plan_shape s;
    int mla = kind_of(path, config);
    int code = mla < 0 ? TOOL_BAD_INPUT : plan_shape_read(config, 1, path, &s);
    if (code != TOOL_OK)
        return code;
    *m = (plan_model){.entry_tokens = 1};
    snprintf(m->id, sizeof m->id, "%s", json_string_value(json_object_get(config, "model_type")));
    if (!mla) { /* its name of the same thing; it has no selector */
        s.experts = fmin(fmax(plan_number(config, "num_experts", 0), 0), 65536);
        s.latent = s.k = s.sharing = 0;
    }
    code = check(path, &s, mla);
    if (code == TOOL_OK && mla)
        code = count_indexers(path, config, &s);
    if (code == TOOL_OK)
        code = plan_shape_check(path, &s);
    if (code != TOOL_OK)
        return code;
    m->index_bytes = s.index_dim + 4; /* e4m3 and a float32 scale */
    plan_shape_rows(&s, m->row_bytes);
    plan_shape_finish(&s, m);
    m->parameters = plan_shape_parameters(&s);
    return TOOL_OK;
}

int plan_read_config(const char *path, plan_model *model_out) {
    json_t *config = plan_load(path);
    int code = config ? set_model(path, config, model_out) : TOOL_BAD_INPUT;
    json_decref(config);
    return code;
}
