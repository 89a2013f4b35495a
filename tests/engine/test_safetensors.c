/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader: what a good file says, and a message with name, offset and reason for every bad one. */
#include "safetensors.h"

#include "hisparse_ops.h"
#include "safetensors_writer.h"
#include "with_cmocka.h"

#include <unistd.h>

/* Three tensors of the three types, one without numbers, and one that is a single number; 32 bytes of data. */
#define GOOD                                                                                                           \
    "{\"__metadata__\":{\"format\":\"pt\",\"hisparse\":\"{\\\"a\\\": 1}\"},"                                           \
    "\"wide\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"                                            \
    "\"half\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[26,30]},"                                             \
    "\"none\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[26,26]},"                                           \
    "\"one\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"                                              \
    "\"last\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[30,32]}}"

enum { DATA_BYTES = 32 };

static const uint8_t data[DATA_BYTES] = {0,  0,    128,  63, 0,    0, 0,    64, [22] = 32,
                                         65, 0x80, 0x3f, 0,  0x3c, 0, 0xc0, 0,  0x40};

static gguf_writer good_file(void) {
    return st_file(GOOD, strlen(GOOD), data, DATA_BYTES);
}

/* Read the bytes from a block exactly as large, so that a sanitizer sees the first byte read beyond it. Returns whether
 * they are refused; then the message must be a whole one, about an offset inside the file. */
static int is_refused(const uint8_t *bytes, size_t n, char error[256]) {
    uint8_t *copy = malloc(n ? n : 1);
    unsigned long long offset = 0;
    int prefix = 0;
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    error[0] = 0;
    safetensors *file = safetensors_open_memory(copy, n, "spoilt", error, 256);
    if (!file) {
        assert_int_equal(sscanf(error, "spoilt: offset %llu: %n", &offset, &prefix), 1);
        assert_true(prefix > 0 && strlen(error) > (size_t)prefix + 5);
        assert_true(offset <= n);
    }
    safetensors_close(file);
    free(copy);
    return !file;
}

static void a_good_file_is_read(void **state) {
    static const char *const order[] = {"wide", "one", "none", "half", "last"};
    char error[256];
    float numbers[6];
    (void)state;
    gguf_writer w = good_file();
    safetensors *file = safetensors_open_memory(w.bytes, w.n, "good", error, sizeof error);
    assert_non_null(file);
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    assert_string_equal(safetensors_metadata(file, "hisparse"), "{\"a\": 1}");
    assert_null(safetensors_metadata(file, "dtype"));
    assert_int_equal(safetensors_count(file), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(safetensors_at(file, i)->name, order[i]);
        assert_ptr_equal(safetensors_find(file, order[i]), safetensors_at(file, i));
    }
    assert_null(safetensors_find(file, "__metadata__"));
    const safetensors_tensor *wide = safetensors_find(file, "wide"), *one = safetensors_find(file, "one");
    assert_true(wide->dtype == HSP_F32 && wide->n_dims == 2 && wide->dims[0] == 2 && wide->dims[1] == 3);
    hsp_unpack(wide->dtype, wide->data, 6, numbers);
    assert_true(numbers[0] == 1 && numbers[1] == 2 && numbers[5] == 10);
    assert_true(one->dtype == HSP_BF16 && one->n_dims == 0 && one->n_numbers == 1 && one->data_bytes == 2);
    hsp_unpack(one->dtype, one->data, 1, numbers);
    assert_true(numbers[0] == 1);
    const safetensors_tensor *half = safetensors_find(file, "half");
    hsp_unpack(half->dtype, half->data, 2, numbers);
    assert_true(half->dtype == HSP_F16 && numbers[0] == 1 && numbers[1] == -2);
    assert_int_equal(safetensors_find(file, "last")->n_dims, SAFETENSORS_MAX_DIMS);
    assert_int_equal(safetensors_find(file, "none")->n_numbers, 0);
    assert_memory_equal(w.bytes + safetensors_place(file, "half"), "\"half\"", 6);
    safetensors_close(file);
    free(w.bytes);
}

static void files_are_mapped(void **state) {
    char path[] = "test_safetensors_XXXXXX", error[256], want[64];
    (void)state;
    gguf_writer w = good_file();
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, w.bytes, w.n) == (ssize_t)w.n);
    safetensors *file = safetensors_open(path, error, sizeof error);
    assert_non_null(file);
    assert_memory_equal(safetensors_at(file, 0)->data, data, 24);
    safetensors_close(file);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_null(safetensors_open(path, error, sizeof error));
    snprintf(want, sizeof want, "%s: the file is empty", path);
    assert_string_equal(error, want);
    close(fd);
    unlink(path);
    assert_null(safetensors_open(path, error, sizeof error));
    assert_non_null(strstr(error, ": cannot be opened: "));
    assert_null(safetensors_open(".", error, sizeof error));
    assert_string_equal(error, ".: not a regular file");
    free(w.bytes);
}

