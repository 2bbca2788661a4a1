/*
 * The token loop takes no memory: allocations are counted at every token of rows that decode, of all families.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/engine_fixture.h"

enum { N_PROMPT = 100, N_ANSWER = 200, N_WARM = 4 };

static const char *const models[] = {
    "tests/oracle/llama.gguf",     "tests/oracle/gemma3.gguf", "tests/oracle/gptoss.gguf", "tests/oracle/qwen35.gguf",
    "tests/oracle/qwen3next.gguf", "tests/oracle/mamba2.gguf",
};

typedef struct listener {
    test_world *world;
    uint64_t n_allocs[N_ANSWER];   /* when each token was heard */
    uint32_t n_tokens;
    atomic_bool has_ended;
} listener;

static void on_event(void *ctx, const firn_event *event)
{
    listener *l = ctx;
    if (event->kind == FIRN_EVENT_END) {
        atomic_store(&l->has_ended, true);
    } else {
        l->n_allocs[l->n_tokens++] = l->world->n_allocs;
    }
}

/* One answer; returns what was allocated between its first few tokens and its last but one. */
static uint64_t allocations_of_an_answer(test_stack *stack, test_world *world, const firn_sampling *sampling)
{
    static firn_token prompt[N_PROMPT];
    listener l = { .world = world };
    test_rng rng = { .state = 1 };
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        prompt[i] = 5 + test_rng_below(&rng, 250);
    }
    const firn_request request = { .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_ANSWER, .ignore_end = true,
                                   .no_cache = true, .sampling = *sampling, .on_event = on_event, .ctx = &l };
    uint64_t id;
    assert_ok(firn_engine_submit(stack->engine, &request, &id, NULL));
    while (!atomic_load(&l.has_ended)) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    assert_int_equal(l.n_tokens, N_ANSWER);
    return l.n_allocs[N_ANSWER - 2] - l.n_allocs[N_WARM];
}

static void a_step_allocates_nothing_but_blocks_and_these_are_used_again(void **state)
{
    (void)state;
    static const firn_sampling samplings[] = {
        { .temperature = 0.0F },
        { .temperature = 0.8F, .top_k = 20, .top_p = 0.9F, .repetition_penalty = 1.1F, .seed = 3, .has_seed = true },
    };
    uint64_t n_first = 0;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        test_world world;
        test_world_init(&world);
        test_stack stack;
        test_stack_open(&stack, &(test_stack_options){ .model_path = models[m], .env = &world.env, .n_threads = 2 });
        /* The first answer takes its blocks from the allocator, the next ones the same blocks from the pool. */
        n_first += allocations_of_an_answer(&stack, &world, &samplings[0]);
        for (size_t i = 0; i < sizeof samplings / sizeof samplings[0]; i++) {
            const uint64_t n = allocations_of_an_answer(&stack, &world, &samplings[i]);
            print_message("%s, temperature %.1f: %llu\n", models[m], (double)samplings[i].temperature,
                          (unsigned long long)n);
            assert_int_equal(n, 0);
        }
        (void)test_stack_close(&stack, 10000000000);
        test_world_deinit(&world);
    }
    assert_true(n_first > 0); /* so what is counted would be seen */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing_but_blocks_and_these_are_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
