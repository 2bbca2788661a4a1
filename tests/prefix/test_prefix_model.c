/*
 * The RAM tier against a naive model that always tells the truth: a flat list of nodes, each with all of its tokens
 * from the start, searched from end to end. Random puts, lookups, leases held across other operations, evictions; every
 * hit is lent and compared to the bit, and after each step the tree must hold as many nodes as the model.
 */
#include <stdio.h>

#include "prefix/prefix_rig.h"

enum { MODEL_NODES_MAX = 256, LEASES_MAX = 4, SEQUENCES = 24, LENGTH_MAX = 330 };

typedef struct model_node {
    const char *ns;
    firn_token tokens[LENGTH_MAX]; /* [0, end) */
    uint32_t start, end;
    uint64_t used;
    uint32_t n_pins;
    uint64_t id;
} model_node;

typedef struct model {
    model_node nodes[MODEL_NODES_MAX];
    uint32_t n_nodes;
    uint32_t n_nodes_max; /* budget */
    uint64_t stamp, n_evicted, last_id;
} model;

static model naive;

static uint32_t common(const firn_token *a, uint32_t n_a, const firn_token *b, uint32_t n_b)
{
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) {
        n++;
    }
    return n;
}

/* Lexicographic order from position `from`. */
static bool is_before(const model_node *a, const firn_token *b, uint32_t n_b)
{
    const uint32_t n = common(a->tokens, a->end, b, n_b);
    return n == a->end || n == n_b ? a->end < n_b : a->tokens[n] < b[n];
}

/* The node at `start` that goes on longest with these tokens: among equals the next in order, else the one before. */
static model_node *model_child(const char *ns, const firn_token *tokens, uint32_t start, uint32_t n)
{
    const uint32_t n_wanted = n - start < 64 ? n : start + 64;
    model_node *best = NULL;
    uint32_t n_best = 0;
    for (uint32_t i = 0; i < naive.n_nodes; i++) {
        model_node *node = &naive.nodes[i];
        const uint32_t n_common = common(node->tokens, node->end, tokens, n_wanted);
        if (strcmp(node->ns, ns) != 0 || node->start != start || n_common <= start || n_common < n_best) {
            continue;
        }
        if (best != NULL && n_common == n_best) {
            const bool before = is_before(node, tokens, n_wanted);
            const bool best_before = is_before(best, tokens, n_wanted);
            const bool smaller = is_before(node, best->tokens, best->end);
            if (before != best_before ? before : before ? smaller : !smaller) {
                continue;
            }
        }
        best = node;
        n_best = n_common;
    }
    return best;
}

static bool is_parent(const model_node *parent, const model_node *child)
{
    return strcmp(parent->ns, child->ns) == 0 && parent->end == child->start &&
           memcmp(parent->tokens, child->tokens, parent->end * sizeof(firn_token)) == 0;
}

static model_node *model_parent(const model_node *child)
{
    for (uint32_t i = 0; i < naive.n_nodes; i++) {
        if (is_parent(&naive.nodes[i], child)) {
            return &naive.nodes[i];
        }
    }
    return NULL;
}

static bool is_leaf(const model_node *node)
{
    for (uint32_t i = 0; i < naive.n_nodes; i++) {
        if (is_parent(node, &naive.nodes[i])) {
            return false;
        }
    }
    return true;
}

static void model_touch(model_node *node)
{
    for (; node != NULL; node = model_parent(node)) {
        node->used = ++naive.stamp;
    }
}

static bool model_evict(void)
{
    model_node *victim = NULL;
    for (uint32_t i = 0; i < naive.n_nodes; i++) {
        model_node *node = &naive.nodes[i];
        if (node->n_pins == 0 && is_leaf(node) && (victim == NULL || node->used < victim->used)) {
            victim = node;
        }
    }
    if (victim != NULL) {
        naive.n_evicted++;
        *victim = naive.nodes[--naive.n_nodes];
    }
    return victim != NULL;
}

static model_node *model_by_id(uint64_t id)
{
    for (uint32_t i = 0; i < naive.n_nodes; i++) {
        if (naive.nodes[i].id == id) {
            return &naive.nodes[i];
        }
    }
    return NULL;
}

