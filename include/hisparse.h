/* SPDX-License-Identifier: Apache-2.0
 *
 * libhisparse: a bounded device cache for the KV rows of top-k sparse attention.
 *
 * Decoders with top-k sparse attention read a few thousand KV rows a step but may choose any row of the context.
 * This library keeps every row of every request in host memory and only `n_slots` rows per request and layer on the
 * device. Positions go in, row ids come out, and each id addresses exactly the bytes that were appended for that
 * position, so the attention that follows computes what it would compute with everything resident, to the last bit.
 *
 * Words
 *   token      a position in a request, counted from 0
 *   row        the KV bytes of one token in one layer, in one or more planes (MLA latent; K and V; value and scale)
 *   selection  int32 [batch][queries][k] of tokens; -1 is "none"
 *   slot       a place for one row on the device; `n_slots` per request and layer, replaced by policy
 *   ring       `ring_rows` more places per request and layer, which always hold the newest tokens
 *   row id     int32 naming a slot or ring place; one flat space of ids per layer, the same for layers of one group
 *   group      layers that share one selection: an anchor (its lowest layer) and its followers
 *   page       64 tokens, the unit in which host memory is given to requests
 *
 * A step
 *   hsp_step_begin(batch) ; then for each layer: hsp_append ; [selector] ; hsp_swap_in (anchors only) ; attention over
 *   hsp_rows. Before the first step of a request: hsp_admit, hsp_fill for every layer, and hsp_warm where it helps.
 * With HSP_PREFETCH also hsp_wait_rows, before the attention of a follower.
 *
 * Memory kinds
 *   "device" memory is the memory of the backend: the GPU's for cuda, ordinary memory for ref and cpu. "caller" memory
 *   is ordinary memory read or written before the call returns. No pointer given to a call is kept after it returns,
 *   other than device memory used by work queued on a stream.
 *
 * Streams
 *   `stream` is a cudaStream_t for the cuda backend; ref and cpu do their work before they return and ignore it.
 *   Calls that take a stream are ordered by it and may be captured into a CUDA graph where their comment says so. Calls
 *   without one (admit, retire, read, counters) follow the stream of the latest call that was not captured, which must
 *   live until the next, and give HSP_ESTATE while it is being captured; a graph replayed on another stream is not such
 *   a call. Whoever uses several streams for one cache orders them. A swap-in lets a kernel that is launched behind it
 *   programmatically start early: such a kernel of the caller's must wait (griddepcontrol.wait) before it reads rows.
 *
 * Threads
 *   One thread at a time per cache; different caches are independent. Functions without a cache may be called from any
 *   thread at any time. A child made by fork() must not use a cache of its parent. The cuda backend works on the CUDA
 *   device that was current at open; it must be current in every thread that uses the cache.
 *
 * Errors
 *   Functions return HSP_OK or a negative hsp_status. On an error nothing has changed and outputs are untouched, unless
 *   a comment says otherwise. hsp_last_error() has a sentence that names the thing, the value and the limit.
 */
#ifndef HISPARSE_H
#define HISPARSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HSP_API __attribute__((visibility("default")))
#else
#define HSP_API
#endif

#define HSP_VERSION_MAJOR 0
#define HSP_VERSION_MINOR 1
#define HSP_VERSION_PATCH 0

/* Version of the library that was loaded, "major.minor.patch"; static. */
HSP_API const char *hsp_version(void);

/* ------------------------------------------------------------------------------------------------------- status -- */

enum hsp_status {
    HSP_OK = 0,
    /* what was asked */
    HSP_EINVAL = -1,   /* an argument is not of the form the function takes */
    HSP_ELIMIT = -2,   /* a value is beyond a limit of this cache */
    HSP_EREQUEST = -3, /* no such live request */
    /* what there is */
    HSP_ENOMEM = -10,    /* memory could not be had, or there is less than was asked for */
    HSP_EHOSTFULL = -11, /* the host pool has too few free pages; retire something and try again */
    HSP_EBUSY = -12,     /* all max_requests request slots are taken; retire something and try again */
    /* when */
    HSP_ESTATE = -20, /* the call does not fit the state of the request or the cache */
    /* where */
    HSP_EBACKEND = -30,     /* no backend of that name, or it cannot run on this machine */
    HSP_EUNSUPPORTED = -31, /* the backend cannot do this */
    HSP_EDEVICE = -32,      /* the device failed; the cache can only be closed */
    HSP_EIO = -40           /* a file could not be made, sized, mapped or read */
};

