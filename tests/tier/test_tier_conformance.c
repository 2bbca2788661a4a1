/*
 * One suite over every tier: random operations, with the dictionary that always tells the truth as the model.
 *
 * An implementation is a row in `implementations`; a new tier is covered by adding one.
 */
#include "firn/stack.h"
#include "support/dict_tier.h"
#include "tier/tier_fixture.h"

#define N_STEPS      260u
#define N_SEQUENCES  24u
#define SEQUENCE_MAX 330u

typedef enum below {
    BELOW_NONE,
    BELOW_DISK, /* the tier is a stack: over another disk */
    BELOW_DICT,
    BELOW_STACK /* over a disk over a dictionary */
} below;

typedef struct implementation {
    const char *name;
    bool is_disk, evicts;
    below below;
    firn_disk_options disk;
    fixture_options geometry;
} implementation;

static const implementation implementations[] = {
    { .name = "dict" },
    { .name = "disk", .is_disk = true },
    { .name = "disk, buffered, small segments",
      .is_disk = true,
      .disk = { .buffered = true, .segment_bytes = 1 << 16 } },
    { .name = "disk, no sync, f32",
      .is_disk = true,
      .disk = { .durability = FIRN_DURABILITY_NONE },
      .geometry = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 1, .head_dim = 6 } },
    { .name = "disk, evicting",
      .is_disk = true,
      .evicts = true,
      .disk = { .budget_bytes = 64u << 20, .segment_bytes = 8u << 20, .durability = FIRN_DURABILITY_NONE },
      .geometry = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 128 } },
    { .name = "dict, all families", .geometry = { .schema = FIXTURE_ALL } },
    { .name = "disk, windows", .is_disk = true, .geometry = { .schema = FIXTURE_WINDOWS } },
    { .name = "disk, states", .is_disk = true, .geometry = { .schema = FIXTURE_STATES } },
    { .name = "disk, all families", .is_disk = true, .geometry = { .schema = FIXTURE_ALL } },
    { .name = "disk, states only, small segments",
      .is_disk = true,
      .disk = { .segment_bytes = 1 << 16 },
      .geometry = { .schema = FIXTURE_STATES_ONLY } },
    { .name = "disk, encrypted", .is_disk = true, .disk = { .key = fixture_key, .segment_bytes = 1 << 16 } },
    { .name = "disk, encrypted, all families",
      .is_disk = true,
      .disk = { .key = fixture_key },
      .geometry = { .schema = FIXTURE_ALL } },
    { .name = "disk, encrypted, states only",
      .is_disk = true,
      .disk = { .key = fixture_key },
      .geometry = { .schema = FIXTURE_STATES_ONLY } },
    { .name = "disk, a window only", .is_disk = true, .geometry = { .schema = FIXTURE_WINDOWS_ONLY } },
    { .name = "disk, all families, evicting",
      .is_disk = true,
      .evicts = true,
      .disk = { .budget_bytes = 64u << 20, .segment_bytes = 8u << 20, .durability = FIRN_DURABILITY_NONE },
      .geometry = { .schema = FIXTURE_ALL, .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 128 } },
    { .name = "stack, disk over disk", .is_disk = true, .below = BELOW_DISK },
    { .name = "stack, disk over dict", .is_disk = true, .below = BELOW_DICT },
    { .name = "stack, disk over stack",
      .is_disk = true,
      .below = BELOW_STACK,
      .geometry = { .schema = FIXTURE_WINDOWS } },
    { .name = "stack, disk over disk, all families",
      .is_disk = true,
      .below = BELOW_DISK,
      .geometry = { .schema = FIXTURE_ALL } },
    { .name = "stack, disk over disk, evicting",
      .is_disk = true,
      .evicts = true,
      .below = BELOW_DISK,
      .disk = { .budget_bytes = 64u << 20, .segment_bytes = 8u << 20, .durability = FIRN_DURABILITY_NONE },
      .geometry = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 128 } },
};

typedef struct world {
    const implementation *impl;
    fixture fix;
    char *dir, *dir_below;
    firn_tier *tier; /* what is tested */
    firn_tier *disk; /* the disk that it is, or that is the upper one of it; NULL: none */
    dict_tier *model;
    test_rng rng;
    firn_token sequences[N_SEQUENCES][SEQUENCE_MAX];
    uint32_t n_hits, n_stores;
    uint64_t n_evicted; /* before the last reopening */
} world;

