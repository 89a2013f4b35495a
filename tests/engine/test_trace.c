/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: what is written is read back, a recording that was cut short says so, and hostile files are refused with
 * their place and reason. */
#include "with_cmocka.h"

#include "safetensors_writer.h"
#include "tools.h"
#include "trace.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 5, LAYERS = 3, REQUESTS = 2, K = 4, NEXT = 2 };

int tool_fail(int code, const char *format, ...) {
    (void)format; /* nothing is to be read here */
    return code;
}

static int32_t token_of(int64_t step, int i) {
    return i % 7 == 6 ? -1 : (int32_t)((step * 13 + i * 5) % 100);
}

/* Write `steps` of the STEPS a file is made for; the writer, still open. */
static trace_writer *write_steps(const char *path, int64_t steps, int n_next) {
    static const char *const note[TRACE_NOTES] = {
        [TRACE_MODEL] = "a \"model\"", [TRACE_ROW_BYTES] = "656", [TRACE_LAYERS] = "0,2,9"};
    const trace_shape shape = {STEPS, LAYERS, REQUESTS, K, n_next};
    unlink(path);
    trace_writer *w = trace_create(path, &shape, note);
    assert_non_null(w);
    for (int64_t s = 0; s < steps; s++) {
        int32_t selections[LAYERS * REQUESTS * K], next[LAYERS * REQUESTS * NEXT];
        const int32_t lengths[REQUESTS] = {100 + (int32_t)s, s < 2 ? 0 : 100};
        float scores[LAYERS * REQUESTS * NEXT];
        for (int i = 0; i < LAYERS * REQUESTS * K; i++)
            selections[i] = lengths[i / K % REQUESTS] ? token_of(s, i) : -1;
        for (int i = 0; i < LAYERS * REQUESTS * NEXT; i++) {
            next[i] = token_of(s, i + 50);
            scores[i] = (float)(i + s) / 4;
        }
        assert_int_equal(trace_append(w, lengths, selections, next, scores), TOOL_OK);
    }
    return w;
}

static void check_steps(const char *path, int64_t steps, int64_t asked, int n_next) {
    char error[512];
    trace *t = trace_open(path, error, sizeof error);
    if (!t)
        fail_msg("%s", error);
    assert_int_equal(t->shape.n_steps, steps);
    assert_int_equal(t->steps_asked, asked);
    assert_int_equal(t->shape.n_next, n_next);
    assert_string_equal(t->note[TRACE_MODEL], "a \"model\"");
    assert_null(t->note[TRACE_TEXT]);
    assert_int_equal(trace_row_bytes(t), 656);
    assert_int_equal(trace_layer_number(t, 2), 9);
    for (int64_t i = 0; i < steps * LAYERS * REQUESTS; i++) {
        int64_t s = i / (LAYERS * REQUESTS);
        int32_t place = (int32_t)(i % (LAYERS * REQUESTS)), r = place % REQUESTS, got[K], next[NEXT];
        float scores[NEXT];
        assert_int_equal(trace_selection(t, s, place / REQUESTS, r, got, error, sizeof error), 0);
        for (int e = 0; e < K; e++)
            assert_int_equal(got[e], trace_length(t, s, r) ? token_of(s, place * K + e) : -1);
        if (!n_next)
            continue;
        trace_next(t, s, place / REQUESTS, r, NEXT, next, scores);
        assert_int_equal(next[1], token_of(s, place * NEXT + 1 + 50));
        assert_true(scores[1] == (float)(place * NEXT + 1 + s) / 4);
    }
    trace_close(t);
}

static void whole_traces(void **state) {
    (void)state;
    for (int next = 0; next <= NEXT; next += NEXT) {
        assert_int_equal(trace_finish(write_steps("whole.trace", STEPS, next), TOOL_OK), TOOL_OK);
        check_steps("whole.trace", STEPS, STEPS, next);
    }
}

