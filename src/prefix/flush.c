/*
 * Everything unsaved, tails included, stored within a bound. Owns the exact report.
 *
 * Each path is tried once: a tier that refuses now is not asked again before the bound is over, so a stop with a full
 * disk takes no longer than the refusals. Nodes are counted, not jobs: flushed are those that were unsaved at the start
 * and are saved at the end.
 */
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

static uint64_t count_refused(const firn_prefix *prefix)
{
    uint64_t n = 0;
    for (const firni_node *node = prefix->lists[FIRNI_LIST_UNSAVED].next; node != NULL;
         node = node->links[FIRNI_LIST_UNSAVED].next) {
        n += node->flush_mark == prefix->flush_number;
    }
    return n;
}

firn_flush_report firn_prefix_flush(firn_prefix *prefix, uint64_t bound_ns)
{
    firn_flush_report report = { .durable = true };
    if (prefix->options.tier == NULL) {
        return report; /* RAM is all there is */
    }
    const uint64_t start_ns = firni_now_ns(prefix->env);
    firni_inbox_drain(prefix);
    prefix->flush_number++;
    prefix->flushing = true;
    const uint64_t n_unsaved = prefix->n_unsaved;
    want_all(prefix);
    firni_writer_pump(prefix);
    uint64_t elapsed_ns = 0;
    while (is_busy(prefix) && elapsed_ns < bound_ns) {
        firni_inbox_wait(prefix, bound_ns - elapsed_ns);
        firni_inbox_drain(prefix);
        firni_writer_pump(prefix);
        elapsed_ns = firni_now_ns(prefix->env) - start_ns;
    }
    prefix->flushing = false;
    report.n_flushed = n_unsaved - prefix->n_unsaved;
    report.n_failed = count_refused(prefix);
    report.n_missing = prefix->n_unsaved - report.n_failed;
    elapsed_ns = firni_now_ns(prefix->env) - start_ns;
    if (!is_busy(prefix) && elapsed_ns < bound_ns) {
        /* The worker is idle, so the tier answers: what it keeps back itself must reach the disk as well. */
        const firn_flush_report below = firn_tier_flush(prefix->options.tier, bound_ns - elapsed_ns);
        report.n_failed += below.n_failed;
        report.n_missing += below.n_missing;
        report.durable = below.durable;
    }
    report.durable = report.durable && report.n_failed == 0 && report.n_missing == 0;
    report.elapsed_ns = firni_now_ns(prefix->env) - start_ns;
    return report;
}
