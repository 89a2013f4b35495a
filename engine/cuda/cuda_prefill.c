/* SPDX-License-Identifier: Apache-2.0 */
/* The prompt on the GPU, layer by layer, as engine/prefill.c reads it: all tokens go through a layer, some hundred at a
 * time, over the rows of that layer, before they come to the next. One layer of rows is all that need be there. */
#include "cuda_gpu.h"

enum { TOKENS_AT_ONCE = 256 };

typedef struct prompt {
    gpu *g;
    decoder *const *ds;
    int32_t n_decoders, n;
    gpu_pass pass;
    gpu_arena memory;
    kv *rows;       /* of one layer */
    int32_t *token; /* [n] */
    float *x;       /* [n][embedding] */
    prefill_progress progress;
    void *context;
} prompt;

static int open_prompt(prompt *p, const int32_t *tokens) {
    const gpu_decoder *first = (const gpu_decoder *)p->ds[0];
    gpu *g = p->g;
    int32_t at_once = p->n < TOKENS_AT_ONCE ? p->n : TOKENS_AT_ONCE;
    size_t n = (size_t)p->n, e = (size_t)g->m->embedding;
    if (gpu_pass_open(&p->pass, g, first->pass.top_k, first->pass.max_tokens, at_once, 1) != 0)
        return -1;
    p->rows = gpu_rows_open(g, g->m->stores, p->n);
    p->token = gpu_grab(g, &p->memory, n, sizeof *p->token);
    p->x = gpu_grab(g, &p->memory, n * e, sizeof *p->x);
    if (g->failed)
        return -1;
    GPU_RUN(g, cudaMemcpyAsync(p->token, tokens, n * sizeof *tokens, cudaMemcpyHostToDevice, g->stream));
    GPU_RUN(g, gpu_embed(g->token_embedding, p->token, g->m->embedding, p->n, p->x, g->stream));
    return gpu_wait(g) ? 0 : -1;
}

static void close_prompt(prompt *p) {
    cudaStreamSynchronize(p->g->stream);
    gpu_pass_close(&p->pass);
    gpu_release(&p->memory);
    if (p->rows)
        p->rows->close(p->rows);
}

static char *state_of(decoder *d, int32_t layer) {
    gpu_decoder *gd = (gpu_decoder *)d;
    return gd->state + (size_t)layer * gd->pass.state_bytes;
}

/* Tokens first .. first + n - 1 through a layer. */
static void run_tokens(prompt *p, int32_t layer, int32_t first, int32_t n) {
    gpu *g = p->g;
    const model *m = g->m;
    gpu_pass *pass = &p->pass;
    char *state = state_of(p->ds[0], layer);
    gpu_pass_set(pass, n);
    pass->bound = first + n;
    pass->x = p->x + (size_t)first * (size_t)m->embedding;
    GPU_RUN(g, gpu_count(first, n, pass->n_tokens, g->stream));
    gpu_layer_begin(pass, layer);
    for (int32_t s = 0; s < m->stores; s++)
        p->rows->fill(p->rows, s, first, n, gpu_rows_of(pass, s));
    pass->kind->keep(pass, &g->layer[layer], state);
    pass->kind->attend(pass, layer, state, p->rows);
    gpu_layer_end(pass, layer);
}

/* The layer's rows and what its selector keeps, to everyone. */
static void hand_out(prompt *p, int32_t layer) {
    const model *m = p->g->m;
    hsp_plane_view planes[HSP_MAX_PLANES];
    for (int32_t i = 0; i < p->n_decoders; i++) {
        kv *rows = p->ds[i]->rows;
        for (int32_t s = 0; s < m->stores; s++) {
            p->rows->views(p->rows, s, planes);
            if (rows->fill(rows, layer * m->stores + s, 0, p->n, planes[0].base) != 0)
                gpu_fail(p->g, "%s", rows->error);
        }
        if (i > 0)
            GPU_RUN(p->g, cudaMemcpyAsync(state_of(p->ds[i], layer), state_of(p->ds[0], layer), p->pass.state_bytes,
                                          cudaMemcpyDeviceToDevice, p->g->stream));
    }
}

/* Share of a prefill that is done; what grows with the prefix is most of it. */
static double share_done(const prompt *p, int32_t layer, int32_t tokens) {
    double part = (double)tokens / p->n;
    return (layer + part * part) / p->g->m->n_layers;
}

static int run_layers(prompt *p) {
    for (int32_t layer = 0; layer < p->g->m->n_layers; layer++) {
        for (int32_t first = 0; first < p->n; first += TOKENS_AT_ONCE) {
            int32_t n = p->n - first < TOKENS_AT_ONCE ? p->n - first : TOKENS_AT_ONCE;
            run_tokens(p, layer, first, n);
            if (!gpu_wait(p->g))
                return -1;
            if (p->progress && p->progress(p->context, share_done(p, layer, first + n)))
                return 1;
        }
        hand_out(p, layer);
    }
    return gpu_wait(p->g) ? 0 : -1;
}

static void finish(prompt *p, decoder *d) {
    gpu_decoder *gd = (gpu_decoder *)d;
    size_t e = (size_t)p->g->m->embedding;
    gpu_logits(&p->pass, p->x + (size_t)(p->n - 1) * e, gd->logits);
    GPU_RUN(p->g, cudaMemcpyAsync(d->logits, gd->logits, (size_t)p->g->m->vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                  p->g->stream));
    d->length = p->n;
}

int gpu__prefill(decoder *const *ds, int n_decoders, const int32_t *tokens, int32_t n, prefill_progress progress,
                 void *context, const char **error_out) {
    prompt p = {.g = ((gpu_decoder *)ds[0])->g,
                .ds = ds,
                .n_decoders = n_decoders,
                .n = n,
                .progress = progress,
                .context = context};
    int result = open_prompt(&p, tokens) == 0 ? run_layers(&p) : -1;
    for (int i = 0; result == 0 && i < n_decoders; i++)
        finish(&p, ds[i]);
    if (result == 0 && !gpu_wait(p.g))
        result = -1;
    close_prompt(&p);
    *error_out = p.g->error;
    return result;
}
