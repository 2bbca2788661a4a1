/*
 * The drawing: capacity on a logarithmic axis, hits on the left axis, writes on the right one. Each series has a colour
 * and a form of marker of its own, each point its value. Format: SVG 1.1.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/base_impl.h"
#include "cmd/replay_plot.h"

enum { WIDTH = 760, HEIGHT = 440, LEFT = 64, RIGHT = 696, TOP = 72, BOTTOM = 376 };

#define INK    "#7a7a7a"
#define HITS   "#2f7fd0"
#define WRITES "#d0742f"

/* Where things lie on the page. */
typedef struct frame {
    double x_log_min, x_log_max, writes_max;
    FILE *file;
} frame;

static double x_of(const frame *f, double tokens)
{
    return LEFT + (RIGHT - LEFT) * (log10(tokens) - f->x_log_min) / (f->x_log_max - f->x_log_min);
}

static double y_of(double value, double max)
{
    return BOTTOM - (BOTTOM - TOP) * value / max;
}

/* "500k", "4M" */
static const char *tokens_text(double tokens, char out[24])
{
    const double unit = tokens >= 1e9 ? 1e9 : tokens >= 1e6 ? 1e6 : tokens >= 1e3 ? 1e3 : 1;
    (void)snprintf(out, 24, "%.3g%s", tokens / unit, unit == 1e9 ? "B" : unit == 1e6 ? "M" : unit == 1e3 ? "k" : "");
    return out;
}

/* The least of 1, 2, 5 times a power of ten that is no smaller. */
static double round_up_nicely(double value)
{
    const double power = pow(10, floor(log10(value)));
    const double lead = value / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static void text(const frame *f, double x, double y, const char *anchor, const char *colour, const char *what)
{
    (void)fprintf(f->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y, anchor,
                  colour, what);
}

static void draw_axes(const frame *f, const firni_plot_point *points, uint32_t n_points)
{
    char label[24];
    for (int i = 0; i <= 5; i++) {
        const double y = y_of(i, 5);
        (void)fprintf(f->file,
                      "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\" stroke-opacity=\"%s\"/>\n", LEFT,
                      y, RIGHT, y, INK, i == 0 ? "1" : "0.3");
        (void)snprintf(label, sizeof label, "%d %%", 20 * i);
        text(f, LEFT - 8, y + 4, "end", HITS, label);
        (void)snprintf(label, sizeof label, "%.3g", f->writes_max * i / 5);
        text(f, RIGHT + 8, y + 4, "start", WRITES, label);
    }
    double last_x = -1e9;
    for (uint32_t i = 0; i < n_points; i++) {
        const double x = x_of(f, points[i].x);
        (void)fprintf(f->file, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\"/>\n", x, BOTTOM, x,
                      BOTTOM + 5, INK);
        if (fabs(x - last_x) > 40) { /* labels do not run into each other */
            text(f, x, BOTTOM + 20, "middle", INK, tokens_text(points[i].x, label));
            last_x = x;
        }
    }
    text(f, (LEFT + RIGHT) / 2.0, BOTTOM + 42, "middle", INK, "capacity in tokens (logarithmic)");
}

static void draw_series(const frame *f, const firni_plot_point *points, uint32_t n_points, bool is_hits)
{
    const char *colour = is_hits ? HITS : WRITES;
    (void)fprintf(f->file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour,
                  is_hits ? "" : " stroke-dasharray=\"6 4\"");
    for (uint32_t i = 0; i < n_points; i++) {
        (void)fprintf(f->file, "%.1f,%.1f ", x_of(f, points[i].x),
                      is_hits ? y_of(points[i].hits, 1) : y_of(points[i].writes, f->writes_max));
    }
    (void)fputs("\"/>\n", f->file);
    for (uint32_t i = 0; i < n_points; i++) {
        const double x = x_of(f, points[i].x);
        const double y = is_hits ? y_of(points[i].hits, 1) : y_of(points[i].writes, f->writes_max);
        char value[24];
        if (is_hits) {
            (void)fprintf(f->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y, colour);
            (void)snprintf(value, sizeof value, "%.1f", 100 * points[i].hits);
        } else {
            (void)fprintf(f->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\" fill=\"%s\"/>\n", x - 4, y - 4,
                          colour);
            (void)snprintf(value, sizeof value, "%.2f", points[i].writes);
        }
        text(f, x, y + (is_hits ? -9 : 18), "middle", colour, value);
    }
}

static void draw(const frame *f, const char *title, const firni_plot_point *points, uint32_t n_points)
{
    (void)fprintf(f->file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n<title>%s</title>\n",
                  WIDTH, HEIGHT, WIDTH, HEIGHT, title);
    text(f, LEFT, 24, "start", INK, title);
    (void)fprintf(f->file, "<circle cx=\"%d\" cy=\"44\" r=\"4\" fill=\"%s\"/>\n", LEFT + 4, HITS);
    text(f, LEFT + 16, 48, "start", HITS, "hits, share of the tokens asked for (left)");
    (void)fprintf(f->file, "<rect x=\"%d\" y=\"40\" width=\"8\" height=\"8\" fill=\"%s\"/>\n", LEFT + 320, WRITES);
    text(f, LEFT + 336, 48, "start", WRITES, "written for each unique byte (right)");
    draw_axes(f, points, n_points);
    draw_series(f, points, n_points, false);
    draw_series(f, points, n_points, true);
    (void)fputs("</svg>\n", f->file);
}

firn_status firni_plot_write(const char *path, const char *title, const firni_plot_point *points, uint32_t n_points,
                             firn_error *err)
{
    frame f = { .x_log_min = INFINITY, .x_log_max = -INFINITY, .writes_max = 1 };
    for (uint32_t i = 0; i < n_points; i++) {
        const double x = log10(points[i].x);
        f.x_log_min = x < f.x_log_min ? x : f.x_log_min;
        f.x_log_max = x > f.x_log_max ? x : f.x_log_max;
        f.writes_max = points[i].writes > f.writes_max ? points[i].writes : f.writes_max;
    }
    f.x_log_min -= 0.1; /* a single capacity has a place too */
    f.x_log_max += 0.1;
    f.writes_max = round_up_nicely(f.writes_max);
    f.file = fopen(path, "we");
    if (f.file == NULL) {
        return firni_fail_os(err, errno, "cannot write %s", path);
    }
    draw(&f, title, points, n_points);
    const bool failed = ferror(f.file) != 0;
    if (fclose(f.file) != 0 || failed) {
        const int os_error = errno;
        (void)remove(path);
        return firni_fail_os(err, os_error, "cannot write %s", path);
    }
    return FIRN_OK;
}
