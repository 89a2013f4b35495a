/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/geometry.h"

int hsp__cuda_check(hsp__cuda *cuda, cudaError_t status, const char *what, hsp__error *error) {
    if (status == cudaSuccess && !cuda->failed)
        return HSP_OK;
    if (cuda->failed)
        return hsp__fail(error, HSP_EDEVICE, "%s: the GPU failed earlier; the cache can only be closed", what);
    cuda->failed = 1;
    return hsp__fail(error, HSP_EDEVICE, "%s: %s", what, cudaGetErrorString(status));
}

/* Asked before anything is done, so that nothing has changed when the answer is no. */
static int is_alive(hsp__cuda *cuda, const char *what, hsp__error *error) {
    return hsp__cuda_check(cuda, cudaSuccess, what, error);
}

/* The same, with what is to be queued on the stream behind all followers that are on their way. */
static int is_alive_after_followers(hsp__cuda *cuda, void *stream, const char *what, hsp__error *error) {
    int status = is_alive(cuda, what, error);
    return status == HSP_OK ? hsp__cuda_followers_wait(cuda, -1, stream, what, error) : status;
}

/* Calls without a stream follow that of the latest call. A capture there would take their work into the graph. */
static int can_follow(hsp__cuda *cuda, const char *what, hsp__error *error) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int status = is_alive(cuda, what, error);
    if (status != HSP_OK)
        return status;
    if (cudaStreamIsCapturing(cuda->stream, &capture) == cudaErrorStreamCaptureImplicit) {
        cudaGetLastError();
        capture = cudaStreamCaptureStatusActive;
    }
    return capture == cudaStreamCaptureStatusNone
               ? HSP_OK
               : hsp__fail(error, HSP_ESTATE,
                           "%s: it would follow a stream that is being captured; end the capture first", what);
}

/* The properties of the current device; their name says what is wrong when the status is not cudaSuccess. */
static cudaError_t current_device(struct cudaDeviceProp *properties) {
    int count = 0, device;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count == 0)
        status = cudaErrorNoDevice;
    if (status == cudaSuccess)
        status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaGetDeviceProperties(properties, device);
    cudaGetLastError();
    if (status != cudaSuccess)
        snprintf(properties->name, sizeof properties->name, "%s", cudaGetErrorString(status));
    return status;
}

static uint32_t capabilities(void) {
    struct cudaDeviceProp properties;
    uint32_t can_run = current_device(&properties) == cudaSuccess && properties.major >= 9 ? HSP_CAN_RUN : 0;
    return can_run | HSP_CAN_GRAPH | HSP_OWN_MEMORY;
}

static void describe(char *detail, size_t bytes) {
    struct cudaDeviceProp properties;
    if (current_device(&properties) == cudaSuccess && properties.major < 9)
        snprintf(detail, bytes, "%.64s has compute capability %d.%d; 9.0 is needed", properties.name, properties.major,
                 properties.minor);
    else
        snprintf(detail, bytes, "%s", properties.name);
}

/* The stream that later requests come and go in. A captured stream runs nothing now; the one it is replayed on shows at
 * the next step_begin. */
static void remember(hsp__cuda *cuda, cudaStream_t stream) {
    cuda->ahead_group = -1;
    cuda->has_stream = 1;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone)
        cuda->stream = stream;
}

/* --------------------------------------------------------------------------------------------------- allocation -- */

static int needs_big_kernel(const hsp__cuda *cuda) {
    return !hsp__cuda_swap_in_fits(cuda->config->policy, cuda->layout->n_slots, cuda->layout->n_slots);
}

void hsp__cuda_carve_device(hsp__cuda *cuda, hsp__arena *arena) {
    size_t batch = (size_t)cuda->layout->max_batch;
    cuda->group_layer = hsp__carve(arena, (size_t)cuda->layout->n_layers, sizeof(int32_t));
    cuda->turns = hsp__carve(arena, 1, sizeof *cuda->turns);
    cuda->scratch_words = needs_big_kernel(cuda) ? hsp__cuda_swap_in_big_words(cuda->layout->n_slots) : 0;
    cuda->scratch = hsp__carve(arena, batch, cuda->scratch_words * sizeof(uint32_t));
    if (cuda->config->flags & HSP_PREFETCH) {
        size_t plans = (size_t)cuda->layout->n_shared * batch;
        size_t most = (size_t)cuda->layout->max_k * (size_t)cuda->layout->max_queries;
        cuda->n_fetched = hsp__carve(arena, plans, sizeof *cuda->n_fetched);
        cuda->fetched = hsp__carve(arena, plans, most * sizeof *cuda->fetched);
    }
}

