/*
 * Prometheus text from the engine's statistics. One table per kind of line; the order of a table is the order of the
 * output. Format: Prometheus text exposition 0.0.4.
 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "server/metrics.h"

/* Upper bounds in seconds: a hit on a small model takes milliseconds, a long prompt on a CPU minutes. */
static const double bounds_s[FIRNI_BUCKETS - 1] = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120 };

/* One number of firn_engine_stats. */
typedef struct stat_line {
    const char *name;
    const char *labels;   /* "" or "{...}" */
    const char *type;
    const char *help;     /* NULL: a further line of the family above */
    size_t offset;
} stat_line;

#define AT(member) offsetof(firn_engine_stats, member)

static const stat_line stat_lines[] = {
    { "firn_requests_submitted_total", "", "counter", "Requests taken into the queue.", AT(n_submitted) },
    { "firn_requests_total", "{outcome=\"finished\"}", "counter", "Requests by outcome.", AT(n_finished) },
    { "firn_requests_total", "{outcome=\"cancelled\"}", "counter", NULL, AT(n_cancelled) },
    { "firn_requests_total", "{outcome=\"failed\"}", "counter", NULL, AT(n_failed) },
    { "firn_requests_total", "{outcome=\"refused\"}", "counter", NULL, AT(n_refused) },
    { "firn_requests_waiting", "", "gauge", "Requests in the queue.", AT(n_waiting) },
    { "firn_requests_running", "", "gauge", "Requests in the batch.", AT(n_running) },
    { "firn_prompt_tokens_total", "", "counter", "Prompt tokens of all requests.", AT(prompt_tokens) },
    { "firn_prompt_tokens_by_source_total", "{source=\"computed\"}", "counter",
      "Prompt tokens by where their state came from.", AT(computed_prompt_tokens) },
    { "firn_prompt_tokens_by_source_total", "{source=\"ram\"}", "counter", NULL, AT(prefix.hit_tokens_ram) },
    { "firn_prompt_tokens_by_source_total", "{source=\"disk\"}", "counter", NULL, AT(prefix.hit_tokens_disk) },
    { "firn_generated_tokens_total", "", "counter", "Tokens generated.", AT(generated_tokens) },
    { "firn_steps_total", "", "counter", "Forward steps of the engine.", AT(n_steps) },

    { "firn_prefix_lookups_total", "", "counter", "Lookups in the prefix cache.", AT(prefix.n_lookups) },
    { "firn_prefix_hits_total", "{source=\"ram\"}", "counter", "Lookups that found something.", AT(prefix.n_hits_ram) },
    { "firn_prefix_hits_total", "{source=\"disk\"}", "counter", NULL, AT(prefix.n_hits_disk) },
    { "firn_prefix_nodes", "", "gauge", "Nodes of the token tree.", AT(prefix.n_nodes) },
    { "firn_prefix_held_bytes", "", "gauge", "Block bytes the token tree refers to.", AT(prefix.held_bytes) },
    { "firn_prefix_budget_bytes", "", "gauge", "Most block bytes the token tree may refer to.",
      AT(prefix.budget_bytes) },
    { "firn_prefix_dirty_nodes", "", "gauge", "Nodes not stored on disk yet.", AT(prefix.n_dirty) },
    { "firn_prefix_queued_stores", "", "gauge", "Stores waiting for the disk.", AT(prefix.n_queued) },
    { "firn_prefix_pinned_nodes", "", "gauge", "Nodes promised to requests.", AT(prefix.n_pinned) },
    { "firn_prefix_evicted_total", "", "counter", "Nodes that left RAM.", AT(prefix.n_evicted) },
    { "firn_prefix_stores_total", "", "counter", "Stores to disk that ended well.", AT(prefix.n_stores) },
    { "firn_prefix_store_failures_total", "", "counter", "Stores to disk that failed; the state stayed in RAM.",
      AT(prefix.n_store_failures) },
    { "firn_prefix_wasted_bytes_total", "", "counter", "Bytes restored from disk and then not used.",
      AT(prefix.wasted_bytes) },

    { "firn_pool_budget_bytes", "", "gauge", "Most bytes of key/value blocks.", AT(pool.budget_bytes) },
    { "firn_pool_used_bytes", "", "gauge", "Bytes of key/value blocks in use, shared blocks once.",
      AT(pool.used_bytes) },
    { "firn_pool_idle_bytes", "", "gauge", "Bytes of free blocks kept for reuse.", AT(pool.idle_bytes) },
    { "firn_pool_used_bytes_peak", "", "gauge", "Largest firn_pool_used_bytes so far.", AT(pool.used_bytes_peak) },
    { "firn_pool_blocks", "", "gauge", "Blocks in use.", AT(pool.n_blocks) },
    { "firn_pool_copied_bytes_total", "", "counter", "Bytes copied because a shared block was written.",
      AT(pool.copied_bytes) },
    { "firn_pool_refused_total", "", "counter", "Allocations refused by the budget.", AT(pool.n_refused) },

    { "firn_disk_records", "", "gauge", "Records on disk.", AT(tier.n_records) },
    { "firn_disk_physical_bytes", "", "gauge", "Bytes that the disk tier occupies, index included.",
      AT(tier.physical_bytes) },
    { "firn_disk_budget_bytes", "", "gauge", "Most bytes that the disk tier may occupy.", AT(tier.budget_bytes) },
    { "firn_disk_written_bytes_total", "", "counter", "Bytes written to disk.", AT(tier.written_bytes) },
    { "firn_disk_unique_bytes_total", "", "counter", "Of the bytes written, those that were new.",
      AT(tier.unique_bytes) },
    { "firn_disk_read_bytes_total", "", "counter", "Bytes read from disk.", AT(tier.read_bytes) },
    { "firn_disk_lookups_total", "{result=\"hit\"}", "counter", "Lookups of the disk tier.", AT(tier.n_hits) },
    { "firn_disk_lookups_total", "{result=\"miss\"}", "counter", NULL, AT(tier.n_misses) },
    { "firn_disk_stores_total", "{result=\"stored\"}", "counter", "Stores of the disk tier.", AT(tier.n_stores) },
    { "firn_disk_stores_total", "{result=\"refused\"}", "counter", NULL, AT(tier.n_store_refused) },
    { "firn_disk_evicted_total", "", "counter", "Records evicted from disk.", AT(tier.n_evicted) },
    { "firn_disk_quarantined_total", "", "counter", "Records that did not verify.", AT(tier.n_quarantined) },
};

