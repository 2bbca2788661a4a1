/*
 * What a store and a restore ask of the system: records that lie one behind the other are written and read together.
 */
#include "tier/tier_fixture.h"

#define N 2500u /* 39 blocks and a tail */

typedef struct state {
    firn_io io;
    firn_env env;
    uint32_t n_batches, n_reads, n_writes, n_syncs;
    uint64_t n_read_bytes;
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[N + 1];
} state;

static int counted_read_batch(void *ctx, firn_io_read *reads, uint32_t n_reads, void (*done)(void *, uint32_t),
                              void *done_ctx)
{
    state *s = ctx;
    s->n_batches++;
    s->n_reads += n_reads;
    for (uint32_t i = 0; i < n_reads; i++) {
        for (uint32_t k = 0; k < reads[i].n_iov; k++) {
            s->n_read_bytes += reads[i].iov[k].iov_len;
        }
    }
    return firn_io_default()->read_batch(NULL, reads, n_reads, done, done_ctx);
}

static int64_t counted_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    ((state *)ctx)->n_writes++;
    return firn_io_default()->pwritev(NULL, fd, iov, n_iov, offset);
}

static int counted_datasync(void *ctx, int fd)
{
    ((state *)ctx)->n_syncs++;
    return firn_io_default()->datasync(NULL, fd);
}

static void set_up_as(state *s, fixture_schema schema)
{
    memset(s, 0, sizeof *s);
    s->io = *firn_io_default(); /* its other members do not look at their context */
    s->io.read_batch = counted_read_batch;
    s->io.pwritev = counted_pwritev;
    s->io.datasync = counted_datasync;
    s->io.ctx = s;
    s->env = (firn_env){ .io = &s->io };
    const fixture_options options = { .schema = schema };
    test_rng rng = test_rng_create("disk_calls", 3);
    fixture_init(&s->fix, &s->env, &options);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, NULL);
}

static void tear_down_as(state *s)
{
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_dir_remove(s->dir);
    free(s->dir);
}

static void fetch(state *s, uint32_t n_tokens)
{
    firn_reason reason;
    s->n_batches = s->n_reads = 0;
    s->n_read_bytes = 0;
    assert_int_equal(fixture_fetch(&s->fix, s->tier, NULL, s->tokens, n_tokens + 1, &reason), n_tokens);
}

static void store(state *s, uint32_t n_tokens)
{
    s->n_writes = s->n_syncs = 0;
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, n_tokens), FIRN_REASON_NONE);
}

static void a_prefix_that_was_stored_at_once_is_one_write_and_one_read(void **unused)
{
    (void)unused;
    static const fixture_schema schemas[] = { FIXTURE_PLAIN, FIXTURE_STATES, FIXTURE_STATES_ONLY };
    for (unsigned i = 0; i < 3; i++) {
        state s;
        set_up_as(&s, schemas[i]);
        store(&s, N);
        assert_int_equal(s.n_writes, 1);
        assert_int_equal(s.n_syncs, 1);
        fetch(&s, N);
        assert_int_equal(s.n_batches, 1);
        assert_int_equal(s.n_reads, 1);
        tear_down_as(&s);
    }
}

/* Each turn puts its records behind those of the last one; between them lies what was the tail. */
static void a_conversation_is_read_in_as_many_parts_as_it_had_turns(void **unused)
{
    (void)unused;
    state s;
    set_up_as(&s, FIXTURE_PLAIN);
    for (uint32_t turn = 1; turn <= 5; turn++) {
        store(&s, turn * N / 5);
        assert_int_equal(s.n_writes, 1);
    }
    fetch(&s, N);
    assert_int_equal(s.n_batches, 1);
    assert_int_equal(s.n_reads, 5);
    tear_down_as(&s);
}

/* Of records before all windows the window layers' images are left out, so each of them is a read; the last ones, of
 * which everything is read, are one. */
static void window_images_that_nobody_needs_are_not_read(void **unused)
{
    (void)unused;
    state s;
    set_up_as(&s, FIXTURE_WINDOWS);
    uint64_t n_whole = 0;
    for (uint32_t n = 64; n <= N; n += 64) { /* while the rows still hold the windows' blocks */
        store(&s, n);
    }
    firn_tier_stats stats;
    firn_tier_get_stats(s.tier, &stats);
    n_whole = stats.written_bytes;
    fetch(&s, N / 64 * 64);
    assert_int_equal(s.n_batches, 1);
    assert_in_range(s.n_reads, 30, 40);
    assert_true(s.n_read_bytes < n_whole * 3 / 4);
    tear_down_as(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_that_was_stored_at_once_is_one_write_and_one_read),
        cmocka_unit_test(a_conversation_is_read_in_as_many_parts_as_it_had_turns),
        cmocka_unit_test(window_images_that_nobody_needs_are_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
