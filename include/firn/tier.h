/*
 * firn_tier: where state goes when RAM lets go of it, and where it comes back from.
 *
 * A tier stores the state of token prefixes, all layers together, under one identity and many namespaces. Its whole
 * promise: a restore returns the complete state for a prefix (every layer, every family, one token count), or nothing
 * and a reason.
 *
 *      find(prompt) -> match {handle, prefix_len}      index only, no data I/O
 *      restore(handle) -> restored {tokens, caches}    or a reason
 *      store(tokens, caches) -> true | false + reason  returns when it is as durable as the tier was asked to be
 *
 * A *handle* promises its records: they are not evicted until the handle is released. Tiers stack; a stack is a tier.
 * Optional members may be NULL in the table: the functions below supply the stated default.
 *
 * Threads: find, find_exact, release, store and restore may be called from any thread, also at once. The caches that
 * restore makes belong to the caller.
 */
#ifndef FIRN_TIER_H
#define FIRN_TIER_H

#include "firn/identity.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_tier firn_tier;
typedef struct firn_tier_handle firn_tier_handle;

/* The answer to a lookup. A miss has handle == NULL, prefix_len == 0 and a reason. The explanation members are set in
 * both cases. */
typedef struct firn_match {
    firn_tier_handle *handle;   /* release with firn_tier_release(); NULL on a miss */
    uint32_t prefix_len;        /* usable tokens: smaller than the prompt's length for find() */
    firn_reason reason;         /* NONE when the match is as long as it could be; else why it is not longer */
    uint32_t matched_len;       /* tokens that were equal, usable or not; also the index of the first that differs */
    bool diverged;              /* a stored token differs at matched_len (false: the stored tokens simply end) */
    firn_token stored_token;    /* the stored side of the first difference, when diverged */
} firn_match;

/* Method state bound to an exact token count (drafter state, last logits): never trimmed, returned only at
 * its count. */
typedef struct firn_attachment {
    const char *schema;         /* names the meaning, e.g. "firn.last_logits.1"; 1..63 bytes */
    const void *metadata;       /* opaque bytes */
    uint32_t n_metadata_bytes;  /* at most 65,536 */
    const firn_tensor *tensors;
    uint32_t n_tensors;         /* at most 16 */
} firn_attachment;

/* A complete restored state. Owned by the caller: firn_restored_deinit() releases whatever it still holds. Take a cache
 * by setting its slot to NULL. `retain` keeps the backing of borrowed memory alive; NULL when, as with all tiers of
 * this library, everything is owned. */
typedef struct firn_restored {
    uint32_t n_tokens;
    firn_token *tokens;
    firn_cache **caches;        /* one serial cache per layer of the schema, each with n_tokens tokens */
    uint32_t n_caches;
    firn_attachment *attachments;
    uint32_t n_attachments;
    void (*retain)(void *ctx);
    void *retain_ctx;
    uint64_t n_bytes_read;
    uint32_t depth;             /* of a stack: how many tiers further down it came from; else 0 */
    const firn_env *env;
} firn_restored;

void firn_restored_deinit(firn_restored *restored); /* accepts a zeroed struct */

typedef struct firn_store_input {
    const firn_token *tokens;
    uint32_t n_tokens;
    const firn_cache *const *caches; /* one serial cache per layer; each row must be publishable at n_tokens */
    uint32_t n_caches;               /* 0: attachments alone, for state of these tokens that the tier has already;
                                      * FAMILY_MISSING where it has not all of it */
    const char *ns;                  /* NULL: "" */
    const firn_attachment *attachments;
    uint32_t n_attachments;
    int priority;                    /* -100..100: what is stored at a lower one is evicted first; nothing is evicted
                                      * for a store of a lower one than its own. What is there already is raised */
} firn_store_input;

/* Where the state of a request may be kept. */
typedef enum firn_store_where {
    FIRN_STORE_DISK = 0, /* in RAM, and in the tier below */
    FIRN_STORE_RAM = 1,  /* in RAM alone: it never reaches the tier, also not by a flush */
    FIRN_STORE_NONE = 2  /* nowhere */
} firn_store_where;

