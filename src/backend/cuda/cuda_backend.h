/* SPDX-License-Identifier: Apache-2.0 */
/* State of the cuda backend on the host. */
#ifndef HSP_CUDA_BACKEND_H
#define HSP_CUDA_BACKEND_H

#include "backend/backend.h"
#include "backend/cuda/launch.h"

/* The host pool: huge pages near the GPU, registered, and what the GPU calls them. */
typedef struct hsp__cuda_pool {
    char *base;
    const char *device;
    uint64_t bytes;
    int huge_pages, registered;
} hsp__cuda_pool;

typedef struct hsp__cuda {
    const hsp__layout *layout;
    const hsp_config *config;
    hsp__cuda_pool pool;
    char *device; /* rows, then the arrays below */
    uint64_t device_bytes;
    hsp__slots state;       /* device pointers */
    int32_t *group_layer;   /* device, as in the layout */
    hsp__cuda_turns *turns; /* device, these two: see hsp__cuda_swap_in */
    uint32_t *scratch;
    uint64_t scratch_words;           /* of one entry of the batch */
    cudaStream_t stream;              /* of the latest call: requests come and go in its order */
    int has_stream;                   /* there has been such a call */
    int32_t ahead_group;              /* of the latest call that queued work, if that was a swap-in; -1 */
    cudaStream_t ahead_stream;        /* its stream */
    unsigned long long ahead_capture; /* and the capture it went into; 0: none */
    cudaStream_t inspection;          /* for counters, so that nobody's work waits */
    cudaEvent_t latest;
    int32_t *ring_first; /* host: as the device has it after the latest call */
    int32_t *step;       /* host: ring_first and batch arrays as they lie on the device */
    size_t step_bytes;
    hsp_counters *counters; /* host: [max_requests * n_groups + n_groups] */
    int32_t *page;          /* host: [max_requests][max_pages] */
    uint16_t *order;        /* host: [n_slots] */
    int32_t batch;          /* of the current step */
    int device_number, n_multiprocessors;
    int failed; /* the device is lost: every call says so until close */
} hsp__cuda;

/* HSP_OK, or HSP_EDEVICE with what was tried; the failure sticks. */
int hsp__cuda_check(hsp__cuda *cuda, cudaError_t status, const char *what, hsp__error *error);

/* Arrays of the device beside those of hsp__slots; with base NULL the arena only counts. */
void hsp__cuda_carve_device(hsp__cuda *cuda, hsp__arena *arena);

int hsp__cuda_open(void *self, hsp__error *error);
void hsp__cuda_close(void *self);

/* What libhisparse_cuda.so is opened for. */
__attribute__((visibility("default"))) extern const hsp__backend hsp__backend_cuda;
/* Must be the version of the library that opens it: the seam is not an interface between versions. */
__attribute__((visibility("default"))) extern const char *const hsp__cuda_version;

#endif
