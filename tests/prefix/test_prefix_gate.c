/*
 * Whether a read is worth it: the fits, the gate, and what a slow tier costs a prompt, on a clock that only the test
 * moves.
 */
#include "prefix/prefix_rig.h"

#define MS UINT64_C(1000000)

/* ---- fits ---- */

static void a_line_is_found_and_followed(void **state)
{
    (void)state;
    firni_trend trend = { .n = 0 };
    assert_true(firni_trend_at(&trend, 5.0, true) == 0.0);
    for (uint32_t i = 1; i <= 20; i++) {
        firni_trend_add(&trend, (double)i, 100.0 + 3.0 * i, 0.9);
    }
    assert_true(firni_trend_at(&trend, 50.0, true) > 249.9 && firni_trend_at(&trend, 50.0, true) < 250.1);
    for (uint32_t i = 1; i <= 60; i++) { /* the world changes: the old line is forgotten */
        firni_trend_add(&trend, (double)(i % 20), 10.0 + (double)(i % 20), 0.9);
    }
    assert_true(firni_trend_at(&trend, 20.0, true) > 29.0 && firni_trend_at(&trend, 20.0, true) < 31.0);
}

static void samples_at_one_place_give_no_slope(void **state)
{
    (void)state;
    firni_trend trend = { .n = 0 };
    firni_trend_add(&trend, 100.0, 50.0, 0.9);
    firni_trend_add(&trend, 101.0, 80.0, 0.9);
    const double level = firni_trend_at(&trend, 1000.0, false), through = firni_trend_at(&trend, 1000.0, true);
    assert_true(level > 50.0 && level < 80.0);
    assert_true(through > 500.0 && through < 800.0);
    assert_true(firni_trend_at(&trend, 0.0, true) < 1.0);
}

/* ---- the gate ---- */

static void it_opens_where_reading_is_faster(void **state)
{
    (void)state;
    firni_gate gate = { .next_probe_ns = 0 };
    assert_int_equal(firni_gate_ask(&gate, 0.0, 1 << 20, 0), FIRNI_GATE_OPEN); /* nothing is known */
    firni_gate_learn_compute(&gate, 100, 0, 100 * MS);  /* 1 ms a token */
    firni_gate_learn_compute(&gate, 100, 10000, 300 * MS); /* 3 ms at a depth of 10,000 */
    const double shallow = firni_gate_compute_ns(&gate, 0, 100), deep = firni_gate_compute_ns(&gate, 10000, 10100);
    assert_true(shallow > 0.9e8 && shallow < 1.2e8);
    assert_true(deep > 2.9e8 && deep < 3.2e8);
    firni_gate_learn_restore(&gate, 1 << 20, 150 * MS);
    assert_int_equal(firni_gate_ask(&gate, shallow, 1 << 20, 0), FIRNI_GATE_SHUT);
    assert_int_equal(firni_gate_ask(&gate, deep, 1 << 20, 0), FIRNI_GATE_OPEN);
}

static void a_shut_gate_is_tried_now_and_then_and_a_recovered_disk_opens_it(void **state)
{
    (void)state;
    firni_gate gate = { .next_probe_ns = 0 };
    firni_gate_learn_restore(&gate, 1 << 20, 1000 * MS);
    uint32_t n_probes = 0;
    for (uint64_t now_ns = 0; now_ns < 120000 * MS; now_ns += 1000 * MS) {
        n_probes += firni_gate_ask(&gate, 100e6, 1 << 20, now_ns) == FIRNI_GATE_PROBE;
    }
    assert_int_equal(n_probes, 3); /* after 30, 60 and 90 seconds */
    firni_gate_learn_restore(&gate, 1 << 20, 10 * MS);
    assert_int_equal(firni_gate_ask(&gate, 100e6, 1 << 20, 120000 * MS), FIRNI_GATE_OPEN);
}

/* A disk of every rate against prompts of every length: what a request waits before it computes is at most a tenth of
 * what computing takes; one that is restored is faster than one that is computed. Moved in steps of a percent. */
static void a_steady_disk_never_costs_more_than_a_tenth(void **state)
{
    (void)state;
    const double compute_ns[] = { 60e6, 500e6, 5e9, 60e9 };
    const double bytes[] = { 64e3, 4e6, 256e6 };
    const double rates[] = { 0.005, 0.05, 0.5, 5.0 }; /* bytes each nanosecond: 5 MB/s to 5 GB/s */
    for (uint32_t c = 0; c < 4; c++) {
        for (uint32_t b = 0; b < 3; b++) {
            for (uint32_t r = 0; r < 4; r++) {
                for (uint32_t knows = 0; knows < 2; knows++) {
                    firni_gate gate = { .next_probe_ns = 0 };
                    const double restore_ns = bytes[b] / rates[r];
                    if (knows) {
                        firni_gate_learn_restore(&gate, (uint64_t)bytes[b], (uint64_t)restore_ns);
                    }
                    if (firni_gate_ask(&gate, compute_ns[c], (uint64_t)bytes[b], 0) != FIRNI_GATE_OPEN) {
                        assert_true(restore_ns > 0.9 * compute_ns[c]);
                        continue;
                    }
                    double waited = 0.0;
                    bool gave_up = false;
                    while (waited < restore_ns && !gave_up) {
                        waited += compute_ns[c] / 100.0;
                        gave_up = firni_gate_gives_up(&gate, compute_ns[c], (uint64_t)waited, (uint64_t)waited,
                                                      (uint64_t)(waited * rates[r]), (uint64_t)bytes[b]);
                    }
                    assert_true(waited + (gave_up ? compute_ns[c] : 0.0) <= 1.1 * compute_ns[c]);
                    assert_true(!gave_up || restore_ns > 0.8 * compute_ns[c]);
                }
            }
        }
    }
}