static void truncated_anywhere(void **state) {
    char error[256];
    (void)state;
    gguf_writer w = good_file();
    assert_false(is_refused(w.bytes, w.n, error));
    for (size_t n = 0; n < w.n; n++)
        if (!is_refused(w.bytes, n, error))
            fail_msg("%zu of %zu bytes are accepted", n, w.n);
    write_number(&w, 0, 1);
    assert_true(is_refused(w.bytes, w.n, error));
    assert_non_null(strstr(error, "1 bytes follow that belong to no tensor"));
    free(w.bytes);
}

static void hostile_lengths(void **state) {
    static const struct {
        uint64_t length;
        const char *reason;
    } cases[] = {{0, "header of 0 bytes"},
                 {1, "header of 1 bytes"},
                 {(1 << 20) + 1, "header of 1048577 bytes, allowed are 2 to 1048576"},
                 {1 << 20, "header of 1048576 bytes, "},
                 {1ull << 40, "1099511627776"},
                 {1ull << 63, "9223372036854775808"},
                 {UINT64_MAX, "18446744073709551615"},
                 {UINT64_MAX - 7, "18446744073709551608"}};
    char error[256];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer w = good_file();
        memcpy(w.bytes, &cases[i].length, 8);
        assert_true(is_refused(w.bytes, w.n, error));
        if (strncmp(error, "spoilt: offset 0: ", 18) != 0 || !strstr(error, cases[i].reason))
            fail_msg("\"%s\" is not \"%s\"", error, cases[i].reason);
        free(w.bytes);
    }
}

/* A header with the good file's data: refused at the place of `at` in it, with the reason. */
static void expect_header(const char *header, size_t header_bytes, const char *at, const char *reason) {
    char error[256], place[64];
    gguf_writer w = st_file(header, header_bytes, data, DATA_BYTES);
    if (!is_refused(w.bytes, w.n, error))
        fail_msg("accepted: %s", header);
    const char *found = *at ? memmem(header, header_bytes, at, strlen(at)) : header;
    assert_non_null(found);
    snprintf(place, sizeof place, "spoilt: offset %td: ", found - header + 8);
    if ((*at && strncmp(error, place, strlen(place)) != 0) || !strstr(error, reason))
        fail_msg("\"%s\" is not \"%s...%s\"", error, place, reason);
    free(w.bytes);
}

/* The good header with `from` become `to`. */
static void expect(const char *from, const char *to, const char *at, const char *reason) {
    char header[2048];
    const char *place = strstr(GOOD, from);
    assert_non_null(place);
    int n = snprintf(header, sizeof header, "%.*s%s%s", (int)(place - GOOD), GOOD, to, place + strlen(from));
    expect_header(header, (size_t)n, at, reason);
}

static void hostile_json(void **state) {
    char *deep = malloc(400000);
    (void)state;
    assert_non_null(deep);
    expect("{\"__metadata__\"", "\"__metadata__\"", "", "header: ");
    expect("}}", "}", "", "header: ");
    expect("}}", "}}}", "", "header: ");
    expect("\"half\"", "\"ha\xfflf\"", "", "header: ");    /* not UTF-8 */
    expect("\"half\"", "\"ha\\u0000lf\"", "", "header: "); /* a name that ends inside */
    expect("\"half\"", "\"ha\\ud800lf\"", "", "header: "); /* half a character */
    expect("\"half\"", "\"wide\"", "", "header: duplicate object key");
    expect("[2,3]", "[2,99999999999999999999]", "", "header: too big integer");
    expect("\"shape\":[2,3]", "\"shape\":[2,3],\"shape\":[2,3]", "", "header: duplicate object key");
    expect_header("[]      ", 8, "[", "header is not a JSON object");
    expect_header("17      ", 8, "", "header: ");
    expect_header("\0\0\0\0\0\0\0\0", 8, "", "header: ");
    memset(deep, '[', 400000);
    expect_header(deep, 400000, "", "maximum parsing depth");
    for (int i = 0; i < 400000; i++)
        deep[i] = "{\"a\":"[i % 5];
    expect_header(deep, 400000, "", "maximum parsing depth");
    free(deep);
    expect("{\"format\":\"pt\",\"hisparse\":\"{\\\"a\\\": 1}\"}", "7", "\"__metadata__\"", "is not an object");
    expect("\"pt\"", "[]", "\"__metadata__\"", "\"format\" is not a text");
}