static firn_tier *stack_over(firn_tier *upper, firn_tier *lower)
{
    /* Copying is always due, and lookups see every state of it. */
    const firn_stack_options options = {
        .upper = upper, .lower = lower, .demote_idle_ns = 1, .lower_deadline_ns = UINT64_C(60000000000)
    };
    firn_tier *tier;
    assert_ok(firn_stack_create(&options, NULL, &tier, NULL));
    return tier;
}

static void open_tier(world *w)
{
    w->disk = w->impl->is_disk ? fixture_open(&w->fix, w->dir, &w->impl->disk) : NULL;
    w->tier = w->disk != NULL ? w->disk : &dict_tier_create(NULL)->tier;
    if (w->impl->below == BELOW_DICT) {
        w->tier = stack_over(w->disk, &dict_tier_create(NULL)->tier);
    } else if (w->impl->below != BELOW_NONE) {
        firn_tier *lower = fixture_open(&w->fix, w->dir_below, NULL);
        lower = w->impl->below == BELOW_STACK ? stack_over(lower, &dict_tier_create(NULL)->tier) : lower;
        w->tier = stack_over(w->disk, lower);
    }
}

/* A forest: each sequence leaves an earlier one somewhere, often near a block's edge. */
static void make_sequences(world *w)
{
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        fixture_random_tokens(&w->rng, w->sequences[i], SEQUENCE_MAX);
        /* Less is shared where the budget is to be filled. */
        if (w->impl->evicts ? i % 3 == 1 : i % 6 != 0) {
            const uint32_t from = test_rng_below(&w->rng, i);
            const uint32_t edge = 64 * (1 + test_rng_below(&w->rng, 4));
            const uint32_t n_shared = test_rng_below(&w->rng, 2) == 0 ? edge + test_rng_below(&w->rng, 3) - 1
                                                                      : test_rng_below(&w->rng, SEQUENCE_MAX);
            memcpy(w->sequences[i], w->sequences[from], n_shared * sizeof(firn_token));
        }
    }
}

static const char *pick_namespace(world *w)
{
    return test_rng_below(&w->rng, 4) == 0 ? "other" : "";
}

static uint32_t pick_length(world *w)
{
    const uint32_t n = 64 * (1 + test_rng_below(&w->rng, 5));
    switch (test_rng_below(&w->rng, 4)) {
    case 0: return n;
    case 1: return n - 1;
    case 2: return n + 1;
    default: return 1 + test_rng_below(&w->rng, SEQUENCE_MAX);
    }
}

static void do_store(world *w)
{
    const firn_token *tokens = w->sequences[test_rng_below(&w->rng, N_SEQUENCES)];
    const uint32_t n = pick_length(w);
    const char *ns = pick_namespace(w);
    float data[3] = { (float)n, test_rng_unit(&w->rng), 1.0f };
    const firn_tensor tensor = { .dtype = FIRN_DTYPE_F32, .n_dims = 1, .shape = { 3 }, .data = data, .n_bytes = 12 };
    const firn_attachment attachment = {
        .schema = "test.1", .metadata = &n, .n_metadata_bytes = sizeof n, .tensors = &tensor, .n_tensors = 1
    };
    const uint32_t n_attachments = test_rng_below(&w->rng, 3) == 0;
    firn_reason reason;
    if (n_attachments > 0 && !w->fix.has_windows && test_rng_below(&w->rng, 2) == 0) {
        /* Alone, for state that may be there. Of windows the dictionary asks for more than a tier has to. */
        const firn_store_input alone = { .tokens = tokens, .n_tokens = n, .ns = ns, .attachments = &attachment,
                                         .n_attachments = 1 };
        const bool was_stored = firn_tier_store(w->tier, &alone, &reason);
        assert_true(was_stored || reason == FIRN_REASON_FAMILY_MISSING);
        if (!w->impl->evicts) {
            assert_int_equal(firn_tier_store(&w->model->tier, &alone, &reason), was_stored);
        }
        return;
    }
    const bool stored = fixture_store_with(&w->fix, w->tier, ns, tokens, n, &attachment, n_attachments, &reason);
    if (!stored) {
        fail_msg("a store of %u tokens was refused: %s", n, firn_reason_name(reason));
    }
    if (!w->impl->evicts) { /* the dictionary never forgets: what is evicted cannot be compared with it */
        assert_true(fixture_store_with(&w->fix, &w->model->tier, ns, tokens, n, &attachment, n_attachments, &reason));
    }
    w->n_stores++;
}

