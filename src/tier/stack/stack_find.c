/*
 * Lookups: the longer usable prefix of both tiers, and the handles that promise it. Owns the handles; a handle of the
 * stack is one of either tier with the path's name, so that the path can be looked for again elsewhere.
 *
 * A lookup is answered by the upper alone when nothing could be better. Otherwise two answers become one:
 *
 *      handle, prefix_len        of the longer usable prefix; of equals, the upper's
 *      matched_len, diverged     of the one whose stored tokens agree longer
 *      reason                    of that one as well; where both agree equally far, the more telling of the two
 */
#include <assert.h>

#include "tier/stack/stack_impl.h"

/* ---- handles ----------------------------------------------------------------------------------------------------- */

void firni_stacked_handle_unref(firni_stacked_handle *handle)
{
    if (handle != NULL && atomic_fetch_sub(&handle->refs, 1) == 1) {
        const firn_env *env = handle->stacked->env;
        firni_free(env, handle->ns);
        firni_free(env, handle->key);
        firni_free(env, handle->tokens);
        firni_free(env, handle);
    }
}

/* Takes the tier's handle over. NULL without memory: then it has been given back. */
static firn_tier_handle *wrap(firni_stacked *stacked, firn_tier *from, firn_tier_handle *own,
                              const firni_stacked_handle *of)
{
    firni_stacked_handle *handle = firni_calloc(stacked->env, 1, sizeof *handle);
    if (handle != NULL) {
        handle->stacked = stacked;
        atomic_init(&handle->refs, 1);
        handle->from = from;
        handle->handle = own;
        handle->n_tokens = of->n_tokens;
        handle->ns = firni_strdup(stacked->env, of->ns);
        handle->key = of->key != NULL ? firni_strdup(stacked->env, of->key) : NULL;
        handle->tokens = firni_tokens_copy(stacked->env, of->tokens, of->n_tokens);
    }
    if (handle == NULL || handle->ns == NULL || handle->tokens == NULL || (of->key != NULL && handle->key == NULL)) {
        firni_stacked_handle_unref(handle);
        firn_tier_release(from, own);
        return NULL;
    }
    return (firn_tier_handle *)handle;
}

void firni_stacked_release(firn_tier *tier, firn_tier_handle *opaque)
{
    firni_stacked_handle *handle = (firni_stacked_handle *)opaque;
    (void)tier;
    firn_tier_release(handle->from, handle->handle);
    handle->handle = NULL;
    firni_stacked_handle_unref(handle);
}

/* ---- the lower --------------------------------------------------------------------------------------------------- */

/* One lookup in the lower, of a prompt, of exact tokens, or of an object by its key. */
typedef struct lookup {
    firni_below call; /* first */
    char *ns, *key;
    firn_token *tokens;
    uint32_t n_tokens;
    bool exact;
    firn_match match;
} lookup;

static void look_up(firni_below *call)
{
    lookup *look = (lookup *)call;
    firn_tier *lower = call->stacked->lower;
    if (look->key != NULL) {
        look->match.handle = firn_tier_find_object(lower, look->ns, look->key, &look->match.reason);
    } else if (look->exact) {
        look->match = firn_tier_find_exact(lower, look->tokens, look->n_tokens, look->ns);
    } else {
        look->match = firn_tier_find(lower, look->tokens, look->n_tokens, look->ns);
    }
}

static void drop_lookup(firni_below *call)
{
    lookup *look = (lookup *)call;
    const firn_env *env = call->stacked->env;
    firn_tier_release(call->stacked->lower, look->match.handle);
    firni_free(env, look->ns);
    firni_free(env, look->key);
    firni_free(env, look->tokens);
    firni_free(env, look);
}

/* The lower's answer, within the bound. */
static firn_match ask_lower(firni_stacked *stacked, const firni_stacked_handle *of, bool exact, uint64_t bound_ns)
{
    firn_match match = { .reason = FIRN_REASON_NO_MEMORY };
    lookup *look = firni_calloc(stacked->env, 1, sizeof *look);
    if (look == NULL) {
        return match;
    }
    *look = (lookup){ .call = { .stacked = stacked, .work = look_up, .drop = drop_lookup },
                      .ns = firni_strdup(stacked->env, of->ns),
                      .key = of->key != NULL ? firni_strdup(stacked->env, of->key) : NULL,
                      .tokens = firni_tokens_copy(stacked->env, of->tokens, of->n_tokens),
                      .n_tokens = of->n_tokens,
                      .exact = exact };
    if (look->ns == NULL || look->tokens == NULL || (of->key != NULL && look->key == NULL)) {
        drop_lookup(&look->call);
        return match;
    }
    match.reason = FIRN_REASON_DEADLINE;
    if (firni_below_run(stacked, &look->call, bound_ns)) {
        match = look->match;
        look->match.handle = NULL;
        drop_lookup(&look->call);
    }
    return match;
}

