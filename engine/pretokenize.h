/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting text into the pieces inside which byte-level BPE merges. Each vocabulary was trained with one set of rules,
 * written by its makers as a regular expression; here they are rules over character classes. */
#ifndef HISPARSE_PRETOKENIZE_H
#define HISPARSE_PRETOKENIZE_H

#include "gguf.h"

typedef struct pretokenizer {
    const char *name;    /* value of "tokenizer.ggml.pre" */
    int max_digits;      /* numbers in one piece; 0: any number */
    int is_llama3_style; /* newlines and punctuation cut as in Llama 3, else as in GPT-2 */
    int digits_first;    /* digits are cut out before the other rules look, so nothing is seen beyond one */
    int whole_pieces;    /* a piece that is a token is taken whole, whatever the merges say */
} pretokenizer;

/* Rules by name, NULL when unknown. */
const pretokenizer *pretokenizer_find(gguf_string name);
/* Names known, separated by commas. */
const char *pretokenizer_names(char *text_out, size_t text_bytes);
/* Bytes of the first piece of n > 0 bytes of text. */
size_t pretokenizer_next(const pretokenizer *rules, const char *text, size_t n);

#endif
