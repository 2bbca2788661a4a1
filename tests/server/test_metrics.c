/*
 * The Prometheus text: every line parses, every family is declared once and before its samples, numbers arrive.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/metrics.h"
#include "support/support.h"

static firni_metrics *make_metrics(void)
{
    firni_metrics *metrics = calloc(1, sizeof *metrics); /* larger than a stack should hold */
    assert_non_null(metrics);
    return metrics;
}

static char *render(const firni_metrics *metrics, const firn_engine_stats *stats, const firni_metrics_view *view)
{
    firni_buffer out;
    firni_buffer_init(&out, NULL);
    firni_metrics_render(metrics, stats, view, &out);
    assert_false(out.failed);
    char *text = strdup(out.data);
    firni_buffer_deinit(&out);
    return text;
}

static void assert_line(const char *text, const char *line)
{
    const size_t len = strlen(line);
    for (const char *at = strstr(text, line); at != NULL; at = strstr(at + 1, line)) {
        if ((at == text || at[-1] == '\n') && at[len] == '\n') {
            return;
        }
    }
    fail_msg("no line \"%s\" in:\n%s", line, text);
}

static const firni_metrics_view plain_view = { .model = "m", .architecture = "llama", .kernel = "avx2",
                                               .weight_type = "q8_0", .started_s = 5, .n_connections = 2 };

static void numbers_arrive_under_stable_names(void **state)
{
    (void)state;
    firni_metrics *metrics = make_metrics();
    firn_engine_stats stats = { .n_submitted = 9, .n_cancelled = 1, .n_waiting = 3, .prompt_tokens = 100,
                                .computed_prompt_tokens = 40, .step_ns_total = 2500000000u };
    stats.draft = (firn_draft_usage){ .n_rounds = 4, .drafted_tokens = 20, .accepted_tokens = 7, .round_tokens = 11 };
    stats.draft_prefix.held_bytes = 13;
    stats.prefix.n_checkpoints = 14;
    stats.prefix.n_checkpoints_dropped = 15;
    stats.prefix.n_shed = 16;
    stats.prefix.dirty_bytes = 17;
    stats.draft_tier.physical_bytes = 17;
    stats.prefix.hit_tokens_ram = 50;
    stats.prefix.hit_tokens_disk = 10;
    stats.prefix.reasons[FIRN_REASON_DIVERGED] = 4;
    stats.prefix.n_store_failures = 6;
    stats.pool.used_bytes = UINT64_MAX;
    stats.tier.miss_reasons[FIRN_REASON_CORRUPT] = 7;
    stats.prefix.n_restores = 21;
    stats.prefix.n_restores_refused = 22;
    stats.prefix.n_restores_given_up = 23;
    stats.prefix.n_restores_cancelled = 24;
    stats.prefix.wasted_bytes = 25;
    stats.tier.wasted_bytes = 26;
    stats.early_layers = 27;
    stats.prefix.restore_latency.counts[3] = 2; /* of at most a millisecond */
    stats.prefix.restore_latency.counts[FIRN_LATENCY_BUCKETS - 1] = 1;
    stats.prefix.restore_latency.ns_total = 30001000000;
    firni_metrics_count_http(metrics, FIRNI_ROUTE_CHAT, 200);
    firni_metrics_count_http(metrics, FIRNI_ROUTE_CHAT, 200);
    firni_metrics_count_http(metrics, FIRNI_ROUTE_OTHER, 404);
    firni_metrics_count_http(metrics, FIRNI_ROUTE_OTHER, 100000); /* no such status: counted, not out of bounds */
    char *text = render(metrics, &stats, &plain_view);
    assert_line(text, "firn_model_info{model=\"m\",architecture=\"llama\",kernel=\"avx2\",weight_type=\"q8_0\"} 1");
    assert_line(text, "firn_requests_submitted_total 9");
    assert_line(text, "firn_requests_total{outcome=\"cancelled\"} 1");
    assert_line(text, "firn_requests_waiting 3");
    assert_line(text, "firn_prompt_tokens_total 100");
    assert_line(text, "firn_prompt_tokens_by_source_total{source=\"computed\"} 40");
    assert_line(text, "firn_prompt_tokens_by_source_total{source=\"ram\"} 50");
    assert_line(text, "firn_prompt_tokens_by_source_total{source=\"disk\"} 10");
    assert_line(text, "firn_draft_rounds_total 4");
    assert_line(text, "firn_draft_tokens_total 20");
    assert_line(text, "firn_draft_accepted_tokens_total 7");
    assert_line(text, "firn_draft_round_tokens_total 11");
    assert_line(text, "firn_draft_tokens_per_round 2.750");
    assert_line(text, "firn_draft_prefix_held_bytes 13");
    assert_line(text, "firn_prefix_checkpoints 14");
    assert_line(text, "firn_prefix_checkpoints_dropped_total 15");
    assert_line(text, "firn_prefix_windows_shed_total 16");
    assert_line(text, "firn_prefix_dirty_bytes 17");
    assert_line(text, "firn_draft_disk_physical_bytes 17");
    assert_line(text, "firn_prefix_reasons_total{reason=\"diverged\"} 4");
    assert_line(text, "firn_prefix_store_failures_total 6");
    assert_line(text, "firn_pool_used_bytes 18446744073709551615");
    assert_line(text, "firn_disk_miss_reasons_total{reason=\"corrupt\"} 7");
    assert_line(text, "firn_restore_started_total 21");
    assert_line(text, "firn_restore_refused_total 22");
    assert_line(text, "firn_restore_given_up_total 23");
    assert_line(text, "firn_restore_cancelled_total 24");
    assert_line(text, "firn_restore_wasted_bytes_total{by=\"tree\"} 25");
    assert_line(text, "firn_restore_wasted_bytes_total{by=\"tier\"} 26");
    assert_line(text, "firn_restore_early_layers_total 27");
    assert_line(text, "firn_restore_seconds_bucket{le=\"0.0005\"} 0");
    assert_line(text, "firn_restore_seconds_bucket{le=\"0.001\"} 2");
    assert_line(text, "firn_restore_seconds_bucket{le=\"10\"} 2");
    assert_line(text, "firn_restore_seconds_bucket{le=\"+Inf\"} 3");
    assert_line(text, "firn_restore_seconds_sum 30.001000000");
    assert_line(text, "firn_store_seconds_count 0");
    assert_line(text, "firn_disk_state{state=\"ok\"} 1");
    assert_line(text, "firn_step_seconds_total 2.500000000");
    assert_line(text, "firn_http_requests_total{route=\"chat_completions\",status=\"200\"} 2");
    assert_line(text, "firn_http_requests_total{route=\"other\",status=\"404\"} 1");
    assert_line(text, "firn_http_requests_total{route=\"other\",status=\"0\"} 1");
    free(text);
    free(metrics);
}

static void every_reason_has_a_series(void **state)
{
    (void)state;
    firni_metrics *metrics = make_metrics();
    const firn_engine_stats stats = { 0 };
    char *text = render(metrics, &stats, &plain_view);
    for (uint32_t i = 0; i < FIRN_REASON_COUNT; i++) {
        char line[96];
        (void)snprintf(line, sizeof line, "firn_prefix_reasons_total{reason=\"%s\"} 0",
                       firn_reason_name((firn_reason)i));
        assert_line(text, line);
    }
    free(text);
    free(metrics);
}

