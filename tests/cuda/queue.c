/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

static void open_plain(queue *q) {
    (void)q;
}

static void *alloc_plain(size_t bytes, int on_host) {
    (void)on_host;
    return toy_plain_device.alloc(bytes);
}

static void release_plain(void *memory, int on_host) {
    (void)on_host;
    toy_plain_device.release(memory);
}

static void copy_plain(queue *q, void *to, const void *from, size_t bytes) {
    (void)q;
    memcpy(to, from, bytes);
}

static void follow_plain(queue *q, queue *before) {
    (void)q, (void)before;
}

static void capture_plain(queue *q, void (*body)(void *), void *argument) {
    q->body = body;
    q->argument = argument;
}

static void replay_plain(queue *q) {
    q->body(q->argument);
}

static size_t no_device(void) {
    return 0;
}

const queue_kind queue_plain = {open_plain, open_plain,   alloc_plain,   release_plain, copy_plain,
                                open_plain, follow_plain, capture_plain, replay_plain,  no_device};

void queue_open(queue *q, const char *backend) {
    *q = (queue){.kind = strcmp(backend, "cuda") == 0 ? queue_cuda : &queue_plain};
    q->kind->open(q);
}

void queue_close(queue *q) {
    q->kind->close(q);
}

void *queue_alloc(const queue *q, size_t bytes) {
    return q->kind->alloc(bytes, 0);
}

void *queue_alloc_host(const queue *q, size_t bytes) {
    return q->kind->alloc(bytes, 1);
}

void queue_release(const queue *q, void *memory) {
    q->kind->release(memory, 0);
}

void queue_release_host(const queue *q, void *memory) {
    q->kind->release(memory, 1);
}

void queue_copy(queue *q, void *to, const void *from, size_t bytes) {
    if (bytes > 0)
        q->kind->copy(q, to, from, bytes);
}

void queue_wait(queue *q) {
    q->kind->wait(q);
}

void queue_follow(queue *q, queue *before) {
    q->kind->follow(q, before);
}

void queue_capture(queue *q, void (*body)(void *), void *argument) {
    q->kind->capture(q, body, argument);
}

void queue_replay(queue *q) {
    q->kind->replay(q);
}