/* How far the prompt goes, and the node that holds the last usable token. */
static uint32_t model_match(const char *ns, const firn_token *tokens, uint32_t n, model_node **last)
{
    uint32_t at = 0;
    *last = NULL;
    while (at < n) {
        model_node *node = model_child(ns, tokens, at, n);
        if (node == NULL) {
            break;
        }
        const uint32_t n_common = common(node->tokens, node->end, tokens, n);
        if (at < n - 1) {
            *last = node;
        }
        at = n_common;
        if (n_common < node->start + 64) {
            break;
        }
    }
    return at;
}

static void model_put(const char *ns, const firn_token *tokens, uint32_t n)
{
    model_node *anchor = NULL;
    model_node *grows = NULL;
    uint32_t at = 0;
    while (at < n) {
        model_node *child = model_child(ns, tokens, at, n);
        const uint32_t end = n - at < 64 ? n : at + 64;
        const uint32_t n_common = child != NULL ? common(child->tokens, child->end, tokens, end) : 0;
        if (n_common < end) {
            grows = child != NULL && n_common == child->end ? child : NULL;
            break;
        }
        anchor = child;
        at = end;
    }
    uint32_t n_new = (n - at + 63) / 64 - (grows != NULL ? 1 : 0);
    const uint64_t grows_id = grows != NULL ? grows->id : 0;
    model_node *pinned = grows != NULL ? grows : anchor;
    const uint64_t pinned_id = pinned != NULL ? pinned->id : 0;
    uint64_t last_id = pinned_id;
    if (pinned != NULL) {
        pinned->n_pins++;
    }
    while (naive.n_nodes + n_new > naive.n_nodes_max && model_evict()) {
    }
    if (naive.n_nodes + n_new > naive.n_nodes_max) {
        n_new = naive.n_nodes_max - naive.n_nodes;
    }
    if (grows_id != 0) {
        grows = model_by_id(grows_id);
        const uint32_t end = n - at < 64 ? n : at + 64;
        memcpy(grows->tokens, tokens, end * sizeof(firn_token));
        grows->end = end;
        at = end;
    }
    for (uint32_t i = 0; i < n_new; i++) {
        assert_true(naive.n_nodes < MODEL_NODES_MAX);
        model_node *node = &naive.nodes[naive.n_nodes++];
        *node = (model_node){ .ns = ns, .start = at, .end = n - at < 64 ? n : at + 64, .id = ++naive.last_id };
        memcpy(node->tokens, tokens, node->end * sizeof(firn_token));
        at = node->end;
        last_id = node->id;
    }
    if (pinned_id != 0) {
        model_by_id(pinned_id)->n_pins--;
    }
    if (last_id != 0) {
        model_touch(model_by_id(last_id));
    }
}

/* ---- the run ---- */

typedef struct held_lease {
    firn_lease *lease;
    uint64_t model_id; /* 0: pins nothing */
    firn_token tokens[LENGTH_MAX];
    uint32_t n_tokens;
} held_lease;

static const char *const namespaces[] = { "", "a", "ab" };

/* Sequences that leave each other at random places: mostly copies of another with a new ending. */
static void make_sequences(test_rng *rng, firn_token sequences[SEQUENCES][LENGTH_MAX])
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t from = 0;
        if (s > 0 && test_rng_below(rng, 4) != 0) {
            memcpy(sequences[s], sequences[test_rng_below(rng, s)], sizeof sequences[s]);
            const uint32_t near[] = { 0, 1, 63, 64, 65, 128 };
            from = test_rng_below(rng, 2) == 0 ? near[test_rng_below(rng, 6)] : test_rng_below(rng, LENGTH_MAX);
        }
        for (uint32_t i = from; i < LENGTH_MAX; i++) {
            sequences[s][i] = test_rng_below(rng, 3);
        }
    }
}

static uint32_t some_length(test_rng *rng)
{
    const uint32_t edges[] = { 1, 63, 64, 65, 127, 128, 129, 192 };
    return test_rng_below(rng, 3) == 0 ? edges[test_rng_below(rng, 8)] : 1 + test_rng_below(rng, LENGTH_MAX - 1);
}

static void check_against_model(prefix_rig *rig)
{
    const firn_prefix_stats stats = rig_stats(rig);
    firn_prefix_check(rig->prefix);
    assert_int_equal(stats.n_nodes, naive.n_nodes);
    assert_int_equal(stats.held_bytes, naive.n_nodes * RIG_NODE_BYTES);
    assert_true(stats.held_bytes <= stats.budget_bytes);
    assert_int_equal(stats.n_evicted, naive.n_evicted);
}

