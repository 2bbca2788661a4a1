/*
 * The RAM tier as an object: creation, destruction, the engine loop's poll, statistics. The work is done in the files
 * that prefix_impl.h lists.
 */
#include <assert.h>

#include "prefix/prefix_impl.h"

enum { MIN_TOKENS_DEFAULT = 16, WRITE_QUEUE_DEFAULT = 64 };
#define RESTORE_DEADLINE_NS_DEFAULT UINT64_C(10000000000)
#define LAYERED_BYTES_DEFAULT (UINT64_C(16) << 20)
#define LOGITS_BYTES_DEFAULT (UINT64_C(16) << 20)
#define RETRY_NS_MIN_DEFAULT UINT64_C(100000000)
#define PAUSE_NS_MAX UINT64_C(86400000000000) /* a day: sums and multiples of it cannot overflow */

/* Zero means the default for each member; everything that is later multiplied or shifted is bounded here. */
static firn_status fill_options(firn_prefix *prefix, const firn_prefix_options *options, firn_error *err)
{
    if (options->pool == NULL || options->schema == NULL || options->schema->n_layers == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "the RAM tier needs a pool and a schema with at least one layer");
    }
    if (options->retry_ns_min > PAUSE_NS_MAX || options->restore_deadline_ns > PAUSE_NS_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "a deadline or a first pause of the RAM tier is at most a day");
    }
    firn_pool_stats pool;
    firn_pool_get_stats(options->pool, &pool);
    prefix->options = *options;
    firn_prefix_options *filled = &prefix->options;
    filled->budget_bytes = options->budget_bytes > 0 ? options->budget_bytes : pool.budget_bytes;
    filled->min_tokens = options->min_tokens > 0 ? options->min_tokens : MIN_TOKENS_DEFAULT;
    filled->write_queue_max = options->write_queue_max > 0 ? options->write_queue_max : WRITE_QUEUE_DEFAULT;
    filled->restore_deadline_ns =
        options->restore_deadline_ns > 0 ? options->restore_deadline_ns : RESTORE_DEADLINE_NS_DEFAULT;
    filled->layered_bytes_min = options->layered_bytes_min > 0 ? options->layered_bytes_min : LAYERED_BYTES_DEFAULT;
    filled->logits_bytes_max = options->logits_bytes_max > 0 ? options->logits_bytes_max : LOGITS_BYTES_DEFAULT;
    prefix->gate.compute_ns_min = (double)options->compute_ns_min;
    filled->retry_ns_min = options->retry_ns_min > 0 ? options->retry_ns_min : RETRY_NS_MIN_DEFAULT;
    prefix->n_layers = options->schema->n_layers;
    return FIRN_OK;
}

/* One empty cache per layer answers what a layer's state looks like, and lent caches are made from it. */
static firn_status make_shapes(firn_prefix *prefix, firn_error *err)
{
    prefix->shapes = firni_calloc(prefix->env, prefix->n_layers, sizeof(firn_cache *));
    prefix->views = firni_calloc(prefix->env, prefix->n_layers, sizeof *prefix->views);
    prefix->family = firni_calloc(prefix->env, prefix->n_layers, sizeof *prefix->family);
    if (prefix->shapes == NULL || prefix->views == NULL || prefix->family == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a RAM tier of %u layers", prefix->n_layers);
    }
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        const firn_status status = firn_cache_create(&prefix->options.schema->layers[layer], prefix->options.pool,
                                                     prefix->env, &prefix->shapes[layer], err);
        if (status != FIRN_OK) {
            return status;
        }
        const firn_cache *shape = prefix->shapes[layer];
        prefix->family[layer] = firni_family_of(shape);
        prefix->node_bytes += firn_cache_block_bytes(shape);
        prefix->window_bytes += prefix->family[layer] & FIRNI_FAMILY_WINDOW ? firn_cache_block_bytes(shape) : 0;
        prefix->checkpoint_bytes += firn_cache_fixed_bytes(shape);
    }
    return firni_families_init(&prefix->families, (const firn_cache *const *)prefix->shapes, prefix->n_layers,
                               prefix->env, err);
}

firn_status firn_prefix_create(const firn_prefix_options *options, const firn_env *env, firn_prefix **out,
                               firn_error *err)
{
    *out = NULL;
    firn_prefix *prefix = firni_calloc(env, 1, sizeof *prefix);
    if (prefix == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a RAM tier");
    }
    prefix->env = env;
    prefix->clean.policy = firni_policy_find(options->policy);
    prefix->unsaved.policy = &firni_policy_lru;
    prefix->shed.policy = &firni_policy_shed;
    prefix->clean.by_priority = prefix->unsaved.by_priority = true;
    bool second = false;
    firn_status status = fill_options(prefix, options, err);
    if (status == FIRN_OK && prefix->clean.policy == NULL) {
        status = firni_fail(err, FIRN_ERR_INVALID, "there is no eviction policy \"%s\": lru or cost", options->policy);
    }
    if (status == FIRN_OK && !firni_admission_find(options->admission, &second)) {
        status = firni_fail(err, FIRN_ERR_INVALID, "there is no admission \"%s\": always or second",
                            options->admission);
    }
    if (status == FIRN_OK && !firni_admission_init(&prefix->admission, second, env)) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the sightings of blocks");
    }
    if (status == FIRN_OK) {
        status = make_shapes(prefix, err);
    }
    if (status == FIRN_OK) {
        status = firni_inbox_init(prefix, err);
    }
    if (status == FIRN_OK && prefix->options.tier != NULL) {
        status = firni_writer_init(prefix, err);
    }
    if (status == FIRN_OK && prefix->options.tier != NULL) {
        status = firni_finder_init(prefix, err);
    }
    if (status != FIRN_OK) {
        firn_prefix_destroy(prefix);
        return status;
    }
    *out = prefix;
    return FIRN_OK;
}

