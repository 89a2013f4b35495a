/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse plan`: from a model and a machine to requests, tokens a second, slots, and whether the cache is worth it.
 */
#include "hisparse.h"
#include "options.h"
#include "plan_print.h"
#include "tools.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan_options {
    const char *model, *machine, *context, *kv_format, *pools, *presets, *profile;
    int64_t gpus, tp, slots, requests, output;
    double host_gb, weight_bits, utilization, reserve_gib, miss_rate;
    int apart, explain, json, csv;
} plan_options;

#define OPTION(name, kind, field, least, most, argument, help)                                                         \
    { name, kind, offsetof(plan_options, field), least, most, argument, help }
static const tool_option options[] = {
    OPTION("model", TOOL_TEXT, model, 0, 0, "NAME", "a model of the presets, or a file config.json (required)"),
    OPTION("machine", TOOL_TEXT, machine, 0, 0, "NAME", "a machine of the presets, as in h200 (required)"),
    OPTION("profile", TOOL_TEXT, profile, 0, 0, "FILE", "the machine's link as hisparse calibrate measured it"),
    OPTION("gpus", TOOL_INT, gpus, 1, 4096, "N", "GPUs (8)"),
    OPTION("tp", TOOL_INT, tp, 1, 4096, "N", "GPUs that share a request; divides --gpus (all of them)"),
    OPTION("kv-format", TOOL_TEXT, kv_format, 0, 0, "NAME",
           "of rows: bf16, fp8 (one scale a tensor), fp8-block (scales and bf16 rope in the row) (fp8)"),
    OPTION("context", TOOL_TEXT, context, 0, 0, "TOKENS[:SHARE],...",
           "tokens of a request in the end, or a mix, as in 32768:0.5,131072:0.5 (131072)"),
    OPTION("output", TOOL_INT, output, 0, 1 << 22, "TOKENS",
           "of --context are generated, the rest is a prompt that the same GPUs compute (0: decoding alone)"),
    OPTION("requests", TOOL_INT, requests, 0, 1 << 20, "N", "requests at once, at most (0: as many as fit)"),
    OPTION("slots", TOOL_INT, slots, 0, 65535, "ROWS",
           "rows per request and layer on the GPU (0: a few numbers are tried)"),
    OPTION("miss-rate", TOOL_REAL, miss_rate, 0, 100, "PERCENT", "of a selection (by slots, as measured on one trace)"),
    OPTION("host-gb", TOOL_REAL, host_gb, 0, 1e9, "GB",
           "host memory for rows, of all GPUs, 10^9 bytes (the machine's)"),
    OPTION("weight-bits", TOOL_REAL, weight_bits, 0, 32, "N", "bits of a weight (0: published bytes, or 8 bits)"),
    OPTION("utilization", TOOL_REAL, utilization, 0.01, 1, "PART", "of a GPU's memory that the engine uses (0.92)"),
    OPTION("reserve-gib", TOOL_REAL, reserve_gib, 0, 1e6, "GIB", "of that, kept back for the run-time (15)"),
    OPTION("pools", TOOL_TEXT, pools, 0, 0, "KIND",
           "blocks: one pool of equal blocks, as vLLM's; slabs: as libhisparse takes them (blocks)"),
    OPTION("layer-by-layer", TOOL_FLAG, apart, 0, 0, NULL, "every layer of a group fetches its own rows, when needed"),
    OPTION("presets", TOOL_TEXT, presets, 0, 0, "FOLDER", "models.json and machines.json of this folder"),
    OPTION("explain", TOOL_FLAG, explain, 0, 0, NULL, "print what is assumed, too"),
    OPTION("json", TOOL_FLAG, json, 0, 0, NULL, "as JSON"),
    OPTION("csv", TOOL_FLAG, csv, 0, 0, NULL, "as CSV"),
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

/* ------------------------------------------------------------------------------------------------------- asking -- */

/* One of TOKENS[:SHARE],...; the text goes on after it. */
static int read_context(const char **text, plan_question *q) {
    char *end;
    double tokens = strtod(*text, &end), share = 1;
    int bad = end == *text || !(tokens >= 1 && tokens <= 1 << 22) || tokens != floor(tokens);
    if (!bad && *end == ':') {
        const char *start = end + 1;
        share = strtod(start, &end);
        bad = end == start || !(share > 0 && share <= 1e9);
    }
    if (bad || (*end && *end != ',') || q->n_contexts == PLAN_CONTEXTS)
        return tool_fail(TOOL_BAD_INPUT,
                         "plan: --context goes wrong at '%s': TOKENS[:SHARE],..., 1..%d tokens, at most %d", *text,
                         1 << 22, PLAN_CONTEXTS);
    q->context[q->n_contexts] = tokens;
    q->share[q->n_contexts++] = share;
    *text = end + (*end == ',');
    if (*end == ',' && !**text)
        return tool_fail(TOOL_BAD_INPUT, "plan: --context ends with a comma");
    return TOOL_OK;
}

static int read_contexts(const char *text, plan_question *q) {
    double sum = 0;
    do {
        if (read_context(&text, q) != TOOL_OK)
            return TOOL_BAD_INPUT;
        sum += q->share[q->n_contexts - 1];
    } while (*text);
    for (int i = 0; i < q->n_contexts; i++) {
        q->share[i] /= sum;
        if (q->output >= q->context[i])
            return tool_fail(TOOL_BAD_INPUT,
                             "plan: --output is %.0f; of a context of %.0f tokens it must leave a prompt", q->output,
                             q->context[i]);
    }
    return TOOL_OK;
}

static int read_format(const char *word, plan_question *q) {
    char has[64] = "";
    for (int f = 0; f < PLAN_FORMATS; f++) {
        if (q->model.row_bytes[f] <= 0)
            continue;
        snprintf(has + strlen(has), sizeof has - strlen(has), "%s%s", *has ? ", " : "", plan_format_name[f]);
        if (strcmp(word, plan_format_name[f]) != 0)
            continue;
        q->format = (enum plan_format)f;
        return TOOL_OK;
    }
    return tool_fail(TOOL_BAD_INPUT, "plan: --kv-format is '%s'; rows of %s may be %s", word, q->model.id, has);
}

static int read_files(const plan_options *o, plan_question *q) {
    int code = plan_read_model(o->presets, o->model, &q->model);
    if (code == TOOL_OK)
        code = plan_read_machine(o->presets, o->machine, &q->machine);
    return code == TOOL_OK && o->profile ? plan_read_profile(o->profile, &q->machine) : code;
}

static int check_options(const plan_options *o) {
    if (!o->model || !o->machine)
        return tool_fail(TOOL_BAD_INPUT, "plan: --model and --machine are needed");
    if (o->json && o->csv)
        return tool_fail(TOOL_BAD_INPUT, "plan: --json or --csv, not both");
    if (o->tp && o->gpus % o->tp)
        return tool_fail(TOOL_BAD_INPUT, "plan: --tp is %d; it must divide --gpus, %d", (int)o->tp, (int)o->gpus);
    if (strcmp(o->pools, "blocks") != 0 && strcmp(o->pools, "slabs") != 0)
        return tool_fail(TOOL_BAD_INPUT, "plan: --pools is '%s'; it may be blocks or slabs", o->pools);
    return TOOL_OK;
}

static int ask(const plan_options *o, plan_question *q) {
    *q = (plan_question){.gpus = (int)o->gpus,
                         .tp = (int)(o->tp ? o->tp : o->gpus),
                         .weight_bits = o->weight_bits,
                         .utilization = o->utilization,
                         .reserve_bytes = o->reserve_gib * (1 << 30),
                         .host_bytes = o->host_gb * 1e9,
                         .output = (double)o->output,
                         .requests = (double)o->requests,
                         .miss = o->miss_rate / 100,
                         .slabs = strcmp(o->pools, "slabs") == 0,
                         .apart = o->apart};
    int code = read_files(o, q);
    if (code == TOOL_OK)
        code = read_format(o->kv_format, q);
    if (code == TOOL_OK)
        code = read_contexts(o->context, q);
    if (code == TOOL_OK && o->slots && o->slots < q->model.k)
        return tool_fail(TOOL_BAD_INPUT, "plan: --slots is %d; %s selects %d rows at once", (int)o->slots, q->model.id,
                         q->model.k);
    if (code == TOOL_OK && q->host_bytes <= 0 && q->machine.host_bytes <= 0)
        return tool_fail(TOOL_BAD_INPUT, "plan: the host memory of %s is not known; give --host-gb", q->machine.id);
    return code;
}

static int check_room(const plan_question *q) {
    plan_answer a;
    plan_capacity(q, 0, &a);
    if (a.free_bytes > 0)
        return TOOL_OK;
    return tool_fail(TOOL_BAD_INPUT,
                     "plan: no room for KV: of %.2f GB, weights take %.2f and the run-time %.2f; more --gpus, or fewer "
                     "--weight-bits",
                     q->machine.memory_bytes * q->utilization / 1e9, a.weight_bytes / 1e9, q->reserve_bytes / 1e9);
}

/* --------------------------------------------------------------------------------------------------- answering -- */

static int add_rows(emit_table *table, const plan_question *q, int slots) {
    plan_answer a;
    plan_answer_for(q, 0, &a);
    int failed = plan_table_add(table, &a);
    int first = slots ? slots : q->model.k, last = slots ? slots : plan_most_slots(q);
    for (int n = first; n <= last && !failed; n *= 2) {
        plan_answer_for(q, n, &a);
        failed = plan_table_add(table, &a);
    }
    return failed ? tool_fail(TOOL_FAILED, "out of memory") : TOOL_OK;
}

static int answer(const plan_options *o, const plan_question *q, const char *command) {
    enum emit_form form = o->json ? EMIT_JSON : o->csv ? EMIT_CSV : EMIT_TEXT;
    char verdict[512], slots[64] = "";
    plan_answer resident, sparse;
    int chosen = plan_choose_slots(q);
    plan_answer_for(q, 0, &resident);
    plan_answer_for(q, o->slots ? (int)o->slots : chosen, &sparse);
    if (isnan(sparse.device_bytes))
        return tool_fail(TOOL_BAD_INPUT, "plan: %s", hsp_last_error(NULL));
    if (plan_verdict(q, &resident, &sparse, verdict, sizeof verdict))
        snprintf(slots, sizeof slots, " Slots to choose: %d.", chosen);
    strncat(verdict, slots, sizeof verdict - strlen(verdict) - 1);
    emit_table table = plan_table(form, command, verdict);
    int code = add_rows(&table, q, (int)o->slots);
    if (code == TOOL_OK)
        emit_print(&table, form, stdout);
    emit_free(&table);
    if (code == TOOL_OK && form == EMIT_TEXT)
        plan_print_pools(q, &resident, &sparse);
    if (code == TOOL_OK && form == EMIT_TEXT && o->explain)
        plan_print_assumptions(q);
    return code;
}

int cmd_plan(int argc, char **argv) {
    plan_options o = {.context = "131072",
                      .kv_format = "fp8",
                      .pools = "blocks",
                      .gpus = 8,
                      .utilization = 0.92,
                      .reserve_gib = 15,
                      .miss_rate = -1};
    plan_question q;
    char command[1024];
    tool_command_text(argc, argv, command, sizeof command);
    tool_options(
        options,
        "Requests of a model that fit a machine with everything on the GPUs and with slots, bytes of every pool, "
        "load of the link, tokens a second; how many slots to take, and whether the cache is worth it.",
        argc, argv, &o);
    int code = check_options(&o);
    if (code == TOOL_OK)
        code = ask(&o, &q);
    if (code == TOOL_OK)
        code = check_room(&q);
    return code == TOOL_OK ? answer(&o, &q, command) : code;
}
