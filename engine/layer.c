/* SPDX-License-Identifier: Apache-2.0 */
/* What every layer of every model does around its attention. */
#include "arithmetic.h"
#include "attend.h"

#include <stdlib.h>

int activations_open(const attend *a, int32_t n, activations *x) {
    const model *m = a->m;
    size_t tokens = (size_t)n, row_bytes = (size_t)m->plane_bytes[0] + (size_t)m->plane_bytes[1];
    *x = (activations){.n = n,
                       .x = attend_grab(tokens * (size_t)m->embedding, sizeof(float)),
                       .normed = attend_grab(tokens * (size_t)m->embedding, sizeof(float)),
                       .gate = attend_grab(tokens * (size_t)m->ffn, sizeof(float)),
                       .up = attend_grab(tokens * (size_t)m->ffn, sizeof(float)),
                       .query = attend_grab(tokens * a->sizes.query, sizeof(float)),
                       .attended = attend_grab(tokens * a->sizes.attended, sizeof(float)),
                       .rows = attend_grab(tokens * (size_t)m->stores, row_bytes)};
    int there = x->x && x->normed && x->gate && x->up && x->query && x->attended && x->rows;
    for (int i = 0; i < ATTEND_PARTS; i++)
        there &= (x->part[i] = attend_grab(tokens * a->sizes.part[i], sizeof(float))) != NULL;
    return there ? 0 : -1;
}

void activations_close(activations *x) {
    free(x->x);
    free(x->normed);
    free(x->gate);
    free(x->up);
    free(x->query);
    free(x->attended);
    free(x->rows);
    for (int i = 0; i < ATTEND_PARTS; i++)
        free(x->part[i]);
}

void layer_begin(const attend *a, int32_t layer, const activations *x) {
    const model_layer *w = &a->m->layer[layer];
    math_rms_norm(x->x, w->attention_norm, a->m->embedding, x->n, a->m->norm_epsilon, x->normed);
    a->kind->project(a, w, x);
}

void layer_end(const attend *a, int32_t layer, const activations *x) {
    const model *m = a->m;
    const model_layer *w = &m->layer[layer];
    int64_t numbers = (int64_t)x->n * m->embedding;
    math_project(w->output, m->embedding, (int32_t)a->sizes.attended, x->attended, x->n, x->normed);
    math_add(x->x, x->normed, numbers);
    math_rms_norm(x->x, w->ffn_norm, m->embedding, x->n, m->norm_epsilon, x->normed);
    math_project(w->gate, m->ffn, m->embedding, x->normed, x->n, x->gate);
    math_project(w->up, m->ffn, m->embedding, x->normed, x->n, x->up);
    math_swiglu(x->gate, x->up, (int64_t)x->n * m->ffn);
    math_project(w->down, m->embedding, m->ffn, x->gate, x->n, x->normed);
    math_add(x->x, x->normed, numbers);
}