static void drop_lease(held_lease *held)
{
    if (held->lease != NULL) {
        rig_row row = rig_lend(held->lease);
        rig_row_verify(&row, held->tokens, firn_lease_result(held->lease).n_tokens);
        rig_row_free(&row);
        firn_lease_release(held->lease);
        if (held->model_id != 0) {
            model_by_id(held->model_id)->n_pins--;
        }
        held->lease = NULL;
    }
}

static void look_up(prefix_rig *rig, held_lease *held, const char *ns, const firn_token *tokens, uint32_t n)
{
    model_node *last;
    const uint32_t n_matched = model_match(ns, tokens, n, &last);
    const uint32_t n_usable = n_matched < n - 1 ? n_matched : n - 1;
    held->lease = rig_acquire(rig, tokens, n, ns);
    memcpy(held->tokens, tokens, n * sizeof *tokens);
    held->n_tokens = n;
    held->model_id = 0;
    const firn_lease_info info = firn_lease_result(held->lease);
    assert_int_equal(info.n_tokens, n_usable);
    assert_int_equal(info.first_divergence, n_matched);
    if (info.diverged) {
        assert_true(n_matched < n && tokens[n_matched] != info.stored_token);
    }
    if (n_usable > 0) {
        last->n_pins++;
        held->model_id = last->id;
        model_touch(last);
    }
    rig_row row = rig_lend(held->lease);
    rig_row_verify(&row, tokens, n_usable);
    /* Now and then the row goes on and is put back, as a running request does. */
    if (n_usable > 0 && n % 4 == 0) {
        rig_row_extend(&row, tokens, n);
        (void)firn_prefix_put(rig->prefix, tokens, n, ns, rig_caches(&row), NULL);
        model_put(ns, tokens, n);
    }
    rig_row_free(&row);
}

static void run(uint64_t seed, uint32_t n_nodes_max, uint32_t n_steps)
{
    char name[64];
    (void)snprintf(name, sizeof name, "model, budget of %u nodes", n_nodes_max);
    test_rng rng = test_rng_create(name, seed);
    static firn_token sequences[SEQUENCES][LENGTH_MAX];
    make_sequences(&rng, sequences);
    memset(&naive, 0, sizeof naive);
    naive.n_nodes_max = n_nodes_max;
    static held_lease leases[LEASES_MAX];
    prefix_rig rig;
    rig_init(&rig, NULL, 1 << 26);
    rig_start(&rig, (firn_prefix_options){ .min_tokens = 1, .budget_bytes = n_nodes_max * RIG_NODE_BYTES });

    for (uint32_t step = 0; step < n_steps; step++) {
        const firn_token *tokens = sequences[test_rng_below(&rng, SEQUENCES)];
        const uint32_t n = some_length(&rng);
        const char *ns = namespaces[test_rng_below(&rng, 3)];
        held_lease *held = &leases[test_rng_below(&rng, LEASES_MAX)];
        switch (test_rng_below(&rng, 8)) {
        case 0:
        case 1:
        case 2:
            (void)rig_put(&rig, tokens, n, ns, NULL);
            model_put(ns, tokens, n);
            break;
        case 3:
            drop_lease(held);
            break;
        case 4: {
            /* One node's worth of pool memory: nothing else holds the blocks, unless a lease does. */
            const uint64_t room = firn_pool_room(rig.pool) + RIG_NODE_BYTES;
            bool any_lease = false;
            for (uint32_t i = 0; i < LEASES_MAX; i++) {
                any_lease = any_lease || leases[i].lease != NULL;
            }
            if (!any_lease) {
                assert_int_equal(firn_prefix_make_room(rig.prefix, room), model_evict());
            }
            break;
        }
        default:
            drop_lease(held);
            look_up(&rig, held, ns, tokens, n);
            break;
        }
        check_against_model(&rig);
    }
    for (uint32_t i = 0; i < LEASES_MAX; i++) {
        drop_lease(&leases[i]);
    }
    check_against_model(&rig);
    rig_deinit(&rig);
}

static void random_operations_agree_with_the_model_without_pressure(void **state)
{
    (void)state;
    run(1, 250, 4000);
}

static void random_operations_agree_with_the_model_under_pressure(void **state)
{
    (void)state;
    run(2, 40, 4000);
    run(3, 12, 6000);
    run(4, 5, 6000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_agree_with_the_model_without_pressure),
        cmocka_unit_test(random_operations_agree_with_the_model_under_pressure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
