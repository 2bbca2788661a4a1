/*
 * Time through the caller's clock.
 */
#include <time.h>

#include "base/base_impl.h"

static uint64_t read_clock(clockid_t id)
{
    struct timespec now;
    (void)clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t default_monotonic(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t default_wall(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_REALTIME);
}

const firn_clock *firn_clock_default(void)
{
    static const firn_clock clock = { .monotonic_ns = default_monotonic, .wall_ns = default_wall, .ctx = NULL };
    return &clock;
}

static const firn_clock *clock_of(const firn_env *env)
{
    return env != NULL && env->clock != NULL ? env->clock : firn_clock_default();
}

uint64_t firni_now_ns(const firn_env *env)
{
    const firn_clock *clock = clock_of(env);
    return clock->monotonic_ns(clock->ctx);
}

uint64_t firni_wall_ns(const firn_env *env)
{
    const firn_clock *clock = clock_of(env);
    return clock->wall_ns(clock->ctx);
}
