/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that come, go, or are cut back. Rare and off the hot path: one plain kernel each. */
#include "launch.h"

static __device__ uint64_t thread_index(void) {
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ uint64_t n_threads(void) {
    return (uint64_t)gridDim.x * blockDim.x;
}

/* Ring places are read by arithmetic, so a follower whose append was forgotten must not find another request's bytes.
 */
static __device__ void clear_ring(const hsp__cuda_admit &p) {
    for (int plane = 0; plane < p.n_planes; plane++) {
        uint64_t words = p.plane_bytes[plane] / 4, row_words = words * p.ring_rows;
        for (uint64_t i = thread_index(); i < row_words * p.n_layers; i += n_threads()) {
            uint64_t layer = i / row_words, ring = i % row_words / words, word = i % words;
            uint64_t id = (uint64_t)p.slot * p.rows_per_request + p.n_slots + ring;
            char *block = p.device + layer * p.layer_bytes + id / p.block_rows * p.block_stride;
            char *row =
                block + (uint64_t)p.plane_offset[plane] * p.block_rows + id % p.block_rows * p.plane_bytes[plane];
            ((uint32_t *)row)[word] = 0;
        }
    }
}

__global__ void admit_kernel(const __grid_constant__ hsp__cuda_admit p) {
    int32_t *tag = p.state.tag + (uint64_t)p.slot * p.n_groups * p.slot_stride;
    uint16_t *order = p.state.order + (uint64_t)p.slot * p.n_groups * p.slot_stride;
    bool ordered = p.policy == HSP_LRU || p.policy == HSP_FIFO;
    for (uint64_t i = thread_index(); i < (uint64_t)p.n_groups * p.slot_stride; i += n_threads()) {
        tag[i] = -1;
        order[i] = ordered ? (uint16_t)(i % p.slot_stride) : 0;
    }
    for (uint64_t i = thread_index(); i < p.n_groups; i += n_threads()) {
        p.state.cursor[(uint64_t)p.slot * p.n_groups + i] = 0;
        p.state.counters[(uint64_t)p.slot * p.n_groups + i] = hsp_counters{};
    }
    for (uint64_t i = thread_index(); i < p.n_layers; i += n_threads())
        p.state.written[(uint64_t)p.slot * p.n_layers + i] = 0;
    if (thread_index() == 0)
        p.state.ring_first[p.slot] = 0;
    clear_ring(p);
}

__global__ void retire_kernel(const __grid_constant__ hsp__cuda_admit p) {
    for (uint64_t g = thread_index(); g < p.n_groups; g += n_threads()) {
        uint64_t *from = (uint64_t *)&p.state.counters[(uint64_t)p.slot * p.n_groups + g];
        uint64_t *to = (uint64_t *)&p.state.retired[g];
        for (size_t i = 0; i < sizeof(hsp_counters) / sizeof(uint64_t); i++) {
            to[i] += from[i];
            from[i] = 0;
        }
    }
    /* What is left of the step under way must not touch the next owner of the slot. */
    for (uint64_t b = thread_index(); b < p.max_batch; b += n_threads())
        if (p.state.batch_slot[b] == p.slot)
            p.state.batch_slot[b] = -1;
}

__global__ void truncate_kernel(const __grid_constant__ hsp__cuda_admit p) {
    int32_t *tag = p.state.tag + (uint64_t)p.slot * p.n_groups * p.slot_stride;
    int32_t *written = p.state.written + (uint64_t)p.slot * p.n_layers;
    for (uint64_t i = thread_index(); i < p.n_layers; i += n_threads())
        written[i] = min(written[i], p.n_tokens);
    /* What the step under way has yet to append of the tokens that are cut must not come back. */
    for (uint64_t b = thread_index(); b < p.max_batch; b += n_threads())
        if (p.state.batch_slot[b] == p.slot)
            p.state.batch_n_new[b] = max(0, min(p.state.batch_n_new[b], p.n_tokens - p.state.batch_first[b]));
    if (!p.with_tags)
        return;
    if (thread_index() == 0)
        p.state.ring_first[p.slot] = p.n_tokens;
    for (uint64_t i = thread_index(); i < (uint64_t)p.n_groups * p.slot_stride; i += n_threads())
        if (tag[i] >= p.n_tokens)
            tag[i] = -1;
}

cudaError_t hsp__cuda_admit_launch(const hsp__cuda_admit *p, cudaStream_t stream) {
    return hsp__cuda_launch((const void *)admit_kernel, {132, 256, 1, 0, 0}, p, stream);
}

cudaError_t hsp__cuda_retire_launch(const hsp__cuda_admit *p, cudaStream_t stream) {
    return hsp__cuda_launch((const void *)retire_kernel, {1, 256, 1, 0, 0}, p, stream);
}

cudaError_t hsp__cuda_truncate_launch(const hsp__cuda_admit *p, cudaStream_t stream) {
    return hsp__cuda_launch((const void *)truncate_kernel, {p->with_tags ? 132 : 1, 256, 1, 0, 0}, p, stream);
}
