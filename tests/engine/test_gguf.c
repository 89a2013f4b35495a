/* SPDX-License-Identifier: Apache-2.0 */
/* The GGUF reader on a good file. */
#include "gguf.h"
#include "good_gguf.h"
#include "with_cmocka.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void assert_text(gguf_string string, const char *text) {
    assert_int_equal(string.length, strlen(text));
    assert_memory_equal(string.bytes, text, string.length);
}

static void assert_int(const gguf *file, const char *key, int64_t expected) {
    int64_t value = expected + 1;
    assert_int_equal(gguf_get_int(file, key, &value), 0);
    assert_int_equal(value, expected);
}

static gguf *open_good(gguf_writer *w, layout *at) {
    char error[256] = "";
    *w = good_file(at);
    gguf *file = gguf_open_memory(w->bytes, w->n, "good", error, sizeof error);
    if (!file)
        fail_msg("%s", error);
    return file;
}

static void values_are_read(void **state) {
    layout at;
    gguf_writer w;
    gguf *file = open_good(&w, &at);
    gguf_string string;
    double number;
    int truth;
    (void)state;
    assert_int(file, "u8", 200);
    assert_int(file, "i8", -100);
    assert_int(file, "u16", 60000);
    assert_int(file, "i16", -30000);
    assert_int(file, "u32", 4000000000);
    assert_int(file, "i32", -2000000000);
    assert_int(file, "u64", 1ll << 60);
    assert_int(file, "i64", -5);
    assert_int_equal(gguf_get_float(file, "f32", &number), 0);
    assert_true(number == 1.5);
    assert_int_equal(gguf_get_float(file, "f64", &number), 0);
    assert_true(number == 0.1);
    assert_int_equal(gguf_get_bool(file, "yes", &truth), 0);
    assert_int_equal(truth, 1);
    assert_int_equal(gguf_get_bool(file, "no", &truth), 0);
    assert_int_equal(truth, 0);
    assert_int_equal(gguf_get_string(file, "string", &string), 0);
    assert_text(string, "some text");
    gguf_close(file);
    free(w.bytes);
}

static void arrays_are_read(void **state) {
    layout at;
    gguf_writer w;
    gguf *file = open_good(&w, &at);
    gguf_string string;
    double number;
    int64_t integer;
    (void)state;
    assert_int_equal(gguf_array_length(file, "words"), 3);
    assert_int_equal(gguf_array_length(file, "empty"), 0);
    assert_int_equal(gguf_array_length(file, "u8"), -1);
    assert_int_equal(gguf_array_length(file, "nothing"), -1);
    assert_int_equal(gguf_array_string(file, "words", 2, &string), 0);
    assert_text(string, "three");
    assert_int_equal(gguf_array_string(file, "words", 1, &string), 0);
    assert_text(string, "");
    assert_int_equal(gguf_array_float(file, "floats", 1, &number), 0);
    assert_true(number == -8);
    assert_int_equal(gguf_array_int(file, "shorts", 1, &integer), 0);
    assert_int_equal(integer, -1);
    gguf_close(file);
    free(w.bytes);
}

static void what_does_not_fit_is_left_alone(void **state) {
    layout at;
    gguf_writer w;
    gguf *file = open_good(&w, &at);
    gguf_string string = {"kept", 4};
    double number = 42;
    int64_t integer = 42;
    int truth = 42;
    (void)state;
    static const char *const not_integers[] = {"nothing", "huge", "f32", "yes", "string", "words", "shorts"};
    for (size_t i = 0; i < sizeof not_integers / sizeof *not_integers; i++)
        assert_int_equal(gguf_get_int(file, not_integers[i], &integer), -1);
    assert_int_equal(gguf_get_float(file, "string", &number), -1);
    assert_int_equal(gguf_get_bool(file, "u8", &truth), -1);
    assert_int_equal(gguf_get_string(file, "words", &string), -1);
    assert_int_equal(gguf_array_string(file, "words", 3, &string), -1);
    assert_int_equal(gguf_array_string(file, "words", -1, &string), -1);
    assert_int_equal(gguf_array_string(file, "floats", 0, &string), -1);
    assert_int_equal(gguf_array_float(file, "shorts", 0, &number), -1);
    assert_int_equal(gguf_array_float(file, "floats", 2, &number), -1);
    assert_int_equal(gguf_array_int(file, "floats", 0, &integer), -1);
    assert_int_equal(gguf_array_int(file, "shorts", INT64_MAX, &integer), -1);
    assert_true(number == 42 && integer == 42 && truth == 42 && string.length == 4);
    gguf_close(file);
    free(w.bytes);
}

static void tensors_are_found(void **state) {
    layout at;
    gguf_writer w;
    gguf *file = open_good(&w, &at);
    (void)state;
    const gguf_tensor *floats = gguf_find_tensor(file, "floats"), *cube = gguf_find_tensor(file, "cube");
    assert_non_null(floats);
    assert_text(floats->name, "floats");
    assert_int_equal(floats->n_dims, 2);
    assert_memory_equal(floats->dims, ((const int64_t[]){3, 2, 1, 1}), sizeof floats->dims);
    assert_int_equal(floats->data_bytes, 24);
    assert_memory_equal(floats->data, ((const float[]){0, 1, 2, 3, 4, 5}), 24);
    assert_int_equal(gguf_find_tensor(file, "blocks")->data_bytes, 68);
    assert_memory_equal(cube->dims, ((const int64_t[]){1, 2, 3, 1}), sizeof cube->dims);
    assert_ptr_equal((const uint8_t *)cube->data + cube->data_bytes, w.bytes + w.n);
    assert_null(gguf_find_tensor(file, "float"));
    assert_null(gguf_find_tensor(file, "floats2"));
    assert_null(gguf_find_tensor(file, ""));
    gguf_close(file);
    free(w.bytes);
}

static void files_are_mapped(void **state) {
    char path[] = "test_gguf_XXXXXX", error[256] = "";
    layout at;
    gguf_writer w = good_file(&at);
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_null(gguf_open(path, error, sizeof error));
    assert_non_null(strstr(error, "empty"));
    assert_int_equal(write(fd, w.bytes, w.n), w.n);
    close(fd);
    gguf *file = gguf_open(path, error, sizeof error);
    assert_non_null(file);
    assert_int(file, "u8", 200);
    gguf_close(file);
    unlink(path);
    assert_null(gguf_open(path, error, sizeof error));
    assert_memory_equal(error, path, strlen(path));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_null(gguf_open(path, error, sizeof error));
    assert_non_null(strstr(error, "not a regular file"));
    unlink(path);
    assert_null(gguf_open("/", error, sizeof error));
    free(w.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(arrays_are_read),
        cmocka_unit_test(what_does_not_fit_is_left_alone),
        cmocka_unit_test(tensors_are_found),
        cmocka_unit_test(files_are_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
