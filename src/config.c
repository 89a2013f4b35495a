/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

enum kind { INT32, INT64, UINT64, CHOICE, FLAG, TEXT, LIST };

typedef struct knob {
    const char *key;
    enum kind kind;
    size_t offset;
    const char *initial;
    int64_t least;
    uint64_t most;
    const char *unit; /* of CHOICE and FLAG: the names, from 0 */
    const char *help;
} knob;

#define KNOB(key, field, kind, initial, least, most, unit, help)                                                       \
    {key, kind, offsetof(hsp_config, field), initial, least, most, unit, help},
static const knob knobs[] = {
#include "config_table.h"
};
#undef KNOB
enum { N_KNOBS = sizeof knobs / sizeof knobs[0] };

/* ------------------------------------------------------------------------------------------------------ parsing -- */

static int parse_number(const char *text, uint64_t most, int64_t *signed_out, uint64_t *unsigned_out) {
    char *end;
    errno = 0;
    if (*text != '-' && (*text < '0' || *text > '9'))
        return -1; /* strtoull would skip blanks and take a sign after them */
    if (*text == '-')
        *signed_out = strtoll(text, &end, 10), *unsigned_out = (uint64_t)*signed_out;
    else
        *unsigned_out = strtoull(text, &end, 10),
        *signed_out = *unsigned_out > INT64_MAX ? INT64_MAX : (int64_t)*unsigned_out;
    return end != text && *end == 0 && errno == 0 && (*text != '-' || most <= INT64_MAX) ? 0 : -1;
}

/* Index of `value` among "a|b|c", -1 when it is none. */
static int find_name(const char *names, const char *value) {
    size_t length = strlen(value);
    for (int i = 0;; i++) {
        const char *bar = strchr(names, '|');
        if ((bar ? (size_t)(bar - names) : strlen(names)) == length && strncmp(names, value, length) == 0)
            return i;
        if (!bar)
            return -1;
        names = bar + 1;
    }
}

static int set_number(const knob *k, void *field, const char *value, hsp__error *error) {
    int64_t number;
    uint64_t magnitude;
    if (parse_number(value, k->most, &number, &magnitude) != 0)
        return hsp__fail(error, HSP_EINVAL, "%s: '%s' is not a whole number", k->key, value);
    if (number < k->least || (*value != '-' && magnitude > k->most))
        return hsp__fail(error, HSP_ELIMIT, "%s is %s; it may be %lld..%llu", k->key, value, (long long)k->least,
                         (unsigned long long)k->most);
    if (k->kind == INT32)
        *(int32_t *)field = (int32_t)number;
    else
        memcpy(field, &magnitude, sizeof magnitude);
    return HSP_OK;
}

static int set_choice(const knob *k, void *field, const char *value, hsp__error *error) {
    int index = find_name(k->unit, value);
    if (index < 0)
        return hsp__fail(error, HSP_EINVAL, "%s: '%s' is none of %s", k->key, value, k->unit);
    if (k->kind == CHOICE)
        *(int32_t *)field = index;
    else if (index)
        *(uint32_t *)field |= (uint32_t)k->most;
    else
        *(uint32_t *)field &= ~(uint32_t)k->most;
    return HSP_OK;
}

static int set_planes(const knob *k, hsp_config *config, const char *value, hsp__error *error) {
    int32_t bytes[HSP_MAX_PLANES], n = 0;
    for (const char *text = value;;) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || n == HSP_MAX_PLANES)
            return hsp__fail(error, HSP_EINVAL, "planes: '%s' is not a list of 1..%d sizes", value, HSP_MAX_PLANES);
        if (number < k->least || number > (long)k->most)
            return hsp__fail(error, HSP_ELIMIT, "planes: a plane of %ld bytes; it may be %lld..%llu", number,
                             (long long)k->least, (unsigned long long)k->most);
        bytes[n++] = (int32_t)number;
        if (!*end)
            break;
        text = end + 1;
    }
    config->n_planes = n;
    memcpy(config->plane_bytes, bytes, (size_t)n * sizeof bytes[0]);
    return HSP_OK;
}

static int set_text(const knob *k, char *field, const char *value, hsp__error *error) {
    size_t length = strlen(value);
    if (length < (size_t)k->least || length > k->most)
        return hsp__fail(error, HSP_ELIMIT, "%s: a text of %zu bytes; it may have %lld..%llu", k->key, length,
                         (long long)k->least, (unsigned long long)k->most);
    memcpy(field, value, length + 1);
    return HSP_OK;
}

