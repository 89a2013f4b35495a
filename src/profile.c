/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles of machines, as `hisparse calibrate` writes them: what is chosen there becomes knobs. */
#include "config.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A profile has a few KiB; more is not read, whatever the file claims to be. */
enum { FORMAT = 1, MOST_BYTES = 65536 };

/* Knobs that a profile sets, each of them. */
static const char *const chosen[] = {"host_row_align", "request_blocks", "fetch_blocks", "pieces_in_flight"};
enum { N_CHOSEN = sizeof chosen / sizeof chosen[0] };

/* Up to one byte more than a profile may have. */
static int read_file(const char *path, char *text, size_t *bytes_out, hsp__error *error) {
    FILE *file = fopen(path, "re");
    if (!file)
        return hsp__fail(error, HSP_EIO, "profile '%.160s': %s", path, strerror(errno));
    *bytes_out = fread(text, 1, MOST_BYTES + 1, file);
    int failed = ferror(file) ? errno : 0;
    fclose(file);
    if (failed)
        return hsp__fail(error, HSP_EIO, "profile '%.160s': %s", path, strerror(failed));
    if (*bytes_out > MOST_BYTES)
        return hsp__fail(error, HSP_EINVAL, "profile '%.160s': more than %d bytes; it is no profile", path, MOST_BYTES);
    return HSP_OK;
}

static int load(const char *path, json_t **profile_out, hsp__error *error) {
    char *text = malloc(MOST_BYTES + 1);
    size_t bytes = 0;
    json_error_t bad;
    if (!text)
        return hsp__fail(error, HSP_ENOMEM, "profile '%.160s': no memory to read it", path);
    int status = read_file(path, text, &bytes, error);
    if (status == HSP_OK) {
        *profile_out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &bad);
        if (!*profile_out)
            status = hsp__fail(error, HSP_EINVAL, "profile '%.160s' line %d: %.120s", path, bad.line, bad.text);
    }
    free(text);
    return status;
}

/* The reason in `error` is about a knob; it was the file that set it. */
static int say_where(const char *path, hsp__error *error) {
    char reason[sizeof error->text];
    memcpy(reason, error->text, sizeof reason);
    return hsp__fail(error, error->status, "profile '%.160s': %.150s", path, reason);
}

/* error: that of this thread, which is where hsp_config_set leaves its reason. */
static int set_chosen(hsp_config *config, const char *path, const char *key, const json_t *value, hsp__error *error) {
    char text[32];
    if (!value)
        return hsp__fail(error, HSP_EINVAL, "profile '%.160s': 'choose' has no '%s'", path, key);
    if (!json_is_integer(value))
        return hsp__fail(error, HSP_EINVAL, "profile '%.160s': '%s' in 'choose' is not a whole number", path, key);
    snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return hsp_config_set(config, key, text) == HSP_OK ? HSP_OK : say_where(path, error);
}

/* A key that this library does not know is a wish it cannot fulfil: refused, not passed over. */
static int check_keys(json_t *choose, const char *path, hsp__error *error) {
    for (void *at = json_object_iter(choose); at; at = json_object_iter_next(choose, at)) {
        int known = 0;
        for (int i = 0; i < N_CHOSEN; i++)
            known |= strcmp(json_object_iter_key(at), chosen[i]) == 0;
        if (!known)
            return hsp__fail(error, HSP_EINVAL, "profile '%.160s': there is no '%.64s' to choose", path,
                             json_object_iter_key(at));
    }
    return HSP_OK;
}

static int apply(hsp_config *config, const json_t *profile, const char *path, hsp__error *error) {
    const json_t *format = json_object_get(profile, "format");
    json_t *choose = json_object_get(profile, "choose");
    if (!json_is_integer(format))
        return hsp__fail(error, HSP_EINVAL, "profile '%.160s': no number 'format'; it is no profile", path);
    if (json_integer_value(format) != FORMAT)
        return hsp__fail(error, HSP_EINVAL, "profile '%.160s': its format is %lld; this library reads %d", path,
                         (long long)json_integer_value(format), FORMAT);
    if (!json_is_object(choose))
        return hsp__fail(error, HSP_EINVAL, "profile '%.160s': no object 'choose'", path);
    int status = check_keys(choose, path, error);
    for (int i = 0; i < N_CHOSEN && status == HSP_OK; i++)
        status = set_chosen(config, path, chosen[i], json_object_get(choose, chosen[i]), error);
    if (status != HSP_OK || hsp__config_check_machine(config, error) == HSP_OK)
        return status;
    return say_where(path, error);
}

int hsp_config_profile(hsp_config *config, const char *path) {
    hsp__error *error = hsp__thread_error();
    json_t *profile = NULL;
    if (hsp__config_is_set_up(config, error) != HSP_OK)
        return error->status;
    if (!path)
        return hsp__fail(error, HSP_EINVAL, "config_profile: path must not be NULL");
    hsp_config changed = *config;
    int status = load(path, &profile, error);
    if (status == HSP_OK)
        status = apply(&changed, profile, path, error);
    json_decref(profile);
    if (status == HSP_OK)
        *config = changed;
    return status;
}