firn_tier_handle *firni_below_find_exact(firni_stacked *stacked, const firni_stacked_handle *of, uint32_t n_tokens,
                                         uint64_t bound_ns)
{
    firni_stacked_handle wanted = { .ns = of->ns, .key = of->key, .tokens = of->tokens, .n_tokens = n_tokens };
    return ask_lower(stacked, &wanted, true, bound_ns).handle;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* How much a reason says about a miss. */
static int telling(firn_reason reason)
{
    switch (reason) {
    case FIRN_REASON_NONE: return 0;
    case FIRN_REASON_NO_PREFIX: return 1;
    case FIRN_REASON_DISABLED: return 2;
    case FIRN_REASON_WRONG_IDENTITY: return 3;
    case FIRN_REASON_BELOW_MIN: return 4;
    case FIRN_REASON_DIVERGED: return 5;
    case FIRN_REASON_FAMILY_MISSING: return 6;
    case FIRN_REASON_EXPIRED: return 7;
    default: return 8; /* a failure: somebody may have to do something */
    }
}

/* Which of the two explains. */
static const firn_match *explaining(const firn_match *a, const firn_match *b)
{
    if (a->matched_len != b->matched_len) {
        return a->matched_len > b->matched_len ? a : b;
    }
    if (a->prefix_len != b->prefix_len) {
        return a->prefix_len > b->prefix_len ? a : b;
    }
    return telling(b->reason) > telling(a->reason) ? b : a;
}

/* One answer of two; the handle is still the tier's own. */
static firn_match combine(const firn_match *upper, const firn_match *lower, uint32_t n_wanted)
{
    firn_match match = *explaining(upper, lower);
    const firn_match *chosen = lower->prefix_len > upper->prefix_len || upper->handle == NULL ? lower : upper;
    match.handle = chosen->handle;
    match.prefix_len = chosen->prefix_len;
    if (match.handle != NULL && match.prefix_len >= n_wanted) {
        match.reason = FIRN_REASON_NONE;
    }
    assert((match.reason == FIRN_REASON_NONE) == (match.handle != NULL && match.prefix_len >= n_wanted));
    return match;
}

static void count(firni_stacked *stacked, const firn_match *match, const firn_tier *from)
{
    pthread_mutex_lock(&stacked->mutex);
    if (match->handle != NULL) {
        stacked->own.n_hits++;
        stacked->counts.n_hits_upper += from == stacked->upper;
        stacked->counts.n_hits_lower += from == stacked->lower;
    } else {
        stacked->own.n_misses++;
        stacked->own.miss_reasons[match->reason]++;
    }
    pthread_mutex_unlock(&stacked->mutex);
}

/* What the lower has besides. */
static firn_match with_lower(firni_stacked *stacked, const firn_match *upper, const firni_stacked_handle *of,
                             bool exact, firn_tier **from)
{
    const bool may_ask = firni_below_may_ask(stacked);
    pthread_mutex_lock(&stacked->mutex);
    stacked->counts.n_lower_finds += may_ask;
    stacked->counts.n_lower_skipped += !may_ask;
    pthread_mutex_unlock(&stacked->mutex);
    firn_match lower = { .reason = FIRN_REASON_DEADLINE };
    if (may_ask) {
        lower = ask_lower(stacked, of, exact, stacked->options.lower_deadline_ns);
    }
    const firn_match match = combine(upper, &lower, exact ? of->n_tokens : of->n_tokens - 1);
    *from = match.handle == upper->handle ? stacked->upper : stacked->lower;
    if (match.handle != upper->handle) {
        firn_tier_release(stacked->upper, upper->handle);
    } else {
        firn_tier_release(stacked->lower, lower.handle);
    }
    return match;
}

static firn_match find(firni_stacked *stacked, const firni_stacked_handle *of, bool exact)
{
    firni_stacked_note_use(stacked);
    firn_match match = exact ? firn_tier_find_exact(stacked->upper, of->tokens, of->n_tokens, of->ns)
                             : firn_tier_find(stacked->upper, of->tokens, of->n_tokens, of->ns);
    firn_tier *from = stacked->upper;
    if (exact ? match.handle == NULL : match.prefix_len < of->n_tokens - 1) {
        match = with_lower(stacked, &match, of, exact, &from);
    }
    if (match.handle != NULL) {
        firni_stacked_handle found = *of;
        found.n_tokens = match.prefix_len;
        match.handle = wrap(stacked, from, match.handle, &found);
        if (match.handle == NULL) {
            match = (firn_match){ .reason = FIRN_REASON_NO_MEMORY };
        }
    }
    count(stacked, &match, from);
    return match;
}

/* The name of a path in the caller's own memory: nothing writes through it. */
static firni_stacked_handle name_of(const char *ns, const firn_token *tokens, uint32_t n_tokens)
{
    return (firni_stacked_handle){ .ns = (char *)(uintptr_t)ns,
                                   .tokens = (firn_token *)(uintptr_t)tokens,
                                   .n_tokens = n_tokens };
}

firn_match firni_stacked_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    const firni_stacked_handle of = name_of(ns, prompt, n_tokens);
    return find(firni_stacked_of(tier), &of, false);
}

firn_match firni_stacked_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    const firni_stacked_handle of = name_of(ns, tokens, n_tokens);
    return find(firni_stacked_of(tier), &of, true);
}

firn_tier_handle *firni_stacked_find_object(firn_tier *tier, const char *ns, const char *key, firn_reason *reason)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firni_stacked_handle of = name_of(ns, NULL, 0);
    of.key = (char *)(uintptr_t)key;
    firn_tier *from = stacked->upper;
    firn_tier_handle *own = firn_tier_find_object(stacked->upper, ns, key, reason);
    if (own == NULL) {
        const firn_match below = ask_lower(stacked, &of, true, stacked->options.lower_deadline_ns);
        own = below.handle;
        from = stacked->lower;
        *reason = telling(below.reason) > telling(*reason) ? below.reason : *reason;
    }
    if (own == NULL) {
        return NULL;
    }
    firn_tier_handle *handle = wrap(stacked, from, own, &of);
    *reason = handle != NULL ? FIRN_REASON_NONE : FIRN_REASON_NO_MEMORY;
    return handle;
}