static int set_knob(const knob *k, hsp_config *config, const char *value, hsp__error *error) {
    char *field = (char *)config + k->offset;
    switch (k->kind) {
    case CHOICE:
    case FLAG:
        return set_choice(k, field, value, error);
    case LIST:
        return set_planes(k, config, value, error);
    case TEXT:
        return set_text(k, field, value, error);
    default:
        return set_number(k, field, value, error);
    }
}

/* ------------------------------------------------------------------------------------------------------ by name -- */

/* Letters to insert, delete or replace, counted along one row of the usual table. */
static int distance(const char *a, const char *b) {
    int row[64], n = (int)strlen(b);
    if (n >= 64)
        return 64;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static const knob *find_knob(const char *key, hsp__error *error) {
    const knob *nearest = &knobs[0];
    for (int i = 0; i < N_KNOBS; i++) {
        if (strcmp(knobs[i].key, key) == 0)
            return &knobs[i];
        if (distance(key, knobs[i].key) < distance(key, nearest->key))
            nearest = &knobs[i];
    }
    hsp__fail(error, HSP_EINVAL, "there is no knob '%.64s'; did you mean '%s'?", key, nearest->key);
    return NULL;
}

int hsp__config_is_set_up(const hsp_config *config, hsp__error *error) {
    if (config && config->struct_size >= sizeof *config)
        return HSP_OK;
    return hsp__fail(error, HSP_EINVAL, "the config has not been set up: call hsp_config_init first");
}

void hsp_config_init(hsp_config *config, size_t struct_size) {
    if (config && struct_size >= sizeof config->struct_size)
        config->struct_size = 0; /* a struct too small to be set up is refused by every later call */
    if (!config || struct_size < sizeof *config)
        return;
    memset(config, 0, struct_size);
    config->struct_size = struct_size;
    for (int i = 0; i < N_KNOBS; i++)
        set_knob(&knobs[i], config, knobs[i].initial, hsp__thread_error());
}

int hsp_config_set(hsp_config *config, const char *key, const char *value) {
    hsp__error *error = hsp__thread_error();
    if (hsp__config_is_set_up(config, error) != HSP_OK)
        return error->status;
    if (!key || !value)
        return hsp__fail(error, HSP_EINVAL, "config_set: key and value must not be NULL");
    const knob *k = find_knob(key, error);
    return k ? set_knob(k, config, value, error) : error->status;
}

int hsp_config_env(hsp_config *config) {
    static const char prefix[] = "HISPARSE_";
    if (hsp__config_is_set_up(config, hsp__thread_error()) != HSP_OK)
        return hsp__thread_error()->status;
    hsp_config changed = *config;
    for (char **variable = environ; variable && *variable; variable++) {
        const char *name = *variable + sizeof prefix - 1, *equals = strchr(*variable, '=');
        char key[64] = "";
        if (strncmp(*variable, prefix, sizeof prefix - 1) != 0 || !equals)
            continue;
        for (size_t i = 0; name + i < equals && i < sizeof key - 1; i++)
            key[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]);
        int status = hsp_config_set(&changed, key, equals + 1);
        if (status != HSP_OK) {
            char text[256];
            snprintf(text, sizeof text, "%s", hsp_last_error(NULL));
            return hsp__fail(hsp__thread_error(), status, "environment %.*s: %s",
                             equals - *variable < 80 ? (int)(equals - *variable) : 80, *variable, text);
        }
    }
    *config = changed;
    return HSP_OK;
}

int hsp_config_knob(int32_t index, hsp_knob *knob_out) {
    static _Thread_local char bounds[64];
    static const char *const types[] = {"int", "int", "int", "choice", "choice", "text", "list"};
    if (!knob_out || knob_out->struct_size < sizeof *knob_out)
        return hsp__fail(hsp__thread_error(), HSP_EINVAL, "config_knob: set knob_out->struct_size to its size");
    if (index < 0 || index >= N_KNOBS)
        return hsp__fail(hsp__thread_error(), HSP_ELIMIT, "there is no knob number %d; there are %d", index, N_KNOBS);
    const knob *k = &knobs[index];
    int named = k->kind == CHOICE || k->kind == FLAG;
    if (k->kind == TEXT)
        snprintf(bounds, sizeof bounds, "%lld..%llu bytes", (long long)k->least, (unsigned long long)k->most);
    else
        snprintf(bounds, sizeof bounds, "%lld..%llu", (long long)k->least, (unsigned long long)k->most);
    *knob_out = (hsp_knob){knob_out->struct_size, k->key, types[k->kind], k->initial, named ? k->unit : bounds,
                           named ? "" : k->unit,  k->help};
    return HSP_OK;
}

