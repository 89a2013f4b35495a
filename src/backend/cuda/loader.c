/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda backend is a library of its own, opened when somebody asks: a machine without CUDA runs the rest. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

static const hsp__backend *loaded;
static char why[112] = "";

/* Beside the library that holds this function, or wherever the system looks. */
static void *open_library(void) {
    static const char name[] = "libhisparse_cuda.so." HSP_SOVERSION_TEXT;
    char path[4096] = "";
    Dl_info info;
    if (dladdr((void *)(uintptr_t)open_library, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
        if ((size_t)snprintf(path, sizeof path, "%.*s%s", folder, info.dli_fname, name) < sizeof path) {
            void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (library)
                return library;
        }
    }
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static void load(void) {
    void *library = open_library();
    const char *const *version = library ? dlsym(library, "hsp__cuda_version") : NULL;
    if (!library)
        snprintf(why, sizeof why, "%s", dlerror());
    else if (!version || strcmp(*version, HSP_VERSION_TEXT) != 0)
        snprintf(why, sizeof why, "libhisparse_cuda.so is of version %s, this is " HSP_VERSION_TEXT,
                 version ? *version : "?");
    else
        loaded = dlsym(library, "hsp__backend_cuda");
}

static const hsp__backend *find(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return loaded;
}

static uint32_t capabilities(void) {
    return 0;
}

static void describe(char *detail, size_t bytes) {
    snprintf(detail, bytes, "%s", why);
}

/* Stands in the list when the library cannot be opened, to say why. */
static const hsp__backend missing = {.name = "cuda", .capabilities = capabilities, .describe = describe};

const hsp__backend *hsp__backend_cuda_load(void) {
    return find() ? find() : &missing;
}
