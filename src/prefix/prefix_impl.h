/*
 * prefix: the RAM tier around the token tree.
 *
 *      prefix.c    create, destroy, poll, statistics        lease.c     acquire, lend, release: what a request sees
 *      tree.c      pins, recency, unsaved marks, roots      reader.c    reads from the tier in flight, joined
 *      insert.c    put and restored state into nodes        writer.c    write-behind: the store worker
 *      insert_plan.c  what fits of it                       store_job.c what one store takes along
 *      path.c      paths as caches                          flush.c     everything unsaved, within a bound
 *      windows.c   which window blocks are needed           inbox.c     what other threads have finished
 *      checkpoints.c  which checkpoints are kept            evict.c     budgets, making room
 *      policy_*.c  who leaves first                         admit_second.c  who may come in under pressure
 *      pins.c      paths that stay until a date
 *      match.c     how far a prompt is stored and usable    prefix_check.c  every invariant
 *      gate.c      whether a read is worth it               early.c     building on a read that has not ended
 *      logits.c    last logits of the latest prompts    finder.c    lookups in the tier in flight, joined
 *      logits_tier.c  their way to the tier and back
 *
 * Threads: the engine thread owns everything in firn_prefix except the mailboxes below.
 *
 *      engine --- jobs ---> store worker         writer.mutex guards the queue of jobs and `stopping`
 *      engine --- finds --> finder               its mutex guards the queue of lookups, who is left, objects that come
 *      engine <-- inbox --- all of them, tier    inbox.mutex guards the list of messages and `n_posting`
 *
 * Lock order: all three mutexes are leaves. Neither is ever held while the other is taken, during a callback, or during
 * any call of the tier, the pool or a cache. A job or a read belongs to one side at a time; handing it over through a
 * mailbox is what makes its contents visible to the other.
 */
#ifndef FIRNI_PREFIX_IMPL_H
#define FIRNI_PREFIX_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base_impl.h"
#include "prefix/admission_impl.h"
#include "prefix/gate_impl.h"
#include "prefix/tree_impl.h"

typedef enum firni_message_kind { FIRNI_MESSAGE_STORED, FIRNI_MESSAGE_FOUND, FIRNI_MESSAGE_READ } firni_message_kind;

/* First member of a job, of a lookup and of a read: posting one allocates nothing, so it cannot fail. */
typedef struct firni_message {
    firni_message_kind kind;
    struct firni_message *next;
} firni_message;

typedef struct firni_inbox {
    pthread_mutex_t mutex;
    pthread_cond_t posted;     /* signalled at each message and when a post has ended */
    firni_message *head, *tail; /* guarded by mutex */
    uint32_t n_posting;         /* guarded by mutex: posts that are still about to call notify */
    bool ready;                 /* mutex and condition exist */
} firni_inbox;

/* One store on its way: its own copies and references, so that the tree may change meanwhile. */
typedef struct firni_job {
    firni_message message;
    struct firni_job *next;
    firn_prefix *prefix;
    firni_node *leaf;          /* pinned; NULL: last logits alone */
    struct firni_logits *logits; /* one reference, or NULL */
    char *ns;
    firn_token *tokens;
    uint32_t n_tokens;
    firn_cache **caches;       /* one per layer */
    uint32_t first_window;     /* the first node whose window blocks are among it, of all window layers */
    uint64_t store_ns;         /* how long the tier took */
    int priority;
    bool stored;               /* the tier's answer */
    firn_reason reason;
} firni_job;

typedef struct firni_writer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t queued;
    firni_job *head, *tail;    /* guarded by mutex */
    bool stopping;             /* guarded by mutex */
    bool has_mutex, has_thread;

    /* Engine thread only from here. */
    uint32_t n_jobs;           /* queued or running */
    uint32_t n_refused;        /* refused attempts since the last success; drives the pause */
    firn_reason last_refusal;
    uint64_t next_try_ns;      /* nothing is queued before, after a refusal */
    uint64_t progress_ns;      /* when the worker last went from idle to busy or ended a store */
} firni_writer;