static void compare_attachments(const firn_restored *restored, const firn_restored *expected)
{
    assert_int_equal(restored->n_attachments, expected->n_attachments);
    for (uint32_t a = 0; a < expected->n_attachments; a++) {
        const firn_attachment *x = &restored->attachments[a], *y = &expected->attachments[a];
        assert_string_equal(x->schema, y->schema);
        assert_int_equal(x->n_metadata_bytes, y->n_metadata_bytes);
        assert_memory_equal(x->metadata, y->metadata, y->n_metadata_bytes);
        assert_int_equal(x->n_tensors, y->n_tensors);
        for (uint32_t t = 0; t < y->n_tensors; t++) {
            assert_int_equal(x->tensors[t].n_bytes, y->tensors[t].n_bytes);
            assert_memory_equal(x->tensors[t].data, y->tensors[t].data, y->tensors[t].n_bytes);
        }
    }
}

/* The whole match comes back. A shorter count does where its families are there, which the dictionary knows for the
 * states: what is usable of windows depends on whose records the match goes along. */
static void compare_restore(world *w, firn_match match, firn_match expected, const firn_token *tokens)
{
    const uint32_t n =
        test_rng_below(&w->rng, 3) == 0 ? 1 + test_rng_below(&w->rng, match.prefix_len) : match.prefix_len;
    firn_restored restored, model = { 0 };
    const firn_reason reason = firn_tier_restore(w->tier, match.handle, n, &restored);
    firn_reason truth = FIRN_REASON_FAMILY_MISSING;
    if (!w->impl->evicts && expected.handle != NULL && n <= expected.prefix_len) {
        truth = firn_tier_restore(&w->model->tier, expected.handle, n, &model);
    }
    if (n == match.prefix_len || (truth == FIRN_REASON_NONE && !w->fix.has_windows)) {
        assert_int_equal(reason, FIRN_REASON_NONE);
    }
    if (reason == FIRN_REASON_NONE) {
        fixture_assert_state(&w->fix, &restored, tokens, n);
        assert_true(truth == FIRN_REASON_NONE || w->impl->evicts || w->fix.has_windows);
        w->n_hits++;
    } else {
        assert_true(w->fix.has_states || w->fix.has_windows);
        assert_true(reason == FIRN_REASON_FAMILY_MISSING || (!w->impl->is_disk && reason == FIRN_REASON_GONE));
    }
    if (reason == FIRN_REASON_NONE && truth == FIRN_REASON_NONE) {
        compare_attachments(&restored, &model);
    }
    firn_restored_deinit(&model);
    firn_restored_deinit(&restored);
}

static void do_find(world *w, bool exact)
{
    firn_token tokens[SEQUENCE_MAX];
    memcpy(tokens, w->sequences[test_rng_below(&w->rng, N_SEQUENCES)], sizeof tokens);
    const uint32_t n = pick_length(w);
    if (test_rng_below(&w->rng, 3) == 0) {
        tokens[test_rng_below(&w->rng, n)] ^= 1;
    }
    const char *ns = pick_namespace(w);
    const firn_match expected =
        exact ? firn_tier_find_exact(&w->model->tier, tokens, n, ns) : firn_tier_find(&w->model->tier, tokens, n, ns);
    const firn_match match =
        exact ? firn_tier_find_exact(w->tier, tokens, n, ns) : firn_tier_find(w->tier, tokens, n, ns);
    if (!w->impl->evicts) {
        /* The records of several stores together may hold a window that none of their rows held. */
        if (match.prefix_len < expected.prefix_len) {
            fail_msg("n %u: %u of %u matched tokens are usable; a row of one store covers %u", n, match.prefix_len,
                     match.matched_len, expected.prefix_len);
        }
        assert_true(match.prefix_len == expected.prefix_len || w->fix.has_windows);
        assert_int_equal(match.matched_len, expected.matched_len);
        assert_true(match.handle != NULL || expected.handle == NULL);
        const bool is_lacking = match.prefix_len < match.matched_len && match.prefix_len < n - 1;
        assert_true(exact || is_lacking == (match.reason == FIRN_REASON_FAMILY_MISSING));
    }
    if (match.diverged) {
        assert_int_not_equal(match.stored_token, tokens[match.matched_len]);
    }
    if (match.handle != NULL) {
        compare_restore(w, match, expected, tokens);
    }
    firn_tier_release(w->tier, match.handle);
    firn_tier_release(&w->model->tier, expected.handle);
}

