/*
 * Second-sighting admission (after the "doorkeeper" of Einziger, Friedman and Manes, TinyLFU, ACM ToS 2017, section
 * 3.4).
 *
 * Sightings are counted in a table of fixed size, one place per digest; a later block takes an earlier one's place, so
 * the table remembers about the last SIGHTINGS blocks and forgets by itself. What is "a short while" is measured: the
 * time since the next victim was last used, found from its stamp.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/base_impl.h"
#include "prefix/admission_impl.h"

#define SIGHTINGS    ((size_t)1 << 17) /* a power of two: 2 MiB */
#define SHORT_NS     UINT64_C(120000000000)
#define MARK_GAP_NS  (SHORT_NS / (FIRNI_ADMISSION_MARKS / 2)) /* so that the ring reaches back twice as far */

bool firni_admission_init(firni_admission *admission, bool second, const firn_env *env)
{
    *admission = (firni_admission){ .env = env };
    admission->seen = second ? firni_calloc(env, SIGHTINGS, sizeof *admission->seen) : NULL;
    return !second || admission->seen != NULL;
}

void firni_admission_deinit(firni_admission *admission)
{
    firni_free(admission->env, admission->seen);
    admission->seen = NULL;
}

bool firni_admission_find(const char *name, bool *second)
{
    *second = name != NULL && strcmp(name, "second") == 0;
    return *second || name == NULL || strcmp(name, "always") == 0;
}

/* The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t firni_admission_digest(uint64_t before, const firn_token *tokens, uint32_t n_tokens)
{
    uint64_t digest = mix(before + UINT64_C(0x9E3779B97F4A7C15));
    for (uint32_t i = 0; i < n_tokens; i++) {
        digest = mix(digest ^ (uint64_t)(uint32_t)tokens[i]);
    }
    return digest;
}

void firni_admission_saw(firni_admission *admission, uint64_t digest)
{
    if (admission->seen == NULL) {
        return;
    }
    firni_sighting *place = &admission->seen[digest & (SIGHTINGS - 1)];
    if (place->digest != digest) {
        *place = (firni_sighting){ .digest = digest };
    }
    place->n_seen += place->n_seen < UINT32_MAX;
}

bool firni_admission_is_known(const firni_admission *admission, uint64_t digest)
{
    const firni_sighting *place = admission->seen != NULL ? &admission->seen[digest & (SIGHTINGS - 1)] : NULL;
    return place == NULL || (place->digest == digest && place->n_seen >= 2);
}

void firni_admission_mark(firni_admission *admission, uint64_t stamp, uint64_t now_ns)
{
    if (admission->seen == NULL) {
        return;
    }
    const uint32_t n = admission->n_marks;
    const uint32_t last = (admission->first_mark + n - 1) % FIRNI_ADMISSION_MARKS;
    if (n > 0 && now_ns - admission->marks[last].at_ns < MARK_GAP_NS) {
        return;
    }
    const uint32_t next = (admission->first_mark + n) % FIRNI_ADMISSION_MARKS;
    admission->marks[next].stamp = stamp;
    admission->marks[next].at_ns = now_ns;
    if (n < FIRNI_ADMISSION_MARKS) {
        admission->n_marks++;
    } else {
        admission->first_mark = (admission->first_mark + 1) % FIRNI_ADMISSION_MARKS;
    }
}

/* The last mark that is older than "short" bounds the answer: what was used before it is old. */
bool firni_admission_is_starved(const firni_admission *admission, uint64_t used, uint64_t now_ns)
{
    if (admission->seen == NULL) {
        return false;
    }
    for (uint32_t i = admission->n_marks; i-- > 0;) {
        const uint32_t at = (admission->first_mark + i) % FIRNI_ADMISSION_MARKS;
        if (now_ns - admission->marks[at].at_ns >= SHORT_NS) {
            return used > admission->marks[at].stamp;
        }
    }
    return true; /* everything was used since the first mark, a short while ago */
}
