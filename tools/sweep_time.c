/* SPDX-License-Identifier: Apache-2.0 */
/* What a swap-in takes on a machine, out of the profile that `hisparse calibrate` wrote of it (docs/calibrate.md): so
 * much for every row that is fetched, and so much besides. */
#include "sweep.h"
#include "tools.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

typedef struct measured {
    double rows, row_bytes, span_mib, time_us, swept_us;
} measured;

static int is_row(const json_t *row, const char *what, measured *out) {
    const char *name = json_string_value(json_object_get(row, "what"));
    if (!name || strcmp(name, what) != 0)
        return 0;
    *out = (measured){
        json_number_value(json_object_get(row, "rows")), json_number_value(json_object_get(row, "row_bytes")),
        json_number_value(json_object_get(row, "span_mib")), json_number_value(json_object_get(row, "time_us")),
        json_number_value(json_object_get(row, "swept_us"))};
    return out->rows > 0 && out->row_bytes > 0 && out->time_us > 0;
}

/* How far what was measured is from what is asked for. More than was asked for is nearer than less: its time is no less
 * either. */
static double distance(double has, double asked) {
    return has >= asked ? has / asked : 1e6 * asked / has;
}

/* us a row, from the rows read whose size and span come nearest; the L2 swept, as between two layers. */
static double find_row_us(const json_t *rows, double row_bytes, double span_mib) {
    double nearest = INFINITY, us = NAN;
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        measured m;
        if (!is_row(row, "read", &m))
            continue;
        double far = 1e3 * distance(m.row_bytes, row_bytes) + distance(m.span_mib, span_mib);
        if (far >= nearest)
            continue;
        nearest = far;
        us = (m.swept_us > 0 ? m.swept_us : m.time_us) / m.rows;
        if (m.row_bytes < row_bytes)
            us *= row_bytes / m.row_bytes;
    }
    return us;
}

/* What one request takes beyond its rows: the least of the times by number of blocks, without the rows at the rate of
 * many. */
static double find_base_us(const json_t *rows) {
    double base = NAN;
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        measured m;
        if (is_row(row, "request", &m))
            base = fmin(base, m.time_us - m.rows * find_row_us(rows, m.row_bytes, m.span_mib));
    }
    return fmax(base, 0);
}

int sweep_read_profile(sweep *s, const char *path, int64_t span) {
    json_error_t why;
    json_t *profile = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (!profile)
        return tool_fail(TOOL_BAD_INPUT, "--profile '%s' line %d: %s", path, why.line, why.text);
    const json_t *rows = json_object_get(json_object_get(profile, "measured"), "rows");
    s->row_us = find_row_us(rows, (double)s->row_bytes, (double)span / 1048576);
    s->base_us = find_base_us(rows);
    json_decref(profile);
    if (isnan(s->row_us) || isnan(s->base_us))
        return tool_fail(TOOL_BAD_INPUT, "--profile '%s': 'measured' has no rows 'read' and 'request'", path);
    return TOOL_OK;
}
