/* SPDX-License-Identifier: Apache-2.0 */
/* Followers whose rows come beside the caller's work (HSP_PREFETCH). Their fetches are forked from the stream of the
 * swap-in by an event and joined to the stream that waits for them by one event a layer, inside a capture as outside.
 * One side stream is enough: the link is one, and the layers are needed in this order. */
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/geometry.h"

/* Blocks that fetch: enough for the link, few enough to leave the multiprocessors to the caller. */
enum { FOLLOW_BLOCKS = 8 };

/* First in line: its few blocks must get in while the caller's fill the GPU. */
cudaError_t hsp__cuda_followers_open(hsp__cuda *cuda) {
    const hsp__layout *layout = cuda->layout;
    int least = 0, greatest = 0;
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (status == cudaSuccess)
        status = cudaStreamCreateWithPriority(&cuda->side, cudaStreamNonBlocking, greatest);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&cuda->forked, cudaEventDisableTiming);
    for (int32_t l = 0; l < layout->n_layers && status == cudaSuccess; l++)
        if (layout->index_in_group[l] > 0)
            status = cudaEventCreateWithFlags(&cuda->arrived[l], cudaEventDisableTiming);
    return status;
}

void hsp__cuda_followers_close(hsp__cuda *cuda) {
    for (int32_t l = 0; l < cuda->layout->n_layers && cuda->arrived; l++) {
        if (cuda->arrived[l])
            cudaEventDestroy(cuda->arrived[l]);
        cuda->arrived[l] = NULL;
    }
    if (cuda->forked)
        cudaEventDestroy(cuda->forked);
    if (cuda->side)
        cudaStreamDestroy(cuda->side);
    cuda->forked = NULL;
    cuda->side = NULL;
}

static cudaError_t wait_layer(hsp__cuda *cuda, int32_t layer, cudaStream_t stream) {
    cudaError_t status = cudaSuccess;
    if (cuda->followers.coming[layer])
        status = cudaStreamWaitEvent(stream, cuda->arrived[layer], 0);
    if (status == cudaSuccess)
        hsp__followers_arrive(&cuda->followers, layer);
    return status;
}

/* A capture cannot wait for what is not in it. What went into one that is over came with its replays. */
static int is_outside(const hsp__cuda *cuda, unsigned long long capture, const char *what, hsp__error *error) {
    if (cuda->followers.n == 0 || capture == 0 || cuda->followed_capture != 0)
        return HSP_OK;
    return hsp__fail(error, HSP_ESTATE,
                     "%s: followers of %d layers, fetched before the stream was captured, have not been waited for",
                     what, cuda->followers.n);
}

int hsp__cuda_followers_wait(hsp__cuda *cuda, int32_t layer, cudaStream_t stream, const char *what, hsp__error *error) {
    int32_t first = layer < 0 ? 0 : layer, end = layer < 0 ? cuda->layout->n_layers : layer + 1;
    cudaError_t result = cudaSuccess;
    if (cuda->followers.n == 0)
        return HSP_OK;
    unsigned long long capture = hsp__cuda_capture_of(stream);
    int status = is_outside(cuda, capture, what, error);
    if (status != HSP_OK || capture != cuda->followed_capture)
        return status;
    for (int32_t l = first; l < end && result == cudaSuccess; l++)
        result = wait_layer(cuda, l, stream);
    return hsp__cuda_check(cuda, result, what, error);
}

int hsp__cuda_followers_ready(hsp__cuda *cuda, int32_t group, cudaStream_t stream, const char *what,
                              hsp__error *error) {
    const hsp__layout *layout = cuda->layout;
    const int32_t *layer = layout->group_layer + layout->group_first[group];
    unsigned long long capture = hsp__cuda_capture_of(stream), side = hsp__cuda_capture_of(cuda->side);
    int status = is_outside(cuda, capture, what, error);
    if (status == HSP_OK && side != 0 && side != capture)
        status =
            hsp__fail(error, HSP_ESTATE, "%s: followers are being captured on another stream; end that first", what);
    for (int32_t l = 0; l < layout->n_layers && status == HSP_OK && cuda->followed_capture != capture; l++)
        hsp__followers_arrive(&cuda->followers, l);
    for (int32_t i = 1; i < layout->group[group].n_layers && status == HSP_OK; i++)
        status = hsp__cuda_followers_wait(cuda, layer[i], stream, what, error);
    return status;
}

cudaError_t hsp__cuda_followers_fetch(hsp__cuda *cuda, int32_t group, cudaStream_t stream) {
    const hsp__layout *layout = cuda->layout;
    const int32_t *layer = layout->group_layer + layout->group_first[group];
    int blocks = cuda->config->fetch_blocks ? cuda->config->fetch_blocks : FOLLOW_BLOCKS;
    cudaError_t status = cudaEventRecord(cuda->forked, stream);
    if (status == cudaSuccess)
        status = cudaStreamWaitEvent(cuda->side, cuda->forked, 0);
    for (int32_t i = 1; i < layout->group[group].n_layers && status == cudaSuccess; i++) {
        hsp__cuda_follow p = hsp__cuda_follow_params(cuda, layer[i]);
        status = hsp__cuda_follow_launch(&p, blocks, cuda->side);
        if (status == cudaSuccess)
            status = cudaEventRecord(cuda->arrived[layer[i]], cuda->side);
    }
    hsp__followers_start(&cuda->followers, layout, group);
    cuda->followed_capture = hsp__cuda_capture_of(stream);
    return status;
}