/* One lookup in the tier in flight. */
typedef struct firni_find {
    firni_message message;
    struct firni_find *prev, *next; /* in firn_prefix.finds */
    struct firni_find *next_queued; /* guarded by the finder's mutex */
    firn_lease *waiters;       /* none: it has begun, and its answer is not wanted */
    char *ns;
    firn_token *tokens;
    uint32_t n_tokens;
    uint64_t started_ns;
    /* Written by the finder's thread before it posts the message. */
    firn_match match;
    firn_match whole;          /* of all of the prompt, when the logits behind it have come too */
    struct firni_logits *logits;
    uint64_t ended_ns;
    /* Guarded by the finder's mutex: the tier's answer on the way to logits. */
    bool has_object;
    firn_restored object;
} firni_find;

typedef struct firni_finder firni_finder; /* finder.c */

/* One read of the tier in flight. */
typedef struct firni_read {
    firni_message message;
    struct firni_read *prev, *next; /* in firn_prefix.reads */
    firn_prefix *prefix;
    firn_tier_handle *handle;
    firn_lease *waiters;
    char *ns;
    firn_token *tokens;        /* what the state must turn out to cover */
    uint32_t n_tokens;
    int priority;              /* of who asked first */
    uint64_t room_bytes;       /* of the pool, that the restored blocks will take */
    uint64_t started_ns;
    firn_block **head;         /* [n_layers][n_head_blocks]: what RAM had when it began, one reference each, or NULL */
    uint32_t n_head_blocks;
    atomic_bool unwanted;      /* nobody waits: once set, it ends early and nobody joins it. Set by the engine thread */
    /* Guarded by inbox.mutex; each change is told by inbox.posted. */
    firn_cache **early;        /* what is arriving, one cache per layer; NULL before the first report */
    uint32_t n_layers_ready;
    uint64_t n_bytes_done, n_bytes_total;
    uint64_t began_ns, reported_ns; /* the tier's first report and its last; 0: none yet */
    bool has_ended;            /* the answer is there: reason says which */
    /* Written by the tier's thread before it posts the message. */
    firn_restored restored;
    firn_reason reason;
    uint64_t ended_ns;
} firni_read;

/* Logits behind the last token of one prompt. Immutable but for the marks, which are the engine thread's. */
typedef struct firni_logits {
    struct firni_logits *next; /* in firn_prefix.logits */
    uint32_t n_refs;           /* the list, and leases */
    char *ns;
    firn_token *tokens;
    uint32_t n_tokens;
    uint32_t n_logits;
    float *values;
    bool ram_only;             /* the tier is not to get them */
    bool is_saved;             /* the tier has them */
    bool is_storing;           /* a job is on its way */
    uint64_t flush_mark;       /* the flush that has tried */
} firni_logits;

struct firn_lease {
    firn_prefix *prefix;
    firn_lease *prev, *next;   /* in firn_prefix.leases */
    firn_lease *next_waiter;
    firni_find *find;          /* what it waits for: first an answer, then what that promised; at most one of them */
    firni_read *read;
    firni_node *node;          /* deepest node in use, pinned; NULL when nothing is */
    char *ns;
    firn_token *prompt;
    uint32_t n_prompt;
    uint64_t deadline_ns;
    uint64_t since_ns;         /* when it began to wait */
    double compute_ns;         /* what computing instead of reading would take; 0: not known */
    uint64_t look_ns;          /* when to see next whether the wait is still worth it */
    struct firni_early *early; /* caches that were started on the read, or NULL */
    firni_logits *logits;      /* of all of the prompt; one reference, or NULL */
    int priority;
    uint64_t stamp;            /* the tree's when RAM was looked into */
    bool waited;               /* for the tier: what RAM holds may have changed since */
    bool is_from_below;        /* the read was given by a stack's lower tier */
    bool ready;
    firni_match ram;           /* how far the tree goes along the prompt; its node is not kept */
    uint32_t n_usable;         /* of these, tokens that could be resumed at, were they enough */
    firn_match below;          /* the tier's answer; the handle is gone */
    firn_lease_info info;
    /* The last node's blocks, whose tail may be replaced meanwhile, then the fixed-size states at n_tokens, whose
     * checkpoint may be dropped: one reference each, NULL where a layer has none. */
    firn_block *held[];
};

