/*
 * session files: the state of one conversation as a file that its user owns.
 *
 * A file holds the whole state of a path of tokens at its end, with the identity of the model that made it, in words: a
 * reader with another model is told what differs. It can be kept, moved and copied; no server evicts it. The format is
 * drawn in docs/FORMAT.md.
 *
 *      export    firn_tier_find_exact, firn_tier_restore --> firn_session_write --> file
 *      import    file --> firn_session_read --> firn_tier_store, firn_tier_put_session
 *
 * Bytes pass through callbacks, in order, so a file may be a socket. Threads: any.
 */
#ifndef FIRN_SESSION_FILE_H
#define FIRN_SESSION_FILE_H

#include "firn/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FIRN_SESSION_ID_BYTES_MAX 128

/* Takes all n bytes, or returns false: the call then ends with IO. */
typedef bool (*firn_session_sink)(void *ctx, const void *bytes, size_t n_bytes);
/* Fills all n bytes, or returns false: the file ended, or could not be read. */
typedef bool (*firn_session_source)(void *ctx, void *bytes, size_t n_bytes);

/* Writes the state of these tokens: caches are serial, one per layer, as firn_tier_restore() brings them. id: "" or at
 * most FIRN_SESSION_ID_BYTES_MAX bytes, NULL: "". Errors: INVALID, NO_MEMORY, IO. */
firn_status firn_session_write(const firn_schema *schema, const char *id, const firn_token *tokens, uint32_t n_tokens,
                               const firn_cache *const *caches, firn_session_sink sink, void *ctx, const firn_env *env,
                               firn_error *err);
/* Reads a file into blocks of the pool. *out is as after a restore: release it with firn_restored_deinit(). id may be
 * NULL. Errors: FORMAT (not such a file, or of another version), SIGNATURE (of another model: the message names the
 * first field that differs, and both values), CORRUPT, NO_MEMORY: *out is zeroed then. */
firn_status firn_session_read(const firn_schema *schema, firn_pool *pool, firn_session_source source, void *ctx,
                              const firn_env *env, firn_restored *out, char id[FIRN_SESSION_ID_BYTES_MAX + 1],
                              firn_error *err);

#ifdef __cplusplus
}
#endif
#endif
