/*
 * Random operations over mixtures of families: puts at random counts, leases held across other operations, shortage,
 * stores and reads. Three truths are held against the tree:
 *
 *      the definition   each lookup finds the largest position at which, by the definition, everything is there: asked
 *                       of the tree's own nodes one by one, without its search
 *      the history      without shortage that is what the puts imply, token for token, where state can be cut
 *      the bits         whatever is lent is compared with the row that these tokens make
 */
#include <stdio.h>

#include "prefix/prefix_rig.h"
#include "support/fault_tier.h"

enum { SEQUENCES = 12, LENGTH_MAX = 700, LEASES_MAX = 3, WINDOW = 100 };

#define LONG_NS (UINT64_C(3600) * 1000 * RIG_MS)

typedef struct held_lease {
    firn_lease *lease;
    firn_token tokens[LENGTH_MAX];
} held_lease;

typedef struct world {
    prefix_rig rig;
    fault_tier *tier; /* NULL: none */
    test_rng rng;
    firn_token sequences[SEQUENCES][LENGTH_MAX];
    uint32_t n_put[SEQUENCES]; /* longest count put of each */
    held_lease leases[LEASES_MAX];
    bool all_in_chunks;
    uint64_t n_ram_tokens, n_tier_tokens; /* found by lookups */
} world;

/* ---- the definition ---- */

/* The blocks of window layers that a row of n tokens needs of this node. */
static bool has_windows(const firn_prefix *prefix, const firni_node *node, uint32_t n)
{
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        const uint32_t window = firn_cache_get_options(prefix->shapes[layer])->window;
        const uint32_t first = n > window ? (n - window) / 64 : 0;
        if (window > 0 && node->first_token / 64 >= first && node->blocks[layer] == NULL) {
            return false;
        }
    }
    return true;
}

static bool has_state_at(const firn_prefix *prefix, const firni_node *node, uint32_t n)
{
    bool wanted = false;
    for (uint32_t layer = 0; layer < prefix->n_layers; layer++) {
        wanted = wanted || firn_cache_fixed_bytes(prefix->shapes[layer]) > 0;
    }
    const firni_checkpoint *c = node->checkpoints;
    while (c != NULL && c->n_tokens != n) {
        c = c->next;
    }
    return !wanted || c != NULL;
}

static bool is_usable(const firn_prefix *prefix, const firni_node *root, const firn_token *tokens, uint32_t n)
{
    const uint32_t last = (n - 1) / 64;
    const firni_node *node = root;
    for (uint32_t i = 0; i < last; i++) {
        const firni_node *next = NULL;
        for (uint32_t c = 0; c < node->n_children; c++) {
            const firni_node *child = node->children[c];
            if (child->n_tokens == 64 && memcmp(child->tokens, &tokens[i * 64], 64 * sizeof tokens[0]) == 0) {
                next = child;
            }
        }
        if (next == NULL || !has_windows(prefix, next, n)) {
            return false;
        }
        node = next;
    }
    const uint32_t n_rest = n - last * 64;
    for (uint32_t c = 0; c < node->n_children; c++) {
        const firni_node *child = node->children[c];
        if (child->n_tokens >= n_rest && memcmp(child->tokens, &tokens[last * 64], n_rest * sizeof tokens[0]) == 0 &&
            has_windows(prefix, child, n) && has_state_at(prefix, child, n)) {
            return true;
        }
    }
    return false;
}

static uint32_t defined_usable(const world *w, const firn_token *tokens, uint32_t n)
{
    const firni_node *root = firni_root_find(w->rig.prefix, "");
    uint32_t p = root != NULL ? n - 1 : 0;
    while (p > 0 && !is_usable(w->rig.prefix, root, tokens, p)) {
        p--;
    }
    return p;
}

/* ---- the history ---- */

static uint32_t implied_usable(const world *w, const firn_token *tokens, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t common = 0;
        while (common < w->n_put[s] && common < n - 1 && w->sequences[s][common] == tokens[common]) {
            common++;
        }
        best = common > best ? common : best;
    }
    return best;
}

/* ---- operations ---- */

static void make_sequences(world *w)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t from = 0;
        if (s > 0 && test_rng_below(&w->rng, 4) != 0) {
            memcpy(w->sequences[s], w->sequences[test_rng_below(&w->rng, s)], sizeof w->sequences[s]);
            from = test_rng_below(&w->rng, 2) == 0 ? 64 * test_rng_below(&w->rng, 8) : test_rng_below(&w->rng, 500);
        }
        for (uint32_t i = from; i < LENGTH_MAX; i++) {
            w->sequences[s][i] = test_rng_below(&w->rng, 3);
        }
    }
}

