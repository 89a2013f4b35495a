/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdlib.h>

_Noreturn void toy_differs(const char *file, int line, const char *what, long long got, long long want) {
    print_error("%s: got %lld, want %lld\n", what, got, want);
    _fail(file, line);
    abort(); /* _fail does not return, but is not declared so */
}
