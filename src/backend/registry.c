/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/backend.h"

#include <stdio.h>
#include <string.h>

const hsp__backend *hsp__backend_at(int32_t index) {
    switch (index) {
    case 0:
        return &hsp__backend_cpu;
    case 1:
        return &hsp__backend_ref;
    case 2:
        return hsp__backend_cuda_load();
    default:
        return NULL;
    }
}

/* By name first: nobody should wait for a GPU library who has not asked for it. */
const hsp__backend *hsp__backend_named(const char *name) {
    static const char *const names[] = {"cpu", "ref", "cuda"};
    for (int32_t i = 0; i < 3; i++)
        if (strcmp(names[i], name) == 0)
            return hsp__backend_at(i);
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