/* A path that does not leave before its end date. */
typedef struct firni_ram_pin {
    struct firni_ram_pin *next;
    char *name;
    uint64_t until_wall_ns;
    firni_node *node;          /* its end, pinned */
    uint32_t n_tokens;
    firni_checkpoint *checkpoint; /* at n_tokens, or NULL where layers have no fixed-size state */
} firni_ram_pin;

struct firn_prefix {
    const firn_env *env;
    firn_prefix_options options; /* defaults filled in */
    uint32_t n_layers;
    firn_cache **shapes;         /* one empty cache per layer: capabilities, geometry, and the source of lent caches */
    firni_families families;     /* of the shapes */
    uint32_t *family;            /* FIRNI_FAMILY_* of each layer */
    firn_row_view *views;        /* scratch of one insertion: one per layer */
    uint64_t node_bytes;         /* blocks of one node, all there */
    uint64_t window_bytes;       /* of these, of window layers */
    uint64_t checkpoint_bytes;   /* states of one checkpoint */

    firni_node **roots;          /* sorted by namespace */
    uint32_t n_roots, n_roots_max;
    uint64_t n_nodes;            /* without roots */
    uint64_t n_pinned;           /* nodes with pins, without roots */
    uint64_t stamp;              /* the last recency stamp */
    firni_blockset blocks;
    firni_heap clean;            /* leaves that may leave */
    uint64_t policy_clock;       /* rank of the last victim, for a policy that ranks */
    firni_admission admission;
    firni_heap unsaved;          /* leaves that may leave once they are stored */
    firni_heap shed;             /* nodes whose window blocks may leave */
    uint64_t n_checkpoints;
    uint64_t n_unsaved_checkpoints;
    uint64_t stuck_bytes;        /* what eviction cannot reach until something has been stored */

    firni_link lists[FIRNI_LISTS];
    uint64_t n_unsaved;
    uint64_t n_saved;            /* nodes that were unsaved and are not any more, since the beginning */
    struct {
        uint64_t start_ns, n_saved_before;
    } flush;                     /* the one in progress, while flushing */
    uint64_t flush_number;       /* counts flushes: what the nodes' marks are compared with */
    bool flushing;
    bool closing;                /* being destroyed: nothing is inserted or queued any more */

    firni_gate gate;
    firni_logits *logits;        /* the latest first */
    firni_ram_pin *pins;
    uint64_t n_pins;
    uint64_t pinned_bytes;       /* of the nodes on their paths, each once */

    firni_finder *finder;
    firni_find *finds, *finds_last; /* lookups, the oldest first */
    firni_read *reads;
    uint64_t reading_bytes;      /* sum of the reads' room_bytes */
    firn_lease *leases;
    firni_inbox inbox;
    firni_writer writer;
    firn_prefix_stats stats;     /* counters; what can be derived is filled in on request */
};

/* ---- tree.c ---- */

firni_node *firni_root_find(const firn_prefix *prefix, const char *ns);
firni_node *firni_root_make(firn_prefix *prefix, const char *ns); /* find, or create; NULL without memory */
void firni_root_drop_if_empty(firn_prefix *prefix, firni_node *root);
const char *firni_node_namespace(const firni_node *node);
void firni_pin(firn_prefix *prefix, firni_node *node);
void firni_unpin(firn_prefix *prefix, firni_node *node); /* may free a root that nothing needs any more */
/* Puts the node where its pins, children and mark say it belongs. Called after each change of one of them. */
void firni_settle(firn_prefix *prefix, firni_node *node);
void firni_touch(firn_prefix *prefix, firni_node *node); /* the path from here up becomes the most recently used */
/* The tier does not hold the node's token blocks, or does. */
void firni_mark_unsaved(firn_prefix *prefix, firni_node *node);
void firni_mark_saved(firn_prefix *prefix, firni_node *node);
/* Puts the node into the list of unsaved ones, or out of it, after something of it was marked. */
void firni_update_unsaved(firn_prefix *prefix, firni_node *node);
/* Brings the node's part of stuck_bytes up to date, after its mark, window holds or checkpoints have changed. */
void firni_count_stuck(firn_prefix *prefix, firni_node *node);
void firni_wait_for_store(firn_prefix *prefix, firni_node *node); /* at the end of the list */
void firni_stop_waiting(firn_prefix *prefix, firni_node *node);   /* nothing when it is not in the list */
/* Unlinks a leaf without pins and releases its blocks. */
void firni_remove_leaf(firn_prefix *prefix, firni_node *leaf);
uint64_t firni_node_bytes(const firn_prefix *prefix, const firni_node *node); /* of its blocks and checkpoints */

