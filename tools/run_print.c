/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "tools.h"
#include "unicode.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Everything the table and the JSON say, computed once. NAN: not measured, for Ctrl-C came first. */
typedef struct summary {
    uint64_t device_bytes, resident_bytes, index_bytes;
    double prefill_rate, decode_rate, resident_rate;
    double dense_share, sparse_share; /* of a step, spent in swap-in of dense and of selecting layers */
    hsp_counters total, sparse;
} summary;

static double rate(int32_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? tokens / seconds : NAN;
}

static double share(double part, double all) {
    return all > 0 ? part / all : NAN;
}

static summary summarize(const run *r) {
    summary s = {0};
    hsp_footprint_bytes bytes = {.struct_size = sizeof bytes};
    int32_t dense = r->m->dense_layers; /* only where a layer is one store */
    hsp_footprint(&r->options.cache, &bytes);
    hsp_request_counters(r->cached->cache, r->cached->request, &s.total);
    s.device_bytes = bytes.device_rows + bytes.device_state;
    s.resident_bytes = (uint64_t)run_stores(r) * (uint64_t)r->max_total * (uint64_t)r->cached->row_bytes;
    s.index_bytes = r->d->state_bytes;
    s.prefill_rate = r->d->length ? rate(r->n_prompt - 1, r->prefill_seconds) : NAN; /* it was stopped */
    s.decode_rate = rate(r->d->step, r->decode_seconds);
    s.resident_rate = r->check ? rate(r->check->step, r->resident_seconds) : NAN;
    s.dense_share = share(run_swap_seconds(r, 0, dense), r->decode_seconds);
    s.sparse_share = share(run_swap_seconds(r, dense, run_stores(r)), r->decode_seconds);
    for (int32_t store = dense; store < run_stores(r); store++) {
        hsp_counters c;
        hsp_layer_counters(r->cached->cache, store, &c);
        s.sparse.hits += c.hits;
        s.sparse.misses += c.misses;
    }
    return s;
}

static double percent(uint64_t part, uint64_t all) {
    return all ? 100.0 * (double)part / (double)all : 0;
}

/* "3", of a KV head with rows of its own "3.1". */
static const char *store_name(const run *r, int32_t store, char *text_out, size_t bytes) {
    int32_t layer = store / r->m->stores;
    if (r->m->stores > 1)
        snprintf(text_out, bytes, "%d.%d", layer, store % r->m->stores);
    else
        snprintf(text_out, bytes, "%d", layer);
    return text_out;
}

static void print_difference(const run *r) {
    const run_difference *x = &r->difference;
    char name[32];
    if (r->d->step == 0) {
        printf("not verified: stopped before the first step\n");
        return;
    }
    if (!x->found) {
        printf("verified: %d steps, every one of %d logits bit-identical to all-resident\n", r->d->step, r->m->vocab);
        return;
    }
    printf("DIFFERS: step %d, logit %d: %.9g with the cache, %.9g all-resident\n", x->step, x->vocab_entry,
           (double)x->got, (double)x->want);
    if (x->layer >= 0)
        printf("         layer %s, token %d: the row on the device is not the row that was written\n",
               store_name(r, x->layer * r->m->stores + x->kv_head, name, sizeof name), x->token);
    else
        printf("         every row on the device is right: the arithmetic differs\n");
}

static void print_layers(const run *r) {
    char name[32];
    printf("\nlayer       hit %%  missed rows  hit rows  fetched bytes\n");
    for (int32_t store = 0; store < run_stores(r); store++) {
        hsp_counters c;
        hsp_layer_counters(r->cached->cache, store, &c);
        printf("%5s%s %9.2f %12llu %9llu %14llu\n", store_name(r, store, name, sizeof name),
               store / r->m->stores < r->m->dense_layers ? " d" : "  ", percent(c.hits, c.hits + c.misses),
               (unsigned long long)c.misses, (unsigned long long)c.hits, (unsigned long long)c.fetched_bytes);
    }
    if (r->m->dense_layers > 0)
        printf("d: dense, every token in chunks of %d\n", r->options.top_k);
    if (r->m->stores > 1)
        printf("layer.head: every KV head chooses on its own\n");
}

