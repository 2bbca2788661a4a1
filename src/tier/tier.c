/*
 * The dispatcher over tiers: pre- and postconditions that all implementations share, and what an optional member that
 * is NULL means. Owns no state.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "record/record_impl.h"

static bool namespace_fits(const char *ns)
{
    return ns == NULL || strlen(ns) <= FIRN_NAMESPACE_BYTES_MAX;
}

/* What every answer to a lookup keeps. */
static void assert_match(const firn_match *match, uint32_t n_usable_max)
{
    assert(match->prefix_len <= n_usable_max);
    assert(match->prefix_len <= match->matched_len);
    assert(match->handle != NULL || (match->prefix_len == 0 && match->reason != FIRN_REASON_NONE));
    assert(match->reason < FIRN_REASON_COUNT);
    (void)match;
    (void)n_usable_max;
}

firn_match firn_tier_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    assert(namespace_fits(ns));
    if (n_tokens == 0) {
        return (firn_match){ .reason = FIRN_REASON_NO_PREFIX };
    }
    const firn_match match = tier->ops->find(tier, prompt, n_tokens, ns != NULL ? ns : "");
    assert_match(&match, n_tokens - 1);
    assert(match.handle == NULL || match.prefix_len > 0);
    return match;
}

firn_match firn_tier_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    assert(namespace_fits(ns));
    if (tier->ops->find_exact == NULL) {
        return (firn_match){ .reason = FIRN_REASON_NO_PREFIX };
    }
    const firn_match match = tier->ops->find_exact(tier, tokens, n_tokens, ns != NULL ? ns : "");
    assert_match(&match, n_tokens);
    assert(match.handle == NULL || match.prefix_len == n_tokens);
    return match;
}

firn_reason firn_tier_restore(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out)
{
    *out = (firn_restored){ 0 };
    const firn_reason reason = tier->ops->restore(tier, handle, n_tokens, out);
    assert(reason != FIRN_REASON_NONE || n_tokens == 0 || out->n_tokens == n_tokens);
    assert(reason == FIRN_REASON_NONE || (out->caches == NULL && out->tokens == NULL && out->attachments == NULL));
    return reason;
}

firn_status firn_tier_restore_async(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, uint64_t deadline_ns,
                                    firn_restore_done done, void *ctx, firn_error *err)
{
    assert(done != NULL);
    if (tier->ops->restore_async != NULL) {
        return tier->ops->restore_async(tier, handle, n_tokens, deadline_ns, done, ctx, err);
    }
    /* Default: read now, on the caller's thread. */
    firn_restored restored;
    const firn_reason reason = firn_tier_restore(tier, handle, n_tokens, &restored);
    done(ctx, reason == FIRN_REASON_NONE ? &restored : NULL, reason);
    return FIRN_OK;
}

firn_status firn_tier_restore_request(firn_tier *tier, firn_tier_handle *handle, const firn_restore_request *request,
                                      firn_error *err)
{
    assert(request->done != NULL && (request->head != NULL || request->n_head_blocks == 0));
    assert(request->n_tokens == 0 || request->n_head_blocks <= request->n_tokens / FIRN_BLOCK_TOKENS);
    if (tier->ops->restore_request != NULL) {
        return tier->ops->restore_request(tier, handle, request, err);
    }
    return firn_tier_restore_async(tier, handle, request->n_tokens, request->deadline_ns, request->done, request->ctx,
                                   err);
}

firn_status firn_tier_restore_object_async(firn_tier *tier, firn_tier_handle *handle, uint64_t deadline_ns,
                                           firn_restore_done done, void *ctx, firn_error *err)
{
    assert(done != NULL);
    if (tier->ops->restore_object_async == NULL) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "the %s tier keeps no objects", tier->ops->name);
    }
    return tier->ops->restore_object_async(tier, handle, deadline_ns, done, ctx, err);
}

firn_reason firn_tier_restore_into(firn_tier *tier, firn_tier_handle *handle, firn_pool *pool, firn_restored *out)
{
    if (tier->ops->restore_into == NULL) {
        return firn_tier_restore(tier, handle, 0, out);
    }
    *out = (firn_restored){ 0 };
    const firn_reason reason = tier->ops->restore_into(tier, handle, pool, out);
    assert(reason == FIRN_REASON_NONE || (out->caches == NULL && out->tokens == NULL && out->attachments == NULL));
    return reason;
}

bool firn_tier_store(firn_tier *tier, const firn_store_input *input, firn_reason *reason)
{
    assert(namespace_fits(input->ns));
    *reason = FIRN_REASON_NONE;
    firn_store_input checked = *input;
    checked.ns = input->ns != NULL ? input->ns : "";
    for (uint32_t i = 0; i < input->n_caches; i++) {
        const firn_cache *cache = input->caches[i];
        if (firn_cache_batch_size(cache) != 1 || !firn_cache_can_publish_row(cache, 0, input->n_tokens)) {
            *reason = FIRN_REASON_COUNT_MISMATCH;
            return false;
        }
    }
    const bool stored = tier->ops->store(tier, &checked, reason);
    assert(stored == (*reason == FIRN_REASON_NONE));
    return stored;
}

void firn_tier_release(firn_tier *tier, firn_tier_handle *handle)
{
    if (handle != NULL) {
        tier->ops->release(tier, handle);
    }
}

firn_flush_report firn_tier_flush(firn_tier *tier, uint64_t bound_ns)
{
    if (tier->ops->flush == NULL) {
        return (firn_flush_report){ .durable = true };
    }
    return tier->ops->flush(tier, bound_ns);
}

void firn_tier_get_stats(firn_tier *tier, firn_tier_stats *out)
{
    *out = (firn_tier_stats){ 0 };
    if (tier->ops->get_stats != NULL) {
        tier->ops->get_stats(tier, out);
    }
}

const firn_schema *firn_tier_schema(firn_tier *tier)
{
    return tier->ops->schema != NULL ? tier->ops->schema(tier) : NULL;
}

void firn_tier_destroy(firn_tier *tier)
{
    if (tier != NULL) {
        tier->ops->destroy(tier);
    }
}

void firn_restored_deinit(firn_restored *restored)
{
    for (uint32_t i = 0; restored->caches != NULL && i < restored->n_caches; i++) {
        firn_cache_destroy(restored->caches[i]);
    }
    firni_free(restored->env, restored->caches);
    firni_free(restored->env, restored->tokens);
    firni_attachments_free(restored->env, restored->attachments, restored->n_attachments);
    *restored = (firn_restored){ 0 };
}
