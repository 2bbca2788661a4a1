/* Attachments: bound to an exact count, returned whole at that count alone, replaced, verified, and without tokens. */
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "tier/tier_fixture.h"

#define N 150u

typedef struct state {
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[N + 1];
    float logits[6];
    int32_t ids[4];
    firn_tensor tensors[2];
    firn_attachment attachments[2];
} state;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_object", 61);
    fixture_init(&s->fix, NULL, NULL);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    s->dir = test_dir_create();
    s->tier = fixture_open(&s->fix, s->dir, NULL);
    for (unsigned i = 0; i < 6; i++) {
        s->logits[i] = test_rng_unit(&rng);
    }
    for (int i = 0; i < 4; i++) {
        s->ids[i] = 100 + i;
    }
    s->tensors[0] = (firn_tensor){
        .dtype = FIRN_DTYPE_F32, .n_dims = 2, .shape = { 2, 3 }, .data = s->logits, .n_bytes = sizeof s->logits
    };
    s->tensors[1] =
        (firn_tensor){ .dtype = FIRN_DTYPE_I32, .n_dims = 1, .shape = { 4 }, .data = s->ids, .n_bytes = sizeof s->ids };
    s->attachments[0] = (firn_attachment){
        .schema = "firn.last_logits.1", .metadata = "meta", .n_metadata_bytes = 4, .tensors = s->tensors, .n_tensors = 2
    };
    s->attachments[1] = (firn_attachment){ .schema = "firn.note.1" };
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

static void store(state *s, uint32_t n_tokens, uint32_t n_attachments)
{
    firn_reason reason;
    assert_true(
        fixture_store_with(&s->fix, s->tier, NULL, s->tokens, n_tokens, s->attachments, n_attachments, &reason));
}

static void assert_attachments(const state *s, const firn_restored *restored)
{
    assert_int_equal(restored->n_attachments, 2);
    const firn_attachment *first = &restored->attachments[0], *second = &restored->attachments[1];
    assert_string_equal(first->schema, "firn.last_logits.1");
    assert_int_equal(first->n_metadata_bytes, 4);
    assert_memory_equal(first->metadata, "meta", 4);
    assert_int_equal(first->n_tensors, 2);
    assert_int_equal(first->tensors[0].n_dims, 2);
    assert_int_equal(first->tensors[0].shape[1], 3);
    assert_int_equal(first->tensors[0].dtype, FIRN_DTYPE_F32);
    assert_memory_equal(first->tensors[0].data, s->logits, sizeof s->logits);
    assert_memory_equal(first->tensors[1].data, s->ids, sizeof s->ids);
    assert_string_equal(second->schema, "firn.note.1");
    assert_int_equal(second->n_metadata_bytes, 0);
    assert_int_equal(second->n_tensors, 0);
}

/* Number of attachments at exactly n tokens. */
static uint32_t attachments_at(state *s, uint32_t n)
{
    const firn_match match = firn_tier_find_exact(s->tier, s->tokens, n, NULL);
    assert_non_null(match.handle);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(s->tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    const uint32_t n_found = restored.n_attachments;
    if (n_found > 0) {
        assert_attachments(s, &restored);
    }
    firn_restored_deinit(&restored);
    firn_tier_release(s->tier, match.handle);
    return n_found;
}

static void attachments_come_back_at_their_exact_count_alone(void **in)
{
    state *s = *in;
    const uint32_t counts[] = { 1, 63, 64, 65, 128, N };
    for (size_t i = 0; i < 6; i++) {
        store(s, counts[i], 2);
        store(s, N, 0); /* the longer state does not take them away */
        assert_int_equal(attachments_at(s, counts[i]), 2);
        if (counts[i] < N && counts[i] != 63 && counts[i] != 64) { /* whose next is in the list */
            assert_int_equal(attachments_at(s, counts[i] + 1), 0);
        }
    }
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(attachments_at(s, counts[i]), 2);
    }
    firn_tier_destroy(s->tier);
    s->tier = fixture_open(&s->fix, s->dir, NULL);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(attachments_at(s, counts[i]), 2);
    }
}

