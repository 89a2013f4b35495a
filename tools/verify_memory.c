/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for what goes into the calls and comes out of them, and the rows of a GPU brought where they can be compared.
 */
#include "gpu.h"
#include "tools.h"
#include "verify.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_SHARED = 1 << 20 };

static int fails(verify_pair *p, const char *reason) {
    if (!p->failed)
        p->failed = tool_fail(TOOL_FAILED, "%s", reason);
    return p->failed;
}

/* -------------------------------------------------------------------------------------------------------- sides -- */

static uint32_t capabilities_of(const char *name) {
    hsp_backend_desc desc = {.struct_size = sizeof desc};
    for (int32_t i = 0; hsp_backend_info(i, &desc) == HSP_OK; i++)
        if (strcmp(desc.name, name) == 0)
            return desc.capabilities;
    return 0;
}

int verify_sides_open(verify_sides *s, const char *backend, const char *against) {
    *s = (verify_sides){.name = {backend, against}};
    for (int side = 0; side < 2; side++) {
        int own_memory = 0;
        if (tool_check_backend(s->name[side], &own_memory) != TOOL_OK)
            return TOOL_BAD_INPUT;
        if (own_memory && !s->gpu && !(s->gpu = gpu_table(GPU_MEMORY)))
            return TOOL_BAD_INPUT;
        s->capabilities[side] = capabilities_of(s->name[side]);
    }
    return TOOL_OK;
}

void verify_sides_close(verify_sides *s) {
    if (s->gpu)
        s->gpu->release(s->shared);
    *s = (verify_sides){.gpu = NULL};
}

/* ----------------------------------------------------------------------------------------------------- borrowing -- */

int verify_wait(verify_pair *p) {
    const gpu_memory *gpu = p->sides->gpu;
    return !p->failed && gpu && gpu->wait() != 0 ? fails(p, gpu->error()) : p->failed;
}

void verify_clear_shared(verify_sides *s) {
    if (s->most_lent)
        memset(s->shared, 0, s->most_lent);
    s->most_lent = 0;
}

/* Make the block as large as that. The GPU must be done with the old one. */
static int grow(verify_pair *p, size_t bytes) {
    verify_sides *s = p->sides;
    size_t larger = LEAST_SHARED;
    void *memory = NULL;
    while (larger < bytes)
        larger *= 2;
    s->gpu->release(s->shared);
    s->shared = NULL;
    s->shared_bytes = s->most_lent = 0;
    if (s->gpu->alloc_shared(larger, &memory) != 0)
        return fails(p, s->gpu->error());
    s->shared = memset(memory, 0, larger);
    s->shared_bytes = larger;
    return TOOL_OK;
}

/* Pieces follow each other without a gap, so that they start at every address that the calls allow. */
static int borrow_shared(verify_pair *p, const size_t *bytes, int n, void **pieces_out) {
    verify_sides *s = p->sides;
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += bytes[i];
    if (verify_wait(p) != TOOL_OK || ((!s->shared || total > s->shared_bytes) && grow(p, total) != TOOL_OK))
        return p->failed;
    s->most_lent = total > s->most_lent ? total : s->most_lent;
    for (int i = n; i-- > 0; total -= bytes[i])
        pieces_out[i] = s->shared + total - bytes[i];
    return TOOL_OK;
}

int verify_borrow(verify_pair *p, const size_t *bytes, int n, void **pieces_out) {
    if (p->failed)
        return p->failed;
    if (p->sides->gpu)
        return borrow_shared(p, bytes, n, pieces_out);
    int missing = 0;
    for (int i = 0; i < n; i++)
        missing |= !(pieces_out[i] = calloc(bytes[i] ? bytes[i] : 1, 1));
    if (!missing)
        return TOOL_OK;
    verify_give_back(p, pieces_out, n);
    return fails(p, "out of memory");
}

void verify_give_back(verify_pair *p, void **pieces, int n) {
    for (int i = 0; !p->sides->gpu && i < n; i++)
        free(pieces[i]);
}

/* -------------------------------------------------------------------------------------------------------- mirror -- */

/* Bytes from the first row of the first plane to the end of the last row: the planes lie one after the other in each
 * block, so that a layer is one piece of memory. */
static size_t layer_span(const hsp_rows_view *view) {
    size_t most = 0, last = (size_t)view->n_rows - 1;
    for (int32_t i = 0; i < view->n_planes; i++) {
        const hsp_plane_view *v = &view->plane[i];
        size_t per_block = (size_t)v->rows_per_block, start = (size_t)((char *)v->base - (char *)view->plane[0].base);
        size_t end = start + last / per_block * v->block_stride + last % per_block * v->row_stride + v->row_bytes;
        most = end > most ? end : most;
    }
    return most;
}

int verify_mirror(verify_pair *p, int side) {
    size_t bytes = 0, at = 0;
    if (!(p->sides->capabilities[side] & HSP_OWN_MEMORY))
        return TOOL_OK;
    for (int32_t layer = 0; layer < p->config.n_layers; layer++)
        bytes += layer_span(&p->view[side][layer]);
    if (!(p->mirror[side] = malloc(bytes + 1)))
        return fails(p, "out of memory");
    for (int32_t layer = 0; layer < p->config.n_layers; layer++) {
        hsp_rows_view *view = &p->view[side][layer];
        const char *first = view->plane[0].base;
        size_t span = layer_span(view);
        for (int32_t i = 0; i < view->n_planes; i++)
            view->plane[i].base = p->mirror[side] + at + ((const char *)view->plane[i].base - first);
        p->device_rows[side][layer] = first;
        at += span;
    }
    return TOOL_OK;
}

/* One copy a layer: hundreds of small ones would take longer than everything else. */
void verify_see_rows(verify_pair *p, int32_t layer) {
    for (int side = 0; side < 2 && !p->failed; side++) {
        const hsp_rows_view *view = &p->view[side][layer];
        if (p->mirror[side] &&
            p->sides->gpu->copy(view->plane[0].base, p->device_rows[side][layer], layer_span(view)) != 0)
            fails(p, p->sides->gpu->error());
    }
}
