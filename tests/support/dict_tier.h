/*
 * The naive tier: a list of (namespace, tokens, caches) that always tells the truth. The reference that real tiers are
 * compared with, and the tier below in tests of the prefix tree.
 *
 * Everything is static inline, because only some test programs link the cache library.
 *
 *   - An exact duplicate replaces; nothing is evicted; nothing is shared between entries.
 *   - An entry is usable where its own rows can be published: plain rows at every count, a window's where its blocks
 *     are, fixed-size state at its own count.
 *   - Knobs in struct dict_tier make it refuse, fail, or leave asynchronous restores unanswered.
 */
#ifndef FIRN_TESTS_DICT_TIER_H
#define FIRN_TESTS_DICT_TIER_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "firn/tier.h"
#include "support/support.h"

typedef struct dict_entry {
    struct dict_entry *next;
    char *ns;
    firn_token *tokens;
    uint32_t n_tokens;
    firn_cache **caches;          /* serial; NULL for objects without caches */
    uint32_t n_caches;
    firn_attachment *attachments; /* deep copies */
    uint32_t n_attachments;
} dict_entry;

/* A handle names a prefix by value, so it stays meaningful when its entry is replaced. */
typedef struct dict_handle {
    char *ns;
    firn_token *tokens;
    uint32_t n_tokens;
} dict_handle;

typedef struct dict_job {
    struct dict_job *next;
    dict_handle *handle;
    uint32_t n_tokens;
    uint64_t deadline_ns;
    firn_restore_done done;
    void *ctx;
} dict_job;

typedef struct dict_tier {
    firn_tier tier; /* first: a dict_tier is a firn_tier */
    const firn_env *env;
    pthread_mutex_t mutex;
    dict_entry *entries;         /* guarded by mutex, as all that follows */
    dict_job *jobs;              /* asynchronous restores that wait for dict_tier_complete() */
    /* knobs: set under dict_tier_lock() when other threads use the tier */
    firn_reason store_reason;    /* not NONE: stores are refused with it */
    uint32_t store_refusals;     /* with store_reason: refuse this many, then accept; 0: refuse all */
    firn_reason restore_reason;  /* not NONE: restores fail with it */
    bool hold_async;             /* restore_async answers only when dict_tier_complete() is called */
    /* counters */
    uint32_t n_finds, n_stores, n_refused, n_restores, n_handles;
    uint64_t stored_tokens;
} dict_tier;

static inline void dict_tier_lock(dict_tier *dict)
{
    pthread_mutex_lock(&dict->mutex);
}

static inline void dict_tier_unlock(dict_tier *dict)
{
    pthread_mutex_unlock(&dict->mutex);
}

static inline firn_token *dict_copy_tokens(const firn_token *tokens, uint32_t n_tokens)
{
    firn_token *copy = malloc((n_tokens + 1u) * sizeof *copy);
    assert_non_null(copy);
    if (n_tokens > 0) {
        memcpy(copy, tokens, n_tokens * sizeof *copy);
    }
    return copy;
}

/* Copies with the tier's environment, so that firn_restored_deinit() can free them. */
static inline firn_attachment *dict_copy_attachments(const firn_env *env, const firn_attachment *from, uint32_t n)
{
    firn_attachment *copies = firni_calloc(env, n, sizeof *copies);
    for (uint32_t a = 0; a < n; a++) {
        const firn_allocator *allocator =
            env != NULL && env->allocator != NULL ? env->allocator : firn_allocator_default();
        uint8_t *metadata = firni_calloc(env, from[a].n_metadata_bytes, 1);
        firn_tensor *tensors = firni_calloc(env, from[a].n_tensors, sizeof *tensors);
        if (metadata != NULL) {
            memcpy(metadata, from[a].metadata, from[a].n_metadata_bytes);
        }
        for (uint32_t t = 0; t < from[a].n_tensors; t++) {
            tensors[t] = from[a].tensors[t];
            tensors[t].data = firni_calloc(env, tensors[t].n_bytes, 1);
            memcpy(tensors[t].data, from[a].tensors[t].data, tensors[t].n_bytes);
            tensors[t].owned = true;
            tensors[t].allocator = allocator;
        }
        copies[a] = (firn_attachment){ .schema = firni_strdup(env, from[a].schema),
                                       .metadata = metadata,
                                       .n_metadata_bytes = from[a].n_metadata_bytes,
                                       .tensors = tensors,
                                       .n_tensors = from[a].n_tensors };
    }
    return copies;
}

