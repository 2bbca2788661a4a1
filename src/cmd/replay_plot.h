/*
 * replay_plot: hits and writes by capacity as an SVG drawing. It has no background and its ink is a middle grey, so
 * that it can be read on a light page and on a dark one.
 */
#ifndef FIRNI_REPLAY_PLOT_H
#define FIRNI_REPLAY_PLOT_H

#include <stdint.h>

#include "firn/status.h"

typedef struct firni_plot_point {
    double x;               /* capacity in tokens, above 0 */
    double hits;            /* 0..1 */
    double writes;          /* per unique byte */
} firni_plot_point;

/* Writes the file whole, or leaves none behind. Errors: IO. */
firn_status firni_plot_write(const char *path, const char *title, const firni_plot_point *points, uint32_t n_points,
                             firn_error *err);

#endif
