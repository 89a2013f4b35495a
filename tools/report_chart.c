/* SPDX-License-Identifier: Apache-2.0 */
/* Charts as SVG inside the page. What a point says stands in its label and, under the pointer or at the focus, at the
 * top of the chart. */
#include "report.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 340, LEFT = 64, RIGHT = 16, TOP = 34, BOTTOM = 46, COLOURS = 8 };
enum { BAR = 22, BAR_LEFT = 250, TEXT = 1024 };

/* From numbers to pixels. */
typedef struct scale {
    double from, to, low, high;
} scale;

/* Halves, for the difference of two large numbers may be none. */
static double place(const scale *s, double value) {
    double half = s->to / 2 - s->from / 2;
    return s->low + (half > 0 ? (value / 2 - s->from / 2) / half : 0) * (s->high - s->low);
}

/* 0 and every number of a column. */
static scale scale_of(const json_t *rows, const char *key, double low, double high) {
    scale s = {0, 0, low, high};
    for (size_t r = 0; r < json_array_size(rows); r++) {
        double value = report_number(json_array_get(rows, r), key);
        s.from = fmin(s.from, value);
        s.to = fmax(s.to, value);
    }
    return s;
}

/* A round number that goes about eight times into the scale; 0 where there is none. */
static double tick_step(const scale *s) {
    double rough = s->to / 8 - s->from / 8, power = pow(10, floor(log10(rough)));
    if (!(rough > 0) || !isfinite(power) || power <= 0)
        return 0;
    return power * (rough <= power ? 1 : rough <= 2 * power ? 2 : rough <= 5 * power ? 5 : 10);
}

/* ------------------------------------------------------------------------------------------------------- figures -- */

static void begin(report_page *p, const char *title, int height) {
    fprintf(p->to, "<figure><figcaption>");
    report_escape(p->to, title);
    fprintf(p->to, "</figcaption>\n<a class=\"skip\" href=\"#table%d\">to the numbers of this chart</a>\n",
            p->n_tables);
    fprintf(p->to, "<svg role=\"group\" viewBox=\"0 0 %d %d\" aria-label=\"", WIDTH, height);
    report_escape(p->to, title);
    fprintf(p->to, "\">\n");
}

static void end(report_page *p, const char *title, const json_t *rows, const char *const *keys) {
    fprintf(p->to, "<details><summary>Numbers</summary>\n");
    report_table(p, title, rows, keys);
    fprintf(p->to, "</details></figure>\n");
}

/* A part of the chart that says `label` under the pointer and, where `focus`, can be reached by Tab. What it is drawn
 * with comes between. */
static void begin_point(report_page *p, int colour, int focus, const char *label) {
    fprintf(p->to, "<g class=\"point s%d\"%s role=\"img\" aria-label=\"", colour % COLOURS,
            focus ? " tabindex=\"0\"" : "");
    report_escape(p->to, label);
    fprintf(p->to, "\">");
}

static void end_point(report_page *p, const char *label) {
    fprintf(p->to, "<text class=\"tip\" x=\"%d\" y=\"14\">", LEFT);
    report_escape(p->to, label);
    fprintf(p->to, "</text></g>\n");
}

