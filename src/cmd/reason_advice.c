/*
 * The texts; see reason_advice.h.
 */
#include <stdbool.h>
#include <stddef.h>

#include "cmd/reason_advice.h"

static const firni_reason_text texts[FIRN_REASON_COUNT] = {
    [FIRN_REASON_NONE] = { "everything that can be used is used", "nothing" },
    [FIRN_REASON_NO_PREFIX] = { "nothing stored begins like this, or what is stored simply ends",
                                "nothing: it is there after the first request. If it should have been there, look at "
                                "the namespace, and at what comes first in the prompt (a date, an id)" },
    [FIRN_REASON_BELOW_MIN] = { "less is stored of it than is worth resuming", "nothing" },
    [FIRN_REASON_WRONG_IDENTITY] = { "what is stored was made by another model, tokenizer or scheme of cache",
                                     "serve with the same file and the same --kv flags, or let it be computed anew; "
                                     "firn cache prune --model-identity removes what is left over" },
    [FIRN_REASON_FAMILY_MISSING] = { "the tokens are stored, but not the window or the state that resuming there takes",
                                     "nothing: the next request leaves it there. If it stays so, raise --ram-budget" },
    [FIRN_REASON_CORRUPT] = { "stored bytes did not verify, and are not used again",
                              "firn cache verify counts what is bad; if it grows, distrust the drive" },
    [FIRN_REASON_EXPIRED] = { "it was not used for longer than --ttl", "raise --ttl, if it should have lasted" },
    [FIRN_REASON_LOADING] = { "the same is being read at this moment", "nothing" },
    [FIRN_REASON_BREAKEVEN] = { "reading it would take longer than computing it", "nothing, or a faster drive" },
    [FIRN_REASON_QUEUE_FULL] = { "more is waiting to be written than the queue takes; it stays in RAM",
                                 "nothing if it passes; else the drive is too slow for what is stored" },
    [FIRN_REASON_DISK_FULL] = { "neither the file system nor the budget has room",
                                "free space, or raise --disk-budget, or firn cache prune" },
    [FIRN_REASON_READ_ONLY] = { "the directory may not be written, or another process is writing it",
                                "check its owner and mode, and for a second firn" },
    [FIRN_REASON_IO_ERROR] = { "the device or the file system failed", "read the system's log; check the drive" },
    [FIRN_REASON_DEADLINE] = { "the drive did not answer in time; it was computed instead",
                               "see whether something else keeps the drive busy" },
    [FIRN_REASON_DIVERGED] = { "the prompt differs from what is stored before its end",
                               "keep what changes (dates, ids, retrieved text) behind what stays" },
    [FIRN_REASON_NO_MEMORY] = { "the RAM budget has no room for it", "raise --ram-budget, or let fewer requests run" },
    [FIRN_REASON_DISABLED] = { "the cache is off for this request, or there is no such tier",
                               "look at the request's cache settings, --no-disk and the messages at the start" },
    [FIRN_REASON_COUNT_MISMATCH] = { "the state covers another number of tokens than was claimed",
                                     "report it: an engine over libfirn put a row under the wrong count" },
    [FIRN_REASON_GONE] = { "it left between the lookup and the read, or the directory vanished",
                           "nothing if rare; else raise --disk-budget, and see who deletes the directory" },
    [FIRN_REASON_CANCELLED] = { "nobody wanted it any more before it was there", "nothing" },
    [FIRN_REASON_PINNED] = { "what would have to make room is pinned", "unpin something, or raise the budget" },
    [FIRN_REASON_PRIORITY] = { "what would have to make room has a higher priority",
                               "raise the request's priority, or the budget" },
    [FIRN_REASON_WRONG_KEY] = { "the cache directory was made with another key, with one, or without",
                                "give it its own key with --cache-key-file, or use another directory" },
};

firni_reason_text firni_reason_explain(firn_reason reason)
{
    const bool is_known = (unsigned)reason < FIRN_REASON_COUNT && texts[reason].meaning != NULL;
    return is_known ? texts[reason] : (firni_reason_text){ "a reason without a text", "see docs/REASONS.md" };
}
