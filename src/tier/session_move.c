/*
 * Sessions between a tier and their files. Owns the order of steps and what each failure is called; the form of a file
 * is session_file.c's, what a session and a pin are is firn/keep.h's.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "firn/keep.h"
#include "firn/session_file.h"

/* ---- out --------------------------------------------------------------------------------------------------------- */

/* Restores what was found and writes it; *n_written is set in the end. Takes the handle. */
static firn_status write_match(firn_tier *tier, const firn_schema *schema, firn_tier_handle *handle, const char *id,
                               firn_session_sink sink, void *ctx, const firn_env *env, uint32_t *n_written,
                               firn_error *err)
{
    firn_restored restored;
    const firn_reason reason = firn_tier_restore(tier, handle, 0, &restored);
    firn_tier_release(tier, handle);
    if (reason != FIRN_REASON_NONE) {
        return firni_fail(err, reason == FIRN_REASON_NO_MEMORY ? FIRN_ERR_NO_MEMORY : FIRN_ERR_CORRUPT,
                          "the state cannot be read (%s)", firn_reason_name(reason));
    }
    const firn_status status = firn_session_write(schema, id, restored.tokens, restored.n_tokens,
                                                  (const firn_cache *const *)restored.caches, sink, ctx, env, err);
    if (status == FIRN_OK) {
        *n_written = restored.n_tokens;
    }
    firn_restored_deinit(&restored);
    return status;
}

typedef struct found_tokens {
    const firn_env *env;
    firn_token *tokens; /* NULL without memory */
    uint32_t n_tokens;
} found_tokens;

static void copy_tokens(void *ctx, const firn_session *session)
{
    found_tokens *out = ctx;
    out->tokens = firni_calloc(out->env, (size_t)session->n_tokens + 1, sizeof *out->tokens);
    if (out->tokens != NULL) {
        memcpy(out->tokens, session->tokens, session->n_tokens * sizeof *out->tokens);
        out->n_tokens = session->n_tokens;
    }
}

firn_status firn_session_export(firn_tier *tier, const firn_schema *schema, const char *ns, const char *id,
                                firn_session_sink sink, void *ctx, const firn_env *env, uint32_t *n_written,
                                firn_error *err)
{
    *n_written = 0;
    found_tokens found = { .env = env };
    firn_status status = firn_tier_get_session(tier, ns, id, copy_tokens, &found, err);
    if (status == FIRN_OK && found.tokens == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the tokens of the session");
    }
    if (status == FIRN_OK) {
        const firn_match match = firn_tier_find_exact(tier, found.tokens, found.n_tokens, ns);
        status = match.handle != NULL
                     ? write_match(tier, schema, match.handle, id, sink, ctx, env, n_written, err)
                     : firni_fail(err, FIRN_ERR_STATE,
                                  "of the session's %" PRIu32 " tokens %" PRIu32 " are stored (%s); flush first if it "
                                  "has just ended",
                                  found.n_tokens, match.matched_len, firn_reason_name(match.reason));
    }
    firni_free(found.env, found.tokens);
    return status;
}

firn_status firn_session_export_prompt(firn_tier *tier, const firn_schema *schema, const char *ns,
                                       const firn_token *prompt, uint32_t n_tokens, firn_session_sink sink, void *ctx,
                                       const firn_env *env, uint32_t *n_written, firn_error *err)
{
    *n_written = 0;
    const firn_match match = firn_tier_find(tier, prompt, n_tokens, ns);
    if (match.handle == NULL) {
        return firni_fail(err, FIRN_ERR_STATE,
                          "of %" PRIu32 " tokens %" PRIu32 " are stored, and they cannot be resumed there (%s)",
                          n_tokens, match.matched_len, firn_reason_name(match.reason));
    }
    return write_match(tier, schema, match.handle, NULL, sink, ctx, env, n_written, err);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

firn_status firn_session_keep(firn_tier *tier, const char *ns, const char *id, const firn_restored *restored,
                              uint64_t until_wall_ns, bool *is_pinned, firn_reason *reason, firn_error *err)
{
    *is_pinned = false;
    const firn_store_input input = {
        .tokens = restored->tokens,
        .n_tokens = restored->n_tokens,
        .caches = (const firn_cache *const *)restored->caches,
        .n_caches = restored->n_caches,
        .ns = ns,
    };
    if (!firn_tier_store(tier, &input, reason)) {
        return firni_fail(err, FIRN_ERR_IO, "the session cannot be stored (%s)", firn_reason_name(*reason));
    }
    *reason = FIRN_REASON_NONE;
    const firn_session session = { .id = id, .ns = ns, .tokens = restored->tokens, .n_tokens = restored->n_tokens };
    const firn_status status = firn_tier_put_session(tier, &session, err);
    if (status != FIRN_OK) {
        return status;
    }
    char name[FIRN_KEEP_NAME_BYTES_MAX + 1];
    (void)snprintf(name, sizeof name, "session %.200s", id);
    const firn_pin pin = {
        .name = name,
        .ns = ns,
        .tokens = restored->tokens,
        .n_tokens = restored->n_tokens,
        .until_wall_ns = until_wall_ns,
    };
    *is_pinned = firn_tier_pin(tier, &pin, NULL) == FIRN_OK;
    return FIRN_OK;
}
