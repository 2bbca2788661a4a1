/*
 * The RAM tier: a tree of token blocks over one pool, with a firn_tier below it.
 *
 *      root(ns) -- [64 tokens] -- [64 tokens] -- [64 tokens]
 *                                      \-- [64 tokens] -- [17 tokens]      a leaf may hold a partial tail
 *
 * A node holds the block references of every layer that has token blocks. Tokens are compared, never only hashed.
 * Running rows and nodes share blocks in the same pool, so a hit copies nothing and the budget counts what is really
 * held.
 *
 *   - What can be resumed is the largest usable position over all families of layers. Layers that keep all blocks can
 *     be cut after any token. Window layers need the blocks before the position: a node may lack them. Layers with a
 *     fixed-size state need a *checkpoint* at exactly the position: the state of all of them, which put() leaves at the
 *     rows' own count.
 *   - acquire() finds the longest usable prefix of a prompt in RAM, and asks the tier below for more on a thread of its
 *     own; the read is started when there is more, and what was promised is pinned. Identical lookups and reads in
 *     flight are joined.
 *   - A read is started only when it is expected to be faster than computing what it brings: the rates of both are
 *     measured. One that turns out slower is given up after about a tenth of the time that computing takes. A read that
 *     nobody waits for any more ends early. Of what RAM has nothing is read.
 *   - The logits behind the last token of the latest prompts are kept: the same prompt again is found whole. A flush
 *     stores them below, after their state, where they take no more than an eighth of its bytes; there they are the
 *     first to go, and nothing goes for them. A lookup of just this prompt reads them again.
 *   - lend() makes serial caches that share the donor's blocks; the donor stays in place.
 *   - put() inserts what is new. With a tier below, new nodes are dirty until stored there: write-behind, on the store
 *     worker's thread. Dirty nodes stay readable and are retried; they leave RAM unstored only when there is no tier.
 *     Whole blocks are stored soon, and with fixed-size state up to the last checkpoint at or before their end. A
 *     partial tail is left to grow: it is stored by a flush, when room is wanted, or when dirty nodes, with those
 *     before them on their paths, take more than an eighth of the budget. While the tier refuses stores or hangs,
 *     put() accepts dirty nodes until that is a quarter of the budget, so that the rest stays evictable and serving
 *     goes on.
 *   - Of the checkpoints of one conversation those nearest to 0, 2, 32 and 512 blocks before the end of its prompt are
 *     kept, the latest, and one before each branch; the others are dropped as newer ones arrive, once they are stored.
 *   - Under pressure window blocks leave first that neither the end of a path, nor a branch, nor a lease needs; a later
 *     row brings them back. Then leaves, in the order of `policy`; never a pinned node, never a parent before its
 *     children. Where something is stored but cannot be resumed any more a lookup says FAMILY_MISSING.
 *
 * Threads: the tree belongs to one thread (the engine's). Only `notify` is called from other threads.
 */
#ifndef FIRN_PREFIX_H
#define FIRN_PREFIX_H

#include "firn/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_prefix firn_prefix;
typedef struct firn_lease firn_lease;

typedef struct firn_prefix_options {
    firn_pool *pool;               /* required; outlives the tree */
    const firn_schema *schema;     /* required; outlives the tree */
    firn_tier *tier;               /* the tier below, or NULL; outlives the tree */
    uint64_t budget_bytes;         /* most bytes of blocks the tree may reference; 0: the pool's budget */
    uint32_t min_tokens;           /* shortest prefix worth reusing or keeping; 0: 16 */
    uint32_t write_queue_max;      /* stores waiting for the worker; 0: 64 */
    uint64_t restore_deadline_ns;  /* longest wait for the tier, its answer and its read together; 0: 10 s */
    bool restore_always;           /* read also where computing is expected to be faster: for measurements and tests */
    uint64_t compute_ns_min;       /* time that computing one token takes at least, until it has been measured; 0: not
                                    * known */
    uint64_t layered_bytes_min;    /* reads of so much or more arrive layer by layer; 0: 16 MiB */
    uint64_t logits_bytes_max;     /* of last logits; 0: 16 MiB */
    uint32_t n_logits;             /* numbers behind a token, which those of the tier must have; 0: none are read
                                    * there */
    uint64_t retry_ns_min;         /* first pause before a failed store is tried again, doubled up to 64 times this; 0:
                                    * 100 ms */
    const char *policy;            /* who leaves first: "lru" (NULL), or "cost": what saves least for its bytes */
    const char *admission;         /* who may come in: "always" (NULL), or "second": while the cache is starved, what an
                                    * earlier request asked for too; the rest is refused with NO_MEMORY */
    void (*notify)(void *ctx);     /* called (any thread) when a lease became ready or a store ended; may be NULL */
    void *notify_ctx;
} firn_prefix_options;

firn_status firn_prefix_create(const firn_prefix_options *options, const firn_env *env, firn_prefix **out,
                               firn_error *err);
/* Waits for the store and the reads in progress, drops the rest of the queue (call firn_prefix_flush first to keep it),
 * releases all nodes. All leases released before. Accepts NULL. A lookup that the tier does not answer is left behind
 * after restore_deadline_ns. A store or a read is not, since it uses memory of the pool: a tier whose store never
 * returns, or that never answers a read, holds this call up for as long. */
void firn_prefix_destroy(firn_prefix *prefix);

/* What a lease found. Its reason says why it is not more:
 *   NONE         everything stored of the prompt is used: only its last token is left, or the stored tokens simply end
 *   DIVERGED     a stored token differs at first_divergence
 *   NO_PREFIX    not even the first token is stored
 *   BELOW_MIN    something matches, but less than min_tokens
 *   BREAKEVEN    the tier has less than min_tokens more than RAM, or reading it would take longer than computing it
 *   FAMILY_MISSING  more tokens are stored, but not with the window or the state that resuming them takes
 *   DEADLINE     a lookup in the tier or a read did not end in time; until it has ended, no other is waited for
 *   NO_MEMORY    there is no room for what would be read, or no place in the tree for what was
 * or the reason that the tier gave for a failed read or, when RAM matches less than the tier, for a miss. */
typedef struct firn_lease_info {
    uint32_t n_tokens;        /* tokens of the prompt that need no computation: ram_tokens + disk_tokens */
    uint32_t ram_tokens;
    uint32_t disk_tokens;     /* restored from the tier below */
    uint32_t below_tokens;    /* of these: where that is a stack, those that its lower tier gave */
    firn_reason reason;       /* why not more: see above */
    uint32_t first_divergence;/* first prompt token that no stored state covers; the prompt's length: all are stored */
    bool diverged;            /* a stored token differs there (false: the stored tokens simply end) */
    firn_token stored_token;  /* the stored side, when diverged */
    uint64_t restore_ns;      /* time the tier read took, or the tier was waited for in vain; 0 without one */
} firn_lease_info;

/* Starts a lookup of prompt[0..n_tokens) in namespace ns (NULL: ""). At least one token is left to compute, unless the
 * logits behind the last one are there too (firn_lease_logits). The tier is read when it has at least min_tokens more
 * than RAM and reading is worth it. The tokens are copied. Errors: NO_MEMORY, INVALID (ns too
 * long, n_tokens 0); a miss is not an error. */
firn_status firn_prefix_acquire(firn_prefix *prefix, const firn_token *prompt, uint32_t n_tokens, const char *ns,
                                firn_lease **out, firn_error *err);
/* The same for a request of this priority: a read for it evicts nothing that is worth more. */
firn_status firn_prefix_acquire_with(firn_prefix *prefix, const firn_token *prompt, uint32_t n_tokens, const char *ns,
                                     int priority, firn_lease **out, firn_error *err);
/* True when neither a lookup nor a read of the tier is in flight for it any more: at once without a tier, or when RAM
 * has all that could be used of the prompt; after the deadline at the latest. */
bool firn_lease_ready(firn_lease *lease);
/* The result; call only when ready. */
firn_lease_info firn_lease_result(firn_lease *lease);
/* Makes one serial cache per layer with firn_lease_result().n_tokens tokens, sharing the tree's blocks; `caches` has
 * room for schema.n_layers and the caches are the caller's. With n_tokens 0 they have one empty row each. */
