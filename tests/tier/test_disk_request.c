/*
 * Restores with a request: of what the caller has already nothing is read; layers arrive in order; what nobody wants
 * any more ends early; every byte that was read is delivered or counted as wasted.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/base_impl.h"
#include "tier/tier_fixture.h"

#define N       500u
#define REPORTS 16u

typedef struct state {
    test_world world;
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[N + 1];
    /* Of one request; guarded by the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_answered;
    firn_reason reason;
    firn_restored restored;
    uint32_t n_reports, layers[REPORTS];
    uint32_t n_questions, n_wanted_max; /* wanted this many times, then not */
    firn_cache *expected[FIXTURE_LAYERS_MAX];
    bool early_is_wrong;
} state;

static void open_state(state *s, fixture_schema schema)
{
    const fixture_options options = { .schema = schema };
    test_rng rng = test_rng_create("disk_request", 71);
    memset(s, 0, sizeof *s);
    test_world_init(&s->world);
    fixture_init(&s->fix, &s->world.env, &options);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, s->tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    fixture_make_caches(&s->fix, s->tokens, N, s->expected);
}

static void close_state(state *s)
{
    fixture_destroy_caches(s->expected);
    firn_tier_destroy(s->tier);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    fixture_deinit(&s->fix);
    test_world_deinit(&s->world);
    test_dir_remove(s->dir);
    free(s->dir);
}

