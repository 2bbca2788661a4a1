/*
 * warm: prompts that are read before anybody asks, and kept for an end date.
 *
 *      text, or messages --tokens--> engine: reads, pins in RAM --> flush --> tier: pinned on disk
 *
 * What is read of messages is what every conversation that begins with them has in common, up to the words of the next
 * user's turn. A warm-up that is there already, tokens and all, is not read again: only its end date is moved.
 */
#ifndef FIRNI_WARM_H
#define FIRNI_WARM_H

#include <jansson.h>
#include <pthread.h>

#include "firn/engine.h"
#include "server/problem.h"

struct firni_warm_pin;

typedef struct firni_warmer {
    firn_engine *engine;
    firn_tier *tier;          /* NULL: pins are in RAM alone */
    const firn_model *model;
    const char *parent;       /* namespace of warm-ups that name none; NULL: "" */
    uint64_t ttl_ns;          /* of warm-ups that say no other */
    const firn_env *env;
    pthread_mutex_t mutex;
    struct firni_warm_pin *pins; /* guarded by mutex: those made since the start, for servers without a disk */
} firni_warmer;

void firni_warmer_init(firni_warmer *warmer); /* the members above the mutex are set */
void firni_warmer_deinit(firni_warmer *warmer);

typedef struct firni_warm_report {
    char name[FIRN_KEEP_NAME_BYTES_MAX + 1];
    uint32_t n_tokens, n_computed;
    bool was_there;           /* nothing had to be read */
    bool is_durable;          /* pinned on disk as well */
    uint64_t until_wall_ns;
} firni_warm_report;

/* {"name": ..., "prompt": ... | "messages": [...], "namespace": ..., "ttl": seconds}. `name`: used when there is none
 * in the body, NULL: then it is required. Waits until all is done. False: *problem says why; what was pinned
 * before is. */
bool firni_warm_body(firni_warmer *warmer, const json_t *body, const char *name, firni_warm_report *report,
                     firni_problem *problem);
/* Raw text. */
bool firni_warm_text(firni_warmer *warmer, const char *text, size_t n_bytes, const char *name,
                     firni_warm_report *report, firni_problem *problem);
/* All pins, as a JSON array; NULL without memory. */
json_t *firni_warm_pins_json(firni_warmer *warmer);
/* Ends a pin everywhere; false: there was none. */
bool firni_warm_unpin(firni_warmer *warmer, const char *name);
/* Saves everything, waiting for it. False: the engine is stopping. */
bool firni_warm_flush(firn_engine *engine, uint64_t bound_ns, firn_flush_report *report);
/* Sets "namespace", and "parent" where there is one. Returns whether memory sufficed. */
bool firni_namespace_json(json_t *object, const char *ns);

#endif
