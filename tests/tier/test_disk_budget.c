/*
 * Room: physical bytes never above the budget at any step, the least recently used leaves go first, never a parent
 * before its child, never what a handle promised; times to live; what a growing conversation costs.
 */
#include <unistd.h>

#include "tier/tier_fixture.h"

#define BUDGET   (64u << 20)
#define N        320u /* five blocks: about 5.3 MB in the large geometry */
#define N_CHAINS 30u

static const fixture_options large = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 64 };

/* The default files, with a look at the directory after every call that may change what it occupies. */
typedef struct watch {
    firn_io io;
    firn_env env;
    test_world world;
    const char *dir;
    uint64_t n_bytes_max, n_looks;
} watch;

static void look(watch *w)
{
    if (w->dir != NULL) {
        const uint64_t n_bytes = fixture_disk_bytes(w->dir);
        w->n_bytes_max = n_bytes > w->n_bytes_max ? n_bytes : w->n_bytes_max;
        w->n_looks++;
    }
}

static int64_t watched_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    watch *w = ctx;
    look(w); /* also what an index transaction before this left */
    const int64_t result = firn_io_default()->pwritev(NULL, fd, iov, n_iov, offset);
    look(w);
    return result;
}

static int watched_punch(void *ctx, int fd, uint64_t offset, uint64_t n_bytes)
{
    watch *w = ctx;
    look(w);
    return firn_io_default()->punch(NULL, fd, offset, n_bytes);
}

static int watched_datasync(void *ctx, int fd)
{
    watch *w = ctx;
    look(w);
    return firn_io_default()->datasync(NULL, fd);
}

static void watch_init(watch *w)
{
    memset(w, 0, sizeof *w);
    test_world_init(&w->world);
    w->io = *firn_io_default(); /* its other members do not look at their context */
    w->io.pwritev = watched_pwritev;
    w->io.datasync = watched_datasync;
    w->io.punch = watched_punch;
    w->io.ctx = w;
    w->env = w->world.env;
    w->env.io = &w->io;
}

typedef struct state {
    watch watch;
    fixture fix;
    char *dir;
    firn_tier *tier;
    test_rng rng;
    firn_token chains[N_CHAINS][N + 1];
} state;

static int setup_with(void **out, const fixture_options *geometry, const firn_disk_options *options)
{
    state *s = calloc(1, sizeof *s);
    watch_init(&s->watch);
    s->rng = test_rng_create("disk_budget", 21);
    fixture_init(&s->fix, &s->watch.env, geometry);
    s->dir = test_dir_create();
    s->watch.dir = s->dir;
    s->tier = fixture_open(&s->fix, s->dir, options);
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        fixture_random_tokens(&s->rng, s->chains[i], N + 1);
    }
    *out = s;
    return 0;
}

static int setup(void **out)
{
    const firn_disk_options options = { .budget_bytes = BUDGET, .segment_bytes = 16u << 20 };
    return setup_with(out, &large, &options);
}

static int setup_ttl(void **out)
{
    const firn_disk_options options = { .budget_bytes = BUDGET, .ttl_ns = UINT64_C(3600000000000) };
    return setup_with(out, NULL, &options);
}

static int setup_small(void **out)
{
    const firn_disk_options options = { .budget_bytes = BUDGET };
    return setup_with(out, NULL, &options);
}

static int teardown(void **in)
{
    state *s = *in;
    fixture_check(s->tier);
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_world_deinit(&s->watch.world);
    test_dir_remove(s->dir);
    free(s->dir);
    free(s);
    return 0;
}

static uint32_t found(state *s, uint32_t chain)
{
    firn_reason reason;
    return fixture_fetch(&s->fix, s->tier, NULL, s->chains[chain], N + 1, &reason);
}

static firn_reason put(state *s, uint32_t chain)
{
    return fixture_store(&s->fix, s->tier, NULL, s->chains[chain], N);
}

static void the_budget_holds_at_every_step(void **in)
{
    state *s = *in;
    firn_tier_stats stats;
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
        assert_int_equal(found(s, i), N);
        look(&s->watch);
    }
    fixture_check(s->tier);
    firn_tier_get_stats(s->tier, &stats);
    assert_true(stats.n_evicted > 50);
    assert_true(s->watch.n_looks > 100);
    assert_true(s->watch.n_bytes_max <= BUDGET);
    assert_true(s->watch.n_bytes_max > BUDGET * 3 / 4); /* and the room is used */
    (void)fixture_assert_books(s->tier, s->dir);
}

static void the_least_recently_used_chain_goes_first_and_from_its_end(void **in)
{
    state *s = *in;
    for (uint32_t i = 0; i < 9; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
    }
    assert_int_equal(found(s, 0), N); /* the oldest becomes the most recent */
    for (uint32_t i = 9; i < 13; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
    }
    assert_int_equal(found(s, 0), N);
    const uint32_t first = found(s, 1);
    assert_true(first < N && first % FIRN_BLOCK_TOKENS == 0); /* cut from its end, in whole blocks */
    assert_int_equal(found(s, 12), N);
    fixture_check(s->tier); /* asserts that no record has lost its parent */
}