static void *carve(const hsp__open_args *args, hsp__arena *arena, uint64_t *device_state_out) {
    const hsp__layout *layout = args->layout;
    hsp__cuda *self = hsp__carve(arena, 1, sizeof *self), counted = {.layout = layout, .config = args->config};
    size_t requests = (size_t)layout->max_requests, groups = (size_t)layout->n_groups;
    hsp__arena device = {0};
    hsp__slots_init(&counted.state, layout, &device);
    hsp__cuda_carve_device(&counted, &device);
    *device_state_out = device.used;
    counted.device_bytes = layout->device_bytes + device.used;
    counted.ring_first = hsp__carve(arena, requests, sizeof(int32_t));
    counted.step = hsp__carve(arena, hsp__cuda_step_bytes(layout), 1);
    counted.step_bytes = hsp__cuda_step_bytes(layout);
    counted.counters = hsp__carve(arena, requests * groups + groups, sizeof(hsp_counters));
    counted.page = hsp__carve(arena, requests * (size_t)layout->max_pages, sizeof(int32_t));
    counted.order = hsp__carve(arena, (size_t)layout->n_slots, sizeof(uint16_t));
    counted.arrived = hsp__carve(arena, (size_t)layout->n_layers, sizeof *counted.arrived);
    hsp__followers_init(&counted.followers, layout, arena);
    if (self)
        *self = counted;
    return self;
}

/* ----------------------------------------------------------------------------------------------------- requests -- */

/* Without a stream to follow yet, the first one must find the work done. */
static cudaError_t settle(hsp__cuda *cuda, cudaError_t status) {
    return status == cudaSuccess && !cuda->has_stream ? cudaStreamSynchronize(cuda->stream) : status;
}

static int admit(void *self, int32_t slot, const int32_t *pages, int32_t n_pages, hsp__error *error) {
    hsp__cuda *cuda = self;
    if (can_follow(cuda, "admit", error) != HSP_OK)
        return error->status;
    hsp__cuda_admit p = hsp__cuda_admit_params(cuda, slot);
    int32_t *table = cuda->state.page + (size_t)slot * (size_t)cuda->layout->max_pages;
    cudaError_t status =
        cudaMemcpyAsync(table, pages, (size_t)n_pages * sizeof(int32_t), cudaMemcpyHostToDevice, cuda->stream);
    if (status == cudaSuccess)
        status = hsp__cuda_admit_launch(&p, cuda->stream);
    memcpy(cuda->page + (size_t)slot * (size_t)cuda->layout->max_pages, pages, (size_t)n_pages * sizeof(int32_t));
    cuda->ring_first[slot] = 0;
    cuda->ahead_group = -1;
    return hsp__cuda_check(cuda, settle(cuda, status), "admit", error);
}

static int retire(void *self, int32_t slot, hsp__error *error) {
    hsp__cuda *cuda = self;
    if (can_follow(cuda, "retire", error) != HSP_OK)
        return error->status;
    int status = hsp__cuda_followers_wait(cuda, -1, cuda->stream, "retire", error);
    if (status != HSP_OK)
        return status;
    hsp__cuda_admit p = hsp__cuda_admit_params(cuda, slot);
    cuda->ahead_group = -1;
    return hsp__cuda_check(cuda, settle(cuda, hsp__cuda_retire_launch(&p, cuda->stream)), "retire", error);
}

static int truncate(void *self, int32_t slot, int32_t n_tokens, void *stream, hsp__error *error) {
    hsp__cuda *cuda = self;
    if (is_alive_after_followers(cuda, stream, "truncate", error) != HSP_OK)
        return error->status;
    hsp__cuda_admit p = hsp__cuda_admit_params(cuda, slot);
    remember(cuda, stream);
    p.n_tokens = n_tokens;
    p.with_tags = n_tokens < cuda->ring_first[slot];
    if (p.with_tags)
        cuda->ring_first[slot] = n_tokens;
    return hsp__cuda_check(cuda, hsp__cuda_truncate_launch(&p, stream), "truncate", error);
}

static int fill(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens, const hsp_row_source *rows,
                void *stream, hsp__error *error) {
    hsp__cuda *cuda = self;
    if (is_alive_after_followers(cuda, stream, "fill", error) != HSP_OK)
        return error->status;
    hsp__cuda_write p = hsp__cuda_write_params(cuda, layer, rows);
    remember(cuda, stream);
    p.slot = slot;
    p.first = first;
    p.n = n_tokens;
    if (cuda->ring_first[slot] < first + n_tokens)
        cuda->ring_first[slot] = first + n_tokens;
    return hsp__cuda_check(cuda, hsp__cuda_fill_launch(&p, stream), "fill", error);
}