/* While it is written, and so after a crash, a file says how many of its steps are whole; closed, it has just those. */
static void fewer_steps_than_asked_for(void **state) {
    (void)state;
    for (int next = 0; next <= NEXT; next += NEXT) {
        trace_writer *w = write_steps("part.trace", 3, next);
        check_steps("part.trace", 3, STEPS, next);
        assert_int_equal(trace_finish(w, TOOL_OK), TOOL_OK);
        check_steps("part.trace", 3, 3, next);
    }
    assert_int_equal(trace_finish(write_steps("none.trace", 0, 0), TOOL_FAILED), TOOL_FAILED);
    assert_int_equal(access("none.trace", F_OK), -1);
}

static void paths_and_notes_are_checked(void **state) {
    static const char *const bad[TRACE_NOTES] = {[TRACE_LAYERS] = "0,1"}, *const none[TRACE_NOTES] = {NULL};
    const trace_shape shape = {STEPS, LAYERS, REQUESTS, K, 0};
    (void)state;
    unlink("new.trace");
    assert_null(trace_create("new.trace", &shape, bad));
    assert_int_equal(trace_finish(trace_create("new.trace", &shape, none), TOOL_OK), TOOL_OK);
    assert_int_equal(trace_finish(write_steps("there.trace", 1, 0), TOOL_OK), TOOL_OK);
    assert_null(trace_create("there.trace", &shape, none));
    check_steps("there.trace", 1, 1, 0);
}

/* ------------------------------------------------------------------------------------------------------ hostile -- */

#define GOOD                                                                                                           \
    "{\"__metadata__\":{\"hisparse_trace\":\"1\",\"steps\":\"2\",\"k\":\"3\",\"row_bytes\":\"64\"},"                   \
    "\"selections\":{\"dtype\":\"I32\",\"shape\":[2,1,1,3],\"data_offsets\":[0,24]},"                                  \
    "\"lengths\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[24,32]}}"
static const int32_t good_data[] = {0, 4, -1, 5, 1, 2, 5, 6};

static void expect_data(const char *from, const char *to, const int32_t *data, const char *reason) {
    char header[1024], error[512] = "";
    const char *place = strstr(GOOD, from);
    int32_t selection[3];
    assert_non_null(place);
    int n = snprintf(header, sizeof header, "%.*s%s%s", (int)(place - GOOD), GOOD, to, place + strlen(from));
    gguf_writer w = st_file(header, (size_t)n, data, sizeof good_data);
    trace *t = trace_open_memory(w.bytes, w.n, "spoilt", error, sizeof error);
    for (int64_t s = 0; t && s < t->shape.n_steps; s++)
        if (trace_selection(t, s, 0, 0, selection, error, sizeof error) != 0)
            break;
    if (*reason ? strncmp(error, "spoilt: offset ", 15) != 0 || !strstr(error, reason) : *error)
        fail_msg("\"%s\" is not \"%s\"", error, reason);
    trace_close(t);
    free(w.bytes);
}

static void expect(const char *from, const char *to, const char *reason) {
    expect_data(from, to, good_data, reason);
}

static void hostile_headers(void **state) {
    (void)state;
    expect("{", "{", "");
    expect("\"hisparse_trace\":\"1\",", "", "it is no trace");
    expect("trace\":\"1\"", "trace\":\"2\"", "it is no trace, or a newer one");
    expect("\"steps\":\"2\"", "\"steps\":\"3\"", "steps is \"3\"; it may be 0 to 2");
    expect("\"steps\":\"2\"", "\"steps\":\"0\"", "not one step is whole");
    expect("\"steps\":\"2\"", "\"steps\":\"-1\"", "steps is \"-1\"");
    expect("\"steps\":\"2\"", "\"steps\":\"99999999999999999999\"", "steps is \"99999999999999999999\"");
    expect("\"steps\":\"2\"", "\"steps\":\"\\u001b[31m\"", "steps is \"?[31m\"");
    expect("\"k\":\"3\"", "\"k\":\"4\"", "k is 4, selections have 3");
    expect("\"k\":\"3\"", "\"k\":\"x\"", "k is \"x\"");
    expect("\"row_bytes\":\"64\"", "\"row_bytes\":\"many\"", "row_bytes must be a number");
    expect("\"row_bytes\":\"64\"", "\"layers\":\"0,1\"", "layers must be one number for each layer");
    expect("\"row_bytes\":\"64\"", "\"layers\":\"\"", "layers must be");
    expect("\"selections\"", "\"selection\"", "no tensor \"selections\"");
    expect("\"lengths\"", "\"length\"", "no tensor \"lengths\"");
    expect("\"I32\",\"shape\":[2,1,1,3]", "\"F32\",\"shape\":[2,1,1,3]", "must be I32 with 4 dimensions");
    expect("[2,1,1,3]", "[2,3]", "must be I32 with 4 dimensions");
    expect("[2,1]", "[1,2]", "lengths has shape [1, 2], selections ask for [2, 1]");
}

