/* SPDX-License-Identifier: Apache-2.0 */
#include "npy.h"

#include "mapped_file.h"
#include "tools.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zip.h>

enum { MOST_HEADER = 4096, PREFIX_BYTES = 10, NUMBERS_AT_ONCE = 8192 };

int npy_is_archive(const char *path) {
    size_t n = strlen(path);
    return n >= 4 && strcmp(path + n - 4, ".npz") == 0;
}

/* -------------------------------------------------------------------------------------------------------- bytes -- */

static int fail(const npy *n, const char *reason) {
    return tool_fail(TOOL_BAD_INPUT, "%s: offset %" PRId64 ": %s", n->name, n->offset, reason);
}

static int read_bytes(npy *n, void *out, size_t bytes) {
    int64_t got = n->member ? zip_fread(n->member, out, bytes) : (int64_t)fread(out, 1, bytes, n->file);
    if (got == (int64_t)bytes) {
        n->offset += got;
        return TOOL_OK;
    }
    if (got < 0 || (n->file && ferror(n->file)))
        return fail(n, "cannot be read");
    n->offset += got;
    return fail(n, "the file ends before the array does");
}

static int open_member(npy *n, const char *path, const char *array) {
    char member[256];
    int why;
    zip_error_t error;
    n->archive = zip_open(path, ZIP_RDONLY, &why);
    if (!n->archive) {
        zip_error_init_with_code(&error, why);
        tool_fail(TOOL_BAD_INPUT, "%s: no .npz file: %s", path, zip_error_strerror(&error));
        zip_error_fini(&error);
        return TOOL_BAD_INPUT;
    }
    snprintf(member, sizeof member, "%s.npy", array);
    snprintf(n->name, sizeof n->name, "%.250s: %.250s", path, member);
    if (zip_name_locate(n->archive, member, 0) < 0)
        return 1;
    n->member = zip_fopen(n->archive, member, 0);
    return n->member ? TOOL_OK : fail(n, zip_strerror(n->archive));
}

static int open_file(npy *n, const char *path) {
    struct stat status;
    snprintf(n->name, sizeof n->name, "%s", path);
    if (stat(path, &status) != 0)
        return tool_fail(TOOL_BAD_INPUT, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode)) /* before it is opened: a pipe would wait for its other end */
        return tool_fail(TOOL_BAD_INPUT, "%s: not a regular file", path);
    n->file = fopen(path, "rbe");
    return n->file ? TOOL_OK : tool_fail(TOOL_BAD_INPUT, "%s: %s", path, strerror(errno));
}

/* ------------------------------------------------------------------------------------------------------- header -- */

/* What follows "'key': " in the header, NULL where there is none. */
static const char *value_of(const char *header, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *found = strstr(header, quoted);
    return found ? found + strlen(quoted) + strspn(found + strlen(quoted), " ") : NULL;
}

/* A tuple of 1 to NPY_MOST_DIMS dimensions, "(3, 4, 5)" or "(3,)". */
static int parse_shape(npy *n, const char *text) {
    if (!text || *text++ != '(')
        return fail(n, "the header has no shape");
    for (n->n_dims = 0; *text != ')';) {
        char *end;
        errno = 0;
        long long dim = strtoll(text, &end, 10);
        if (end == text || errno || dim < 1 || dim > INT32_MAX || n->n_dims == NPY_MOST_DIMS)
            return fail(n, "the shape must be 1 to 4 dimensions of 1 to 2147483647");
        n->dims[n->n_dims++] = dim;
        text = end + strspn(end, ", ");
    }
    return n->n_dims > 0 ? TOOL_OK : fail(n, "the array is a single number");
}

static int parse_header(npy *n, const char *header) {
    const char *type = value_of(header, "descr"), *order = value_of(header, "fortran_order");
    if (!type || (strncmp(type, "'<i4'", 5) != 0 && strncmp(type, "'<i8'", 5) != 0))
        return fail(n, "the array must be int32 or int64");
    if (!order || strncmp(order, "False", 5) != 0)
        return fail(n, "the array must be in C order; numpy.ascontiguousarray makes it so");
    n->number_bytes = type[3] - '0';
    return parse_shape(n, value_of(header, "shape"));
}

static int read_header(npy *n) {
    uint8_t prefix[PREFIX_BYTES + 2];
    char header[MOST_HEADER + 1];
    int code = read_bytes(n, prefix, PREFIX_BYTES);
    if (code != TOOL_OK)
        return code;
    if (memcmp(prefix, "\x93NUMPY", 6) != 0 || prefix[6] < 1 || prefix[6] > 3)
        return fail(n, "not an array of numpy");
    size_t bytes = prefix[8] | (size_t)prefix[9] << 8;
    if (prefix[6] > 1) { /* two more bytes of length */
        code = read_bytes(n, prefix + PREFIX_BYTES, 2);
        bytes |= (size_t)prefix[10] << 16 | (size_t)prefix[11] << 24;
    }
    if (code == TOOL_OK && bytes > MOST_HEADER)
        code = fail(n, "a header of more than 4096 bytes");
    if (code == TOOL_OK)
        code = read_bytes(n, header, bytes);
    if (code != TOOL_OK)
        return code;
    header[bytes] = 0;
    return parse_header(n, header);
}

int npy_open(npy *n, const char *path, const char *array) {
    *n = (npy){0};
    int code = npy_is_archive(path) ? open_member(n, path, array) : open_file(n, path);
    if (code == TOOL_OK)
        code = read_header(n);
    if (code != TOOL_OK)
        npy_close(n);
    return code;
}

int npy_read(npy *n, int32_t *numbers_out, int64_t count) {
    int64_t wide[NUMBERS_AT_ONCE];
    if (n->number_bytes == 4)
        return read_bytes(n, numbers_out, (size_t)count * 4);
    while (count > 0) {
        int64_t part = count < NUMBERS_AT_ONCE ? count : NUMBERS_AT_ONCE;
        int code = read_bytes(n, wide, (size_t)part * 8);
        if (code != TOOL_OK)
            return code;
        for (int64_t i = 0; i < part; i++) {
            if (wide[i] < INT32_MIN || wide[i] > INT32_MAX)
                return fail(n, "a number just before does not fit 32 bits");
            numbers_out[i] = (int32_t)wide[i];
        }
        numbers_out += part;
        count -= part;
    }
    return TOOL_OK;
}

void npy_close(npy *n) {
    if (n->member)
        zip_fclose(n->member);
    if (n->archive)
        zip_discard(n->archive);
    if (n->file)
        fclose(n->file);
    *n = (npy){0};
}