static uint32_t some_length(world *w)
{
    const uint32_t edge = 64 * (1 + test_rng_below(&w->rng, LENGTH_MAX / 64 - 1));
    switch (test_rng_below(&w->rng, 3)) {
    case 0: return edge - 1 + test_rng_below(&w->rng, 3);
    default: return 2 + test_rng_below(&w->rng, LENGTH_MAX - 2);
    }
}

static void note_put(world *w, const firn_token *tokens, uint32_t n)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (memcmp(w->sequences[s], tokens, n * sizeof tokens[0]) == 0 && w->n_put[s] < n) {
            w->n_put[s] = n;
        }
    }
}

/* From where the row stands to n, put after each chunk or only at the end. */
static void extend_and_put(world *w, rig_row *row, const firn_token *tokens, uint32_t n, bool in_chunks)
{
    while (rig_row_tokens(row) < n) {
        const uint32_t at = rig_row_tokens(row);
        const uint32_t next = in_chunks && (at / 64 + 1) * 64 < n ? (at / 64 + 1) * 64 : n;
        /* Fresh memory for what is computed: as an engine would, or not at all. */
        const uint64_t step_bytes = w->rig.prefix->node_bytes + w->rig.prefix->checkpoint_bytes;
        if (!firn_prefix_make_room(w->rig.prefix, 2 * step_bytes)) {
            return;
        }
        rig_row_extend(row, tokens, next);
        firn_reason reason;
        (void)firn_prefix_put(w->rig.prefix, tokens, next, "", rig_caches(row), &reason);
        firn_prefix_check(w->rig.prefix);
        if (reason == FIRN_REASON_NONE) {
            note_put(w, tokens, next);
        }
    }
}

static void drop_lease(world *w, held_lease *held)
{
    if (held->lease != NULL) {
        rig_row row = rig_lend(held->lease);
        rig_row_verify(&row, held->tokens, firn_lease_result(held->lease).n_tokens);
        rig_row_free(&row);
        firn_lease_release(held->lease);
        held->lease = NULL;
        firn_prefix_check(w->rig.prefix);
    }
}

static void look_up(world *w, held_lease *held, const firn_token *tokens, uint32_t n)
{
    const uint32_t defined = w->tier == NULL ? defined_usable(w, tokens, n) : 0;
    memcpy(held->tokens, tokens, n * sizeof tokens[0]);
    held->lease = rig_acquire(&w->rig, tokens, n, "");
    const firn_lease_info info = rig_wait(&w->rig, held->lease);
    if (w->tier == NULL) {
        assert_int_equal(info.n_tokens, defined);
    } else {
        /* A store that ended meanwhile may have let go of a checkpoint, which the lease then holds alone. */
        const uint32_t left = defined_usable(w, tokens, n);
        assert_true(info.n_tokens >= left);
        assert_true(info.n_tokens == left || w->rig.prefix->families.n_fixed > 0);
    }
    w->n_ram_tokens += info.ram_tokens;
    w->n_tier_tokens += info.disk_tokens;
    rig_row row = rig_lend(held->lease);
    rig_row_verify(&row, tokens, info.n_tokens);
    if (test_rng_below(&w->rng, 2) == 0) {
        extend_and_put(w, &row, tokens, n, w->all_in_chunks || test_rng_below(&w->rng, 2) == 0);
    }
    rig_row_free(&row);
}

static void change_tier(world *w)
{
    static const firn_reason moods[] = { FIRN_REASON_NONE, FIRN_REASON_NONE, FIRN_REASON_DISK_FULL };
    dict_tier_lock(w->tier->dict);
    w->tier->dict->store_reason = moods[test_rng_below(&w->rng, 3)];
    dict_tier_unlock(w->tier->dict);
    fault_tier_set(w->tier, store_delay_ns, test_rng_below(&w->rng, 2) * RIG_MS / 4);
    fault_tier_set(w->tier, read_reason, moods[test_rng_below(&w->rng, 3)]);
}

static void start(world *w, firn_prefix_options options)
{
    options.min_tokens = 1;
    options.retry_ns_min = RIG_MS;
    options.tier = w->tier != NULL ? &w->tier->tier : NULL;
    rig_start(&w->rig, options);
}

