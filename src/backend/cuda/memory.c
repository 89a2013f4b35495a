/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the cuda backend: one slab on the device, one pool of registered host memory. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cuda/cuda_backend.h"

#define HUGE_PAGE ((uint64_t)2 << 20)
enum { TOUCHERS = 12 };

typedef struct touched {
    char *base;
    uint64_t bytes;
} touched;

/* Touching decides where pages lie and takes most of the time of making a pool: many threads do it. */
static void *touch(void *argument) {
    const touched *part = argument;
    for (uint64_t i = 0; i < part->bytes; i += 4096)
        *(volatile char *)(part->base + i) = 0;
    return NULL;
}

static void touch_all(char *base, uint64_t bytes) {
    pthread_t thread[TOUCHERS];
    touched part[TOUCHERS];
    int started[TOUCHERS];
    uint64_t step = (bytes / TOUCHERS + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
    for (int i = 0; i < TOUCHERS; i++) {
        uint64_t from = (uint64_t)i * step < bytes ? (uint64_t)i * step : bytes;
        part[i] = (touched){base + from, bytes - from < step ? bytes - from : step};
        started[i] = pthread_create(&thread[i], NULL, touch, &part[i]) == 0;
        if (!started[i])
            touch(&part[i]);
    }
    for (int i = 0; i < TOUCHERS; i++)
        if (started[i])
            pthread_join(thread[i], NULL);
}

/* Prefer the GPU's own node; a machine with one node, or a kernel that refuses, is as good as none. */
static void prefer_node(char *base, uint64_t bytes, int device_number) {
    enum { MPOL_PREFERRED_MODE = 1 };
    int node = -1;
    if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device_number) != cudaSuccess || node < 0 || node >= 64)
        return;
    unsigned long mask = 1ul << node;
    syscall(SYS_mbind, base, bytes, MPOL_PREFERRED_MODE, &mask, sizeof mask * 8 + 1, 0);
}

static void close_pool(hsp__cuda_pool *pool) {
    if (pool->registered)
        cudaHostUnregister(pool->base);
    if (pool->base)
        munmap(pool->base, pool->bytes);
    *pool = (hsp__cuda_pool){0};
}

