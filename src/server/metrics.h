/*
 * metrics: what the server counts itself, and the Prometheus text of everything.
 *
 * Names are stable: a dashboard is somebody's program. Counters end in _total, units are part of the name (bytes,
 * seconds). Recording is lock-free, so that a slow scrape never holds up a request.
 */
#ifndef FIRNI_METRICS_H
#define FIRNI_METRICS_H

#include <stdatomic.h>

#include "firn/engine.h"
#include "firn/stack.h"
#include "server/json_text.h"

/* Routes as a label: a fixed set, so that clients can not make time series. */
typedef enum firni_route_label {
    FIRNI_ROUTE_OTHER = 0,   /* no such path */
    FIRNI_ROUTE_INDEX,
    FIRNI_ROUTE_HEALTH,
    FIRNI_ROUTE_METRICS,
    FIRNI_ROUTE_MODELS,
    FIRNI_ROUTE_COMPLETIONS,
    FIRNI_ROUTE_CHAT,
    FIRNI_ROUTE_KEEP,        /* flush, warm, pins */
    FIRNI_ROUTE_SESSIONS,
    FIRNI_ROUTE_COUNT
} firni_route_label;

const char *firni_route_name(firni_route_label label);

#define FIRNI_STATUS_CODES 600u   /* HTTP statuses are below */
#define FIRNI_BUCKETS 14u         /* with the last, unbounded one */

/* counts[i]: observations in (bounds[i-1], bounds[i]]; see metrics.c for the bounds. */
typedef struct firni_histogram {
    atomic_uint_fast64_t counts[FIRNI_BUCKETS];
    atomic_uint_fast64_t sum_ns;
} firni_histogram;

/* Zeroed is ready. */
typedef struct firni_metrics {
    atomic_uint_fast64_t http[FIRNI_ROUTE_COUNT][FIRNI_STATUS_CODES]; /* index 0: the client left before a reply */
    atomic_uint_fast64_t n_disconnects;                               /* generations whose client went away */
    atomic_uint_fast64_t n_timeouts;                                  /* generations beyond the request's time */
    firni_histogram first_token, request;                             /* of generations that ended by themselves */
    atomic_uint_fast64_t prefill_ns;
} firni_metrics;

void firni_metrics_count_http(firni_metrics *metrics, firni_route_label label, unsigned http_status);
/* One finished generation. */
void firni_metrics_count_usage(firni_metrics *metrics, const firn_usage *usage);
void firni_histogram_add(firni_histogram *histogram, uint64_t ns);

/* What is not a counter. */
typedef struct firni_metrics_view {
    const char *model, *architecture, *kernel, *weight_type;
    uint64_t started_s;      /* wall time of the start */
    uint32_t n_connections;
    const firn_stack_stats *tiers; /* of a stack of tiers; NULL: there is none */
    firn_reason disk_state;  /* DISABLED, ... without a tier; with one the tier's own state counts when this is NONE */
} firni_metrics_view;

/* The lines before those of a family. */
void firni_metrics_head(firni_buffer *out, const char *name, const char *type, const char *help);
/* metrics_tiers.c: the lines of a stack of tiers, for each of the two and for what passes between them. */
void firni_metrics_render_tiers(const firn_stack_stats *stats, firni_buffer *out);

/* Appends the exposition text, version 0.0.4. */
void firni_metrics_render(const firni_metrics *metrics, const firn_engine_stats *stats, const firni_metrics_view *view,
                          firni_buffer *out);

#endif
