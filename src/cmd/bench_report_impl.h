/*
 * What the files of the report share: bench_report.c has the model's own numbers, bench_report_engine.c those of
 * requests and rows beside each other.
 */
#ifndef FIRNI_BENCH_REPORT_IMPL_H
#define FIRNI_BENCH_REPORT_IMPL_H

#include <jansson.h>

#include "cmd/bench_impl.h"

double firni_bench_ratio(double a, double b); /* 0 when b is */
/* One measurement; the caller adds what it is compared with and ends the line. */
void firni_bench_print_row(const char *what, const firni_sample *sample, double unit, const char *unit_name);
json_t *firni_bench_sample_json(const firni_sample *sample);

/* ---- bench_report_engine.c: what was measured of it ---- */

void firni_bench_print_engine(const firni_bench *bench);
void firni_bench_add_engine_json(const firni_bench *bench, json_t *object);

#endif
