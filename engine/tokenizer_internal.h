/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the tokenizer share. */
#ifndef HISPARSE_TOKENIZER_INTERNAL_H
#define HISPARSE_TOKENIZER_INTERNAL_H

#include "merge.h"
#include "pretokenize.h"
#include "token_map.h"
#include "tokenizer.h"

/* Kinds of tokens, numbered as in "tokenizer.ggml.token_type". */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

struct tokenizer {
    const gguf *file;
    int is_bytes;              /* ids are bytes, and nothing below but n_tokens, bos, eos and unknown is set */
    const pretokenizer *rules; /* NULL: SentencePiece */
    int32_t n_tokens;
    int32_t bos, eos, unknown; /* -1: none */
    int adds_bos;
    gguf_string *texts; /* the bytes each token stands for */
    char *text_bytes;   /* those of the texts that are not in the file as they are */
    uint8_t *types;
    text_map by_text;
    int32_t byte_ids[256]; /* token of a single byte, -1: none */

    int32_t *specials; /* control and user-defined tokens, sorted by text */
    int32_t n_specials;
    uint8_t special_begins[256]; /* whether a special token begins with the byte */

    pair_map merges; /* byte-level BPE */

    float *scores;       /* SentencePiece */
    char all_bytes[256]; /* texts of the tokens that are one byte */
    size_t max_text_bytes;
    int adds_space_prefix;
    int is_cut_at_spaces; /* no token has a space after something else: words never merge with each other */
};

/* Where the ids go: counted beyond the room for them too. */
typedef struct id_sink {
    int32_t *ids;
    int64_t max_ids;
    int64_t n;
} id_sink;

void tokenizer__put(id_sink *sink, int32_t id);

/* An error about a key of the file, or about element `index` of its array when that is not negative. Returns -1. */
int tokenizer__fail(const gguf *file, const char *key, int64_t index, char *error, size_t error_bytes,
                    const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Each kind: the rest of opening, once the tokens are read, and the encoding of text without special tokens. */
int tokenizer__open_bpe(tokenizer *tok, char *error, size_t error_bytes);
int tokenizer__encode_bpe(const tokenizer *tok, merger *scratch, const char *text, size_t n_bytes, id_sink *sink);
int tokenizer__open_spm(tokenizer *tok, char *error, size_t error_bytes);
int tokenizer__encode_spm(const tokenizer *tok, merger *scratch, const char *text, size_t n_bytes, int add_prefix,
                          id_sink *sink);

/* Special tokens: collect them once; then the longest one that begins a text, -1 for none. */
int tokenizer__open_specials(tokenizer *tok);
int32_t tokenizer__match_special(const tokenizer *tok, const char *text, size_t n_bytes, int with_control);

#endif
