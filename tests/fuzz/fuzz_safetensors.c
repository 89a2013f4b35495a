/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused with a message, or opened with every tensor readable and in its place; then
 * as a model, which is refused with a message or has weights. */
#include "hisparse_ops.h"
#include "model_internal.h"
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static volatile uint64_t sink; /* what is read must not be optimised away */

static void require(int holds) {
    if (!holds)
        abort();
}

static void touch_tensor(const safetensors *file, size_t index, const uint8_t *bytes, size_t n_bytes) {
    const safetensors_tensor *t = safetensors_at(file, index);
    const uint8_t *data = t->data;
    require(data >= bytes && data <= bytes + n_bytes && t->data_bytes <= (size_t)(bytes + n_bytes - data));
    require(t->data_bytes == (size_t)t->n_numbers * (t->dtype == HSP_F32 || t->dtype == SAFETENSORS_I32 ? 4 : 2));
    require(safetensors_find(file, t->name) == t);
    require(safetensors_place(file, t->name) < n_bytes);
    if (t->dtype == SAFETENSORS_I32)
        return;
    float *numbers = malloc((size_t)t->n_numbers * sizeof *numbers + 1);
    require(numbers != NULL);
    require(hsp_unpack(t->dtype, t->data, (size_t)t->n_numbers, numbers) == HSP_OK);
    sink += t->n_numbers > 0 && numbers[t->n_numbers - 1] > 0;
    free(numbers);
}

/* The file is not the model's: the bytes stay where they are. */
static void touch_model(const uint8_t *bytes, size_t n_bytes) {
    char error[512] = "";
    model *m =
        model__read_safetensors(safetensors_open_memory(bytes, n_bytes, "FUZZ", NULL, 0), "FUZZ", error, sizeof error);
    if (m)
        sink += m->output_norm[m->embedding - 1] > 0;
    else
        require(strncmp(error, "FUZZ: offset ", 13) == 0);
    model_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char error[512] = "";
    safetensors *file = safetensors_open_memory(bytes, n_bytes, "FUZZ", error, sizeof error);
    if (!file) {
        require(strncmp(error, "FUZZ: offset ", 13) == 0);
        return 0;
    }
    for (size_t i = 0; i < safetensors_count(file); i++)
        touch_tensor(file, i, bytes, n_bytes);
    sink += safetensors_metadata(file, "hisparse") != NULL;
    safetensors_close(file);
    touch_model(bytes, n_bytes);
    return 0;
}