static void a_shorter_restore_brings_the_attachments_of_its_own_count(void **in)
{
    state *s = *in;
    store(s, 100, 2);
    store(s, N, 0);
    const firn_match match = firn_tier_find(s->tier, s->tokens, N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    for (uint32_t n = 99; n <= 101; n++) {
        firn_restored restored;
        assert_int_equal(firn_tier_restore(s->tier, match.handle, n, &restored), FIRN_REASON_NONE);
        assert_int_equal(restored.n_attachments, n == 100 ? 2 : 0);
        fixture_assert_state(&s->fix, &restored, s->tokens, n);
        firn_restored_deinit(&restored);
    }
    firn_tier_release(s->tier, match.handle);
}

static void an_object_needs_no_tokens(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_null(firn_tier_find_exact(s->tier, NULL, 0, "adapter").handle);
    const firn_store_input input = { .ns = "adapter", .attachments = s->attachments, .n_attachments = 2 };
    assert_true(firn_tier_store(s->tier, &input, &reason));
    const firn_match match = firn_tier_find_exact(s->tier, NULL, 0, "adapter");
    assert_non_null(match.handle);
    assert_int_equal(match.prefix_len, 0);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(s->tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    assert_int_equal(restored.n_tokens, 0);
    assert_null(restored.caches);
    assert_attachments(s, &restored);
    firn_restored_deinit(&restored);
    firn_tier_release(s->tier, match.handle);
    assert_null(firn_tier_find_exact(s->tier, NULL, 0, NULL).handle); /* another namespace */
    const firn_store_input nothing = { .ns = "adapter" };
    assert_false(firn_tier_store(s->tier, &nothing, &reason));
    assert_int_equal(reason, FIRN_REASON_BELOW_MIN);
}

static void a_new_object_replaces_the_old_unless_it_is_being_read(void **in)
{
    state *s = *in;
    firn_reason reason;
    store(s, 100, 2);
    const firn_match match = firn_tier_find_exact(s->tier, s->tokens, 100, NULL);
    assert_false(fixture_store_with(&s->fix, s->tier, NULL, s->tokens, 100, s->attachments, 1, &reason));
    assert_int_equal(reason, FIRN_REASON_LOADING);
    firn_tier_release(s->tier, match.handle);
    s->logits[0] = 42;
    store(s, 100, 2);
    assert_int_equal(attachments_at(s, 100), 2); /* compares with the new value */
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.n_records, 3); /* a block, a tail, an object */
}

static void a_damaged_object_is_a_full_miss_and_then_gone(void **in)
{
    state *s = *in;
    store(s, 100, 2);
    firn_tier_destroy(s->tier);
    char path[700];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", s->dir);
    const int fd = open(path, O_RDWR);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, st.st_size - 4096 * 2 + 3), 1); /* in the last tensors, which end the file */
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 4096 * 2 + 3), 1);
    close(fd);
    s->tier = fixture_open(&s->fix, s->dir, NULL);
    const firn_match match = firn_tier_find_exact(s->tier, s->tokens, 100, NULL);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(s->tier, match.handle, 0, &restored), FIRN_REASON_CORRUPT);
    assert_null(restored.caches);
    firn_tier_release(s->tier, match.handle);
    assert_int_equal(attachments_at(s, 100), 0); /* the state itself is whole */
    store(s, 100, 2);
    assert_int_equal(attachments_at(s, 100), 2);
}

static void what_is_outside_the_limits_is_refused(void **in)
{
    state *s = *in;
    firn_reason reason;
    firn_attachment bad = s->attachments[0];
    bad.schema = "";
    assert_false(fixture_store_with(&s->fix, s->tier, NULL, s->tokens, 70, &bad, 1, &reason));
    bad = s->attachments[0];
    bad.n_metadata_bytes = 65537;
    assert_false(fixture_store_with(&s->fix, s->tier, NULL, s->tokens, 70, &bad, 1, &reason));
    firn_tensor lying = s->tensors[0];
    lying.n_bytes = 5;
    bad = (firn_attachment){ .schema = "x", .tensors = &lying, .n_tensors = 1 };
    assert_false(fixture_store_with(&s->fix, s->tier, NULL, s->tokens, 70, &bad, 1, &reason));
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.n_records, 0);
}

typedef struct answer {
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    bool is_there;
    firn_reason reason;
    firn_restored restored;
} answer;

static void on_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    answer *got = ctx;
    pthread_mutex_lock(&got->mutex);
    got->is_there = true;
    got->reason = reason;
    if (restored != NULL) {
        got->restored = *restored;
    }
    pthread_cond_signal(&got->arrived);
    pthread_mutex_unlock(&got->mutex);
}

static void await(answer *got)
{
    pthread_mutex_lock(&got->mutex);
    while (!got->is_there) {
        pthread_cond_wait(&got->arrived, &got->mutex);
    }
    pthread_mutex_unlock(&got->mutex);
}

static bool store_alone(const state *s, uint32_t n_tokens, int priority, firn_reason *reason)
{
    const firn_store_input input = { .tokens = s->tokens, .n_tokens = n_tokens, .attachments = s->attachments,
                                     .n_attachments = 2, .priority = priority };
    return firn_tier_store(s->tier, &input, reason);
}

