/*
 * session files: the state of one conversation as a file that its user owns.
 *
 * A file holds the whole state of a path of tokens at its end, with the identity of the model that made it, in words: a
 * reader with another model is told what differs. It can be kept, moved and copied; no server evicts it. The format is
 * drawn in docs/FORMAT.md.
 *
 *      export    firn_session_export: find, restore, firn_session_write --> file
 *      import    file --> firn_session_read --> firn_session_keep: store, note, pin
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

/* Writes all that the tier stores of a session. *n_written: tokens in the file. Errors: NOT_FOUND (no session of this
 * id), STATE (not all of it is stored; the message says how much is), CORRUPT (stored, and cannot be read), NO_MEMORY,
 * IO (the sink). */
firn_status firn_session_export(firn_tier *tier, const firn_schema *schema, const char *ns, const char *id,
                                firn_session_sink sink, void *ctx, const firn_env *env, uint32_t *n_written,
                                firn_error *err);
/* The same of the longest beginning of a prompt that is stored and can be resumed, without an id. */
firn_status firn_session_export_prompt(firn_tier *tier, const firn_schema *schema, const char *ns,
                                       const firn_token *prompt, uint32_t n_tokens, firn_session_sink sink, void *ctx,
                                       const firn_env *env, uint32_t *n_written, firn_error *err);
/* Takes what was read into the tier: stores it, notes the session, and pins it as "session ID" until a date, as far as
 * the tier pins. Errors: IO with the tier's *reason (NONE after any other error); those of firn_tier_put_session(). The
 * file is as good as before in any case. */
firn_status firn_session_keep(firn_tier *tier, const char *ns, const char *id, const firn_restored *restored,
                              uint64_t until_wall_ns, bool *is_pinned, firn_reason *reason, firn_error *err);

#ifdef __cplusplus
}
#endif
#endif
