/*
 * Prometheus text of a stack of tiers: the same figures for the upper and the lower one, then what passes between them.
 * The order of a table is the order of the output. The families of a tier without a stack are metrics.c's, which count
 * both together here.
 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "server/metrics.h"

typedef struct tier_line {
    const char *name, *type, *help;
    size_t offset;
} tier_line;

#define OF_TIER(member) offsetof(firn_tier_stats, member)

/* Of each of the two. */
static const tier_line tier_lines[] = {
    { "firn_tier_records", "gauge", "Records in a tier of the stack.", OF_TIER(n_records) },
    { "firn_tier_physical_bytes", "gauge", "Bytes that the tier occupies.", OF_TIER(physical_bytes) },
    { "firn_tier_budget_bytes", "gauge", "Most bytes that the tier may occupy.", OF_TIER(budget_bytes) },
    { "firn_tier_written_bytes_total", "counter", "Bytes written to the tier.", OF_TIER(written_bytes) },
    { "firn_tier_read_bytes_total", "counter", "Bytes read from the tier.", OF_TIER(read_bytes) },
    { "firn_tier_evicted_total", "counter", "Records evicted from the tier.", OF_TIER(n_evicted) },
    { "firn_tier_quarantined_total", "counter", "Records of the tier that did not verify.", OF_TIER(n_quarantined) },
    { "firn_tier_pins", "gauge", "Pins by name in the tier.", OF_TIER(n_pins) },
};

typedef struct stack_line {
    const char *name, *labels, *type;
    const char *help; /* NULL: a further line of the family above */
    size_t offset;
} stack_line;

#define OF_STACK(member) offsetof(firn_stack_stats, member)

static const stack_line stack_lines[] = {
    { "firn_stack_hits_total", "{tier=\"upper\"}", "counter", "Lookups that found something, by the tier that gave it.",
      OF_STACK(n_hits_upper) },
    { "firn_stack_hits_total", "{tier=\"lower\"}", "counter", NULL, OF_STACK(n_hits_lower) },
    { "firn_stack_lower_lookups_total", "", "counter", "Lookups for which the lower tier was asked.",
      OF_STACK(n_lower_finds) },
    { "firn_stack_lower_skipped_total", "", "counter", "Lookups without the lower tier, which was hanging or resting.",
      OF_STACK(n_lower_skipped) },
    { "firn_stack_lower_late_total", "", "counter", "Calls of the lower tier that did not come back in time.",
      OF_STACK(n_lower_late) },
    { "firn_stack_fallbacks_total", "", "counter", "Reads that failed in the upper tier and came from the lower.",
      OF_STACK(n_fallbacks) },
    { "firn_stack_promotions_total", "{outcome=\"stored\"}", "counter", "State from the lower tier, on its way up.",
      OF_STACK(n_promoted) },
    { "firn_stack_promotions_total", "{outcome=\"dropped\"}", "counter", NULL, OF_STACK(n_promotions_dropped) },
    { "firn_stack_promotions_total", "{outcome=\"failed\"}", "counter", NULL, OF_STACK(n_promotions_failed) },
    { "firn_stack_promoting_bytes", "", "gauge", "Block bytes that promotions hold.", OF_STACK(promoting_bytes) },
    { "firn_stack_stored_below_total", "", "counter", "Stores that the upper tier refused and the lower took.",
      OF_STACK(n_stored_below) },
    { "firn_stack_copies_waiting", "", "gauge", "Paths that the lower tier has not got yet.",
      OF_STACK(n_copies_waiting) },
    { "firn_stack_copies_total", "{outcome=\"copied\"}", "counter", "Paths from the upper tier, on their way down.",
      OF_STACK(n_copied) },
    { "firn_stack_copies_total", "{outcome=\"dropped\"}", "counter", NULL, OF_STACK(n_copies_dropped) },
    { "firn_stack_copies_total", "{outcome=\"lost\"}", "counter", NULL, OF_STACK(n_lost) },
    { "firn_stack_copies_refused_total", "", "counter", "Attempts to copy that the lower tier refused.",
      OF_STACK(n_copies_refused) },
};

static uint64_t member_at(const void *stats, size_t offset)
{
    uint64_t value; /* every member named in a table is one */
    memcpy(&value, (const unsigned char *)stats + offset, sizeof value);
    return value;
}

/* One line for each state a tier of a stack can be in, 1 for the one it is in. */
static void render_state(firni_buffer *out, const char *tier, firn_reason now)
{
    static const firn_reason states[] = { FIRN_REASON_NONE,     FIRN_REASON_READ_ONLY, FIRN_REASON_DISK_FULL,
                                          FIRN_REASON_IO_ERROR, FIRN_REASON_GONE,      FIRN_REASON_DEADLINE,
                                          FIRN_REASON_WRONG_KEY };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        firni_buffer_format(out, "firn_tier_state{tier=\"%s\",state=\"%s\"} %d\n", tier, firn_reason_name(states[i]),
                            states[i] == now);
    }
}

void firni_metrics_render_tiers(const firn_stack_stats *stats, firni_buffer *out)
{
    for (size_t i = 0; i < sizeof tier_lines / sizeof tier_lines[0]; i++) {
        const tier_line *line = &tier_lines[i];
        firni_metrics_head(out, line->name, line->type, line->help);
        firni_buffer_format(out, "%s{tier=\"upper\"} %" PRIu64 "\n%s{tier=\"lower\"} %" PRIu64 "\n", line->name,
                            member_at(&stats->upper, line->offset), line->name,
                            member_at(&stats->lower, line->offset));
    }
    firni_metrics_head(out, "firn_tier_state", "gauge", "State of a tier of the stack: 1 for the one it is in.");
    render_state(out, "upper", stats->upper.state);
    render_state(out, "lower", stats->lower.state);
    for (size_t i = 0; i < sizeof stack_lines / sizeof stack_lines[0]; i++) {
        const stack_line *line = &stack_lines[i];
        if (line->help != NULL) {
            firni_metrics_head(out, line->name, line->type, line->help);
        }
        firni_buffer_format(out, "%s%s %" PRIu64 "\n", line->name, line->labels, member_at(stats, line->offset));
    }
}
