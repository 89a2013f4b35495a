/* SPDX-License-Identifier: Apache-2.0 */
/* Text to token ids and back, from the vocabulary inside a GGUF file: GPT-2 style byte-level BPE ("gpt2": tokens and
 * merges, with the pre-tokenization of "tokenizer.ggml.pre") and SentencePiece ("llama": tokens and scores). */
#ifndef HISPARSE_TOKENIZER_H
#define HISPARSE_TOKENIZER_H

#include "gguf.h"

typedef struct tokenizer tokenizer;

/* The tokenizer of `file`, which must outlive it. NULL on failure, with the reason in `error`. */
tokenizer *tokenizer_open(const gguf *file, char *error, size_t error_bytes);
/* One without a file: 256 tokens, the bytes themselves, none of them special. NULL when out of memory. */
tokenizer *tokenizer_open_bytes(void);
void tokenizer_close(tokenizer *tok);

int32_t tokenizer_vocab_size(const tokenizer *tok);
int32_t tokenizer_bos(const tokenizer *tok); /* -1: none */
int32_t tokenizer_eos(const tokenizer *tok); /* -1: none */
int tokenizer_adds_bos(const tokenizer *tok);

/* Encode text (any bytes; text that is not UTF-8 goes in byte by byte). With parse_special, control tokens written out
 * ("<|im_start|>") become their ids; tokens that the vocabulary calls user-defined always do. No beginning-of-text
 * token is added. Bytes for which a byte-level vocabulary has no token are left out, as the makers of such models leave
 * them out; SentencePiece has its unknown token instead. Writes up to max_ids ids and returns how many the text has, -1
 * when out of memory. */
int64_t tokenizer_encode(const tokenizer *tok, const char *text, size_t n_bytes, int parse_special, int32_t *ids_out,
                         int64_t max_ids);

/* Bytes of one token as text, terminator not included: writes up to max_bytes and returns how many it has; 0 for
 * control tokens and the unknown token; -1 for an id outside the vocabulary. A token may hold part of a character. The
 * space that SentencePiece puts before a text is still there. */
int64_t tokenizer_decode(const tokenizer *tok, int32_t id, char *bytes_out, size_t max_bytes);

#endif
