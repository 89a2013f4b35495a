/* SPDX-License-Identifier: Apache-2.0 */
/* The profile as JSON: what hsp_config_profile reads ("format", "choose"), and for people everything that led there. */
#include "calibrate.h"
#include "tools.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <time.h>

#ifndef HISPARSE_COMMIT
#define HISPARSE_COMMIT "unknown"
#endif

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* ------------------------------------------------------------------------------------------------------ machine -- */

/* First line of a file of the system, "" where there is none. */
static void read_line(const char *path, char *text, size_t bytes) {
    FILE *file = fopen(path, "re");
    text[0] = 0;
    if (file && !fgets(text, (int)bytes, file))
        text[0] = 0;
    if (file)
        fclose(file);
    text[strcspn(text, "\n")] = 0;
}

static void set_text(json_t *object, const char *key, const char *text) {
    if (*text) /* what the system does not say is left out */
        json_object_set_new(object, key, json_string(text));
}

static json_t *machine_json(const calibrate *c) {
    gpu_machine machine = {0};
    char text[256] = "", path[128], width[64];
    json_t *object = json_object();
    if (c->memory->device_name(text, sizeof text) == 0)
        set_text(object, "gpu", text);
    read_line("/sys/module/nvidia/version", text, sizeof text);
    set_text(object, "driver", text);
    if (c->gpu->describe(&machine) != 0)
        return object;
    snprintf(text, sizeof text, "%d.%d", machine.cuda / 1000, machine.cuda % 1000 / 10);
    set_text(object, "cuda", text);
    for (char *letter = machine.pci; *letter; letter++) /* the system's folders have small letters */
        *letter = (char)(*letter >= 'A' && *letter <= 'F' ? *letter - 'A' + 'a' : *letter);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.31s/current_link_width", machine.pci);
    read_line(path, width, sizeof width);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.31s/current_link_speed", machine.pci);
    read_line(path, text, sizeof text);
    if (*text && *width) {
        snprintf(text + strlen(text), sizeof text - strlen(text), " x%s", width);
        set_text(object, "pcie", text);
    }
    json_object_set_new(object, "numa_node", json_integer(machine.numa_node));
    json_object_set_new(object, "pool_gib", json_integer((json_int_t)(c->pool_bytes >> 30)));
    return object;
}

/* ----------------------------------------------------------------------------------------------------- measured -- */

/* The rows of the table, without what does not apply. */
static json_t *rows_json(const emit_table *table) {
    static const char *const keys[] = {"what",   "rows",    "row_bytes", "stride_bytes", "span_mib",  "blocks",
                                       "pieces", "time_us", "swept_us",  "rate_gb_s",    "swept_gb_s"};
    json_t *rows = json_array();
    for (int r = 0; r < table->n_rows; r++) {
        const emit_cell *cell = &table->cell[r * table->n_columns];
        json_t *row = json_object();
        json_object_set_new(row, keys[0], json_string(cell[0].word));
        for (int k = 1; k < table->n_columns; k++)
            if (!isnan(cell[k].number))
                json_object_set_new(row, keys[k],
                                    table->column[k].decimals ? number(cell[k].number)
                                                              : json_integer(llround(cell[k].number)));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *measured_json(const calibrate *c) {
    const calibrate_results *r = &c->results;
    const struct {
        const char *key;
        double value;
    } fields[] = {
        {"launch_us", r->launch_us},
        {"device_copy_gb_s", r->device_copy_gb_s},
        {"engine_to_device_gb_s", r->engine_to_device_gb_s},
        {"engine_to_host_gb_s", r->engine_to_host_gb_s},
        {"kernel_to_device_gb_s", r->kernel_to_device_gb_s},
        {"kernel_to_host_gb_s", r->kernel_to_host_gb_s},
        {"granule_kib", r->granule_kib},
        {"reach_mib", r->reach_mib},
        {"reach_swept_mib", r->reach_swept_mib},
        {"walks_per_us", r->walks_per_us},
        {"walks_swept_per_us", r->walks_swept_per_us},
        {"seconds", r->seconds},
    };
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        json_object_set_new(object, fields[i].key, number(fields[i].value));
    json_object_set_new(object, "rows", rows_json(&c->table));
    return object;
}

int calibrate_print_profile(const calibrate *c, const calibrate_choice *choice, FILE *to) {
    char date[16];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    json_t *all =
        json_pack("{s:i, s:s, s:o, s:s, s:s, s:{s:i, s:i, s:i, s:i}, s:o}", "format", 1, "command", c->command,
                  "machine", machine_json(c), "commit", HISPARSE_COMMIT, "date", date, "choose", "host_row_align",
                  choice->host_row_align, "request_blocks", choice->request_blocks, "fetch_blocks",
                  choice->fetch_blocks, "pieces_in_flight", choice->pieces_in_flight, "measured", measured_json(c));
    if (!all)
        return tool_fail(TOOL_FAILED, "out of memory");
    int failed = json_dumpf(all, to, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    fputc('\n', to);
    json_decref(all);
    return failed ? tool_fail(TOOL_FAILED, "cannot write the profile") : TOOL_OK;
}