/* Returns how many tokens came from the tier. */
static uint64_t run(const char *mixture, uint64_t seed, uint32_t n_nodes_max, bool with_tier, uint32_t n_steps)
{
    static world w;
    char name[64];
    (void)snprintf(name, sizeof name, "%s, %u nodes%s", mixture, n_nodes_max, with_tier ? ", tier" : "");
    memset(&w, 0, sizeof w);
    w.rng = test_rng_create(name, seed);
    rig_init_mixture(&w.rig, NULL, 1 << 26, mixture, WINDOW);
    w.tier = with_tier ? fault_tier_create(w.rig.pool) : NULL;
    make_sequences(&w);
    start(&w, (firn_prefix_options){ 0 });
    const uint64_t checkpoint_bytes = n_nodes_max / 3 * w.rig.prefix->checkpoint_bytes;
    const uint64_t budget_bytes = n_nodes_max * w.rig.prefix->node_bytes + checkpoint_bytes;
    const firn_prefix_options options = { .budget_bytes = budget_bytes };
    rig_stop(&w.rig);
    start(&w, options);
    w.all_in_chunks = n_nodes_max >= 100 && w.rig.prefix->families.n_fixed == 0;
    for (uint32_t step = 0; step < n_steps; step++) {
        const firn_token *tokens = w.sequences[test_rng_below(&w.rng, SEQUENCES)];
        const uint32_t n = some_length(&w);
        held_lease *held = &w.leases[test_rng_below(&w.rng, LEASES_MAX)];
        switch (test_rng_below(&w.rng, 10)) {
        case 0:
        case 1: {
            rig_row row = rig_row_empty(&w.rig);
            const bool in_chunks = w.all_in_chunks || test_rng_below(&w.rng, 2) == 0;
            extend_and_put(&w, &row, tokens, n, in_chunks);
            rig_row_free(&row);
            break;
        }
        case 2:
            drop_lease(&w, held);
            break;
        case 3:
            if (n_nodes_max < 100) {
                const uint64_t room = firn_pool_room(w.rig.pool);
                (void)firn_prefix_make_room(w.rig.prefix, room + test_rng_below(&w.rng, 4) * w.rig.prefix->node_bytes);
                firn_prefix_check(w.rig.prefix);
            }
            break;
        case 4:
            if (with_tier) {
                change_tier(&w);
                rig_sleep(RIG_MS / 8);
                (void)firn_prefix_poll(w.rig.prefix);
                firn_prefix_check(w.rig.prefix);
            }
            break;
        default:
            drop_lease(&w, held);
            /* Without shortage nothing that was put in chunks is ever lost. */
            if (w.all_in_chunks) {
                assert_int_equal(defined_usable(&w, tokens, n), implied_usable(&w, tokens, n));
            }
            look_up(&w, held, tokens, n);
            break;
        }
        assert_true(rig_stats(&w.rig).held_bytes <= budget_bytes);
        if (with_tier && step % 200 == 199) {
            for (uint32_t i = 0; i < LEASES_MAX; i++) {
                drop_lease(&w, &w.leases[i]);
            }
            rig_stop(&w.rig);
            start(&w, options);
        }
    }
    for (uint32_t i = 0; i < LEASES_MAX; i++) {
        drop_lease(&w, &w.leases[i]);
    }
    if (with_tier) {
        /* The weather clears: whatever can be resumed is saved, and nothing stays for another reason. */
        dict_tier_lock(w.tier->dict);
        w.tier->dict->store_reason = FIRN_REASON_NONE;
        dict_tier_unlock(w.tier->dict);
        (void)firn_prefix_flush(w.rig.prefix, LONG_NS); /* a refusal may still have been on its way */
        assert_true(firn_prefix_flush(w.rig.prefix, LONG_NS).durable);
        firn_prefix_check(w.rig.prefix);
        assert_int_equal(rig_stats(&w.rig).n_dirty, 0);
    }
    assert_true(w.n_ram_tokens > 0);
    assert_true(firn_prefix_make_room(w.rig.prefix, 1 << 26));
    assert_int_equal(rig_stats(&w.rig).held_bytes, 0);
    rig_stop(&w.rig);
    firn_tier_destroy(with_tier ? &w.tier->tier : NULL);
    rig_deinit(&w.rig);
    return w.n_tier_tokens;
}

static const char *const mixtures[] = { "w", "pw", "pvw", "c", "pc", "wc", "b", "h", "vwcb" };

enum { N_MIXTURES = sizeof mixtures / sizeof mixtures[0] };

static void lookups_find_what_the_definition_says_without_shortage(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < N_MIXTURES; m++) {
        (void)run(mixtures[m], 10 + m, 1000, false, 300);
    }
}

static void lookups_find_what_the_definition_says_under_shortage(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < N_MIXTURES; m++) {
        (void)run(mixtures[m], 20 + m, 40, false, 400);
        (void)run(mixtures[m], 30 + m, 14, false, 400);
    }
}

static void state_moves_between_ram_and_tier_and_stays_right(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < N_MIXTURES; m++) {
        uint64_t n_tier_tokens = run(mixtures[m], 40 + m, 60, true, 400);
        n_tier_tokens += run(mixtures[m], 50 + m, 16, true, 300);
        assert_true(n_tier_tokens > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookups_find_what_the_definition_says_without_shortage),
        cmocka_unit_test(lookups_find_what_the_definition_says_under_shortage),
        cmocka_unit_test(state_moves_between_ram_and_tier_and_stays_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
