/* SPDX-License-Identifier: Apache-2.0 */
/* The GGUF reader on a good file spoilt in every way the tests can think of: a message with name, offset and reason. */
#include "good_gguf.h"
#include "with_cmocka.h"

#include <stdio.h>

/* Read the bytes from a block exactly as large, so that a sanitizer sees the first byte read beyond it. Returns whether
 * they are refused; then the message must be a whole one, about an offset inside the file. */
static int is_refused(const uint8_t *bytes, size_t n, char error[256]) {
    uint8_t *copy = malloc(n ? n : 1);
    unsigned long long offset = 0;
    int prefix = 0;
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    error[0] = 0;
    gguf *file = gguf_open_memory(copy, n, "spoilt", error, 256);
    if (!file) {
        assert_int_equal(sscanf(error, "spoilt: offset %llu: %n", &offset, &prefix), 1);
        assert_true(prefix > 0 && strlen(error) > (size_t)prefix + 5);
        assert_true(offset <= n);
    }
    gguf_close(file);
    free(copy);
    return !file;
}

static void truncated_anywhere(void **state) {
    layout at;
    char error[256];
    gguf_writer w = good_file(&at);
    (void)state;
    assert_false(is_refused(w.bytes, w.n, error));
    for (size_t n = 0; n < w.n; n++)
        if (!is_refused(w.bytes, n, error))
            fail_msg("%zu of %zu bytes are accepted", n, w.n);
    free(w.bytes);
}

/* The good file with one field overwritten: refused, at the place, with the value. */
static void expect(size_t at, uint64_t value, int value_bytes, size_t offset, const char *reason) {
    layout ignored;
    char error[256], place[64];
    gguf_writer w = good_file(&ignored), field = {0};
    write_number(&field, value, value_bytes);
    memcpy(w.bytes + at, field.bytes, field.n);
    if (!is_refused(w.bytes, w.n, error))
        fail_msg("%llu at %zu is accepted", (unsigned long long)value, at);
    snprintf(place, sizeof place, "spoilt: offset %zu: ", offset);
    if (strncmp(error, place, strlen(place)) != 0 || !strstr(error, reason))
        fail_msg("\"%s\" is not \"%s...%s\"", error, place, reason);
    free(field.bytes);
    free(w.bytes);
}

static const uint64_t large = 1ull << 60;
static const char large_text[] = "1152921504606846976";

static void hostile_head(void **state) {
    layout at;
    free(good_file(&at).bytes);
    (void)state;
    expect(0, 'g', 1, 0, "67 47 55 46");
    expect(HEAD_VERSION, 2, 4, 4, "version is 2, supported is 3");
    expect(HEAD_VERSION, 4, 4, 4, "version is 4");
    expect(HEAD_VERSION, 0x03000000, 4, 4, "big-endian");
    expect(at.n_tensors, large, 8, at.n_tensors, large_text);
    expect(at.n_tensors, UINT64_MAX, 8, at.n_tensors, "18446744073709551615");
    expect(at.n_keys, large, 8, at.n_keys, large_text);
    expect(at.n_keys, UINT64_MAX, 8, at.n_keys, "18446744073709551615");
}

static void hostile_metadata(void **state) {
    layout at;
    free(good_file(&at).bytes);
    (void)state;
    expect(at.key_length, large, 8, at.key_length + 8, large_text);
    expect(at.key_length, UINT64_MAX, 8, at.key_length + 8, "18446744073709551615");
    expect(at.value_type, 13, 4, at.value_type, "value type is 13");
    expect(at.value_type, 0xffffffff, 4, at.value_type, "4294967295");
    expect(at.string_length, large, 8, at.string_length + 8, large_text);
    expect(at.string_length, UINT64_MAX - 3, 8, at.string_length + 8, "18446744073709551612");
    expect(at.truth, 2, 1, at.truth, "bool is 2");
    expect(at.element_type, W_ARRAY, 4, at.element_type, "arrays of arrays");
    expect(at.element_type, 99, 4, at.element_type, "array element type is 99");
    expect(at.array_length, large, 8, at.array_length, large_text);
    expect(at.array_length, UINT64_MAX, 8, at.array_length, "18446744073709551615");
    expect(at.element_length, large, 8, at.element_length + 8, large_text);
    expect(at.alignment, 0, 4, at.alignment, "general.alignment is 0");
    expect(at.alignment, 24, 4, at.alignment, "general.alignment is 24");
    expect(at.alignment, 4, 4, at.alignment, "general.alignment is 4");
    expect(at.alignment - 4, W_I32, 4, at.alignment, "type 5");
}

