/*
 * What is kept by name: in the upper, and repeated in the lower so that a lost upper does not take it along.
 *
 *                put                                          get                              remove
 *      pin       upper; lower once its path is there          lists of both                    both
 *      session   upper; lower when the upper refuses          upper, else lower                both
 *      object    upper and lower                              upper, else lower                both
 *
 * Owns the order of the two and what their answers together mean. Lists are stack_listing.c's. A call to the lower has
 * copies, because it may be left behind.
 */
#include <string.h>

#include "record/record_impl.h"
#include "tier/stack/stack_impl.h"

/* ---- calls to the lower ------------------------------------------------------------------------------------------ */

/* One call, with copies of all that it names; what it does not use is NULL. */
typedef struct keep_call {
    firni_below call; /* first */
    firn_status (*ask)(firn_tier *lower, struct keep_call *keep);
    char *ns, *name;
    firn_token *tokens;
    uint32_t n_tokens;
    uint64_t time_ns;      /* of its end, or of its last use */
    firn_attachment *attachments;
    uint32_t n_attachments;
    int priority;
    bool found;            /* by a search: the members above are what was found */
    firn_status status;
    firn_error err;
} keep_call;

static void run_keep(firni_below *call)
{
    keep_call *keep = (keep_call *)call;
    keep->status = keep->ask(call->stacked->lower, keep);
}

static void drop_keep(firni_below *call)
{
    keep_call *keep = (keep_call *)call;
    const firn_env *env = call->stacked->env;
    firni_attachments_free(env, keep->attachments, keep->n_attachments);
    firni_free(env, keep->ns);
    firni_free(env, keep->name);
    firni_free(env, keep->tokens);
    firni_free(env, keep);
}

/* NULL: no memory. `like` has what is to be copied. */
static keep_call *make_call(firni_stacked *stacked, const keep_call *like)
{
    keep_call *keep = firni_calloc(stacked->env, 1, sizeof *keep);
    if (keep == NULL) {
        return NULL;
    }
    bool ok;
    *keep = *like;
    keep->call = (firni_below){ .stacked = stacked, .work = run_keep, .drop = drop_keep };
    keep->ns = firni_strdup(stacked->env, like->ns != NULL ? like->ns : "");
    keep->name = firni_strdup(stacked->env, like->name != NULL ? like->name : "");
    keep->tokens = firni_tokens_copy(stacked->env, like->tokens, like->n_tokens);
    keep->attachments = firni_attachments_copy(stacked->env, like->attachments, like->n_attachments, &ok);
    keep->n_attachments = ok ? like->n_attachments : 0;
    if (!ok || keep->ns == NULL || keep->name == NULL || keep->tokens == NULL) {
        drop_keep(&keep->call);
        return NULL;
    }
    return keep;
}

/* Asks the lower; *out (may be NULL) is the call for whoever wants what it found, to be dropped, on FIRN_OK alone. */
static firn_status ask_lower(firni_stacked *stacked, const keep_call *like, keep_call **out, firn_error *err)
{
    keep_call *keep = make_call(stacked, like);
    if (keep == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to ask the lower tier");
    }
    if (!firni_below_run(stacked, &keep->call, stacked->options.lower_deadline_ns)) {
        return firni_fail(err, FIRN_ERR_DEADLINE, "the lower tier (%s) does not answer", stacked->lower->ops->name);
    }
    const firn_status status = keep->status;
    if (status != FIRN_OK && err != NULL) {
        *err = keep->err;
    }
    if (status == FIRN_OK && out != NULL) {
        *out = keep;
    } else {
        drop_keep(&keep->call);
    }
    return status;
}

/* Ends a removal that the upper was asked for: asks the lower too. What it came to: it was there, and is in neither. Of
 * failures the upper's comes first. */
static firn_status remove_below(firni_stacked *stacked, const keep_call *like, firn_status upper,
                                const firn_error *upper_err, firn_error *err)
{
    firn_error lower_err = { 0 };
    const firn_status lower = ask_lower(stacked, like, NULL, &lower_err);
    /* A tier without names has nothing to remove. */
    const bool upper_lacks = upper == FIRN_ERR_NOT_FOUND || upper == FIRN_ERR_UNSUPPORTED;
    const bool lower_lacks = lower == FIRN_ERR_NOT_FOUND || lower == FIRN_ERR_UNSUPPORTED;
    if ((upper == FIRN_OK || upper_lacks) && (lower == FIRN_OK || lower_lacks) &&
        (upper == FIRN_OK || lower == FIRN_OK)) {
        return FIRN_OK;
    }
    const bool is_upper = upper != FIRN_OK && (!upper_lacks || lower_lacks);
    if (err != NULL) {
        *err = is_upper ? *upper_err : lower_err;
    }
    return is_upper ? upper : lower;
}