/* ---- match.c ---- */

/* Longest prefix of at most n_max tokens that the state on the path to `node` can resume at, and the node that holds
 * its last token; 0 and NULL when there is none. */
uint32_t firni_node_usable(const firn_prefix *prefix, firni_node *node, uint32_t n_max, firni_node **last);
/* The same over all paths that begin as tokens[0..n_max) do; `node` is the deepest one that the tokens lead to. */
uint32_t firni_tokens_usable(const firn_prefix *prefix, firni_node *node, const firn_token *tokens, uint32_t n_max,
                             firni_node **last);

/* ---- path.c ---- */

/* What a row is made of beside the path's blocks. */
typedef struct firni_path_end {
    const firni_node *node;     /* holds the last token; not used with n_tokens 0 */
    uint32_t n_tokens;
    firn_block *const *tail;    /* the last node's blocks by layer, or NULL for its own */
    firn_block *const *states;  /* the fixed-size states at n_tokens by layer, or NULL for those of its checkpoint */
    bool for_store;             /* with window blocks before those needed */
} firni_path_end;

/* Window blocks that a store takes along beside those needed: a chunk's worth, since each chunk is put. Few, because
 * they cannot leave while the store waits. */
enum { FIRNI_STORE_BLOCKS_MORE = 4 };

/* One serial cache per layer with n_tokens tokens, a usable position. On failure all slots are NULL. first_window: from
 * which block on the caches have the blocks of all window layers; may be NULL. */
firn_status firni_adopt_path(const firn_prefix *prefix, const firni_path_end *end, firn_cache **caches,
                             uint32_t *first_window, firn_error *err);
void firni_caches_destroy(const firn_prefix *prefix, firn_cache **caches);

/* ---- windows.c ---- */

/* Of how many kinds of window layers, counted from the longest window, the node has all blocks. */
uint32_t firni_count_windows(const firn_prefix *prefix, const firni_node *node);
bool firni_has_windows(const firn_prefix *prefix, const firni_node *node); /* of all */
/* Keeps the window blocks of the path to `node` from block `first` on, until the same call of unhold. */
void firni_windows_hold(firn_prefix *prefix, firni_node *node, uint32_t first);
void firni_windows_unhold(firn_prefix *prefix, firni_node *node, uint32_t first);
/* After the node's end or the number of its children has changed, and before it goes (gone). */
void firni_windows_follow(firn_prefix *prefix, firni_node *node, bool gone);
bool firni_may_shed(const firn_prefix *prefix, const firni_node *node);
void firni_windows_shed(firn_prefix *prefix, firni_node *node);

/* ---- checkpoints.c ---- */

/* NULL without memory. Not linked, without states. */
firni_checkpoint *firni_checkpoint_create(const firn_prefix *prefix, uint32_t n_tokens);
void firni_checkpoint_destroy(const firn_prefix *prefix, firni_checkpoint *checkpoint); /* not linked; accepts NULL */
firni_checkpoint *firni_checkpoint_find(const firni_node *node, uint32_t n_tokens); /* or NULL */
/* Takes the checkpoint and a reference to each of its states. The set of blocks has room. */
void firni_checkpoint_link(firn_prefix *prefix, firni_node *node, firni_checkpoint *checkpoint);
void firni_checkpoint_drop(firn_prefix *prefix, firni_node *node, firni_checkpoint *checkpoint);
void firni_checkpoint_mark_saved(firn_prefix *prefix, firni_node *node, firni_checkpoint *checkpoint);
/* Whether there is one where this one's block begins too: then it saves less than a block, and is stored at a flush
 * only. */
bool firni_checkpoint_is_covered(const firni_node *node, const firni_checkpoint *checkpoint);
/* Applies the retention rule to the conversation that ends at or below `node`; `fresh` is kept, whatever the rule says.
 * Returns whether something was dropped. Unsaved checkpoints stay, and are stored. */