/* ---- in the tree ---- */

/* A tier at a rate of the test's own: it answers, and reports, when the test says that so much has come. */
typedef struct slow_tier {
    firn_tier tier;
    bool is_asked;
    firn_restore_request request;
    uint64_t n_bytes;
    uint32_t n_requests;
} slow_tier;

static prefix_rig rig;
static slow_tier slow;
static firn_token tokens[RIG_TOKENS_MAX];

static firn_match slow_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    (void)prompt, (void)ns;
    const uint32_t n = n_tokens - 1 < 640 ? n_tokens - 1 : 640;
    return (firn_match){ .handle = (firn_tier_handle *)tier, .prefix_len = n, .matched_len = n };
}

static firn_reason slow_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out)
{
    (void)tier, (void)handle, (void)n_tokens, (void)out;
    return FIRN_REASON_DISABLED;
}

static firn_status slow_request(firn_tier *tier, firn_tier_handle *handle, const firn_restore_request *request,
                                firn_error *err)
{
    (void)handle, (void)err;
    slow_tier *s = (slow_tier *)tier;
    assert_false(s->is_asked);
    s->is_asked = true;
    s->request = *request;
    s->n_requests++;
    return FIRN_OK;
}

static bool slow_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    (void)tier, (void)input;
    *reason = FIRN_REASON_NONE;
    return true;
}

static void slow_release(firn_tier *tier, firn_tier_handle *handle)
{
    (void)tier, (void)handle;
}

static void slow_destroy(firn_tier *tier)
{
    (void)tier;
}

/* Says that so much has come, and ends the read when nobody wants it, or with `reason`. */
static bool slow_advance(uint64_t n_bytes)
{
    const firn_restore_progress progress = { .n_bytes = n_bytes, .n_bytes_total = slow.n_bytes };
    slow.request.progress(slow.request.ctx, &progress);
    if (slow.request.is_wanted(slow.request.ctx)) {
        return true;
    }
    slow.is_asked = false;
    slow.request.done(slow.request.ctx, NULL, FIRN_REASON_CANCELLED);
    return false;
}

static uint64_t standing_ns;

static uint64_t standing_clock(void *ctx)
{
    (void)ctx;
    return standing_ns;
}

static void start_slow(void)
{
    static const firn_tier_ops ops = { .name = "slow",
                                       .find = slow_find,
                                       .restore = slow_restore,
                                       .restore_request = slow_request,
                                       .store = slow_store,
                                       .release = slow_release,
                                       .destroy = slow_destroy };
    rig_init(&rig, NULL, 4 << 20);
    rig.clock.monotonic_ns = standing_clock;
    standing_ns = 1000 * MS;
    slow = (slow_tier){ .tier = { .ops = &ops }, .n_bytes = 10 * RIG_NODE_BYTES };
    rig_start(&rig, (firn_prefix_options){ .tier = &slow.tier });
    rig_tokens(tokens, RIG_TOKENS_MAX, 1);
}

/* One request over a tier that brings n_bytes each millisecond. Returns how long it waited before it computed. */
static uint64_t wait_for_slow(uint64_t bytes_per_ms)
{
    const uint64_t began_ns = standing_ns;
    uint64_t n_done = 0;
    firn_lease *lease = rig_acquire(&rig, tokens, 641, NULL);
    bool goes_on = slow.is_asked && slow_advance(0);
    while (!firn_lease_ready(lease)) {
        assert_true(goes_on);
        standing_ns += MS;
        n_done += bytes_per_ms;
        assert_true(n_done < slow.n_bytes);
        goes_on = slow_advance(n_done);
    }
    assert_reason(firn_lease_result(lease).reason, FIRN_REASON_BREAKEVEN);
    const uint64_t waited_ns = standing_ns - began_ns;
    firn_lease_release(lease);
    if (slow.is_asked) {
        assert_false(slow_advance(n_done));
    }
    (void)firn_prefix_poll(rig.prefix);
    firn_prefix_check(rig.prefix);
    return waited_ns;
}