/* What only steps can tell. */
static void print_steps(const run *r, const summary *s) {
    double fetched = (double)s->total.fetched_bytes / 1e6;
    uint64_t rows = s->total.hits + s->total.misses;
    printf("%-28s %.2f tokens/s\n", "decode", s->decode_rate);
    if (r->check)
        printf("%-28s %.2f tokens/s (with the cache: %.3fx)\n", "decode, all resident", s->resident_rate,
               s->decode_rate / s->resident_rate);
    printf("%-28s %.2f%% of rows (%llu of %llu)\n", "hits", percent(s->total.hits, rows),
           (unsigned long long)s->total.hits, (unsigned long long)rows);
    printf("%-28s %.1f MB, %.2f MB a token\n", "fetched", fetched, fetched / r->d->step);
    double hits = percent(s->sparse.hits, s->sparse.hits + s->sparse.misses);
    if (isnan(s->sparse_share)) {
        printf("%-28s %.1f%% hits in selecting layers\n", "swap-in", hits);
        return;
    }
    printf("%-28s %.2f%% of a step in selecting layers (%.1f%% hits)", "swap-in", 100 * s->sparse_share, hits);
    if (r->m->dense_layers > 0)
        printf(", %.2f%% in dense ones", 100 * s->dense_share);
    printf("\n");
}

static void print_memory(const run *r, const summary *s) {
    double cached = (double)s->device_bytes, resident = (double)s->resident_bytes;
    int shorter = r->max_total <= r->options.cache.n_slots + r->options.cache.ring_rows;
    printf("%-28s %.1f MB; all resident %.1f MB: ", "KV on the device", cached / 1e6, resident / 1e6);
    if (cached <= resident)
        printf("%.2fx smaller\n", resident / cached);
    else
        printf("%.2fx larger%s\n", cached / resident, shorter ? ": the text is shorter than the slots" : "");
    static const char *const kept[] = {[MODEL_QUEST] = "page statistics (Quest)",
                                       [MODEL_NSA] = "compressed rows (NSA)",
                                       [MODEL_DSA] = "index keys (DSA)"};
    printf("%-28s %.1f MB, in both\n", kept[r->m->kind], (double)s->index_bytes / 1e6);
}

static void print_table(const run *r, const summary *s) {
    const run_options *o = &r->options;
    if (r->n_prompt < r->n_prompt_in_file)
        printf("prompt: the first %d of %lld tokens\n", r->n_prompt, (long long)r->n_prompt_in_file);
    if (r->d->step > 0)
        print_layers(r);
    printf("\n%-28s %d prompt + %d generated, top-k %d, slots %d\n", "tokens", r->n_prompt, r->n_generated, o->top_k,
           o->cache.n_slots);
    if (!isnan(s->prefill_rate))
        printf("%-28s %.1f tokens/s (%.1f s)\n", "prefill", s->prefill_rate, r->prefill_seconds);
    if (r->d->step > 0)
        print_steps(r, s);
    print_memory(r, s);
    if (r->check)
        print_difference(r);
    if (r->stopped)
        printf("stopped by Ctrl-C after %d tokens\n", r->n_generated);
}

/* A number, or null for one that was not measured. */
static json_t *measured_json(double number) {
    return isnan(number) ? json_null() : json_real(number);
}

/* null where all KV heads of a layer share their rows. */
static json_t *kv_head_json(const run *r, int32_t kv_head) {
    return r->m->stores > 1 ? json_integer(kv_head) : json_null();
}

static json_t *layers_json(const run *r) {
    json_t *layers = json_array();
    for (int32_t store = 0; store < run_stores(r); store++) {
        hsp_counters c;
        int32_t layer = store / r->m->stores;
        hsp_layer_counters(r->cached->cache, store, &c);
        json_array_append_new(layers, json_pack("{s:i, s:o, s:b, s:I, s:I, s:I}", "layer", layer, "kv_head",
                                                kv_head_json(r, store % r->m->stores), "dense",
                                                layer < r->m->dense_layers, "hits", (json_int_t)c.hits, "misses",
                                                (json_int_t)c.misses, "fetched_bytes", (json_int_t)c.fetched_bytes));
    }
    return layers;
}

