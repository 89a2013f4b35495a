/* SPDX-License-Identifier: Apache-2.0
 *
 * The indexer's keys and queries: Hadamard transform and packing, a block a row. The sums are those of the CPU in the
 * same order, so that packed keys are equal to the byte.
 */
#include "dsa.h"
#include "dsa_layout.h"
#include "numbers.cuh"
#include "shapes.h"

#include <math.h>

enum { THREADS = 128 };

#define TOO_GREAT 0x1.ffp127f /* from here on bf16 rounds to infinity */

struct packing {
    hsp_gpu_batch batch;
    hsp__gpu_rows rows;   /* of keys */
    const float *values;  /* keys [batch][n_new][head_dim] or query [batch][n_queries][n_heads][head_dim] */
    const float *weights; /* of a query: [batch][n_queries][n_heads] */
    unsigned char *query_out;
    uint64_t image_bytes, numbers_bytes;
    int32_t n_new, n_heads, head_dim, dtype;
    float factor, of_heads; /* head_dim^-0.5, n_heads^-0.5 */
};

/* The least power of two that brings a magnitude to 448 or below; 448 is 0.875 * 2^9. */
static __device__ float scale_for(float greatest) {
    int exponent;
    float fraction = frexpf(greatest > 1e-4f ? greatest : 1e-4f, &exponent);
    return ldexpf(1.0f, exponent - (fraction > 0.875f ? 8 : 9));
}

/* Sixteen numbers as a product with the matrix, one sum after another; then butterflies. x, y: shared, [dim]; the
 * result is in what is returned, one of the two. */
static __device__ float *transform(float *x, float *y, int dim) {
    for (int c = threadIdx.x; c < dim; c += THREADS) {
        float sum = 0.0f;
        for (int i = 0; i < 16; i++) {
            float number = x[(c & ~15) + i];
            sum += __popc(i & c & 15) & 1 ? -number : number;
        }
        y[c] = sum;
    }
    __syncthreads();
    for (int span = 16; span < dim; span *= 2) {
        for (int c = threadIdx.x; c < dim; c += THREADS)
            x[c] = c & span ? y[c - span] - y[c] : y[c] + y[c + span];
        __syncthreads();
        float *swap = x;
        x = y;
        y = swap;
    }
    return y;
}

/* What the packed numbers are to be multiplied with, and in every thread the same. NaN: the row has an infinity. */
static __device__ float scale_row(float *x, const packing &p) {
    __shared__ float of_warp[THREADS / 32];
    float greatest = 0.0f;
    for (int c = threadIdx.x; c < p.head_dim; c += THREADS) {
        x[c] *= p.factor;
        greatest = fmaxf(greatest, fabsf(x[c]));
    }
    for (int span = 16; span > 0; span /= 2)
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, span));
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = greatest;
    __syncthreads();
    greatest = fmaxf(fmaxf(of_warp[0], of_warp[1]), fmaxf(of_warp[2], of_warp[3]));
    return greatest >= TOO_GREAT ? nanf("") : p.dtype == HSP_E4M3 ? scale_for(greatest) : 1.0f;
}

/* Transform a row; *scale_out is what its numbers must be divided by before they are packed. */
static __device__ float *prepare_row(const float *values, const packing &p, float *memory, float *scale_out) {
    for (int c = threadIdx.x; c < p.head_dim; c += THREADS)
        memory[c] = values[c];
    __syncthreads();
    float *x = transform(memory, memory + p.head_dim, p.head_dim);
    *scale_out = scale_row(x, p);
    return x;
}

static __global__ void __launch_bounds__(THREADS) pack_keys_kernel(const __grid_constant__ packing p) {
    extern __shared__ float memory[];
    int32_t entry = blockIdx.y, i = blockIdx.x, slot = p.batch.slot[entry];
    int64_t token = (int64_t)hsp__gpu_tokens(p.batch, entry, p.batch.n_queries - 1) - p.n_new + i;
    if (slot < 0 || token < 0)
        return;
    float scale, *x = prepare_row(p.values + ((size_t)entry * p.n_new + i) * p.head_dim, p, memory, &scale);
    unsigned char *row = p.rows.base + (uint64_t)slot * p.rows.request_stride + (uint64_t)token * p.rows.row_stride;
    float inverse = 1.0f / scale; /* powers of two: as exact as dividing */
    for (int c = threadIdx.x; c < p.head_dim; c += THREADS) {
        if (p.dtype == HSP_E4M3)
            row[c] = e4m3_of(x[c] * inverse);
        else
            ((uint16_t *)row)[c] = bf16_of(x[c] * inverse);
    }
    if (p.dtype == HSP_E4M3 && threadIdx.x == 0)
        *(float *)(row + p.head_dim) = scale;
}

