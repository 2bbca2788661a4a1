/*
 * Blocks that lie in slabs: they are neighbours, the account stays that of blocks, and what is given back is out of
 * memory whatever its neighbours do.
 */
#define _GNU_SOURCE /* mincore */

#include <string.h>
#include <sys/mman.h>

#include "array/pool_impl.h"
#include "support/support.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define BUDGET (128 * MIB) /* the least that has slabs: of 2 MiB */
#define SLAB (2 * MIB)
#define FIRST (2 * SLAB) /* what must be in use before slabs are made */

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
    return stats;
}

static firn_block *alloc(firn_pool *pool, size_t n_bytes, uint8_t fill)
{
    firn_block *block;
    assert_ok(firni_block_alloc_undefined(pool, n_bytes, &block, NULL));
    memset(firn_block_data(block), fill, firn_block_bytes(block));
    return block;
}

static size_t resident_bytes(const uint8_t *data, size_t n_bytes)
{
    unsigned char pages[SLAB / 4096];
    size_t n = 0;
    assert_true(n_bytes <= SLAB);
    assert_int_equal(mincore((void *)(uintptr_t)data, n_bytes, pages), 0);
    for (size_t i = 0; i < n_bytes / 4096; i++) {
        n += pages[i] & 1u;
    }
    return n * 4096;
}

static void expect_filled(const firn_block *block, uint8_t fill)
{
    const uint8_t *data = firn_block_data(block);
    assert_int_equal(data[0], fill);
    assert_memory_equal(data, data + 1, firn_block_bytes(block) - 1);
}

static void sizes_of_slabs_follow_the_budget(void **state)
{
    (void)state;
    assert_int_equal(firni_slab_bytes(128 * KIB, BUDGET, UINT64_MAX), SLAB);
    assert_int_equal(firni_slab_bytes(128 * KIB, BUDGET - 1, UINT64_MAX), 0);
    assert_int_equal(firni_slab_bytes(SLAB / 4, BUDGET, UINT64_MAX), SLAB);
    assert_int_equal(firni_slab_bytes(SLAB / 4 + 4096, BUDGET, UINT64_MAX), 0);
    assert_int_equal(firni_slab_bytes(128 * KIB, (uint64_t)64 << 30, UINT64_MAX), 64 * MIB);
    assert_int_equal(firni_slab_bytes(128 * KIB, (uint64_t)1 << 40, UINT64_MAX), 256 * MIB);
    assert_int_equal(firni_slab_bytes(128 * KIB, UINT64_MAX, UINT64_MAX), 256 * MIB);
    assert_int_equal(firni_slab_bytes(4 * KIB, UINT64_MAX, UINT64_MAX), 8 * MIB); /* few blocks, rather than few
                                                                                   * slabs */
    assert_int_equal(firni_slab_bytes(4 * MIB, (uint64_t)1 << 40, UINT64_MAX), 256 * MIB);
    assert_int_equal(firni_slab_bytes(4 * KIB, UINT64_MAX, 2 * SLAB - 1), 0);
    assert_int_equal(firni_slab_bytes(4 * KIB, UINT64_MAX, 2 * SLAB), SLAB);
    assert_int_equal(firni_slab_bytes(65 * MIB, (uint64_t)1 << 40, UINT64_MAX), 0);
}

static void blocks_of_one_size_are_neighbours(void **state)
{
    (void)state;
    firn_pool *pool = create(BUDGET, NULL);
    firn_block *blocks[16];
    firn_block *before = alloc(pool, FIRST, 0xff);
    for (uint32_t i = 0; i < 16; i++) {
        blocks[i] = alloc(pool, 128 * KIB, (uint8_t)i);
        const firn_pool_stats stats = stats_of(pool);
        assert_int_equal(stats.used_bytes, FIRST + (i + 1) * 128 * KIB);
        assert_int_equal(stats.used_bytes + stats.idle_bytes, FIRST + SLAB);
    }
    const uintptr_t slab = (uintptr_t)firn_block_data(blocks[0]) / SLAB;
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal((uintptr_t)firn_block_data(blocks[i]) / SLAB, slab);
        expect_filled(blocks[i], (uint8_t)i);
        firn_block_release(blocks[i]);
    }
    assert_int_equal(stats_of(pool).idle_bytes, SLAB);
    firn_block_release(before);
    firn_pool_destroy(pool);
}

/* Every second block of a full pool goes; the room goes to another size, and what is in memory is what is counted. */
static void what_is_given_back_is_out_of_memory_and_neighbours_are_untouched(void **state)
{
    (void)state;
    enum { N = (BUDGET - FIRST) / (128 * KIB) };
    static firn_block *small[N];
    static uint8_t *freed[N / 2];
    firn_pool *pool = create(BUDGET, NULL);
    firn_block *before = alloc(pool, FIRST, 0xff);
    for (uint32_t i = 0; i < N; i++) {
        small[i] = alloc(pool, 128 * KIB, (uint8_t)i);
    }
    firn_block *block;
    assert_status(firni_block_alloc_undefined(pool, 4096, &block, NULL), FIRN_ERR_NO_MEMORY);
    for (uint32_t i = 1; i < N; i += 2) {
        freed[i / 2] = firn_block_data(small[i]);
        firn_block_release(small[i]);
    }
    assert_int_equal(stats_of(pool).idle_bytes, (BUDGET - FIRST) / 2);
    static firn_block *others[2 * N];
    uint32_t n_others = 0;
    for (; stats_of(pool).used_bytes + 96 * KIB <= BUDGET; n_others++) {
        others[n_others] = alloc(pool, 96 * KIB, 0xee);
    }
    size_t resident = 0;
    for (uint32_t i = 0; i < N / 2; i++) {
        resident += resident_bytes(freed[i], 128 * KIB);
    }
    assert_int_equal(resident, stats_of(pool).idle_bytes); /* at most one block of this size is still idle */
    assert_true(resident <= 128 * KIB);
    for (uint32_t i = 0; i < N; i += 2) {
        expect_filled(small[i], (uint8_t)i);
    }
    /* The other way round: hollow places are taken again, at the addresses that they had. */
    for (uint32_t i = 0; i < n_others; i++) {
        expect_filled(others[i], 0xee);
        firn_block_release(others[i]);
    }
    for (uint32_t i = 1; i < N; i += 2) {
        small[i] = alloc(pool, 128 * KIB, (uint8_t)i);
        bool is_old_place = false;
        for (uint32_t f = 0; f < N / 2; f++) {
            is_old_place = is_old_place || firn_block_data(small[i]) == freed[f];
        }
        assert_true(is_old_place);
    }
    for (uint32_t i = 0; i < N; i++) {
        expect_filled(small[i], (uint8_t)i);
        firn_block_release(small[i]);
    }
    expect_filled(before, 0xff);
    firn_block_release(before);
    firn_pool_destroy(pool);
}