static void do_reopen(world *w)
{
    assert_true(firn_tier_flush(w->tier, w->impl->below != BELOW_NONE ? UINT64_C(60000000000) : 1000000000).durable);
    if (w->impl->is_disk) {
        firn_tier_stats before, after;
        fixture_check(w->disk);
        firn_tier_get_stats(w->disk, &before);
        w->n_evicted += before.n_evicted;
        firn_tier_destroy(w->tier);
        open_tier(w);
        fixture_check(w->disk);
        after = fixture_assert_books(w->disk, w->dir);
        assert_int_equal(after.n_records, before.n_records);
    }
}

static void run(const implementation *impl)
{
    world *w = calloc(1, sizeof *w);
    w->impl = impl;
    w->rng = test_rng_create(impl->name, 11);
    fixture_init(&w->fix, NULL, &impl->geometry);
    w->dir = test_dir_create();
    w->dir_below = test_dir_create();
    w->model = dict_tier_create(NULL);
    open_tier(w);
    make_sequences(w);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        const uint32_t what = test_rng_below(&w->rng, 100);
        if (what < 35) {
            do_store(w);
        } else if (what < 80) {
            do_find(w, false);
        } else if (what < 97) {
            do_find(w, true);
        } else {
            do_reopen(w);
        }
        if (impl->is_disk && step % 32 == 0) {
            fixture_check(w->disk);
        }
    }
    firn_tier_stats stats;
    firn_tier_get_stats(w->disk != NULL ? w->disk : w->tier, &stats);
    print_message("%u hits of %u stores\n", w->n_hits, w->n_stores);
    assert_true(w->n_hits > (impl->evicts && w->fix.has_states ? 4 : 20)); /* of few states that are still there */
    assert_true(!impl->evicts || w->n_evicted + stats.n_evicted > 0);
    firn_tier_destroy(w->tier);
    firn_tier_destroy(&w->model->tier);
    test_dir_remove(w->dir);
    test_dir_remove(w->dir_below);
    fixture_deinit(&w->fix);
    free(w->dir);
    free(w->dir_below);
    free(w);
}

static void every_tier_agrees_with_the_dictionary(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof implementations / sizeof implementations[0]; i++) {
        run(&implementations[i]);
    }
}

/* The least that an implementation may be. */
static firn_match find_nothing(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    (void)tier;
    (void)prompt;
    (void)n_tokens;
    (void)ns;
    return (firn_match){ .reason = FIRN_REASON_NO_PREFIX };
}

static firn_reason restore_gone(firn_tier *tier, firn_tier_handle *handle, uint32_t n_tokens, firn_restored *out)
{
    (void)tier;
    (void)handle;
    (void)n_tokens;
    (void)out;
    return FIRN_REASON_GONE;
}

static void note_reason(void *ctx, firn_restored *restored, firn_reason reason)
{
    assert_null(restored);
    *(firn_reason *)ctx = reason;
}

static void missing_members_have_their_stated_defaults(void **unused)
{
    (void)unused;
    const firn_tier_ops ops = { .name = "least", .find = find_nothing, .restore = restore_gone };
    firn_tier tier = { .ops = &ops };
    const firn_token token = 1;
    assert_int_equal(firn_tier_find_exact(&tier, &token, 1, NULL).reason, FIRN_REASON_NO_PREFIX);
    firn_reason reason = FIRN_REASON_NONE;
    assert_ok(firn_tier_restore_async(&tier, NULL, 1, 0, note_reason, &reason, NULL));
    assert_int_equal(reason, FIRN_REASON_GONE);
    assert_status(firn_tier_restore_object_async(&tier, NULL, 0, note_reason, &reason, NULL), FIRN_ERR_UNSUPPORTED);
    assert_true(firn_tier_flush(&tier, 1).durable);
    firn_tier_stats stats;
    memset(&stats, 0xff, sizeof stats);
    firn_tier_get_stats(&tier, &stats);
    assert_int_equal(stats.n_records, 0);
    firn_tier_release(&tier, NULL);
    firn_tier_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tier_agrees_with_the_dictionary),
        cmocka_unit_test(missing_members_have_their_stated_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
