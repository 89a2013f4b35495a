/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece BPE as in Llama 2: spaces become U+2581, characters merge by the score of what they make, and what is
 * no token in the end goes in as bytes. */
#include "tokenizer_internal.h"
#include "unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char space_mark[] = "\xe2\x96\x81";
enum { SPACE_MARK_BYTES = 3 };

static int is_mark(const char *text, size_t n_bytes) {
    return n_bytes >= SPACE_MARK_BYTES && memcmp(text, space_mark, SPACE_MARK_BYTES) == 0;
}

static int read_scores(tokenizer *tok, char *error, size_t error_bytes) {
    static const char key[] = "tokenizer.ggml.scores";
    int64_t n = gguf_array_length(tok->file, key);
    if (n != tok->n_tokens)
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "%lld scores for %d tokens",
                               (long long)(n < 0 ? 0 : n), tok->n_tokens);
    tok->scores = malloc((size_t)n * sizeof *tok->scores);
    if (!tok->scores)
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "no memory for %lld scores", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        double score;
        if (gguf_array_float(tok->file, key, i, &score) || isnan(score))
            return tokenizer__fail(tok->file, key, i, error, error_bytes, "score %lld is not a number", (long long)i);
        tok->scores[i] = (float)score;
    }
    return 0;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that a token "<0x0A>" stands for, -1 for other texts. */
