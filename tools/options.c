/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTIONS = 40, FIRST_KEY = 256 /* beyond letters: no short options but the one of a file to write */ };

typedef struct parse {
    const tool_option *table;
    char *values;
} parse;

static void check_bounds(struct argp_state *state, const tool_option *o, const char *text, double value) {
    if (!(value >= o->least && value <= o->most))
        argp_error(state, "--%s is %s; it may be %.16g..%.16g", o->name, text, o->least, o->most);
}

static int64_t parse_int(struct argp_state *state, const tool_option *o, const char *text) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || (errno && errno != ERANGE))
        argp_error(state, "--%s: '%s' is not a whole number", o->name, text);
    check_bounds(state, o, text, (double)value);
    return value;
}

static double parse_real(struct argp_state *state, const tool_option *o, const char **text) {
    char *end;
    double value = strtod(*text, &end);
    if (end == *text || (*end && (*end != ',' || o->kind != TOOL_REALS)))
        argp_error(state, "--%s: '%s' is not a number", o->name, *text);
    check_bounds(state, o, *text, value);
    *text = end;
    return value;
}

static void parse_reals(struct argp_state *state, const tool_option *o, const char *text, tool_reals *list) {
    int most = (int)(sizeof list->value / sizeof list->value[0]);
    for (list->n = 0;; text++) {
        if (list->n == most)
            argp_error(state, "--%s: more than %d numbers", o->name, most);
        list->value[list->n++] = parse_real(state, o, &text);
        if (!*text)
            return;
    }
}

static error_t parse_word(struct argp_state *state, const parse *p, const char *text) {
    const tool_option *o = p->table;
    int most = (int)(sizeof((tool_words *)0)->word / sizeof(char *));
    while (o->name && o->kind != TOOL_WORDS)
        o++;
    if (!o->name)
        argp_error(state, "'%s' is not expected here", text);
    tool_words *words = (tool_words *)(p->values + o->offset);
    if (words->n == most)
        argp_error(state, "'%s' is one word more than %d", text, most);
    words->word[words->n++] = text;
    return 0;
}

static int key_of(const tool_option *table, int i) {
    return table[i].kind == TOOL_OUTPUT ? 'o' : FIRST_KEY + i;
}

static const tool_option *find_key(const tool_option *table, int key) {
    for (int i = 0; i < MOST_OPTIONS && table[i].name; i++)
        if (key_of(table, i) == key)
            return &table[i];
    return NULL;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    const parse *p = state->input;
    if (key == ARGP_KEY_ARG)
        return parse_word(state, p, text);
    const tool_option *o = find_key(p->table, key);
    if (!o)
        return ARGP_ERR_UNKNOWN;
    char *field = p->values + o->offset;
    const char *rest = text;
    switch (o->kind) {
    case TOOL_INT:
        *(int64_t *)field = parse_int(state, o, text);
        break;
    case TOOL_REAL:
        *(double *)field = parse_real(state, o, &rest);
        break;
    case TOOL_TEXT:
    case TOOL_OUTPUT:
        *(const char **)field = text;
        break;
    case TOOL_FLAG:
        *(int *)field = 1;
        break;
    case TOOL_REALS:
        parse_reals(state, o, text, (tool_reals *)field);
        break;
    case TOOL_WORDS: /* has no key */
        break;
    }
    return 0;
}

void tool_options(const tool_option *table, const char *about, int argc, char **argv, void *values) {
    struct argp_option options[MOST_OPTIONS + 1] = {{0}};
    parse input = {table, values};
    const char *words = NULL;
    for (int i = 0, n = 0; i < MOST_OPTIONS && table[i].name; i++)
        if (table[i].kind == TOOL_WORDS)
            words = table[i].argument;
        else
            options[n++] =
                (struct argp_option){table[i].name, key_of(table, i), table[i].argument, 0, table[i].help, 0};
    struct argp argp = {options, parse_option, words, about, NULL, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &input);
}

/* Append to a text of `bytes` bytes; what does not fit is lost. */
static void append(char *text, size_t bytes, const char *part, size_t n) {
    size_t length = strlen(text);
    n = n < bytes - 1 - length ? n : bytes - 1 - length;
    memcpy(text + length, part, n);
    text[length + n] = 0;
}

void tool_command_text(int argc, char **argv, char *text_out, size_t bytes) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,:/@%";
    *text_out = 0;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        int quoted = i > 0 && (!*word || word[strspn(word, plain)]); /* argv[0] is "hisparse bench", two words */
        append(text_out, bytes, " '", i > 0 ? 1 + (size_t)quoted : 0);
        for (; *word; word++)
            append(text_out, bytes, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
        append(text_out, bytes, "'", (size_t)quoted);
    }
}