static json_t *verify_json(const run *r) {
    const run_difference *x = &r->difference;
    if (!r->check)
        return json_null();
    if (r->d->step == 0)
        return json_pack("{s:n, s:i}", "identical", "steps", 0);
    if (!x->found)
        return json_pack("{s:b, s:i}", "identical", 1, "steps", r->d->step);
    return json_pack("{s:b, s:i, s:i, s:i, s:o, s:i}", "identical", 0, "step", x->step, "logit", x->vocab_entry,
                     "layer", x->layer, "kv_head", kv_head_json(r, x->kv_head), "token", x->token);
}

/* Tokens are bytes, and bytes may begin, end or break inside a character; JSON takes only whole ones, so those that are
 * none become U+FFFD. */
static json_t *text_json(const run *r) {
    char *whole = malloc(3 * r->text_bytes + 1);
    size_t n = 0;
    for (size_t at = 0, length; whole && at < r->text_bytes; at += length) {
        uint32_t code;
        length = unicode_decode(r->text + at, r->text_bytes - at, &code);
        int broken = code == UNICODE_INVALID;
        memcpy(whole + n, broken ? "\xef\xbf\xbd" : r->text + at, broken ? 3 : length);
        n += broken ? 3 : length;
    }
    json_t *text = whole ? json_stringn(whole, n) : NULL;
    free(whole);
    return text ? text : json_null();
}

static int print_json(const run *r, const summary *s) {
    const run_options *o = &r->options;
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:I, s:i, s:i, s:i, s:s, s:o, s:b}", "version", hsp_version(),
                             "model", o->model, "backend", o->cache.backend, "prompt_tokens", r->n_prompt,
                             "prompt_tokens_in_text", (json_int_t)r->n_prompt_in_file, "generated_tokens",
                             r->n_generated, "top_k", o->top_k, "slots", o->cache.n_slots, "ops_target",
                             r->device ? "cuda" : hsp_ops_target(), "text", text_json(r), "stopped", r->stopped);
    json_object_set_new(root, "prefill_tokens_per_second", measured_json(s->prefill_rate));
    json_object_set_new(root, "decode_tokens_per_second", measured_json(s->decode_rate));
    json_object_set_new(root, "resident_tokens_per_second", measured_json(s->resident_rate));
    json_object_set_new(root, "swap_in_share_selecting", measured_json(s->sparse_share));
    json_object_set_new(root, "swap_in_share_dense", measured_json(s->dense_share));
    json_object_set_new(root, "hits", json_integer((json_int_t)s->total.hits));
    json_object_set_new(root, "misses", json_integer((json_int_t)s->total.misses));
    json_object_set_new(root, "fetched_bytes", json_integer((json_int_t)s->total.fetched_bytes));
    json_object_set_new(root, "device_bytes", json_integer((json_int_t)s->device_bytes));
    json_object_set_new(root, "resident_bytes", json_integer((json_int_t)s->resident_bytes));
    json_object_set_new(root, "selector_bytes", json_integer((json_int_t)s->index_bytes));
    json_object_set_new(root, "layers", layers_json(r));
    json_object_set_new(root, "verify", verify_json(r));
    int failed = json_dumpf(root, stdout, JSON_INDENT(2)) != 0;
    printf("\n");
    json_decref(root);
    return failed ? tool_fail(TOOL_FAILED, "cannot write the JSON to standard output") : 0;
}

int run_print(const run *r) {
    summary s = summarize(r);
    int code = 0;
    if (r->options.json)
        code = print_json(r, &s);
    else
        print_table(r, &s);
    if (code != 0)
        return code;
    return r->difference.found ? TOOL_DIFFERS : r->stopped ? TOOL_STOPPED : TOOL_OK;
}
