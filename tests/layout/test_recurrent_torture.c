/*
 * Recurrent layouts, refused memory at every allocation of every operation, by the allocator and by the pool's budget.
 * The caller sees before or after, never between; nothing leaks; and the cache works on afterwards.
 */
#include "layout/recurrent_rig.h"

/* Eight rows, so that the next one has to grow their array; rows 0 and 1 are shared with somebody. */
enum { N_ROWS = 8 };

typedef struct bench {
    firn_pool *pool;
    firn_cache *batch;
    firn_cache *sharer;
    firn_cache *target;
    firn_cache *made;
    firn_donor *donor;
    rig_tokens row[N_ROWS + 2];
    uint32_t n_rows;
    uint32_t n_target_rows;
} bench;

static void set_up(bench *b, const firn_cache_options *options, const firn_env *env)
{
    static const uint32_t lengths[N_ROWS] = { RIG_T + 6, RIG_T - 1, 0, RIG_T, 3, 2, 1, 0 };
    *b = (bench){ .pool = rig_pool(UINT64_C(16) << 20, env), .n_rows = N_ROWS };
    assert_ok(firn_cache_create(options, b->pool, env, &b->batch, NULL));
    assert_ok(firn_cache_make_empty(b->batch, &b->sharer, NULL));
    assert_ok(firn_cache_make_empty(b->batch, &b->target, NULL));
    for (uint32_t r = 0; r < N_ROWS; r++) {
        b->row[r] = rig_sequence(r, lengths[r]);
        assert_ok(firn_cache_add_row(b->batch, NULL));
        assert_ok(recurrent_feed_row(b->batch, r, b->row[r].id, b->row[r].n, NULL));
    }
    for (uint32_t r = 0; r < 2; r++) {
        const firn_row_view view = firn_cache_view_row(b->batch, r);
        assert_ok(firn_cache_adopt_row(b->sharer, &view, NULL));
    }
}

static void tear_down(bench *b)
{
    firn_donor_destroy(b->donor);
    firn_cache_destroy(b->made);
    firn_cache_destroy(b->target);
    firn_cache_destroy(b->sharer);
    firn_cache_destroy(b->batch);
    assert_int_equal(rig_stats(b->pool).used_bytes, 0);
    firn_pool_destroy(b->pool);
}

static void assert_bench(const bench *b)
{
    const rig_tokens *rows[N_ROWS + 2];
    for (uint32_t r = 0; r < N_ROWS + 2; r++) {
        rows[r] = &b->row[r];
    }
    recurrent_assert_rows(b->batch, rows, b->n_rows);
    recurrent_assert_rows(b->target, rows, b->n_target_rows);
    const rig_tokens first = rig_sequence(0, RIG_T + 6);
    const rig_tokens second = rig_sequence(1, RIG_T - 1);
    recurrent_assert_rows(b->sharer, (const rig_tokens *[]){ &first, &second }, 2);
}

/* ---- operations; each also tells the bench what is expected after
 * success ------------------------------------------ */

static firn_status feed(bench *b, const uint32_t counts[N_ROWS + 2])
{
    uint64_t ids[64];
    uint32_t n_ids = 0;
    rig_tokens after[N_ROWS + 2];
    memcpy(after, b->row, sizeof after);
    for (uint32_t r = 0; r < b->n_rows; r++) {
        for (uint32_t i = 0; i < counts[r]; i++) {
            ids[n_ids] = (UINT64_C(77) << 32) + n_ids;
            after[r].id[after[r].n++] = ids[n_ids++];
        }
    }
    const firn_status status = recurrent_feed(b->batch, ids, counts, NULL, NULL, NULL);
    if (status == FIRN_OK) {
        memcpy(b->row, after, sizeof after);
    }
    return status;
}

static const uint32_t growth[N_ROWS + 2] = { 5, 1, 2, 0, 3, 0, 1, 1 };

static firn_status op_extract(bench *b) { return firn_cache_extract_row(b->batch, 5, &b->made, NULL); }

static firn_status op_merge(bench *b)
{
    const firn_status status = firn_cache_merge_rows(b->target, (const firn_cache *[]){ b->batch }, 1, NULL);
    b->n_target_rows = status == FIRN_OK ? N_ROWS : 0;
    return status;
}

static firn_status op_adopt(bench *b)
{
    const firn_row_view view = firn_cache_view_row(b->batch, 5);
    const firn_status status = firn_cache_adopt_row(b->batch, &view, NULL);
    b->row[N_ROWS] = b->row[5];
    b->n_rows += status == FIRN_OK;
    return status;
}

static firn_status op_reserve(bench *b) { return firn_cache_reserve(b->batch, growth, NULL); }

static firn_status op_recur(bench *b) { return feed(b, growth); }

static firn_status op_donor(bench *b) { return firn_cache_capture_donor(b->batch, &b->donor, NULL); }