/* Name ("HSP_EINVAL") and one sentence for a status; static, never NULL, "HSP_UNKNOWN" for a number that is none. */
HSP_API const char *hsp_status_name(int status);
HSP_API const char *hsp_status_text(int status);

/* ------------------------------------------------------------------------------------------------------- config -- */

#define HSP_MAX_PLANES  4  /* planes of a row */
#define HSP_PAGE_TOKENS 64 /* tokens of a page of host memory */

/* Which slot a fetched row takes. Rows selected in the same step are never replaced. The m-th row fetched in a step, in
 * order of first appearance in the selection, takes the m-th slot in the policy's order. */
enum hsp_policy {
    HSP_LRU = 0,    /* least recently selected first. Order after a step, oldest first: rows not selected (old relative
                       order), rows fetched in this step (order of first appearance), rows hit (old relative order) */
    HSP_FIFO = 1,   /* first fetched first; a hit changes nothing */
    HSP_RANDOM = 2, /* a pseudo-random permutation of the slots, drawn anew each step from `seed` */
    HSP_CLOCK = 3   /* second chance: a hand passes over rows selected since it last came by */
};

/* Bits of hsp_config.flags. */
#define HSP_NO_IO 1u /* oracle: do everything but fetch bytes. Attention reads garbage; for measuring only */
#define HSP_PREFETCH                                                                                                   \
    2u /* hsp_swap_in fetches only the anchor's rows before what follows it in the stream. Its followers'              \
          come beside that, one layer after the other, on a stream of the cache, and hsp_wait_rows must                \
          be called before they are read. Slots, victims, row ids and counters are the same. Takes 8                   \
          bytes of device memory for each of max_k * max_queries entries, and 4 more, for each of                      \
          max_batch entries of a step and each group with followers; ref and cpu take ordinary memory */

/* How a cache is to be. Fill it with hsp_config_init, set the shape, and change what needs changing; every scalar is
 * also a knob (hsp_config_set, `hisparse info`, docs/config.md) with a default and bounds. */
typedef struct hsp_config {
    size_t struct_size; /* set by hsp_config_init; bytes of this struct as the caller knows it */

    /* shape of the model, or of the slice of it that this cache serves */
    int32_t first_layer;        /* number of the first layer, as used in every call; 30 for a later stage */
    int32_t n_layers;           /* layers held here: first_layer .. first_layer + n_layers - 1 */
    const int32_t *layer_group; /* [n_layers], caller memory read by open and footprint: layers with the same label
                                   share a selection. Any labels, any pattern. NULL: every layer alone */
    int32_t n_planes;           /* planes of a row, 1 .. HSP_MAX_PLANES */
    int32_t plane_bytes[HSP_MAX_PLANES]; /* bytes of each plane, multiples of 4 */

    /* capacity; all memory is taken at open */
    int32_t max_requests; /* requests live at once; each has its slots for every layer */
    int32_t max_batch;    /* entries of a step, padding included */
    int32_t max_context;  /* tokens a request may have */
    int64_t host_tokens;  /* tokens the host pool holds, all requests together; rounded up to pages */
    int32_t n_slots;      /* slots per request and layer, at least max_k * max_queries, at most 65535 */
    int32_t ring_rows;    /* newest tokens kept beside the slots, at least max_queries */
    int32_t max_k;        /* entries of one query's selection */
    int32_t max_queries;  /* queries of a request in one step, and new tokens of a request in one step */

    /* device layout: rows of all planes lie in blocks of block_rows rows, plane after plane inside a block, each block
     * padded to a multiple of block_align bytes, itself a multiple of 4. block_rows 1: the planes of a row side by
     * side; 64: the blocks FlashMLA reads */
    int32_t block_rows;
    int32_t block_align;

    /* host layout: all rows of a token in one group lie side by side, padded to a multiple of host_row_align bytes */
    int32_t host_row_align;
    int32_t huge_pages;   /* 1: ask for 2 MiB pages (hsp_stats says whether the system agreed); 0: do not */
    char host_file[1024]; /* path of a new file to hold the rows instead of memory; it loses its name at once and
                             is gone after close. "": memory */

    int32_t policy; /* enum hsp_policy */
    uint64_t seed;  /* of HSP_RANDOM */

    char backend[16];  /* "cpu", "ref", "cuda"; see hsp_backend_info */
    int32_t n_threads; /* threads of the cpu backend; 0: as many as the machine gives */
    uint32_t flags;    /* HSP_NO_IO, HSP_PREFETCH */

    /* how rows are fetched; the results are the same whatever they say. 0: by a rule of the backend. What suits a
     * machine is measured by `hisparse calibrate` and set by hsp_config_profile; ref and cpu have no use for them */
    int32_t request_blocks;   /* cuda: most blocks of a cluster that serve one request; 1, 2, 4 or 8 */
    int32_t fetch_blocks;     /* cuda: blocks that fetch at once for a large batch, and for a follower under
                                 HSP_PREFETCH; 1 .. 64. Not heeded by swap-ins for LRU selections of more than 4096
                                 entries and for other policies */
    int32_t pieces_in_flight; /* cuda: independent loads a thread has in flight while it fetches; 1, 2, 4 or 8, of
                                 which the kernels have 2 and 4; rows of several layers or blocks, or in pieces
                                 below 16 bytes, always 2; in a large batch always 4 for a request that misses more
                                 than half of its selection */
} hsp_config;

