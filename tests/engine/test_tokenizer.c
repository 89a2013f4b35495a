/* SPDX-License-Identifier: Apache-2.0 */
/* Encodings worked out by hand for tiny vocabularies of both kinds, and text that comes back as it went in. */
#include "tiny_vocabulary.h"
#include "tokenizer.h"
#include "with_cmocka.h"

enum { MAX_IDS = 4096 };

typedef struct fixture {
    gguf_writer writer;
    gguf *file;
    tokenizer *tok;
} fixture;

static fixture open_fixture(gguf_writer writer) {
    fixture f = {.writer = writer};
    char error[256] = "";
    f.file = gguf_open_memory(writer.bytes, writer.n, "tiny", error, sizeof error);
    f.tok = f.file ? tokenizer_open(f.file, error, sizeof error) : NULL;
    if (!f.tok)
        fail_msg("%s", error);
    return f;
}

static fixture open_gpt2(const char *rules) {
    gguf_writer w = {0};
    tiny_gpt2(&w, rules);
    return open_fixture(w);
}

static fixture open_llama(int with_bytes, int add_prefix) {
    gguf_writer w = {0};
    tiny_llama(&w, with_bytes, add_prefix);
    return open_fixture(w);
}

static void close_fixture(fixture *f) {
    tokenizer_close(f->tok);
    gguf_close(f->file);
    free(f->writer.bytes);
}

static void check_encoding(const fixture *f, const char *text, int parse_special, const int32_t *expected, int64_t n) {
    int32_t ids[MAX_IDS];
    int64_t n_ids = tokenizer_encode(f->tok, text, strlen(text), parse_special, ids, MAX_IDS);
    for (int64_t i = 0; i < n && i < n_ids; i++)
        if (ids[i] != expected[i])
            fail_msg("\"%s\": id %d is %d, expected %d", text, (int)i, ids[i], expected[i]);
    if (n_ids != n)
        fail_msg("\"%s\": %d ids, expected %d", text, (int)n_ids, (int)n);
}

