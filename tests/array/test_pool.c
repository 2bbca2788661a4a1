/*
 * The block pool: budget, idle blocks, reference counts, threads and refused memory.
 */
#include <pthread.h>
#include <string.h>

#include "array/array_impl.h"
#include "support/support.h"

#define PAGE FIRN_BLOCK_ALIGN

static firn_pool *create(uint64_t budget_bytes, const firn_env *env)
{
    firn_pool *pool;
    const firn_pool_options options = { .budget_bytes = budget_bytes };
    assert_ok(firn_pool_create(&options, env, &pool, NULL));
    return pool;
}

static firn_pool_stats stats_of(firn_pool *pool)
{
    firn_pool_stats stats;
    firn_pool_get_stats(pool, &stats);
    assert_true(stats.used_bytes + stats.idle_bytes <= stats.budget_bytes);
    assert_int_equal(firn_pool_room(pool), stats.budget_bytes - stats.used_bytes);
    return stats;
}

static firn_block *alloc(firn_pool *pool, size_t n_bytes)
{
    firn_block *block;
    assert_ok(firn_block_alloc(pool, n_bytes, &block, NULL));
    return block;
}

static void a_pool_needs_a_budget(void **state)
{
    (void)state;
    firn_pool *pool;
    firn_error err;
    const firn_pool_options options = { .budget_bytes = 0 };
    assert_status(firn_pool_create(&options, NULL, &pool, &err), FIRN_ERR_INVALID);
    assert_null(pool);
    firn_pool_destroy(NULL);
}

static void blocks_are_aligned_rounded_up_and_zero(void **state)
{
    (void)state;
    firn_pool *pool = create(64 * PAGE, NULL);
    static const size_t sizes[] = { 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t expected = (sizes[i] + PAGE - 1) / PAGE * PAGE;
        /* The second time the block comes from the idle list, with what was written to it. */
        for (int round = 0; round < 2; round++) {
            firn_block *block = alloc(pool, sizes[i]);
            assert_int_equal(firn_block_bytes(block), expected);
            assert_int_equal((uintptr_t)firn_block_data(block) % PAGE, 0);
            assert_int_equal(firn_block_refs(block), 1);
            assert_ptr_equal(firni_block_pool(block), pool);
            for (size_t b = 0; b < expected; b++) {
                assert_int_equal(firn_block_data(block)[b], 0);
            }
            memset(firn_block_data(block), 0xa5, expected);
            assert_int_equal(stats_of(pool).used_bytes, expected);
            firn_block_release(block);
            assert_int_equal(stats_of(pool).used_bytes, 0);
        }
    }
    firn_pool_destroy(pool);
}

static void a_block_lives_until_its_last_reference(void **state)
{
    (void)state;
    firn_pool *pool = create(4 * PAGE, NULL);
    firn_block *block = alloc(pool, PAGE);
    assert_ptr_equal(firn_block_retain(block), block);
    assert_int_equal(firn_block_refs(block), 2);
    assert_int_equal(stats_of(pool).used_bytes, PAGE); /* counted once */
    firn_block_release(block);
    assert_int_equal(firn_block_refs(block), 1);
    assert_int_equal(stats_of(pool).n_blocks, 1);
    firn_block_release(block);
    assert_int_equal(stats_of(pool).n_blocks, 0);
    assert_int_equal(stats_of(pool).idle_bytes, PAGE);
    firn_block_release(NULL);
    firn_pool_destroy(pool);
}

static void the_budget_refuses_and_says_what_is_used(void **state)
{
    (void)state;
    firn_pool *pool = create(3 * PAGE, NULL);
    firn_block *a = alloc(pool, 2 * PAGE);
    firn_block *b;
    firn_error err;
    assert_status(firn_block_alloc(pool, 2 * PAGE, &b, &err), FIRN_ERR_NO_MEMORY);
    assert_null(b);
    assert_non_null(strstr(err.message, "8192 used"));
    assert_non_null(strstr(err.message, "12288"));
    assert_int_equal(stats_of(pool).n_refused, 1);
    b = alloc(pool, PAGE);
    assert_int_equal(firn_pool_room(pool), 0);
    firn_block_release(a);
    a = alloc(pool, PAGE);
    firn_block_release(a);
    firn_block_release(b);
    firn_block *huge;
    assert_status(firn_block_alloc(pool, SIZE_MAX, &huge, NULL), FIRN_ERR_NO_MEMORY);
    assert_status(firn_block_alloc(pool, 0, &huge, NULL), FIRN_ERR_NO_MEMORY);
    assert_int_equal(stats_of(pool).used_bytes_peak, 3 * PAGE);
    firn_pool_destroy(pool);
}