static void hostile_shapes(void **state) {
    (void)state;
    expect("[2,1,1,3]", "[2,1,1,9223372036854775807]", "more than 2^63 numbers");
    expect("[2,1,1,3]", "[6,1,1,1]", "lengths has shape [2, 1], selections ask for [6, 1]");
    expect("[24,32]}", "[24,24]},\"next_tokens\":{\"dtype\":\"I32\",\"shape\":[2,1,1,1],\"data_offsets\":[24,32]}",
           "\"lengths\" has 2 numbers in 0 bytes");
    expect("}}", "},\"next_tokens\":{\"dtype\":\"I32\",\"shape\":[0,1,1,3],\"data_offsets\":[32,32]}}",
           "no tensor \"next_scores\"");
    expect("}}",
           "},\"next_tokens\":{\"dtype\":\"I32\",\"shape\":[2,1,1,0],\"data_offsets\":[32,32]},"
           "\"next_scores\":{\"dtype\":\"F32\",\"shape\":[2,1,1,0],\"data_offsets\":[32,32]}}",
           "0 candidates");
    expect("}}",
           "},\"next_tokens\":{\"dtype\":\"I32\",\"shape\":[2,0,1,1],\"data_offsets\":[32,32]},"
           "\"next_scores\":{\"dtype\":\"F32\",\"shape\":[2,0,1,1],\"data_offsets\":[32,32]}}",
           "dimension 1 of next_tokens or next_scores does not fit");
}

static void hostile_numbers(void **state) {
    static const struct {
        int place;
        int32_t number;
        const char *reason;
    } cases[] = {{0, 5, "token 5 at step 0, layer 0, request 0, which has 5 tokens"},
                 {1, -2, "token -2 at step 0"},
                 {2, INT32_MIN, "token -2147483648 at step 0"},
                 {5, INT32_MAX, "token 2147483647 at step 1"},
                 {6, 7, "a length of 6 tokens after one of 7"},
                 {6, -1, "a length of -1 tokens"},
                 {7, TRACE_MOST_TOKENS + 1, "a length of 4194305 tokens"},
                 {7, 0, "token 5 at step 1, layer 0, request 0, which has 0 tokens"},
                 {7, TRACE_MOST_TOKENS, ""}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t data[8];
        memcpy(data, good_data, sizeof data);
        data[cases[i].place] = cases[i].number;
        expect_data("{", "{", data, cases[i].reason);
    }
}

/* The place in a message is that of the number in the file. */
static void places_are_right(void **state) {
    char error[512] = "", want[64];
    int32_t data[8], selection[3];
    (void)state;
    memcpy(data, good_data, sizeof data);
    data[4] = 77;
    gguf_writer w = st_file(GOOD, strlen(GOOD), data, sizeof data);
    trace *t = trace_open_memory(w.bytes, w.n, "spoilt", error, sizeof error);
    assert_non_null(t);
    assert_int_equal(trace_selection(t, 1, 0, 0, selection, error, sizeof error), -1);
    snprintf(want, sizeof want, "spoilt: offset %zu: token 77", w.n - 16);
    assert_memory_equal(error, want, strlen(want));
    trace_close(t);
    free(w.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_traces),
        cmocka_unit_test(fewer_steps_than_asked_for),
        cmocka_unit_test(paths_and_notes_are_checked),
        cmocka_unit_test(hostile_headers),
        cmocka_unit_test(hostile_shapes),
        cmocka_unit_test(hostile_numbers),
        cmocka_unit_test(places_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
