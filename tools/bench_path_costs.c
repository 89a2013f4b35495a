/* SPDX-License-Identifier: Apache-2.0 */
/* What the times of a case mean. Measuring needs a GPU; this does not. */
#include "bench_path.h"

#include <math.h>

static double percent(double part, double whole) {
    return whole > 0 ? part / whole * 100 : NAN;
}

static void of_model(const path_times *t, int64_t layers, int64_t anchors, path_costs *c) {
    double paid = t->shape.group > 1 ? (double)anchors * t->shape.group : (double)layers;
    for (int mode = 0; mode < PATH_MODES; mode++) {
        c->exposed_ms[mode] = paid * c->exposed[mode] * 1e-3;
        c->model_ms[mode] = (double)layers * t->us[PATH_RESIDENT] * 1e-3 + c->exposed_ms[mode];
    }
}

void bench_path_costs(const path_times *t, const path_times *single, int64_t model_layers, int64_t model_anchors,
                      path_costs *c) {
    double bytes = t->rows * t->shape.row_bytes, group = t->shape.group;
    *c = (path_costs){.mechanism = t->us[PATH_ORACLE] - t->us[PATH_RESIDENT],
                      .hidden_percent = NAN,
                      .followers_percent = NAN,
                      .of_single_percent = NAN,
                      .rate_gb_s = NAN,
                      .floor_us = bytes / t->link_gb_s * 1e-3, /* bytes a us are 1e-3 GB/s */
                      .of_link_percent = NAN};
    for (int mode = 0; mode < PATH_MODES; mode++) {
        c->exposed[mode] = t->us[mode] - t->us[PATH_RESIDENT];
        c->link[mode] = t->us[mode] - t->us[PATH_ORACLE];
    }
    of_model(t, model_layers, model_anchors, c);
    if (t->rows <= 0)
        return;
    double waiting = c->link[PATH_WAITING], hidden = t->us[PATH_WAITING] - t->us[PATH_PREFETCHED];
    c->hidden_percent = percent(hidden, waiting);
    if (waiting > 0)
        c->rate_gb_s = bytes / waiting * 1e-3;
    c->of_link_percent = percent(c->rate_gb_s, t->link_gb_s);
    if (!single || group < 2)
        return;
    /* Of a group the anchor's own rows cost what those of a single layer do; the rest is its followers'. */
    double own = single->us[PATH_WAITING] - single->us[PATH_ORACLE];
    c->followers_percent = percent(group * hidden, group * waiting - own);
    c->of_single_percent = percent(waiting, own);
}