static void idle_blocks_are_reused_without_the_allocator(void **state)
{
    (void)state;
    test_world world;
    test_world_init(&world);
    firn_pool *pool = create(64 * PAGE, &world.env);
    firn_block *small = alloc(pool, PAGE);
    firn_block *large = alloc(pool, 3 * PAGE);
    firn_block_release(small);
    firn_block_release(large);
    const uint64_t n_allocs = world.n_allocs;
    for (int i = 0; i < 1000; i++) {
        small = alloc(pool, PAGE);
        large = alloc(pool, 3 * PAGE);
        firn_block_release(i % 2 == 0 ? small : large);
        firn_block_release(i % 2 == 0 ? large : small);
    }
    assert_int_equal(world.n_allocs, n_allocs);
    firn_pool_destroy(pool);
    test_world_deinit(&world);
}

static void idle_blocks_are_given_back_when_another_size_needs_room(void **state)
{
    (void)state;
    test_world world;
    test_world_init(&world);
    firn_pool *pool = create(8 * PAGE, &world.env);
    firn_block *blocks[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = alloc(pool, PAGE);
    }
    for (int i = 0; i < 8; i++) {
        firn_block_release(blocks[i]);
    }
    assert_int_equal(stats_of(pool).idle_bytes, 8 * PAGE);
    const uint64_t n_live = world.n_live;
    firn_block *large = alloc(pool, 5 * PAGE);
    assert_int_equal(stats_of(pool).idle_bytes, 3 * PAGE);
    assert_int_equal(world.n_live, n_live - 5 * 2 + 2); /* header and data of each */
    firn_block *other = alloc(pool, 3 * PAGE);
    assert_int_equal(stats_of(pool).idle_bytes, 0);
    assert_int_equal(stats_of(pool).used_bytes, 8 * PAGE);
    firn_block_release(large);
    firn_block_release(other);
    firn_pool_destroy(pool);
    test_world_deinit(&world);
}

static void a_refusal_by_the_budget_keeps_idle_blocks(void **state)
{
    (void)state;
    firn_pool *pool = create(4 * PAGE, NULL);
    firn_block *held = alloc(pool, PAGE);
    firn_block_release(alloc(pool, 2 * PAGE));
    firn_block *block;
    assert_status(firn_block_alloc(pool, 4 * PAGE, &block, NULL), FIRN_ERR_NO_MEMORY);
    assert_int_equal(stats_of(pool).idle_bytes, 2 * PAGE);
    firn_block_release(held);
    firn_pool_destroy(pool);
}

/* Random sizes and lifetimes against plain sums. */
static void random_use_matches_a_naive_account(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("pool", 11);
    firn_pool *pool = create(40 * PAGE, NULL);
    firn_block *held[64] = { NULL };
    uint32_t n_refs[64] = { 0 };
    uint64_t used = 0;
    uint64_t n_blocks = 0;
    uint64_t n_refused = 0;
    for (int step = 0; step < 20000; step++) {
        const uint32_t i = test_rng_below(&rng, 64);
        if (held[i] == NULL) {
            const size_t n_bytes = (1 + test_rng_below(&rng, 6)) * (size_t)PAGE;
            const firn_status status = firn_block_alloc(pool, n_bytes, &held[i], NULL);
            assert_status(status, used + n_bytes <= 40 * PAGE ? FIRN_OK : FIRN_ERR_NO_MEMORY);
            if (status == FIRN_OK) {
                firn_block_data(held[i])[0] = (uint8_t)i;
                n_refs[i] = 1;
                used += n_bytes;
                n_blocks++;
            } else {
                n_refused++;
            }
        } else if (test_rng_below(&rng, 3) == 0) {
            firn_block_retain(held[i]);
            n_refs[i]++;
        } else {
            assert_int_equal(firn_block_data(held[i])[0], i);
            n_refs[i]--;
            used -= n_refs[i] == 0 ? firn_block_bytes(held[i]) : 0;
            n_blocks -= n_refs[i] == 0;
            firn_block_release(held[i]);
            held[i] = n_refs[i] == 0 ? NULL : held[i];
        }
        const firn_pool_stats stats = stats_of(pool);
        assert_int_equal(stats.used_bytes, used);
        assert_int_equal(stats.n_blocks, n_blocks);
        assert_int_equal(stats.n_refused, n_refused);
    }
    for (uint32_t i = 0; i < 64; i++) {
        for (; n_refs[i] > 0; n_refs[i]--) {
            firn_block_release(held[i]);
        }
    }
    firn_pool_destroy(pool);
}

