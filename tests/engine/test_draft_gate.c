/*
 * The gate before guessing: measured, never by default; it opens where guessing pays, and rests longer each time that
 * it does not. Times are made up, so that the decision alone is tested.
 */
#include "engine/draft_rig.h"

enum { STEPS = 4000 };

/* Runs steps of so many rows; a guessing step makes 3 tokens a row. Returns how many guessed. */
static uint32_t run(firni_draft_gate *gate, uint32_t n_rows, uint32_t n_steps, uint64_t plain_ns, uint64_t guessing_ns)
{
    uint32_t n_guessed = 0;
    for (uint32_t i = 0; i < n_steps; i++) {
        const bool guesses = firni_draft_gate_is_open(gate, n_rows);
        n_guessed += guesses;
        firni_draft_gate_learn(gate, n_rows, guesses, guesses ? guessing_ns : plain_ns,
                               (uint64_t)n_rows * (guesses ? 3 : 1));
    }
    return n_guessed;
}

static void guessing_goes_on_where_it_pays(void **state)
{
    (void)state;
    firni_draft_gate gate = { 0 };
    assert_false(firni_draft_gate_is_open(&gate, 1)); /* nothing is known yet */
    const uint32_t n = run(&gate, 1, STEPS, 1000, 2000);
    assert_true(n > STEPS * 9 / 10 && n < STEPS); /* but for a plain step now and then */
}

static void guessing_that_is_slower_costs_next_to_nothing(void **state)
{
    (void)state;
    firni_draft_gate gate = { 0 };
    assert_true(run(&gate, 1, STEPS, 1000, 9000) < STEPS / 50);
}

static void a_change_is_noticed(void **state)
{
    (void)state;
    firni_draft_gate gate = { 0 };
    (void)run(&gate, 1, STEPS, 1000, 9000);
    /* It pays now: after what is left of the rest it is found out. */
    assert_true(run(&gate, 1, 2 * STEPS, 1000, 2000) > STEPS / 2);
    /* Plain steps became as fast: they are measured again in between. */
    assert_true(run(&gate, 1, 2 * STEPS, 500, 2000) < STEPS / 2);
}

static void batches_of_other_sizes_are_measured_apart(void **state)
{
    (void)state;
    firni_draft_gate gate = { 0 };
    for (uint32_t i = 0; i < 20; i++) {
        (void)run(&gate, 1, STEPS / 20, 1000, 2000);
        (void)run(&gate, 16, STEPS / 20, 2000, 60000);
    }
    assert_true(run(&gate, 1, STEPS, 1000, 2000) > STEPS * 9 / 10);
    assert_true(run(&gate, 13, STEPS, 2000, 60000) < STEPS / 50);
}

static void one_interrupted_step_decides_nothing(void **state)
{
    (void)state;
    firni_draft_gate gate = { 0 };
    (void)run(&gate, 1, 100, 1000, 2000);
    while (!firni_draft_gate_is_open(&gate, 1)) {
        firni_draft_gate_learn(&gate, 1, false, 1000, 1);
    }
    firni_draft_gate_learn(&gate, 1, true, 50000000, 3);
    assert_true(run(&gate, 1, 100, 1000, 2000) > 90);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guessing_goes_on_where_it_pays),
        cmocka_unit_test(guessing_that_is_slower_costs_next_to_nothing),
        cmocka_unit_test(a_change_is_noticed),
        cmocka_unit_test(batches_of_other_sizes_are_measured_apart),
        cmocka_unit_test(one_interrupted_step_decides_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
