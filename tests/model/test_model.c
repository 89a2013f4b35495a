/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations on caches of random shapes, compared with the toy that keeps everything. The seed of a failing run
 * is printed; run again with it as the argument. */
#include "check.h"
#include "random_ops.h"

#include <stdio.h>

static uint64_t first_seed = 1;

static uint32_t generator(chooser *c, uint32_t n) {
    return draw(c->state, n);
}

static void random_operations(void **state) {
    need_backend(*state);
    for (uint64_t run = 0; run < 250; run++) {
        uint64_t seed = first_seed + run;
        chooser c = {generator, &seed};
        hsp_config config;
        int32_t map[16];
        toy t;
        print_message("seed %llu\n", (unsigned long long)(first_seed + run));
        random_config(&c, *state, &config, map);
        toy_open(&t, &config);
        for (int op = 0; op < 200; op++) {
            random_op(&c, &t);
            if (op % 16 == 0)
                toy_check(&t);
        }
        toy_check(&t);
        toy_close(&t);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {ON_EVERY_BACKEND(random_operations)};
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
