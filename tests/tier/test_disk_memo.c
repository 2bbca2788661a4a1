/*
 * Remembered walks never change an answer: under random stores, lookups and evictions a lookup finds the same with and
 * without them, and neither damage nor age hides behind them.
 */
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "tier/disk/disk_impl.h"
#include "tier/tier_fixture.h"

#define N_CHAINS 6u
#define N        1500u /* 23 blocks and a tail */

typedef struct state {
    test_world world;
    fixture fix;
    char *dir;
    firn_tier *tier;
    test_rng rng;
    firn_token chains[N_CHAINS][N + 1];
} state;

/* What this thread does when what is under test looks at the clock, until it has done it. */
static _Thread_local bool (*at_look)(state *s);

static uint64_t look_at_clock(void *ctx)
{
    state *s = ctx;
    bool (*act)(state *) = at_look;
    at_look = NULL;
    if (act != NULL && !act(s)) {
        at_look = act;
    }
    return firn_clock_default()->wall_ns(NULL) + s->world.clock_offset_ns;
}

static int setup_with(void **out, const fixture_options *geometry, const firn_disk_options *options)
{
    state *s = calloc(1, sizeof *s);
    test_world_init(&s->world);
    s->world.clock.wall_ns = look_at_clock;
    s->world.clock.ctx = s; /* which begins with the world */
    s->rng = test_rng_create("disk_memo", 31);
    fixture_init(&s->fix, &s->world.env, geometry);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, options);
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        fixture_random_tokens(&s->rng, s->chains[i], N + 1);
        if (i % 2 == 1) { /* pairs share a beginning of some blocks and a half */
            memcpy(s->chains[i], s->chains[i - 1], (size_t)(64 * (16 + i) + 30) * sizeof(firn_token));
        }
    }
    *out = s;
    return 0;
}

static int setup(void **out)
{
    const firn_disk_options options = { .durability = FIRN_DURABILITY_NONE };
    return setup_with(out, NULL, &options);
}

/* Blocks of 1 MiB: the budget holds two chains and a half. */
static int setup_large(void **out)
{
    const fixture_options large = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 64 };
    const firn_disk_options options = {
        .budget_bytes = 64u << 20, .segment_bytes = 8u << 20, .durability = FIRN_DURABILITY_NONE
    };
    return setup_with(out, &large, &options);
}

static int setup_ttl(void **out)
{
    const firn_disk_options options = { .ttl_ns = UINT64_C(3600000000000), .durability = FIRN_DURABILITY_NONE };
    return setup_with(out, NULL, &options);
}

static int teardown(void **in)
{
    state *s = *in;
    fixture_check(s->tier);
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_world_deinit(&s->world);
    test_dir_remove(s->dir);
    free(s->dir);
    free(s);
    return 0;
}

static uint32_t n_memos(state *s)
{
    firni_disk *disk = firni_disk_of(s->tier);
    pthread_mutex_lock(&disk->mutex);
    const uint32_t n = disk->n_memos;
    pthread_mutex_unlock(&disk->mutex);
    return n;
}

static void forget(state *s)
{
    firni_disk *disk = firni_disk_of(s->tier);
    pthread_mutex_lock(&disk->mutex);
    firni_memo_forget_all_locked(disk);
    pthread_mutex_unlock(&disk->mutex);
}

static uint32_t length_of(state *s, uint32_t chain, uint32_t n_tokens, uint32_t *matched_len)
{
    const firn_match match = firn_tier_find(s->tier, s->chains[chain], n_tokens, NULL);
    const uint32_t n = match.prefix_len;
    *matched_len = match.matched_len;
    if (match.handle != NULL) {
        firn_tier_release(s->tier, match.handle);
    }
    return n;
}

static void a_lookup_finds_the_same_with_and_without_memory(void **in)
{
    state *s = *in;
    uint32_t n_used = 0;
    for (uint32_t i = 0; i < 400; i++) {
        const uint32_t chain = test_rng_below(&s->rng, N_CHAINS);
        const uint32_t n_tokens = 1000 + test_rng_below(&s->rng, N - 1000);
        if (i % 20 == 0) {
            assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[chain], n_tokens), FIRN_REASON_NONE);
        }
        uint32_t matched[2];
        n_used += n_memos(s) > 0;
        const uint32_t found = length_of(s, chain, n_tokens, &matched[0]);
        forget(s);
        assert_int_equal(length_of(s, chain, n_tokens, &matched[1]), found);
        assert_int_equal(matched[0], matched[1]);
    }
    assert_true(n_used > 200);
}

static void what_was_evicted_is_not_remembered(void **in)
{
    state *s = *in;
    firn_reason reason;
    uint32_t n_hits = 0, n_cut = 0;
    for (uint32_t i = 0; i < 20; i++) {
        const uint32_t chain = test_rng_below(&s->rng, N_CHAINS), other = test_rng_below(&s->rng, N_CHAINS);
        assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[chain], N), FIRN_REASON_NONE);
        /* Reads and compares every bit: a place that was given to something else would show. */
        const uint32_t n = fixture_fetch(&s->fix, s->tier, NULL, s->chains[other], N + 1, &reason);
        n_hits += n == N;
        n_cut += n < N;
    }
    assert_true(n_hits > 2 && n_cut > 2);
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    assert_true(stats.n_evicted > 20);
    assert_int_equal(stats.n_quarantined, 0);
}

