/* SPDX-License-Identifier: Apache-2.0 */
/* --metrics-file: a JSON line a step, or what Prometheus reads where its name ends in .prom. */
#include "emit.h"
#include "run.h"
#include "tools.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int is_prometheus(const char *path) {
    size_t n = strlen(path);
    return n >= 5 && strcmp(path + n - 5, ".prom") == 0;
}

/* All counters, to be freed; NULL after the message. */
static char *counters_text(hsp_cache *cache) {
    size_t bytes;
    if (hsp_stats_text(cache, NULL, 0, &bytes) != HSP_OK) {
        tool_fail(TOOL_FAILED, "--metrics-file: %s", hsp_last_error(cache));
        return NULL;
    }
    char *text = malloc(2 * bytes); /* numbers grow */
    if (text && hsp_stats_text(cache, text, 2 * bytes, &bytes) == HSP_OK)
        return text;
    tool_fail(TOOL_FAILED, "--metrics-file: %s", text ? hsp_last_error(cache) : "not enough memory for the text");
    free(text);
    return NULL;
}

/* The file as a whole: whoever scrapes it never sees a part. */
static int write_prometheus(const run *r) {
    emit_file file;
    char *text = counters_text(r->cached->cache);
    int code = text ? emit_open(&file, r->options.metrics_file) : TOOL_FAILED;
    if (code == TOOL_OK) {
        fputs(text, file.stream);
        code = emit_commit(&file);
    }
    free(text);
    return code;
}

/* Outputs are opened before the long work, so that a wrong path does not cost it. */
int run_open_metrics(run *r) {
    const char *path = r->options.metrics_file;
    if (!path)
        return 0;
    if (is_prometheus(path))
        return write_prometheus(r);
    r->metrics = fopen(path, "w");
    return r->metrics ? 0 : tool_fail(TOOL_BAD_INPUT, "--metrics-file '%s': %s", path, strerror(errno));
}

static int write_line(run *r, int32_t token, double seconds, double select_seconds, hsp_counters *before) {
    hsp_counters c;
    char swap_in[32] = "null";
    if (!isnan(select_seconds))
        snprintf(swap_in, sizeof swap_in, "%.9f", select_seconds);
    hsp_request_counters(r->cached->cache, r->cached->request, &c);
    fprintf(
        r->metrics,
        "{\"step\": %d, \"token\": %d, \"seconds\": %.9f, \"swap_in_seconds\": %s, \"hits\": %llu, \"misses\": %llu, "
        "\"fetched_bytes\": %llu}\n",
        r->n_generated, token, seconds, swap_in, (unsigned long long)(c.hits - before->hits),
        (unsigned long long)(c.misses - before->misses), (unsigned long long)(c.fetched_bytes - before->fetched_bytes));
    *before = c;
    return fflush(r->metrics) == 0
               ? 0
               : tool_fail(TOOL_FAILED, "--metrics-file '%s': %s", r->options.metrics_file, strerror(errno));
}

int run_write_metrics(run *r, int32_t token, double seconds, double select_seconds, hsp_counters *before) {
    if (r->metrics)
        return write_line(r, token, seconds, select_seconds, before);
    return r->options.metrics_file ? write_prometheus(r) : 0;
}