/* Set struct_size and every default. struct_size: sizeof(hsp_config) of the caller, hsp_config_init(&c, sizeof c). */
HSP_API void hsp_config_init(hsp_config *config, size_t struct_size);

/* Set one knob from text, as the command line and the environment do: hsp_config_set(&c, "n_slots", "4096").
 * HSP_EINVAL: no such knob (the nearest name is suggested) or not a value; HSP_ELIMIT: out of bounds. */
HSP_API int hsp_config_set(hsp_config *config, const char *key, const char *value);

/* Apply every variable HISPARSE_<KNOB> of the environment (HISPARSE_N_SLOTS=4096). A variable that names no knob is an
 * error, so that a misspelt one is noticed. Nothing else in the library reads the environment. */
HSP_API int hsp_config_env(hsp_config *config);

/* Set host_row_align, request_blocks, fetch_blocks and pieces_in_flight to what `hisparse calibrate --output FILE`
 * measured to suit the machine (docs/calibrate.md). path: that file; it is read and closed before the call returns.
 * HSP_EIO: it cannot be read; HSP_EINVAL: it is not such a profile, or of another format; HSP_ELIMIT: a number in it is
 * out of the bounds of its knob; HSP_ENOMEM. */
HSP_API int hsp_config_profile(hsp_config *config, const char *path);

/* Description of a knob. Texts are static, but for bounds, which lives until the thread's next hsp_config_knob. */
typedef struct hsp_knob {
    size_t struct_size;        /* in: sizeof(hsp_knob) */
    const char *key;           /* "n_slots" */
    const char *type;          /* "int", "text", "choice", "list" */
    const char *default_value; /* as text */
    const char *bounds;        /* "1..65535" or "lru|fifo|random|clock" */
    const char *unit;          /* "rows", "" */
    const char *help;          /* one sentence */
} hsp_knob;

/* Knob number `index`, counted from 0; HSP_ELIMIT past the last. */
HSP_API int hsp_config_knob(int32_t index, hsp_knob *knob_out);

/* ----------------------------------------------------------------------------------------------------- backends -- */

/* Bits of hsp_backend_desc.capabilities. */
#define HSP_CAN_RUN       1u  /* it can be opened on this machine */
#define HSP_CAN_HOST_FILE 2u  /* host rows may live in a file */
#define HSP_CAN_GRAPH     4u  /* calls may be captured into a CUDA graph */
#define HSP_CAN_PARALLEL  8u  /* n_threads is heeded */
#define HSP_OWN_MEMORY    16u /* "device" memory is a GPU's: ordinary pointers must not be given to it */

typedef struct hsp_backend_desc {
    size_t struct_size;    /* in: sizeof(hsp_backend_desc) */
    char name[16];         /* for hsp_config.backend */
    char detail[112];      /* what it runs on ("avx512 copies"), or why it cannot run */
    uint32_t capabilities; /* HSP_CAN_*, HSP_OWN_MEMORY */
} hsp_backend_desc;

