/*
 * Refused memory at every allocation of every operation, by the allocator and by the pool's budget. The caller sees
 * before or after, never between; nothing leaks; and the cache works on afterwards.
 */
#include "layout/rig.h"

/* The bench: a batch whose row array is full, so that the next row has to grow it, and two sharers of its tails. */
enum { N_ROWS = 8 };

typedef struct bench {
    firn_pool *pool;
    const firn_env *env;
    firn_cache *batch;
    firn_cache *sharer; /* rows 0 and 1 */
    firn_cache *target; /* empty */
    rig_tokens row[N_ROWS + 2];
    uint32_t n_rows;
    uint32_t n_target_rows;
    firn_cache *made;
    firn_donor *donor;
} bench;

static void set_up(bench *b, const firn_cache_options *options, const firn_env *env)
{
    *b = (bench){ .pool = rig_pool(UINT64_C(16) << 20, env), .env = env, .n_rows = N_ROWS };
    assert_ok(firn_cache_create(options, b->pool, env, &b->batch, NULL));
    for (uint32_t r = 0; r < N_ROWS; r++) {
        static const uint32_t lengths[N_ROWS] = { RIG_T + 6, RIG_T - 1, 0, RIG_T, 3, 2 * RIG_T, 1, 0 };
        b->row[r] = rig_sequence(r, lengths[r]);
        assert_ok(firn_cache_add_row(b->batch, NULL));
        assert_ok(rig_feed_row(b->batch, r, b->row[r].id, b->row[r].n, NULL));
    }
    firn_cache *second;
    assert_ok(firn_cache_extract_row(b->batch, 0, &b->sharer, NULL));
    assert_ok(firn_cache_extract_row(b->batch, 1, &second, NULL));
    const firn_row_view view = firn_cache_view_row(second, 0);
    assert_ok(firn_cache_adopt_row(b->sharer, &view, NULL));
    firn_cache_destroy(second);
    assert_ok(firn_cache_make_empty(b->batch, &b->target, NULL));
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
    rig_assert_rows(b->batch, rows, b->n_rows);
    rig_assert_rows(b->target, rows, b->n_target_rows);
    const rig_tokens first = rig_sequence(0, RIG_T + 6);
    const rig_tokens second = rig_sequence(1, RIG_T - 1);
    rig_assert_rows(b->sharer, (const rig_tokens *[]){ &first, &second }, 2);
}

/* ---- operations; each also tells the bench what is expected after success ---------------------------------------- */

static firn_status op_make_empty(bench *b)
{
    return firn_cache_make_empty(b->batch, &b->made, NULL);
}

static firn_status op_extract(bench *b)
{
    return firn_cache_extract_row(b->batch, 5, &b->made, NULL);
}

static firn_status op_merge(bench *b)
{
    firn_cache *const sources[] = { b->batch };
    const firn_status status = firn_cache_merge_rows(b->target, (const firn_cache *const *)sources, 1, NULL);
    b->n_target_rows = status == FIRN_OK ? N_ROWS : 0;
    return status;
}

static firn_status op_add_row(bench *b)
{
    const firn_status status = firn_cache_add_row(b->batch, NULL);
    b->row[N_ROWS].n = 0;
    b->n_rows += status == FIRN_OK;
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

/* New blocks, a longer list (17 blocks) and two copied tails. */
static const uint32_t growth[N_ROWS] = { 16 * RIG_T, 3, 0, 1, RIG_T, 0, 2, 0 };

static firn_status op_reserve(bench *b)
{
    return firn_cache_reserve(b->batch, growth, NULL);
}

static firn_status append(bench *b, const uint32_t counts[N_ROWS + 2])
{
    const uint64_t n_tokens = rig_sum(counts, b->n_rows);
    uint64_t *ids = calloc((size_t)n_tokens + 1, sizeof *ids);
    assert_non_null(ids);
    for (uint64_t i = 0; i < n_tokens; i++) {
        ids[i] = (UINT64_C(77) << 32) + i;
    }
    const firn_status status = rig_feed(b->batch, ids, counts, NULL, NULL);
    const uint64_t *next = ids;
    for (uint32_t r = 0; r < b->n_rows && status == FIRN_OK; r++) {
        memcpy(b->row[r].id + b->row[r].n, next, counts[r] * sizeof *next);
        b->row[r].n += counts[r];
        next += counts[r];
    }
    free(ids);
    return status;
}

static firn_status op_append(bench *b)
{
    const uint32_t counts[N_ROWS + 2] = { 3 * RIG_T, 3, 0, 1, RIG_T, 0, 2, 0 };
    return append(b, counts);
}

static firn_status op_donor(bench *b)
{
    return firn_cache_capture_donor(b->batch, &b->donor, NULL);
}

static firn_status op_spec_begin(bench *b)
{
    const firn_status status = firn_cache_spec_begin(b->batch, NULL);
    if (status == FIRN_OK) {
        assert_ok(firn_cache_spec_commit(b->batch, NULL));
    }
    return status;
}

static firn_status op_state(bench *b)
{
    firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    const firn_status status = firn_cache_state(b->batch, tensors, &n_tensors, NULL);
    assert_true(status == FIRN_OK || n_tensors == 0);
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
    { "make_empty", op_make_empty, true }, { "extract", op_extract, true }, { "merge", op_merge, true },
    { "add_row", op_add_row, true },       { "adopt", op_adopt, true },     { "reserve", op_reserve, false },
    { "append", op_append, false },        { "donor", op_donor, true },     { "spec_begin", op_spec_begin, true },
    { "state", op_state, true },
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
        assert_int_equal(after.copied_bytes, before.copied_bytes);
    }
    if (*was_refused || op->keeps_used_bytes) {
        assert_int_equal(after.used_bytes, before.used_bytes);
        assert_int_equal(after.n_blocks, before.n_blocks);
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
        print_message("%s: %u allocations refused in turn\n", operations[o].name, (unsigned)n - 2);
        assert_true(n > 2);
    }
}