/* Text, then the ids expected. */
#define ENCODES(f, text, parse_special, ...)                                                                           \
    check_encoding(f, text, parse_special, (const int32_t[]){__VA_ARGS__},                                             \
                   sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void gpt2_merges_by_rank(void **state) {
    fixture f = open_gpt2("gpt-2");
    (void)state;
    ENCODES(&f, "hello world", 0, 259, 264);
    ENCODES(&f, "hell", 0, 258);
    ENCODES(&f, "hhello", 0, 'h', 259);
    ENCODES(&f, "lll", 0, 257, 'l');
    ENCODES(&f, "aaaaaaa", 0, 270, 269, 'a');
    ENCODES(&f, "it's", 0, 'i', 't', 268);
    ENCODES(&f, "it'S", 0, 'i', 't', '\'', 'S');
    ENCODES(&f, "\xc3\xa9", 0, 271);
    ENCODES(&f, "\xa9\xc3", 0, 0xa9, 0xc3);
    ENCODES(&f, "a     a", 0, 'a', 266, 266, ' ', 'a');
    ENCODES(&f, "a   world", 0, 'a', 266, 264);
    ENCODES(&f, "a\n\n", 0, 'a', 267);
    ENCODES(&f, "a\n\nb", 0, 'a', '\n', '\n', 'b');
    ENCODES(&f, "3121212", 0, '3', 265, 265, 265);
    assert_int_equal(tokenizer_encode(f.tok, "", 0, 0, NULL, 0), 0);
    close_fixture(&f);
}

static void each_set_of_rules_cuts_its_own_way(void **state) {
    fixture gpt2 = open_gpt2("default"), smollm = open_gpt2("smollm");
    fixture llama3 = open_gpt2("llama-bpe"), qwen2 = open_gpt2("qwen2");
    (void)state;
    ENCODES(&gpt2, "x12", 0, 'x', 265);
    ENCODES(&smollm, "x12", 0, 'x', '1', '2');
    ENCODES(&qwen2, "x12", 0, 'x', '1', '2');
    ENCODES(&llama3, "112", 0, '1', 265);
    ENCODES(&llama3, "3312", 0, '3', '3', '1', '2'); /* three digits, then the fourth alone */
    ENCODES(&gpt2, "  12", 0, ' ', ' ', 265);
    ENCODES(&smollm, "  12", 0, 266, '1', '2'); /* nothing is seen beyond a digit, so the spaces stay together */
    ENCODES(&llama3, "  12", 0, ' ', ' ', 265);
    ENCODES(&gpt2, "it'S", 0, 'i', 't', '\'', 'S');
    ENCODES(&llama3, "it'S", 0, 'i', 't', 273);
    ENCODES(&gpt2, ".\n", 0, '.', '\n');
    ENCODES(&llama3, ".\n", 0, 274);
    ENCODES(&llama3, " \n\nx", 0, ' ', 267, 'x');
    ENCODES(&llama3, "\thello", 0, '\t', 259);
    close_fixture(&gpt2);
    close_fixture(&smollm);
    close_fixture(&llama3);
    close_fixture(&qwen2);
}

static void special_tokens(void **state) {
    fixture f = open_gpt2("gpt-2");
    char bytes[16];
    (void)state;
    ENCODES(&f, "hello<|endoftext|>", 1, 259, TINY_END);
    ENCODES(&f, "<|im_start|><|im_start|>hell", 1, TINY_START, TINY_START, 258);
    ENCODES(&f, "<|im_start", 1, '<', '|', 'i', 'm', '_', 's', 't', 'a', 'r', 't');
    ENCODES(&f, "<|im_start|>", 0, '<', '|', 'i', 'm', '_', 's', 't', 'a', 'r', 't', '|', '>');
    ENCODES(&f, "<sep>hello", 0, TINY_SEP, 259);
    ENCODES(&f, "<sep>arate<sep>arat", 0, TINY_SEPARATE, TINY_SEP, 'a', 'r', 'a', 't');
    assert_int_equal(tokenizer_decode(f.tok, TINY_START, bytes, sizeof bytes), 0);
    assert_int_equal(tokenizer_decode(f.tok, TINY_SEP, bytes, sizeof bytes), 5);
    assert_memory_equal(bytes, "<sep>", 5);
    close_fixture(&f);
}

static void what_the_vocabulary_says_of_itself(void **state) {
    fixture gpt2 = open_gpt2("gpt-2"), llama = open_llama(1, 1);
    (void)state;
    assert_int_equal(tokenizer_vocab_size(gpt2.tok), TINY_GPT2_SIZE);
    assert_int_equal(tokenizer_bos(gpt2.tok), TINY_END);
    assert_int_equal(tokenizer_eos(gpt2.tok), TINY_END);
    assert_false(tokenizer_adds_bos(gpt2.tok));
    assert_int_equal(tokenizer_bos(llama.tok), 1);
    assert_int_equal(tokenizer_eos(llama.tok), 2);
    assert_true(tokenizer_adds_bos(llama.tok));
    assert_int_equal(tokenizer_decode(gpt2.tok, -1, NULL, 0), -1);
    assert_int_equal(tokenizer_decode(gpt2.tok, TINY_GPT2_SIZE, NULL, 0), -1);
    close_fixture(&gpt2);
    close_fixture(&llama);
}

static void room_that_is_too_small(void **state) {
    fixture f = open_gpt2("gpt-2");
    int32_t ids[] = {-7, -7, -7};
    char bytes[] = "zzzzzz";
    (void)state;
    assert_int_equal(tokenizer_encode(f.tok, "hello world", 11, 0, ids, 1), 2);
    assert_true(ids[0] == 259 && ids[1] == -7);
    assert_int_equal(tokenizer_decode(f.tok, 259, bytes, 2), 5);
    assert_string_equal(bytes, "hezzzz");
    assert_int_equal(tokenizer_decode(f.tok, 259, NULL, 0), 5);
    close_fixture(&f);
}

/* Piece i of the tiny SentencePiece vocabulary with byte tokens. */
#define PIECE(i) (259 + (i))
#define BYTE(b)  (3 + (b))

static void llama_merges_by_score(void **state) {
    fixture f = open_llama(1, 1), bare = open_llama(1, 0);
    (void)state;
    ENCODES(&f, "hello", 0, PIECE(4));
    ENCODES(&f, "hello world", 0, PIECE(4), PIECE(7), PIECE(6), PIECE(10), PIECE(14));
    ENCODES(&bare, "hello", 0, PIECE(0), PIECE(1), PIECE(11));
    ENCODES(&bare, " hello", 0, PIECE(4));
    ENCODES(&bare, "aaa", 0, PIECE(18));
    ENCODES(&bare, "aaaa", 0, PIECE(16), PIECE(16));
    ENCODES(&bare, "\xc3\xa9", 0, PIECE(15));
    ENCODES(&bare, "\xa9z", 0, BYTE(0xa9), BYTE('z'));
    ENCODES(&bare, "\xe2\x82\xac", 0, BYTE(0xe2), BYTE(0x82), BYTE(0xac));
    ENCODES(&f, "<s>hell</s>hell", 1, 1, PIECE(3), 2, PIECE(3));
    ENCODES(&f, "h<sep>h", 0, PIECE(7), PIECE(8), PIECE(19), PIECE(8));
    assert_int_equal(tokenizer_encode(f.tok, "", 0, 0, NULL, 0), 0);
    close_fixture(&f);
    close_fixture(&bare);
}

static void llama_without_bytes(void **state) {
    fixture f = open_llama(0, 0);
    (void)state;
    ENCODES(&f, "h\xe2\x82\xac\xffh", 0, 3 + 8, 0, 0, 3 + 8); /* one unknown a character */
    close_fixture(&f);
}

/* All ids of a text decoded one after the other. */
static size_t there_and_back(const tokenizer *tok, const char *text, size_t n, char *back, size_t max_bytes) {
    static int32_t ids[MAX_IDS];
    int64_t n_ids = tokenizer_encode(tok, text, n, 0, ids, MAX_IDS);
    size_t at = 0;
    assert_true(n_ids >= 0 && n_ids <= MAX_IDS);
    for (int64_t i = 0; i < n_ids; i++)
        at += (size_t)tokenizer_decode(tok, ids[i], back + at, max_bytes - at);
    return at;
}

static void random_bytes_come_back(void **state) {
    static const char *const rules[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    static const char likely[] = "  helo wrd12'sS\n\n.\xc3\xa9\xe2\x82\xac";
    char text[200], back[400];
    (void)state;
    srand(1);
    for (int which = 0; which < 5; which++) {
        fixture f = which < 4 ? open_gpt2(rules[which]) : open_llama(1, 0);
        for (int round = 0; round < 500; round++) {
            size_t n = (size_t)rand() % sizeof text;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)(rand() % 4 ? likely[(size_t)rand() % (sizeof likely - 1)] : rand() >> 7);
            assert_int_equal(there_and_back(f.tok, text, n, back, sizeof back), n);
            assert_memory_equal(back, text, n);
        }
        close_fixture(&f);
    }
}

static void long_words_take_no_time(void **state) {
    enum { N = 1 << 20 };
    fixture gpt2 = open_gpt2("gpt-2"), llama = open_llama(1, 0);
    char *text = malloc(N);
    (void)state;
    memset(text, 'a', N);
    assert_int_equal(tokenizer_encode(gpt2.tok, text, N, 0, NULL, 0), N / 4);
    assert_int_equal(tokenizer_encode(llama.tok, text, N, 0, NULL, 0), N / 2);
    memset(text, ' ', N);
    assert_int_equal(tokenizer_encode(llama.tok, text, N, 0, NULL, 0), N);
    free(text);
    close_fixture(&gpt2);
    close_fixture(&llama);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_merges_by_rank),     cmocka_unit_test(each_set_of_rules_cuts_its_own_way),
        cmocka_unit_test(special_tokens),          cmocka_unit_test(what_the_vocabulary_says_of_itself),
        cmocka_unit_test(room_that_is_too_small),  cmocka_unit_test(llama_merges_by_score),
        cmocka_unit_test(llama_without_bytes),     cmocka_unit_test(random_bytes_come_back),
        cmocka_unit_test(long_words_take_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
