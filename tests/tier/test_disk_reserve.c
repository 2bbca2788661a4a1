/*
 * Room that is shared: with others on the file system, of which a reserve stays free, and between models in one
 * directory, whose records leave in one order.
 */
#include "tier/tier_fixture.h"

#define N        320u /* five blocks: about 5.3 MB in the large geometry */
#define N_CHAINS 18u
#define SIZE     (UINT64_C(200) << 20)
#define RESERVE  (UINT64_C(80) << 20)

static const fixture_options large = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 64 };

/* A file system of its own for the directory: so large, and so much of it in use by others. */
typedef struct state {
    firn_io io;
    firn_env env;
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token chains[N_CHAINS][N + 1];
    uint64_t others_bytes, free_bytes_min;
    bool is_stuck, is_silent; /* the count does not grow; there is none */
    uint64_t stuck_bytes;
} state;

static uint64_t free_bytes(const state *s)
{
    const uint64_t used = fixture_disk_bytes(s->dir) + s->others_bytes;
    return used < SIZE ? SIZE - used : 0;
}

static int made_stat_fs(void *ctx, const char *path, firn_io_fs *out)
{
    state *s = ctx;
    (void)path;
    if (s->is_silent) {
        return -38; /* ENOSYS */
    }
    uint64_t n_free = free_bytes(s);
    if (s->is_stuck) {
        s->stuck_bytes = n_free < s->stuck_bytes ? n_free : s->stuck_bytes;
        n_free = s->stuck_bytes;
    }
    *out = (firn_io_fs){ .size_bytes = SIZE, .free_bytes = n_free };
    return 0;
}

static int64_t watched_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    state *s = ctx;
    const int64_t result = firn_io_default()->pwritev(NULL, fd, iov, n_iov, offset);
    s->free_bytes_min = free_bytes(s) < s->free_bytes_min ? free_bytes(s) : s->free_bytes_min;
    return result;
}

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    s->io = *firn_io_default();
    s->io.stat_fs = made_stat_fs;
    s->io.pwritev = watched_pwritev;
    s->io.ctx = s;
    s->env = (firn_env){ .io = &s->io };
    s->free_bytes_min = s->stuck_bytes = UINT64_MAX;
    test_rng rng = test_rng_create("disk_reserve", 5);
    fixture_init(&s->fix, &s->env, &large);
    s->dir = test_dir_create();
    const firn_disk_options options = { .min_free_bytes = RESERVE, .segment_bytes = 16u << 20 };
    s->tier = fixture_open(&s->fix, s->dir, &options);
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        fixture_random_tokens(&rng, s->chains[i], N + 1);
    }
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    fixture_check(s->tier);
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_dir_remove(s->dir);
    free(s->dir);
    free(s);
    return 0;
}

static firn_reason put(state *s, uint32_t i)
{
    return fixture_store(&s->fix, s->tier, NULL, s->chains[i], N);
}

static uint32_t found(state *s, uint32_t i)
{
    firn_reason reason;
    return fixture_fetch(&s->fix, s->tier, NULL, s->chains[i], N + 1, &reason);
}

static uint64_t evicted(state *s)
{
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    return stats.n_evicted;
}

static void stores_evict_before_the_reserve_is_touched(void **in)
{
    state *s = *in;
    s->others_bytes = UINT64_C(80) << 20; /* 40 MiB are left */
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
        assert_int_equal(found(s, i), N);
    }
    assert_true(evicted(s) > 20);
    assert_true(s->free_bytes_min >= RESERVE);
    assert_true(s->free_bytes_min < RESERVE + (UINT64_C(8) << 20)); /* and what is left is used */
}

static void a_file_system_that_others_filled_costs_no_record(void **in)
{
    state *s = *in;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
    }
    s->others_bytes = SIZE;
    assert_int_equal(put(s, 4), FIRN_REASON_DISK_FULL);
    assert_int_equal(evicted(s), 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(found(s, i), N);
    }
    s->others_bytes = 0;
    assert_int_equal(put(s, 4), FIRN_REASON_NONE);
    assert_int_equal(found(s, 4), N);
}