static inline uint32_t dict_common(const dict_entry *entry, const firn_token *tokens, uint32_t n_tokens)
{
    uint32_t n = 0;
    while (n < entry->n_tokens && n < n_tokens && entry->tokens[n] == tokens[n]) {
        n++;
    }
    return n;
}

static inline dict_entry *dict_exact(const dict_tier *dict, const char *ns, const firn_token *tokens, uint32_t n_tokens)
{
    for (dict_entry *entry = dict->entries; entry != NULL; entry = entry->next) {
        if (strcmp(entry->ns, ns) == 0 && entry->n_tokens == n_tokens &&
            dict_common(entry, tokens, n_tokens) == n_tokens) {
            return entry;
        }
    }
    return NULL;
}

/* The largest count <= n_max at which all rows of the entry can be published. */
static inline uint32_t dict_usable(const dict_entry *entry, uint32_t n_max)
{
    for (uint32_t n = n_max; n > 0; n--) {
        bool can = true;
        for (uint32_t i = 0; can && i < entry->n_caches; i++) {
            can = firn_cache_can_publish_row(entry->caches[i], 0, n);
        }
        if (can) {
            return n;
        }
    }
    return 0;
}

/* The entry with caches that agrees longest with the tokens, and how far. */
static inline dict_entry *dict_best(const dict_tier *dict, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                                    uint32_t *n_common)
{
    dict_entry *best = NULL;
    *n_common = 0;
    for (dict_entry *entry = dict->entries; entry != NULL; entry = entry->next) {
        const uint32_t n =
            strcmp(entry->ns, ns) == 0 && entry->caches != NULL ? dict_common(entry, tokens, n_tokens) : 0;
        if (n > *n_common) {
            *n_common = n;
            best = entry;
        }
    }
    return best;
}

/* The entry that can be resumed furthest along the tokens, and how far. */
static inline dict_entry *dict_best_usable(const dict_tier *dict, const char *ns, const firn_token *tokens,
                                           uint32_t n_max, uint32_t *n_usable)
{
    dict_entry *best = NULL;
    *n_usable = 0;
    for (dict_entry *entry = dict->entries; entry != NULL; entry = entry->next) {
        const uint32_t n = strcmp(entry->ns, ns) == 0 && entry->caches != NULL
                               ? dict_usable(entry, dict_common(entry, tokens, n_max))
                               : 0;
        if (n > *n_usable) {
            *n_usable = n;
            best = entry;
        }
    }
    return best;
}

static inline firn_match dict_make_match(dict_tier *dict, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                                         firn_match match)
{
    dict_handle *handle = calloc(1, sizeof *handle);
    assert_non_null(handle);
    handle->ns = strdup(ns);
    handle->tokens = dict_copy_tokens(tokens, n_tokens);
    handle->n_tokens = n_tokens;
    dict->n_handles++;
    match.handle = (firn_tier_handle *)handle;
    match.prefix_len = n_tokens;
    return match;
}

