/* SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    int status;
    const char *name, *text;
} statuses[] = {
    {HSP_OK, "HSP_OK", "done"},
    {HSP_EINVAL, "HSP_EINVAL", "an argument is not of the form the function takes"},
    {HSP_ELIMIT, "HSP_ELIMIT", "a value is beyond a limit of this cache"},
    {HSP_EREQUEST, "HSP_EREQUEST", "there is no such live request"},
    {HSP_ENOMEM, "HSP_ENOMEM", "there is less memory than was asked for"},
    {HSP_EHOSTFULL, "HSP_EHOSTFULL", "the host pool has too few free pages"},
    {HSP_EBUSY, "HSP_EBUSY", "all request slots are taken"},
    {HSP_ESTATE, "HSP_ESTATE", "the call does not fit the state of the request or the cache"},
    {HSP_EBACKEND, "HSP_EBACKEND", "there is no backend of that name that can run here"},
    {HSP_EUNSUPPORTED, "HSP_EUNSUPPORTED", "the backend cannot do this"},
    {HSP_EDEVICE, "HSP_EDEVICE", "the device failed; the cache can only be closed"},
    {HSP_EIO, "HSP_EIO", "a file could not be made, sized, mapped or read"},
};

static size_t find_status(int status) {
    size_t i = 0;
    while (i < sizeof statuses / sizeof statuses[0] && statuses[i].status != status)
        i++;
    return i;
}

const char *hsp_status_name(int status) {
    size_t i = find_status(status);
    return i < sizeof statuses / sizeof statuses[0] ? statuses[i].name : "HSP_UNKNOWN";
}

const char *hsp_status_text(int status) {
    size_t i = find_status(status);
    return i < sizeof statuses / sizeof statuses[0] ? statuses[i].text : "not a status of this library";
}

int hsp__fail(hsp__error *error, int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    error->status = status;
    return status;
}

hsp__error *hsp__thread_error(void) {
    static _Thread_local hsp__error error;
    return &error;
}