/* What one request may do with the cache. All-zero: read it, keep state wherever there is room, as worthy as any. */
typedef struct firn_cache_policy {
    bool no_read;            /* compute all of the prompt, whatever is stored */
    firn_store_where store;
    int priority;            /* as in firn_store_input */
} firn_cache_policy;

#define FIRN_PRIORITY_MIN (-100)
#define FIRN_PRIORITY_MAX 100

/* What a flush achieved. durable: nothing is missing and nothing failed. */
typedef struct firn_flush_report {
    bool durable;
    uint64_t n_flushed;
    uint64_t n_missing;   /* could not be saved within the bound */
    uint64_t n_failed;    /* refused by the tier; the state is still in RAM */
    uint64_t elapsed_ns;
} firn_flush_report;

typedef struct firn_tier_stats {
    uint64_t n_records;
    uint64_t physical_bytes;      /* st_blocks of everything the tier owns, index included */
    uint64_t budget_bytes;
    uint64_t written_bytes;       /* data written since open */
    uint64_t unique_bytes;        /* of these, bytes that were not stored before */
    uint64_t read_bytes;
    uint64_t wasted_bytes;        /* of these, for restores that failed, were cancelled or came too late: what was
                                   * delivered and then not used is counted by who asked for it */
    uint64_t n_cancelled;         /* restores that ended early, because nobody wanted them any more */
    uint64_t n_hits, n_misses;
    uint64_t n_stores, n_store_refused;
    uint64_t n_evicted, n_quarantined;
    uint64_t n_pins, pinned_bytes; /* pins by name, and what they keep from being evicted, each record once */
    uint64_t n_demoted, demoted_saved_bytes; /* records compressed since open, and what that has saved */
    uint64_t miss_reasons[FIRN_REASON_COUNT];
    firn_reason state;            /* NONE: healthy; else DISK_FULL, READ_ONLY, IO_ERROR, GONE: serving goes on */
} firn_tier_stats;

/* Called once per asynchronous restore, on a thread of the tier's. On success `restored` is the callee's to keep. */
typedef void (*firn_restore_done)(void *ctx, firn_restored *restored, firn_reason reason);

/* How far a restore has come; said first when it begins. The caches are those that `done` will bring: one row each of
 * the wanted count, whose memory is there and whose contents are those of the tokens in layers [0, n_layers) only,
 * verified. They are borrowed for the call; their blocks may be retained, and may not be written. Nothing of it may be
 * published before `done` has brought it: a later layer can still fail. */
typedef struct firn_restore_progress {
    firn_cache *const *caches;  /* [n_caches]; NULL and 0 without in_layer_order */
    uint32_t n_caches;
    uint32_t n_layers;          /* complete and verified; never falls; 0 until the end without in_layer_order */
    uint64_t n_bytes;           /* read so far */
    uint64_t n_bytes_total;
} firn_restore_progress;

/* An asynchronous restore with all that may be asked of it. Zeroed but for `done`: everything, without a deadline. */
typedef struct firn_restore_request {
    uint32_t n_tokens;          /* as for firn_tier_restore() */
    uint64_t deadline_ns;       /* as for firn_tier_restore_async() */
    /* What the caller has already of the first whole blocks: head[layer * n_head_blocks + i] is block i of the layer,
     * of the same tokens and schema, or NULL. They become part of the restored caches, and what they hold need not be
     * read. The array is copied, the blocks are retained. */
    firn_block *const *head;
    uint32_t n_head_blocks;
    bool in_layer_order;        /* lower layers first, as far as that is possible, and say when each is there */
    bool caches_only;           /* attachments need not be read */
    /* Both on a thread of the tier's, between two parts of the read, never after `done`; NULL: always wanted, nobody to
     * tell. When it is not wanted any more the read stops early: `done` has CANCELLED. */
    bool (*is_wanted)(void *ctx);
    void (*progress)(void *ctx, const firn_restore_progress *progress);
    firn_restore_done done;     /* required */
    void *ctx;
} firn_restore_request;