static inline firn_match dict_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    dict_tier *dict = (dict_tier *)tier;
    dict_tier_lock(dict);
    dict->n_finds++;
    firn_match match = { .reason = FIRN_REASON_NO_PREFIX };
    const dict_entry *best = dict_best(dict, ns, prompt, n_tokens, &match.matched_len);
    if (best != NULL && match.matched_len < best->n_tokens && match.matched_len < n_tokens) {
        match.diverged = true;
        match.stored_token = best->tokens[match.matched_len];
        match.reason = FIRN_REASON_DIVERGED;
    } else if (match.matched_len >= n_tokens - 1) {
        match.reason = FIRN_REASON_NONE;
    }
    uint32_t usable;
    (void)dict_best_usable(dict, ns, prompt, n_tokens - 1, &usable);
    if (usable < match.matched_len && usable < n_tokens - 1) {
        match.reason = FIRN_REASON_FAMILY_MISSING;
    }
    if (usable > 0) {
        match = dict_make_match(dict, ns, prompt, usable, match);
    } else if (match.matched_len == 0) {
        match.reason = FIRN_REASON_NO_PREFIX;
    } else if (match.reason != FIRN_REASON_FAMILY_MISSING) {
        match.reason = FIRN_REASON_BELOW_MIN; /* one token, which is left to compute */
    }
    dict_tier_unlock(dict);
    return match;
}

static inline firn_match dict_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    dict_tier *dict = (dict_tier *)tier;
    dict_tier_lock(dict);
    firn_match match = { .reason = FIRN_REASON_NO_PREFIX };
    (void)dict_best(dict, ns, tokens, n_tokens, &match.matched_len);
    uint32_t usable;
    (void)dict_best_usable(dict, ns, tokens, n_tokens, &usable);
    const bool found = n_tokens == 0 ? dict_exact(dict, ns, tokens, 0) != NULL : usable == n_tokens;
    if (found) {
        match.reason = FIRN_REASON_NONE;
        match = dict_make_match(dict, ns, tokens, n_tokens, match);
    }
    dict_tier_unlock(dict);
    return match;
}

/* The first n tokens of each of the entry's rows, as caches of their own. */
static inline void dict_cut(const dict_tier *dict, const dict_entry *entry, uint32_t n_tokens, firn_restored *out)
{
    out->n_caches = entry->n_caches;
    out->caches = firni_calloc(dict->env, entry->n_caches, sizeof *out->caches);
    for (uint32_t i = 0; i < entry->n_caches; i++) {
        assert_ok(firn_cache_extract_row(entry->caches[i], 0, &out->caches[i], NULL));
        assert_ok(firn_cache_trim_row(out->caches[i], 0, firn_cache_row_tokens(out->caches[i], 0) - n_tokens, NULL));
    }
}

static inline firn_reason dict_restore(firn_tier *tier, firn_tier_handle *opaque, uint32_t n_tokens, firn_restored *out)
{
    dict_tier *dict = (dict_tier *)tier;
    const dict_handle *handle = (const dict_handle *)opaque;
    const uint32_t n = n_tokens == 0 ? handle->n_tokens : n_tokens;
    assert_true(n <= handle->n_tokens);
    dict_tier_lock(dict);
    dict->n_restores++;
    firn_reason reason = dict->restore_reason;
    uint32_t n_common;
    const dict_entry *best = dict_best_usable(dict, handle->ns, handle->tokens, n, &n_common);
    const dict_entry *exact = dict_exact(dict, handle->ns, handle->tokens, n);
    if (reason == FIRN_REASON_NONE && (n > 0 ? n_common < n : exact == NULL)) {
        reason = FIRN_REASON_GONE;
    }
    if (reason == FIRN_REASON_NONE) {
        out->env = dict->env;
        out->n_tokens = n;
        out->tokens = firni_calloc(dict->env, n, sizeof *out->tokens);
        if (n > 0) {
            memcpy(out->tokens, handle->tokens, n * sizeof *out->tokens);
            dict_cut(dict, best, n, out);
        }
        if (exact != NULL && exact->n_attachments > 0) {
            out->n_attachments = exact->n_attachments;
            out->attachments = dict_copy_attachments(dict->env, exact->attachments, exact->n_attachments);
        }
    }
    dict_tier_unlock(dict);
    return reason;
}