static void a_throttled_tier_costs_a_prompt_less_than_a_tenth_and_the_next_nothing(void **state)
{
    (void)state;
    start_slow();
    /* 640 tokens in 64 ms; the tier would take 819 ms for them. */
    firn_prefix_learn_compute(rig.prefix, 100, 50, 10 * MS);
    firn_prefix_learn_compute(rig.prefix, 100, 600, 10 * MS);
    assert_true(wait_for_slow(100) <= 64 * MS / 10);
    assert_int_equal(slow.n_requests, 1);
    assert_int_equal(rig_stats(&rig).n_restores_given_up, 1);
    assert_int_equal(rig_stats(&rig).n_restores_cancelled, 1);
    for (uint32_t i = 0; i < 5; i++) { /* what was given up said enough */
        assert_int_equal(wait_for_slow(100), 0);
    }
    assert_int_equal(slow.n_requests, 1);
    assert_int_equal(rig_stats(&rig).n_restores_refused, 5);
    assert_int_equal(rig_stats(&rig).reasons[FIRN_REASON_BREAKEVEN], 6);
    standing_ns += 31000 * MS; /* after a pause it is tried again, at the same price */
    assert_true(wait_for_slow(100) <= 64 * MS / 10);
    assert_int_equal(slow.n_requests, 2);
    assert_int_equal(rig_stats(&rig).n_restore_probes, 1);
    rig_deinit(&rig);
}

static void a_read_that_will_be_in_time_is_waited_for(void **state)
{
    (void)state;
    start_slow();
    firn_prefix_learn_compute(rig.prefix, 100, 50, 10 * MS);
    firn_lease *lease = rig_acquire(&rig, tokens, 641, NULL);
    assert_true(slow_advance(0));
    for (uint64_t ms = 1; ms < 40; ms++) { /* 40 of 64 ms: slow, and yet faster */
        standing_ns += MS;
        assert_true(slow_advance(slow.n_bytes * ms / 40));
        assert_false(firn_lease_ready(lease));
        const uint64_t next_ns = firn_prefix_poll(rig.prefix);
        assert_true(next_ns < 64 * MS); /* it is looked at again in good time */
    }
    slow.is_asked = false;
    slow.request.done(slow.request.ctx, NULL, FIRN_REASON_IO_ERROR);
    assert_true(firn_lease_ready(lease));
    assert_reason(firn_lease_result(lease).reason, FIRN_REASON_IO_ERROR);
    firn_lease_release(lease);
    rig_deinit(&rig);
}

static void the_last_lease_that_leaves_ends_the_read(void **state)
{
    (void)state;
    start_slow();
    firn_lease *first = rig_acquire(&rig, tokens, 641, NULL);
    firn_lease *second = rig_acquire(&rig, tokens, 600, NULL);
    assert_int_equal(slow.n_requests, 1);
    assert_int_equal(rig_stats(&rig).n_restores_joined, 1);
    firn_lease_release(first);
    assert_true(slow_advance(100));
    firn_lease_release(second);
    assert_false(slow_advance(200));
    (void)firn_prefix_poll(rig.prefix);
    assert_int_equal(rig_stats(&rig).n_restores_cancelled, 1);
    assert_int_equal(rig_stats(&rig).reading_bytes, 0);
    /* Nobody joins what is ending: the next one reads for itself. */
    firn_lease *third = rig_acquire(&rig, tokens, 641, NULL);
    assert_int_equal(slow.n_requests, 2);
    firn_lease_release(third);
    assert_false(slow_advance(0));
    rig_deinit(&rig);
}

static void what_ram_has_goes_along_as_the_head(void **state)
{
    (void)state;
    start_slow();
    assert_true(rig_put(&rig, tokens, 200, NULL, NULL)); /* three whole blocks and a tail */
    const uint64_t before = rig_stats(&rig).reading_bytes;
    firn_lease *lease = rig_acquire(&rig, tokens, 641, NULL);
    assert_int_equal(before, 0);
    assert_int_equal(slow.request.n_tokens, 640);
    assert_int_equal(slow.request.n_head_blocks, 3);
    for (uint32_t i = 0; i < RIG_LAYERS * 3; i++) {
        assert_non_null(slow.request.head[i]);
    }
    assert_int_equal(rig_stats(&rig).reading_bytes, 7 * RIG_NODE_BYTES); /* of ten */
    firn_lease_release(lease);
    assert_false(slow_advance(0));
    rig_deinit(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_found_and_followed),
        cmocka_unit_test(samples_at_one_place_give_no_slope),
        cmocka_unit_test(it_opens_where_reading_is_faster),
        cmocka_unit_test(a_shut_gate_is_tried_now_and_then_and_a_recovered_disk_opens_it),
        cmocka_unit_test(a_steady_disk_never_costs_more_than_a_tenth),
        cmocka_unit_test(a_throttled_tier_costs_a_prompt_less_than_a_tenth_and_the_next_nothing),
        cmocka_unit_test(a_read_that_will_be_in_time_is_waited_for),
        cmocka_unit_test(the_last_lease_that_leaves_ends_the_read),
        cmocka_unit_test(what_ram_has_goes_along_as_the_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