/* Backend number `index`, counted from 0; HSP_ELIMIT past the last. */
HSP_API int hsp_backend_info(int32_t index, hsp_backend_desc *desc_out);

/* ----------------------------------------------------------------------------------------------- open and close -- */

typedef struct hsp_cache hsp_cache;

/* Bytes a cache takes. The sums are what open allocates, to the byte; nothing is allocated later. */
typedef struct hsp_footprint_bytes {
    size_t struct_size;    /* in: sizeof(hsp_footprint_bytes) */
    uint64_t device_rows;  /* device: n_layers * max_requests * (n_slots + ring_rows) rows, in blocks */
    uint64_t device_state; /* device: tags, order, look-up, page tables, counters */
    uint64_t host_rows;    /* host pool, in memory or in the file */
    uint64_t host_state;   /* ordinary memory for the handle, the page allocator and scratch */
} hsp_footprint_bytes;

/* What hsp_open would take for this config. Same errors as hsp_open, without taking anything. */
HSP_API int hsp_footprint(const hsp_config *config, hsp_footprint_bytes *bytes_out);

/* Open a cache. Takes all memory it will ever use.
 * HSP_EINVAL, HSP_ELIMIT: a knob, or two that contradict each other; HSP_EBACKEND: no such backend here;
 * HSP_ENOMEM: the machine has less free than the footprint (both numbers in the text; nothing was taken);
 * HSP_EIO: the host file exists or cannot be made; HSP_EUNSUPPORTED: the backend has no such host tier. */
HSP_API int hsp_open(const hsp_config *config, hsp_cache **cache_out);

/* Wait for work in flight, return all memory, invalidate the handle. NULL is allowed. */
HSP_API void hsp_close(hsp_cache *cache);

/* Text of the last error of this cache, or with NULL of the last call of this thread that had no cache (open, config).
 * Never NULL; valid until the next failing call. */
HSP_API const char *hsp_last_error(const hsp_cache *cache);

/* ----------------------------------------------------------------------------------------------------- requests -- */

/* Take a request slot and the host pages for `max_tokens` tokens, so that growth can never fail later.
 * request_out: handle for the other calls, non-negative; a handle is not reused for 32768 admissions of its slot.
 * HSP_ELIMIT: max_tokens outside 1 .. max_context, or more than the whole pool holds; HSP_EBUSY, HSP_EHOSTFULL: nothing
 * changed, try after a retire. */
HSP_API int hsp_admit(hsp_cache *cache, int32_t max_tokens, int32_t *request_out);

/* Give back the slot and pages of a request. Its bytes can never be read again, by it or by the next owner.
 * HSP_EREQUEST: not live (also when retired twice). */
HSP_API int hsp_retire(hsp_cache *cache, int32_t request);

/* Shorten a request to its first `n_tokens` tokens, for rejected drafts. Constant time when n_tokens is inside the
 * ring. HSP_ELIMIT: n_tokens outside 0 .. length. */
HSP_API int hsp_truncate(hsp_cache *cache, int32_t request, int32_t n_tokens, void *stream);

/* Where rows are read from: per plane the address of the first row and the bytes from row to row (0: packed). */
typedef struct hsp_row_source {
    const void *plane[HSP_MAX_PLANES];
    size_t stride[HSP_MAX_PLANES];
} hsp_row_source;

/* Where rows are written to, likewise. */
typedef struct hsp_row_sink {
    void *plane[HSP_MAX_PLANES];
    size_t stride[HSP_MAX_PLANES];
} hsp_row_sink;

/* Prefill: put rows of tokens first .. first + n_tokens - 1 of one layer into host memory. Layers in any order, tokens
 * of a layer in order, in any number of pieces; also between steps (a new turn of a conversation), not between
 * step_begin and the layer's append. The request's length
 * becomes the largest first + n_tokens; a step needs every layer filled that far.
 * rows: device memory, n_tokens rows a plane. HSP_ESTATE: `first` is not where this layer's rows end;
 * HSP_ELIMIT: beyond the max_tokens of admit. */