static int parse_byte(gguf_string text) {
    if (text.length != 6 || memcmp(text.bytes, "<0x", 3) != 0 || text.bytes[5] != '>')
        return -1;
    int high = hex_digit(text.bytes[3]), low = hex_digit(text.bytes[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* Whether U+2581 follows something else inside the token. */
static int joins_words(gguf_string text) {
    int was_other = 0;
    for (size_t at = 0; at < text.length;) {
        int mark = is_mark(text.bytes + at, text.length - at);
        if (mark && was_other)
            return 1;
        was_other = !mark;
        at += mark ? SPACE_MARK_BYTES : 1;
    }
    return 0;
}

static int add_token(tokenizer *tok, int32_t id, char *error, size_t error_bytes) {
    gguf_string text = tok->texts[id];
    if (tok->types[id] == TOKEN_BYTE) {
        int byte = parse_byte(text);
        if (byte < 0)
            return tokenizer__fail(tok->file, "tokenizer.ggml.tokens", id, error, error_bytes,
                                   "token %d is a byte but not written <0xXX>", id);
        tok->byte_ids[byte] = id;
        tok->all_bytes[byte] = (char)byte;
        tok->texts[id] = (gguf_string){&tok->all_bytes[byte], 1};
    } else if (tok->types[id] == TOKEN_NORMAL || tok->types[id] == TOKEN_USER_DEFINED) {
        text_map_add(&tok->by_text, id);
        if (text.length > tok->max_text_bytes)
            tok->max_text_bytes = text.length;
        if (joins_words(text))
            tok->is_cut_at_spaces = 0;
    }
    return 0;
}

int tokenizer__open_spm(tokenizer *tok, char *error, size_t error_bytes) {
    if (read_scores(tok, error, error_bytes))
        return -1;
    if (text_map_open(&tok->by_text, tok->texts, tok->n_tokens))
        return tokenizer__fail(tok->file, "tokenizer.ggml.tokens", -1, error, error_bytes, "no memory for %d tokens",
                               tok->n_tokens);
    memset(tok->byte_ids, 0xff, sizeof tok->byte_ids);
    tok->is_cut_at_spaces = 1;
    for (int32_t id = 0; id < tok->n_tokens; id++)
        if (add_token(tok, id, error, error_bytes))
            return -1;
    tok->adds_space_prefix = 1;
    gguf_get_bool(tok->file, "tokenizer.ggml.add_space_prefix", &tok->adds_space_prefix);
    return 0;
}

static int rule(const void *vocabulary, const merger *of, uint32_t left, uint32_t right, merge_candidate *out) {
    const tokenizer *tok = vocabulary;
    (void)right;
    if (out->length > tok->max_text_bytes)
        return 0;
    out->id = text_map_find(&tok->by_text, of->text + left, out->length);
    if (out->id < 0)
        return 0;
    out->key = -tok->scores[out->id];
    return 1;
}

static void put_symbol(const tokenizer *tok, const merger *of, uint32_t at, id_sink *sink) {
    merge_symbol symbol = of->symbols[at];
    if (symbol.id >= 0) {
        tokenizer__put(sink, symbol.id);
        return;
    }
    int n_missing = 0;
    for (uint32_t i = at; i < at + symbol.length; i++)
        n_missing += tok->byte_ids[(uint8_t)of->text[i]] < 0;
    if (n_missing > 0)
        tokenizer__put(sink, tok->unknown);
    else
        for (uint32_t i = at; i < at + symbol.length; i++)
            tokenizer__put(sink, tok->byte_ids[(uint8_t)of->text[i]]);
}

/* Encode a stretch of text that does not merge with what is around it. */
static int encode_stretch(const tokenizer *tok, merger *scratch, const char *text, size_t n_bytes, id_sink *sink) {
    uint32_t code, previous = 0;
    if (merger_start(scratch, text, n_bytes))
        return -1;
    for (uint32_t at = 0; at < n_bytes; previous = at, at += scratch->symbols[at].length) {
        uint32_t length = (uint32_t)unicode_decode(text + at, n_bytes - at, &code);
        scratch->symbols[at] = (merge_symbol){text_map_find(&tok->by_text, text + at, length), length, previous};
    }
    if (merger_run(scratch, rule, tok))
        return -1;
    for (uint32_t at = 0; at < n_bytes; at += scratch->symbols[at].length)
        put_symbol(tok, scratch, at, sink);
    return 0;
}

/* Bytes up to the first U+2581 that follows something else, where words may be cut. */
static size_t stretch_length(const tokenizer *tok, const char *text, size_t n_bytes) {
    int was_other = 0;
    for (size_t at = 0; tok->is_cut_at_spaces && at < n_bytes;) {
        int mark = is_mark(text + at, n_bytes - at);
        if (mark && was_other)
            return at;
        was_other = !mark;
        at += mark ? SPACE_MARK_BYTES : 1;
    }
    return n_bytes;
}

/* The text with marks for spaces, one more in front if asked for; its length in n_out. NULL: out of memory. */
static char *mark_spaces(const char *text, size_t n_bytes, int add_prefix, size_t *n_out) {
    size_t n_spaces = (size_t)add_prefix, n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n_spaces += text[i] == ' ';
    char *marked = malloc(n_bytes + SPACE_MARK_BYTES * n_spaces + 1);
    if (!marked)
        return NULL;
    for (size_t i = 0; i < n_bytes + (size_t)add_prefix; i++) {
        char c = i < (size_t)add_prefix ? ' ' : text[i - (size_t)add_prefix];
        if (c == ' ') {
            memcpy(marked + n, space_mark, SPACE_MARK_BYTES);
            n += SPACE_MARK_BYTES;
        } else {
            marked[n++] = c;
        }
    }
    *n_out = n;
    return marked;
}

int tokenizer__encode_spm(const tokenizer *tok, merger *scratch, const char *text, size_t n_bytes, int add_prefix,
                          id_sink *sink) {
    size_t n_marked = 0;
    char *marked = mark_spaces(text, n_bytes, add_prefix && tok->adds_space_prefix, &n_marked);
    int failed = !marked;
    for (size_t at = 0; at < n_marked && !failed;) {
        size_t length = stretch_length(tok, marked + at, n_marked - at);
        failed = encode_stretch(tok, scratch, marked + at, length, sink);
        at += length;
    }
    free(marked);
    return failed ? -1 : 0;
}
