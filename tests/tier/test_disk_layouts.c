/*
 * Every layout there is, through the disk: stored at counts around the edges of blocks, restored from a store that was
 * opened anew, and gone on with. What it holds afterwards is what the stored one holds, to the bit. (The recurrent
 * ones: test_disk_recurrent.c.)
 */
#include <unistd.h>

#include "layout/rig.h"
#include "tier/tier_fixture.h"

#define WHOLE (5u * RIG_T) /* where both are compared: at the end of a block, so that every byte counts */

static const firn_cache_options apart[] = {
    { .layout = "kv:delayed-quant",
      .key_bits = 8,
      .start = 40,
      .dtype = FIRN_DTYPE_F16,
      .n_kv_heads = 2,
      .head_dim = 64 },
    { .layout = "kv:delayed-window-quant",
      .key_bits = 8,
      .window = RIG_T + 37,
      .start = 64,
      .dtype = FIRN_DTYPE_F16,
      .n_kv_heads = 2,
      .head_dim = 64 },
    { .layout = "kv:delayed-turboquant",
      .key_bits = 8,
      .value_bits = 3,
      .start = 64,
      .dtype = FIRN_DTYPE_F16,
      .n_kv_heads = 2,
      .head_dim = 64 },
};

static uint32_t n_restored;

/* Tokens [from, to) of the sequence, with a step's end at the boundary that a delayed layout has. */
static void feed(firn_cache *cache, const rig_tokens *tokens, uint32_t from, uint32_t to)
{
    const uint32_t start = firn_cache_get_options(cache)->start;
    while (from < to) {
        uint32_t n = to - from < 37 ? to - from : 37;
        n = start > from && start < from + n ? start - from : n;
        assert_ok(rig_feed_row(cache, 0, tokens->id + from, n, NULL));
        firn_cache_settle(cache);
        from += n;
    }
}

static firn_cache *fed(const firn_cache_options *options, firn_pool *pool, const rig_tokens *tokens, uint32_t n)
{
    firn_cache *cache = rig_cache(options, pool);
    assert_ok(firn_cache_add_row(cache, NULL));
    feed(cache, tokens, 0, n);
    return cache;
}

/* At a whole number of blocks. Blocks that one of them has let go need not be there in the other. */
static void assert_same_bytes(const firn_cache *a, const firn_cache *b)
{
    const firn_row_view left = firn_cache_view_row(a, 0), right = firn_cache_view_row(b, 0);
    assert_int_equal(left.n_tokens, right.n_tokens);
    assert_int_equal(left.fixed != NULL, right.fixed != NULL);
    if (left.fixed != NULL) {
        assert_memory_equal(firn_block_data(left.fixed), firn_block_data(right.fixed), firn_block_bytes(left.fixed));
    }
    const uint32_t first = left.first_block > right.first_block ? left.first_block : right.first_block;
    const uint32_t end = left.first_block + left.n_blocks;
    assert_int_equal(end, right.first_block + right.n_blocks);
    for (uint32_t i = first; i < end; i++) {
        const firn_block *x = left.blocks[i - left.first_block], *y = right.blocks[i - right.first_block];
        assert_int_equal(firn_block_bytes(x), firn_block_bytes(y));
        assert_memory_equal(firn_block_data(x), firn_block_data(y), firn_block_bytes(x));
    }
}

static void store_and_restore(const firn_cache_options *options, uint32_t n)
{
    const rig_tokens sequence = rig_sequence(n, WHOLE);
    firn_token tokens[WHOLE];
    for (uint32_t i = 0; i < WHOLE; i++) {
        tokens[i] = (firn_token)(i + 7);
    }
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const firn_schema schema = { .layers = options, .n_layers = 1, .identity_text = "weights: w\n" };
    char *dir = test_dir_create();
    const firn_disk_options disk = { .dir = dir, .schema = &schema, .pool = pool };
    firn_tier *tier;
    assert_ok(firn_disk_open(&disk, NULL, &tier, NULL));
    firn_cache *cache = fed(options, pool, &sequence, n);
    const firn_cache *borrowed[] = { cache };
    const firn_store_input input = { .tokens = tokens, .n_tokens = n, .caches = borrowed, .n_caches = 1 };
    firn_reason reason;
    const bool is_stored = firn_tier_store(tier, &input, &reason), may_be = firn_cache_can_publish_row(cache, 0, n);
    if (is_stored != may_be) {
        fail_msg("%s: storing %u tokens: %s", options->layout, n, firn_reason_name(reason));
    }
    firn_tier_destroy(tier);
    if (!may_be) { /* a delayed layout before its boundary: refused by name */
        assert_int_equal(reason, FIRN_REASON_COUNT_MISMATCH);
        firn_cache_destroy(cache);
        test_dir_remove(dir);
        free(dir);
        firn_pool_destroy(pool);
        return;
    }
    n_restored++;

    assert_ok(firn_disk_open(&disk, NULL, &tier, NULL));
    const firn_match match = firn_tier_find(tier, tokens, WHOLE, NULL);
    if (match.prefix_len != n) {
        fail_msg("%s: of %u tokens %u are found: %s", options->layout, n, match.prefix_len,
                 firn_reason_name(match.reason));
    }
    firn_restored restored;
    assert_int_equal(firn_tier_restore(tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    firn_cache_check(restored.caches[0]);
    feed(cache, &sequence, n, WHOLE);
    feed(restored.caches[0], &sequence, n, WHOLE);
    firn_cache_check(restored.caches[0]);
    assert_same_bytes(restored.caches[0], cache);
    firn_restored_deinit(&restored);
    firn_tier_release(tier, match.handle);
    firn_tier_destroy(tier);
    firn_cache_destroy(cache);
    test_dir_remove(dir);
    free(dir);
    firn_pool_destroy(pool);
}

static void at_each_edge(const firn_cache_options *options)
{
    static const uint32_t counts[] = { 1, RIG_T - 1, RIG_T, RIG_T + 1, 3 * RIG_T + 8 };
    n_restored = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        store_and_restore(options, counts[i]);
    }
    assert_true(n_restored >= 2);
}

static void every_layout_comes_back_from_disk_to_the_bit(void **unused)
{
    (void)unused;
    rig_for_each_layout(at_each_edge);
    for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++) {
        at_each_edge(&apart[i]);
    }
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_comes_back_from_disk_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
