/*
 * Log lines through the caller's sink; without one they are dropped.
 */
#include <stdarg.h>
#include <stdio.h>

#include "base/base_impl.h"

void firni_log(const firn_env *env, firn_log_level level, const char *format, ...)
{
    if (env == NULL || env->log == NULL || env->log->write == NULL) {
        return;
    }
    char line[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    env->log->write(env->log->ctx, level, line);
}