/* --------------------------------------------------------------------------------------------------------- step -- */

static int step_begin(void *self, const int32_t *slots, const int32_t *first, const int32_t *n_new, int32_t batch,
                      void *stream, hsp__error *error) {
    hsp__cuda *cuda = self;
    const hsp__layout *layout = cuda->layout;
    if (is_alive_after_followers(cuda, stream, "step_begin", error) != HSP_OK)
        return error->status;
    hsp__slots at = hsp__cuda_step_view(cuda);
    remember(cuda, stream);
    for (int32_t b = 0; b < layout->max_batch; b++) {
        at.batch_slot[b] = b < batch ? slots[b] : -1; /* the tail is padding for a graph captured larger */
        at.batch_first[b] = b < batch ? first[b] : 0;
        at.batch_n_new[b] = b < batch ? n_new[b] : 0;
        int32_t oldest = at.batch_first[b] + at.batch_n_new[b] - layout->ring_rows;
        if (at.batch_slot[b] >= 0 && cuda->ring_first[at.batch_slot[b]] < oldest)
            cuda->ring_first[at.batch_slot[b]] = oldest;
    }
    memcpy(at.ring_first, cuda->ring_first, (size_t)layout->max_requests * sizeof(int32_t));
    cuda->batch = batch;
    /* From pageable memory: the runtime keeps a copy before it returns, so the next step can be prepared at once. */
    return hsp__cuda_check(
        cuda, cudaMemcpyAsync(cuda->state.ring_first, cuda->step, cuda->step_bytes, cudaMemcpyHostToDevice, stream),
        "step_begin", error);
}

static int append(void *self, int32_t layer, const hsp_row_source *rows, int32_t rows_per_request, void *stream,
                  hsp__error *error) {
    hsp__cuda *cuda = self;
    if (is_alive(cuda, "append", error) != HSP_OK)
        return error->status;
    hsp__cuda_write p = hsp__cuda_write_params(cuda, layer, rows);
    remember(cuda, stream);
    p.rows_per_request = rows_per_request;
    if (cuda->batch == 0 || rows_per_request == 0)
        return HSP_OK;
    return hsp__cuda_check(cuda, hsp__cuda_append_launch(&p, cuda->batch, stream), "append", error);
}

/* From a batch of 32 on 12 blocks fetch at once. With few misses a request need not wait for its turn, unless the batch
 * is so large that few of each are many in all (lab/swap_in.md). */
enum { TURNS_FROM_BATCH = 32, TURNS_AT_ONCE = 12, FEW_MISSES = 32, FEW_UP_TO_BATCH = 64 };

/* Blocks a request: enough to cover the link's latency, no more than a quarter of the multiprocessors in all; past
 * eight nothing is gained. With turns two, where that is not more than half of them: a request that misses everything
 * is done in half the time (lab/swap_in.md). */
static int parts_for(const hsp__cuda *cuda, int32_t batch) {
    int turns = batch >= TURNS_FROM_BATCH, parts = 1, most = turns ? 2 : HSP__CUDA_MOST_PARTS;
    if (cuda->config->request_blocks && cuda->config->request_blocks < most)
        most = cuda->config->request_blocks;
    while (parts < most && 2 * parts * batch <= cuda->n_multiprocessors / (turns ? 2 : 4))
        parts *= 2;
    return parts;
}

static int swap(hsp__cuda *cuda, hsp__cuda_swap_in *p, int32_t batch, int overlaps, void *stream, const char *what,
                hsp__error *error) {
    const hsp_config *config = cuda->config;
    int turns = batch >= TURNS_FROM_BATCH;
    cudaError_t status;
    p->batch = batch;
    p->window = turns ? config->fetch_blocks ? config->fetch_blocks : TURNS_AT_ONCE : 0;
    p->few = batch <= FEW_UP_TO_BATCH ? FEW_MISSES : 0;
    p->in_flight = config->pieces_in_flight ? config->pieces_in_flight : turns ? 2 : 4;
    if (hsp__cuda_swap_in_fits(p->policy, p->n, p->n_slots))
        status = hsp__cuda_swap_in_launch(p, parts_for(cuda, batch), overlaps, stream);
    else
        status = hsp__cuda_swap_in_big_launch(p, stream);
    remember(cuda, stream);
    return hsp__cuda_check(cuda, status, what, error);
}

