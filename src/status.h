/* SPDX-License-Identifier: Apache-2.0 */
/* The text of an error: whoever detects it writes it, callers pass the status up. */
#ifndef HSP_STATUS_H
#define HSP_STATUS_H

#include "hisparse.h"

typedef struct hsp__error {
    int status;
    char text[320];
} hsp__error;

/* Write the text and return `status`, so that a check reads `return hsp__fail(error, HSP_ELIMIT, ...)`. */
int hsp__fail(hsp__error *error, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The error of calls that have no cache, one per thread. */
hsp__error *hsp__thread_error(void);

#endif
