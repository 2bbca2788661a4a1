/*
 * The parts of the token tree one by one, each against the naive way of doing it: sorted children, the usable prefix,
 * the heap of victims, the set of blocks.
 */
#include <string.h>

#include "prefix/prefix_impl.h"
#include "support/support.h"

/* ---- sorted children ---- */

static void the_best_child_stands_beside_the_place_in_order(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("children", 11);
    firni_node *parent = firni_node_create(NULL, 0);
    for (uint32_t round = 0; round < 3000; round++) {
        firn_token tokens[8];
        const uint32_t n = 1 + test_rng_below(&rng, 8);
        for (uint32_t i = 0; i < n; i++) {
            tokens[i] = test_rng_below(&rng, 3);
        }
        uint32_t n_best = 0;
        bool related = false;
        for (uint32_t c = 0; c < parent->n_children; c++) {
            const firni_node *child = parent->children[c];
            const uint32_t n_max = child->n_tokens < n ? child->n_tokens : n;
            const uint32_t n_common = firni_tokens_common(child->tokens, tokens, n_max);
            n_best = n_common > n_best ? n_common : n_best;
            related = related || n_common == n_max;
        }
        const firni_place place = firni_node_place(parent, tokens, n);
        assert_int_equal(place.n_common, n_best);
        assert_true((place.best == NULL) == (parent->n_children == 0));
        if (!related && test_rng_below(&rng, 2) == 0) {
            assert_true(firni_node_reserve_child(NULL, parent));
            firni_node *child = firni_node_create(NULL, 0);
            child->n_tokens = n;
            memcpy(child->tokens, tokens, n * sizeof tokens[0]);
            firni_node_link(parent, child, place.index);
        } else if (parent->n_children > 0 && test_rng_below(&rng, 3) == 0) {
            firni_node *child = parent->children[test_rng_below(&rng, parent->n_children)];
            firni_node_unlink(child);
            firni_node_destroy(NULL, child);
        }
        for (uint32_t c = 1; c < parent->n_children; c++) {
            const firni_node *a = parent->children[c - 1];
            const firni_node *b = parent->children[c];
            const uint32_t n_common = firni_tokens_common(a->tokens, b->tokens, 8);
            assert_true(n_common < a->n_tokens && n_common < b->n_tokens && a->tokens[n_common] < b->tokens[n_common]);
        }
    }
    while (parent->n_children > 0) {
        firni_node *child = parent->children[0];
        firni_node_unlink(child);
        firni_node_destroy(NULL, child);
    }
    firni_node_destroy(NULL, parent);
}

/* ---- the usable prefix ---- */

enum { PATH = 4 };

static const firn_prefix plain_only = { .n_layers = 0 };

/* root, three whole nodes, a tail of 20: 212 tokens. */
static void make_path(firni_node *path[PATH + 1])
{
    for (uint32_t i = 0; i <= PATH; i++) {
        path[i] = firni_node_create(NULL, 0);
        path[i]->cut_anywhere = true;
        if (i > 0) {
            path[i]->first_token = (i - 1) * FIRN_BLOCK_TOKENS;
            path[i]->n_tokens = i < PATH ? FIRN_BLOCK_TOKENS : 20;
            path[i]->tokens[0] = i;
            firni_node_link(path[i - 1], path[i], 0);
        }
    }
}

static void free_path(firni_node *path[PATH + 1])
{
    for (uint32_t i = PATH; i > 0; i--) {
        firni_node_unlink(path[i]);
        firni_node_destroy(NULL, path[i]);
    }
    firni_node_destroy(NULL, path[0]);
}

static void state_that_can_be_cut_is_usable_to_the_token(void **state)
{
    (void)state;
    firni_node *path[PATH + 1];
    make_path(path);
    for (uint32_t n_max = 0; n_max <= 230; n_max++) {
        firni_node *last;
        const uint32_t n = firni_node_usable(&plain_only, path[PATH], n_max, &last);
        assert_int_equal(n, n_max < 212 ? n_max : 212);
        assert_ptr_equal(last, n == 0 ? NULL : path[(n - 1) / FIRN_BLOCK_TOKENS + 1]);
    }
    firni_node *last;
    assert_int_equal(firni_node_usable(&plain_only, NULL, 100, &last), 0);
    assert_int_equal(firni_node_usable(&plain_only, path[0], 100, &last), 0);
    free_path(path);
}

static void state_that_cannot_be_cut_is_usable_where_a_row_ended(void **state)
{
    (void)state;
    firni_node *path[PATH + 1];
    firni_node *last;
    make_path(path);
    for (uint32_t i = 1; i <= PATH; i++) {
        path[i]->cut_anywhere = false;
    }
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 212, &last), 0);
    path[2]->boundary = true;
    path[4]->boundary = true;
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 212, &last), 212);
    assert_ptr_equal(last, path[4]);
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 211, &last), 128);
    assert_ptr_equal(last, path[2]);
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 128, &last), 128);
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 127, &last), 0);
    assert_null(last);
    /* A family that can be cut again further down. */
    path[1]->cut_anywhere = true;
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 127, &last), 64);
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 40, &last), 40);
    free_path(path);
}