static inline void dict_entry_destroy(const dict_tier *dict, dict_entry *entry)
{
    for (uint32_t i = 0; i < entry->n_caches; i++) {
        firn_cache_destroy(entry->caches[i]);
    }
    firn_restored attachments = { .env = dict->env,
                                  .attachments = entry->attachments,
                                  .n_attachments = entry->n_attachments };
    firn_restored_deinit(&attachments);
    free(entry->caches);
    free(entry->tokens);
    free(entry->ns);
    free(entry);
}

static inline void dict_remove(dict_tier *dict, const dict_entry *entry)
{
    for (dict_entry **link = &dict->entries; *link != NULL; link = &(*link)->next) {
        if (*link == entry) {
            dict_entry *found = *link;
            *link = found->next;
            dict_entry_destroy(dict, found);
            return;
        }
    }
}

static inline bool dict_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    dict_tier *dict = (dict_tier *)tier;
    dict_tier_lock(dict);
    if (dict->store_reason != FIRN_REASON_NONE) {
        *reason = dict->store_reason;
        dict->n_refused++;
        if (dict->store_refusals > 0 && --dict->store_refusals == 0) {
            dict->store_reason = FIRN_REASON_NONE;
        }
        dict_tier_unlock(dict);
        return false;
    }
    dict_entry *entry = calloc(1, sizeof *entry);
    assert_non_null(entry);
    entry->ns = strdup(input->ns);
    entry->tokens = dict_copy_tokens(input->tokens, input->n_tokens);
    entry->n_tokens = input->n_tokens;
    if (input->n_caches == 0 && input->n_tokens > 0) { /* attachments alone: their state must be there, and is kept */
        uint32_t n_usable;
        const dict_entry *best = dict_best_usable(dict, input->ns, input->tokens, input->n_tokens, &n_usable);
        if (n_usable < input->n_tokens) {
            dict_entry_destroy(dict, entry);
            *reason = FIRN_REASON_FAMILY_MISSING;
            dict->n_refused++;
            dict_tier_unlock(dict);
            return false;
        }
        firn_restored cut = { .env = dict->env };
        dict_cut(dict, best, input->n_tokens, &cut);
        entry->n_caches = cut.n_caches;
        entry->caches = calloc(cut.n_caches, sizeof(firn_cache *));
        assert_non_null(entry->caches);
        memcpy(entry->caches, cut.caches, cut.n_caches * sizeof(firn_cache *));
        firni_free(dict->env, cut.caches);
    }
    if (input->n_caches > 0 && input->n_tokens > 0) {
        entry->n_caches = input->n_caches;
        entry->caches = calloc(input->n_caches, sizeof(firn_cache *));
        assert_non_null(entry->caches);
        for (uint32_t i = 0; i < input->n_caches; i++) {
            assert_ok(firn_cache_extract_row(input->caches[i], 0, &entry->caches[i], NULL));
            const uint32_t surplus = firn_cache_row_tokens(entry->caches[i], 0) - input->n_tokens;
            assert_ok(firn_cache_trim_row(entry->caches[i], 0, surplus, NULL));
        }
    }
    if (input->n_attachments > 0) {
        entry->n_attachments = input->n_attachments;
        entry->attachments = dict_copy_attachments(dict->env, input->attachments, input->n_attachments);
    }
    dict_entry *old = dict_exact(dict, input->ns, input->tokens, input->n_tokens);
    if (old != NULL && entry->n_attachments == 0) {
        /* State without attachments does not take away those that are there. */
        entry->attachments = old->attachments;
        entry->n_attachments = old->n_attachments;
        old->attachments = NULL;
        old->n_attachments = 0;
    }
    if (old != NULL) {
        dict_remove(dict, old);
    }
    entry->next = dict->entries;
    dict->entries = entry;
    dict->n_stores++;
    dict->stored_tokens += input->n_tokens;
    dict_tier_unlock(dict);
    return true;
}

static inline void dict_handle_free(dict_handle *handle)
{
    free(handle->ns);
    free(handle->tokens);
    free(handle);
}

static inline void dict_release(firn_tier *tier, firn_tier_handle *handle)
{
    dict_tier *dict = (dict_tier *)tier;
    dict_tier_lock(dict);
    assert_true(dict->n_handles > 0);
    dict->n_handles--;
    dict_tier_unlock(dict);
    dict_handle_free((dict_handle *)handle);
}

