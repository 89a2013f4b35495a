/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA attention: checks, and the choice of the kernel.
 */
#include "mla_launch.h"

#include "mla.h"

static int check(const hsp_mla_shape *shape, const hsp_plane_view *planes) {
    int status = hsp__mla_check(shape);
    if (status)
        return status;
    if (shape->latent_dim != (shape->format == HSP_MLA_V4 ? 448 : 512) || shape->rope_dim != 64)
        return HSP_EUNSUPPORTED;
    status = hsp__mla_check_planes(shape, planes);
    if (status)
        return status;
    if (!hsp__plane_aligned(planes, shape->format == HSP_MLA_BF16 ? 16 : 8))
        return HSP_EINVAL;
    return shape->format != HSP_MLA_V4 || hsp__plane_aligned(planes + 1, 8) ? HSP_OK : HSP_EINVAL;
}

int hsp__mla_no_wgmma;

/* wgmma is of compute capability 9.0 and no other. */
static int has_wgmma(int *has_out) {
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return HSP_EDEVICE;
    *has_out = major == 9 && minor == 0 && !hsp__mla_no_wgmma;
    return HSP_OK;
}

static int describe(const hsp_mla_shape *shape, const hsp_plane_view *planes, const hsp_gpu_batch *batch,
                    const float *query, const int32_t *row_ids, int32_t n_rows, int32_t n_chunks, const float *sink,
                    float *out, float *lse_out, hsp__attention *a) {
    int status = check(shape, planes);
    if (status == HSP_OK)
        status = hsp__gpu_check(batch);
    if (status)
        return status;
    a->plane[0] = hsp__plane_of(planes);
    if (shape->format == HSP_MLA_V4)
        a->plane[1] = hsp__plane_of(planes + 1);
    a->slot = batch->slot, a->row_ids = row_ids;
    a->query = query, a->sink = sink, a->out = out, a->lse = lse_out;
    a->n_queries = batch->n_queries, a->n_rows = n_rows, a->n_lists = 1;
    a->n_heads = shape->n_heads, a->n_kv_heads = 1;
    a->key_dim = hsp__mla_key_dim(shape), a->value_dim = hsp__mla_value_dim(shape);
    a->n_chunks = n_chunks, a->scale = shape->scale * HSP__LOG2E;
    a->head_blocks = (int32_t)hsp__gpu_pieces(shape->n_heads, HSP__MLA_HEADS);
    return hsp__attention_check(batch, *a);
}

int hsp_gpu_mla_attend(const hsp_mla_shape *shape, const hsp_plane_view *planes, const hsp_gpu_batch *batch,
                       const float *query, const int32_t *row_ids, int32_t n_rows, int32_t n_chunks, const float *sink,
                       float *out, float *lse_out, void *stream) {
    hsp__attention a = {};
    int wgmma = 0;
    int status = describe(shape, planes, batch, query, row_ids, n_rows, n_chunks, sink, out, lse_out, &a);
    if (status || batch->batch == 0)
        return status;
    status = has_wgmma(&wgmma);
    if (status)
        return status;
    return wgmma ? hsp__mla_hopper_launch(a, shape->format, batch, stream)
                 : hsp__mla_mma_launch(a, shape->format, batch, stream);
}
