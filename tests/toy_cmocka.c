/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdlib.h>

_Noreturn void toy_differs(const char *file, int line, const char *what, long long got, long long want) {
    print_error("%s: got %lld, want %lld\n", what, got, want);
    _fail(file, line);
    abort(); /* _fail does not return, but is not declared so */
}

/* CMOCKA_TEST_FILTER="* on cuda" runs only the tests that match; later versions of cmocka read it themselves. */
__attribute__((constructor)) static void take_filter(void) {
    const char *filter = getenv("CMOCKA_TEST_FILTER");
    if (filter)
        cmocka_set_test_filter(filter);
}