static void attachments_alone_are_taken_where_their_state_is(void **in)
{
    state *s = *in;
    firn_reason reason;
    firn_tier_stats stats;
    assert_false(store_alone(s, 100, 0, &reason));
    assert_int_equal(reason, FIRN_REASON_FAMILY_MISSING);
    store(s, 64, 0);
    assert_false(store_alone(s, 100, 0, &reason)); /* a part of it is not enough */
    assert_int_equal(reason, FIRN_REASON_FAMILY_MISSING);
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.n_records, 1);
    store(s, N, 0);
    firn_tier_get_stats(s->tier, &stats);
    const uint64_t n_records = stats.n_records, n_written = stats.written_bytes;
    assert_true(store_alone(s, 100, 0, &reason)); /* inside of a longer one */
    firn_tier_get_stats(s->tier, &stats);
    assert_int_equal(stats.n_records, n_records + 1);
    assert_true(stats.written_bytes - n_written <= 6 * 4096); /* header, two metadata, two tensors */
    assert_int_equal(attachments_at(s, 100), 2);
    assert_int_equal(attachments_at(s, 101), 0);
    /* The caches without them, for who has them already. */
    answer got = { .mutex = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER };
    const firn_match match = firn_tier_find_exact(s->tier, s->tokens, 100, NULL);
    const firn_restore_request request = { .caches_only = true, .done = on_done, .ctx = &got };
    assert_ok(firn_tier_restore_request(s->tier, match.handle, &request, NULL));
    firn_tier_release(s->tier, match.handle);
    await(&got);
    assert_int_equal(got.reason, FIRN_REASON_NONE);
    assert_int_equal(got.restored.n_caches, s->fix.n_layers);
    assert_int_equal(got.restored.n_attachments, 0);
    firn_restored_deinit(&got.restored);
}

/* A use raises the state, and does not make the attachments worth more than they were stored for. */
static void attachments_of_less_worth_go_before_any_state(void **in)
{
    state *s = *in;
    firn_reason reason;
    firn_token old[N];
    test_rng rng = test_rng_create("old", 62);
    fixture_random_tokens(&rng, old, N);
    assert_true(fixture_store_with(&s->fix, s->tier, NULL, old, N, NULL, 0, &reason));
    store(s, N, 0);
    firn_tier_stats stats;
    firn_tier_get_stats(s->tier, &stats);
    const uint64_t n_before = stats.written_bytes;
    assert_true(store_alone(s, N, FIRN_PRIORITY_MIN, &reason));
    firn_tier_get_stats(s->tier, &stats);
    const uint64_t n_object_bytes = stats.written_bytes - n_before;
    assert_int_equal(attachments_at(s, N), 2); /* used, long after the other state */
    store(s, N, 0);                            /* writes down that use too */
    const firn_disk_prune_options options = { .to_bytes = stats.physical_bytes - 1, .dry_run = true };
    firn_disk_prune_report report;
    assert_ok(firn_disk_prune(s->tier, &options, &report, NULL));
    assert_int_equal(report.n_records, 1);
    assert_int_equal(report.n_bytes, n_object_bytes);
}

static void an_object_can_be_restored_without_its_caches(void **in)
{
    state *s = *in;
    for (uint32_t n_attachments = 0; n_attachments <= 2; n_attachments += 2) {
        answer got = { .mutex = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER };
        store(s, 100, n_attachments);
        const firn_match match = firn_tier_find_exact(s->tier, s->tokens, 100, NULL);
        assert_ok(firn_tier_restore_object_async(s->tier, match.handle, 0, on_done, &got, NULL));
        firn_tier_release(s->tier, match.handle);
        await(&got);
        assert_int_equal(got.reason, n_attachments == 0 ? FIRN_REASON_FAMILY_MISSING : FIRN_REASON_NONE);
        if (n_attachments > 0) {
            assert_int_equal(got.restored.n_tokens, 100);
            assert_memory_equal(got.restored.tokens, s->tokens, 100 * sizeof(firn_token));
            assert_null(got.restored.caches);
            assert_attachments(s, &got.restored);
        }
        firn_restored_deinit(&got.restored);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(attachments_come_back_at_their_exact_count_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_shorter_restore_brings_the_attachments_of_its_own_count, setup, teardown),
        cmocka_unit_test_setup_teardown(an_object_needs_no_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_object_replaces_the_old_unless_it_is_being_read, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_object_is_a_full_miss_and_then_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_outside_the_limits_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(attachments_alone_are_taken_where_their_state_is, setup, teardown),
        cmocka_unit_test_setup_teardown(attachments_of_less_worth_go_before_any_state, setup, teardown),
        cmocka_unit_test_setup_teardown(an_object_can_be_restored_without_its_caches, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