static void a_refused_allocation_leaves_the_account_as_it_was(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firn_pool *pool = NULL;
        const firn_pool_options options = { .budget_bytes = 4 * PAGE };
        firn_status status = firn_pool_create(&options, &world.env, &pool, NULL);
        if (status == FIRN_OK) {
            firn_block *a = NULL;
            firn_block *b = NULL;
            status = firn_block_alloc(pool, PAGE, &a, NULL);
            const uint64_t used = stats_of(pool).used_bytes;
            assert_int_equal(used, a != NULL ? PAGE : 0);
            const firn_status second = firn_block_alloc(pool, 2 * PAGE, &b, NULL);
            assert_int_equal(stats_of(pool).used_bytes, used + (b != NULL ? 2 * PAGE : 0));
            assert_int_equal(stats_of(pool).n_refused, (a == NULL) + (b == NULL));
            status = status != FIRN_OK ? status : second;
            firn_block_release(a);
            firn_block_release(b);
        }
        assert_status(status, world.alloc_failed ? FIRN_ERR_NO_MEMORY : FIRN_OK);
        firn_pool_destroy(pool);
        const bool is_clean = !world.alloc_failed;
        test_world_deinit(&world);
        if (is_clean) {
            assert_true(n > 3);
            break;
        }
    }
}

#define N_THREADS 4
#define N_SHARED  16

typedef struct thread_job {
    firn_pool *pool;
    firn_block *const *shared;
    uint64_t seed;
    uint32_t n_wrong;
} thread_job;

/* Own blocks are filled and verified; shared ones are retained, read and released. */
static void *use_pool(void *arg)
{
    thread_job *job = arg;
    test_rng rng = { .state = job->seed };
    for (int i = 0; i < 4000; i++) {
        firn_block *block;
        const size_t n_bytes = (1 + test_rng_below(&rng, 3)) * (size_t)PAGE;
        if (firn_block_alloc(job->pool, n_bytes, &block, NULL) == FIRN_OK) {
            job->n_wrong += firn_block_data(block)[n_bytes - 1] != 0;
            memset(firn_block_data(block), (int)(job->seed & 0xff), n_bytes);
            job->n_wrong += firn_block_data(block)[0] != (job->seed & 0xff);
            firn_block_release(block);
        }
        firn_block *shared = firn_block_retain(job->shared[test_rng_below(&rng, N_SHARED)]);
        job->n_wrong += firn_block_data(shared)[7] != 0x77;
        firn_block_release(shared);
    }
    return NULL;
}

static void threads_share_pool_and_blocks(void **state)
{
    (void)state;
    firn_pool *pool = create((N_SHARED + 6) * PAGE, NULL);
    firn_block *shared[N_SHARED];
    for (int i = 0; i < N_SHARED; i++) {
        shared[i] = alloc(pool, PAGE);
        firn_block_data(shared[i])[7] = 0x77;
    }
    pthread_t threads[N_THREADS];
    thread_job jobs[N_THREADS];
    for (uint64_t i = 0; i < N_THREADS; i++) {
        jobs[i] = (thread_job){ .pool = pool, .shared = shared, .seed = 101 + i };
        assert_int_equal(pthread_create(&threads[i], NULL, use_pool, &jobs[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(jobs[i].n_wrong, 0);
    }
    assert_int_equal(stats_of(pool).used_bytes, N_SHARED * PAGE);
    for (int i = 0; i < N_SHARED; i++) {
        assert_int_equal(firn_block_refs(shared[i]), 1);
        firn_block_release(shared[i]);
    }
    assert_int_equal(stats_of(pool).n_blocks, 0);
    firn_pool_destroy(pool);
}

static void copied_bytes_add_up(void **state)
{
    (void)state;
    firn_pool *pool = create(PAGE, NULL);
    firni_pool_count_copied(pool, 5);
    firni_pool_count_copied(pool, 7);
    assert_int_equal(stats_of(pool).copied_bytes, 12);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_needs_a_budget),
        cmocka_unit_test(blocks_are_aligned_rounded_up_and_zero),
        cmocka_unit_test(a_block_lives_until_its_last_reference),
        cmocka_unit_test(the_budget_refuses_and_says_what_is_used),
        cmocka_unit_test(idle_blocks_are_reused_without_the_allocator),
        cmocka_unit_test(idle_blocks_are_given_back_when_another_size_needs_room),
        cmocka_unit_test(a_refusal_by_the_budget_keeps_idle_blocks),
        cmocka_unit_test(random_use_matches_a_naive_account),
        cmocka_unit_test(a_refused_allocation_leaves_the_account_as_it_was),
        cmocka_unit_test(threads_share_pool_and_blocks),
        cmocka_unit_test(copied_bytes_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
