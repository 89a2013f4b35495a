/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a model, a JSON object in the metadata of a safetensors file (docs/models.md). */
#include "mapped_file.h"
#include "model_safetensors.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { BYTES = 256, MOST = 1024, MOST_TOP_K = 65472 };

typedef struct metadata {
    model_loader *l;
    model *m;
    json_t *shape;
} metadata;

/* An error about a key of the object. */
#define fail(d, key, ...) model__fail((d)->l, "hisparse", key, __VA_ARGS__)

/* ------------------------------------------------------------------------------------------------------ metadata -- */

/* An integer of the metadata in least..most. */
static int32_t need_int(metadata *d, const char *key, int64_t least, int64_t most) {
    json_t *value = json_object_get(d->shape, key);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value))
        return fail(d, key, "missing, or not an integer");
    if (number < least || number > most)
        return fail(d, key, "is %lld; it may be %lld..%lld", (long long)number, (long long)least, (long long)most);
    return (int32_t)number;
}

static double need_positive(metadata *d, const char *key) {
    json_t *value = json_object_get(d->shape, key);
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number > 0))
        return fail(d, key, "missing, or not a positive number");
    return number;
}

/* Whether a text of the metadata is `word`. */
static int says(const metadata *d, const char *key, const char *word) {
    const char *text = json_string_value(json_object_get(d->shape, key));
    return text && strcmp(text, word) == 0;
}

static void need_even(metadata *d, const char *key, int32_t value) {
    if (value % 2)
        fail(d, key, "is %d; it must be even", value);
}

/* ---------------------------------------------------------------------------------------------------- the shapes -- */

static void read_gqa(metadata *d) {
    model *m = d->m;
    m->n_kv_heads = need_int(d, "n_kv_heads", 1, MOST);
    m->head_dim = need_int(d, "head_dim", 2, MOST);
    need_even(d, "head_dim", m->head_dim);
    if (!d->l->failed && m->n_heads % m->n_kv_heads)
        fail(d, "n_heads", "is %d; it must be a multiple of the KV heads, %d", m->n_heads, m->n_kv_heads);
}

static void read_top_k(metadata *d) {
    d->m->top_k = need_int(d, "top_k", HSP_ATTENTION_TILE, MOST_TOP_K);
    if (d->m->top_k % HSP_ATTENTION_TILE)
        fail(d, "top_k", "is %d; it must be a multiple of %d", d->m->top_k, HSP_ATTENTION_TILE);
}

static void read_quest(metadata *d) {
    model *m = d->m;
    read_gqa(d);
    read_top_k(d);
    m->dense_layers = need_int(d, "dense_layers", 0, m->n_layers);
    m->quest.page_tokens = need_int(d, "page_tokens", 1, HSP_ATTENTION_TILE);
    if (!d->l->failed && HSP_ATTENTION_TILE % m->quest.page_tokens)
        fail(d, "page_tokens", "is %d; it must divide %d", m->quest.page_tokens, HSP_ATTENTION_TILE);
    if (!d->l->failed)
        model__set_gqa(m);
}

static void check_nsa(metadata *d) {
    const hsp_nsa_shape *nsa = &d->m->nsa;
    if (nsa->compress_tokens % nsa->compress_stride || nsa->block_tokens % nsa->compress_stride)
        fail(d, "compress_stride", "is %d; it must divide compress_tokens, %d, and block_tokens, %d",
             nsa->compress_stride, nsa->compress_tokens, nsa->block_tokens);
    if (nsa->n_first + nsa->n_local > nsa->n_blocks)
        fail(d, "n_blocks", "is %d; n_first and n_local are %d together", nsa->n_blocks, nsa->n_first + nsa->n_local);
    if ((int64_t)nsa->n_blocks * nsa->block_tokens > MOST_TOP_K)
        fail(d, "n_blocks", "is %d, of %d tokens each; together they may be 1..%d", nsa->n_blocks, nsa->block_tokens,
             MOST_TOP_K);
}

static void read_nsa(metadata *d) {
    model *m = d->m;
    read_gqa(d);
    float scale = 1 / sqrtf((float)m->head_dim);
    m->compressed =
        (hsp_gqa_shape){sizeof m->compressed, m->n_heads, m->n_kv_heads, m->head_dim, m->head_dim, HSP_F32, scale};
    m->nsa = (hsp_nsa_shape){.struct_size = sizeof m->nsa,
                             .n_heads = m->n_heads,
                             .n_kv_heads = m->n_kv_heads,
                             .key_dim = m->head_dim,
                             .dtype = HSP_F32,
                             .compress_tokens = need_int(d, "compress_tokens", 1, 1 << 16),
                             .compress_stride = need_int(d, "compress_stride", 1, 1 << 16),
                             .block_tokens = need_int(d, "block_tokens", 1, 1 << 16),
                             .n_blocks = need_int(d, "n_blocks", 1, 1 << 16),
                             .n_first = need_int(d, "n_first", 0, 1 << 16),
                             .n_local = need_int(d, "n_local", 0, 1 << 16),
                             .scale = scale};
    m->window = need_int(d, "window", 1, MOST_TOP_K);
    if (d->l->failed)
        return;
    check_nsa(d);
    m->top_k = m->nsa.n_blocks * m->nsa.block_tokens;
    model__set_gqa(m);
}

