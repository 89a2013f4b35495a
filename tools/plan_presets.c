/* SPDX-License-Identifier: Apache-2.0 */
/* Models and machines of presets/, whose every figure stands there with its source. */
#include "plan_shape.h"
#include "tools.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_BYTES = 4 << 20, MOST_ROW = 1 << 20, PATH_BYTES = 4096 };

json_t *plan_load(const char *path) {
    struct stat status;
    json_error_t error;
    if (stat(path, &status) != 0)
        return tool_fail(TOOL_BAD_INPUT, "'%s': %s", path, strerror(errno)), NULL;
    if (!S_ISREG(status.st_mode) || status.st_size > MOST_BYTES)
        return tool_fail(TOOL_BAD_INPUT, "'%s' is no regular file of at most %d MiB", path, MOST_BYTES >> 20), NULL;
    json_t *all = json_load_file(path, 0, &error);
    if (!all)
        return tool_fail(TOOL_BAD_INPUT, "'%s', line %d: %s", path, error.line, error.text), NULL;
    if (json_is_object(all))
        return all;
    json_decref(all);
    return tool_fail(TOOL_BAD_INPUT, "'%s' holds no JSON object", path), NULL;
}

/* The folder that came with the program, seen from where the program lies: the tree may be installed anywhere. */
static json_t *load_preset(const char *folder, const char *file) {
    char program[PATH_BYTES], path[2 * PATH_BYTES];
    if (folder) {
        snprintf(path, sizeof path, "%s/%s", folder, file);
        return plan_load(path);
    }
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = 0;
    snprintf(path, sizeof path, "%s/" HISPARSE_DATA "/%s", program, file);
    return plan_load(path);
}

static const char *id_of(const json_t *entry) {
    const char *id = json_string_value(json_object_get(entry, "id"));
    return id ? id : "";
}

/* Of the entries of a list: the one of that name, or else the first whose name goes on with a '-'. */
static const json_t *find(const json_t *list, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(id_of(json_array_get(list, i)), word) == 0)
            return json_array_get(list, i);
    for (size_t i = 0; i < json_array_size(list) && n > 0; i++)
        if (strncmp(id_of(json_array_get(list, i)), word, n) == 0 && id_of(json_array_get(list, i))[n] == '-')
            return json_array_get(list, i);
    return NULL;
}