/* A number as the scores' kernels read it. */
static __device__ void store_query(const packing &p, unsigned char *image, int head, int c, float x) {
    if (!hsp__dsa_is_fast(p.n_heads, p.head_dim)) {
        size_t at = (size_t)head * p.head_dim + c;
        if (p.dtype == HSP_E4M3)
            image[at] = e4m3_of(x);
        else
            ((uint16_t *)image)[at] = bf16_of(x);
        return;
    }
    int heads = hsp__dsa_group_heads(p.n_heads);
    uint16_t number = p.dtype == HSP_E4M3 ? __half_as_ushort(__float2half_rn(from_e4m3(e4m3_of(x)))) : bf16_of(x);
    unsigned char *group = image + (size_t)(head / heads) * hsp__dsa_group_bytes(heads);
    int s, half, quad, odd;
    hsp__dsa_number(p.dtype, c, &s, &half, &quad, &odd);
    *(uint16_t *)(group + hsp__dsa_place(heads, head % heads, s, half, quad, odd)) = number;
}

/* One block a head; heads that fill up the last group count for nothing. */
static __global__ void __launch_bounds__(THREADS) pack_query_kernel(const __grid_constant__ packing p) {
    extern __shared__ float memory[];
    int32_t head = blockIdx.x, query = blockIdx.y, entry = blockIdx.z;
    if (p.batch.slot[entry] < 0)
        return;
    size_t at = (size_t)entry * p.batch.n_queries + query;
    unsigned char *image = p.query_out + at * p.image_bytes;
    float *weights = (float *)(image + p.numbers_bytes);
    if (head >= p.n_heads) {
        for (int c = threadIdx.x; c < p.head_dim; c += THREADS)
            store_query(p, image, head, c, 0.0f);
        if (threadIdx.x == 0)
            weights[head] = 0.0f;
        return;
    }
    float scale, *x = prepare_row(p.values + (at * p.n_heads + head) * p.head_dim, p, memory, &scale);
    float inverse = 1.0f / scale;
    for (int c = threadIdx.x; c < p.head_dim; c += THREADS)
        store_query(p, image, head, c, x[c] * inverse);
    if (threadIdx.x == 0)
        weights[head] = p.weights[at * p.n_heads + head] * p.of_heads * scale * p.factor;
}

/* -------------------------------------------------------------------------------------------------- entry points -- */

static packing packing_of(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const float *values) {
    packing p = {};
    p.batch = *batch;
    p.values = values;
    p.n_heads = shape->n_heads;
    p.head_dim = shape->head_dim;
    p.dtype = shape->dtype;
    p.factor = (float)(1.0 / sqrt((double)shape->head_dim));
    p.of_heads = (float)(1.0 / sqrt((double)shape->n_heads));
    p.image_bytes = hsp__dsa_image_bytes(p.n_heads, p.head_dim, p.dtype);
    p.numbers_bytes = hsp__dsa_numbers_bytes(p.n_heads, p.head_dim, p.dtype);
    return p;
}

extern "C" int hsp_gpu_dsa_pack_keys(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const float *keys,
                                     int32_t n_new, void *rows, uint64_t request_stride, uint64_t row_stride,
                                     void *stream) {
    int status = hsp__check_dsa(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (n_new < 0 || (n_new && (!keys || !rows)) || row_stride < hsp__gpu_dsa_key_bytes(shape))
        return HSP_EINVAL;
    if (((uintptr_t)rows | row_stride | request_stride) % 4)
        return HSP_EINVAL;
    packing p = packing_of(shape, batch, keys);
    p.rows = {(unsigned char *)rows, request_stride, row_stride};
    p.n_new = n_new;
    return hsp__gpu_launch((const void *)pack_keys_kernel, dim3((unsigned)n_new, (unsigned)batch->batch), THREADS, 1,
                           2 * (size_t)p.head_dim * sizeof(float), &p, stream);
}

extern "C" int hsp_gpu_dsa_query_bytes(const hsp_dsa_shape *shape, size_t *bytes_out) {
    int status = hsp__check_dsa(shape);
    if (status)
        return status;
    if (!bytes_out)
        return HSP_EINVAL;
    *bytes_out = hsp__dsa_image_bytes(shape->n_heads, shape->head_dim, shape->dtype);
    return HSP_OK;
}

extern "C" int hsp_gpu_dsa_pack_query(const hsp_dsa_shape *shape, const hsp_gpu_batch *batch, const float *query,
                                      const float *weights, void *query_out, void *stream) {
    int status = hsp__check_dsa(shape);
    status = status ? status : hsp__gpu_check(batch);
    if (status)
        return status;
    if (!query || !weights || !query_out || (uintptr_t)query_out % 16)
        return HSP_EINVAL;
    packing p = packing_of(shape, batch, query);
    p.weights = weights;
    p.query_out = (unsigned char *)query_out;
    int heads = p.n_heads;
    if (hsp__dsa_is_fast(p.n_heads, p.head_dim))
        heads = hsp__dsa_group_count(p.n_heads) * hsp__dsa_group_heads(p.n_heads);
    dim3 grid((unsigned)heads, (unsigned)batch->n_queries, (unsigned)batch->batch);
    return hsp__gpu_launch((const void *)pack_query_kernel, grid, THREADS, 1, 2 * (size_t)p.head_dim * sizeof(float),
                           &p, stream);
}