static void read_index(metadata *d) {
    model *m = d->m;
    int e4m3 = says(d, "index_dtype", "e4m3");
    if (!e4m3 && !says(d, "index_dtype", "bf16"))
        fail(d, "index_dtype", "missing, or not one of bf16 and e4m3");
    m->index = (hsp_dsa_shape){.struct_size = sizeof m->index,
                               .n_heads = need_int(d, "index_heads", 1, MOST),
                               .head_dim = need_int(d, "index_dim", 16, 4096),
                               .dtype = e4m3 ? HSP_E4M3 : HSP_BF16};
    m->index_rope_dim = need_int(d, "index_rope_dim", 2, m->index.head_dim);
    need_even(d, "index_rope_dim", m->index_rope_dim);
    if (m->index.head_dim & (m->index.head_dim - 1))
        fail(d, "index_dim", "is %d; it must be a power of two", m->index.head_dim);
}

static void read_dsa(metadata *d) {
    model *m = d->m;
    m->n_kv_heads = 1;
    m->nope_dim = need_int(d, "nope_dim", 1, MOST);
    m->value_dim = need_int(d, "value_dim", 1, MOST);
    m->mla = (hsp_mla_shape){.struct_size = sizeof m->mla,
                             .n_heads = m->n_heads,
                             .latent_dim = need_int(d, "latent_dim", 1, 4096),
                             .rope_dim = need_int(d, "rope_dim", 2, MOST),
                             .format = HSP_MLA_BF16};
    m->mla.scale = 1 / sqrtf((float)(m->nope_dim + m->mla.rope_dim));
    need_even(d, "rope_dim", m->mla.rope_dim);
    read_index(d);
    read_top_k(d);
    m->stores = m->n_planes = 1;
    m->plane_bytes[0] = (m->mla.latent_dim + m->mla.rope_dim) * 2;
}

static void read_rope(metadata *d) {
    model *m = d->m;
    double theta = need_positive(d, "rope_theta");
    if (d->l->failed)
        return;
    m->rope_frequency = model__rope_frequency(theta, m->kind == MODEL_DSA ? m->mla.rope_dim : m->head_dim);
    m->index_rope_frequency = model__rope_frequency(theta, m->index_rope_dim);
    if (!m->rope_frequency || !m->index_rope_frequency)
        fail(d, "rope_theta", "not enough memory for the angles");
}

static void read_shape(metadata *d) {
    static const struct {
        const char *name;
        enum model_kind kind;
        void (*read)(metadata *d);
    } known[] = {
        {"gqa_quest", MODEL_QUEST, read_quest}, {"gqa_nsa", MODEL_NSA, read_nsa}, {"mla_dsa", MODEL_DSA, read_dsa}};
    model *m = d->m;
    size_t i = 0;
    while (i < sizeof known / sizeof known[0] && !says(d, "architecture", known[i].name))
        i++;
    if (i == sizeof known / sizeof known[0])
        return (void)fail(d, "architecture", "missing, or not one of gqa_quest, gqa_nsa and mla_dsa");
    m->kind = known[i].kind;
    m->n_layers = need_int(d, "n_layers", 1, MOST);
    m->embedding = need_int(d, "embedding", 1, 1 << 17);
    m->ffn = need_int(d, "ffn", 1, 1 << 20);
    m->vocab = need_int(d, "vocab", BYTES, BYTES);
    m->context = need_int(d, "context", 2, 4194304);
    m->n_heads = need_int(d, "n_heads", 1, MOST);
    m->norm_epsilon = (float)need_positive(d, "norm_epsilon");
    if (!d->l->failed)
        known[i].read(d);
    read_rope(d);
}

void model__read_shape(model_loader *l) {
    const char *text = safetensors_metadata(l->file, "hisparse");
    json_error_t why;
    char shown[128];
    if (!text) {
        model__fail(l, "__metadata__", "__metadata__", "has no text \"hisparse\": not a model that can be run");
        return;
    }
    metadata d = {l, l->m, json_loads(text, JSON_REJECT_DUPLICATES, &why)};
    if (!d.shape)
        fail(&d, "hisparse", "%s", mapped_file_printable(why.text, strlen(why.text), shown, sizeof shown));
    else if (!json_is_object(d.shape))
        fail(&d, "hisparse", "is not a JSON object");
    else
        read_shape(&d);
    json_decref(d.shape);
}
