/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a GGUF file: checking its header, then its metadata and its tensor table. */
#include "gguf_internal.h"
#include "mapped_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const uint32_t supported_version = 3;

static int read_header(gguf_cursor *cursor, gguf *file) {
    const uint8_t *magic = gguf__take(cursor, 4, "magic");
    if (!magic)
        return -1;
    if (memcmp(magic, "GGUF", 4) != 0)
        return gguf__fail(cursor, 0, "magic is %02x %02x %02x %02x, not \"GGUF\"", magic[0], magic[1], magic[2],
                          magic[3]);
    uint64_t at = cursor->at;
    uint32_t version;
    if (gguf__take_u32(cursor, "version", &version))
        return -1;
    if (version == __builtin_bswap32(supported_version))
        return gguf__fail(cursor, at, "version is 0x%08" PRIx32 ": a big-endian file, only little-endian is supported",
                          version);
    if (version != supported_version)
        return gguf__fail(cursor, at, "version is %" PRIu32 ", supported is %" PRIu32, version, supported_version);
    /* A tensor's entry takes more than its name's length; the table itself makes the exact check. */
    return gguf__take_count(cursor, "number of tensors", 8, &file->n_tensors);
}

/* Takes over the mapping, if it is one: it is unmapped on failure too. */
static gguf *open_bytes(gguf_cursor *cursor, int is_mapped) {
    gguf *file = calloc(1, sizeof *file);
    char *name = strdup(cursor->name);
    if (!file || !name) {
        gguf__fail(cursor, 0, "no memory");
        free(file);
        free(name);
        if (is_mapped)
            munmap((void *)cursor->bytes, cursor->n_bytes);
        return NULL;
    }
    *file = (gguf){.name = name, .bytes = cursor->bytes, .n_bytes = cursor->n_bytes, .is_mapped = is_mapped};
    if (read_header(cursor, file) || gguf__read_metadata(cursor, file) || gguf__read_tensors(cursor, file)) {
        gguf_close(file);
        return NULL;
    }
    return file;
}

gguf *gguf_open_memory(const void *bytes, size_t n_bytes, const char *name, char *error, size_t error_bytes) {
    gguf_cursor cursor = {.bytes = bytes, .n_bytes = n_bytes, .name = name, .error = error, .error_bytes = error_bytes};
    return open_bytes(&cursor, 0);
}

gguf *gguf_open(const char *path, char *error, size_t error_bytes) {
    gguf_cursor cursor = {.name = path, .error = error, .error_bytes = error_bytes};
    if (mapped_file_open(path, &cursor.bytes, &cursor.n_bytes, error, error_bytes))
        return NULL;
    return open_bytes(&cursor, 1);
}

void gguf_close(gguf *file) {
    if (!file)
        return;
    for (uint64_t i = 0; file->values && i < file->n_values; i++)
        free(file->values[i].string_at);
    free(file->values);
    free(file->tensors);
    free(file->name);
    if (file->is_mapped)
        munmap((void *)file->bytes, file->n_bytes);
    free(file);
}
