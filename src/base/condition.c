/* Conditions on the monotonic clock; see condition.h. */
#include "base/condition.h"

#include <time.h>

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
