/*
 * Recurrent layouts, speculative rounds: a state cannot be trimmed, so a rollback that is right to the bit is one that
 * replays. And random operations of all kinds against a naive model.
 */
#include "layout/recurrent_rig.h"

enum { DRAFTS = 4 };

/* A round of two steps on a row and its neighbour; `is_shared`: somebody else holds the states that it begins with. */
static void run_round(const firn_cache_options *options, firn_pool *pool, uint32_t base, uint32_t keep, bool is_shared)
{
    rig_tokens a = rig_sequence(0, base);
    rig_tokens b = rig_sequence(1, 30);
    const rig_tokens a_before = a;
    const rig_tokens b_before = b;
    const rig_tokens draft_a = rig_sequence(2, DRAFTS);
    const rig_tokens draft_b = rig_sequence(3, DRAFTS);
    const uint32_t keep_b = keep == DRAFTS ? DRAFTS : DRAFTS - keep;
    firn_cache *cache = recurrent_fresh(options, pool, &a);
    firn_cache *sharer;
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(recurrent_feed_row(cache, 1, b.id, b.n, NULL));
    assert_ok(firn_cache_make_empty(cache, &sharer, NULL));
    if (is_shared) {
        assert_ok(firn_cache_merge_rows(sharer, (const firn_cache *[]){ cache }, 1, NULL));
    }
    assert_ok(firn_cache_spec_begin(cache, NULL));
    const uint64_t first[] = { draft_a.id[0], draft_b.id[0], draft_b.id[1], draft_b.id[2] };
    const uint64_t second[] = { draft_a.id[1], draft_a.id[2], draft_a.id[3], draft_b.id[3] };
    assert_ok(recurrent_feed(cache, first, (const uint32_t[]){ 1, 3 }, NULL, NULL, NULL));
    assert_ok(recurrent_feed(cache, second, (const uint32_t[]){ 3, 1 }, NULL, NULL, NULL));
    assert_status(firn_cache_spec_rollback(cache, (const uint32_t[]){ keep, DRAFTS + 1 }, NULL), FIRN_ERR_INVALID);
    assert_int_equal(firn_cache_row_tokens(cache, 1), 30 + DRAFTS);

    /* Taken in the round, and untouched by its end. */
    firn_cache *snapshot;
    rig_tokens a_all = a;
    rig_tokens b_all = b;
    memcpy(a_all.id + a.n, draft_a.id, DRAFTS * sizeof a.id[0]);
    memcpy(b_all.id + b.n, draft_b.id, DRAFTS * sizeof b.id[0]);
    a_all.n += DRAFTS;
    b_all.n += DRAFTS;
    assert_ok(firn_cache_make_empty(cache, &snapshot, NULL));
    assert_ok(firni_cache_share_rows(snapshot, cache, NULL));
    firn_donor *donor;
    assert_ok(firn_cache_capture_donor(cache, &donor, NULL));

    if (keep == DRAFTS && base % 2 == 0) {
        assert_ok(firn_cache_spec_commit(cache, NULL));
    } else {
        assert_ok(firn_cache_spec_rollback(cache, (const uint32_t[]){ keep, keep_b }, NULL));
    }
    memcpy(a.id + a.n, draft_a.id, keep * sizeof a.id[0]);
    memcpy(b.id + b.n, draft_b.id, keep_b * sizeof b.id[0]);
    a.n += keep;
    b.n += keep_b;
    recurrent_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
    recurrent_assert_rows(snapshot, (const rig_tokens *[]){ &a_all, &b_all }, 2);

    /* And it goes on as if nothing had happened; so does who shared. */
    const rig_tokens next = rig_sequence(4, 6);
    assert_ok(recurrent_feed_row(cache, 0, next.id, next.n, NULL));
    memcpy(a.id + a.n, next.id, next.n * sizeof a.id[0]);
    a.n += next.n;
    recurrent_assert_rows(cache, (const rig_tokens *[]){ &a, &b }, 2);
    recurrent_assert_rows(snapshot, (const rig_tokens *[]){ &a_all, &b_all }, 2);
    recurrent_assert_rows(sharer, (const rig_tokens *[]){ &a_before, &b_before }, is_shared ? 2 : 0);
    assert_int_equal(firn_donor_row_tokens(donor, 0), a_all.n);
    firn_donor_destroy(donor);
    firn_cache_destroy(snapshot);
    firn_cache_destroy(sharer);
    firn_cache_destroy(cache);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
}

static void check_rounds(const firn_cache_options *options)
{
    static const uint32_t bases[] = { 0, 1, 2, 10, RIG_T - 2, RIG_T - 1, RIG_T, RIG_T + 1 };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        for (uint32_t keep = 0; keep <= DRAFTS; keep++) {
            run_round(options, pool, bases[i], keep, false);
            run_round(options, pool, bases[i], keep, true);
        }
    }
    firn_pool_destroy(pool);
}

static void a_rolled_back_round_equals_never_having_seen_the_rest(void **state)
{
    (void)state;
    recurrent_for_each_case(check_rounds);
}