static int warm(void *self, int32_t slot, int32_t group, const int32_t *tokens, int32_t n, void *stream,
                hsp__error *error) {
    hsp__cuda *cuda = self;
    if (is_alive_after_followers(cuda, stream, "warm", error) != HSP_OK)
        return error->status;
    hsp__cuda_swap_in p = hsp__cuda_swap_in_params(cuda, group, 0, tokens, n, NULL);
    p.warm_slot = slot;
    return n == 0 ? HSP_OK : swap(cuda, &p, 1, 0, stream, "warm", error);
}

static int swap_in(void *self, int32_t group, const int32_t *selection, int32_t n_queries, int32_t k,
                   int32_t *row_ids_out, void *stream, hsp__error *error) {
    hsp__cuda *cuda = self;
    int late = hsp__followers_are_late(cuda->layout, cuda->config->flags, group), n_coming = cuda->followers.n;
    int status = is_alive(cuda, "swap_in", error);
    if (status == HSP_OK && late)
        status = hsp__cuda_followers_ready(cuda, group, stream, "swap_in", error);
    if (status != HSP_OK)
        return status;
    if (cuda->followers.n != n_coming) /* what is ahead now is a wait */
        cuda->ahead_group = -1;
    hsp__cuda_swap_in p = hsp__cuda_swap_in_params(cuda, group, late, selection, n_queries * k, row_ids_out);
    /* Right behind another swap-in this one may start beside it, and may look at what only swap-ins of its own group
     * change. Behind anything else that would only be slower: it costs 0.2 us where there is nothing to overlap with.
     * Only within one capture, for elsewhere a replay that this library does not see may come in between. */
    unsigned long long capture = hsp__cuda_capture_of(stream);
    int overlaps =
        capture != 0 && capture == cuda->ahead_capture && cuda->ahead_group >= 0 && cuda->ahead_stream == stream;
    p.early = overlaps && cuda->ahead_group != group;
    status = swap(cuda, &p, cuda->batch, overlaps, stream, "swap_in", error);
    if (status == HSP_OK && late)
        status = hsp__cuda_check(cuda, hsp__cuda_followers_fetch(cuda, group, stream), "swap_in", error);
    cuda->ahead_group = late ? -1 : group; /* behind a fork nothing starts early */
    cuda->ahead_stream = stream;
    cuda->ahead_capture = capture;
    return status;
}

static int wait_rows(void *self, int32_t layer, void *stream, hsp__error *error) {
    hsp__cuda *cuda = self;
    int status = is_alive(cuda, "wait_rows", error), n_coming = cuda->followers.n;
    if (status == HSP_OK)
        status = hsp__cuda_followers_wait(cuda, layer, stream, "wait_rows", error);
    if (cuda->followers.n != n_coming)
        remember(cuda, stream);
    return status;
}

/* --------------------------------------------------------------------------------------------------- inspection -- */

static int finish(hsp__cuda *cuda, const char *what, hsp__error *error) {
    int status = can_follow(cuda, what, error);
    if (status == HSP_OK)
        status = hsp__cuda_followers_wait(cuda, -1, cuda->stream, what, error);
    return status == HSP_OK ? hsp__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), what, error) : status;
}

static int read_rows(void *self, int32_t slot, int32_t layer, int32_t first, int32_t n_tokens,
                     const hsp_row_sink *rows_out, hsp__error *error) {
    hsp__cuda *cuda = self;
    const hsp__layout *layout = cuda->layout;
    int32_t written, group = layout->group_of[layer];
    int status = finish(cuda, "read", error);
    if (status == HSP_OK)
        status =
            hsp__cuda_check(cuda,
                            cudaMemcpy(&written, cuda->state.written + (size_t)slot * (size_t)layout->n_layers + layer,
                                       sizeof written, cudaMemcpyDeviceToHost),
                            "read", error);
    if (status != HSP_OK)
        return status;
    if (first < 0 || n_tokens < 0 || first > written || n_tokens > written - first)
        return hsp__fail(error, HSP_ELIMIT, "read: tokens %d + %d of layer %d; %d have been written", first, n_tokens,
                         layer + layout->first_layer, written);
    for (int32_t i = 0; i < n_tokens; i++) {
        int32_t token = first + i,
                page = cuda->page[(size_t)slot * (size_t)layout->max_pages + (size_t)(token / HSP_PAGE_TOKENS)];
        const char *row = cuda->pool.base + hsp__host_offset(layout, group, layout->index_in_group[layer], page, token);
        for (int32_t p = 0; p < layout->n_planes; p++) {
            size_t stride = rows_out->stride[p] ? rows_out->stride[p] : layout->plane_bytes[p];
            memcpy((char *)rows_out->plane[p] + (size_t)i * stride, row + layout->plane_offset[p],
                   layout->plane_bytes[p]);
        }
    }
    return HSP_OK;
}

