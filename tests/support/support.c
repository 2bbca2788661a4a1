/*
 * Random numbers and temporary directories of support.h.
 */
#define _XOPEN_SOURCE 700 /* nftw */
#include "support/support.h"

#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

test_rng test_rng_create(const char *what, uint64_t default_seed)
{
    const char *given = getenv("FIRN_TEST_SEED");
    const uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : default_seed;
    printf("%s: seed %" PRIu64 "\n", what, seed);
    return (test_rng){ .state = seed };
}

uint64_t test_rng_u64(test_rng *rng)
{
    /* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t test_rng_below(test_rng *rng, uint32_t bound)
{
    return bound == 0 ? 0 : (uint32_t)(test_rng_u64(rng) % bound);
}

float test_rng_unit(test_rng *rng)
{
    return (float)(test_rng_u64(rng) >> 40) * 0x1p-23f - 1.0f;
}

float test_rng_normal(test_rng *rng)
{
    const double u = ((double)(test_rng_u64(rng) >> 11) + 1.0) * 0x1p-53;
    const double v = (double)(test_rng_u64(rng) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

char *test_dir_create(void)
{
    const char *base = getenv("TMPDIR");
    char path[512];
    (void)snprintf(path, sizeof path, "%s/firn-test-XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp");
    if (mkdtemp(path) == NULL) {
        fail_msg("cannot make a temporary directory %s", path);
    }
    return strdup(path);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void test_dir_remove(const char *path)
{
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
