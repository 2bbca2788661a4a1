/* Conditions on the monotonic clock; see condition.h. */
#include "base/condition.h"

#define SECOND_NS   UINT64_C(1000000000)
#define WAIT_NS_MAX (86400 * SECOND_NS)

int firni_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error == 0) {
        error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        if (error == 0) {
            error = pthread_cond_init(condition, &attributes);
        }
        (void)pthread_condattr_destroy(&attributes);
    }
    return error;
}

struct timespec firni_condition_deadline(uint64_t wait_ns)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    const uint64_t ns = (uint64_t)at.tv_nsec + (wait_ns < WAIT_NS_MAX ? wait_ns : WAIT_NS_MAX);
    at.tv_sec += (time_t)(ns / SECOND_NS);
    at.tv_nsec = (long)(ns % SECOND_NS);
    return at;
}
