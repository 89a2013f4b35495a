/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka.h needs these four before it, in whatever order includes are sorted elsewhere. */
#ifndef HISPARSE_TESTS_WITH_CMOCKA_H
#define HISPARSE_TESTS_WITH_CMOCKA_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif
