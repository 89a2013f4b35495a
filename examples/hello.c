/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest whole use of the cache: one request, one layer, four rows chosen out of a thousand. */
#include <hisparse.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int status, const hsp_cache *cache) {
    if (status == HSP_OK)
        return;
    fprintf(stderr, "%s: %s\n", hsp_status_name(status), hsp_last_error(cache));
    exit(1);
}

int main(void) {
    hsp_config config;
    hsp_cache *cache;
    hsp_rows_view view = {.struct_size = sizeof view};
    static float rows[1000][16];
    int32_t request, ids[4], selection[4] = {7, 999, 7, -1}, none_new = 0;

    for (int t = 0; t < 1000; t++)
        rows[t][0] = (float)t;

    hsp_config_init(&config, sizeof config);
    check(hsp_config_set(&config, "planes", "64"), NULL); /* a row: 16 floats */
    check(hsp_config_set(&config, "n_slots", "32"), NULL);
    check(hsp_config_set(&config, "max_k", "4"), NULL);
    check(hsp_open(&config, &cache), NULL);

    check(hsp_admit(cache, 1000, &request), cache);
    hsp_row_source source = {.plane = {rows}};
    check(hsp_fill(cache, request, 0, 0, 1000, &source, NULL), cache);

    check(hsp_step_begin(cache, &request, &none_new, 1, NULL), cache);
    check(hsp_swap_in(cache, 0, selection, 1, 4, ids, NULL), cache);
    check(hsp_rows(cache, 0, &view), cache);
    for (int i = 0; i < 4; i++)
        if (ids[i] < 0)
            printf("token %d: no row\n", selection[i]);
        else
            printf("token %d: row id %d holds %g\n", selection[i], ids[i],
                   (double)*(float *)((char *)view.plane[0].base + (size_t)ids[i] * view.plane[0].row_stride));
    hsp_close(cache);
    return 0;
}
