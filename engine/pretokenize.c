/* SPDX-License-Identifier: Apache-2.0 */
#include "pretokenize.h"

#include "unicode.h"

#include <stdio.h>
#include <string.h>

static const pretokenizer known[] = {
    {.name = "gpt-2"},
    {.name = "default"},
    {.name = "smollm", .max_digits = 1, .digits_first = 1},
    {.name = "llama-bpe", .max_digits = 3, .is_llama3_style = 1, .whole_pieces = 1},
    {.name = "qwen2", .max_digits = 1, .is_llama3_style = 1},
};

enum { N_KNOWN = sizeof known / sizeof *known };

const pretokenizer *pretokenizer_find(gguf_string name) {
    for (int i = 0; i < N_KNOWN; i++)
        if (strlen(known[i].name) == name.length && memcmp(known[i].name, name.bytes, name.length) == 0)
            return &known[i];
    return NULL;
}

const char *pretokenizer_names(char *text_out, size_t text_bytes) {
    size_t at = 0;
    text_out[0] = 0;
    for (int i = 0; i < N_KNOWN && at < text_bytes; i++)
        at += (size_t)snprintf(text_out + at, text_bytes - at, "%s%s", i ? ", " : "", known[i].name);
    return text_out;
}

typedef struct character {
    uint32_t code;
    size_t length; /* 0 at the end of the text */
    enum unicode_class class;
} character;

static character look(const pretokenizer *rules, const char *text, size_t n, size_t at) {
    character c = {0};
    if (at >= n)
        return c;
    c.length = unicode_decode(text + at, n - at, &c.code);
    c.class = unicode_classify(c.code);
    if (rules->digits_first && c.class == UNICODE_NUMBER && at > 0)
        c.length = 0;
    return c;
}

static int is_newline(character c) {
    return c.length == 1 && (c.code == '\n' || c.code == '\r');
}

/* End of the run of characters of a class from `at` on, of max of them unless max is 0. */
static size_t run(const pretokenizer *rules, const char *text, size_t n, size_t at, enum unicode_class class, int max) {
    for (int i = 0; max == 0 || i < max; i++) {
        character c = look(rules, text, n, at);
        if (c.length == 0 || c.class != class)
            break;
        at += c.length;
    }
    return at;
}

/* 's 't 're 've 'm 'll 'd: bytes of the one that begins the text, 0 for none. */
static size_t contraction(const char *text, size_t n, int ignore_case) {
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (n < 2 || text[0] != '\'')
        return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(endings[i]);
        if (n < 1 + length)
            continue;
        int differs = ignore_case ? strncasecmp(text + 1, endings[i], length) : memcmp(text + 1, endings[i], length);
        if (!differs)
            return 1 + length;
    }
    /* The long s is an s to an expression that ignores case. */
    return ignore_case && n >= 3 && memcmp(text + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

/* White space, of which the last character is left to a word that follows: \s+(?!\S)|\s+ */
static size_t white_space(const pretokenizer *rules, const char *text, size_t n) {
    size_t at = 0, last = 0;
    character c = look(rules, text, n, 0);
    while (c.length > 0 && c.class == UNICODE_SPACE) {
        last = at;
        at += c.length;
        c = look(rules, text, n, at);
    }
    return c.length > 0 && last > 0 ? last : at;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t next_gpt2(const pretokenizer *rules, const char *text, size_t n) {
    size_t length = contraction(text, n, 0);
    if (length > 0)
        return length;
    size_t space = text[0] == ' ';
    character c = look(rules, text, n, space);
    if (c.length == 0 || c.class == UNICODE_SPACE)
        return white_space(rules, text, n);
    return run(rules, text, n, space, c.class, c.class == UNICODE_NUMBER ? rules->max_digits : 0);
}

/* \s*[\r\n]+ : 0 when the white space that begins the text has no newline. */
static size_t through_last_newline(const pretokenizer *rules, const char *text, size_t n) {
    size_t end = 0;
    character c = look(rules, text, n, 0);
    for (size_t at = 0; c.length > 0 && c.class == UNICODE_SPACE; c = look(rules, text, n, at)) {
        at += c.length;
        if (is_newline(c))
            end = at;
    }
    return end;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 */
static size_t next_llama3(const pretokenizer *rules, const char *text, size_t n) {
    size_t length = contraction(text, n, 1);
    if (length > 0)
        return length;
    character first = look(rules, text, n, 0);
    if (first.class == UNICODE_NUMBER)
        return run(rules, text, n, 0, UNICODE_NUMBER, rules->max_digits);
    if (first.class == UNICODE_LETTER)
        return run(rules, text, n, 0, UNICODE_LETTER, 0);
    character second = look(rules, text, n, first.length);
    if (!is_newline(first) && second.length > 0 && second.class == UNICODE_LETTER)
        return run(rules, text, n, first.length, UNICODE_LETTER, 0);
    size_t space = text[0] == ' ';
    size_t end = run(rules, text, n, space, UNICODE_OTHER, 0);
    if (end > space) {
        while (end < n && (text[end] == '\n' || text[end] == '\r'))
            end++;
        return end;
    }
    end = through_last_newline(rules, text, n);
    return end > 0 ? end : white_space(rules, text, n);
}

size_t pretokenizer_next(const pretokenizer *rules, const char *text, size_t n) {
    return rules->is_llama3_style ? next_llama3(rules, text, n) : next_gpt2(rules, text, n);
}
