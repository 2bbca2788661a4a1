/*
 * keep: what a tier keeps by name, beside what it finds by tokens.
 *
 *      pin       name -> a path of tokens      not evicted before its end date; every pin has one
 *      session   id   -> a path of tokens      where a conversation stood; nothing is kept for it but the path's name
 *      object    key  -> attachments           small state of its own: found by key, replaced as a whole
 *
 * All of them belong to one model (the tier's schema), are listed and can be removed, and are there after a restart. A
 * pin keeps the records of its path: those of the namespaces above included. Pins together may take half of the tier's
 * budget; one that would take more is refused with the figures. A tier may lack all of this (firn_tier_ops.keep is
 * NULL): then nothing is found or listed, and whoever wants to keep something is told UNSUPPORTED.
 *
 * Names are 1 to 255 bytes of any text. Times are nanoseconds since 1970. What a visitor is given is valid during its
 * call. Threads: any, also at once; every call may read or write the disk, so none belongs on a token loop.
 */
#ifndef FIRN_KEEP_H
#define FIRN_KEEP_H

#include "firn/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FIRN_KEEP_NAME_BYTES_MAX 255

typedef struct firn_pin {
    const char *name;         /* unique for a model; a pin of the same name is replaced */
    const char *ns;           /* NULL: "" */
    const firn_token *tokens; /* the path: all of it must be stored, and resumable at its end */
    uint32_t n_tokens;
    uint64_t until_wall_ns;   /* the pin vanishes then by itself */
    uint64_t n_bytes;         /* of a listed pin: what its records take, those shared with other pins included */
} firn_pin;

typedef struct firn_session {
    const char *id;
    const char *ns;
    const firn_token *tokens;
    uint32_t n_tokens;
    uint64_t used_wall_ns;
} firn_session;

typedef struct firn_object {
    const char *key;
    const char *ns;
    const firn_attachment *attachments; /* of a listed object: NULL */
    uint32_t n_attachments;
    uint64_t until_wall_ns;   /* not evicted before; 0: not pinned */
    int priority;             /* as in firn_store_input */
    uint64_t n_bytes;         /* of a listed object: its record's */
} firn_object;

/* The table of one implementation; the functions below say what its members do. All are required. */
typedef struct firn_keep_ops {
    firn_status (*pin)(firn_tier *tier, const firn_pin *pin, firn_error *err);
    firn_status (*unpin)(firn_tier *tier, const char *name, firn_error *err);
    firn_status (*each_pin)(firn_tier *tier, bool (*visit)(void *ctx, const firn_pin *pin), void *ctx, firn_error *err);
    firn_status (*put_session)(firn_tier *tier, const firn_session *session, firn_error *err);
    firn_status (*get_session)(firn_tier *tier, const char *ns, const char *id,
                               void (*found)(void *ctx, const firn_session *session), void *ctx, firn_error *err);
    firn_status (*remove_session)(firn_tier *tier, const char *ns, const char *id, firn_error *err);
    firn_status (*each_session)(firn_tier *tier, bool (*visit)(void *ctx, const firn_session *session), void *ctx,
                                firn_error *err);
    bool (*put_object)(firn_tier *tier, const firn_object *object, firn_reason *reason);
    firn_tier_handle *(*find_object)(firn_tier *tier, const char *ns, const char *key, firn_reason *reason);
    firn_status (*remove_object)(firn_tier *tier, const char *ns, const char *key, firn_error *err);
    firn_status (*each_object)(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object), void *ctx,
                               firn_error *err);
    firn_status (*forget)(firn_tier *tier, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                          firn_error *err);
} firn_keep_ops;

/* ---- pins -------------------------------------------------------------------------------------------------------- */

/* Keeps a stored path until its end date. Errors: NOT_FOUND (not stored, or not resumable at its end: the message has
 * the reason), CAPACITY (too much for half of the budget: the message has the figures), INVALID, IO, UNSUPPORTED. On
 * failure a pin of the same name is as it was. */
firn_status firn_tier_pin(firn_tier *tier, const firn_pin *pin, firn_error *err);
firn_status firn_tier_unpin(firn_tier *tier, const char *name, firn_error *err); /* NOT_FOUND: there is none */
/* Those that have not ended, in no stated order, until visit returns false. */
firn_status firn_tier_each_pin(firn_tier *tier, bool (*visit)(void *ctx, const firn_pin *pin), void *ctx,
                               firn_error *err);

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

/* Notes where a conversation stands, in the place of where it stood. The oldest of more than 4,096 go. */
firn_status firn_tier_put_session(firn_tier *tier, const firn_session *session, firn_error *err);
firn_status firn_tier_get_session(firn_tier *tier, const char *ns, const char *id,
                                  void (*found)(void *ctx, const firn_session *session), void *ctx, firn_error *err);
firn_status firn_tier_remove_session(firn_tier *tier, const char *ns, const char *id, firn_error *err);
firn_status firn_tier_each_session(firn_tier *tier, bool (*visit)(void *ctx, const firn_session *session), void *ctx,
                                   firn_error *err);

/* ---- objects by key ---------------------------------------------------------------------------------------------- */

/* True once it is as durable as the tier was asked to be, in the place of one of the same key. False: *reason says why,
 * and the one that was there still is. */
bool firn_tier_put_object(firn_tier *tier, const firn_object *object, firn_reason *reason);
/* Reads it: *out has no tokens and no caches. NO_PREFIX: there is none. Release with firn_restored_deinit(). */
firn_reason firn_tier_get_object(firn_tier *tier, const char *ns, const char *key, firn_restored *out);
/* A handle for firn_tier_restore_object_async(), from the index alone; NULL with the reason. */
firn_tier_handle *firn_tier_find_object(firn_tier *tier, const char *ns, const char *key, firn_reason *reason);
firn_status firn_tier_remove_object(firn_tier *tier, const char *ns, const char *key, firn_error *err);
firn_status firn_tier_each_object(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object), void *ctx,
                                  firn_error *err);

/* ---- forgetting -------------------------------------------------------------------------------------------------- */

/* Removes what this namespace itself stores along a path of tokens, from its end on, as far as nothing else depends on
 * it and nobody reads or pinned it. What is not there is no error. */
firn_status firn_tier_forget(firn_tier *tier, const char *ns, const firn_token *tokens, uint32_t n_tokens,
                             firn_error *err);

#ifdef __cplusplus
}
#endif
#endif
