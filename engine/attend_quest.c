/* SPDX-License-Identifier: Apache-2.0 */
/* GQA whose layers attend to the pages that Quest selects, but for the first, which attend to everything, as all do
 * while the prompt is read: Quest is a method of decoding. */
#include "arithmetic.h"
#include "attend.h"

enum { KEY, VALUE }; /* parts */

static int measure(attend *a) {
    const model *m = a->m;
    attend_sizes *s = &a->sizes;
    int32_t most =
        a->max_tokens > a->top_k ? a->max_tokens : a->top_k; /* a selection is top_k long, however few tokens */
    if (a->top_k < 1 || a->top_k % HSP_ATTENTION_TILE)
        return HSP_EINVAL;
    s->query = s->attended = (size_t)m->n_heads * (size_t)m->head_dim;
    s->part[KEY] = s->part[VALUE] = (size_t)m->n_kv_heads * (size_t)m->head_dim;
    s->selection = s->ids = (size_t)a->top_k;
    int status = hsp_quest_bytes(&m->quest, a->max_tokens, &s->state);
    if (status == HSP_OK)
        status = hsp_quest_scratch(&m->quest, a->max_tokens, &s->select_bytes);
    return status == HSP_OK ? hsp_gqa_scratch(&m->attention, most, &s->attention_bytes) : status;
}

static void project(const attend *a, const model_layer *w, const activations *x) {
    const model *m = a->m;
    int32_t q = (int32_t)a->sizes.query, numbers = (int32_t)a->sizes.part[KEY];
    math_rotation rotation = {m->n_heads, m->head_dim, m->head_dim, 0, m->rope_frequency};
    math_project(w->query, q, m->embedding, x->normed, x->n, x->query);
    math_project(w->key, numbers, m->embedding, x->normed, x->n, x->part[KEY]);
    math_project(w->value, numbers, m->embedding, x->normed, x->n, x->part[VALUE]);
    math_rope(&rotation, x->query, x->n, x->first);
    rotation.heads = m->n_kv_heads;
    math_rope(&rotation, x->part[KEY], x->n, x->first);
    attend_pack(a, x, 0, 0, x->part[KEY], a->sizes.part[KEY], a->sizes.part[KEY]);
    attend_pack(a, x, 0, (size_t)m->plane_bytes[0], x->part[VALUE], a->sizes.part[VALUE], a->sizes.part[VALUE]);
}

/* Also right for the tokens of a prompt before its last page is whole: the page of the newest token is always in, and
 * later tokens are in no page before it. */
static void keep(const attend *a, const model_layer *w, void *state, const activations *x) {
    size_t row_bytes = (size_t)a->m->plane_bytes[0] + (size_t)a->m->plane_bytes[1];
    (void)w;
    hsp_quest_update(&a->m->quest, state, x->rows, row_bytes, x->first, x->n);
}

/* Everything, in chunks of top_k tokens, since no more rows may be asked for at once. Every other token goes through
 * the chunks backwards: what the last one read last is still resident then. Tiles are combined in the same order either
 * way. */
static int attend_all(const attend *a, const attend_place *place, const float *query, int32_t n_tokens,
                      const attend_worker *w) {
    int32_t n_chunks = (n_tokens + a->top_k - 1) / a->top_k;
    for (int32_t i = 0; i < n_chunks; i++) {
        int32_t first = (n_tokens % 2 ? n_chunks - 1 - i : i) * a->top_k;
        int32_t n = n_tokens - first < a->top_k ? n_tokens - first : a->top_k;
        for (int32_t t = 0; t < n; t++)
            w->selection[t] = first + t;
        if (attend_rows(a, place->rows, place->layer, query, w->selection, n, first / HSP_ATTENTION_TILE, w) != 0)
            return -1;
    }
    return (n_tokens + HSP_ATTENTION_TILE - 1) / HSP_ATTENTION_TILE;
}

static void rank_next(const attend *a, const void *stats, int32_t n_tokens, const float *query, const attend_worker *w,
                      kv_next *next) {
    int32_t page_tokens = a->m->quest.page_tokens;
    hsp_quest_scores(&a->m->quest, stats, n_tokens, query, next->work, w->select_scratch);
    attend_rank_next(next, (n_tokens + page_tokens - 1) / page_tokens, page_tokens, w->selection, a->top_k);
}

static int attend_selected(const attend *a, const attend_place *place, const float *query, int32_t n_tokens,
                           const attend_worker *w) {
    hsp_quest_select(&a->m->quest, place->state, n_tokens, query, a->top_k, w->selection, w->select_scratch);
    if (attend_next(place))
        rank_next(a, place->state, n_tokens, query, w, attend_next(place));
    if (attend_rows(a, place->rows, place->layer, query, w->selection, a->top_k, 0, w) != 0)
        return -1;
    return a->top_k / HSP_ATTENTION_TILE;
}

static int token(const attend *a, const attend_place *place, const activations *x, int32_t t, const attend_worker *w) {
    const float *query = x->query + (size_t)t * a->sizes.query;
    int dense = place->is_prompt || place->layer < a->m->dense_layers;
    int32_t n_tiles = (dense ? attend_all : attend_selected)(a, place, query, x->first + t + 1, w);
    if (n_tiles < 0)
        return -1;
    hsp_gqa_combine(&a->m->attention, w->attention_scratch, n_tiles, NULL, x->attended + (size_t)t * a->sizes.attended,
                    NULL);
    return 0;
}

const attend_kind attend__quest = {measure, project, keep, token};
