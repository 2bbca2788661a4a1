/*
 * Status and reason names, and the filling of firn_error. Owns no state.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"

const char *firn_status_name(firn_status status)
{
    switch (status) {
    case FIRN_OK: return "ok";
    case FIRN_ERR_INVALID: return "invalid";
    case FIRN_ERR_NO_MEMORY: return "no_memory";
    case FIRN_ERR_SIGNATURE: return "signature";
    case FIRN_ERR_TRIM: return "trim";
    case FIRN_ERR_CAPACITY: return "capacity";
    case FIRN_ERR_STATE: return "state";
    case FIRN_ERR_IO: return "io";
    case FIRN_ERR_CORRUPT: return "corrupt";
    case FIRN_ERR_FORMAT: return "format";
    case FIRN_ERR_UNSUPPORTED: return "unsupported";
    case FIRN_ERR_NOT_FOUND: return "not_found";
    case FIRN_ERR_BUSY: return "busy";
    case FIRN_ERR_CANCELLED: return "cancelled";
    case FIRN_ERR_DEADLINE: return "deadline";
    case FIRN_ERR_KEY: return "key";
    }
    return "unknown";
}

const char *firn_reason_name(firn_reason reason)
{
    static const char *const names[FIRN_REASON_COUNT] = {
        [FIRN_REASON_NONE] = "ok",
        [FIRN_REASON_NO_PREFIX] = "no_prefix",
        [FIRN_REASON_BELOW_MIN] = "below_min",
        [FIRN_REASON_WRONG_IDENTITY] = "wrong_identity",
        [FIRN_REASON_FAMILY_MISSING] = "family_missing",
        [FIRN_REASON_CORRUPT] = "corrupt",
        [FIRN_REASON_EXPIRED] = "expired",
        [FIRN_REASON_LOADING] = "loading",
        [FIRN_REASON_BREAKEVEN] = "breakeven",
        [FIRN_REASON_QUEUE_FULL] = "queue_full",
        [FIRN_REASON_DISK_FULL] = "disk_full",
        [FIRN_REASON_READ_ONLY] = "read_only",
        [FIRN_REASON_IO_ERROR] = "io_error",
        [FIRN_REASON_DEADLINE] = "deadline",
        [FIRN_REASON_DIVERGED] = "diverged",
        [FIRN_REASON_NO_MEMORY] = "no_memory",
        [FIRN_REASON_DISABLED] = "disabled",
        [FIRN_REASON_COUNT_MISMATCH] = "count_mismatch",
        [FIRN_REASON_GONE] = "gone",
        [FIRN_REASON_CANCELLED] = "cancelled",
        [FIRN_REASON_PINNED] = "pinned",
        [FIRN_REASON_PRIORITY] = "priority",
        [FIRN_REASON_WRONG_KEY] = "wrong_key",
    };
    const unsigned index = (unsigned)reason;
    return index < FIRN_REASON_COUNT && names[index] != NULL ? names[index] : "unknown";
}

firn_status firni_fail(firn_error *err, firn_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        err->status = status;
        err->os_error = 0;
        (void)vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}

firn_status firni_fail_os(firn_error *err, int errno_value, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        err->status = FIRN_ERR_IO;
        err->os_error = errno_value;
        const int n_written = vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        const size_t used = n_written < 0 ? 0 : (size_t)n_written;
        if (used + 3 < sizeof err->message) {
            char reason[128];
            /* The POSIX strerror_r: thread-safe, unlike strerror. */
            if (strerror_r(errno_value, reason, sizeof reason) != 0) {
                (void)snprintf(reason, sizeof reason, "error %d", errno_value);
            }
            (void)snprintf(err->message + used, sizeof err->message - used, ": %s", reason);
        }
    }
    return FIRN_ERR_IO;
}