static void a_remembered_record_that_is_damaged_is_found_out_once(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[0], N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
    assert_int_equal(n_memos(s), 1);
    char path[700];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", s->dir);
    const int fd = open(path, O_RDWR);
    const uint8_t wrong[64] = { 0xa5 };
    const off_t at = 4096 + 20 * 12288 + 4096 + 64; /* in block 19 or 20 */
    assert_int_equal(pwrite(fd, wrong, sizeof wrong, at), sizeof wrong);
    close(fd);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_CORRUPT);
    assert_int_equal(n_memos(s), 0);
    const uint32_t n = fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason);
    assert_in_range(n, 19 * 64, 20 * 64);
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[0], N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
}

static void what_is_remembered_gets_too_old_like_the_rest(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[0], N), FIRN_REASON_NONE);
    for (uint32_t i = 0; i < 3; i++) { /* each use counts anew */
        s->world.clock_offset_ns += UINT64_C(3000000000000);
        assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
    }
    assert_int_equal(n_memos(s), 1);
    s->world.clock_offset_ns += UINT64_C(3700000000000);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_EXPIRED);
}

static bool flush(state *s)
{
    assert_true(firn_tier_flush(s->tier, UINT64_C(60000000000)).durable);
    return true;
}

/* On a thread of its own, where nothing may be asserted: NULL unless all is durable. */
static void *run_flush(void *tier)
{
    return firn_tier_flush(tier, UINT64_C(60000000000)).durable ? tier : NULL;
}

static bool is_taken(firni_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    const bool is_empty = disk->n_touches == 0;
    pthread_mutex_unlock(&disk->mutex);
    return is_empty;
}

/* The flush waits for the index, which this thread holds: the use is neither in the list nor in the index then. */
static void a_use_that_is_being_written_counts(void **in)
{
    state *s = *in;
    firni_disk *disk = firni_disk_of(s->tier);
    firn_reason reason;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[0], N), FIRN_REASON_NONE);
    s->world.clock_offset_ns += UINT64_C(3000000000000);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
    s->world.clock_offset_ns += UINT64_C(3000000000000);
    MDB_txn *txn;
    assert_int_equal(firni_index_begin(&disk->volume->index, false, &txn), 0);
    pthread_t flusher;
    assert_int_equal(pthread_create(&flusher, NULL, run_flush, s->tier), 0);
    while (!is_taken(disk)) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
    const uint32_t n = fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason);
    mdb_txn_abort(txn);
    void *flushed;
    assert_int_equal(pthread_join(flusher, &flushed), 0);
    assert_ptr_equal(flushed, s->tier);
    assert_int_equal(n, N);
}

/* With its snapshot of the index open, the lookup looks at the clock for what is remembered: then all is written. The
 * memo is too old, and the beginning was used for another chain since. */
static void a_use_that_was_written_after_the_snapshot_counts(void **in)
{
    state *s = *in;
    firn_reason reason;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[i], N), FIRN_REASON_NONE);
    }
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
    s->world.clock_offset_ns += UINT64_C(3000000000000);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[1], N + 1, &reason), N);
    assert_int_equal(n_memos(s), 2);
    s->world.clock_offset_ns += UINT64_C(3000000000000);
    at_look = flush;
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), 17 * 64 + 30);
    assert_null(at_look);
}

static bool use_once_noted(state *s)
{
    firni_disk *disk = firni_disk_of(s->tier);
    firn_reason reason;
    pthread_mutex_lock(&disk->mutex);
    const bool is_noted = disk->n_touches == 0 && disk->written == NULL;
    pthread_mutex_unlock(&disk->mutex);
    if (is_noted) {
        s->world.clock_offset_ns += UINT64_C(3000000000000);
        assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
        s->world.clock_offset_ns += UINT64_C(3000000000000);
    }
    return is_noted;
}

/* Used between the writing of what was noted and the removal of what is too old by the index. */
static void a_use_that_is_noted_too_late_keeps_it_from_expiring(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->chains[0], N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
    firni_disk *disk = firni_disk_of(s->tier);
    pthread_mutex_lock(&disk->writer);
    at_look = use_once_noted;
    assert_int_equal(firni_disk_upkeep(disk, disk->volume), FIRN_REASON_NONE);
    pthread_mutex_unlock(&disk->writer);
    assert_null(at_look);
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[0], N + 1, &reason), N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_lookup_finds_the_same_with_and_without_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_evicted_is_not_remembered, setup_large, teardown),
        cmocka_unit_test_setup_teardown(a_remembered_record_that_is_damaged_is_found_out_once, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_remembered_gets_too_old_like_the_rest, setup_ttl, teardown),
        cmocka_unit_test_setup_teardown(a_use_that_is_being_written_counts, setup_ttl, teardown),
        cmocka_unit_test_setup_teardown(a_use_that_was_written_after_the_snapshot_counts, setup_ttl, teardown),
        cmocka_unit_test_setup_teardown(a_use_that_is_noted_too_late_keeps_it_from_expiring, setup_ttl, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