/* The table of one implementation. All members but those marked optional are required. */
typedef struct firn_tier_ops {
    const char *name;
    firn_match (*find)(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns);
    firn_match (*find_exact)(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns); /* optional:
                                                                                                             * a miss */
    firn_reason (*restore)(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out);
    firn_status (*restore_async)(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, uint64_t deadline_ns,
                                 firn_restore_done done, void *ctx, firn_error *err); /* optional: restore, then done */
    firn_status (*restore_object_async)(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                        firn_restore_done done, void *ctx, firn_error *err); /* optional: UNSUPPORTED */
    firn_status (*restore_request)(firn_tier *tier, firn_tier_handle *handle, const firn_restore_request *request,
                                   firn_error *err); /* optional: restore_async, everything, without progress */
    firn_reason (*restore_into)(firn_tier *tier, firn_tier_handle *handle, firn_pool *pool,
                                firn_restored *out); /* optional: restore, with blocks of the tier's own pool */
    bool (*store)(firn_tier *tier, const firn_store_input *input, firn_reason *reason);
    void (*release)(firn_tier *tier, firn_tier_handle *handle);
    firn_flush_report (*flush)(firn_tier *tier, uint64_t bound_ns); /* optional: nothing to flush */
    void (*get_stats)(firn_tier *tier, firn_tier_stats *out);       /* optional: zeros */
    const firn_schema *(*schema)(firn_tier *tier);                  /* optional: it cannot tell */
    const struct firn_keep_ops *keep; /* optional: pins, sessions and objects by key are not kept; firn/keep.h */
    void (*destroy)(firn_tier *tier);
} firn_tier_ops;

/* First member of every implementation. */
struct firn_tier {
    const firn_tier_ops *ops;
};

/* find: the longest stored usable prefix of `prompt` in namespace ns, at most n_tokens - 1 tokens, so that one is
 * always left to forward. Index only. Release match.handle. */
firn_match firn_tier_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns);
/* findExact: the entry stored for exactly these tokens (n_tokens may be 0: objects). */
firn_match firn_tier_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns);
/* restore: the first n_tokens of the match (0: all of match.prefix_len); fewer than all only where every family can
 * resume on the records that matched, FAMILY_MISSING otherwise. Fills *out and returns NONE, or leaves *out zeroed and
 * returns the reason. The handle stays the caller's. */
firn_reason firn_tier_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out);
/* restoreAsync: the same, answered through done, once, when the call returned FIRN_OK. deadline_ns is a time of the
 * tier's own monotonic clock (0: none): when it comes first, done is called with DEADLINE and the read's result is
 * dropped by the tier once it arrives. The handle may be released as soon as the call returned. Errors: BUSY (the
 * tier's queue is full), NO_MEMORY: done is not called. */
firn_status firn_tier_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, uint64_t deadline_ns,
                                    firn_restore_done done, void *ctx, firn_error *err);
/* The same with a request: a head that is there already, progress layer by layer, and an end before the end. A tier
 * without these reads everything, and says nothing on the way. */
firn_status firn_tier_restore_request(firn_tier *tier, firn_tier_handle *handle, const firn_restore_request *request,
                                      firn_error *err);
/* restoreObjectAsync: the attachments of an entry without its caches. Errors: as above, and UNSUPPORTED. */
firn_status firn_tier_restore_object_async(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                           firn_restore_done done, void *ctx, firn_error *err);
/* All of the match, with blocks of this pool in place of the tier's: for whoever carries state from one tier to
 * another, beside the pool that requests were promised. */
firn_reason firn_tier_restore_into(firn_tier *tier, firn_tier_handle *handle, firn_pool *pool, firn_restored *out);
/* store: borrows live caches; true once persisted to the tier's durability. False: nothing of this call is visible that
 * was not before, *reason says why, and whoever needed persistence keeps its donor. */
bool firn_tier_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason);
void firn_tier_release(firn_tier *tier, firn_tier_handle *handle); /* accepts NULL */
firn_flush_report firn_tier_flush(firn_tier *tier, uint64_t bound_ns);
void firn_tier_get_stats(firn_tier *tier, firn_tier_stats *out);
/* What the tier's state is of, for as long as the tier lives; NULL: it cannot tell, or is of no model. */
const firn_schema *firn_tier_schema(firn_tier *tier);
void firn_tier_destroy(firn_tier *tier); /* accepts NULL; all handles released before */

#ifdef __cplusplus
}
#endif
#endif
