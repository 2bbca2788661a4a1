/*
 * Status codes, error details and the shared list of reasons.
 *
 * Three kinds of bad news are kept apart:
 *   - a programmer's error asserts;
 *   - an operating error (disk, memory, input) returns a firn_status other than FIRN_OK, and fills the caller's
 *     firn_error when one was given;
 *   - a miss or a refusal of the cache is a result, not an error: it carries a firn_reason.
 *
 * The numeric values of both enums are persisted (metrics, records of tests): append, never renumber.
 */
#ifndef FIRN_STATUS_H
#define FIRN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Zero is success. Codes lie in a private range, so that they can never be mistaken for an errno. */
typedef enum firn_status {
    FIRN_OK = 0,
    FIRN_ERR_INVALID = 40001,     /* an argument or option is out of its stated range */
    FIRN_ERR_NO_MEMORY = 40002,   /* the allocator or a pool's byte budget refused */
    FIRN_ERR_SIGNATURE = 40003,   /* caches of different layout or geometry were combined */
    FIRN_ERR_TRIM = 40004,        /* more tokens were to be dropped than the layout can drop */
    FIRN_ERR_CAPACITY = 40005,    /* the hard context bound would be exceeded */
    FIRN_ERR_STATE = 40006,       /* the call is not allowed in this state (e.g. rollback without a round) */
    FIRN_ERR_IO = 40007,          /* a system call failed; firn_error.os_error has the errno */
    FIRN_ERR_CORRUPT = 40008,     /* stored bytes do not verify */
    FIRN_ERR_FORMAT = 40009,      /* a file is malformed or of an unknown version */
    FIRN_ERR_UNSUPPORTED = 40010, /* well-formed, but not something this build can do */
    FIRN_ERR_NOT_FOUND = 40011,   /* the named thing does not exist */
    FIRN_ERR_BUSY = 40012,        /* another process or a full queue is in the way; may be tried again */
    FIRN_ERR_CANCELLED = 40013,   /* the caller asked for it to stop */
    FIRN_ERR_DEADLINE = 40014,    /* the operation did not finish within its bound */
    FIRN_ERR_KEY = 40015          /* stored with another encryption key, or with one where none was given, or without */
} firn_status;

/* Caller-owned detail of a failed call. Untouched on success. message is NUL-terminated UTF-8, one sentence that says
 * what was wrong and, where there is one, what to do. */
typedef struct firn_error {
    firn_status status;
    int os_error; /* errno of the failed system call, or 0 */
    char message[400];
} firn_error;

/* Why a prompt was not served from the cache, or state was not kept. One list for lookup, metrics, HTTP details and
 * the command line. firn_reason_name() gives the stable lower-case name. */
typedef enum firn_reason {
    FIRN_REASON_NONE = 0,           /* a full answer: nothing to explain */
    FIRN_REASON_NO_PREFIX = 1,      /* no stored tokens begin like this prompt */
    FIRN_REASON_BELOW_MIN = 2,      /* something matched, but less than the smallest useful prefix */
    FIRN_REASON_WRONG_IDENTITY = 3, /* stored under another model, tokenizer, layout or adapter */
    FIRN_REASON_FAMILY_MISSING = 4, /* a storage family has no state at the matched position */
    FIRN_REASON_CORRUPT = 5,        /* stored bytes did not verify; the record is quarantined */
    FIRN_REASON_EXPIRED = 6,        /* the time to live is over */
    FIRN_REASON_LOADING = 7,        /* an identical read is in flight */
    FIRN_REASON_BREAKEVEN = 8,      /* restoring would take longer than computing */
    FIRN_REASON_QUEUE_FULL = 9,     /* the write queue had no room; the state stays in RAM */
    FIRN_REASON_DISK_FULL = 10,     /* ENOSPC, EDQUOT or the tier's own budget */
    FIRN_REASON_READ_ONLY = 11,     /* EACCES, EROFS, or another process is the writer */
    FIRN_REASON_IO_ERROR = 12,      /* the device or file system failed */
    FIRN_REASON_DEADLINE = 13,      /* the tier did not answer in time */
    FIRN_REASON_DIVERGED = 14,      /* the prompt differs from the stored tokens before its end */
    FIRN_REASON_NO_MEMORY = 15,     /* the RAM budget has no room for it */
    FIRN_REASON_DISABLED = 16,      /* the cache is off for this request or there is no such tier */
    FIRN_REASON_COUNT_MISMATCH = 17,/* the state covers another number of tokens than was claimed */
    FIRN_REASON_GONE = 18,          /* the record was evicted, or the directory vanished, after lookup */
    FIRN_REASON_CANCELLED = 19,     /* nobody wanted it any more before it was there */
    FIRN_REASON_PINNED = 20,        /* what would have to make room is pinned */
    FIRN_REASON_PRIORITY = 21,      /* what would have to make room has a higher priority */
    FIRN_REASON_WRONG_KEY = 22,     /* the directory is encrypted with another key than was given, or one was not */
    FIRN_REASON_COUNT               /* number of reasons; not a reason */
} firn_reason;

/* Stable names: "ok", "no_prefix", ... Never NULL; "unknown" for a value outside the enum. Thread-safe. */
const char *firn_status_name(firn_status status);
const char *firn_reason_name(firn_reason reason);

#ifdef __cplusplus
}
#endif
#endif
