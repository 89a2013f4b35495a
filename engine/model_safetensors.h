/* SPDX-License-Identifier: Apache-2.0 */
/* A model on its way out of a safetensors file: what is read of the metadata, and of the tensors. */
#ifndef HISPARSE_MODEL_SAFETENSORS_H
#define HISPARSE_MODEL_SAFETENSORS_H

#include "model_internal.h"

typedef struct model_loader {
    model *m;
    safetensors *file;
    const char *path;
    char *error;
    size_t error_bytes;
    int failed;
} model_loader;

/* The first failure is the one that is told: "FILE: offset N: what: why", the offset being that of a key of the file's
 * header. Returns 0. */
int model__fail(model_loader *l, const char *header_key, const char *what, const char *why, ...)
    __attribute__((format(printf, 4, 5)));

/* Everything of the model but its weights, out of the JSON in the metadata. */
void model__read_shape(model_loader *l);

#endif
