/* SPDX-License-Identifier: Apache-2.0 */
#include "mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct complaint {
    const char *path;
    char *error;
    size_t error_bytes;
} complaint;

/* Of a file that cannot be read at all: no offset says more. */
static int fail_whole(const complaint *c, const char *what, const char *why) {
    if (c->error && c->error_bytes > 0)
        snprintf(c->error, c->error_bytes, "%s: %s%s", c->path, what, why);
    return -1;
}

static int map_whole(int fd, const complaint *c, const uint8_t **bytes_out, uint64_t *n_bytes_out) {
    struct stat status;
    if (fstat(fd, &status) != 0)
        return fail_whole(c, "cannot be examined: ", strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail_whole(c, "not a regular file", "");
    if (status.st_size == 0)
        return fail_whole(c, "the file is empty", "");
    void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return fail_whole(c, "cannot be mapped: ", strerror(errno));
    *bytes_out = bytes;
    *n_bytes_out = (uint64_t)status.st_size;
    return 0;
}

int mapped_file_open(const char *path, const uint8_t **bytes_out, uint64_t *n_bytes_out, char *error,
                     size_t error_bytes) {
    const complaint c = {path, error, error_bytes};
    /* Not blocking: a pipe in place of the file is then refused like any other special file, not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return fail_whole(&c, "cannot be opened: ", strerror(errno));
    int failed = map_whole(fd, &c, bytes_out, n_bytes_out);
    close(fd);
    return failed;
}

int mapped_file_fail(const char *name, uint64_t offset, char *error, size_t error_bytes, const char *format, ...) {
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (error && error_bytes > 0)
        snprintf(error, error_bytes, "%s: offset %" PRIu64 ": %s", name, offset, reason);
    return -1;
}

const char *mapped_file_printable(const char *bytes, size_t n_bytes, char *text_out, size_t text_bytes) {
    size_t n = n_bytes < text_bytes - 1 ? n_bytes : text_bytes - 1;
    for (size_t i = 0; i < n; i++)
        text_out[i] = (char)(bytes[i] >= 0x20 && bytes[i] < 0x7f ? bytes[i] : '?');
    text_out[n] = 0;
    return text_out;
}
