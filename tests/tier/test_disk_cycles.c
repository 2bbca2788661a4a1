/*
 * Days of use in seconds: thousands of puts, hits, evictions, corruptions, restarts. Afterwards, and on the way, what
 * is counted equals what is on the disk, and nothing restored was ever wrong.
 */
/* SEEK_DATA of lseek is a GNU name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "tier/tier_fixture.h"

#define N_CHAINS 300u
#define LENGTH   200u

/* 96 KiB a layer: some 320 records fill the budget. */
static const struct {
    uint32_t n_cycles;
    fixture_options geometry;
    uint32_t n_hits_min; /* a state is hit at its own count alone */
} rounds[] = {
    { 1800, { .n_kv_heads = 4, .head_dim = 96 }, 200 },
    { 700, { .schema = FIXTURE_ALL, .n_kv_heads = 4, .head_dim = 192 }, 20 },
};
static const firn_disk_options options = { .budget_bytes = 64u << 20,
                                           .segment_bytes = 4u << 20,
                                           .durability = FIRN_DURABILITY_NONE };

static void damage(const char *dir, test_rng *rng)
{
    DIR *open_dir = opendir(dir);
    assert_non_null(open_dir);
    char path[900] = "";
    uint32_t n_seen = 0;
    for (const struct dirent *found = readdir(open_dir); found != NULL; found = readdir(open_dir)) {
        if (strncmp(found->d_name, "seg-", 4) == 0 && test_rng_below(rng, ++n_seen) == 0) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, found->d_name);
        }
    }
    closedir(open_dir);
    const int fd = n_seen > 0 ? open(path, O_RDWR) : -1;
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0) {
        /* Only where there is data: a byte written into a hole would be physical space that the test made itself. */
        const off_t at = lseek(fd, (off_t)(test_rng_u64(rng) % (uint64_t)st.st_size), SEEK_DATA);
        uint8_t byte;
        if (at >= 0 && pread(fd, &byte, 1, at) == 1) {
            byte ^= (uint8_t)(1u << test_rng_below(rng, 8));
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
}

static void run_cycles(uint32_t n_cycles, const fixture_options *geometry, uint32_t n_hits_min)
{
    test_rng rng = test_rng_create("disk_cycles", 71);
    fixture fix;
    fixture_init(&fix, NULL, geometry);
    char *dir = test_dir_create();
    firn_token(*chains)[LENGTH] = calloc(N_CHAINS, sizeof *chains);
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        fixture_random_tokens(&rng, chains[i], LENGTH);
        if (i % 4 != 0) { /* families that share beginnings */
            memcpy(chains[i], chains[i - 1], 4 * test_rng_below(&rng, LENGTH - 1));
        }
    }
    firn_tier *tier = fixture_open(&fix, dir, &options);
    uint64_t n_evicted = 0, n_quarantined = 0, n_hits = 0;
    for (uint32_t cycle = 0; cycle < n_cycles; cycle++) {
        const firn_token *chain = chains[test_rng_below(&rng, N_CHAINS)];
        const uint32_t what = test_rng_below(&rng, 1000);
        firn_reason reason;
        if (what < 550) {
            const uint32_t n = 1 + test_rng_below(&rng, LENGTH);
            assert_int_equal(fixture_store(&fix, tier, NULL, chain, n), FIRN_REASON_NONE);
        } else if (what < 950) {
            n_hits += fixture_fetch(&fix, tier, NULL, chain, LENGTH, &reason) > 0;
        } else if (what < 990) {
            damage(dir, &rng);
        } else {
            fixture_check(tier);
            const firn_tier_stats stats = fixture_assert_books(tier, dir);
            assert_true(stats.physical_bytes <= stats.budget_bytes);
            n_evicted += stats.n_evicted;
            n_quarantined += stats.n_quarantined;
            firn_tier_destroy(tier);
            tier = fixture_open(&fix, dir, &options);
            fixture_check(tier);
        }
    }
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    n_evicted += stats.n_evicted;
    n_quarantined += stats.n_quarantined;
    print_message("%llu hits, %llu evicted, %llu quarantined, %llu records\n", (unsigned long long)n_hits,
                  (unsigned long long)n_evicted, (unsigned long long)n_quarantined,
                  (unsigned long long)stats.n_records);
    assert_true(n_hits > n_hits_min && n_quarantined > n_cycles / 300 && n_evicted > 100);
    firn_tier_destroy(tier);
    free(chains);
    test_dir_remove(dir);
    free(dir);
    fixture_deinit(&fix);
}

static void the_books_agree_with_the_disk_after_thousands_of_cycles(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        run_cycles(rounds[i].n_cycles, &rounds[i].geometry, rounds[i].n_hits_min);
    }
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_books_agree_with_the_disk_after_thousands_of_cycles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
