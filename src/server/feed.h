/*
 * feed: what a request's engine events pass through to reach the connection's thread.
 *
 *      engine thread --push--> [pieces | end] --take--> connection thread
 *
 * Pushing never waits for the taker: the lock is held for a copy of a few bytes on either side. A feed holds at most
 * what the request may generate (max_tokens), so it needs no limit of its own. It has two owners, the taker and the
 * engine, and dies with the second: a client may go away long before the engine has said END.
 */
#ifndef FIRNI_FEED_H
#define FIRNI_FEED_H

#include "server/transcript.h"

typedef struct firni_feed firni_feed;

/* One reference for the taker. Returns NULL without memory. */
firni_feed *firni_feed_create(const firn_env *env);
/* Adds the engine's reference; call before firn_engine_submit(), and firni_feed_release() when that fails. */
void firni_feed_retain(firni_feed *feed);
void firni_feed_release(firni_feed *feed); /* accepts NULL */

/* firn_request.on_event with ctx = the feed. END drops the engine's reference. */
void firni_feed_on_event(void *ctx, const firn_event *event);

typedef struct firni_feed_end {
    firn_finish finish;
    firn_usage usage;
    firn_error error;     /* with FIRN_FINISH_ERROR; also when memory for an event ran out */
} firni_feed_end;

/* Waits up to wait_ns for something new, appends it to `into` and returns true; false when nothing came. *ended is set
 * once the END event is among what was taken; *end is filled then. */
bool firni_feed_take(firni_feed *feed, uint64_t wait_ns, firni_pieces *into, bool *ended, firni_feed_end *end);

#endif