static int open_pool(hsp__cuda *cuda, hsp__error *error) {
    hsp__cuda_pool *pool = &cuda->pool;
    uint64_t bytes = cuda->layout->host_bytes; /* a multiple of 64 KiB */
    char *raw = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return hsp__fail(error, HSP_ENOMEM, "cannot have %llu bytes of memory for the host pool",
                         (unsigned long long)bytes);
    char *base = (char *)(((uintptr_t)raw + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (base > raw)
        munmap(raw, (size_t)(base - raw));
    if (base + bytes < raw + bytes + HUGE_PAGE)
        munmap(base + bytes, (size_t)(raw + HUGE_PAGE - base));
    *pool = (hsp__cuda_pool){.base = base, .bytes = bytes};
    if (cuda->config->huge_pages)
        madvise(base, bytes, MADV_HUGEPAGE);
    prefer_node(base, bytes, cuda->device_number);
    touch_all(base, bytes);
    pool->huge_pages = cuda->config->huge_pages && hsp__has_huge_pages(base);
    cudaError_t status = cudaHostRegister(base, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    pool->registered = status == cudaSuccess;
    if (status == cudaSuccess)
        status = cudaHostGetDevicePointer((void **)&pool->device, base, 0);
    if (status == cudaSuccess)
        return HSP_OK;
    close_pool(pool);
    return hsp__fail(error, HSP_ENOMEM, "cannot register %llu bytes of host memory with the GPU: %s",
                     (unsigned long long)bytes, cudaGetErrorString(status));
}

/* Refuse before anything is taken: once pages are pinned it is too late to be polite. */
static int check_room(const hsp__cuda *cuda, hsp__error *error) {
    size_t free_bytes = 0, total_bytes = 0;
    if (cuda->layout->n_pages > ((int64_t)1 << 32) / HSP_PAGE_TOKENS)
        return hsp__fail(error, HSP_ELIMIT, "host_tokens is %lld; the cuda backend counts rows to %lld",
                         (long long)cuda->config->host_tokens, (long long)1 << 32);
    cudaError_t status = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (status != cudaSuccess)
        return hsp__fail(error, HSP_EDEVICE, "asking the GPU for its free memory: %s", cudaGetErrorString(status));
    if (cuda->device_bytes > free_bytes)
        return hsp__fail(error, HSP_ENOMEM, "the cache needs %llu bytes of GPU memory; the GPU has %llu free",
                         (unsigned long long)cuda->device_bytes, (unsigned long long)free_bytes);
    return HSP_OK;
}

static int set_up_device(hsp__cuda *cuda, hsp__error *error) {
    const hsp__layout *layout = cuda->layout;
    cudaError_t status = cudaMalloc((void **)&cuda->device, cuda->device_bytes);
    if (status != cudaSuccess) {
        cuda->device = NULL;
        cudaGetLastError();
        return hsp__fail(error, HSP_ENOMEM, "cannot have %llu bytes of GPU memory: %s",
                         (unsigned long long)cuda->device_bytes, cudaGetErrorString(status));
    }
    hsp__arena arena = {cuda->device + layout->device_bytes, 0};
    hsp__slots_init(&cuda->state, layout, &arena);
    hsp__cuda_carve_device(cuda, &arena);
    int failed = hsp__cuda_check(cuda, cudaMemset(cuda->device, 0, cuda->device_bytes), "clearing GPU memory", error);
    if (failed == HSP_OK) /* no request is in a step */
        failed =
            hsp__cuda_check(cuda, cudaMemset(cuda->state.batch_slot, 0xff, (size_t)layout->max_batch * sizeof(int32_t)),
                            "clearing GPU memory", error);
    if (failed == HSP_OK)
        failed = hsp__cuda_check(cuda,
                                 cudaMemcpy(cuda->group_layer, layout->group_layer,
                                            (size_t)layout->n_layers * sizeof(int32_t), cudaMemcpyHostToDevice),
                                 "copying the layers of groups", error);
    if (failed == HSP_OK)
        failed = hsp__cuda_check(cuda, cudaStreamCreateWithFlags(&cuda->inspection, cudaStreamNonBlocking),
                                 "making a stream", error);
    if (failed == HSP_OK)
        failed = hsp__cuda_check(cuda, cudaEventCreateWithFlags(&cuda->latest, cudaEventDisableTiming),
                                 "making an event", error);
    int with_late = (cuda->config->flags & HSP_PREFETCH) != 0;
    if (failed == HSP_OK && with_late)
        failed = hsp__cuda_check(cuda, hsp__cuda_followers_open(cuda), "making a stream for followers", error);
    if (failed == HSP_OK)
        failed = hsp__cuda_check(cuda, hsp__cuda_swap_in_prepare(layout->n_slots, with_late), "preparing the kernels",
                                 error);
    if (failed == HSP_OK)
        failed = hsp__cuda_check(cuda, hsp__cuda_swap_in_big_prepare(), "preparing the kernels", error);
    /* The caller's streams need not follow the one the clearing was queued on. */
    return failed == HSP_OK ? hsp__cuda_check(cuda, cudaDeviceSynchronize(), "clearing GPU memory", error) : failed;
}

int hsp__cuda_open(void *self, hsp__error *error) {
    hsp__cuda *cuda = self;
    cudaGetDevice(&cuda->device_number);
    cudaDeviceGetAttribute(&cuda->n_multiprocessors, cudaDevAttrMultiProcessorCount, cuda->device_number);
    int status = check_room(cuda, error);
    if (status == HSP_OK)
        status = open_pool(cuda, error);
    if (status == HSP_OK)
        status = set_up_device(cuda, error);
    if (status != HSP_OK)
        hsp__cuda_close(cuda);
    return status;
}

void hsp__cuda_close(void *self) {
    hsp__cuda *cuda = self;
    cudaDeviceSynchronize(); /* also after a fault: then it returns the fault at once */
    if (cuda->latest)
        cudaEventDestroy(cuda->latest);
    hsp__cuda_followers_close(cuda);
    if (cuda->inspection)
        cudaStreamDestroy(cuda->inspection);
    cudaFree(cuda->device);
    close_pool(&cuda->pool);
    cudaGetLastError();
    cuda->latest = NULL;
    cuda->inspection = NULL;
    cuda->device = NULL;
}
