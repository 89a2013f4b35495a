/* SPDX-License-Identifier: Apache-2.0 */
/* Rows on their way to host memory: the write-through of new rows, and prefill. */
#include "device.cuh"
#include "launch.h"

template <typename piece>
static __device__ __forceinline__ void copy_pieces(char *to, const char *from, uint32_t bytes) {
    for (uint32_t i = threadIdx.x % 32; i < bytes / sizeof(piece); i += 32)
        ((piece *)to)[i] = ((const piece *)from)[i];
}

/* Copy one plane of a row with the threads of one warp. The caller's rows may have any address and stride. */
static __device__ __forceinline__ void copy_plane(char *to, const char *from, uint32_t bytes) {
    uintptr_t all = (uintptr_t)to | (uintptr_t)from | bytes;
    if (all % 16 == 0)
        copy_pieces<uint4>(to, from, bytes);
    else if (all % 4 == 0)
        copy_pieces<uint32_t>(to, from, bytes);
    else
        copy_pieces<char>(to, from, bytes);
}

static __device__ __forceinline__ char *host_row(const hsp__cuda_write &p, int32_t slot, int32_t token) {
    int32_t page = p.state.page[(uint64_t)slot * p.max_pages + token / HSP_PAGE_TOKENS];
    return p.host + ((uint64_t)page * HSP_PAGE_TOKENS + token % HSP_PAGE_TOKENS) * p.host_stride + p.host_row_offset;
}

static __device__ __forceinline__ char *ring_plane(const hsp__cuda_write &p, int32_t slot, int32_t token, int plane) {
    uint64_t id = (uint64_t)slot * p.id_stride + p.n_slots + token % p.ring_rows;
    uint64_t block = id / p.block_rows, row = id % p.block_rows;
    return p.device + block * p.block_stride + (uint64_t)p.plane_offset[plane] * p.block_rows +
           row * p.plane_bytes[plane];
}

/* Rows of tokens first .. first + n - 1 are there now. A hole, left by a forgotten append, must stay unreadable. */
static __device__ void note_written(const hsp__cuda_write &p, int32_t slot, int32_t first, int32_t n, int filled) {
    int32_t *written = &p.state.written[(uint64_t)slot * p.n_layers + p.layer];
    hsp_counters *counters = &p.state.counters[(uint64_t)slot * p.n_groups + p.group];
    if (*written >= first && *written < first + n)
        *written = first + n;
    *(filled ? &counters->filled_rows : &counters->appended_rows) += n;
    if (filled && p.state.ring_first[slot] < first + n)
        p.state.ring_first[slot] = first + n;
}

/* One block an entry of the batch, one warp a new row. */
__global__ void append_kernel(const __grid_constant__ hsp__cuda_write p) {
    int32_t slot = p.state.batch_slot[blockIdx.x], first = p.state.batch_first[blockIdx.x];
    int32_t n_new = p.state.batch_n_new[blockIdx.x];
    if (slot < 0)
        return;
    for (int32_t i = threadIdx.x / 32; i < n_new; i += blockDim.x / 32) {
        char *host = host_row(p, slot, first + i);
        for (int plane = 0; plane < p.n_planes; plane++) {
            const char *from = p.plane[plane] + ((uint64_t)blockIdx.x * p.rows_per_request + i) * p.stride[plane];
            copy_plane(ring_plane(p, slot, first + i, plane), from, p.plane_bytes[plane]);
            copy_plane(host + p.plane_offset[plane], from, p.plane_bytes[plane]);
        }
    }
    if (threadIdx.x == 0)
        note_written(p, slot, first, n_new, 0);
}

/* One warp a row. */
__global__ void fill_kernel(const __grid_constant__ hsp__cuda_write p) {
    int32_t warps = gridDim.x * (blockDim.x / 32), at = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (int32_t i = at; i < p.n; i += warps) {
        char *host = host_row(p, p.slot, p.first + i);
        for (int plane = 0; plane < p.n_planes; plane++)
            copy_plane(host + p.plane_offset[plane], p.plane[plane] + (uint64_t)i * p.stride[plane],
                       p.plane_bytes[plane]);
    }
    if (at == 0 && threadIdx.x == 0)
        note_written(p, p.slot, p.first, p.n, 1);
}

cudaError_t hsp__cuda_append_launch(const hsp__cuda_write *p, int batch, cudaStream_t stream) {
    int warps = p->rows_per_request < 8 ? p->rows_per_request : 8;
    return hsp__cuda_launch((const void *)append_kernel, {batch, warps * 32, 1, 0, 0}, p, stream);
}

cudaError_t hsp__cuda_fill_launch(const hsp__cuda_write *p, cudaStream_t stream) {
    int blocks = (p->n + 7) / 8;
    return hsp__cuda_launch((const void *)fill_kernel, {blocks < 264 ? blocks : 264, 256, 1, 0, 0}, p, stream);
}
