/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens found in text as they are written, before anything is merged: control tokens such as "<|im_start|>" on
 * request, tokens that the makers of the model added by hand always. */
#include "tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static int compare_texts(const void *left, const void *right, void *texts) {
    const gguf_string *a = (gguf_string *)texts + *(const int32_t *)left;
    const gguf_string *b = (gguf_string *)texts + *(const int32_t *)right;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    if (order == 0)
        order = (a->length > b->length) - (a->length < b->length);
    /* Of the same text the smallest id comes last, where the search finds it last and keeps it. */
    return order ? order : *(const int32_t *)right - *(const int32_t *)left;
}

static int is_special(const tokenizer *tok, int32_t id) {
    return (tok->types[id] == TOKEN_CONTROL || tok->types[id] == TOKEN_USER_DEFINED) && tok->texts[id].length > 0;
}

int tokenizer__open_specials(tokenizer *tok) {
    int32_t n = 0;
    for (int32_t id = 0; id < tok->n_tokens; id++)
        n += is_special(tok, id);
    tok->specials = malloc((size_t)(n ? n : 1) * sizeof *tok->specials);
    if (!tok->specials)
        return -1;
    for (int32_t id = 0; id < tok->n_tokens; id++) {
        if (!is_special(tok, id))
            continue;
        tok->specials[tok->n_specials++] = id;
        tok->special_begins[(uint8_t)tok->texts[id].bytes[0]] = 1;
    }
    qsort_r(tok->specials, (size_t)n, sizeof *tok->specials, compare_texts, tok->texts);
    return 0;
}

/* First special from `low` on, below `high`, whose byte at `depth` is not below `byte`; all agree on the bytes before,
 * and those that end at `depth` come first. */
static int32_t lower_bound(const tokenizer *tok, int32_t low, int32_t high, size_t depth, int byte) {
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        gguf_string text = tok->texts[tok->specials[middle]];
        if (text.length <= depth || (uint8_t)text.bytes[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int32_t tokenizer__match_special(const tokenizer *tok, const char *text, size_t n_bytes, int with_control) {
    int32_t low = 0, high = tok->n_specials, found = -1;
    if (n_bytes == 0 || !tok->special_begins[(uint8_t)text[0]])
        return -1;
    for (size_t depth = 0; depth < n_bytes && low < high; depth++) {
        int byte = (uint8_t)text[depth];
        low = lower_bound(tok, low, high, depth, byte);
        high = lower_bound(tok, low, high, depth, byte + 1);
        for (int32_t i = low; i < high && tok->texts[tok->specials[i]].length == depth + 1; i++)
            if (with_control || tok->types[tok->specials[i]] == TOKEN_USER_DEFINED)
                found = tok->specials[i];
    }
    return found;
}