HSP_API int hsp_fill(hsp_cache *cache, int32_t request, int32_t layer, int32_t first, int32_t n_tokens,
                     const hsp_row_source *rows, void *stream);

/* Bring rows known to be hot into the slots, as a swap-in of that selection would, for one request and group.
 * layer: an anchor. tokens: int32 [n_tokens], device memory, -1 and tokens out of range are skipped; n_tokens at most
 * n_slots. Rows fetched are counted as warmed, not as misses. */
HSP_API int hsp_warm(hsp_cache *cache, int32_t request, int32_t layer, const int32_t *tokens, int32_t n_tokens,
                     void *stream);

/* Copy rows out of host memory, the truth: tokens first .. first + n_tokens - 1 of one layer, n_tokens rows a plane
 * into caller memory. Waits for work queued earlier. HSP_ELIMIT: rows that have not been written. */
HSP_API int hsp_read(hsp_cache *cache, int32_t request, int32_t layer, int32_t first, int32_t n_tokens,
                     const hsp_row_sink *rows_out);

/* --------------------------------------------------------------------------------------------------------- step -- */

/* Begin a step. Outside a captured graph.
 * requests: int32 [batch], caller memory; -1 is padding: such entries touch nothing and get -1. No request twice.
 * n_new: int32 [batch], caller memory: tokens each request grows by, 0 .. max_queries; NULL: one each. The new tokens
 * are length .. length + n_new - 1. batch: 0 .. max_batch; entries beyond it are padding for a graph captured larger.
 * HSP_ELIMIT: a request would outgrow its max_tokens; HSP_ESTATE: a request with layers filled to different lengths. */
HSP_API int hsp_step_begin(hsp_cache *cache, const int32_t *requests, const int32_t *n_new, int32_t batch,
                           void *stream);

/* Write the new rows of this step for one layer, to the ring on the device and through to host memory. Capturable.
 * rows: device memory, per plane [batch][rows_per_request] rows; rows i >= n_new of a request are not read.
 * rows_per_request: at least the largest n_new of the step, at most max_queries. */
HSP_API int hsp_append(hsp_cache *cache, int32_t layer, const hsp_row_source *rows, int32_t rows_per_request,
                       void *stream);

/* Turn selected tokens into row ids, fetching what is not on the device, for the anchor `layer` and its followers.
 * Capturable. May be called several times a step; each call is one step of the policy.
 * selection: int32 [batch][n_queries][k], device memory. row_ids_out: same shape, device memory, in selection order:
 *   -1 for -1; -1, counted as invalid, for tokens outside 0 .. rows written - 1; otherwise the id of the token's row.
 * The two must not overlap. Duplicates, within a query or across the queries of a request, get one slot and one fetch.
 * Ids are valid until the next swap-in or warm of that request and group. HSP_EINVAL: the layer is not an anchor. */
HSP_API int hsp_swap_in(hsp_cache *cache, int32_t layer, const int32_t *selection, int32_t n_queries, int32_t k,
                        int32_t *row_ids_out, void *stream);

/* Under HSP_PREFETCH: make what is queued on `stream` behind this call wait until the rows of `layer`, a follower, that
 * the latest swap-in of its group fetched are there; ref and cpu fetch them now. Nothing to do for anchors, without the
 * flag, and when they were waited for before: another stream that reads them must follow the one that waited. Other
 * calls are right before the wait too: what would touch rows that are on their way, as the next hsp_swap_in of the
 * group or hsp_retire, comes behind them by itself. Capturable, and what is captured is whole: all followers of a
 * captured swap-in must be waited for before the capture ends. HSP_ESTATE, also of hsp_swap_in: followers fetched
 * outside of this capture have not been waited for, or those of another capture under way. */
HSP_API int hsp_wait_rows(hsp_cache *cache, int32_t layer, void *stream);

/* One plane of a layer on the device: row `id` is at
 * base + (id / rows_per_block) * block_stride + (id % rows_per_block) * row_stride. */
typedef struct hsp_plane_view {
    void *base;             /* device memory */
    size_t row_bytes;       /* plane_bytes of the config */
    size_t row_stride;      /* bytes */
    size_t block_stride;    /* bytes */
    int32_t rows_per_block; /* block_rows of the config */
    int32_t reserved;
} hsp_plane_view;

