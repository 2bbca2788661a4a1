/*
 * reason_advice: each reason of the cache in a sentence, and what to do about it, for a person at a terminal.
 * docs/REASONS.md says more about the same reasons.
 */
#ifndef FIRNI_REASON_ADVICE_H
#define FIRNI_REASON_ADVICE_H

#include "firn/status.h"

typedef struct firni_reason_text {
    const char *meaning, *advice; /* never NULL */
} firni_reason_text;

firni_reason_text firni_reason_explain(firn_reason reason);

#endif