/* A round as a whole: what is refused in it leaves it open and usable. Nothing of its end can be refused. */
static firn_status op_round(bench *b)
{
    firn_status status = firn_cache_spec_begin(b->batch, NULL);
    if (status != FIRN_OK) {
        return status;
    }
    const bench before = *b;
    status = feed(b, growth);
    firn_donor *donor = NULL;
    if (status == FIRN_OK) {
        status = firn_cache_capture_donor(b->batch, &donor, NULL);
    }
    const bool has_fed = b->row[0].n > before.row[0].n;
    firn_donor_destroy(donor);
    assert_ok(firn_cache_spec_rollback(b->batch, (const uint32_t[N_ROWS]){ has_fed ? 2 : 0 }, NULL));
    const uint64_t kept[] = { UINT64_C(77) << 32, (UINT64_C(77) << 32) + 1 };
    memcpy(b->row, before.row, sizeof b->row);
    if (has_fed) {
        memcpy(&b->row[0].id[b->row[0].n], kept, sizeof kept);
        b->row[0].n += 2;
    }
    return status;
}

static firn_status op_state(bench *b)
{
    firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    const firn_status status = firn_cache_state(b->batch, tensors, &n_tensors, NULL);
    for (uint32_t i = 0; i < n_tensors; i++) {
        firn_tensor_deinit(&tensors[i]);
    }
    return status;
}

static const struct operation {
    const char *name;
    firn_status (*run)(bench *b);
    bool keeps_used_bytes; /* after success as well */
} operations[] = {
    { "extract", op_extract, true },  { "merge", op_merge, true }, { "adopt", op_adopt, true },
    { "reserve", op_reserve, false }, { "recur", op_recur, false }, { "donor", op_donor, true },
    { "round", op_round, false },     { "state", op_state, true },
};

#define N_OPERATIONS (sizeof operations / sizeof operations[0])

static void run_refused(const struct operation *op, bench *b, bool *was_refused)
{
    const firn_pool_stats before = rig_stats(b->pool);
    const firn_status status = op->run(b);
    *was_refused = status != FIRN_OK;
    const firn_pool_stats after = rig_stats(b->pool);
    if (*was_refused) {
        assert_status(status, FIRN_ERR_NO_MEMORY);
        assert_null(b->made);
        assert_null(b->donor);
    }
    if ((*was_refused && op->run != op_round) || op->keeps_used_bytes) {
        assert_int_equal(after.used_bytes, before.used_bytes);
        assert_int_equal(after.n_blocks, before.n_blocks);
        assert_int_equal(after.copied_bytes, before.copied_bytes);
    }
}

static void check_refused_allocations(const firn_cache_options *options)
{
    for (size_t o = 0; o < N_OPERATIONS; o++) {
        bool is_clean = false;
        uint64_t n = 1;
        for (; !is_clean; n++) {
            test_world world;
            bench b;
            test_world_init(&world);
            set_up(&b, options, &world.env);
            world.fail_alloc_at = world.n_allocs + n;
            bool was_refused;
            run_refused(&operations[o], &b, &was_refused);
            assert_int_equal(was_refused, world.alloc_failed);
            is_clean = !world.alloc_failed;
            world.fail_alloc_at = 0;
            assert_bench(&b);
            /* The same again, without the refusal. */
            if (was_refused) {
                assert_ok(operations[o].run(&b));
                assert_bench(&b);
            }
            tear_down(&b);
            test_world_deinit(&world);
        }
        assert_true(n > 2);
    }
}

static void every_refused_allocation_leaves_before_or_after(void **state)
{
    (void)state;
    check_refused_allocations(&recurrent_cases[0]);
    check_refused_allocations(&recurrent_cases[3]);
}

/* Leaves room for n states more, then for one more, until the operation has what it needs. */
static void check_refused_budget(const firn_cache_options *options)
{
    for (size_t o = 0; o < N_OPERATIONS; o++) {
        bool was_refused = true;
        for (uint32_t n_states = 0; was_refused; n_states++) {
            bench b;
            set_up(&b, options, NULL);
            const size_t room = n_states * firn_cache_fixed_bytes(b.batch);
            firn_block *hog;
            assert_ok(firn_block_alloc(b.pool, (size_t)firn_pool_room(b.pool) - room, &hog, NULL));
            run_refused(&operations[o], &b, &was_refused);
            assert_true(!was_refused || !operations[o].keeps_used_bytes);
            assert_bench(&b);
            firn_block_release(hog);
            assert_ok(firn_cache_filter_rows(b.target, NULL, 0, NULL));
            b.n_target_rows = 0;
            assert_ok(feed(&b, (const uint32_t[N_ROWS + 2]){ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }));
            assert_bench(&b);
            tear_down(&b);
        }
    }
}

static void every_refusal_of_the_budget_leaves_before_or_after(void **state)
{
    (void)state;
    check_refused_budget(&recurrent_cases[1]);
    check_refused_budget(&recurrent_cases[4]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_refused_allocation_leaves_before_or_after),
        cmocka_unit_test(every_refusal_of_the_budget_leaves_before_or_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
