/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE as in GPT-2. The file spells every byte of a token as one printable character; here tokens are kept as
 * the bytes themselves, so that text needs no spelling before it is looked up. */
#include "gguf_internal.h"
#include "tokenizer_internal.h"
#include "unicode.h"

#include <stdlib.h>
#include <string.h>

/* Characters that stand for bytes are below this one. */
enum { SPELLING_END = 0x144 };

/* Printable bytes of Latin-1 stand for themselves; the others, in order, for the characters from U+0100 on. */
static void fill_spelling(int16_t byte_of[SPELLING_END]) {
    int next = 0x100;
    memset(byte_of, 0xff, SPELLING_END * sizeof *byte_of);
    for (int byte = 0; byte < 256; byte++) {
        int is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        byte_of[is_printable ? byte : next++] = (int16_t)byte;
    }
}

/* Bytes a spelled text stands for, never more than it has itself. A text with a character that spells no byte was added
 * by hand and is meant as it is. */
static gguf_string unspell(const int16_t byte_of[SPELLING_END], gguf_string text, char *bytes_out) {
    size_t n = 0;
    for (size_t at = 0; at < text.length;) {
        uint32_t code;
        at += unicode_decode(text.bytes + at, text.length - at, &code);
        if (code >= SPELLING_END || byte_of[code] < 0)
            return text;
        bytes_out[n++] = (char)byte_of[code];
    }
    return (gguf_string){bytes_out, n};
}

static int unspell_tokens(tokenizer *tok, const int16_t byte_of[SPELLING_END]) {
    size_t total = 0;
    for (int32_t id = 0; id < tok->n_tokens; id++)
        total += tok->texts[id].length;
    tok->text_bytes = malloc(total ? total : 1);
    if (!tok->text_bytes)
        return -1;
    char *free_bytes = tok->text_bytes;
    for (int32_t id = 0; id < tok->n_tokens; id++) {
        if (tok->types[id] == TOKEN_CONTROL || tok->types[id] == TOKEN_USER_DEFINED)
            continue;
        size_t room = tok->texts[id].length;
        tok->texts[id] = unspell(byte_of, tok->texts[id], free_bytes);
        free_bytes += room;
    }
    return 0;
}

/* "left right": ids of both and of the two together, -1 where there is no such token. */
static int parse_merge(const tokenizer *tok, const int16_t byte_of[SPELLING_END], gguf_string line, char *scratch,
                       pair_merge *merge_out) {
    const char *space = line.length > 1 ? memchr(line.bytes + 1, ' ', line.length - 1) : NULL;
    if (!space)
        return -1;
    size_t left_bytes = (size_t)(space - line.bytes);
    gguf_string left = unspell(byte_of, (gguf_string){line.bytes, left_bytes}, scratch);
    gguf_string right = unspell(byte_of, (gguf_string){space + 1, line.length - left_bytes - 1}, scratch + left_bytes);
    if (right.length == 0)
        return -1;
    merge_out->left = text_map_find(&tok->by_text, left.bytes, left.length);
    merge_out->right = text_map_find(&tok->by_text, right.bytes, right.length);
    size_t left_length = left.length, right_length = right.length;
    memmove(scratch, left.bytes, left_length);
    memmove(scratch + left_length, right.bytes, right_length);
    merge_out->merged = text_map_find(&tok->by_text, scratch, left_length + right_length);
    return merge_out->left < 0 || merge_out->right < 0 || merge_out->merged < 0 ? -1 : 0;
}