static void what_a_handle_promised_is_not_evicted(void **in)
{
    state *s = *in;
    assert_int_equal(put(s, 0), FIRN_REASON_NONE);
    const firn_match match = firn_tier_find(s->tier, s->chains[0], N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    for (uint32_t i = 1; i < N_CHAINS; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
    }
    firn_restored restored;
    assert_int_equal(firn_tier_restore(s->tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    fixture_assert_state(&s->fix, &restored, s->chains[0], N);
    firn_restored_deinit(&restored);
    firn_tier_release(s->tier, match.handle);
    for (uint32_t i = 1; i < N_CHAINS; i++) { /* the promise is over */
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
    }
    assert_true(found(s, 0) < N);
}

static void a_store_that_cannot_fit_is_refused_and_evicts_little(void **in)
{
    state *s = *in;
    firn_match matches[N_CHAINS];
    uint32_t n_stored = 0;
    firn_reason reason = FIRN_REASON_NONE;
    /* Everything is promised to somebody, until there is no room. */
    while (n_stored < N_CHAINS && (reason = put(s, n_stored)) == FIRN_REASON_NONE) {
        matches[n_stored] = firn_tier_find(s->tier, s->chains[n_stored], N + 1, NULL);
        assert_int_equal(matches[n_stored].prefix_len, N);
        n_stored++;
    }
    assert_int_equal(reason, FIRN_REASON_DISK_FULL);
    assert_true(n_stored > 8);
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.n_store_refused, 1);
    assert_int_equal(stats.state, FIRN_REASON_NONE); /* a full budget is no illness */
    assert_int_equal(found(s, n_stored), 0);
    for (uint32_t i = 0; i < n_stored; i++) {
        firn_tier_release(s->tier, matches[i].handle);
    }
    assert_int_equal(put(s, n_stored), FIRN_REASON_NONE);
    assert_true(s->watch.n_bytes_max <= BUDGET);
}

static void a_lowered_budget_holds_from_the_start(void **in)
{
    state *s = *in;
    firn_tier_destroy(s->tier);
    const firn_disk_options more = { .budget_bytes = 2 * BUDGET, .segment_bytes = 16u << 20 };
    s->tier = fixture_open(&s->fix, s->dir, &more);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
    }
    assert_true(fixture_disk_bytes(s->dir) > BUDGET);
    firn_tier_destroy(s->tier);
    const firn_disk_options less = { .budget_bytes = BUDGET, .segment_bytes = 16u << 20 };
    s->tier = fixture_open(&s->fix, s->dir, &less);
    assert_true(fixture_disk_bytes(s->dir) <= BUDGET);
    assert_int_equal(found(s, 19), N);
}

static void what_is_older_than_its_time_is_a_miss_and_goes(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_int_equal(put(s, 0), FIRN_REASON_NONE);
    s->watch.world.clock_offset_ns += UINT64_C(3000000000000);
    assert_int_equal(found(s, 0), N); /* a use begins its time anew */
    assert_int_equal(put(s, 1), FIRN_REASON_NONE);
    s->watch.world.clock_offset_ns += UINT64_C(3000000000000);
    assert_int_equal(found(s, 0), N);
    s->watch.world.clock_offset_ns += UINT64_C(1000000000000); /* 1 is 4,000 s old, 0 is 1,000 s old */
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->chains[1], N + 1, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_EXPIRED);
    assert_int_equal(found(s, 0), N);
    assert_true(firn_tier_flush(s->tier, 1000000000).durable);
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.n_records, N / FIRN_BLOCK_TOKENS); /* the expired chain has left the disk */
    s->watch.world.clock_offset_ns += UINT64_C(4000000000000);
    firn_tier_destroy(s->tier);
    const firn_disk_options options = { .budget_bytes = BUDGET, .ttl_ns = UINT64_C(3600000000000) };
    s->tier = fixture_open(&s->fix, s->dir, &options);
    assert_int_equal(found(s, 0), 0); /* it holds at start, too */
}

static void a_growing_conversation_writes_only_what_is_new(void **in)
{
    state *s = *in;
    firn_token tokens[FIXTURE_TOKENS_MAX];
    fixture_random_tokens(&s->rng, tokens, FIXTURE_TOKENS_MAX);
    uint32_t n_last = 0;
    for (uint32_t n = 900; n <= FIXTURE_TOKENS_MAX; n += 700 + test_rng_below(&s->rng, 300)) {
        assert_int_equal(fixture_store(&s->fix, s->tier, NULL, tokens, n), FIRN_REASON_NONE);
        assert_int_equal(fixture_store(&s->fix, s->tier, NULL, tokens, n), FIRN_REASON_NONE); /* twice costs nothing */
        n_last = n;
    }
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    print_message("written %llu, unique %llu: %.3f\n", (unsigned long long)stats.written_bytes,
                  (unsigned long long)stats.unique_bytes, (double)stats.written_bytes / (double)stats.unique_bytes);
    assert_true(stats.written_bytes * 10 <= stats.unique_bytes * 11);
    assert_int_equal(stats.n_records, (n_last + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS); /* no tail but the last */
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_budget_holds_at_every_step, setup, teardown),
        cmocka_unit_test_setup_teardown(the_least_recently_used_chain_goes_first_and_from_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_handle_promised_is_not_evicted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_that_cannot_fit_is_refused_and_evicts_little, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lowered_budget_holds_from_the_start, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_older_than_its_time_is_a_miss_and_goes, setup_ttl, teardown),
        cmocka_unit_test_setup_teardown(a_growing_conversation_writes_only_what_is_new, setup_small, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
