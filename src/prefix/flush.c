/*
 * Everything unsaved, tails included, stored within a bound. Owns the exact report.
 *
 * Each path is tried once: a tier that refuses now is not asked again before the bound is over, so a stop with a full
 * disk takes no longer than the refusals. Nodes are counted, not jobs: flushed are those that were unsaved at the start
 * and are saved at the end.
 */
#include <assert.h>

#include "prefix/prefix_impl.h"

static bool has_unsaved_checkpoint(const firni_node *node)
{
    const firni_checkpoint *c = node->checkpoints;
    while (c != NULL && !c->unsaved) {
        c = c->next;
    }
    return c != NULL;
}

/* Wants all unsaved nodes that no unsaved child covers: each store takes its whole path along, but only the checkpoint
 * at its end. Two passes with a mark find them without walking any path. */
static void want_all(firn_prefix *prefix)
{
    for (firni_node *node = prefix->lists[FIRNI_LIST_UNSAVED].next; node != NULL;
         node = node->links[FIRNI_LIST_UNSAVED].next) {
        node->parent->child_mark = prefix->flush_number;
    }
    for (firni_node *node = prefix->lists[FIRNI_LIST_UNSAVED].next; node != NULL;
         node = node->links[FIRNI_LIST_UNSAVED].next) {
        if (node->child_mark != prefix->flush_number || has_unsaved_checkpoint(node)) {
            firni_writer_want(prefix, node);
        }
    }
}

/* Whether anything is still queued, running, or waiting for its turn in this flush. */
static bool is_busy(const firn_prefix *prefix)
{
    const firni_node *waiting = prefix->lists[FIRNI_LIST_WAITING].next;
    return prefix->writer.n_jobs > 0 || (waiting != NULL && waiting->flush_mark != prefix->flush_number);
}

/* What of the flush is left: refused, or not reached. Nodes that became unsaved after its beginning are none of its. */
static void count_left(const firn_prefix *prefix, firn_flush_report *report)
{
    for (const firni_node *node = prefix->lists[FIRNI_LIST_UNSAVED].next; node != NULL;
         node = node->links[FIRNI_LIST_UNSAVED].next) {
        const bool is_refused = node->flush_mark == prefix->flush_number;
        report->n_failed += is_refused;
        report->n_missing += !is_refused && node->unsaved_since < prefix->flush_number;
    }
}

bool firn_prefix_flush_begin(firn_prefix *prefix)
{
    if (prefix->options.tier == NULL || prefix->flushing) {
        return false;
    }
    firni_inbox_drain(prefix);
    prefix->flush_number++;
    prefix->flushing = true;
    prefix->flush.start_ns = firni_now_ns(prefix->env);
    prefix->flush.n_saved_before = prefix->n_saved;
    want_all(prefix);
    firni_writer_pump(prefix);
    return true;
}

bool firn_prefix_flush_ended(firn_prefix *prefix, bool give_up, firn_flush_report *report)
{
    assert(prefix->flushing);
    firni_inbox_drain(prefix);
    firni_writer_pump(prefix);
    const bool is_done = !is_busy(prefix);
    if (!is_done && !give_up) {
        return false;
    }
    prefix->flushing = false;
    *report = (firn_flush_report){ .n_flushed = prefix->n_saved - prefix->flush.n_saved_before };
    count_left(prefix, report);
    report->durable = is_done && report->n_failed == 0 && report->n_missing == 0;
    report->elapsed_ns = firni_now_ns(prefix->env) - prefix->flush.start_ns;
    return true;
}

firn_flush_report firn_prefix_flush(firn_prefix *prefix, uint64_t bound_ns)
{
    firn_flush_report report = { .durable = true };
    if (!firn_prefix_flush_begin(prefix)) {
        if (prefix->options.tier == NULL) {
            return report; /* RAM is all there is */
        }
        prefix->flushing = false; /* one that was under way is taken over: this one wants all that it wanted */
        (void)firn_prefix_flush_begin(prefix);
    }
    const uint64_t start_ns = prefix->flush.start_ns;
    uint64_t elapsed_ns = firni_now_ns(prefix->env) - start_ns;
    while (!firn_prefix_flush_ended(prefix, elapsed_ns >= bound_ns, &report)) {
        firni_inbox_wait(prefix, bound_ns - elapsed_ns);
        elapsed_ns = firni_now_ns(prefix->env) - start_ns;
    }
    if (prefix->writer.n_jobs == 0 && report.elapsed_ns < bound_ns) {
        /* The worker is idle, so the tier answers: what it keeps back itself must reach the disk as well. */
        const firn_flush_report below = firn_tier_flush(prefix->options.tier, bound_ns - report.elapsed_ns);
        report.n_failed += below.n_failed;
        report.n_missing += below.n_missing;
        report.durable = report.durable && below.durable;
    }
    report.elapsed_ns = firni_now_ns(prefix->env) - start_ns;
    return report;
}