static const char *const route_names[FIRNI_ROUTE_COUNT] = {
    [FIRNI_ROUTE_OTHER] = "other",     [FIRNI_ROUTE_INDEX] = "index",
    [FIRNI_ROUTE_HEALTH] = "health",   [FIRNI_ROUTE_METRICS] = "metrics",
    [FIRNI_ROUTE_MODELS] = "models",   [FIRNI_ROUTE_COMPLETIONS] = "completions",
    [FIRNI_ROUTE_CHAT] = "chat_completions",
};

const char *firni_route_name(firni_route_label label)
{
    return route_names[label];
}

void firni_metrics_count_http(firni_metrics *metrics, firni_route_label label, unsigned http_status)
{
    const unsigned status = http_status < FIRNI_STATUS_CODES ? http_status : 0;
    atomic_fetch_add_explicit(&metrics->http[label][status], 1, memory_order_relaxed);
}

void firni_histogram_add(firni_histogram *histogram, uint64_t ns)
{
    uint32_t bucket = 0;
    while (bucket < FIRNI_BUCKETS - 1 && (double)ns * 1e-9 > bounds_s[bucket]) {
        bucket++;
    }
    atomic_fetch_add_explicit(&histogram->counts[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_ns, ns, memory_order_relaxed);
}

void firni_metrics_count_usage(firni_metrics *metrics, const firn_usage *usage)
{
    if (usage->completion_tokens > 0) {
        firni_histogram_add(&metrics->first_token, usage->first_token_ns);
    }
    firni_histogram_add(&metrics->request, usage->total_ns);
    atomic_fetch_add_explicit(&metrics->prefill_ns, usage->prefill_ns, memory_order_relaxed);
}

/* Relaxed: counters are independent of each other and of everything else. */
static uint64_t load(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Opens a family: all its samples must follow at once. */
static void head(firni_buffer *out, const char *name, const char *type, const char *help)
{
    firni_buffer_format(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Label values may hold anything; the format escapes backslash, quote and newline. */
static void label(firni_buffer *out, const char *name, const char *value)
{
    firni_buffer_format(out, "%s=\"", name);
    for (const char *at = value != NULL ? value : ""; *at != '\0'; at++) {
        switch (*at) {
        case '\\': firni_buffer_text(out, "\\\\"); break;
        case '"': firni_buffer_text(out, "\\\""); break;
        case '\n': firni_buffer_text(out, "\\n"); break;
        default: firni_buffer_append(out, at, 1);
        }
    }
    firni_buffer_text(out, "\"");
}

/* Buckets are cumulative in the format, single in memory: an observation is one increment. */
static void render_histogram(firni_buffer *out, const char *name, const char *help, const firni_histogram *histogram)
{
    head(out, name, "histogram", help);
    uint64_t n_total = 0;
    for (uint32_t i = 0; i < FIRNI_BUCKETS - 1; i++) {
        n_total += load(&histogram->counts[i]);
        firni_buffer_format(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds_s[i], n_total);
    }
    n_total += load(&histogram->counts[FIRNI_BUCKETS - 1]);
    /* The count is the sum of the buckets read above, so that the family agrees with itself under load. */
    firni_buffer_format(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9f\n%s_count %" PRIu64 "\n", name, n_total,
                        name, (double)load(&histogram->sum_ns) * 1e-9, name, n_total);
}

/* Every reason has its line from the start, at 0: a series that appears later breaks rates. */
static void render_reasons(firni_buffer *out, const char *name, const char *help, const uint64_t *counts)
{
    head(out, name, "counter", help);
    for (uint32_t i = 0; i < FIRN_REASON_COUNT; i++) {
        firni_buffer_format(out, "%s{reason=\"%s\"} %" PRIu64 "\n", name, firn_reason_name((firn_reason)i), counts[i]);
    }
}

/* Only what was ever seen: 600 statuses for each route would be noise. */
static void render_http(firni_buffer *out, const firni_metrics *metrics)
{
    head(out, "firn_http_requests_total", "counter", "HTTP requests by route and status (0: the client left first).");
    for (uint32_t route = 0; route < FIRNI_ROUTE_COUNT; route++) {
        for (uint32_t status = 0; status < FIRNI_STATUS_CODES; status++) {
            const uint64_t n = load(&metrics->http[route][status]);
            if (n > 0) {
                firni_buffer_format(out, "firn_http_requests_total{route=\"%s\",status=\"%u\"} %" PRIu64 "\n",
                                    route_names[route], (unsigned)status, n);
            }
        }
    }
    head(out, "firn_client_disconnects_total", "counter", "Generations cancelled because the client went away.");
    firni_buffer_format(out, "firn_client_disconnects_total %" PRIu64 "\n", load(&metrics->n_disconnects));
    head(out, "firn_request_timeouts_total", "counter", "Generations cancelled because they took too long.");
    firni_buffer_format(out, "firn_request_timeouts_total %" PRIu64 "\n", load(&metrics->n_timeouts));
}

/* One line for each state a disk tier can be in, 1 for the one it is in: an alert needs no knowledge of numbers. */
static void render_disk_state(firni_buffer *out, firn_reason now)
{
    static const firn_reason states[] = { FIRN_REASON_NONE,      FIRN_REASON_DISABLED, FIRN_REASON_READ_ONLY,
                                          FIRN_REASON_DISK_FULL, FIRN_REASON_IO_ERROR, FIRN_REASON_GONE };
    head(out, "firn_disk_state", "gauge", "State of the disk tier: 1 for the one it is in.");
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        firni_buffer_format(out, "firn_disk_state{state=\"%s\"} %d\n", firn_reason_name(states[i]), states[i] == now);
    }
}

void firni_metrics_render(const firni_metrics *metrics, const firn_engine_stats *stats, const firni_metrics_view *view,
                          firni_buffer *out)
{
    head(out, "firn_model_info", "gauge", "The model that is served.");
    firni_buffer_text(out, "firn_model_info{");
    label(out, "model", view->model);
    firni_buffer_text(out, ",");
    label(out, "architecture", view->architecture);
    firni_buffer_text(out, ",");
    label(out, "kernel", view->kernel);
    firni_buffer_text(out, ",");
    label(out, "weight_type", view->weight_type);
    firni_buffer_text(out, "} 1\n");
    head(out, "firn_start_time_seconds", "gauge", "When the server started, in seconds since 1970.");
    firni_buffer_format(out, "firn_start_time_seconds %" PRIu64 "\n", view->started_s);
    head(out, "firn_http_connections", "gauge", "Open connections.");
    firni_buffer_format(out, "firn_http_connections %u\n", (unsigned)view->n_connections);

    for (size_t i = 0; i < sizeof stat_lines / sizeof stat_lines[0]; i++) {
        const stat_line *line = &stat_lines[i];
        uint64_t value; /* every member named in the table is one: AT() would not tell */
        memcpy(&value, (const unsigned char *)stats + line->offset, sizeof value);
        if (line->help != NULL) {
            head(out, line->name, line->type, line->help);
        }
        firni_buffer_format(out, "%s%s %" PRIu64 "\n", line->name, line->labels, value);
    }
    head(out, "firn_step_seconds_total", "counter", "Time spent in forward steps.");
    firni_buffer_format(out, "firn_step_seconds_total %.9f\n", (double)stats->step_ns_total * 1e-9);
    head(out, "firn_prefill_seconds_total", "counter", "Forward time of prompts, shared steps counted whole.");
    firni_buffer_format(out, "firn_prefill_seconds_total %.9f\n", (double)load(&metrics->prefill_ns) * 1e-9);

    render_reasons(out, "firn_prefix_reasons_total", "Lookups by why no longer prefix was found.",
                   stats->prefix.reasons);
    render_reasons(out, "firn_disk_miss_reasons_total", "Misses of the disk tier by reason.", stats->tier.miss_reasons);
    render_disk_state(out, view->disk_state != FIRN_REASON_NONE ? view->disk_state : stats->tier.state);
    render_histogram(out, "firn_time_to_first_token_seconds", "From the submission of a request to its first token.",
                     &metrics->first_token);
    render_histogram(out, "firn_request_seconds", "From the submission of a request to its end.", &metrics->request);
    render_http(out, metrics);
}
