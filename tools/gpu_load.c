/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"
#include "hisparse.h"
#include "tools.h"

#include <dlfcn.h>
#include <string.h>

/* Found through the run path of the command: beside the library. Once opened it stays, and opening it again is cheap.
 */
const void *gpu_table_of(const char *library, const char *version, const char *symbol) {
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        tool_fail(TOOL_BAD_INPUT, "this build has no GPU part: %s", dlerror());
        return NULL;
    }
    const char *const *has = dlsym(opened, version);
    const void *table = dlsym(opened, symbol);
    if (!table || !has || strcmp(*has, hsp_version()) != 0) {
        tool_fail(TOOL_BAD_INPUT, "%s is of version %s, this is %s", library, has ? *has : "?", hsp_version());
        return NULL;
    }
    return table;
}

const void *gpu_table(const char *symbol) {
    return gpu_table_of("libhisparse_gpu.so", "gpu_version", symbol);
}
