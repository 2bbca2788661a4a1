/*
 * admission: what may come into a full cache. Beside "everything" there is one rule, *second sighting*: a block that no
 * earlier request asked for waits for its second request, as long as what would have to leave for it was used a short
 * while ago. On a starved cache most of what comes in leaves before anybody asks again, and takes what is asked for
 * with it; with room the rule only loses hits, so it sleeps then. A wrapper around every policy: it decides who comes
 * in, the policy who goes.
 */
#ifndef FIRNI_ADMISSION_IMPL_H
#define FIRNI_ADMISSION_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "firn/env.h"
#include "firn/identity.h"

enum { FIRNI_ADMISSION_MARKS = 64 };

typedef struct firni_sighting {
    uint64_t digest;
    uint32_t n_seen;
} firni_sighting;

typedef struct firni_admission {
    const firn_env *env;
    firni_sighting *seen;   /* NULL: everything may come in */
    /* When recency stamps were given out: a ring, oldest first, that reaches back as far as is "short". */
    struct {
        uint64_t stamp, at_ns;
    } marks[FIRNI_ADMISSION_MARKS];
    uint32_t n_marks, first_mark;
} firni_admission;

/* second: the rule above. False without memory; everything may come in then. */
bool firni_admission_init(firni_admission *admission, bool second, const firn_env *env);
void firni_admission_deinit(firni_admission *admission); /* accepts a zeroed one */
/* The name of a rule, "always" or "second" (NULL is "always"); false when it is neither. */
bool firni_admission_find(const char *name, bool *second);

/* A block's digest from that of the block before it (0: none). Not for keys: a collision costs an admission. */
uint64_t firni_admission_digest(uint64_t before, const firn_token *tokens, uint32_t n_tokens);
/* A request asks for the block. */
void firni_admission_saw(firni_admission *admission, uint64_t digest);
/* `stamp` is the last one given out by now. */
void firni_admission_mark(firni_admission *admission, uint64_t stamp, uint64_t now_ns);
/* Whether something last used at stamp `used`, which would have to leave, was used a short while ago. */
bool firni_admission_is_starved(const firni_admission *admission, uint64_t used, uint64_t now_ns);
/* Whether the block may come in although the cache is starved. */
bool firni_admission_is_known(const firni_admission *admission, uint64_t digest);

#endif