/* A row that was empty and whose first tokens are rejected is empty again, bytes included. */
static void check_first_tokens(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    rig_tokens tokens = rig_sequence(0, 0);
    firn_cache *cache = recurrent_fresh(options, pool, &tokens);
    const uint64_t ids[] = { 5, 6, 7 };
    for (uint32_t keep = 0; keep < 3; keep++) {
        assert_ok(firn_cache_spec_begin(cache, NULL));
        assert_ok(recurrent_feed_row(cache, 0, ids, 3, NULL));
        assert_ok(firn_cache_spec_rollback(cache, &keep, NULL));
        memcpy(tokens.id + tokens.n, ids, keep * sizeof ids[0]);
        tokens.n += keep;
        recurrent_assert_row(cache, &tokens);
        assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(cache, tokens.n));
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void an_empty_row_is_empty_again(void **state)
{
    (void)state;
    recurrent_for_each_case(check_first_tokens);
}

/* A round costs its second state at the first step, and nothing when it steps nowhere. */
static void check_cost(const firn_cache_options *options)
{
    test_world world;
    test_world_init(&world);
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, &world.env);
    firn_cache *cache;
    const uint64_t ids[] = { 1, 2, 3, 4, 5, 6 };
    assert_ok(firn_cache_create(options, pool, &world.env, &cache, NULL));
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(recurrent_feed_row(cache, 0, ids, 6, NULL));
    const uint64_t one = firn_cache_fixed_bytes(cache);
    for (uint32_t round = 0; round < 5; round++) {
        assert_ok(firn_cache_spec_begin(cache, NULL));
        assert_int_equal(rig_stats(pool).used_bytes, one);
        assert_ok(firn_cache_reserve(cache, (const uint32_t[]){ 6 }, NULL));
        const uint64_t n_allocs = world.n_allocs;
        assert_ok(recurrent_feed_row(cache, 0, ids, 3, NULL));
        assert_ok(recurrent_feed_row(cache, 0, ids, 3, NULL));
        assert_int_equal(rig_stats(pool).used_bytes, 2 * one);
        assert_ok(firn_cache_spec_rollback(cache, &round, NULL));
        assert_int_equal(rig_stats(pool).used_bytes, one);
        assert_int_equal(world.n_allocs, n_allocs);
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    test_world_deinit(&world);
}

static void steps_and_rollback_of_a_reserved_round_allocate_nothing(void **state)
{
    (void)state;
    recurrent_for_each_case(check_cost);
}

/* ---- random
 * operations --------------------------------------------------------------------------------------------- */

#define N_CACHES 3u
#define ROWS_MAX 5u
#define N_STEPS  250u

typedef struct model {
    rig_tokens row[ROWS_MAX];
    uint32_t base[ROWS_MAX];
    uint32_t n_rows;
    bool in_round;
} model;

typedef struct world {
    test_rng rng;
    firn_pool *pool;
    firn_cache *cache[N_CACHES];
    model model[N_CACHES];
    firn_cache *snapshot; /* rows of some cache at some time */
    model snapshot_model;
    uint64_t next_id;
} world;

static void compare(const firn_cache *cache, const model *m)
{
    const rig_tokens *rows[ROWS_MAX];
    for (uint32_t r = 0; r < m->n_rows; r++) {
        rows[r] = &m->row[r];
    }
    recurrent_assert_rows(cache, rows, m->n_rows);
}

static void op_feed(world *w, uint32_t c)
{
    model *m = &w->model[c];
    uint32_t counts[ROWS_MAX] = { 0 };
    uint64_t ids[ROWS_MAX * (RIG_T + 10)];
    uint32_t n_ids = 0;
    const uint32_t n_max = test_rng_below(&w->rng, 6) == 0 ? RIG_T + 10 : 4;
    for (uint32_t r = 0; r < m->n_rows; r++) {
        counts[r] = test_rng_below(&w->rng, (m->row[r].n < 200 ? n_max : 0) + 1);
        for (uint32_t i = 0; i < counts[r]; i++) {
            ids[n_ids] = w->next_id++;
            m->row[r].id[m->row[r].n++] = ids[n_ids++];
        }
    }
    if (test_rng_below(&w->rng, 3) == 0) {
        assert_ok(firn_cache_reserve(w->cache[c], counts, NULL));
    }
    assert_ok(recurrent_feed(w->cache[c], ids, counts, NULL, NULL, NULL));
}

static void op_add(world *w, uint32_t c)
{
    model *m = &w->model[c];
    if (m->n_rows < ROWS_MAX) {
        assert_status(firn_cache_add_row(w->cache[c], NULL), m->in_round ? FIRN_ERR_STATE : FIRN_OK);
        m->row[m->n_rows].n = 0;
        m->n_rows += !m->in_round;
    }
}

static void op_filter(world *w, uint32_t c)
{
    model *m = &w->model[c];
    uint32_t keep[ROWS_MAX];
    uint32_t n_keep = 0;
    for (uint32_t r = 0; r < m->n_rows; r++) {
        if (test_rng_below(&w->rng, 4) != 0) {
            const uint32_t at = test_rng_below(&w->rng, n_keep + 1);
            memmove(&keep[at + 1], &keep[at], (n_keep - at) * sizeof keep[0]);
            keep[at] = r;
            n_keep++;
        }
    }
    assert_status(firn_cache_filter_rows(w->cache[c], keep, n_keep, NULL), m->in_round ? FIRN_ERR_STATE : FIRN_OK);
    if (!m->in_round) {
        model filtered = { .n_rows = n_keep };
        for (uint32_t i = 0; i < n_keep; i++) {
            filtered.row[i] = m->row[keep[i]];
        }
        *m = filtered;
    }
}

static void op_move(world *w, uint32_t c)
{
    const uint32_t to = (c + 1 + test_rng_below(&w->rng, N_CACHES - 1)) % N_CACHES;
    model *from_model = &w->model[c];
    model *to_model = &w->model[to];
    if (from_model->n_rows == 0 || to_model->n_rows == ROWS_MAX || from_model->in_round || to_model->in_round) {
        return;
    }
    const uint32_t r = test_rng_below(&w->rng, from_model->n_rows);
    const uint64_t copied = rig_stats(w->pool).copied_bytes;
    if (test_rng_below(&w->rng, 2) == 0) {
        const firn_row_view view = firn_cache_view_row(w->cache[c], r);
        assert_ok(firn_cache_adopt_row(w->cache[to], &view, NULL));
    } else {
        firn_cache *serial;
        firn_cache *merged;
        assert_ok(firn_cache_extract_row(w->cache[c], r, &serial, NULL));
        assert_ok(firn_cache_make_empty(w->cache[to], &merged, NULL));
        assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ w->cache[to], serial }, 2, NULL));
        firn_cache_destroy(serial);
        firn_cache_destroy(w->cache[to]);
        w->cache[to] = merged;
    }
    assert_int_equal(rig_stats(w->pool).copied_bytes, copied);
    to_model->row[to_model->n_rows++] = from_model->row[r];
}