firn_status firn_lease_lend(firn_lease *lease, firn_cache **caches, firn_error *err);
/* The logits behind the prompt's last token, when the result covers all of the prompt; else NULL. Valid until the lease
 * is released. Call only when ready. */
const float *firn_lease_logits(const firn_lease *lease);
/* Unpins and frees; also cancels the wait for a read, and the read when nobody else waits for it. Accepts NULL. */
void firn_lease_release(firn_lease *lease);

/* A read that arrives layer by layer may be built upon before it has ended. */
typedef struct firn_lease_start {
    uint32_t n_tokens;       /* that the read will bring */
    uint64_t remaining_ns;   /* expected, until its last layer is there */
} firn_lease_start;

/* Whether the lease, which is not ready, may start so now. */
bool firn_lease_may_start(const firn_lease *lease, firn_lease_start *out);
/* Makes one serial cache per layer with start.n_tokens tokens, whose memory is there; the contents of a layer are once
 * firn_lease_await_layer() has said so. Whoever appends to them must not publish anything of it before the lease is
 * ready and its result covers start.n_tokens; else they are to be destroyed, and the prompt computed. Call at most once
 * for a lease, after may_start. Errors: NO_MEMORY. */
firn_status firn_lease_start_caches(firn_lease *lease, firn_cache **caches, firn_error *err);
/* Waits until the contents of the layer are in the started caches. False: the read has failed, or until_ns has come. */
bool firn_lease_await_layer(firn_lease *lease, uint32_t layer, uint64_t until_ns);
bool firn_lease_is_arriving(const firn_lease *lease); /* its last layer is not there yet */

/* Keeps the logits behind the prompt tokens[0..n_tokens), whose state is in the tree, or will be: copied, the latest
 * few are kept. where: as their state was put, not FIRN_STORE_NONE. Benign when there is no memory. */
void firn_prefix_keep_logits(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                             const float *logits, uint32_t n_logits, firn_store_where where);
/* Says how long a forward took that computed n_tokens prompt tokens at about this depth: what a read is
 * compared with. */
void firn_prefix_learn_compute(firn_prefix *prefix, uint32_t n_tokens, uint32_t depth_tokens, uint64_t ns);

/* Inserts the state of tokens[0..n_tokens): caches are serial, one per layer, borrowed. Shared prefixes are stored
 * once. Returns true when the tree holds all of it now (reason NONE), or a longer head of it than before (reason: why
 * not the rest); false with a reason when nothing was added (below min_tokens, no room); never an error for the caller.
 * `reason` may be NULL. */
bool firn_prefix_put(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                     const firn_cache *const *caches, firn_reason *reason);

/* The same under a policy, which is not FIRN_STORE_NONE. A node has the highest priority of those who put it; lower
 * ones leave first, and a put evicts nothing that is worth more than itself. What was put for RAM alone is stored once
 * somebody puts the same tokens without that wish. */
bool firn_prefix_put_with(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                          const firn_cache *const *caches, firn_cache_policy policy, firn_reason *reason);

/* Keeps a path that the tree holds, and can resume at its end, until a date (nanoseconds since 1970). A pin of the same
 * name is replaced. Errors: NOT_FOUND, CAPACITY (pins take at most half of the budget), INVALID (less than min_tokens),
 * NO_MEMORY: nothing changed. */
firn_status firn_prefix_pin(firn_prefix *prefix, const char *name, const firn_token *tokens, uint32_t n_tokens,
                            const char *ns, uint64_t until_wall_ns, firn_error *err);
bool firn_prefix_unpin(firn_prefix *prefix, const char *name); /* whether there was one */

/* Evicts until the pool has `bytes` of room beside what reads in flight will take, or nothing more that would give it
 * any may be evicted; returns whether there is room. When there is not, stores of dirty leaves are started, so that a
 * later call can do better. */