static void a_missing_disk_is_a_named_state(void **state)
{
    (void)state;
    firni_metrics *metrics = make_metrics();
    firn_engine_stats stats = { 0 };
    firni_metrics_view view = plain_view;
    view.disk_state = FIRN_REASON_READ_ONLY;
    char *text = render(metrics, &stats, &view);
    assert_line(text, "firn_disk_state{state=\"read_only\"} 1");
    assert_line(text, "firn_disk_state{state=\"ok\"} 0");
    free(text);
    view.disk_state = FIRN_REASON_NONE;
    stats.tier.state = FIRN_REASON_DISK_FULL; /* the tier's own, while it runs */
    text = render(metrics, &stats, &view);
    assert_line(text, "firn_disk_state{state=\"disk_full\"} 1");
    free(text);
    free(metrics);
}

static void histograms_are_cumulative_and_agree_with_their_count(void **state)
{
    (void)state;
    firni_metrics *metrics = make_metrics();
    const firn_engine_stats stats = { 0 };
    const uint64_t values_ms[] = { 1, 5, 6, 900, 500000 };
    for (size_t i = 0; i < 5; i++) {
        const firn_usage usage = { .completion_tokens = i == 4 ? 0 : 1, .first_token_ns = values_ms[i] * 1000000u,
                                   .total_ns = values_ms[i] * 1000000u };
        firni_metrics_count_usage(metrics, &usage);
    }
    char *text = render(metrics, &stats, &plain_view);
    assert_line(text, "firn_request_seconds_bucket{le=\"0.005\"} 2"); /* the bound itself belongs to its bucket */
    assert_line(text, "firn_request_seconds_bucket{le=\"0.01\"} 3");
    assert_line(text, "firn_request_seconds_bucket{le=\"0.5\"} 3");
    assert_line(text, "firn_request_seconds_bucket{le=\"1\"} 4");
    assert_line(text, "firn_request_seconds_bucket{le=\"120\"} 4");
    assert_line(text, "firn_request_seconds_bucket{le=\"+Inf\"} 5");
    assert_line(text, "firn_request_seconds_count 5");
    assert_line(text, "firn_request_seconds_sum 500.912000000");
    assert_line(text, "firn_time_to_first_token_seconds_count 4"); /* an answer without tokens had no first one */
    free(text);
    free(metrics);
}

/* name or name{labels}, a space, a number; the family declared before. */
static void every_line_parses(void **state)
{
    (void)state;
    firni_metrics *metrics = make_metrics();
    const firn_engine_stats stats = { 0 };
    firni_metrics_view view = plain_view;
    view.model = "a \"quoted\\name\"\nwith a newline";
    char *text = render(metrics, &stats, &view);
    char families[128][64];
    uint32_t n_families = 0, n_samples = 0;
    char *rest = text;
    for (char *line = strtok_r(rest, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char name[64], type[16];
        if (strncmp(line, "# HELP ", 7) == 0) {
            continue;
        }
        if (sscanf(line, "# TYPE %63s %15s", name, type) == 2) {
            for (uint32_t i = 0; i < n_families; i++) {
                assert_string_not_equal(families[i], name);
            }
            assert_true(strcmp(type, "counter") == 0 || strcmp(type, "gauge") == 0 || strcmp(type, "histogram") == 0);
            const size_t len = strlen(name);
            assert_int_equal(strcmp(type, "counter") == 0, len > 6 && strcmp(name + len - 6, "_total") == 0);
            (void)snprintf(families[n_families++], sizeof families[0], "%s", name);
            continue;
        }
        const char *last = families[n_families - 1]; /* samples follow their own family at once */
        assert_int_equal(strncmp(line, last, strlen(last)), 0);
        const char *value = strrchr(line, ' ');
        char *end = NULL;
        assert_non_null(value);
        (void)strtod(value + 1, &end);
        assert_true(end != value + 1 && *end == '\0');
        n_samples++;
    }
    assert_true(n_families > 40 && n_samples > 90);
    free(text);
    free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_arrive_under_stable_names),
        cmocka_unit_test(every_reason_has_a_series),
        cmocka_unit_test(a_missing_disk_is_a_named_state),
        cmocka_unit_test(histograms_are_cumulative_and_agree_with_their_count),
        cmocka_unit_test(every_line_parses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