static void *device_rows(void *self) {
    return ((hsp__cuda *)self)->device;
}

static int huge_pages(void *self) {
    return ((hsp__cuda *)self)->pool.huge_pages;
}

static int resident(void *self, int32_t slot, int32_t group, int32_t *tokens_out, int32_t *order_out,
                    int32_t *ring_first_out, hsp__error *error) {
    hsp__cuda *cuda = self;
    size_t n = (size_t)cuda->layout->n_slots;
    size_t at = hsp__slots_index(cuda->layout, slot, group) * (size_t)cuda->layout->slot_stride;
    int status = finish(cuda, "resident", error);
    if (status == HSP_OK && tokens_out)
        status = hsp__cuda_check(
            cuda, cudaMemcpy(tokens_out, cuda->state.tag + at, n * sizeof(int32_t), cudaMemcpyDeviceToHost), "resident",
            error);
    if (status == HSP_OK && order_out)
        status = hsp__cuda_check(
            cuda, cudaMemcpy(cuda->order, cuda->state.order + at, n * sizeof(uint16_t), cudaMemcpyDeviceToHost),
            "resident", error);
    for (size_t s = 0; status == HSP_OK && order_out && s < n; s++)
        order_out[s] = cuda->order[s];
    if (status == HSP_OK && ring_first_out)
        *ring_first_out = cuda->ring_first[slot];
    return status;
}

/* On a stream of its own, after what was queued so far: the host waits, the caller's stream does not. */
static int counters(void *self, int32_t slot, int32_t group, hsp_counters *sum_out, hsp__error *error) {
    hsp__cuda *cuda = self;
    size_t groups = (size_t)cuda->layout->n_groups, n = (size_t)cuda->layout->max_requests * groups;
    hsp_counters sum = {0};
    if (can_follow(cuda, "counters", error) != HSP_OK)
        return error->status;
    cudaError_t status = cudaEventRecord(cuda->latest, cuda->stream);
    if (status == cudaSuccess)
        status = cudaStreamWaitEvent(cuda->inspection, cuda->latest, 0);
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(cuda->counters, cuda->state.counters, n * sizeof sum, cudaMemcpyDeviceToHost,
                                 cuda->inspection);
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(cuda->counters + n, cuda->state.retired, groups * sizeof sum, cudaMemcpyDeviceToHost,
                                 cuda->inspection);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(cuda->inspection);
    for (size_t i = 0; i < n + groups; i++) {
        int counts = i < n ? slot < 0 || i / groups == (size_t)slot : slot < 0;
        if (counts && (group < 0 || i % groups == (size_t)group))
            hsp__counters_add(&sum, &cuda->counters[i]);
    }
    if (status == cudaSuccess && !cuda->failed)
        *sum_out = sum;
    return hsp__cuda_check(cuda, status, "counters", error);
}

static int reset_counters(void *self, hsp__error *error) {
    hsp__cuda *cuda = self;
    size_t groups = (size_t)cuda->layout->n_groups, n = (size_t)cuda->layout->max_requests * groups;
    if (can_follow(cuda, "stats_reset", error) != HSP_OK)
        return error->status;
    cuda->ahead_group = -1;
    cudaError_t status = cudaMemsetAsync(cuda->state.counters, 0, n * sizeof(hsp_counters), cuda->stream);
    if (status == cudaSuccess)
        status = cudaMemsetAsync(cuda->state.retired, 0, groups * sizeof(hsp_counters), cuda->stream);
    return hsp__cuda_check(cuda, settle(cuda, status), "stats_reset", error);
}

const hsp__backend hsp__backend_cuda = {.name = "cuda",
                                        .capabilities = capabilities,
                                        .describe = describe,
                                        .carve = carve,
                                        .open = hsp__cuda_open,
                                        .close = hsp__cuda_close,
                                        .huge_pages = huge_pages,
                                        .admit = admit,
                                        .retire = retire,
                                        .truncate = truncate,
                                        .fill = fill,
                                        .warm = warm,
                                        .read = read_rows,
                                        .step_begin = step_begin,
                                        .append = append,
                                        .swap_in = swap_in,
                                        .wait_rows = wait_rows,
                                        .device_rows = device_rows,
                                        .resident = resident,
                                        .counters = counters,
                                        .reset_counters = reset_counters};

const char *const hsp__cuda_version = HSP_VERSION_TEXT;