/* ----------------------------------------------------------------------------------------------------- checking -- */

static int check_bounds(const knob *k, const hsp_config *config, hsp__error *error) {
    const char *field = (const char *)config + k->offset;
    int64_t number = 0;
    if (k->kind == INT32 || k->kind == CHOICE)
        number = *(const int32_t *)field;
    else if (k->kind == INT64)
        number = *(const int64_t *)field;
    else if (k->kind == TEXT)
        number = (int64_t)strnlen(field, k->most + 1);
    else
        return HSP_OK;
    if (number < k->least || (uint64_t)number > k->most)
        return hsp__fail(error, HSP_ELIMIT, "%s is %lld; it may be %lld..%llu", k->key, (long long)number,
                         (long long)k->least, (unsigned long long)k->most);
    return HSP_OK;
}

static int check_planes(const hsp_config *config, hsp__error *error) {
    if (config->n_planes < 1 || config->n_planes > HSP_MAX_PLANES)
        return hsp__fail(error, HSP_ELIMIT, "n_planes is %d; it may be 1..%d", config->n_planes, HSP_MAX_PLANES);
    for (int32_t p = 0; p < config->n_planes; p++)
        if (config->plane_bytes[p] < 4 || config->plane_bytes[p] > 65536 || config->plane_bytes[p] % 4)
            return hsp__fail(error, HSP_ELIMIT, "plane_bytes[%d] is %d; it must be a multiple of 4 in 4..65536", p,
                             config->plane_bytes[p]);
    return HSP_OK;
}

/* Of a number that check_bounds found not to be negative. */
static int power_of_two_or_0(int32_t number) {
    return (number & (number - 1)) == 0;
}

int hsp__config_check_machine(const hsp_config *config, hsp__error *error) {
    if (config->host_row_align % 16)
        return hsp__fail(error, HSP_ELIMIT, "host_row_align is %d; it must be a multiple of 16",
                         config->host_row_align);
    if (!power_of_two_or_0(config->request_blocks))
        return hsp__fail(error, HSP_ELIMIT, "request_blocks is %d; it must be 0, 1, 2, 4 or 8", config->request_blocks);
    if (!power_of_two_or_0(config->pieces_in_flight))
        return hsp__fail(error, HSP_ELIMIT, "pieces_in_flight is %d; it must be 0, 1, 2, 4 or 8",
                         config->pieces_in_flight);
    return HSP_OK;
}

static int check_together(const hsp_config *config, hsp__error *error) {
    int64_t selected = (int64_t)config->max_k * config->max_queries;
    int64_t rows = (int64_t)(config->n_slots + config->ring_rows) * config->max_requests;
    if (selected > config->n_slots)
        return hsp__fail(error, HSP_ELIMIT, "n_slots is %d; max_k * max_queries needs at least %lld", config->n_slots,
                         (long long)selected);
    if (config->ring_rows < config->max_queries)
        return hsp__fail(error, HSP_ELIMIT, "ring_rows is %d; max_queries needs at least %d", config->ring_rows,
                         config->max_queries);
    if (rows > INT32_MAX)
        return hsp__fail(error, HSP_ELIMIT, "max_requests * (n_slots + ring_rows) is %lld; row ids reach to %d",
                         (long long)rows, INT32_MAX);
    if (config->block_align % 4)
        return hsp__fail(error, HSP_ELIMIT, "block_align is %d; it must be a multiple of 4", config->block_align);
    if (config->flags & ~(HSP_NO_IO | HSP_PREFETCH))
        return hsp__fail(error, HSP_EINVAL, "flags is 0x%x; only HSP_NO_IO (0x%x) and HSP_PREFETCH (0x%x) are known",
                         config->flags, HSP_NO_IO, HSP_PREFETCH);
    return hsp__config_check_machine(config, error);
}

int hsp__config_check(const hsp_config *config, hsp__error *error) {
    int status = hsp__config_is_set_up(config, error);
    for (int i = 0; i < N_KNOBS && status == HSP_OK; i++)
        status = check_bounds(&knobs[i], config, error);
    if (status == HSP_OK)
        status = check_planes(config, error);
    return status == HSP_OK ? check_together(config, error) : status;
}