static void hostile_tensors(void **state) {
    layout at;
    free(good_file(&at).bytes);
    (void)state;
    expect(at.name_length, large, 8, at.name_length + 8, large_text);
    expect(at.n_dims, 0, 4, at.n_dims, "dimensions is 0");
    expect(at.n_dims, 5, 4, at.n_dims, "dimensions is 5, allowed are 1 to 4");
    expect(at.n_dims, 0xffffffff, 4, at.n_dims, "4294967295");
    expect(at.dims, 0, 8, at.dims, "dimension 0 is 0");
    expect(at.dims, 1ull << 63, 8, at.dims, "9223372036854775808");
    expect(at.dims, 1ull << 62, 8, at.dims + 8, "dimension 1 is 2, more than 2^63");
    expect(at.dims, large, 8, at.offset, "9223372036854775808 bytes"); /* 2 rows of 2^60 F32 are 2^63 bytes */
    expect(at.dims + 8, 200, 8, at.offset, "2400 bytes");
    expect(at.type, 4, 4, at.type, "tensor type is 4");
    expect(at.type, 0xffffffff, 4, at.type, "4294967295");
    expect(at.type, GGUF_Q4_K, 4, at.type, "row of 3 numbers is not whole blocks of type Q4_K");
    expect(at.offset, 8, 8, at.offset, "offset 8, not a multiple of the alignment 16");
    expect(at.offset, 112, 8, at.offset, "\"floats\" has 24 bytes at offset 112");
    expect(at.offset, UINT64_MAX - 15, 8, at.offset, "18446744073709551600");
}

static void dims_that_overflow_bytes(void **state) {
    char error[256];
    gguf_writer w = {0};
    (void)state;
    write_head(&w, 1, 0);
    write_tensor(&w, "wide", 1, (const uint64_t[]){1ull << 62}, GGUF_F32, 0);
    write_padding(&w, 32);
    assert_true(is_refused(w.bytes, w.n, error));
    assert_non_null(strstr(error, "4611686018427387904"));
    free(w.bytes);
}

static void names_given_twice(void **state) {
    char error[256];
    gguf_writer keys = {0}, tensors = {0};
    (void)state;
    write_head(&keys, 0, 3);
    write_u32_key(&keys, "same\x1b", 1);
    write_u32_key(&keys, "other", 1);
    write_u32_key(&keys, "same\x1b", 1);
    assert_true(is_refused(keys.bytes, keys.n, error));
    assert_string_equal(error, "spoilt: offset 74: key \"same?\" is there twice");
    write_head(&tensors, 2, 0);
    write_tensor(&tensors, "same", 1, (const uint64_t[]){1}, GGUF_F32, 0);
    write_tensor(&tensors, "same", 1, (const uint64_t[]){1}, GGUF_F32, 0);
    write_padding(&tensors, 32);
    write_f32(&tensors, 1);
    assert_true(is_refused(tensors.bytes, tensors.n, error));
    assert_non_null(strstr(error, "tensor \"same\" is there twice"));
    free(keys.bytes);
    free(tensors.bytes);
}

/* No message is expected here: only that nothing breaks, and that what is refused is refused with a whole message. */
static void any_field_of_any_value(void **state) {
    static const uint64_t values[] = {0,          1,          2,          0x7f,           0x80,       0xff,
                                      0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32,     1ull << 40, 1ull << 60,
                                      1ull << 61, 1ull << 63, INT64_MAX,  UINT64_MAX - 7, UINT64_MAX};
    layout at;
    char error[256];
    gguf_writer w = good_file(&at);
    (void)state;
    for (size_t place = 0; place + 8 <= w.n; place++) {
        uint8_t kept[8];
        memcpy(kept, w.bytes + place, 8);
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            memcpy(w.bytes + place, &values[i], 1 << i % 4);
            is_refused(w.bytes, w.n, error);
            memcpy(w.bytes + place, &values[i], 8);
            is_refused(w.bytes, w.n, error);
            memcpy(w.bytes + place, kept, 8);
        }
    }
    free(w.bytes);
}

static void short_error_buffers(void **state) {
    char error[8] = "xxxxxxx";
    (void)state;
    assert_null(gguf_open_memory("nope", 4, "a long name", error, sizeof error));
    assert_string_equal(error, "a long ");
    assert_null(gguf_open_memory("nope", 4, "name", NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncated_anywhere),       cmocka_unit_test(hostile_head),
        cmocka_unit_test(hostile_metadata),         cmocka_unit_test(hostile_tensors),
        cmocka_unit_test(dims_that_overflow_bytes), cmocka_unit_test(names_given_twice),
        cmocka_unit_test(any_field_of_any_value),   cmocka_unit_test(short_error_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