bool firni_checkpoints_retain(firn_prefix *prefix, firni_node *node, const firni_checkpoint *fresh);

/* ---- insert.c ---- */

typedef struct firni_insertion {
    const char *ns;
    const firn_token *tokens;
    uint32_t n_tokens;
    const firn_cache *const *caches;
    bool is_stored;    /* the tier holds it */
    bool ram_only;     /* the tier is not to get it */
    int priority;
    bool unasked;      /* nobody waits for it */
    /* results */
    firni_node *last;  /* node that holds the last token that was kept; NULL when none was */
    bool added;        /* the tree holds more than before */
    uint64_t offered_bytes; /* blocks of these caches */
    uint64_t taken_bytes;   /* of these, blocks that the tree took */
} firni_insertion;

/* NONE, or why less than all was kept. */
firn_reason firni_insert(firn_prefix *prefix, firni_insertion *insertion);

/* ---- evict.c ---- */

/* Evicts until `bytes` more fit the tree's budget, or nothing of at most this priority may leave. */
bool firni_evict_for_budget(firn_prefix *prefix, uint64_t bytes, int priority);
/* firn_prefix_make_room() for something of this priority. */
bool firni_make_room_for(firn_prefix *prefix, uint64_t bytes, int priority);

/* ---- pins.c ---- */

void firni_pins_release(firn_prefix *prefix);
void firni_pins_expire(firn_prefix *prefix);
uint64_t firni_pins_next_ns(const firn_prefix *prefix); /* until the next one ends; UINT64_MAX: none will */

/* ---- inbox.c ---- */

firn_status firni_inbox_init(firn_prefix *prefix, firn_error *err);
void firni_inbox_deinit(firn_prefix *prefix);
void firni_inbox_post(firn_prefix *prefix, firni_message *message); /* from any thread; then calls notify */
void firni_inbox_drain(firn_prefix *prefix);                        /* handles all messages; never blocks */
/* Sleeps until there is a message, no longer than wait_ns. */
void firni_inbox_wait(firn_prefix *prefix, uint64_t wait_ns);
void firni_inbox_wait_idle(firn_prefix *prefix);                    /* until no post is under way */

/* ---- finder.c ---- */

firn_status firni_finder_init(firn_prefix *prefix, firn_error *err);
/* Waits for the lookup that runs, for as long as one may take; nobody else waits for one. Its answer is in the inbox
 * then, or it is left behind. */
void firni_finder_deinit(firn_prefix *prefix);
/* Makes `lease` wait for the tier's answer: joins the same lookup, or starts one. NONE when it waits now, else
 * why not. */
firn_reason firni_find_start(firn_prefix *prefix, firn_lease *lease);
void firni_find_leave(firn_lease *lease); /* the lease waits no more; a lookup that has not begun does not begin */
void firni_find_ended(firn_prefix *prefix, firni_find *find);
/* Whether the oldest lookup has not ended within the deadline: then nobody waits for one. And when it will be so. */
bool firni_finds_are_stuck(const firn_prefix *prefix, uint64_t now_ns);
uint64_t firni_finds_stuck_at_ns(const firn_prefix *prefix); /* UINT64_MAX: there are none */

/* ---- reader.c ---- */

/* Makes `lease` wait for a read of what the tier matched: joins one in flight that covers it, or starts one, which
 * takes match->handle. NONE when it waits now, else why there is no read. */
firn_reason firni_read_start(firn_prefix *prefix, firn_lease *lease, firn_match *match);
void firni_read_leave(firn_lease *lease); /* the lease waits no more; a read that nobody waits for ends early */
void firni_read_ended(firn_prefix *prefix, firni_read *read);
uint64_t firni_state_bytes(const firn_prefix *prefix, uint32_t n_tokens); /* of a row of so many tokens, all layers */

/* ---- lease.c ---- */

/* The tier has answered, after took_ns: the lease waits for a read, which takes the handle, or is ready. */
void firni_lease_found(firn_lease *lease, firn_match *match, uint64_t took_ns);
/* Ends the wait of a lease and settles its result. failure: why its read gave nothing, or NONE. */
void firni_lease_finish(firn_lease *lease, firn_reason failure, uint64_t restore_ns);
void firni_leases_expire(firn_prefix *prefix, uint64_t now_ns); /* those whose deadline has come */
uint64_t firni_leases_next_deadline(const firn_prefix *prefix); /* UINT64_MAX: nobody waits */

