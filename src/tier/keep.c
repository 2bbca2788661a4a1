/*
 * The dispatcher over what tiers keep by name: checks that all implementations share, and what a tier without any of it
 * answers. Owns no state.
 */
#include <string.h>

#include "base/base_impl.h"
#include "firn/keep.h"

static bool is_name(const char *name)
{
    return name != NULL && name[0] != '\0' && strlen(name) <= FIRN_KEEP_NAME_BYTES_MAX;
}

static bool is_namespace(const char *ns)
{
    return ns == NULL || strlen(ns) <= FIRN_NAMESPACE_BYTES_MAX;
}

/* Whether the call can be made at all. */
static firn_status check(const firn_tier *tier, const char *ns, const char *name, firn_error *err)
{
    if (!is_name(name)) {
        return firni_fail(err, FIRN_ERR_INVALID, "a name has 1 to %d bytes", FIRN_KEEP_NAME_BYTES_MAX);
    }
    if (!is_namespace(ns)) {
        return firni_fail(err, FIRN_ERR_INVALID, "a cache namespace has at most %d bytes", FIRN_NAMESPACE_BYTES_MAX);
    }
    return tier->ops->keep != NULL
               ? FIRN_OK
               : firni_fail(err, FIRN_ERR_UNSUPPORTED, "the %s tier keeps nothing by name", tier->ops->name);
}

static const char *or_empty(const char *ns)
{
    return ns != NULL ? ns : "";
}

/* ---- pins -------------------------------------------------------------------------------------------------------- */

firn_status firn_tier_pin(firn_tier *tier, const firn_pin *pin, firn_error *err)
{
    const firn_status status = check(tier, pin->ns, pin->name, err);
    if (status != FIRN_OK) {
        return status;
    }
    if (pin->n_tokens == 0 || pin->until_wall_ns == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "a pin needs tokens and an end date");
    }
    firn_pin checked = *pin;
    checked.ns = or_empty(pin->ns);
    return tier->ops->keep->pin(tier, &checked, err);
}

firn_status firn_tier_unpin(firn_tier *tier, const char *name, firn_error *err)
{
    const firn_status status = check(tier, NULL, name, err);
    return status == FIRN_OK ? tier->ops->keep->unpin(tier, name, err) : status;
}

firn_status firn_tier_each_pin(firn_tier *tier, bool (*visit)(void *ctx, const firn_pin *pin), void *ctx,
                               firn_error *err)
{
    return tier->ops->keep != NULL ? tier->ops->keep->each_pin(tier, visit, ctx, err) : FIRN_OK;
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

firn_status firn_tier_put_session(firn_tier *tier, const firn_session *session, firn_error *err)
{
    const firn_status status = check(tier, session->ns, session->id, err);
    firn_session checked = *session;
    checked.ns = or_empty(session->ns);
    return status == FIRN_OK ? tier->ops->keep->put_session(tier, &checked, err) : status;
}

firn_status firn_tier_get_session(firn_tier *tier, const char *ns, const char *id,
                                  void (*found)(void *ctx, const firn_session *session), void *ctx, firn_error *err)
{
    const firn_status status = check(tier, ns, id, err);
    return status == FIRN_OK ? tier->ops->keep->get_session(tier, or_empty(ns), id, found, ctx, err) : status;
}

firn_status firn_tier_remove_session(firn_tier *tier, const char *ns, const char *id, firn_error *err)
{
    const firn_status status = check(tier, ns, id, err);
    return status == FIRN_OK ? tier->ops->keep->remove_session(tier, or_empty(ns), id, err) : status;
}

firn_status firn_tier_each_session(firn_tier *tier, bool (*visit)(void *ctx, const firn_session *session), void *ctx,
                                   firn_error *err)
{
    return tier->ops->keep != NULL ? tier->ops->keep->each_session(tier, visit, ctx, err) : FIRN_OK;
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

bool firn_tier_put_object(firn_tier *tier, const firn_object *object, firn_reason *reason)
{
    *reason = FIRN_REASON_DISABLED;
    if (check(tier, object->ns, object->key, NULL) != FIRN_OK || object->n_attachments == 0) {
        return false;
    }
    firn_object checked = *object;
    checked.ns = or_empty(object->ns);
    return tier->ops->keep->put_object(tier, &checked, reason);
}

firn_tier_handle *firn_tier_find_object(firn_tier *tier, const char *ns, const char *key, firn_reason *reason)
{
    *reason = FIRN_REASON_DISABLED;
    return check(tier, ns, key, NULL) == FIRN_OK ? tier->ops->keep->find_object(tier, or_empty(ns), key, reason) : NULL;
}

firn_reason firn_tier_get_object(firn_tier *tier, const char *ns, const char *key, firn_restored *out)
{
    *out = (firn_restored){ 0 };
    firn_reason reason;
    firn_tier_handle *handle = firn_tier_find_object(tier, ns, key, &reason);
    if (handle != NULL) {
        reason = firn_tier_restore(tier, handle, 0, out);
        firn_tier_release(tier, handle);
    }
    return reason;
}

firn_status firn_tier_remove_object(firn_tier *tier, const char *ns, const char *key, firn_error *err)
{
    const firn_status status = check(tier, ns, key, err);
    return status == FIRN_OK ? tier->ops->keep->remove_object(tier, or_empty(ns), key, err) : status;
}

firn_status firn_tier_each_object(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object), void *ctx,
                                  firn_error *err)
{
    return tier->ops->keep != NULL ? tier->ops->keep->each_object(tier, visit, ctx, err) : FIRN_OK;
}

firn_status firn_tier_forget(firn_tier *tier, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                             firn_error *err)
{
    const firn_status status = check(tier, ns, "a path", err);
    return status == FIRN_OK ? tier->ops->keep->forget(tier, or_empty(ns), tokens, n_tokens, err) : status;
}