typedef struct hsp_rows_view {
    size_t struct_size; /* in: sizeof(hsp_rows_view) */
    int64_t n_rows;     /* ids are 0 .. n_rows - 1; those of one request are consecutive */
    int32_t n_planes;
    int32_t reserved;
    hsp_plane_view plane[HSP_MAX_PLANES];
} hsp_rows_view;

/* What an attention kernel needs to read a layer's rows. The same for the life of the cache. */
HSP_API int hsp_rows(hsp_cache *cache, int32_t layer, hsp_rows_view *view_out);

/* --------------------------------------------------------------------------------------------------- inspection -- */

/* Counters since open or hsp_stats_reset. hits + misses + invalid + none = entries of all selections. */
typedef struct hsp_counters {
    uint64_t hits;    /* entries served without a fetch: resident, in the ring, or a repetition in the same call */
    uint64_t misses;  /* rows fetched by swap-in, each once; times the layers of the group, that many rows moved */
    uint64_t invalid; /* entries outside the rows written */
    uint64_t none;    /* entries of -1 in entries of the batch that are not padding */
    uint64_t warmed;  /* rows fetched by hsp_warm */
    uint64_t fetched_bytes; /* host to device, by swap-in and warm, all layers of the group; with HSP_NO_IO what it
                               would have been */
    uint64_t appended_rows; /* rows written by hsp_append, one layer each */
    uint64_t filled_rows;   /* rows written by hsp_fill, one layer each */
} hsp_counters;

typedef struct hsp_stats_view {
    size_t struct_size;         /* in: sizeof(hsp_stats_view) */
    int32_t live_requests;      /* now */
    int32_t host_huge_pages;    /* 1: the host pool got 2 MiB pages */
    int64_t host_pages;         /* pages of the pool */
    int64_t host_pages_free;    /* now */
    int64_t host_pages_longest; /* longest run of free pages, now: below host_pages_free the pool is fragmented */
    uint64_t steps;             /* hsp_step_begin calls that succeeded */
    hsp_counters total;
} hsp_stats_view;

/* Counters of everything; of one layer's group (any of its layers); of one live request since its admission. */
HSP_API int hsp_stats(hsp_cache *cache, hsp_stats_view *stats_out);
HSP_API int hsp_layer_counters(hsp_cache *cache, int32_t layer, hsp_counters *counters_out);
HSP_API int hsp_request_counters(hsp_cache *cache, int32_t request, hsp_counters *counters_out);
HSP_API int hsp_stats_reset(hsp_cache *cache);

/* All of hsp_stats as Prometheus text (exposition format 0.0.4), for a page that is scraped. Counters since open or
 * hsp_stats_reset, one sample a group, labelled with the backend and the group's anchor: `hisparse_hits_total`,
 * `hisparse_misses_total`, `hisparse_fetched_bytes_total` and the others of hsp_counters; hisparse_steps_total, and
 * requests and host pages as gauges, labelled with the backend.
 * text_out: caller memory of `size` bytes, gets the text with a zero behind it. bytes_out: length of the text without
 * the zero. text_out NULL and size 0: only the length, as it is now; numbers grow, so leave room. HSP_ELIMIT: `size`
 * is too small, both numbers in the text. */
HSP_API int hsp_stats_text(hsp_cache *cache, char *text_out, size_t size, size_t *bytes_out);

/* Tokens a live request has now. */
HSP_API int hsp_length(hsp_cache *cache, int32_t request, int32_t *n_tokens_out);

/* What is resident for one request and group (layer: any of the group). Caller memory, each may be NULL.
 * tokens_out: int32 [n_slots]: token in each slot, -1 for none. order_out: int32 [n_slots]: for HSP_LRU and HSP_FIFO
 * the slots oldest first; for HSP_CLOCK 1 for slots selected since the hand passed; zeros for HSP_RANDOM.
 * ring_first_out: first token that is in the ring; token t of the ring has the id of slot n_slots + t % ring_rows.
 * first_id_out: the row id of the request's slot 0. */
HSP_API int hsp_resident(hsp_cache *cache, int32_t request, int32_t layer, int32_t *tokens_out, int32_t *order_out,
                         int32_t *ring_first_out, int32_t *first_id_out);

#ifdef __cplusplus
}
#endif

#endif
