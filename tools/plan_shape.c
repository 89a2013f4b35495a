/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_shape.h"

#include "tools.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { QUEST_TOKENS = 2048, QUEST_PAGE = 16 /* of models without a selector of their own */ };

#define FIELD(field, preset, config, least, most)                                                                      \
    { offsetof(plan_shape, field), preset, config, least, most }
const plan_field plan_fields[] = {
    FIELD(layers, "architecture.layers", "num_hidden_layers", 1, 4096),
    FIELD(dense_layers, "architecture.dense_first_k_layers", "first_k_dense_replace", 0, 4096),
    FIELD(hidden, "architecture.hidden_size", "hidden_size", 1, 1 << 20),
    FIELD(vocab, "architecture.vocab_size", "vocab_size", 1, 1 << 24),
    FIELD(heads, "attention.heads", "num_attention_heads", 1, 4096),
    FIELD(kv_heads, "attention.kv_heads", "num_key_value_heads", 1, 4096),
    FIELD(head_dim, "attention.head_dim", "head_dim", 0, 65536),
    FIELD(nope, "attention.qk_nope_head_dim", "qk_nope_head_dim", 0, 65536),
    FIELD(rope, "attention.qk_rope_head_dim", "qk_rope_head_dim", 0, 65536),
    FIELD(value, "attention.v_head_dim", "v_head_dim", 0, 65536),
    FIELD(query_rank, "attention.q_lora_rank", "q_lora_rank", 0, 1 << 20),
    FIELD(latent, "attention.kv_lora_rank", "kv_lora_rank", 0, 65536),
    FIELD(index_heads, "indexer.heads", "index_n_heads", 0, 4096),
    FIELD(index_dim, "indexer.head_dim", "index_head_dim", 0, 65536),
    FIELD(k, "indexer.topk", "index_topk", 0, 65535),
    FIELD(block_tokens, "indexer.block_tokens", NULL, 0, 4096),
    FIELD(indexers, "indexer.indexer_layer_count", NULL, 0, 4096),
    FIELD(followers, "indexer.shared_layer_count", NULL, 0, 4096),
    FIELD(sharing, "indexer.index_topk_freq", "index_topk_freq", 0, 4096),
    FIELD(experts, "experts.routed", "n_routed_experts", 0, 65536),
    FIELD(active, "experts.active_routed_per_token", "num_experts_per_tok", 0, 65536),
    FIELD(expert_width, "experts.routed_intermediate_size", "moe_intermediate_size", 0, 1 << 24),
    FIELD(shared_experts, "experts.shared", "n_shared_experts", 0, 4096),
    FIELD(dense_width, "experts.dense_intermediate_size", "intermediate_size", 0, 1 << 24),
};
const int plan_n_fields = sizeof plan_fields / sizeof plan_fields[0];

double plan_number(const json_t *object, const char *path, double otherwise) {
    char key[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        object = json_object_get(object, key);
        path += n + (path[n] == '.');
    }
    return json_is_number(object) ? json_number_value(object) : otherwise;
}

int plan_shape_read(const json_t *object, int config, const char *where, plan_shape *out) {
    *out = (plan_shape){0};
    for (int i = 0; i < plan_n_fields; i++) {
        const plan_field *f = &plan_fields[i];
        const char *path = config ? f->config : f->preset;
        double value = path ? plan_number(object, path, 0) : 0;
        if (path && (value < f->least || value > f->most || value != floor(value)))
            return tool_fail(TOOL_BAD_INPUT, "%s: %s is %.16g; it may be %.0f..%.0f", where, path, value, f->least,
                             f->most);
        memcpy((char *)out + f->offset, &value, sizeof value);
    }
    return TOOL_OK;
}