static void hostile_tensors(void **state) {
    (void)state;
    expect("{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}", "3", "\"wide\"",
           "not described by an object");
    expect("\"dtype\":\"F16\",", "", "\"half\"", "has no dtype");
    expect("\"F16\"", "16", "\"half\"", "has no dtype");
    expect("\"F16\"", "\"I64\"", "\"half\"", "has dtype \"I64\", known are F32, F16, BF16 and I32");
    expect("\"F16\"", "\"\\u001b[31m\"", "\"half\"", "has dtype \"?[31m\"");
    expect("\"shape\":[2,3],", "", "\"wide\"", "has no shape");
    expect("[2,3]", "{}", "\"wide\"", "has no shape");
    expect("[2,3]", "[2,-3]", "\"wide\"", "a dimension 1 that is not an integer of 0 or more");
    expect("[2,3]", "[2.0,3]", "\"wide\"", "a dimension 0 that");
    expect("[2,3]", "[4294967296,4294967296]", "\"wide\"", "more than 2^63 numbers");
    expect("[2,3]", "[9223372036854775807]", "\"wide\"", "9223372036854775807 numbers in 24 bytes");
    expect("[2,3]", "[2305843009213693958]", "\"wide\"", "in 24 bytes"); /* 2^61 + 6: the bytes overflow to 24 */
    expect("[2,3]", "[2,4]", "\"wide\"", "8 numbers in 24 bytes");
    expect("[1,1,1,1,1,1,1,1]", "[1,1,1,1,1,1,1,1,1]", "\"last\"", "has 9 dimensions, allowed are 0 to 8");
    expect(",\"data_offsets\":[0,24]", "", "\"wide\"", "has no data_offsets");
    expect("[0,24]", "[0]", "\"wide\"", "not two integers");
    expect("[0,24]", "[0,24,25]", "\"wide\"", "not two integers");
    expect("[0,24]", "[0,24.0]", "\"wide\"", "not two integers");
    expect("[0,24]", "[-24,0]", "\"wide\"", "[-24, 0], the data has 32 bytes");
    expect("[0,24]", "[24,0]", "\"wide\"", "[24, 0]");
    expect("[30,32]", "[31,33]", "\"last\"", "[31, 33], the data has 32 bytes");
    expect("[30,32]", "[9223372036854775805,9223372036854775807]", "\"last\"", "9223372036854775807], the data has 32");
    expect("[26,30]", "[24,28]", "\"half\"", "\"half\" begins at byte 24 of the data, inside");
    expect("[0,24]", "[2,26]", "\"wide\"", "begins at byte 2 of the data, with nothing from byte 0");
    expect("[30,32]", "[28,30]", "\"last\"", "begins at byte 28 of the data, inside the one that ends before byte 30");
    expect("\"one\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},", "", "\"none\"",
           "begins at byte 26 of the data, with nothing from byte 24");
    expect("[26,26]", "[27,27]", "\"none\"", "begins at byte 27 of the data, inside");
    expect("{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}",
           "{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]}", "\"wide\"", "with nothing from byte 0");
}

/* No message is expected here: only that nothing breaks, and that what is refused is refused with a whole message. */
static void any_byte_of_any_value(void **state) {
    static const char values[] = "\0\1\"\\{}[]:,0919-.eE \x7f\x80\xc3\xff";
    char error[256];
    (void)state;
    gguf_writer w = good_file();
    for (size_t place = 0; place < w.n - DATA_BYTES; place++) {
        uint8_t kept = w.bytes[place];
        for (size_t i = 0; i < sizeof values - 1; i++) {
            w.bytes[place] = (uint8_t)values[i];
            is_refused(w.bytes, w.n, error);
        }
        w.bytes[place] = kept;
    }
    free(w.bytes);
}

static void short_error_buffers(void **state) {
    char error[8] = "xxxxxxx";
    (void)state;
    assert_null(safetensors_open_memory("nope", 4, "a long name", error, sizeof error));
    assert_string_equal(error, "a long ");
    assert_null(safetensors_open_memory("nope", 4, "name", NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_is_read),   cmocka_unit_test(files_are_mapped),
        cmocka_unit_test(truncated_anywhere),    cmocka_unit_test(hostile_lengths),
        cmocka_unit_test(hostile_json),          cmocka_unit_test(hostile_tensors),
        cmocka_unit_test(any_byte_of_any_value), cmocka_unit_test(short_error_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