static void put_text(report_page *p, double x, double y, const char *anchor, const char *text) {
    fprintf(p->to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    report_escape(p->to, text);
    fprintf(p->to, "</text>\n");
}

static void legend(report_page *p, int colour, const char *text) {
    fprintf(p->to, "<li class=\"s%d\"><span>", colour % COLOURS);
    report_escape(p->to, text);
    fprintf(p->to, "</span></li>\n");
}

/* --------------------------------------------------------------------------------------------------------- lines -- */

static void x_ticks(report_page *p, const scale *x, int bottom) {
    char text[32];
    double step = tick_step(x);
    for (double i = step > 0 ? ceil(x->from / step) : INFINITY; i * step <= x->to; i++) {
        snprintf(text, sizeof text, "%.6g", i * step);
        fprintf(p->to, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", place(x, i * step),
                place(x, i * step), TOP, bottom);
        put_text(p, place(x, i * step), bottom + 16, "middle", text);
    }
}

static void y_ticks(report_page *p, const scale *y) {
    char text[32];
    double step = tick_step(y);
    for (double i = step > 0 ? ceil(y->from / step) : INFINITY; i * step <= y->to; i++) {
        snprintf(text, sizeof text, "%.6g", i * step);
        fprintf(p->to, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDTH - RIGHT,
                place(y, i * step), place(y, i * step));
        put_text(p, LEFT - 6, place(y, i * step) + 4, "end", text);
    }
}

static void point_label(const json_t *row, const report_axes *a, char *label_out, size_t bytes) {
    char group[REPORT_NUMBER_BYTES], x[REPORT_NUMBER_BYTES], y[REPORT_NUMBER_BYTES];
    snprintf(label_out, bytes, "%s, %s %s: %s%s", report_cell(row, a->group, group), report_cell(row, a->x, x),
             a->x_unit, report_cell(row, a->y, y), a->y_unit);
}

static void draw_line(report_page *p, const json_t *line, const report_axes *a, const scale *x, const scale *y,
                      int colour) {
    char label[TEXT];
    fprintf(p->to, "<g class=\"s%d\"><polyline points=\"", colour % COLOURS);
    for (size_t i = 0; i < json_array_size(line); i++)
        fprintf(p->to, "%.1f,%.1f ", place(x, report_number(json_array_get(line, i), a->x)),
                place(y, report_number(json_array_get(line, i), a->y)));
    fprintf(p->to, "\"/></g>\n");
    for (size_t i = 0; i < json_array_size(line); i++) {
        const json_t *row = json_array_get(line, i);
        point_label(row, a, label, sizeof label);
        begin_point(p, colour, 1, label);
        fprintf(p->to, "<circle r=\"4\" cx=\"%.1f\" cy=\"%.1f\"/>", place(x, report_number(row, a->x)),
                place(y, report_number(row, a->y)));
        end_point(p, label);
    }
}

/* Rows that have both numbers. */
static json_t *drawn(const json_t *rows, const report_axes *a) {
    json_t *some = json_array();
    for (size_t r = 0; r < json_array_size(rows); r++) {
        json_t *row = json_array_get(rows, r);
        if (!isnan(report_number(row, a->x)) && !isnan(report_number(row, a->y)))
            json_array_append(some, row);
    }
    return some;
}

void report_lines(report_page *p, const json_t *rows, const report_axes *a, const char *const *keys) {
    json_t *some = drawn(rows, a), *groups = report_distinct(some, a->group);
    scale x = scale_of(some, a->x, LEFT, WIDTH - RIGHT), y = scale_of(some, a->y, HEIGHT - BOTTOM, TOP);
    char text[REPORT_NUMBER_BYTES];
    begin(p, a->title, HEIGHT);
    x_ticks(p, &x, HEIGHT - BOTTOM);
    y_ticks(p, &y);
    put_text(p, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8, "middle", a->x_unit);
    put_text(p, 4, TOP - 8, "start", a->y_unit);
    for (size_t g = 0; g < json_array_size(groups); g++) {
        json_t *line = report_where(some, a->group, json_array_get(groups, g));
        draw_line(p, line, a, &x, &y, (int)g);
        json_decref(line);
    }
    fprintf(p->to, "</svg>\n<ul class=\"legend\">\n");
    for (size_t g = 0; g < json_array_size(groups); g++) {
        json_t *line = report_where(some, a->group, json_array_get(groups, g));
        legend(p, (int)g, report_cell(json_array_get(line, 0), a->group, text));
        json_decref(line);
    }
    fprintf(p->to, "</ul>\n");
    end(p, a->title, rows, keys);
    json_decref(groups);
    json_decref(some);
}

/* ---------------------------------------------------------------------------------------------------------- heat -- */

static size_t index_of(const json_t *values, const json_t *value) {
    size_t i = 0;
    while (i < json_array_size(values) && !json_equal(json_array_get(values, i), value))
        i++;
    return i;
}

static void draw_field(report_page *p, const json_t *row, const report_axes *a, double x, double y, double width,
                       double height, double share) {
    char label[TEXT], group[REPORT_NUMBER_BYTES], at[REPORT_NUMBER_BYTES], value[REPORT_NUMBER_BYTES];
    snprintf(label, sizeof label, "%s %s, %s %s: %s%s", a->group, report_cell(row, a->group, group),
             report_cell(row, a->x, at), a->x_unit, report_cell(row, a->y, value), a->y_unit);
    begin_point(p, 0, 0, label); /* the table is for the keyboard: thousands of stops would help nobody */
    fprintf(p->to, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill-opacity=\"%.3f\"/>", x, y, width,
            height, 0.04 + 0.96 * share);
    end_point(p, label);
}

void report_heat(report_page *p, const json_t *rows, const report_axes *a, const char *const *keys) {
    enum { ROW = 12, MOST_NAMES = 40 };
    json_t *some = drawn(rows, a), *across = report_distinct(some, a->x), *down = report_distinct(some, a->group);
    size_t n_down = json_array_size(down), n_across = json_array_size(across);
    double width = (double)(WIDTH - LEFT - RIGHT) / (double)(n_across ? n_across : 1);
    int height = TOP + (int)n_down * ROW + BOTTOM;
    scale strength = scale_of(some, a->y, 0, 1);
    char text[REPORT_NUMBER_BYTES];
    begin(p, a->title, height);
    for (size_t r = 0; r < json_array_size(some); r++) {
        const json_t *row = json_array_get(some, r);
        size_t i = index_of(across, json_object_get(row, a->x)), j = index_of(down, json_object_get(row, a->group));
        draw_field(p, row, a, LEFT + (double)i * width, TOP + (double)j * ROW, width - 1, ROW - 1,
                   place(&strength, report_number(row, a->y)));
        if (i == 0 && j % (n_down / MOST_NAMES + 1) == 0)
            put_text(p, LEFT - 6, TOP + (double)j * ROW + ROW - 2, "end", report_cell(row, a->group, text));
        if (j == 0 && i % (n_across / MOST_NAMES + 1) == 0)
            put_text(p, LEFT + ((double)i + 0.5) * width, height - BOTTOM + 16, "middle", report_cell(row, a->x, text));
    }
    put_text(p, (LEFT + WIDTH - RIGHT) / 2.0, height - 8, "middle", a->x_unit);
    fprintf(p->to, "</svg>\n");
    end(p, a->title, rows, keys);
    json_decref(across);
    json_decref(down);
    json_decref(some);
}

/* ---------------------------------------------------------------------------------------------------------- bars -- */

static double drawn_length(double length) {
    return length > 0 && isfinite(length) ? length : 0;
}

static double sum(const report_bar *bar) {
    double all = 0;
    for (int i = 0; i < REPORT_PARTS; i++)
        all += drawn_length(bar->length[i]) / REPORT_PARTS; /* a sum of large numbers may be none */
    return all;
}

static void bar_label(const report_bars *bars, const report_bar *bar, char *label_out, size_t bytes) {
    char text[REPORT_NUMBER_BYTES];
    int n = snprintf(label_out, bytes, "%s:", bar->label);
    for (int i = 0; i < REPORT_PARTS && bars->part[i]; i++)
        n += snprintf(label_out + n, bytes - (size_t)n, "%s %s %s %s", i ? "," : "", bars->part[i],
                      report_real(bar->shown[i], text), bars->unit);
}

static void draw_bar(report_page *p, const report_bars *bars, const report_bar *bar, const scale *x, int top) {
    char label[TEXT];
    double start = x->low;
    bar_label(bars, bar, label, sizeof label);
    put_text(p, BAR_LEFT - 6, top + BAR - 8, "end", bar->label);
    begin_point(p, 6, 1, label);
    for (int i = 0; i < REPORT_PARTS && bars->part[i]; i++) {
        double width = place(x, drawn_length(bar->length[i]) / REPORT_PARTS) - x->low;
        fprintf(p->to, "<rect class=\"s%d\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>", i, start, top + 2,
                width, BAR - 6);
        start += width;
    }
    end_point(p, label);
}

void report_draw_bars(report_page *p, const report_bars *bars, const json_t *rows, const char *const *keys) {
    int bottom = TOP + bars->n * BAR;
    scale x = {0, 0, BAR_LEFT, WIDTH - RIGHT};
    begin(p, bars->title, bottom + BOTTOM);
    for (int i = 0; i < bars->n; i++)
        x.to = fmax(x.to, sum(&bars->bar[i]));
    scale whole = {0, x.to * REPORT_PARTS, x.low, x.high};
    x_ticks(p, &whole, bottom);
    for (int i = 0; i < bars->n; i++)
        draw_bar(p, bars, &bars->bar[i], &x, TOP + i * BAR);
    put_text(p, (BAR_LEFT + WIDTH - RIGHT) / 2.0, bottom + BOTTOM - 8, "middle", bars->unit);
    fprintf(p->to, "</svg>\n<ul class=\"legend\">\n");
    for (int i = 0; i < REPORT_PARTS && bars->part[i]; i++)
        legend(p, i, bars->part[i]);
    fprintf(p->to, "</ul>\n");
    end(p, bars->title, rows, keys);
}