/* Leaf by leaf, without recursion: paths are as long as prompts. */
static void remove_all_nodes(firn_prefix *prefix)
{
    while (prefix->n_roots > 0) {
        firni_node *node = prefix->roots[prefix->n_roots - 1];
        while (node->n_children > 0) {
            node = node->children[node->n_children - 1];
        }
        firni_remove_leaf(prefix, node);
    }
}

void firn_prefix_destroy(firn_prefix *prefix)
{
    if (prefix == NULL) {
        return;
    }
    assert(prefix->leases == NULL);
    prefix->closing = true; /* what still arrives is counted and dropped */
    firni_finder_deinit(prefix);
    firni_writer_deinit(prefix);
    if (prefix->inbox.ready) {
        firni_inbox_drain(prefix);
        while (prefix->reads != NULL) { /* their buffers are ours: the tier must be done with them */
            firni_inbox_wait(prefix, UINT64_MAX);
            firni_inbox_drain(prefix);
        }
        firni_inbox_wait_idle(prefix);
    }
    firni_logits_destroy_all(prefix);
    firni_pins_release(prefix);
    remove_all_nodes(prefix);
    assert(prefix->n_nodes == 0 && prefix->n_pinned == 0 && prefix->n_unsaved == 0 && prefix->reading_bytes == 0);
    assert(prefix->n_checkpoints == 0 && prefix->n_unsaved_checkpoints == 0 && prefix->stuck_bytes == 0);
    firni_inbox_deinit(prefix);
    firni_blockset_deinit(prefix->env, &prefix->blocks);
    firni_admission_deinit(&prefix->admission);
    firni_heap_deinit(prefix->env, &prefix->clean);
    firni_heap_deinit(prefix->env, &prefix->unsaved);
    firni_heap_deinit(prefix->env, &prefix->shed);
    firni_families_deinit(&prefix->families);
    if (prefix->shapes != NULL) {
        firni_caches_destroy(prefix, prefix->shapes);
    }
    firni_free(prefix->env, prefix->shapes);
    firni_free(prefix->env, prefix->views);
    firni_free(prefix->env, prefix->family);
    firni_free(prefix->env, prefix->roots);
    firni_free(prefix->env, prefix);
}

uint64_t firn_prefix_poll(firn_prefix *prefix)
{
    firni_inbox_drain(prefix);
    firni_leases_expire(prefix, firni_now_ns(prefix->env));
    firni_pins_expire(prefix);
    firni_writer_pump(prefix);
    return firn_prefix_idle_ns(prefix);
}

/* Messages announce themselves through notify; only deadlines and the ends of pauses and pins need a clock. */
uint64_t firn_prefix_idle_ns(const firn_prefix *prefix)
{
    const uint64_t now_ns = firni_now_ns(prefix->env);
    uint64_t next_ns = firni_leases_next_deadline(prefix);
    const uint64_t pins_ns = firni_pins_next_ns(prefix);
    next_ns = pins_ns < UINT64_MAX - now_ns && now_ns + pins_ns < next_ns ? now_ns + pins_ns : next_ns;
    /* A waiting store needs a poll only for the end of a pause; a full queue announces its room by a message. */
    const firni_writer *writer = &prefix->writer;
    if (prefix->lists[FIRNI_LIST_WAITING].next != NULL && writer->n_jobs == 0 && writer->next_try_ns < next_ns) {
        next_ns = writer->next_try_ns;
    }
    if (next_ns == UINT64_MAX) {
        return UINT64_MAX;
    }
    return next_ns > now_ns ? next_ns - now_ns : 0;
}

void firn_prefix_learn_compute(firn_prefix *prefix, uint32_t n_tokens, uint32_t depth_tokens, uint64_t ns)
{
    firni_gate_learn_compute(&prefix->gate, n_tokens, depth_tokens, ns);
}

uint64_t firn_latency_bound_ns(uint32_t bucket)
{
    static const uint64_t bounds_us[FIRN_LATENCY_BUCKETS - 1] = { 100,   250,    500,    1000,   2500,    5000,   10000,
                                                                  25000, 100000, 250000, 500000, 2500000, 10000000 };
    assert(bucket < FIRN_LATENCY_BUCKETS);
    return bucket < FIRN_LATENCY_BUCKETS - 1 ? bounds_us[bucket] * 1000u : UINT64_MAX;
}

void firni_latency_add(firn_latency *latency, uint64_t ns)
{
    uint32_t bucket = 0;
    while (ns > firn_latency_bound_ns(bucket)) {
        bucket++;
    }
    latency->counts[bucket]++;
    latency->ns_total += ns;
}

void firn_prefix_get_stats(const firn_prefix *prefix, firn_prefix_stats *out)
{
    *out = prefix->stats;
    out->n_nodes = prefix->n_nodes;
    out->held_bytes = prefix->blocks.held_bytes;
    out->budget_bytes = prefix->options.budget_bytes;
    out->n_dirty = prefix->n_unsaved;
    out->dirty_bytes = prefix->stuck_bytes;
    out->reading_bytes = prefix->reading_bytes;
    out->n_checkpoints = prefix->n_checkpoints;
    out->n_queued = prefix->writer.n_jobs;
    out->n_pinned = prefix->n_pinned;
    out->n_pins = prefix->n_pins;
    out->pinned_bytes = prefix->pinned_bytes;
}
