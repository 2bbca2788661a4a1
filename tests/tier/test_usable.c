/*
 * The usable prefix over all families, against the definition written down plainly: try every position from the longest
 * down and look at everything it needs.
 */
#include "support/support.h"
#include "tier/usable_impl.h"

enum { STEPS_MAX = 12, LAYERS_MAX = 4 };

typedef struct rig {
    firn_pool *pool;
    firn_cache *layers[LAYERS_MAX];
    uint32_t n_layers;
    firni_families families;
    firni_path_step steps[STEPS_MAX];
    uint32_t n_steps;
    uint32_t next; /* the step that may be asked for now, plus one */
} rig;

/* A layer per entry: 0 full attention, else the size of its window. */
static void rig_init(rig *r, const uint32_t *windows, uint32_t n_layers)
{
    *r = (rig){ .n_layers = n_layers };
    const firn_pool_options pool = { .budget_bytes = 1u << 20 };
    assert_ok(firn_pool_create(&pool, NULL, &r->pool, NULL));
    for (uint32_t i = 0; i < n_layers; i++) {
        const firn_cache_options options = { .layout = windows[i] > 0 ? "kv:window" : "kv:plain",
                                             .n_kv_heads = 1,
                                             .head_dim = 16,
                                             .window = windows[i] };
        assert_ok(firn_cache_create(&options, r->pool, NULL, &r->layers[i], NULL));
    }
    assert_ok(firni_families_init(&r->families, (const firn_cache *const *)r->layers, n_layers, NULL, NULL));
}

static void rig_deinit(rig *r)
{
    firni_families_deinit(&r->families);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        firn_cache_destroy(r->layers[i]);
    }
    firn_pool_destroy(r->pool);
}

/* Whole steps that hold everything, and a last one of n_tokens. */
static void rig_path(rig *r, uint32_t n_steps, uint32_t n_last)
{
    r->n_steps = n_steps;
    for (uint32_t i = 0; i < n_steps; i++) {
        r->steps[i] = (firni_path_step){ .first_token = i * FIRN_BLOCK_TOKENS,
                                         .n_tokens = i + 1 < n_steps ? FIRN_BLOCK_TOKENS : n_last,
                                         .has_windows = true,
                                         .cut_anywhere = true,
                                         .checkpoints = UINT64_MAX };
    }
}

/* Holds the function to its promise: from the last step down, none twice, none left out. */
static firni_path_step step_at(void *ctx, uint32_t index)
{
    rig *r = ctx;
    assert_int_equal(index + 1, r->next);
    r->next--;
    return r->steps[index];
}

static uint32_t usable(rig *r, uint32_t n_max)
{
    r->next = r->n_steps;
    return firni_usable_prefix(&r->families, r->n_steps, step_at, r, n_max);
}

static bool is_usable(const rig *r, uint32_t p)
{
    const uint32_t last = (p - 1) / FIRN_BLOCK_TOKENS;
    if (last >= r->n_steps) {
        return false;
    }
    const firni_path_step *step = &r->steps[last];
    const uint32_t n = p - step->first_token;
    const bool cuts = step->cut_anywhere || (step->boundary && n == step->n_tokens);
    const bool has_states = r->families.n_fixed == 0 || (step->checkpoints >> (n - 1) & 1) != 0;
    if (n > step->n_tokens || !cuts || !has_states || p < step->reusable_from) {
        return false;
    }
    for (uint32_t layer = 0; layer < r->n_layers; layer++) {
        const uint32_t window = firn_cache_get_options(r->layers[layer])->window;
        for (uint32_t i = 0; i <= last && window > 0; i++) {
            const bool is_seen = (i + 1) * FIRN_BLOCK_TOKENS > (p > window ? p - window : 0);
            const bool is_here = r->steps[i].has_windows || r->families.kinds[layer] < r->steps[i].n_windows;
            if (is_seen && !is_here) {
                return false;
            }
        }
    }
    return true;
}

static uint32_t usable_naive(const rig *r, uint32_t n_max)
{
    uint32_t p = n_max;
    while (p > 0 && !is_usable(r, p)) {
        p--;
    }
    return p;
}

static void random_paths_agree_with_the_definition(void **state)
{
    (void)state;
    static const uint32_t schemas[][LAYERS_MAX] = { { 0, 0 }, { 0, 100 }, { 64, 300 }, { 1, 0, 65, 1 } };
    test_rng rng = test_rng_create("usable", 21);
    for (uint32_t s = 0; s < sizeof schemas / sizeof schemas[0]; s++) {
        rig r;
        rig_init(&r, schemas[s], s == 3 ? 4 : 2);
        for (uint32_t round = 0; round < 400; round++) {
            const uint32_t n_steps = test_rng_below(&rng, STEPS_MAX + 1);
            rig_path(&r, n_steps, 1 + test_rng_below(&rng, FIRN_BLOCK_TOKENS));
            r.families.n_fixed = round % 2;
            for (uint32_t i = 0; i < n_steps; i++) {
                r.steps[i].has_windows = test_rng_below(&rng, 5) > 0;
                r.steps[i].n_windows = test_rng_below(&rng, 3);
                r.steps[i].cut_anywhere = test_rng_below(&rng, 6) > 0;
                r.steps[i].boundary = test_rng_below(&rng, 2) > 0;
                r.steps[i].reusable_from = test_rng_below(&rng, 8) > 0 ? 0 : test_rng_below(&rng, 900);
                r.steps[i].checkpoints = UINT64_C(1) << test_rng_below(&rng, 64) | UINT64_C(1) << 63;
                if (test_rng_below(&rng, 3) == 0) {
                    r.steps[i].checkpoints = 0;
                }
            }
            const uint32_t n_max = test_rng_below(&rng, STEPS_MAX * FIRN_BLOCK_TOKENS + 40);
            assert_int_equal(usable(&r, n_max), usable_naive(&r, n_max));
        }
        rig_deinit(&r);
    }
}

