/* SPDX-License-Identifier: Apache-2.0 */
/* A stream and one captured step on it, as the tests of graphs and streams need them. On ref and cpu work is done at
 * once and a replay repeats the calls, so that the bodies of these tests run, and are right, without a GPU. A CUDA call
 * that fails is a difference of the toy. */
#ifndef HSP_QUEUE_H
#define HSP_QUEUE_H

#include "toy.h"

typedef struct queue queue;

typedef struct queue_kind {
    void (*open)(queue *q);
    void (*close)(queue *q);
    void *(*alloc)(size_t bytes, int on_host); /* zeroed */
    void (*release)(void *memory, int on_host);
    void (*copy)(queue *q, void *to, const void *from, size_t bytes);
    void (*wait)(queue *q);
    void (*follow)(queue *q, queue *before);
    void (*capture)(queue *q, void (*body)(void *), void *argument);
    void (*replay)(queue *q);
    size_t (*device_free)(void);
} queue_kind;

struct queue {
    const queue_kind *kind;
    void *stream, *event, *graph;
    void (*body)(void *);
    void *argument;
};

extern const queue_kind queue_plain;
extern const queue_kind *const queue_cuda; /* NULL in a build without CUDA */

/* A stream of its own, which the default stream does not wait for. */
void queue_open(queue *q, const char *backend);
void queue_close(queue *q);

/* Memory of the device, or of the host where the device can copy without its help. */
void *queue_alloc(const queue *q, size_t bytes);
void *queue_alloc_host(const queue *q, size_t bytes);
void queue_release(const queue *q, void *memory);
void queue_release_host(const queue *q, void *memory);

/* In the order of the stream; the host does not wait. Memory of the host must stay until the copy is done. */
void queue_copy(queue *q, void *to, const void *from, size_t bytes);
void queue_wait(queue *q);
/* What q is given from now on comes after what `before` was given so far. Also while q or `before` is captured. */
void queue_follow(queue *q, queue *before);

/* Capture the calls of body, which runs nothing now, in place of what was captured before; replay them. */
void queue_capture(queue *q, void (*body)(void *), void *argument);
void queue_replay(queue *q);

#endif