static inline firn_status dict_restore_async(firn_tier *tier, firn_tier_handle *opaque, uint32_t n_tokens,
                                             uint64_t deadline_ns, firn_restore_done done, void *ctx, firn_error *err)
{
    (void)err;
    dict_tier *dict = (dict_tier *)tier;
    dict_tier_lock(dict);
    const bool hold = dict->hold_async;
    if (hold) {
        const dict_handle *handle = (const dict_handle *)opaque;
        dict_job *job = calloc(1, sizeof *job);
        assert_non_null(job);
        job->handle = calloc(1, sizeof *job->handle);
        assert_non_null(job->handle);
        job->handle->ns = strdup(handle->ns);
        job->handle->tokens = dict_copy_tokens(handle->tokens, handle->n_tokens);
        job->handle->n_tokens = handle->n_tokens;
        job->n_tokens = n_tokens;
        job->deadline_ns = deadline_ns;
        job->done = done;
        job->ctx = ctx;
        dict_job **link = &dict->jobs;
        while (*link != NULL) {
            link = &(*link)->next;
        }
        *link = job;
    }
    dict_tier_unlock(dict);
    if (!hold) {
        firn_restored restored;
        const firn_reason reason = firn_tier_restore(tier, opaque, n_tokens, &restored);
        done(ctx, reason == FIRN_REASON_NONE ? &restored : NULL, reason);
    }
    return FIRN_OK;
}

/* Answers the oldest held restore on the caller's thread: with its result, or with `reason` when that is not NONE.
 * Returns false when none waits. */
static inline bool dict_tier_complete(dict_tier *dict, firn_reason reason)
{
    dict_tier_lock(dict);
    dict_job *job = dict->jobs;
    if (job != NULL) {
        dict->jobs = job->next;
    }
    dict_tier_unlock(dict);
    if (job == NULL) {
        return false;
    }
    firn_restored restored = { 0 };
    if (reason == FIRN_REASON_NONE) {
        reason = firn_tier_restore(&dict->tier, (firn_tier_handle *)job->handle, job->n_tokens, &restored);
    }
    job->done(job->ctx, reason == FIRN_REASON_NONE ? &restored : NULL, reason);
    dict_handle_free(job->handle);
    free(job);
    return true;
}

static inline void dict_get_stats(firn_tier *tier, firn_tier_stats *out)
{
    dict_tier *dict = (dict_tier *)tier;
    dict_tier_lock(dict);
    for (const dict_entry *entry = dict->entries; entry != NULL; entry = entry->next) {
        out->n_records++;
    }
    out->n_stores = dict->n_stores;
    out->n_store_refused = dict->n_refused;
    dict_tier_unlock(dict);
}

static inline void dict_destroy(firn_tier *tier)
{
    dict_tier *dict = (dict_tier *)tier;
    while (dict_tier_complete(dict, FIRN_REASON_GONE)) {
    }
    assert_int_equal(dict->n_handles, 0);
    while (dict->entries != NULL) {
        dict_remove(dict, dict->entries);
    }
    pthread_mutex_destroy(&dict->mutex);
    free(dict);
}

/* Never NULL. Destroy with firn_tier_destroy(&dict->tier), which asserts that all handles were released. */
static inline dict_tier *dict_tier_create(const firn_env *env)
{
    static const firn_tier_ops ops = {
        .name = "dict",
        .find = dict_find,
        .find_exact = dict_find_exact,
        .restore = dict_restore,
        .restore_async = dict_restore_async,
        .store = dict_store,
        .release = dict_release,
        .get_stats = dict_get_stats,
        .destroy = dict_destroy,
    };
    dict_tier *dict = calloc(1, sizeof *dict);
    assert_non_null(dict);
    dict->tier.ops = &ops;
    dict->env = env;
    pthread_mutex_init(&dict->mutex, NULL);
    return dict;
}

#endif
