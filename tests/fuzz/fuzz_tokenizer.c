/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte chooses a vocabulary and whether control tokens are recognised, the rest is text to encode. What comes
 * back must be the text, where the kind of vocabulary promises that. */
#include "../engine/tiny_vocabulary.h"
#include "tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { N_GPT2 = 4, N_VOCABULARIES = 7 };

static tokenizer *tokenizers[N_VOCABULARIES];
static gguf *files[N_VOCABULARIES]; /* kept until the end of the process, as the tokenizers need them */
static gguf_writer writers[N_VOCABULARIES];

static void require(int holds) {
    if (!holds)
        abort();
}

static tokenizer *get_tokenizer(int which) {
    static const char *const rules[N_GPT2] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    char error[256];
    if (tokenizers[which])
        return tokenizers[which];
    gguf_writer *w = &writers[which];
    if (which < N_GPT2)
        tiny_gpt2(w, rules[which]);
    else
        tiny_llama(w, which != 6, which == 4);
    files[which] = gguf_open_memory(w->bytes, w->n, "tiny", error, sizeof error);
    require(files[which] != NULL);
    tokenizers[which] = tokenizer_open(files[which], error, sizeof error);
    require(tokenizers[which] != NULL);
    return tokenizers[which];
}

static char *decode_all(const tokenizer *tok, const int32_t *ids, int64_t n, size_t *n_out) {
    size_t room = (size_t)n * 16 + 1, at = 0;
    char *text = malloc(room);
    require(text != NULL);
    for (int64_t i = 0; i < n; i++) {
        require(ids[i] >= 0 && ids[i] < tokenizer_vocab_size(tok));
        int64_t length = tokenizer_decode(tok, ids[i], text + at, room - at);
        require(length >= 0 && (size_t)length <= room - at);
        at += (size_t)length;
    }
    *n_out = at;
    return text;
}

/* SentencePiece cannot tell its mark for a space from a space. */
static int holds_mark(const uint8_t *text, size_t n) {
    return memmem(text, n, "\xe2\x96\x81", 3) != NULL;
}

static void check(int which, const uint8_t *text, size_t n, int parse_special) {
    const tokenizer *tok = get_tokenizer(which);
    int64_t max_ids = (int64_t)n + 3, n_ids, n_counted;
    int32_t *ids = malloc((size_t)max_ids * sizeof *ids);
    require(ids != NULL);
    n_ids = tokenizer_encode(tok, (const char *)text, n, parse_special, ids, max_ids);
    n_counted = tokenizer_encode(tok, (const char *)text, n, parse_special, NULL, 0);
    require(n_ids >= 0 && n_ids <= max_ids && n_ids == n_counted);
    size_t n_back, prefix = which == 4 && n > 0 && n_ids > 0;
    char *back = decode_all(tok, ids, n_ids, &n_back);
    if (which < N_GPT2 && !parse_special)
        require(n_back == n && memcmp(back, text, n) == 0);
    if (which >= N_GPT2 && which < 6 && !parse_special && !holds_mark(text, n)) {
        prefix = prefix && back[0] == ' ' && n_back == n + 1;
        require(n_back == n + prefix && memcmp(back + prefix, text, n) == 0);
    }
    free(back);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    if (n_bytes > 0)
        check(bytes[0] % N_VOCABULARIES, bytes + 1, n_bytes - 1, bytes[0] >= 0x80);
    return 0;
}
