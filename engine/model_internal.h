/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of model files share. */
#ifndef HISPARSE_MODEL_INTERNAL_H
#define HISPARSE_MODEL_INTERNAL_H

#include "model.h"
#include "safetensors.h"

/* A whole model from one kind of file; NULL on failure. */
model *model__open_gguf(const char *path, char *error, size_t error_bytes);
model *model__open_safetensors(const char *path, char *error, size_t error_bytes);

/* The same out of a reader, which is closed: it is only needed until the weights are read. path: for messages. */
model *model__read_safetensors(safetensors *file, const char *path, char *error, size_t error_bytes);

/* Zeroed, aligned for vector loads and freed with free; NULL when out of memory. */
void *model__grab(size_t count, size_t size);

/* theta^(-2i/dims) for i below dims / 2 (Su et al., "RoFormer"); NULL when out of memory. */
float *model__rope_frequency(double theta, int32_t dims);

/* Shapes of the rows and of attention that follow from the heads, for Quest and NSA. */
void model__set_gqa(model *m);

#endif
