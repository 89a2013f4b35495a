/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies small enough to follow by hand, as GGUF files in memory. */
#ifndef HISPARSE_TESTS_TINY_VOCABULARY_H
#define HISPARSE_TESTS_TINY_VOCABULARY_H

#include "gguf_writer.h"

#define TINY_COUNT(array) (sizeof(array) / sizeof *(array))

/* Ids of the tiny GPT-2 vocabulary: bytes first, in order, then what each merge makes, then tokens written as they are.
 */
enum { TINY_MERGED = 256 };

/* \xc4\xa0 spells a space, \xc4\x8a a newline. */
static const char *const tiny_merges[][2] = {
    {"h", "e"},        /* 256 */
    {"l", "l"},        /* 257 */
    {"he", "ll"},      /* 258 */
    {"hell", "o"},     /* 259 */
    {"\xc4\xa0", "w"}, /* 260 */
    {"o", "r"},        /* 261 */
    {"\xc4\xa0w", "or"},
    {"l", "d"},
    {"\xc4\xa0wor", "ld"},            /* 264 " world" */
    {"1", "2"},                       /* 265 */
    {"\xc4\xa0", "\xc4\xa0"},         /* 266 two spaces */
    {"\xc4\x8a", "\xc4\x8a"},         /* 267 two newlines */
    {"'", "s"},                       /* 268 */
    {"a", "a"},                       /* 269 */
    {"aa", "aa"},                     /* 270 */
    {"\xc3\x83", "\xc2\xa9"},         /* 271 e with acute: bytes c3 a9 */
    {"\xc4\xa0\xc4\xa0", "\xc4\xa0"}, /* 272 three spaces */
    {"'", "S"},                       /* 273 */
    {".", "\xc4\x8a"},                /* 274 */
};

enum {
    TINY_END = TINY_MERGED + TINY_COUNT(tiny_merges), /* <|endoftext|>, control */
    TINY_START,                                       /* <|im_start|>, control */
    TINY_SEP,                                         /* <sep>, user-defined */
    TINY_SEPARATE,                                    /* <sep>arate, user-defined */
    TINY_GPT2_SIZE
};

/* UTF-8 of the character that spells a byte in GPT-2 vocabularies. */
static inline void tiny_spell(int byte, char text_out[3]) {
    int code = byte, n_before = 0;
    if (byte <= 0x20 || (byte >= 0x7f && byte <= 0xa0) || byte == 0xad) {
        for (int b = 0; b < byte; b++)
            n_before += b <= 0x20 || (b >= 0x7f && b <= 0xa0) || b == 0xad;
        code = 0x100 + n_before;
    }
    memset(text_out, 0, 3);
    if (code < 0x80) {
        text_out[0] = (char)code;
    } else {
        text_out[0] = (char)(0xc0 | code >> 6);
        text_out[1] = (char)(0x80 | (code & 0x3f));
    }
}

static inline void tiny_gpt2(gguf_writer *w, const char *pre) {
    char text[64];
    write_head(w, 0, 7);
    write_text_key(w, "tokenizer.ggml.model", "gpt2");
    write_text_key(w, "tokenizer.ggml.pre", pre);
    write_array_key(w, "tokenizer.ggml.tokens", W_STRING, TINY_GPT2_SIZE);
    for (int byte = 0; byte < 256; byte++) {
        tiny_spell(byte, text);
        write_text(w, text);
    }
    for (size_t i = 0; i < TINY_COUNT(tiny_merges); i++)
        write_text(w, strcat(strcpy(text, tiny_merges[i][0]), tiny_merges[i][1]));
    write_text(w, "<|endoftext|>");
    write_text(w, "<|im_start|>");
    write_text(w, "<sep>");
    write_text(w, "<sep>arate");
    write_array_key(w, "tokenizer.ggml.token_type", W_I32, TINY_GPT2_SIZE);
    for (int id = 0; id < (int)TINY_GPT2_SIZE; id++)
        write_u32(w, id < (int)TINY_END ? 1 : id < (int)TINY_SEP ? 3 : 4);
    write_array_key(w, "tokenizer.ggml.merges", W_STRING, TINY_COUNT(tiny_merges));
    for (size_t i = 0; i < TINY_COUNT(tiny_merges); i++)
        write_text(w, strcat(strcat(strcpy(text, tiny_merges[i][0]), " "), tiny_merges[i][1]));
    write_u32_key(w, "tokenizer.ggml.eos_token_id", TINY_END);
    write_u32_key(w, "tokenizer.ggml.bos_token_id", TINY_END);
}

/* Pieces of the tiny SentencePiece vocabulary, best score first; \xe2\x96\x81 is the mark for a space. */
static const char *const tiny_pieces[] = {
    "he",
    "ll",
    "\xe2\x96\x81he",
    "\xe2\x96\x81hell",
    "\xe2\x96\x81hello",
    "or",
    "wor",
    "\xe2\x96\x81",
    "h",
    "e",
    "l",
    "o",
    "w",
    "r",
    "d",
    "\xc3\xa9",
    "aa",
    "a",
    "aaa",
};

/* Ids: <unk> <s> </s>, then 256 bytes if asked for, then the pieces, then the user-defined <sep>. */
static inline void tiny_llama(gguf_writer *w, int with_bytes, int add_prefix) {
    static const char hex[] = "0123456789ABCDEF";
    uint64_t n_pieces = TINY_COUNT(tiny_pieces), n_bytes = with_bytes ? 256 : 0, n = 3 + n_bytes + n_pieces + 1;
    write_head(w, 0, 8);
    write_text_key(w, "tokenizer.ggml.model", "llama");
    write_array_key(w, "tokenizer.ggml.tokens", W_STRING, n);
    write_text(w, "<unk>");
    write_text(w, "<s>");
    write_text(w, "</s>");
    for (uint64_t byte = 0; byte < n_bytes; byte++) {
        char text[] = {'<', '0', 'x', hex[byte >> 4], hex[byte & 15], '>', 0};
        write_text(w, text);
    }
    for (uint64_t i = 0; i < n_pieces; i++)
        write_text(w, tiny_pieces[i]);
    write_text(w, "<sep>");
    write_array_key(w, "tokenizer.ggml.scores", W_F32, n);
    for (uint64_t i = 0; i < n; i++)
        write_f32(w, i < 3 + n_bytes ? 0 : -(float)(i - 3 - n_bytes));
    write_array_key(w, "tokenizer.ggml.token_type", W_I32, n);
    for (uint64_t i = 0; i < n; i++)
        write_u32(w, i == 0 ? 2 : i < 3 ? 3 : i < 3 + n_bytes ? 6 : i < n - 1 ? 1 : 4);
    write_u32_key(w, "tokenizer.ggml.unknown_token_id", 0);
    write_u32_key(w, "tokenizer.ggml.bos_token_id", 1);
    write_u32_key(w, "tokenizer.ggml.eos_token_id", 2);
    write_bool_key(w, "tokenizer.ggml.add_space_prefix", add_prefix);
}

#endif