/* ---- pins -------------------------------------------------------------------------------------------------------- */

/* The call's arguments are read only. */
static keep_call like_path(const char *ns, const char *name, const firn_token *tokens, uint32_t n_tokens)
{
    return (keep_call){ .ns = (char *)(uintptr_t)ns,
                        .name = (char *)(uintptr_t)name,
                        .tokens = (firn_token *)(uintptr_t)tokens,
                        .n_tokens = n_tokens };
}

static firn_status pin_below(firn_tier *lower, keep_call *keep)
{
    const firn_pin pin = { .name = keep->name,
                           .ns = keep->ns,
                           .tokens = keep->tokens,
                           .n_tokens = keep->n_tokens,
                           .until_wall_ns = keep->time_ns };
    return firn_tier_pin(lower, &pin, &keep->err);
}

static firn_status unpin_below(firn_tier *lower, keep_call *keep)
{
    return firn_tier_unpin(lower, keep->name, &keep->err);
}

static firn_status pin(firn_tier *tier, const firn_pin *wanted, firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    const firn_status status = firn_tier_pin(stacked->upper, wanted, err);
    if (status == FIRN_OK) {
        (void)firni_copy_unpin(stacked, wanted->name); /* another path may wait for the name */
        const firn_store_input path = { .tokens = wanted->tokens, .n_tokens = wanted->n_tokens, .ns = wanted->ns };
        firni_copy_note(stacked, &path, wanted->name, wanted->until_wall_ns);
        return FIRN_OK;
    }
    /* A path that only the lower has, or that the upper has no room to promise. */
    keep_call like = like_path(wanted->ns, wanted->name, wanted->tokens, wanted->n_tokens);
    like.ask = pin_below;
    like.time_ns = wanted->until_wall_ns;
    return ask_lower(stacked, &like, NULL, NULL) == FIRN_OK ? FIRN_OK : status;
}