static void full_layers_are_usable_to_the_token(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, (uint32_t[]){ 0 }, 1);
    rig_path(&r, 4, 20);
    for (uint32_t n_max = 0; n_max <= 230; n_max++) {
        assert_int_equal(usable(&r, n_max), n_max < 212 ? n_max : 212);
    }
    r.n_steps = 0;
    assert_int_equal(usable(&r, 100), 0);
    rig_deinit(&r);
}

/* Old window blocks may be absent; where the window before the end begins decides, and not how many are absent. */
static void a_window_needs_the_blocks_before_the_end_only(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, (uint32_t[]){ 0, 100 }, 2);
    rig_path(&r, 4, 64);
    r.steps[0].has_windows = false;
    assert_int_equal(usable(&r, 256), 256);
    assert_int_equal(usable(&r, 164), 164); /* sees from token 64 on */
    assert_int_equal(usable(&r, 163), 0);   /* sees token 63 */
    r.steps[2].has_windows = false;
    assert_int_equal(usable(&r, 256), 0);   /* token 156 lies in step 2 */
    r.steps[0].has_windows = true;
    assert_int_equal(usable(&r, 256), 128);
    assert_int_equal(usable(&r, 100), 100);
    rig_deinit(&r);
}

/* A row of 300 tokens has let go of the shorter window's block before the longer one's. */
static void of_an_old_block_the_longer_windows_are_enough(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, (uint32_t[]){ 50, 0, 150 }, 3);
    assert_int_equal(r.families.kinds[0], 1);
    assert_int_equal(r.families.kinds[2], 0);
    assert_int_equal(firni_families_windows_needed(&r.families, 300, 1), 0);
    assert_int_equal(firni_families_windows_needed(&r.families, 300, 2), 1);
    assert_int_equal(firni_families_windows_needed(&r.families, 300, 3), 2);
    rig_path(&r, 5, 44);
    for (uint32_t i = 0; i < 3; i++) {
        r.steps[i].has_windows = false;
    }
    assert_int_equal(usable(&r, 300), 0);
    r.steps[2].n_windows = 1;
    assert_int_equal(usable(&r, 300), 300);
    assert_int_equal(usable(&r, 278), 278);
    assert_int_equal(usable(&r, 277), 0); /* sees token 127 */
    rig_deinit(&r);
}

static void fixed_states_are_usable_at_their_checkpoints_only(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, (uint32_t[]){ 0 }, 1);
    r.families.n_fixed = 1;
    rig_path(&r, 3, 64);
    for (uint32_t i = 0; i < 3; i++) {
        r.steps[i].checkpoints = 0;
    }
    assert_int_equal(usable(&r, 192), 0);
    r.steps[0].checkpoints = UINT64_C(1) << 63; /* at 64 */
    r.steps[1].checkpoints = 1 | 1 << 9;        /* at 65 and 74 */
    assert_int_equal(usable(&r, 192), 74);
    assert_int_equal(usable(&r, 74), 74);
    assert_int_equal(usable(&r, 73), 65);
    assert_int_equal(usable(&r, 64), 64);
    assert_int_equal(usable(&r, 63), 0);
    rig_deinit(&r);
}

static void a_checkpoint_without_its_window_is_passed_over(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, (uint32_t[]){ 64 }, 1);
    r.families.n_fixed = 1;
    rig_path(&r, 3, 64);
    r.steps[1].checkpoints = 1 << 9;      /* at 74 */
    r.steps[2].checkpoints = 1;           /* at 129: sees from token 65 on */
    r.steps[1].has_windows = false;
    r.steps[0].checkpoints = 1 << 20;     /* at 21 */
    assert_int_equal(usable(&r, 192), 21);
    r.steps[1].has_windows = true;
    assert_int_equal(usable(&r, 192), 129);
    rig_deinit(&r);
}

static void families_are_told_by_what_a_cache_answers(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, (uint32_t[]){ 0, 100, 300, 100 }, 4);
    assert_int_equal(firni_family_of(r.layers[0]), FIRNI_FAMILY_FULL);
    assert_int_equal(firni_family_of(r.layers[1]), FIRNI_FAMILY_WINDOW);
    assert_int_equal(r.families.n_full, 1);
    assert_int_equal(r.families.n_window, 3);
    assert_int_equal(r.families.n_fixed, 0);
    assert_int_equal(r.families.n_windows, 2); /* two layers are alike */
    assert_int_equal(firni_families_first_window(&r.families, 1000), (1000 - 300) / 64);
    assert_int_equal(firni_families_first_window(&r.families, 90), 0);
    rig_deinit(&r);
    rig_init(&r, (uint32_t[]){ 0, INT32_MAX }, 2);
    assert_int_equal(firni_family_of(r.layers[1]), FIRNI_FAMILY_FULL); /* no row outgrows it */
    assert_int_equal(firni_families_first_window(&r.families, 1000), 16);
    rig_deinit(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_paths_agree_with_the_definition),
        cmocka_unit_test(full_layers_are_usable_to_the_token),
        cmocka_unit_test(a_window_needs_the_blocks_before_the_end_only),
        cmocka_unit_test(of_an_old_block_the_longer_windows_are_enough),
        cmocka_unit_test(fixed_states_are_usable_at_their_checkpoints_only),
        cmocka_unit_test(a_checkpoint_without_its_window_is_passed_over),
        cmocka_unit_test(families_are_told_by_what_a_cache_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