static void every_refused_allocation_leaves_before_or_after(void **state)
{
    (void)state;
    rig_for_each_layout(check_refused_allocations);
}

/* Leaves room for `n_blocks` more blocks, then for one more, until the operation has what it needs. */
static void check_refused_budget(const firn_cache_options *options)
{
    for (size_t o = 0; o < N_OPERATIONS; o++) {
        bool was_refused = true;
        for (uint32_t n_blocks = 0; was_refused; n_blocks++) {
            bench b;
            set_up(&b, options, NULL);
            const size_t room = n_blocks * firn_cache_block_bytes(b.batch);
            firn_block *hog;
            assert_ok(firn_block_alloc(b.pool, (size_t)firn_pool_room(b.pool) - room, &hog, NULL));
            run_refused(&operations[o], &b, &was_refused);
            assert_true(!was_refused || !operations[o].keeps_used_bytes);
            assert_bench(&b);
            firn_block_release(hog);
            /* The batch goes on; a merged target would from here on be compared with other tokens. */
            assert_ok(firn_cache_filter_rows(b.target, NULL, 0, NULL));
            b.n_target_rows = 0;
            assert_ok(append(&b, (const uint32_t[N_ROWS + 2]){ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }));
            assert_bench(&b);
            tear_down(&b);
        }
    }
}

static void every_refusal_of_the_budget_leaves_before_or_after(void **state)
{
    (void)state;
    rig_for_each_layout(check_refused_budget);
}

static void check_creation(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    bool is_clean = false;
    for (uint64_t n = 1; !is_clean; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firn_cache *cache;
        const firn_status status = firn_cache_create(options, pool, &world.env, &cache, NULL);
        assert_status(status, world.alloc_failed ? FIRN_ERR_NO_MEMORY : FIRN_OK);
        assert_int_equal(cache == NULL, world.alloc_failed);
        firn_cache_destroy(cache);
        is_clean = !world.alloc_failed;
        assert_true(!is_clean || n > 1);
        test_world_deinit(&world);
    }
    firn_pool_destroy(pool);
}

static void creation_is_whole_or_nothing(void **state)
{
    (void)state;
    rig_for_each_layout(check_creation);
}

/* What cannot fail needs no memory at all. */
static void check_infallible(const firn_cache_options *options)
{
    test_world world;
    bench b;
    test_world_init(&world);
    set_up(&b, options, &world.env);
    assert_ok(firn_cache_spec_begin(b.batch, NULL));
    assert_ok(append(&b, (const uint32_t[N_ROWS + 2]){ 2, 2, 2, 2, 2, 2, 2, 2 }));
    const uint64_t n_allocs = world.n_allocs;
    size_t n_floats;
    free(rig_attend(b.batch, NULL, b.row[0].id, (const uint32_t[N_ROWS]){ 5, 1 }, NULL, &n_floats));
    assert_ok(firn_cache_spec_rollback(b.batch, (const uint32_t[N_ROWS]){ 1, 0, 2, 1, 0, 0, 0, 1 }, NULL));
    if (firn_cache_trimmable_tokens(b.batch, 0) > 5) {
        assert_ok(firn_cache_trim_row(b.batch, 0, 5, NULL));
    }
    assert_ok(firn_cache_filter_rows(b.batch, (const uint32_t[]){ 5, 0, 7 }, 3, NULL));
    assert_int_equal(world.n_allocs, n_allocs);
    tear_down(&b);
    test_world_deinit(&world);
}

static void filter_trim_attend_and_rollback_allocate_nothing(void **state)
{
    (void)state;
    rig_for_each_layout(check_infallible);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_refused_allocation_leaves_before_or_after),
        cmocka_unit_test(every_refusal_of_the_budget_leaves_before_or_after),
        cmocka_unit_test(creation_is_whole_or_nothing),
        cmocka_unit_test(filter_trim_attend_and_rollback_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
