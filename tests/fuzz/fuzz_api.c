/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes choose a cache and a sequence of calls; the toy that keeps everything knows what each must do. */
#include "random_ops.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

_Noreturn void toy_differs(const char *file, int line, const char *what, long long got, long long want) {
    fprintf(stderr, "%s:%d: %s: got %lld, want %lld\n", file, line, what, got, want);
    abort();
}

typedef struct bytes {
    const uint8_t *next, *end;
} bytes;

/* Two bytes a choice; zeros once they run out. */
static uint32_t from_bytes(chooser *c, uint32_t n) {
    bytes *b = c->state;
    uint32_t value = 0;
    for (int i = 0; i < 2 && b->next < b->end; i++)
        value = value << 8 | *b->next++;
    return value % n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes left = {data, data + size};
    chooser c = {from_bytes, &left};
    hsp_config config;
    int32_t map[16];
    toy t;
    random_config(&c, from_bytes(&c, 2) ? "cpu" : "ref", &config, map);
    config.n_threads = 1; /* many short runs: no pool of threads */
    toy_open(&t, &config);
    for (int op = 0; op < 100 && left.next < left.end; op++)
        random_op(&c, &t);
    toy_check(&t);
    toy_close(&t);
    return 0;
}
