/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a GGUF file: refused with a message, or opened with every key and tensor readable. */
#include "gguf_internal.h"
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static volatile uint64_t sink; /* what is read must not be optimised away */

static void require(int holds) {
    if (!holds)
        abort();
}

static void touch(gguf_string string) {
    for (size_t i = 0; i < string.length; i++)
        sink += (uint8_t)string.bytes[i];
}

static void touch_element(const gguf *file, const char *key, int64_t i) {
    gguf_string string;
    double number;
    int64_t integer;
    if (gguf_array_string(file, key, i, &string) == 0)
        touch(string);
    sink += gguf_array_float(file, key, i, &number) == 0;
    sink += gguf_array_int(file, key, i, &integer) == 0;
}

static void touch_value(const gguf *file, gguf_string name) {
    char key[256];
    gguf_string string;
    double number;
    int64_t integer;
    int truth;
    if (name.length >= sizeof key || memchr(name.bytes, 0, name.length))
        return;
    memcpy(key, name.bytes, name.length);
    key[name.length] = 0;
    int64_t n = gguf_array_length(file, key);
    for (int64_t i = 0; i < n; i++)
        touch_element(file, key, i);
    touch_element(file, key, -1);
    touch_element(file, key, n < 0 ? 0 : n);
    if (gguf_get_string(file, key, &string) == 0)
        touch(string);
    sink += gguf_get_float(file, key, &number) == 0;
    sink += gguf_get_int(file, key, &integer) == 0;
    sink += gguf_get_bool(file, key, &truth) == 0;
}

static void touch_tensor(const gguf *file, const gguf_tensor *tensor) {
    const uint8_t *data = tensor->data;
    int64_t n = tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    require(data >= file->bytes && tensor->data_bytes <= (size_t)(file->bytes + file->n_bytes - data));
    require(gguf_type_name(tensor->type) && gguf_row_bytes(tensor->type, n) == tensor->data_bytes);
    float *numbers = malloc((size_t)n * sizeof *numbers);
    require(numbers != NULL);
    gguf_dequantize(tensor->type, data, n, numbers);
    sink += numbers[n - 1] > 0;
    free(numbers);
}

static void touch_tokenizer(const gguf *file, char *error, size_t error_bytes) {
    static const char text[] = "hello  world's 12 \xc3\xa9\xff<|im_start|>";
    char bytes[64];
    int32_t ids[64];
    tokenizer *tok = tokenizer_open(file, error, error_bytes);
    if (!tok) {
        require(strncmp(error, "FUZZ: offset ", 13) == 0);
        return;
    }
    int64_t n = tokenizer_encode(tok, text, sizeof text - 1, 1, ids, 64);
    require(n >= 0);
    for (int64_t i = 0; i < n && i < 64; i++)
        require(tokenizer_decode(tok, ids[i], bytes, sizeof bytes) >= 0);
    tokenizer_close(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char error[256] = "";
    gguf *file = gguf_open_memory(bytes, n_bytes, "FUZZ", error, sizeof error);
    if (!file) {
        require(strncmp(error, "FUZZ: offset ", 13) == 0);
        return 0;
    }
    for (uint64_t i = 0; i < file->n_values; i++)
        touch_value(file, file->values[i].key);
    for (uint64_t i = 0; i < file->n_tensors; i++)
        touch_tensor(file, &file->tensors[i]);
    touch_tokenizer(file, error, sizeof error);
    gguf_close(file);
    return 0;
}
