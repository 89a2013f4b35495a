/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer of a GGUF file: reading the vocabulary, and encoding and decoding with whichever kind it is. */
#include "gguf_internal.h"
#include "tokenizer_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tokens_key[] = "tokenizer.ggml.tokens";

int tokenizer__fail(const gguf *file, const char *key, int64_t index, char *error, size_t error_bytes,
                    const char *format, ...) {
    char reason[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    const gguf_value *value = gguf__find_value(file, key);
    uint64_t at = value ? value->at : 0;
    if (value && value->is_array && index >= 0 && (uint64_t)index < value->n_elements)
        at = value->string_at ? value->string_at[index] : at + (uint64_t)index * gguf__value_bytes(value->type);
    gguf_cursor where = {.name = file->name, .error = error, .error_bytes = error_bytes};
    return gguf__fail(&where, at, "%s: %s", key, reason);
}

static int read_tokens(tokenizer *tok, char *error, size_t error_bytes) {
    int64_t n = gguf_array_length(tok->file, tokens_key);
    if (n < 1 || n > INT32_MAX)
        return tokenizer__fail(tok->file, tokens_key, -1, error, error_bytes, "%lld tokens, allowed are 1 to %d",
                               (long long)(n < 0 ? 0 : n), INT32_MAX);
    tok->n_tokens = (int32_t)n;
    tok->texts = malloc((size_t)n * sizeof *tok->texts);
    tok->types = malloc((size_t)n);
    if (!tok->texts || !tok->types)
        return tokenizer__fail(tok->file, tokens_key, -1, error, error_bytes, "no memory for %lld tokens",
                               (long long)n);
    memset(tok->types, TOKEN_NORMAL, (size_t)n); /* until read_types knows better */
    for (int64_t i = 0; i < n; i++)
        if (gguf_array_string(tok->file, tokens_key, i, &tok->texts[i]))
            return tokenizer__fail(tok->file, tokens_key, -1, error, error_bytes, "not an array of strings");
    return 0;
}

static int read_types(tokenizer *tok, char *error, size_t error_bytes) {
    static const char key[] = "tokenizer.ggml.token_type";
    int64_t n = gguf_array_length(tok->file, key), type;
    if (n >= 0 && n != tok->n_tokens)
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "%lld types for %d tokens", (long long)n,
                               tok->n_tokens);
    for (int64_t i = 0; i < n; i++) {
        if (gguf_array_int(tok->file, key, i, &type))
            return tokenizer__fail(tok->file, key, -1, error, error_bytes, "not an array of integers");
        /* Anything else than the kinds that matter here is text like any other. */
        tok->types[i] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_NORMAL;
    }
    return 0;
}

/* The id under a key, -1 when there is none. */
static int read_id(const tokenizer *tok, const char *key, int32_t *id_out, char *error, size_t error_bytes) {
    int64_t id;
    *id_out = -1;
    if (gguf_get_int(tok->file, key, &id))
        return 0;
    if (id < 0 || id >= tok->n_tokens)
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "token %lld, the vocabulary has %d",
                               (long long)id, tok->n_tokens);
    *id_out = (int32_t)id;
    return 0;
}

static int read_ids(tokenizer *tok, char *error, size_t error_bytes) {
    if (read_id(tok, "tokenizer.ggml.bos_token_id", &tok->bos, error, error_bytes) ||
        read_id(tok, "tokenizer.ggml.eos_token_id", &tok->eos, error, error_bytes) ||
        read_id(tok, "tokenizer.ggml.unknown_token_id", &tok->unknown, error, error_bytes))
        return -1;
    return 0;
}

static int is_text(gguf_string string, const char *text) {
    return string.length == strlen(text) && memcmp(string.bytes, text, string.length) == 0;
}

static int open_kind(tokenizer *tok, char *error, size_t error_bytes) {
    static const char key[] = "tokenizer.ggml.model";
    gguf_string kind;
    char text[64];
    if (gguf_get_string(tok->file, key, &kind))
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "no tokenizer in the file");
    int is_bpe = is_text(kind, "gpt2"), is_spm = is_text(kind, "llama");
    if (!is_bpe && !is_spm)
        return tokenizer__fail(tok->file, key, -1, error, error_bytes, "unknown kind \"%s\", known are gpt2, llama",
                               gguf__printable(kind, text, sizeof text));
    if (read_tokens(tok, error, error_bytes) || read_types(tok, error, error_bytes) ||
        read_ids(tok, error, error_bytes))
        return -1;
    tok->adds_bos = is_spm && tok->bos >= 0;
    gguf_get_bool(tok->file, "tokenizer.ggml.add_bos_token", &tok->adds_bos);
    if (is_bpe ? tokenizer__open_bpe(tok, error, error_bytes) : tokenizer__open_spm(tok, error, error_bytes))
        return -1;
    if (tokenizer__open_specials(tok))
        return tokenizer__fail(tok->file, tokens_key, -1, error, error_bytes, "no memory for special tokens");
    return 0;
}