static void a_slow_count_of_free_bytes_does_not_empty_the_cache(void **in)
{
    state *s = *in;
    s->others_bytes = UINT64_C(80) << 20;
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(put(s, i), FIRN_REASON_NONE);
    }
    s->is_stuck = true;
    const uint64_t before = evicted(s);
    assert_int_equal(put(s, 8), FIRN_REASON_NONE);
    assert_int_equal(put(s, 9), FIRN_REASON_NONE);
    assert_true(evicted(s) - before <= 24); /* twice five blocks and what the index needs, in place of all there were */
    assert_int_equal(found(s, 9), N);
}

static void a_file_system_that_does_not_say_has_no_reserve(void **in)
{
    state *s = *in;
    s->others_bytes = SIZE;
    s->is_silent = true;
    assert_int_equal(put(s, 0), FIRN_REASON_NONE);
}

/* ---- several models ---------------------------------------------------------------------------------------------- */

/* One writer at a time: each model's process opens the directory in turn. */
static void use_model(const state *s, const fixture *fix, uint32_t first, uint32_t n, bool store, uint32_t *n_found)
{
    const firn_disk_options options = { .budget_bytes = UINT64_C(64) << 20, .segment_bytes = 16u << 20,
                                        .min_free_bytes = FIRN_DISK_NO_RESERVE };
    firn_reason reason;
    firn_tier *tier = fixture_open(fix, s->dir, &options);
    *n_found = 0;
    for (uint32_t i = first; i < first + n; i++) {
        if (store) {
            assert_int_equal(fixture_store(fix, tier, NULL, s->chains[i], N), FIRN_REASON_NONE);
        } else {
            *n_found += fixture_fetch(fix, tier, NULL, s->chains[i], N + 1, &reason) == N;
        }
        assert_true(fixture_assert_books(tier, s->dir).physical_bytes <= options.budget_bytes);
    }
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static void models_of_different_sizes_share_one_budget_and_one_order(void **in)
{
    state *s = *in;
    firn_tier_destroy(s->tier);
    fixture small;
    const fixture_options half = { .weights = "w2", .dtype = FIRN_DTYPE_F32, .n_kv_heads = 8, .head_dim = 64 };
    fixture_init(&small, &s->env, &half);
    uint32_t n_found;
    use_model(s, &s->fix, 0, 4, true, &n_found);   /* 21 MB, the oldest */
    use_model(s, &small, 4, 6, true, &n_found);    /* 16 MB */
    use_model(s, &s->fix, 0, 2, false, &n_found);  /* the first two of the large model are used again */
    assert_int_equal(n_found, 2);
    use_model(s, &s->fix, 10, 8, true, &n_found);  /* 42 MB: what has not been used must go, first of the large model */
    use_model(s, &s->fix, 2, 2, false, &n_found);
    assert_int_equal(n_found, 0);
    use_model(s, &small, 4, 6, false, &n_found);   /* then of the small one, and no more than needed */
    assert_in_range(n_found, 1, 5);
    use_model(s, &s->fix, 0, 2, false, &n_found);  /* used after all of the small one's: still there */
    assert_int_equal(n_found, 2);
    use_model(s, &s->fix, 10, 8, false, &n_found);
    assert_int_equal(n_found, 8);
    fixture_deinit(&small);
    s->tier = fixture_open(&s->fix, s->dir, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stores_evict_before_the_reserve_is_touched, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_system_that_others_filled_costs_no_record, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_count_of_free_bytes_does_not_empty_the_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_system_that_does_not_say_has_no_reserve, setup, teardown),
        cmocka_unit_test_setup_teardown(models_of_different_sizes_share_one_budget_and_one_order, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
