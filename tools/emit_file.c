/* SPDX-License-Identifier: Apache-2.0 */
#include "emit.h"
#include "tools.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int cannot_write(int code, const char *path) {
    return tool_fail(code, "cannot write '%s': %s", path, strerror(errno));
}

/* A file beside `path`, with the rights a plain open would have given: mkstemp lets nobody else read. */
static FILE *open_temporary(emit_file *file) {
    size_t room = sizeof file->temporary;
    errno = ENAMETOOLONG;
    if (snprintf(file->temporary, room, "%s.XXXXXX", file->path) >= (int)room)
        return NULL;
    int descriptor = mkstemp(file->temporary);
    if (descriptor < 0)
        return NULL;
    mode_t mask = umask(0);
    umask(mask);
    fchmod(descriptor, 0666 & ~mask);
    return fdopen(descriptor, "w");
}

int emit_open(emit_file *file, const char *path) {
    struct stat there;
    *file = (emit_file){.stream = stdout, .path = path};
    if (!path)
        return TOOL_OK;
    /* Only a plain file, or none, may be replaced: a rename would put a file in the place of a device. */
    int special = stat(path, &there) == 0 && !S_ISREG(there.st_mode);
    file->stream = special ? fopen(path, "w") : open_temporary(file);
    return file->stream ? TOOL_OK : cannot_write(TOOL_BAD_INPUT, path);
}

int emit_commit(emit_file *file) {
    if (!file->path)
        return TOOL_OK;
    int failed = fflush(file->stream) != 0 || ferror(file->stream), error = errno;
    failed |= fclose(file->stream) != 0;
    errno = failed ? error : 0;
    if (!failed && (!file->temporary[0] || rename(file->temporary, file->path) == 0))
        return TOOL_OK;
    int code = cannot_write(TOOL_FAILED, file->path);
    if (file->temporary[0])
        unlink(file->temporary);
    return code;
}

void emit_discard(emit_file *file) {
    if (!file->path)
        return;
    fclose(file->stream);
    if (file->temporary[0])
        unlink(file->temporary);
}