static int unknown(const char *kind, const char *word, const json_t *list) {
    char all[1024] = "";
    for (size_t i = 0, used = 0; i < json_array_size(list) && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", id_of(json_array_get(list, i)));
    return tool_fail(TOOL_BAD_INPUT, "there is no %s '%s'; there are %s", kind, word, all);
}

/* ------------------------------------------------------------------------------------------------------- models -- */

static double first_number(const json_t *object, const char *const *paths, int n) {
    double value = 0;
    for (int i = 0; i < n && value <= 0; i++)
        value = plan_number(object, paths[i], 0);
    return value;
}

static void set_rows(const json_t *entry, plan_model *m) {
    static const char *const fp8[] = {"kv.row_bytes_per_layer_fp8_per_tensor", "kv.row_bytes_per_layer_fp8_plain",
                                      "kv.row_bytes_per_layer_fp8_block_scaled"};
    m->row_bytes[PLAN_BF16] = plan_number(entry, "kv.row_bytes_per_layer_bf16", 0);
    m->row_bytes[PLAN_FP8] = first_number(entry, fp8, 3);
    m->row_bytes[PLAN_FP8_BLOCK] = plan_number(entry, fp8[2], 0);
    m->index_bytes = plan_number(entry, "kv.indexer_bytes_per_entry_fp8", 0);
}

/* Published bytes, in one number or in two. Checkpoints in BF16 are not what runs. */
static void set_weights(const json_t *entry, plan_model *m) {
    static const char *const totals[] = {"derived.parameters_from_config", "derived.parameters_from_config_text_part",
                                         "parameters.total_published"};
    const char *format =
        json_string_value(json_object_get(json_object_get(entry, "weights"), "checkpoint_bytes_format"));
    double all = plan_number(entry, "weights.checkpoint_bytes", 0);
    m->parameters = first_number(entry, totals, 3);
    m->shared_bytes = plan_number(entry, "weights.shared_weight_bytes", 0);
    m->routed_bytes = plan_number(entry, "weights.routed_expert_weight_bytes", 0);
    if (m->shared_bytes <= 0 && format && strncmp(format, "FP", 2) == 0) {
        m->routed_bytes = all * m->routed_parameters / m->parameters;
        m->shared_bytes = all - m->routed_bytes;
    }
}

/* DeepSeek-V4: entries of 4 tokens are paged; those of 128 tokens and each layer's window stay on the GPU. */
static int set_compression(const json_t *entry, plan_model *m) {
    double window = plan_number(entry, "attention.sliding_window_tokens", 0);
    int compressed = json_is_true(json_object_get(json_object_get(entry, "compression"), "present"));
    m->entry_tokens = compressed ? 4 : 1;
    if (compressed) {
        m->resident_rows = plan_number(entry, "compression.layers_ratio_128", 0) / 128;
        m->window_rows = window * plan_number(entry, "architecture.layers", 0);
    } else if (window > 0)
        return tool_fail(TOOL_BAD_INPUT, "model '%s' has layers with a window only; plan does not know such", m->id);
    return TOOL_OK;
}

static int set_model(const json_t *entry, plan_model *m) {
    plan_shape s;
    *m = (plan_model){0};
    snprintf(m->id, sizeof m->id, "%s", id_of(entry));
    int code = plan_shape_read(entry, 0, m->id, &s);
    if (code == TOOL_OK)
        code = plan_shape_check(m->id, &s);
    if (code == TOOL_OK)
        code = set_compression(entry, m);
    if (code != TOOL_OK)
        return code;
    set_rows(entry, m);
    plan_shape_finish(&s, m);
    set_weights(entry, m);
    if (m->entry_tokens == 1)
        m->resident_rows = m->layers - m->paged_layers;
    for (int f = 0; f < PLAN_FORMATS; f++)
        if (m->row_bytes[f] > MOST_ROW)
            return tool_fail(TOOL_BAD_INPUT, "model '%s': a row of %.0f bytes; at most %d", m->id, m->row_bytes[f],
                             MOST_ROW);
    if (m->row_bytes[PLAN_BF16] > 0 && m->index_bytes > 0 && m->parameters > 0)
        return TOOL_OK;
    return tool_fail(TOOL_BAD_INPUT, "model '%s' lacks row bytes, index bytes or parameters", m->id);
}

int plan_read_model(const char *folder, const char *word, plan_model *model_out) {
    size_t n = strlen(word);
    if (n > 5 && strcmp(word + n - 5, ".json") == 0)
        return plan_read_config(word, model_out);
    json_t *all = load_preset(folder, "models.json");
    if (!all)
        return TOOL_BAD_INPUT;
    const json_t *list = json_object_get(all, "models"), *entry = find(list, word);
    int code = entry ? set_model(entry, model_out) : unknown("model", word, list);
    json_decref(all);
    return code;
}

/* ----------------------------------------------------------------------------------------------------- machines -- */

static int is_pcie(const json_t *entry) {
    const char *type = json_string_value(json_object_get(json_object_get(entry, "host_link"), "type"));
    return type && strcmp(type, "PCIe") == 0;
}

/* Whose gather of rows stands in where none was published: the same link, and on PCIe the same limit. */
static const char *link_model(const json_t *entry) {
    return is_pcie(entry) ? "h200-sxm-141gb" : "gh200-96gb";
}

/* The link of a superchip is one for all its GPUs. */
static double gpus_of_link(const json_t *entry) {
    return is_pcie(entry) ? 1
                          : plan_number(entry, "host_memory.gpus_per_node", 1) /
                                plan_number(entry, "host_memory.cpu_sockets_per_node", 1);
}

static void set_link(const json_t *list, const json_t *entry, plan_machine *m) {
    static const char *const gathers[] = {"host_link.measured_kernel_gather_h2d_gb_s",
                                          "host_link.derived_kernel_gather_h2d_gb_s"};
    const char bulk[] = "host_link.measured_kernel_bulk_h2d_gb_s";
    double gather = first_number(entry, gathers, 2), most = plan_number(entry, bulk, 0);
    snprintf(m->link_source, sizeof m->link_source, "its preset");
    if (gather <= 0) {
        const json_t *other = find(list, link_model(entry));
        double share = gpus_of_link(entry);
        gather = first_number(other, gathers, 2) / share;
        most = most > 0 ? most : plan_number(other, bulk, 0) / share;
        snprintf(m->link_source, sizeof m->link_source, "%s's%s, for want of its own", id_of(other),
                 share > 1 ? ", shared by the GPUs of a CPU" : "");
    }
    m->link_rows_us = gather * 1e3 / 1152; /* figures of gathers are for rows of 1152 bytes: presets/NOTES.md */
    m->link_gb_s = fmax(most, gather);
}

static int set_machine(const json_t *list, const json_t *entry, plan_machine *m) {
    double gpus = plan_number(entry, "gpus", 1);
    const json_t *arithmetic =
        plan_number(entry, "compute.bf16_dense_tflops", 0) > 0 ? entry : find(list, "h100-sxm-80gb");
    *m = (plan_machine){.memory_bytes = plan_number(entry, "gpu_memory.capacity_bytes_nominal", 0) / gpus,
                        .memory_gb_s = plan_number(entry, "gpu_memory.bandwidth_gb_s", 0) / gpus,
                        .bf16_tflops = plan_number(arithmetic, "compute.bf16_dense_tflops", 0),
                        .fp8_tflops = plan_number(arithmetic, "compute.fp8_dense_tflops", 0),
                        .host_bytes = plan_number(entry, "host_memory.typical_bytes_per_gpu", 0)};
    snprintf(m->id, sizeof m->id, "%s", id_of(entry));
    if (arithmetic == entry) {
        m->bf16_tflops /= gpus;
        m->fp8_tflops /= gpus;
    }
    set_link(list, entry, m);
    if (m->memory_bytes > 0 && m->memory_gb_s > 0 && m->bf16_tflops > 0 && m->fp8_tflops > 0 && m->link_rows_us > 0 &&
        m->link_gb_s > 0)
        return TOOL_OK;
    return tool_fail(TOOL_BAD_INPUT,
                     "machine '%s': capacity, bandwidth, TFLOP/s or a gather over its link is not known", m->id);
}

int plan_read_machine(const char *folder, const char *word, plan_machine *machine_out) {
    json_t *all = load_preset(folder, "machines.json");
    if (!all)
        return TOOL_BAD_INPUT;
    const json_t *list = json_object_get(all, "machines"), *entry = find(list, word);
    int code = entry ? set_machine(list, entry, machine_out) : unknown("machine", word, list);
    json_decref(all);
    return code;
}

/* The longest span of `reach`, L2 swept, is nearest to a decode step: docs/calibrate.md. */
int plan_read_profile(const char *path, plan_machine *machine) {
    json_t *all = plan_load(path);
    const json_t *rows = json_object_get(json_object_get(all, "measured"), "rows");
    double span = 0, rate = 0, bytes = 0, most = plan_number(all, "measured.kernel_to_device_gb_s", 0);
    if (!all)
        return TOOL_BAD_INPUT;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *what = json_string_value(json_object_get(row, "what"));
        if (!what || strcmp(what, "reach") != 0 || plan_number(row, "span_mib", 0) < span)
            continue;
        span = plan_number(row, "span_mib", 0);
        rate = plan_number(row, "swept_gb_s", 0);
        bytes = plan_number(row, "row_bytes", 0);
    }
    json_decref(all);
    if (!(rate > 0 && bytes > 0 && most > 0))
        return tool_fail(TOOL_BAD_INPUT,
                         "'%s': measured.kernel_to_device_gb_s and rows of 'reach' are not there; is it a profile of "
                         "hisparse calibrate?",
                         path);
    machine->link_rows_us = rate * 1e3 / bytes;
    machine->link_gb_s = most;
    snprintf(machine->link_source, sizeof machine->link_source, "the profile");
    return TOOL_OK;
}
