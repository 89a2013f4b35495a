/* SPDX-License-Identifier: Apache-2.0 */
/* `hisparse info`: what this build can do, and every knob; as text, JSON, or the page docs/config.md. */
#include "hisparse.h"
#include "hisparse_ops.h"
#include "options.h"
#include "tools.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

typedef struct info_options {
    int json, markdown;
} info_options;

static const tool_option options[] = {
    {"json", TOOL_FLAG, offsetof(info_options, json), 0, 0, NULL, "as JSON"},
    {"markdown", TOOL_FLAG, offsetof(info_options, markdown), 0, 0, NULL, "the knobs as the page docs/config.md"},
    {NULL, TOOL_FLAG, 0, 0, 0, NULL, NULL},
};

/* What a backend can do beyond running, one word a bit. */
static const struct {
    uint32_t bit;
    const char *word;
} abilities[] = {{HSP_CAN_HOST_FILE, "host file"}, {HSP_CAN_GRAPH, "graph capture"}, {HSP_CAN_PARALLEL, "threads"}};
enum { N_ABILITIES = sizeof abilities / sizeof abilities[0] };

static int next_backend(int32_t *index, hsp_backend_desc *desc) {
    *desc = (hsp_backend_desc){.struct_size = sizeof *desc};
    return hsp_backend_info((*index)++, desc) == HSP_OK;
}

static int next_knob(int32_t *index, hsp_knob *knob) {
    *knob = (hsp_knob){.struct_size = sizeof *knob};
    return hsp_config_knob((*index)++, knob) == HSP_OK;
}

/* --------------------------------------------------------------------------------------------------------- text -- */

static void print_text(void) {
    hsp_backend_desc desc;
    hsp_knob knob;
    printf("hisparse %s\n\nBackends\n", hsp_version());
    for (int32_t i = 0; next_backend(&i, &desc);) {
        printf("  %-8s %s: %s", desc.name, desc.capabilities & HSP_CAN_RUN ? "runs here" : "cannot run here",
               desc.detail);
        for (int a = 0, n = 0; desc.capabilities & HSP_CAN_RUN && a < N_ABILITIES; a++)
            if (desc.capabilities & abilities[a].bit)
                printf("%s%s", n++ ? ", " : "; can do: ", abilities[a].word);
        printf("\n");
    }
    printf("\nSelectors and attention\n  kernels  %s\n\nKnobs (environment: HISPARSE_<KNOB>)\n", hsp_ops_target());
    for (int32_t i = 0; next_knob(&i, &knob);)
        printf("  %-16s %-7s %-8s %-22s %-9s %s\n", knob.key, knob.type, *knob.default_value ? knob.default_value : "-",
               knob.bounds, *knob.unit ? knob.unit : "-", knob.help);
}

/* --------------------------------------------------------------------------------------------------------- JSON -- */

static json_t *backend_json(const hsp_backend_desc *desc) {
    json_t *can = json_array();
    for (int a = 0; a < N_ABILITIES; a++)
        if (desc->capabilities & abilities[a].bit)
            json_array_append_new(can, json_string(abilities[a].word));
    return json_pack("{s:s, s:b, s:s, s:o}", "name", desc->name, "runs", (desc->capabilities & HSP_CAN_RUN) != 0,
                     "detail", desc->detail, "can", can);
}

static void print_json(void) {
    hsp_backend_desc desc;
    hsp_knob knob;
    json_t *backends = json_array(), *knobs = json_array();
    for (int32_t i = 0; next_backend(&i, &desc);)
        json_array_append_new(backends, backend_json(&desc));
    for (int32_t i = 0; next_knob(&i, &knob);)
        json_array_append_new(knobs, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "key", knob.key, "type", knob.type,
                                               "default", knob.default_value, "bounds", knob.bounds, "unit", knob.unit,
                                               "help", knob.help));
    json_t *all = json_pack("{s:s, s:o, s:s, s:o}", "version", hsp_version(), "backends", backends, "ops_target",
                            hsp_ops_target(), "knobs", knobs);
    json_dumpf(all, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(all);
}

/* ----------------------------------------------------------------------------------------------------- markdown -- */

/* Options of `hisparse run` that set a knob. */
static const struct {
    const char *key, *option;
} run_options[] = {{"n_slots", "--slots"},     {"max_k", "--top-k"},     {"max_context", "--context"},
                   {"policy", "--policy"},     {"backend", "--backend"}, {"host_file", "--host-file"},
                   {"n_threads", "--threads"}, {"seed", "--seed"}};

static const char *run_option(const char *key) {
    for (size_t i = 0; i < sizeof run_options / sizeof run_options[0]; i++)
        if (strcmp(run_options[i].key, key) == 0)
            return run_options[i].option;
    return "";
}

/* A table cell: a bar inside it would end it. */
static void print_cell(const char *text, const char *quote) {
    if (!*text)
        quote = "";
    printf(" %s", quote);
    for (; *text; text++)
        printf(*text == '|' ? "\\|" : "%c", *text);
    printf("%s |", quote);
}

static void print_markdown(void) {
    hsp_knob knob;
    printf("# Configuration\n\n"
           "<!-- Written by `hisparse info --markdown`; edit src/config_table.h instead. -->\n\n"
           "Every scalar of `hsp_config` is a knob with a name, a default and bounds. A value out of bounds, a value "
           "that\n"
           "does not parse and a name that is no knob are errors, never silently replaced.\n\n"
           "| Knob | Type | Default | Bounds | Unit | Meaning | `hisparse run` |\n|---|---|---|---|---|---|---|\n");
    for (int32_t i = 0; next_knob(&i, &knob);) {
        printf("|");
        print_cell(knob.key, "`");
        print_cell(knob.type, "");
        print_cell(knob.default_value, "`");
        print_cell(knob.bounds, "");
        print_cell(knob.unit, "");
        print_cell(knob.help, "");
        print_cell(run_option(knob.key), "`");
        printf("\n");
    }
    printf(
        "\n## Setting a knob\n\n"
        "- In C: `hsp_config_set(&config, \"n_slots\", \"4096\")`, or the field of the same name. `planes` sets "
        "`n_planes` and\n"
        "  `plane_bytes`; `no_io` and `prefetch` set the bits `HSP_NO_IO` and `HSP_PREFETCH` of `flags`; "
        "`layer_group` is an array\n  and not a knob.\n"
        "- In the environment, for `hisparse run` and programs that call `hsp_config_env`: `HISPARSE_N_SLOTS=4096`. A\n"
        "  variable `HISPARSE_...` that names no knob is an error.\n"
        "- On the command line: the options of `hisparse run` in the last column. They win over the environment.\n");
}

int cmd_info(int argc, char **argv) {
    info_options o = {0, 0};
    tool_options(options, "What this build is and can do, and every knob.", argc, argv, &o);
    if (o.json && o.markdown)
        return tool_fail(TOOL_BAD_INPUT, "info: --json or --markdown, not both");
    if (o.json)
        print_json();
    else if (o.markdown)
        print_markdown();
    else
        print_text();
    return TOOL_OK;
}