tokenizer *tokenizer_open(const gguf *file, char *error, size_t error_bytes) {
    tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok) {
        tokenizer__fail(file, tokens_key, -1, error, error_bytes, "no memory");
        return NULL;
    }
    tok->file = file;
    if (open_kind(tok, error, error_bytes)) {
        tokenizer_close(tok);
        return NULL;
    }
    return tok;
}

tokenizer *tokenizer_open_bytes(void) {
    tokenizer *tok = calloc(1, sizeof *tok);
    if (tok) {
        tok->is_bytes = 1;
        tok->n_tokens = 256;
        tok->bos = tok->eos = tok->unknown = -1;
    }
    return tok;
}

void tokenizer_close(tokenizer *tok) {
    if (!tok)
        return;
    text_map_close(&tok->by_text);
    pair_map_close(&tok->merges);
    free(tok->texts);
    free(tok->text_bytes);
    free(tok->types);
    free(tok->scores);
    free(tok->specials);
    free(tok);
}

int32_t tokenizer_vocab_size(const tokenizer *tok) {
    return tok->n_tokens;
}

int32_t tokenizer_bos(const tokenizer *tok) {
    return tok->bos;
}

int32_t tokenizer_eos(const tokenizer *tok) {
    return tok->eos;
}

int tokenizer_adds_bos(const tokenizer *tok) {
    return tok->adds_bos;
}

/* Text without a token goes in as nothing. */
void tokenizer__put(id_sink *sink, int32_t id) {
    if (id < 0)
        return;
    if (sink->n < sink->max_ids)
        sink->ids[sink->n] = id;
    sink->n++;
}

/* Bytes before the first special token, whose id goes to special_out; all of them and -1 when there is none. */
static size_t find_special(const tokenizer *tok, const char *text, size_t n_bytes, int with_control,
                           int32_t *special_out) {
    size_t at = 0;
    for (*special_out = -1; at < n_bytes; at++) {
        *special_out = tokenizer__match_special(tok, text + at, n_bytes - at, with_control);
        if (*special_out >= 0)
            break;
    }
    return at;
}

int64_t tokenizer_encode(const tokenizer *tok, const char *text, size_t n_bytes, int parse_special, int32_t *ids_out,
                         int64_t max_ids) {
    id_sink sink = {.ids = ids_out, .max_ids = max_ids};
    merger scratch = {0};
    int failed = 0, add_prefix = 1;
    for (size_t i = 0; tok->is_bytes && i < n_bytes; i++)
        tokenizer__put(&sink, (uint8_t)text[i]);
    if (tok->is_bytes)
        return sink.n;
    while (n_bytes > 0 && !failed) {
        int32_t special;
        size_t plain = find_special(tok, text, n_bytes, parse_special, &special);
        if (plain > 0)
            failed = tok->rules ? tokenizer__encode_bpe(tok, &scratch, text, plain, &sink)
                                : tokenizer__encode_spm(tok, &scratch, text, plain, add_prefix, &sink);
        tokenizer__put(&sink, special);
        /* What follows a control token begins like a text of its own; a token added by hand is a word among others. */
        add_prefix = special >= 0 && tok->types[special] == TOKEN_CONTROL;
        plain += special >= 0 ? tok->texts[special].length : 0;
        text += plain;
        n_bytes -= plain;
    }
    merger_close(&scratch);
    return failed ? -1 : sink.n;
}

typedef struct byte_sink {
    char *bytes;
    size_t max_bytes;
    size_t n;
} byte_sink;

static void put_byte(byte_sink *sink, char byte) {
    if (sink->n < sink->max_bytes)
        sink->bytes[sink->n] = byte;
    sink->n++;
}

int64_t tokenizer_decode(const tokenizer *tok, int32_t id, char *bytes_out, size_t max_bytes) {
    static const char space_mark[] = "\xe2\x96\x81";
    byte_sink sink = {.bytes = bytes_out, .max_bytes = max_bytes};
    if (id < 0 || id >= tok->n_tokens)
        return -1;
    if (tok->is_bytes) {
        put_byte(&sink, (char)id);
        return 1;
    }
    if (tok->types[id] == TOKEN_CONTROL || tok->types[id] == TOKEN_UNKNOWN)
        return 0;
    gguf_string text = tok->texts[id];
    for (size_t at = 0; at < text.length; at++) {
        if (!tok->rules && text.length - at >= 3 && memcmp(text.bytes + at, space_mark, 3) == 0) {
            put_byte(&sink, ' ');
            at += 2;
        } else {
            put_byte(&sink, text.bytes[at]);
        }
    }
    return (int64_t)sink.n;
}