bool firn_prefix_make_room(firn_prefix *prefix, uint64_t bytes);
/* Handles finished stores and reads, retries and deadlines; call from the engine loop whenever notified, and at least
 * every retry_ns_min while something is dirty. Never blocks. Returns the nanoseconds until it next has something to do
 * (UINT64_MAX: nothing). */
uint64_t firn_prefix_poll(firn_prefix *prefix);
uint64_t firn_prefix_idle_ns(const firn_prefix *prefix); /* the same number, and nothing is done */
/* Stores everything dirty, partial tails included, waiting at most bound_ns; then flushes the tier. The report counts
 * nodes. Each path is tried once: a refusal is not waited out. */
firn_flush_report firn_prefix_flush(firn_prefix *prefix, uint64_t bound_ns);

/* The same while the tree is used: begin, then ask after each poll until it has ended, or give it up. False from begin:
 * there is no tier, or a flush is under way. What comes after the beginning is not part of the report, and the tier
 * itself is not flushed. */
bool firn_prefix_flush_begin(firn_prefix *prefix);
bool firn_prefix_flush_ended(firn_prefix *prefix, bool give_up, firn_flush_report *report);

/* Durations by size: counts[i] of at most firn_latency_bound_ns(i), single, not cumulative. */
#define FIRN_LATENCY_BUCKETS 14
typedef struct firn_latency {
    uint64_t counts[FIRN_LATENCY_BUCKETS];
    uint64_t ns_total;
} firn_latency;

uint64_t firn_latency_bound_ns(uint32_t bucket); /* UINT64_MAX: of the last one, which has none */

typedef struct firn_prefix_stats {
    uint64_t n_nodes, held_bytes, budget_bytes;
    uint64_t n_dirty, n_queued, n_pinned;
    uint64_t dirty_bytes;         /* most bytes that may not leave until something is stored: of dirty nodes, and of
                                   * those before them on their paths */
    uint64_t n_pins, pinned_bytes; /* by name; and what does not leave for them */
    uint64_t reading_bytes;       /* that reads in flight have taken of the pool, or will */
    uint64_t n_checkpoints;
    uint64_t n_lookups, n_hits_ram, n_hits_disk;
    uint64_t hit_tokens_ram, hit_tokens_disk, miss_tokens;
    uint64_t hit_tokens_below; /* of hit_tokens_disk: see below_tokens */
    uint64_t n_evicted, n_stores, n_store_failures;
    uint64_t n_shed;              /* nodes that gave up their window blocks and stayed */
    uint64_t n_checkpoints_dropped; /* by the retention rule */
    uint64_t wasted_bytes;        /* restored from the tier and then not used */
    uint64_t restored_bytes;      /* that the tier delivered; wasted_bytes is a part of it */
    uint64_t n_finds;             /* lookups in the tier */
    uint64_t n_finds_joined;      /* prompts that waited for the answer to another one that was the same */
    uint64_t n_restores;          /* reads of the tier that were started */
    uint64_t n_restores_joined;   /* lookups that waited for a read in flight */
    uint64_t n_restores_refused;  /* by the gate: computing is expected to be faster */
    uint64_t n_restore_probes;    /* reads started all the same, to see whether the tier has become faster */
    uint64_t n_restores_given_up; /* waits that ended because computing had become the faster way */
    uint64_t n_restores_cancelled; /* reads that nobody waited for any more */
    uint64_t n_restores_failed;   /* for another reason */
    firn_latency restore_latency; /* of reads that ended well */
    firn_latency store_latency;   /* of stores that ended well */
    uint64_t n_logits, logits_bytes; /* last logits that are kept */
    uint64_t n_logits_hits;       /* prompts that were found whole */
    uint64_t n_logits_stored, n_logits_refused; /* by the tier */
    uint64_t n_logits_restored;   /* found there */
    uint64_t reasons[FIRN_REASON_COUNT];
} firn_prefix_stats;

void firn_prefix_get_stats(const firn_prefix *prefix, firn_prefix_stats *out);
/* Asserts every invariant of the tree (token counts, pins, byte accounting, recency order). For tests. */
void firn_prefix_check(const firn_prefix *prefix);

#ifdef __cplusplus
}
#endif
#endif
