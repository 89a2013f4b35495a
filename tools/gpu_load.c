/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"
#include "hisparse.h"
#include "tools.h"

#include <dlfcn.h>
#include <string.h>

/* Found through the run path of the command: beside the library. */
const void *gpu_table(const char *symbol) {
    static void *library;
    if (!library)
        library = dlopen("libhisparse_gpu.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        tool_fail(TOOL_BAD_INPUT, "this build has no GPU part: %s", dlerror());
        return NULL;
    }
    const char *const *version = dlsym(library, "gpu_version");
    const void *table = dlsym(library, symbol);
    if (!table || !version || strcmp(*version, hsp_version()) != 0) {
        tool_fail(TOOL_BAD_INPUT, "libhisparse_gpu.so is of version %s, this is %s", version ? *version : "?",
                  hsp_version());
        return NULL;
    }
    return table;
}