static int read_merges(tokenizer *tok, const int16_t byte_of[SPELLING_END], char *error, size_t error_bytes) {
    static const char key[] = "tokenizer.ggml.merges";
    int64_t n = gguf_array_length(tok->file, key);
    gguf_string line;
    size_t longest = 1;
    if (n < 0 || n > INT32_MAX)
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "no array of merges");
    for (int64_t i = 0; i < n; i++) {
        if (gguf_array_string(tok->file, key, i, &line))
            return tokenizer__fail(tok->file, key, -1, error, error_bytes, "not an array of strings");
        longest = line.length > longest ? line.length : longest;
    }
    char *scratch = malloc(longest);
    if (!scratch || pair_map_open(&tok->merges, n)) {
        free(scratch);
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "no memory for %lld merges", (long long)n);
    }
    int failed = 0;
    for (int64_t i = 0; i < n && !failed; i++) {
        pair_merge merge = {.rank = (int32_t)i};
        gguf_array_string(tok->file, key, i, &line);
        if (parse_merge(tok, byte_of, line, scratch, &merge))
            failed = tokenizer__fail(tok->file, key, i, error, error_bytes,
                                     "merge %lld is not two tokens that make a third", (long long)i);
        else
            pair_map_add(&tok->merges, merge);
    }
    free(scratch);
    return failed;
}

static int choose_rules(tokenizer *tok, char *error, size_t error_bytes) {
    static const char key[] = "tokenizer.ggml.pre";
    gguf_string name = {"default", 7};
    char names[128], text[64];
    gguf_get_string(tok->file, key, &name);
    tok->rules = pretokenizer_find(name);
    if (tok->rules)
        return 0;
    return tokenizer__fail(tok->file, key, -1, error, error_bytes, "unknown pre-tokenization \"%s\", known are %s",
                           gguf__printable(name, text, sizeof text), pretokenizer_names(names, sizeof names));
}

int tokenizer__open_bpe(tokenizer *tok, char *error, size_t error_bytes) {
    int16_t byte_of[SPELLING_END];
    if (choose_rules(tok, error, error_bytes))
        return -1;
    fill_spelling(byte_of);
    if (unspell_tokens(tok, byte_of) || text_map_open(&tok->by_text, tok->texts, tok->n_tokens))
        return tokenizer__fail(tok->file, "tokenizer.ggml.tokens", -1, error, error_bytes, "no memory for %d tokens",
                               tok->n_tokens);
    for (int32_t id = 0; id < tok->n_tokens; id++)
        text_map_add(&tok->by_text, id);
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        tok->byte_ids[byte] = text_map_find(&tok->by_text, &text, 1);
    }
    return read_merges(tok, byte_of, error, error_bytes);
}

static int rule(const void *vocabulary, const merger *of, uint32_t left, uint32_t right, merge_candidate *out) {
    const tokenizer *tok = vocabulary;
    if (of->symbols[left].id < 0 || of->symbols[right].id < 0)
        return 0;
    const pair_merge *merge = pair_map_find(&tok->merges, of->symbols[left].id, of->symbols[right].id);
    if (!merge)
        return 0;
    out->key = merge->rank;
    out->id = merge->merged;
    return 1;
}

static int encode_piece(const tokenizer *tok, merger *scratch, const char *text, size_t n_bytes, id_sink *sink) {
    int32_t whole = tok->rules->whole_pieces ? text_map_find(&tok->by_text, text, n_bytes) : -1;
    if (whole >= 0) {
        tokenizer__put(sink, whole);
        return 0;
    }
    if (merger_start(scratch, text, n_bytes))
        return -1;
    for (uint32_t i = 0; i < n_bytes; i++)
        scratch->symbols[i] = (merge_symbol){.id = tok->byte_ids[(uint8_t)text[i]], .length = 1, .previous = i - 1};
    if (merger_run(scratch, rule, tok))
        return -1;
    for (uint32_t i = 0; i < n_bytes; i += scratch->symbols[i].length)
        tokenizer__put(sink, scratch->symbols[i].id);
    return 0;
}

int tokenizer__encode_bpe(const tokenizer *tok, merger *scratch, const char *text, size_t n_bytes, id_sink *sink) {
    while (n_bytes > 0) {
        size_t piece = pretokenizer_next(tok->rules, text, n_bytes);
        if (encode_piece(tok, scratch, text, piece, sink))
            return -1;
        text += piece;
        n_bytes -= piece;
    }
    return 0;
}
