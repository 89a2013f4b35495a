/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_print.h"

#include <math.h>

static const emit_column columns[] = {
    {"kept", "", EMIT_WORD},
    {"slots", "", 0},
    {"requests", "", 0},
    {"request limit", "", EMIT_WORD},
    {"device", "MB", 1},
    {"host", "MB", 1},
    {"misses", "%", 1},
    {"link", "MB", 2},
    {"link", "%", 0},
    {"token", "ms", 2},
    {"rate", "tokens/s", 0},
    {"step limit", "", EMIT_WORD},
    /* not in the text form */
    {"even", "tokens", 0},
    {"even", "requests", 0},
    {"weight", "bytes", 0},
    {"free", "bytes", 0},
    {"block", "bytes", 0},
    {"index block", "bytes", 0},
    {"host block", "bytes", 0},
    {"fixed", "bytes", 0},
    {"device", "bytes", 0},
    {"host", "bytes", 0},
    {"fit device", "requests", 0},
    {"fit host", "requests", 0},
    {"full miss", "bytes", 0},
    {"memory", "ms", 3},
    {"compute", "ms", 3},
    {"launches", "ms", 3},
    {"link", "ms", 3},
    {"exposed", "ms", 3},
};
enum { N_TEXT = 12, N_COLUMNS = sizeof columns / sizeof columns[0] };

emit_table plan_table(enum emit_form form, const char *command, const char *verdict) {
    return (emit_table){.what = "plan",
                        .command = command,
                        .note = verdict,
                        .column = columns,
                        .n_columns = form == EMIT_TEXT ? N_TEXT : N_COLUMNS};
}

int plan_table_add(emit_table *table, const plan_answer *a) {
    double unlimited = isinf(a->fit_host) ? NAN : a->fit_host;
    const emit_cell cells[N_COLUMNS] = {
        {.word = a->slots ? "slots" : "all"},
        {.number = a->slots ? a->slots : NAN},
        {.number = a->requests},
        {.word = a->fit_limit},
        {.number = a->device_bytes / 1e6},
        {.number = a->host_bytes / 1e6},
        {.number = a->miss_percent},
        {.number = a->link_bytes / 1e6},
        {.number = 100 * a->link_ms / a->token_ms},
        {.number = a->token_ms},
        {.number = a->tokens_s},
        {.word = a->step_limit},
        {.number = a->even_tokens},
        {.number = a->even_requests},
        {.number = a->weight_bytes},
        {.number = a->free_bytes},
        {.number = a->block_bytes},
        {.number = a->index_bytes},
        {.number = a->host_block_bytes},
        {.number = a->fixed_bytes},
        {.number = a->device_bytes},
        {.number = a->host_bytes},
        {.number = a->fit_device},
        {.number = unlimited},
        {.number = a->full_bytes},
        {.number = a->memory_ms},
        {.number = a->compute_ms},
        {.number = a->fixed_ms},
        {.number = a->link_ms},
        {.number = a->exposed_ms},
    };
    return emit_row(table, cells);
}

static void print_even(const char *what, double value, const char *unit) {
    if (isnan(value))
        printf("  %-24s never\n", what);
    else
        printf("  %-24s %.0f %s\n", what, value, unit);
}

void plan_print_pools(const plan_question *q, const plan_answer *resident, const plan_answer *sparse) {
    int tokens = PLAN_BLOCK * q->model.entry_tokens;
    printf("\nBytes on a GPU (%d GPUs, tp %d, rows %s)\n", q->gpus, q->tp, plan_format_name[q->format]);
    printf("  %-24s %.0f\n", "weights", resident->weight_bytes);
    printf("  %-24s %.0f\n", "free for KV", resident->free_bytes);
    printf("  %-24s %.0f per %d tokens\n", "everything resident", resident->block_bytes, tokens);
    printf("  %-24s %.0f per %d tokens (%.0f of them selector state), and %.0f a request\n", "with slots",
           sparse->block_bytes, tokens, sparse->index_bytes, sparse->fixed_bytes);
    printf("  %-24s %.0f per %d tokens\n", "host memory", sparse->host_block_bytes, tokens);
    printf("  %-24s %.0f a request and step, were every row missed\n", "link", sparse->full_bytes);
    printf("\nWith %d slots better than everything resident\n", sparse->slots);
    print_even("context from", sparse->even_tokens, "tokens");
    print_even("requests from", sparse->even_requests, "at once");
}

void plan_print_assumptions(const plan_question *q) {
    const plan_machine *m = &q->machine;
    double host = q->host_bytes > 0 ? q->host_bytes / q->gpus : m->host_bytes;
    printf(
        "\nAssumed (docs/planning.md)\n"
        "  %s: %.0f GB, %.0f GB/s, %.0f TFLOP/s bf16, %.0f fp8; %.2f of the memory is used, %.2f GiB of it kept back\n"
        "  link: %.1f rows/us, at most %.1f GB/s, from %s; %.0f GB of host memory a GPU, every GPU its own copy of "
        "rows\n"
        "  weights: %s\n"
        "  pools: %s\n",
        m->id, m->memory_bytes / 1e9, m->memory_gb_s, m->bf16_tflops, m->fp8_tflops, q->utilization,
        q->reserve_bytes / (1 << 30), m->link_rows_us, m->link_gb_s, m->link_source, host / 1e9,
        q->weight_bits > 0          ? "bits as asked for"
        : q->model.shared_bytes > 0 ? "published bytes"
                                    : "8 bits a parameter",
        q->slabs ? "libhisparse's own, as hsp_footprint counts them" : "one of equal blocks, as vLLM has");
    printf("  rows of a group %s; %s\n", q->apart ? "apart, one read a layer" : "side by side, one read a group",
           q->miss >= 0 ? "misses as asked for" : "misses as measured on one trace of GLM-5.1");
    printf(
        "  a layer takes %.2f ms beside its bytes, %.2f ms more on several GPUs; arithmetic reaches %.1f of its peak\n"
        "  tokens take experts at random; %s\n",
        PLAN_LAYER_MS, PLAN_EXCHANGE_MS, PLAN_EFFICIENCY,
        q->output > 0 ? "prompts are computed on the same GPUs" : "prompts cost nothing here");
}