static void state_is_not_resumed_before_its_first_usable_offset(void **state)
{
    (void)state;
    firni_node *path[PATH + 1];
    firni_node *last;
    make_path(path);
    path[4]->reusable_from = 200;
    path[3]->reusable_from = 200;
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 212, &last), 212);
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 200, &last), 200);
    assert_int_equal(firni_node_usable(&plain_only, path[PATH], 199, &last), 128);
    assert_ptr_equal(last, path[2]);
    free_path(path);
}

/* ---- victims ---- */

static void the_heap_gives_the_oldest_whatever_moves(void **state)
{
    (void)state;
    enum { NODES = 200 };
    test_rng rng = test_rng_create("heap", 12);
    firni_heap heap = { .policy = &firni_policy_lru };
    firni_node *nodes[NODES];
    assert_true(firni_heap_reserve(NULL, &heap, NODES));
    for (uint32_t i = 0; i < NODES; i++) {
        nodes[i] = firni_node_create(NULL, 0);
        nodes[i]->used = test_rng_u64(&rng);
    }
    for (uint32_t round = 0; round < 20000; round++) {
        firni_node *node = nodes[test_rng_below(&rng, NODES)];
        if (node->heap == NULL) {
            firni_heap_add(&heap, node);
        } else if (test_rng_below(&rng, 2) == 0) {
            node->used = test_rng_u64(&rng);
            firni_heap_moved(node);
        } else {
            firni_heap_remove(node);
        }
        const firni_node *oldest = NULL;
        for (uint32_t i = 0; i < NODES; i++) {
            if (nodes[i]->heap != NULL && (oldest == NULL || nodes[i]->used < oldest->used)) {
                oldest = nodes[i];
            }
        }
        assert_ptr_equal(firni_heap_first(&heap), oldest);
    }
    firni_heap_check(&heap);
    for (uint32_t i = 0; i < NODES; i++) {
        if (nodes[i]->heap != NULL) {
            firni_heap_remove(nodes[i]);
        }
        firni_node_destroy(NULL, nodes[i]);
    }
    firni_heap_deinit(NULL, &heap);
}

/* ---- blocks ---- */

static void the_set_counts_each_block_once(void **state)
{
    (void)state;
    enum { BLOCKS = 300 };
    test_rng rng = test_rng_create("blocks", 13);
    firn_pool *pool;
    const firn_pool_options options = { .budget_bytes = UINT64_C(1) << 24 };
    assert_ok(firn_pool_create(&options, NULL, &pool, NULL));
    firn_block *blocks[BLOCKS];
    uint32_t n_refs[BLOCKS] = { 0 };
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_ok(firn_block_alloc(pool, (1 + i % 3) * FIRN_BLOCK_ALIGN, &blocks[i], NULL));
    }
    firni_blockset set = { .slots = NULL };
    assert_int_equal(firni_blockset_refs(&set, blocks[0]), 0);
    for (uint32_t round = 0; round < 30000; round++) {
        const uint32_t i = test_rng_below(&rng, BLOCKS);
        /* Fills up and drains in turns. */
        if (n_refs[i] == 0 || test_rng_below(&rng, 3) == (round / 5000) % 2) {
            assert_true(firni_blockset_reserve(NULL, &set, 1));
            firni_blockset_add(&set, blocks[i]);
            n_refs[i]++;
        } else {
            firni_blockset_remove(&set, blocks[i]);
            n_refs[i]--;
        }
        assert_int_equal(firni_blockset_refs(&set, blocks[i]), n_refs[i]);
        if (round % 100 == 0) {
            uint64_t held_bytes = 0;
            for (uint32_t b = 0; b < BLOCKS; b++) {
                held_bytes += n_refs[b] > 0 ? firn_block_bytes(blocks[b]) : 0;
                assert_int_equal(firni_blockset_refs(&set, blocks[b]), n_refs[b]);
            }
            assert_int_equal(set.held_bytes, held_bytes);
        }
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        for (; n_refs[i] > 0; n_refs[i]--) {
            firni_blockset_remove(&set, blocks[i]);
        }
        firn_block_release(blocks[i]);
    }
    firni_blockset_deinit(NULL, &set);
    firn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_child_stands_beside_the_place_in_order),
        cmocka_unit_test(state_that_can_be_cut_is_usable_to_the_token),
        cmocka_unit_test(state_that_cannot_be_cut_is_usable_where_a_row_ended),
        cmocka_unit_test(state_is_not_resumed_before_its_first_usable_offset),
        cmocka_unit_test(the_heap_gives_the_oldest_whatever_moves),
        cmocka_unit_test(the_set_counts_each_block_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