static void on_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    state *s = ctx;
    pthread_mutex_lock(&s->mutex);
    assert_false(s->is_answered);
    s->is_answered = true;
    s->reason = reason;
    if (restored != NULL) {
        s->restored = *restored;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

/* What is said to be there must be there. */
static void on_progress(void *ctx, const firn_restore_progress *progress)
{
    state *s = ctx;
    assert_true(progress->n_bytes <= progress->n_bytes_total);
    for (uint32_t i = 0; i < progress->n_caches; i++) {
        assert_int_equal(firn_cache_row_tokens(progress->caches[i], 0), N); /* one row each, from the start */
    }
    pthread_mutex_lock(&s->mutex);
    assert_false(s->is_answered);
    if (s->n_reports < REPORTS) {
        s->layers[s->n_reports++] = progress->n_layers;
    }
    for (uint32_t layer = 0; layer < progress->n_layers; layer++) {
        s->early_is_wrong = s->early_is_wrong || !fixture_cache_equal(progress->caches[layer], s->expected[layer]);
    }
    pthread_mutex_unlock(&s->mutex);
}

static bool is_wanted(void *ctx)
{
    state *s = ctx;
    pthread_mutex_lock(&s->mutex);
    const bool wanted = s->n_questions++ < s->n_wanted_max;
    pthread_mutex_unlock(&s->mutex);
    return wanted;
}

/* Asks and waits for the answer. */
static firn_reason run(state *s, firn_restore_request request)
{
    const firn_match match = firn_tier_find(s->tier, s->tokens, N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    request.done = on_done;
    request.ctx = s;
    s->is_answered = false;
    s->n_reports = s->n_questions = 0;
    assert_ok(firn_tier_restore_request(s->tier, match.handle, &request, NULL));
    firn_tier_release(s->tier, match.handle);
    pthread_mutex_lock(&s->mutex);
    while (!s->is_answered) {
        pthread_cond_wait(&s->changed, &s->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return s->reason;
}

static firn_tier_stats stats_of(const state *s)
{
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    return stats;
}

static void layers_arrive_in_order_in_every_family(void **unused)
{
    (void)unused;
    static state s;
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        open_state(&s, (fixture_schema)schema);
        assert_int_equal(run(&s, (firn_restore_request){ .in_layer_order = true, .progress = on_progress }),
                         FIRN_REASON_NONE);
        fixture_assert_state(&s.fix, &s.restored, s.tokens, N);
        assert_false(s.early_is_wrong);
        assert_true(s.n_reports >= 1);
        if (s.fix.n_layers > 1) {
            assert_int_equal(s.layers[0], 0); /* memory, and nothing in it */
            assert_int_equal(s.layers[s.n_reports - 1], s.fix.n_layers);
            assert_true(s.n_reports >= 3);
        }
        for (uint32_t i = 1; i < s.n_reports; i++) {
            assert_true(s.layers[i] >= s.layers[i - 1]);
        }
        assert_int_equal(stats_of(&s).read_bytes, s.restored.n_bytes_read);
        assert_int_equal(stats_of(&s).wasted_bytes, 0);
        firn_restored_deinit(&s.restored);
        close_state(&s);
    }
}

/* The blocks of the first n records, as a tree in RAM would lend them. */
static void make_head(const state *s, uint32_t n, firn_block **head)
{
    for (uint32_t layer = 0; layer < s->fix.n_layers; layer++) {
        const firn_row_view view = firn_cache_view_row(s->expected[layer], 0);
        for (uint32_t i = 0; i < n; i++) {
            const bool there = i >= view.first_block && i - view.first_block < view.n_blocks;
            head[layer * n + i] = there ? view.blocks[i - view.first_block] : NULL;
        }
    }
}

static void what_the_caller_has_is_not_read(void **unused)
{
    (void)unused;
    static state s;
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        open_state(&s, (fixture_schema)schema);
        firn_block *head[FIXTURE_LAYERS_MAX * 7];
        assert_int_equal(run(&s, (firn_restore_request){ .n_tokens = N }), FIRN_REASON_NONE);
        const uint64_t whole = s.restored.n_bytes_read;
        firn_restored_deinit(&s.restored);
        for (uint32_t in_order = 0; in_order < 2; in_order++) {
            make_head(&s, 6, head);
            assert_int_equal(run(&s, (firn_restore_request){ .head = head, .n_head_blocks = 6,
                                                             .in_layer_order = in_order == 1 }),
                             FIRN_REASON_NONE);
            fixture_assert_state(&s.fix, &s.restored, s.tokens, N);
            if (schema == FIXTURE_PLAIN) {
                assert_int_equal(s.restored.n_bytes_read, whole / 8 * 2); /* two of eight records */
            }
            assert_true(s.restored.n_bytes_read <= whole);
            firn_restored_deinit(&s.restored);
        }
        close_state(&s);
    }
}

static void an_unwanted_read_ends_early_and_counts_what_it_read(void **unused)
{
    (void)unused;
    static state s;
    open_state(&s, FIXTURE_ALL);
    for (uint32_t n = 0; n < 3; n++) {
        s.n_wanted_max = n; /* of headers, and groups of layers */
        const firn_tier_stats before = stats_of(&s);
        assert_int_equal(run(&s, (firn_restore_request){ .in_layer_order = true, .is_wanted = is_wanted }),
                         FIRN_REASON_CANCELLED);
        const firn_tier_stats after = stats_of(&s);
        assert_int_equal(after.n_cancelled, n + 1);
        assert_int_equal(after.n_misses, before.n_misses);
        assert_int_equal(after.wasted_bytes - before.wasted_bytes, after.read_bytes - before.read_bytes);
        assert_int_equal(after.wasted_bytes > before.wasted_bytes, n > 0);
    }
    s.n_wanted_max = 0;
    assert_int_equal(run(&s, (firn_restore_request){ .is_wanted = is_wanted }), FIRN_REASON_CANCELLED);
    s.n_wanted_max = UINT32_MAX;
    assert_int_equal(run(&s, (firn_restore_request){ .is_wanted = is_wanted }), FIRN_REASON_NONE);
    fixture_assert_state(&s.fix, &s.restored, s.tokens, N);
    firn_restored_deinit(&s.restored);
    close_state(&s);
}

static void each_failing_read_gives_nothing_and_a_reason(void **unused)
{
    (void)unused;
    static state s;
    open_state(&s, FIXTURE_ALL);
    for (uint32_t n = 1;; n++) {
        s.world.fail_op_at[TEST_IO_READ_BATCH] = s.world.n_ops[TEST_IO_READ_BATCH] + n;
        const firn_reason reason =
            run(&s, (firn_restore_request){ .in_layer_order = true, .progress = on_progress });
        assert_false(s.early_is_wrong);
        if (reason == FIRN_REASON_NONE) {
            assert_true(n > 10);
            firn_restored_deinit(&s.restored);
            break;
        }
        assert_int_equal(reason, FIRN_REASON_IO_ERROR);
    }
    close_state(&s);
}

static void a_late_read_counts_as_wasted(void **unused)
{
    (void)unused;
    static state s;
    open_state(&s, FIXTURE_PLAIN);
    s.world.read_delay_ns = 100000000;
    const uint64_t deadline_ns = firni_now_ns(&s.world.env) + 20000000;
    assert_int_equal(run(&s, (firn_restore_request){ .deadline_ns = deadline_ns, .in_layer_order = true,
                                                     .progress = on_progress }),
                     FIRN_REASON_DEADLINE);
    assert_int_equal(run(&s, (firn_restore_request){ .n_tokens = 64 }), FIRN_REASON_NONE); /* behind it in the queue */
    const firn_tier_stats stats = stats_of(&s);
    assert_int_equal(stats.read_bytes, stats.wasted_bytes + s.restored.n_bytes_read);
    firn_restored_deinit(&s.restored);
    close_state(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_arrive_in_order_in_every_family),
        cmocka_unit_test(what_the_caller_has_is_not_read),
        cmocka_unit_test(an_unwanted_read_ends_early_and_counts_what_it_read),
        cmocka_unit_test(each_failing_read_gives_nothing_and_a_reason),
        cmocka_unit_test(a_late_read_counts_as_wasted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