/* ---- prefix.c ---- */

void firni_latency_add(firn_latency *latency, uint64_t ns);

/* ---- early.c ---- */

/* Composed caches change their form with the count: their rows begin when all is there. */
bool firni_early_is_possible(const firn_prefix *prefix);
/* On the tier's thread: keeps what is arriving, and how much of it is there. */
void firni_early_report(firni_read *read, const firn_restore_progress *progress);
void firni_early_destroy(firn_lease *lease); /* nothing when it was not started */

/* ---- logits.c ---- */

/* A reference, or NULL. */
firni_logits *firni_logits_find(const firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns);
/* Not in the list, with one reference; the values are the caller's to fill in. NULL without memory. From any thread. */
firni_logits *firni_logits_create(const firn_env *env, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                                  uint32_t n_logits);
firni_logits *firni_logits_retain(firni_logits *logits);
void firni_logits_release(const firn_env *env, firni_logits *logits); /* accepts NULL */
/* Into the list, as the latest, unless they are there or too large. */
void firni_logits_list(firn_prefix *prefix, firni_logits *logits);
/* Their state has come into the tree: where it is of fixed size, it stays. */
void firni_logits_mark(const firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns);
void firni_logits_destroy_all(firn_prefix *prefix);

/* ---- logits_tier.c ---- */

/* What the tier brought for the lookup, as logits of n_logits numbers, not listed; NULL: it is no such thing. */
firni_logits *firni_logits_of_object(const firn_env *env, const firni_find *find, uint32_t n_logits);
/* The next ones that the flush in progress has to store, as a job, or NULL. */
firni_job *firni_logits_job_next(firn_prefix *prefix);
/* On the worker's thread. */
bool firni_logits_job_store(firn_prefix *prefix, const firni_job *job, firn_reason *reason);
void firni_logits_job_ended(firn_prefix *prefix, const firni_job *job);

/* ---- store_job.c ---- */

/* Drops unsaved checkpoints of the node that cannot be resumed any more, because the window before them has gone: nor
 * could they be from the tier. The node may be saved then. */
void firni_job_give_up(firn_prefix *prefix, firni_node *node);
/* A store of the path through `node`, or NULL without memory (NO_MEMORY), and when no position at or below the node can
 * be resumed (FAMILY_MISSING). */
firni_job *firni_job_create(firn_prefix *prefix, firni_node *node, firn_reason *reason);
void firni_job_destroy(firn_prefix *prefix, firni_job *job); /* accepts a half-built one */
void firni_job_keep_in_ram(firn_prefix *prefix, const firni_job *job); /* what it would have saved is given up */
/* Marks what a stored job has saved. */
void firni_job_mark_saved(firn_prefix *prefix, const firni_job *job);

/* ---- writer.c, flush.c ---- */

firn_status firni_writer_init(firn_prefix *prefix, firn_error *err);
void firni_writer_deinit(firn_prefix *prefix); /* waits for the store in progress */
/* Wants the path that ends at `node` stored. */
void firni_writer_want(firn_prefix *prefix, firni_node *node);
/* Queues what waits, as far as the queue and the pause after a refusal allow. */
void firni_writer_pump(firn_prefix *prefix);
/* Takes back the stores that have not begun, with what they hold; they are wanted again. Returns whether there were
 * any. */
bool firni_writer_recall(firn_prefix *prefix);
/* Wants the least recently used unsaved leaves stored now, tails included, until they would free `bytes`. */
void firni_writer_press(firn_prefix *prefix, uint64_t bytes);
void firni_job_ended(firn_prefix *prefix, firni_job *job);
/* The tier refused its last store, or has not ended one for as long as a read may take. */
bool firni_writer_is_ill(const firn_prefix *prefix, uint64_t now_ns);
/* Most bytes of unsaved nodes while it is ill: the rest of the budget stays evictable, so that serving goes on. */
uint64_t firni_unsaved_bytes_max(const firn_prefix *prefix);

#endif
