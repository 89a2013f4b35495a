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
    /* HSP_PREFETCH: side_stream.c */
    uint32_t *n_fetched;        /* device: [n_shared][max_batch] */
    hsp__cuda_fetched *fetched; /* device: [n_shared][max_batch][max_k * max_queries] */
    cudaStream_t side;
    cudaEvent_t forked;                  /* the swap-in is done */
    cudaEvent_t *arrived;                /* host: [n_layers]; a follower's rows are there */
    hsp__followers followers;            /* host: those that no stream of the caller's has waited for */
    unsigned long long followed_capture; /* the capture their swap-ins went into; 0: none */
    int32_t *ring_first;                 /* host: as the device has it after the latest call */
    int32_t *step;                       /* host: ring_first and batch arrays as they lie on the device */
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

/* The side stream and its events, taken at open with HSP_PREFETCH. */
cudaError_t hsp__cuda_followers_open(hsp__cuda *cuda);
void hsp__cuda_followers_close(hsp__cuda *cuda);
/* Before a swap-in whose followers come later: those of the last one of its group are waited for. */
int hsp__cuda_followers_ready(hsp__cuda *cuda, int32_t group, cudaStream_t stream, const char *what, hsp__error *error);
/* Behind such a swap-in: its followers' rows, one layer after the other, on the side stream. */
cudaError_t hsp__cuda_followers_fetch(hsp__cuda *cuda, int32_t group, cudaStream_t stream);
/* Let a stream wait for a layer, if it is on its way, or for all layers (-1). */
int hsp__cuda_followers_wait(hsp__cuda *cuda, int32_t layer, cudaStream_t stream, const char *what, hsp__error *error);

int hsp__cuda_open(void *self, hsp__error *error);
void hsp__cuda_close(void *self);

/* What libhisparse_cuda.so is opened for. */
__attribute__((visibility("default"))) extern const hsp__backend hsp__backend_cuda;
/* Must be the version of the library that opens it: the seam is not an interface between versions. */
__attribute__((visibility("default"))) extern const char *const hsp__cuda_version;

#endif
