/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: a good one is taken whole, any other leaves the config as it was and says why. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char good[] = "{\"format\": 1,\n \"machine\": {\"gpu\": \"a GPU\"},\n \"choose\": {\n"
                           "  \"host_row_align\": 128,\n  \"request_blocks\": 4,\n  \"fetch_blocks\": 12,\n"
                           "  \"pieces_in_flight\": 2}}";
static char path[] = "profile_XXXXXX";

static void write_profile(const void *text, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* The config stays as it was, and the reason names the file and holds `reason`. */
static void refused(const void *text, size_t bytes, int status, const char *reason) {
    hsp_config c, before;
    hsp_config_init(&c, sizeof c);
    before = c;
    write_profile(text, bytes);
    assert_int_equal(hsp_config_profile(&c, path), status);
    assert_memory_equal(&c, &before, sizeof c);
    if (!strstr(hsp_last_error(NULL), path) || !strstr(hsp_last_error(NULL), reason))
        fail_msg("'%s' does not say '%s' of '%s'", hsp_last_error(NULL), reason, path);
}

static int make_path(void **state) {
    (void)state;
    int descriptor = mkstemp(path);
    return descriptor < 0 ? -1 : close(descriptor);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static void a_profile_sets_what_it_chose(void **state) {
    hsp_config c, before;
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    (void)state;
    hsp_config_init(&c, sizeof c);
    before = c;
    write_profile(good, sizeof good - 1);
    assert_int_equal(hsp_config_profile(&c, path), HSP_OK);
    assert_int_equal(c.host_row_align, 128);
    assert_int_equal(c.request_blocks, 4);
    assert_int_equal(c.fetch_blocks, 12);
    assert_int_equal(c.pieces_in_flight, 2);
    assert_int_equal(hsp_footprint(&c, &bytes), HSP_OK);
    c.host_row_align = before.host_row_align;
    c.request_blocks = c.fetch_blocks = c.pieces_in_flight = 0;
    assert_memory_equal(&c, &before, sizeof c);
}

static void files_that_cannot_be_read(void **state) {
    hsp_config c, before, never = {0};
    (void)state;
    hsp_config_init(&c, sizeof c);
    before = c;
    assert_int_equal(hsp_config_profile(&c, "no/such/file"), HSP_EIO);
    assert_string_equal(hsp_last_error(NULL), "profile 'no/such/file': No such file or directory");
    assert_int_equal(hsp_config_profile(&c, "."), HSP_EIO);
    assert_string_equal(hsp_last_error(NULL), "profile '.': Is a directory");
    assert_int_equal(hsp_config_profile(&c, NULL), HSP_EINVAL);
    assert_int_equal(hsp_config_profile(&never, path), HSP_EINVAL);
    assert_int_equal(hsp_config_profile(NULL, path), HSP_EINVAL);
    assert_memory_equal(&c, &before, sizeof c);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    for (size_t bytes = 0; bytes < sizeof good - 1; bytes++)
        refused(good, bytes, HSP_EINVAL, " line ");
    refused(good, sizeof good, HSP_EINVAL, " line "); /* one byte more */
}

static void files_without_bound_are_refused(void **state) {
    enum { BYTES = 65536 };
    char *text = malloc(BYTES + 1);
    hsp_config c;
    (void)state;
    assert_non_null(text);
    memset(text, ' ', BYTES + 1);
    memcpy(text, good, sizeof good - 1);
    refused(text, BYTES + 1, HSP_EINVAL, "more than 65536 bytes");
    write_profile(text, BYTES);
    hsp_config_init(&c, sizeof c);
    assert_int_equal(hsp_config_profile(&c, path), HSP_OK);
    memset(text, '[', BYTES);
    refused(text, BYTES, HSP_EINVAL, "line 1: maximum parsing depth");
    free(text);
    assert_int_equal(hsp_config_profile(&c, "/dev/zero"), HSP_EINVAL);
}

/* The good profile with `from` replaced. */
static void changed_is_refused(const char *from, const char *to, int status, const char *reason) {
    char text[1024];
    const char *at = strstr(good, from);
    assert_non_null(at);
    int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    assert_in_range(n, 1, sizeof text - 1);
    refused(text, (size_t)n, status, reason);
}

static void other_documents_are_refused(void **state) {
    (void)state;
    refused("[]", 2, HSP_EINVAL, "no number 'format'");
    changed_is_refused("\"format\": 1", "\"format\": 2", HSP_EINVAL, "its format is 2; this library reads 1");
    changed_is_refused("\"format\": 1", "\"format\": \"1\"", HSP_EINVAL, "no number 'format'");
    changed_is_refused("\"choose\"", "\"chose\"", HSP_EINVAL, "no object 'choose'");
    changed_is_refused("\"format\": 1", "\"format\": 1, \"format\": 1", HSP_EINVAL, "duplicate object key");
    changed_is_refused("\"machine\": {\"gpu\": \"a GPU\"}", "\"choose\": 3", HSP_EINVAL, "line 3: duplicate");
}

static void wrong_choices_are_refused_by_name(void **state) {
    (void)state;
    changed_is_refused("\"fetch_blocks\"", "\"n_slots\"", HSP_EINVAL, "there is no 'n_slots' to choose");
    changed_is_refused("\"fetch_blocks\": 12,", "", HSP_EINVAL, "'choose' has no 'fetch_blocks'");
    changed_is_refused(": 12,", ": 12.0,", HSP_EINVAL, "'fetch_blocks' in 'choose' is not a whole number");
    changed_is_refused(": 12,", ": \"12\",", HSP_EINVAL, "'fetch_blocks' in 'choose' is not a whole number");
    changed_is_refused(": 12,", ": null,", HSP_EINVAL, "'fetch_blocks' in 'choose' is not a whole number");
    changed_is_refused(": 12,", ": 65,", HSP_ELIMIT, "fetch_blocks is 65; it may be 0..64");
    changed_is_refused(": 12,", ": -1,", HSP_ELIMIT, "fetch_blocks is -1; it may be 0..64");
    changed_is_refused(": 12,", ": 4294967297,", HSP_ELIMIT, "fetch_blocks is 4294967297; it may be 0..64");
    changed_is_refused(": 12,", ": 99999999999999999999,", HSP_EINVAL, "too big integer");
    changed_is_refused(": 4,", ": 3,", HSP_ELIMIT, "request_blocks is 3; it must be 0, 1, 2, 4 or 8");
    changed_is_refused(": 2}", ": 6}", HSP_ELIMIT, "pieces_in_flight is 6; it must be 0, 1, 2, 4 or 8");
    changed_is_refused(": 128,", ": 100,", HSP_ELIMIT, "host_row_align is 100; it must be a multiple of 16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_sets_what_it_chose), cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(every_truncation_is_refused),  cmocka_unit_test(files_without_bound_are_refused),
        cmocka_unit_test(other_documents_are_refused),  cmocka_unit_test(wrong_choices_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