/* In and out of rounds: what donors are made of. */
static void op_snapshot(world *w, uint32_t c)
{
    firn_cache_destroy(w->snapshot);
    assert_ok(firn_cache_make_empty(w->cache[c], &w->snapshot, NULL));
    assert_ok(firni_cache_share_rows(w->snapshot, w->cache[c], NULL));
    w->snapshot_model = w->model[c];
}

static void op_round(world *w, uint32_t c)
{
    model *m = &w->model[c];
    if (!m->in_round) {
        assert_ok(firn_cache_spec_begin(w->cache[c], NULL));
        for (uint32_t r = 0; r < m->n_rows; r++) {
            m->base[r] = m->row[r].n;
        }
        m->in_round = true;
        return;
    }
    if (test_rng_below(&w->rng, 4) == 0) {
        assert_ok(firn_cache_spec_commit(w->cache[c], NULL));
    } else {
        uint32_t keep[ROWS_MAX];
        for (uint32_t r = 0; r < m->n_rows; r++) {
            keep[r] = test_rng_below(&w->rng, m->row[r].n - m->base[r] + 1);
            m->row[r].n = m->base[r] + keep[r];
        }
        assert_ok(firn_cache_spec_rollback(w->cache[c], keep, NULL));
    }
    m->in_round = false;
}

static void (*const ops[])(world *w, uint32_t c) = {
    op_feed, op_feed, op_feed, op_feed, op_add, op_filter, op_move, op_move, op_snapshot, op_round, op_round,
};

static void run(const firn_cache_options *options)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->rng = test_rng_create(options->layout, 20241128 + options->head_dim);
    w->pool = rig_pool(RIG_BIG_BUDGET, NULL);
    w->next_id = 1;
    for (uint32_t c = 0; c < N_CACHES; c++) {
        w->cache[c] = rig_cache(options, w->pool);
    }
    op_snapshot(w, 0);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        const uint32_t c = test_rng_below(&w->rng, N_CACHES);
        ops[test_rng_below(&w->rng, sizeof ops / sizeof ops[0])](w, c);
        compare(w->cache[c], &w->model[c]);
        if (step % 8 == 0) {
            /* Nobody else noticed. */
            for (uint32_t other = 0; other < N_CACHES; other++) {
                compare(w->cache[other], &w->model[other]);
            }
            compare(w->snapshot, &w->snapshot_model);
        }
    }
    firn_cache_destroy(w->snapshot);
    for (uint32_t c = 0; c < N_CACHES; c++) {
        firn_cache_destroy(w->cache[c]);
    }
    assert_int_equal(rig_stats(w->pool).used_bytes, 0);
    firn_pool_destroy(w->pool);
    free(w);
}

static void caches_follow_the_model_through_random_operations(void **state)
{
    (void)state;
    recurrent_for_each_case(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rolled_back_round_equals_never_having_seen_the_rest),
        cmocka_unit_test(an_empty_row_is_empty_again),
        cmocka_unit_test(steps_and_rollback_of_a_reserved_round_allocate_nothing),
        cmocka_unit_test(caches_follow_the_model_through_random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