/* Slabs that nobody uses any more are freed when their room is wanted, and only then. */
static void an_empty_slab_is_freed_when_its_room_is_wanted(void **state)
{
    (void)state;
    enum { N = (BUDGET - FIRST) / (256 * KIB) };
    static firn_block *blocks[N];
    test_world world;
    test_world_init(&world);
    firn_pool *pool = create(BUDGET, &world.env);
    firn_block *before = alloc(pool, FIRST, 0xff);
    for (uint32_t i = 0; i < N; i++) {
        blocks[i] = alloc(pool, 256 * KIB, 1);
    }
    const uint64_t n_full = world.n_live;
    for (uint32_t i = 0; i < N; i++) {
        firn_block_release(blocks[i]);
    }
    assert_int_equal(world.n_live, n_full);
    blocks[0] = alloc(pool, 96 * MIB, 2); /* too large for a slab: an allocation of its own, and a header */
    assert_int_equal(stats_of(pool).idle_bytes, 32 * MIB - FIRST);
    assert_int_equal(world.n_live, n_full - 48 * 2 + 2);
    firn_block_release(blocks[0]);
    firn_block_release(before);
    firn_pool_destroy(pool);
    test_world_deinit(&world);
}

/* Random sizes and lifetimes, full most of the time, against plain sums and against what was written. */
static void random_use_matches_a_naive_account(void **state)
{
    (void)state;
    static const size_t sizes[] = { 64 * KIB, 96 * KIB, 128 * KIB, 500 * KIB, 3 * MIB };
    enum { N = 256, N_SIZES = sizeof sizes / sizeof sizes[0] };
    static firn_block *held[N];
    test_rng rng = test_rng_create("slab", 12);
    firn_pool *pool = create(BUDGET, NULL);
    uint64_t used = 0;
    memset(held, 0, sizeof held);
    for (uint32_t step = 0; step < 4000; step++) {
        const uint32_t i = test_rng_below(&rng, N);
        if (held[i] != NULL) {
            assert_int_equal(firn_block_data(held[i])[0], (uint8_t)i);
            assert_int_equal(firn_block_data(held[i])[firn_block_bytes(held[i]) - 1], (uint8_t)i);
            used -= firn_block_bytes(held[i]);
            firn_block_release(held[i]);
            held[i] = NULL;
        } else {
            /* Sizes come in waves, as models do. */
            const size_t n_bytes = sizes[(step / 400 + test_rng_below(&rng, 2)) % N_SIZES];
            const firn_status status = firni_block_alloc_undefined(pool, n_bytes, &held[i], NULL);
            assert_status(status, used + n_bytes <= BUDGET ? FIRN_OK : FIRN_ERR_NO_MEMORY);
            if (status == FIRN_OK) {
                firn_block_data(held[i])[0] = (uint8_t)i;
                firn_block_data(held[i])[n_bytes - 1] = (uint8_t)i;
                used += n_bytes;
            }
        }
        assert_int_equal(stats_of(pool).used_bytes, used);
    }
    for (uint32_t i = 0; i < N; i++) {
        firn_block_release(held[i]);
    }
    firn_pool_destroy(pool);
}

static void a_refused_slab_leaves_a_block_or_an_error(void **state)
{
    (void)state;
    for (uint64_t n = 2;; n++) {
        test_world world;
        test_world_init(&world);
        firn_pool *pool = create(BUDGET, &world.env);
        firn_block *before = alloc(pool, FIRST, 0xff);
        world.fail_alloc_at = n + 2;
        firn_block *block;
        const firn_status status = firni_block_alloc_undefined(pool, 128 * KIB, &block, NULL);
        assert_status(status, FIRN_OK); /* without a slab it stands alone */
        assert_int_equal(stats_of(pool).used_bytes, FIRST + 128 * KIB);
        firn_block_release(block);
        firn_block_release(before);
        firn_pool_destroy(pool);
        const bool clean = !world.alloc_failed;
        test_world_deinit(&world);
        if (clean) {
            assert_int_equal(n, 4); /* the slab's head and its memory were refused */
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_slabs_follow_the_budget),
        cmocka_unit_test(blocks_of_one_size_are_neighbours),
        cmocka_unit_test(what_is_given_back_is_out_of_memory_and_neighbours_are_untouched),
        cmocka_unit_test(an_empty_slab_is_freed_when_its_room_is_wanted),
        cmocka_unit_test(random_use_matches_a_naive_account),
        cmocka_unit_test(a_refused_slab_leaves_a_block_or_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
