/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/backend.h"

#include <stdio.h>
#include <string.h>

static const hsp__backend *const backends[] = {&hsp__backend_cpu, &hsp__backend_ref};

const hsp__backend *hsp__backend_at(int32_t index) {
    return index >= 0 && (size_t)index < sizeof backends / sizeof backends[0] ? backends[index] : NULL;
}

const hsp__backend *hsp__backend_named(const char *name) {
    for (int32_t i = 0; hsp__backend_at(i); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

int hsp_backend_info(int32_t index, hsp_backend_desc *desc_out) {
    const hsp__backend *backend = hsp__backend_at(index);
    if (!desc_out || desc_out->struct_size < sizeof *desc_out)
        return hsp__fail(hsp__thread_error(), HSP_EINVAL, "backend_info: set desc_out->struct_size to its size");
    if (!backend)
        return hsp__fail(hsp__thread_error(), HSP_ELIMIT, "backend_info: there is no backend number %d", index);
    snprintf(desc_out->name, sizeof desc_out->name, "%s", backend->name);
    backend->describe(desc_out->detail, sizeof desc_out->detail);
    desc_out->capabilities = backend->capabilities();
    return HSP_OK;
}