static firn_status unpin(firn_tier *tier, const char *name, firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firn_error upper_err = { 0 };
    (void)firni_copy_unpin(stacked, name);
    const firn_status upper = firn_tier_unpin(stacked->upper, name, &upper_err);
    keep_call like = like_path(NULL, name, NULL, 0);
    like.ask = unpin_below;
    return remove_below(stacked, &like, upper, &upper_err, err);
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static firn_status put_session_below(firn_tier *lower, keep_call *keep)
{
    const firn_session session = { .id = keep->name,
                                   .ns = keep->ns,
                                   .tokens = keep->tokens,
                                   .n_tokens = keep->n_tokens,
                                   .used_wall_ns = keep->time_ns };
    return firn_tier_put_session(lower, &session, &keep->err);
}

static firn_status put_session(firn_tier *tier, const firn_session *session, firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    const firn_status status = firn_tier_put_session(stacked->upper, session, err);
    if (status == FIRN_OK) {
        return FIRN_OK;
    }
    keep_call like = like_path(session->ns, session->id, session->tokens, session->n_tokens);
    like.ask = put_session_below;
    like.time_ns = session->used_wall_ns;
    return ask_lower(stacked, &like, NULL, NULL) == FIRN_OK ? FIRN_OK : status;
}

/* Keeps a copy: the session is the lower's for the call alone. */
static void take_session(void *ctx, const firn_session *session)
{
    keep_call *keep = ctx;
    const firn_env *env = keep->call.stacked->env;
    firn_token *tokens = firni_tokens_copy(env, session->tokens, session->n_tokens);
    if (tokens != NULL) {
        firni_free(env, keep->tokens);
        keep->tokens = tokens;
        keep->n_tokens = session->n_tokens;
        keep->time_ns = session->used_wall_ns;
        keep->found = true;
    }
}

static firn_status get_session_below(firn_tier *lower, keep_call *keep)
{
    const firn_status status = firn_tier_get_session(lower, keep->ns, keep->name, take_session, keep, &keep->err);
    return status == FIRN_OK && !keep->found ? firni_fail(&keep->err, FIRN_ERR_NO_MEMORY, "no memory for a session")
                                             : status;
}

static firn_status get_session(firn_tier *tier, const char *ns, const char *id,
                               void (*found)(void *ctx, const firn_session *session), void *ctx, firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    const firn_status status = firn_tier_get_session(stacked->upper, ns, id, found, ctx, err);
    if (status == FIRN_OK) {
        return FIRN_OK;
    }
    keep_call like = like_path(ns, id, NULL, 0), *keep = NULL;
    like.ask = get_session_below;
    if (ask_lower(stacked, &like, &keep, NULL) != FIRN_OK) {
        return status;
    }
    const firn_session session = { .id = keep->name,
                                   .ns = keep->ns,
                                   .tokens = keep->tokens,
                                   .n_tokens = keep->n_tokens,
                                   .used_wall_ns = keep->time_ns };
    found(ctx, &session);
    drop_keep(&keep->call);
    return FIRN_OK;
}

static firn_status remove_session_below(firn_tier *lower, keep_call *keep)
{
    return firn_tier_remove_session(lower, keep->ns, keep->name, &keep->err);
}

static firn_status remove_session(firn_tier *tier, const char *ns, const char *id, firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firn_error upper_err = { 0 };
    const firn_status upper = firn_tier_remove_session(stacked->upper, ns, id, &upper_err);
    keep_call like = like_path(ns, id, NULL, 0);
    like.ask = remove_session_below;
    return remove_below(stacked, &like, upper, &upper_err, err);
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static firn_status put_object_below(firn_tier *lower, keep_call *keep)
{
    const firn_object object = { .key = keep->name,
                                 .ns = keep->ns,
                                 .attachments = keep->attachments,
                                 .n_attachments = keep->n_attachments,
                                 .until_wall_ns = keep->time_ns,
                                 .priority = keep->priority };
    firn_reason reason;
    return firn_tier_put_object(lower, &object, &reason)
               ? FIRN_OK
               : firni_fail(&keep->err, FIRN_ERR_IO, "the lower tier refuses (%s)", firn_reason_name(reason));
}

/* In both at once: objects are small, and the older one of a key must not come back when the upper is lost. */
static bool put_object(firn_tier *tier, const firn_object *object, firn_reason *reason)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    const bool is_above = firn_tier_put_object(stacked->upper, object, reason);
    keep_call like = like_path(object->ns, object->key, NULL, 0);
    like.ask = put_object_below;
    like.time_ns = object->until_wall_ns;
    like.priority = object->priority;
    like.attachments = (firn_attachment *)(uintptr_t)object->attachments;
    like.n_attachments = object->n_attachments;
    const bool is_below = ask_lower(stacked, &like, NULL, NULL) == FIRN_OK;
    pthread_mutex_lock(&stacked->mutex);
    stacked->is_lower_dirty = stacked->is_lower_dirty || is_below;
    pthread_mutex_unlock(&stacked->mutex);
    *reason = is_below ? FIRN_REASON_NONE : *reason;
    return is_above || is_below;
}

static firn_status remove_object_below(firn_tier *lower, keep_call *keep)
{
    return firn_tier_remove_object(lower, keep->ns, keep->name, &keep->err);
}

static firn_status remove_object(firn_tier *tier, const char *ns, const char *key, firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firn_error upper_err = { 0 };
    const firn_status upper = firn_tier_remove_object(stacked->upper, ns, key, &upper_err);
    keep_call like = like_path(ns, key, NULL, 0);
    like.ask = remove_object_below;
    return remove_below(stacked, &like, upper, &upper_err, err);
}

/* ---- forgetting -------------------------------------------------------------------------------------------------- */

static firn_status forget_below(firn_tier *lower, keep_call *keep)
{
    return firn_tier_forget(lower, keep->ns, keep->tokens, keep->n_tokens, &keep->err);
}

static firn_status forget(firn_tier *tier, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                          firn_error *err)
{
    firni_stacked *stacked = firni_stacked_of(tier);
    firn_error lower_err = { 0 };
    firni_copy_forget(stacked, ns, tokens, n_tokens);
    const firn_status upper = firn_tier_forget(stacked->upper, ns, tokens, n_tokens, err);
    keep_call like = like_path(ns, NULL, tokens, n_tokens);
    like.ask = forget_below;
    firn_status lower = ask_lower(stacked, &like, NULL, &lower_err);
    lower = lower == FIRN_ERR_UNSUPPORTED ? FIRN_OK : lower;
    if (upper == FIRN_OK && lower != FIRN_OK && err != NULL) {
        *err = lower_err;
    }
    return upper != FIRN_OK ? upper : lower;
}

const firn_keep_ops firni_stacked_keep = {
    .pin = pin,
    .unpin = unpin,
    .each_pin = firni_stacked_each_pin,
    .put_session = put_session,
    .get_session = get_session,
    .remove_session = remove_session,
    .each_session = firni_stacked_each_session,
    .put_object = put_object,
    .find_object = firni_stacked_find_object,
    .remove_object = remove_object,
    .each_object = firni_stacked_each_object,
    .forget = forget,
};
