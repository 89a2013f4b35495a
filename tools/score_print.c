/* SPDX-License-Identifier: Apache-2.0 */
#include "score.h"
#include "tools.h"

#include <inttypes.h>
#include <jansson.h>

/* Hits and misses of all steps and layers; 0 without a cache. */
static hsp_counters counters_of(const run *r) {
    hsp_counters c = {0};
    if (r->cached)
        hsp_request_counters(r->cached->cache, r->cached->request, &c);
    return c;
}

static double quotient(double part, double all) {
    return all > 0 ? part / all : 0;
}

static const char *rows_word(const score_options *o) {
    return o->dense ? "all resident, every layer dense" : o->all_resident ? "all resident" : "in the cache";
}

static void print_table(const score_options *o, const run *r, const score *s, FILE *to) {
    const hsp_counters c = counters_of(r);
    uint64_t rows = c.hits + c.misses;
    fprintf(to, "%-28s %d read + %d scored, top-k %d\n", "tokens", r->n_prompt, s->n, r->options.top_k);
    fprintf(to, "%-28s %s\n", "rows", rows_word(o));
    fprintf(to, "%-28s %.4f (%lld bytes)\n", "bits per byte", quotient(s->bits, (double)s->n_bytes),
            (long long)s->n_bytes);
    fprintf(to, "%-28s %.2f tokens/s\n", "decode", quotient(s->n, r->decode_seconds));
    if (r->cached)
        fprintf(to, "%-28s %.2f%% of rows (%llu of %llu), %d slots\n", "hits",
                100 * quotient((double)c.hits, (double)rows), (unsigned long long)c.hits, (unsigned long long)rows,
                r->options.cache.n_slots);
    fprintf(to, "%-28s %016" PRIx64 "\n", "digest of the logits", s->digest);
    if (r->stopped)
        fprintf(to, "stopped by Ctrl-C after %d tokens\n", s->n);
}

/* A number, or null where there is no cache. */
static json_t *of_cache(const run *r, json_int_t number) {
    return r->cached ? json_integer(number) : json_null();
}

/* [n] of each: the text's tokens, what the logits before them cost in bits, and the token they prefer. */
static json_t *each_json(const run *r, const score *s) {
    json_t *token = json_array(), *bits = json_array(), *likeliest = json_array();
    for (int32_t i = 0; i < s->n; i++) {
        json_array_append_new(token, json_integer(r->prompt[r->n_prompt + i]));
        json_array_append_new(bits, json_real(s->bits_of[i]));
        json_array_append_new(likeliest, json_integer(s->likeliest[i]));
    }
    return json_pack("{s:o, s:o, s:o}", "token", token, "bits", bits, "argmax", likeliest);
}

static int print_json(const score_options *o, const run *r, const score *s, FILE *to) {
    const hsp_counters c = counters_of(r);
    char digest[17];
    snprintf(digest, sizeof digest, "%016" PRIx64, s->digest);
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:b, s:b, s:i, s:o, s:i, s:i, s:I, s:s}", "version", hsp_version(), "model",
                  o->model, "backend", r->options.cache.backend, "dense", o->dense, "all_resident", o->all_resident,
                  "top_k", r->options.top_k, "slots", of_cache(r, r->options.cache.n_slots), "prompt_tokens",
                  r->n_prompt, "scored_tokens", s->n, "scored_bytes", (json_int_t)s->n_bytes, "digest", digest);
    json_object_set_new(root, "bits_per_byte", s->n_bytes ? json_real(s->bits / (double)s->n_bytes) : json_null());
    json_object_set_new(root, "prefill_seconds", json_real(r->prefill_seconds));
    json_object_set_new(root, "decode_tokens_per_second", json_real(quotient(s->n, r->decode_seconds)));
    json_object_set_new(root, "hits", of_cache(r, (json_int_t)c.hits));
    json_object_set_new(root, "misses", of_cache(r, (json_int_t)c.misses));
    json_object_set_new(root, "stopped", json_boolean(r->stopped));
    json_object_set_new(root, "each", each_json(r, s));
    int failed = json_dumpf(root, to, JSON_INDENT(1)) != 0;
    fprintf(to, "\n");
    json_decref(root);
    return failed ? tool_fail(TOOL_FAILED, "cannot write the JSON") : 0;
}

int score_print(const score_options *o, const run *r, const score *s, FILE *to) {
    if (o->json)
        return print_json(o, r, s, to);
    print_table(o, r, s, to);
    return 0;
}