/* Parts are no more than their wholes. */
int plan_shape_check(const char *where, const plan_shape *s) {
    const struct {
        const char *what;
        double part, whole;
    } parts[] = {{"layers with a dense FFN of all layers", s->dense_layers, s->layers},
                 {"layers that select, or follow one, of all layers", s->indexers + s->followers, s->layers},
                 {"experts of a token of all experts", s->active, s->experts}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].part > parts[i].whole)
            return tool_fail(TOOL_BAD_INPUT, "%s: %s: %.0f of %.0f", where, parts[i].what, parts[i].part,
                             parts[i].whole);
    return TOOL_OK;
}

/* MLA: latent and rope channels; in blocks of 128 with a float32 scale each, rope channels in bf16 (FlashMLA's). Else K
 * and V of all heads. */
void plan_shape_rows(const plan_shape *s, double row_bytes[PLAN_FORMATS]) {
    double elements = s->latent > 0 ? s->latent + s->rope : 2 * s->kv_heads * s->head_dim;
    row_bytes[PLAN_BF16] = 2 * elements;
    row_bytes[PLAN_FP8] = elements;
    row_bytes[PLAN_FP8_BLOCK] = s->latent > 0 ? s->latent + s->latent / 128 * 4 + 2 * s->rope : 0;
}

static double attention_parameters(const plan_shape *s) {
    if (s->latent <= 0)
        return s->hidden * s->head_dim * (2 * s->heads + 2 * s->kv_heads);
    double queries = s->heads * (s->nope + s->rope);
    double query = s->query_rank > 0 ? s->query_rank * (s->hidden + queries) : s->hidden * queries;
    return query + s->hidden * (s->latent + s->rope) + s->latent * s->heads * (s->nope + s->value) +
           s->heads * s->value * s->hidden;
}

double plan_shape_parameters(const plan_shape *s) {
    double index = s->query_rank * s->index_heads * s->index_dim + s->hidden * (s->index_dim + s->index_heads);
    double dense = s->experts > 0 ? s->dense_layers : s->layers;
    double experts = 3 * s->hidden * s->expert_width * (s->experts + s->shared_experts) + s->hidden * s->experts;
    return 2 * s->vocab * s->hidden + s->layers * attention_parameters(s) + s->indexers * index +
           dense * 3 * s->hidden * s->dense_width + (s->layers - dense) * experts;
}

static void finish_attention(const plan_shape *s, plan_model *m) {
    int latent = s->latent > 0, own = s->indexers > 0;
    double dims = latent ? 2 * s->latent + s->rope : 2 * s->head_dim;
    double dense = own && m->entry_tokens == 1 ? m->layers - m->paged_layers : own ? 0 : m->layers;
    m->attention_flop = own ? 2.0 * m->paged_layers * s->heads * dims * m->k : 0;
    m->attention_flop_token = 2 * dense * s->heads * dims + /* Quest leaves prompts dense */
                              2.0 * m->groups * s->index_heads * s->index_dim * own / m->entry_tokens;
}

void plan_shape_finish(const plan_shape *s, plan_model *m) {
    m->layers = (int)s->layers;
    m->groups = (int)(s->indexers > 0 ? s->indexers : s->layers);
    m->paged_layers = (int)(s->indexers > 0 ? s->indexers + s->followers : s->layers);
    m->kv_shards = s->latent > 0 ? 1 : (int)s->kv_heads;
    m->group_layers = (int)fmax(s->sharing, 1);
    m->index_shards = s->indexers > 0 ? 1 : m->kv_shards; /* index keys have one head, Quest's pages are per KV head */
    m->selections = s->block_tokens > 0 ? m->kv_shards : 1; /* block-sparse attention selects per KV head */
    m->k = (int)(s->k > 0 ? s->k * fmax(s->block_tokens, 1) : QUEST_TOKENS);
    if (s->indexers <= 0) /* Quest: minimum and maximum of each channel of a page's keys, bf16 */
        m->index_bytes = 2 * 2 * s->kv_heads * s->head_dim / QUEST_PAGE;
    m->routed_parameters =
        s->experts > 0 ? (s->layers - s->dense_layers) * s->experts * 3 * s->hidden * s->expert_width : 0;
    m->active_experts = s->experts > 0 ? s->active / s->experts : 0;
    finish_attention(s, m);
}
