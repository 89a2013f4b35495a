/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies that make no sense are refused with the file, the offset and what is wrong. */
#include "tiny_vocabulary.h"
#include "tokenizer.h"
#include "with_cmocka.h"

#include <stdio.h>

/* The file is well-formed, its vocabulary is not. Frees the writer. */
static void expect(gguf_writer *w, const char *reason) {
    char error[256] = "";
    gguf *file = gguf_open_memory(w->bytes, w->n, "odd", error, sizeof error);
    if (!file)
        fail_msg("%s", error);
    tokenizer *tok = tokenizer_open(file, error, sizeof error);
    if (tok)
        fail_msg("accepted, expected %s", reason);
    if (strncmp(error, "odd: offset ", 12) != 0 || !strstr(error, reason))
        fail_msg("\"%s\" does not say \"%s\"", error, reason);
    gguf_close(file);
    free(w->bytes);
    memset(w, 0, sizeof *w);
}

static void write_words(gguf_writer *w, const char *key, const char *const *words, size_t n) {
    write_array_key(w, key, W_STRING, n);
    for (size_t i = 0; i < n; i++)
        write_text(w, words[i]);
}

static const char *const letters[] = {"a", "b", "ab"};

/* Head, kind and three tokens; n_more keys follow. */
static void begin(gguf_writer *w, const char *kind, int n_more) {
    write_head(w, 0, (uint64_t)(2 + n_more));
    write_text_key(w, "tokenizer.ggml.model", kind);
    write_words(w, "tokenizer.ggml.tokens", letters, 3);
}

static void unknown_kinds(void **state) {
    gguf_writer w = {0};
    (void)state;
    write_head(&w, 0, 0);
    expect(&w, "tokenizer.ggml.model: no tokenizer in the file");
    begin(&w, "bert\n", 0);
    expect(&w, "unknown kind \"bert?\", known are gpt2, llama");
    tiny_gpt2(&w, "martian");
    expect(&w, "unknown pre-tokenization \"martian\", known are gpt-2, default, smollm, llama-bpe, qwen2");
}

static void tokens_that_are_none(void **state) {
    gguf_writer w = {0};
    (void)state;
    write_head(&w, 0, 1);
    write_text_key(&w, "tokenizer.ggml.model", "gpt2");
    expect(&w, "0 tokens");
    write_head(&w, 0, 2);
    write_text_key(&w, "tokenizer.ggml.model", "gpt2");
    write_array_key(&w, "tokenizer.ggml.tokens", W_U8, 1);
    write_number(&w, 1, 1);
    expect(&w, "tokenizer.ggml.tokens: not an array of strings");
}

static void ids_beyond_the_vocabulary(void **state) {
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.unknown_token_id"};
    gguf_writer w = {0};
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin(&w, "llama", 1);
        write_u32_key(&w, keys[i], 3);
        expect(&w, "token 3, the vocabulary has 3");
    }
}

static void arrays_of_other_lengths(void **state) {
    gguf_writer w = {0};
    (void)state;
    begin(&w, "llama", 0);
    expect(&w, "0 scores for 3 tokens");
    begin(&w, "llama", 1);
    write_array_key(&w, "tokenizer.ggml.token_type", W_I32, 1);
    write_u32(&w, 1);
    expect(&w, "1 types for 3 tokens");
    begin(&w, "llama", 1);
    write_array_key(&w, "tokenizer.ggml.scores", W_F32, 3);
    write_f32(&w, 0);
    write_u32(&w, 0x7fc00000);
    write_f32(&w, 0);
    expect(&w, "score 1 is not a number");
}

static void merges_that_make_nothing(void **state) {
    static const char *const bad[] = {"ab", "", " ", "a ", " b", "a c", "c b", "b a"};
    gguf_writer w = {0};
    (void)state;
    for (size_t i = 0; i < TINY_COUNT(bad); i++) {
        begin(&w, "gpt2", 1);
        write_words(&w, "tokenizer.ggml.merges", (const char *const[]){"a b", bad[i]}, 2);
        expect(&w, "merge 1 is not two tokens that make a third");
    }
    begin(&w, "gpt2", 0);
    expect(&w, "no array of merges");
}

static void bytes_written_wrongly(void **state) {
    gguf_writer w = {0};
    (void)state;
    begin(&w, "llama", 2);
    write_array_key(&w, "tokenizer.ggml.scores", W_F32, 3);
    for (int i = 0; i < 3; i++)
        write_f32(&w, 0);
    write_array_key(&w, "tokenizer.ggml.token_type", W_I32, 3);
    for (int i = 0; i < 3; i++)
        write_u32(&w, i == 2 ? 6 : 1);
    expect(&w, "token 2 is a byte but not written <0xXX>");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_kinds),
        cmocka_unit_test(tokens_that_are_none),
        cmocka_unit_test(ids_beyond_the_vocabulary),
        cmocka_unit_test(arrays_of_other_lengths),
        cmocka_unit_test(merges_that_make_nothing),
        cmocka_unit_test(bytes_written_wrongly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
