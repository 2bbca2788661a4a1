/*
 * How large a chunk may be beside rows that decode: on made-up machines, and in an engine whose clock counts work
 * instead of time.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pace_impl.h"
#include "support/engine_fixture.h"

/* ---- made-up machines -------------------------------------------------------------------------------------------- */

/* ns of a step of n_rows rows and n_tokens of prompts at a depth: the weights take as long as six tokens do. */
static uint64_t step_ns(uint32_t n_rows, uint32_t n_tokens, uint32_t depth)
{
    const uint64_t n = n_rows + n_tokens;
    return 5000000u * (n > 6 ? n : 6) + (uint64_t)n_tokens * depth * 1000u;
}

enum { PROMPT = 4096, CHUNK = 256 };

/* Reads a prompt beside rows; returns the longest step. */
static uint64_t read_prompt(firni_pace *pace, uint32_t n_rows, uint64_t bound_ns, uint32_t from, uint32_t *n_steps)
{
    uint64_t longest_ns = 0;
    *n_steps = 0;
    for (uint32_t n = from; n < from + PROMPT; ++*n_steps) {
        const uint32_t count = firni_pace_tokens(pace, n_rows, n, bound_ns, 0, CHUNK);
        const uint64_t ns = step_ns(n_rows, count, n);
        if (count > 0) {
            firni_pace_learn_prompt(pace, n_rows, count, n, ns);
        } else {
            firni_pace_learn_plain(pace, n_rows, ns);
        }
        longest_ns = ns > longest_ns ? ns : longest_ns;
        n += count;
    }
    return longest_ns;
}

static void rows_hear_within_four_of_their_steps_and_the_chunk_uses_most_of_that(void **state)
{
    (void)state;
    for (uint32_t n_rows = 1; n_rows <= 4; n_rows++) {
        firni_pace pace = { .largest = 0 };
        uint32_t n_steps;
        const uint64_t longest_ns = read_prompt(&pace, n_rows, 0, 0, &n_steps);
        const uint64_t plain_ns = step_ns(n_rows, 0, 0);
        assert_in_range(longest_ns, 3 * plain_ns, 4 * plain_ns);
    }
}

/* Plain steps of a millisecond: four of them would leave no chunk worth the name. */
static void what_nobody_would_notice_does_not_hold_a_prompt_up(void **state)
{
    (void)state;
    firni_pace pace = { .largest = 0 };
    firni_pace_learn_plain(&pace, 2, 1000000);
    firni_pace_learn_prompt(&pace, 2, 64, 0, 9000000);
    assert_int_equal(firni_pace_tokens(&pace, 2, 64, 0, 0, CHUNK), CHUNK);
    assert_in_range(firni_pace_tokens(&pace, 2, 64, 4000000, 0, CHUNK), FIRNI_PACE_TOKENS_MIN, 32);
}

static void a_given_bound_is_kept_from_the_first_step_on(void **state)
{
    (void)state;
    static const uint64_t bounds_ns[] = { 80000000, 200000000, 500000000 };
    uint32_t n_before = UINT32_MAX;
    for (size_t i = 0; i < sizeof bounds_ns / sizeof bounds_ns[0]; i++) {
        firni_pace pace = { .largest = 0 };
        uint32_t n_steps;
        assert_in_range(read_prompt(&pace, 2, bounds_ns[i], 0, &n_steps), bounds_ns[i] / 2, bounds_ns[i]);
        assert_true(n_steps < n_before);
        n_before = n_steps;
    }
}

/* A step in twenty takes so many times what it should. */
static uint32_t read_interrupted(firni_pace *pace, test_rng *rng, double factor, uint64_t bound_ns, uint32_t *n_late)
{
    uint32_t n_steps = 0;
    *n_late = 0;
    for (uint32_t n = 0; n < PROMPT; n_steps++) {
        const uint32_t count = firni_pace_tokens(pace, 2, n, bound_ns, 0, CHUNK);
        const double scale = test_rng_below(rng, 20) == 0 ? factor : 1.0;
        const uint64_t ns = (uint64_t)(scale * (double)step_ns(2, count, n));
        firni_pace_learn_prompt(pace, 2, count, n, ns);
        *n_late += ns > bound_ns;
        n += count;
    }
    return n_steps;
}

static void where_steps_are_interrupted_all_are_planned_shorter_until_the_bound_holds(void **state)
{
    (void)state;
    firni_pace pace = { .largest = 0 };
    test_rng rng = { .state = 7 };
    uint32_t n_late, n_steps = 0;
    firni_pace_learn_plain(&pace, 2, step_ns(2, 0, 0));
    for (int i = 0; i < 3; i++) { /* an interrupted step takes more than the first plan allows for */
        n_steps = read_interrupted(&pace, &rng, 1.3, 200000000, &n_late);
        assert_true(i > 0 || n_late > n_steps / 100);
    }
    print_message("%u of %u steps were late\n", n_late, n_steps);
    assert_true(n_late <= (n_steps + 99) / 100);
    /* And no shorter than that takes; where nothing interrupts them, they grow again. */
    assert_in_range(pace.excess * 1000, 1250, 1350);
    for (int i = 0; i < 12; i++) {
        (void)read_interrupted(&pace, &rng, 1.0, 200000000, &n_late);
        assert_int_equal(n_late, 0);
    }
    assert_in_range(pace.excess * 1000, 1000, 1100);
}

/* Rows are used to the usual step, not to the mean of those that were interrupted. */
static void interrupted_steps_do_not_lengthen_the_rows_bound(void **state)
{
    (void)state;
    firni_pace pace = { .largest = 0 };
    for (uint32_t i = 0; i < 200; i++) {
        firni_pace_learn_plain(&pace, 2, i % 5 == 4 ? 90000000 : 30000000); /* their mean is 42 */
    }
    assert_in_range(pace.classes[1].plain_ns, 29000000, 33000000);
    for (uint32_t i = 0; i < 60; i++) { /* but one that really grows is followed */
        firni_pace_learn_plain(&pace, 2, 90000000);
    }
    assert_in_range(pace.classes[1].plain_ns, 85000000, 90000000);
}

static void no_bound_keeps_a_prompt_from_going_on(void **state)
{
    (void)state;
    firni_pace pace = { .largest = 0 };
    uint32_t n_steps;
    (void)read_prompt(&pace, 2, 1, 0, &n_steps);
    assert_int_equal(n_steps, 1 + PROMPT / FIRNI_PACE_TOKENS_MIN); /* one was to learn what a plain step takes */
    assert_int_equal(firni_pace_tokens(&pace, 2, 0, 0, UINT64_C(1) << 60, CHUNK), FIRNI_PACE_TOKENS_MIN);
    assert_int_equal(firni_pace_tokens(&pace, 2, 0, 1, 0, 3), 3);
}

static void without_rows_or_with_time_enough_chunks_are_whole(void **state)
{
    (void)state;
    firni_pace pace = { .largest = 0 };
    uint32_t n_steps;
    assert_int_equal(firni_pace_tokens(&pace, 0, 0, 1, 0, CHUNK), CHUNK);
    (void)read_prompt(&pace, 0, 1, 0, &n_steps);
    assert_int_equal(n_steps, PROMPT / CHUNK);
    (void)read_prompt(&pace, 2, FIRNI_PACE_NS_NONE, 0, &n_steps);
    assert_int_equal(n_steps, PROMPT / CHUNK);
}

static void time_that_has_passed_counts(void **state)
{
    (void)state;
    firni_pace pace = { .largest = 0 };
    uint32_t n_steps;
    (void)read_prompt(&pace, 2, 500000000, 0, &n_steps);
    const uint32_t n = firni_pace_tokens(&pace, 2, PROMPT, 500000000, 0, CHUNK);
    const uint32_t n_late = firni_pace_tokens(&pace, 2, PROMPT, 500000000, 200000000, CHUNK);
    assert_in_range(n_late, FIRNI_PACE_TOKENS_MIN + 1, n - 1);
}

/* ---- an engine whose clock counts multiply-adds ------------------------------------------------------------------ */

enum { N_SPEAKER = 500, N_LONG = 640, N_SHORT = 64, N_TEST_CHUNK = 64, N_PROMPT_MAX = 30000, N_BEGINNING = 4 };

/* A prompt that comes when the row that decodes has heard so many tokens. */
typedef struct arrival {
    uint32_t after;          /* >= N_BEGINNING, ascending */
    uint32_t n_prompt, n_answer;
    bool is_left;            /* nobody waits for its answer */
} arrival;

typedef struct scene {
    firn_clock clock;
    firn_env env;
    _Atomic(const firn_model *) model;
    test_stack stack;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t n_heard;             /* tokens of the row that decodes; guarded by mutex, */
    uint32_t n_allowed;           /* and so is this: at which it stops the engine */
    uint32_t n_spoken;            /* the same tokens: one each step; engine thread, like the next */
    uint64_t heard_ns[N_SPEAKER];
    uint32_t spoken_at[8];        /* n_spoken when request i heard its first token; 0: not yet */
    atomic_uint n_answered;       /* of the prompts that are waited for */
} scene;

typedef struct reader {
    scene *scene;
    uint32_t index;
    bool is_left;
} reader;

/* Read by the engine, and by whoever submits while the engine waits for that. */
static uint64_t work_clock(void *ctx)
{
    const scene *s = ctx;
    const firn_model *model = atomic_load(&s->model);
    return model != NULL ? 1 + firn_model_multiply_adds(model) : 1;
}

/* The row that decodes. It stops the engine at the token after which the next prompts come. */
static void on_speaker(void *ctx, const firn_event *event)
{
    scene *s = ctx;
    if (event->kind == FIRN_EVENT_END) {
        return;
    }
    s->heard_ns[s->n_spoken++] = work_clock(s);
    (void)pthread_mutex_lock(&s->mutex);
    s->n_heard = s->n_spoken;
    (void)pthread_cond_broadcast(&s->changed);
    while (s->n_heard == s->n_allowed) {
        (void)pthread_cond_wait(&s->changed, &s->mutex);
    }
    (void)pthread_mutex_unlock(&s->mutex);
}

static void on_reader(void *ctx, const firn_event *event)
{
    const reader *r = ctx;
    uint32_t *spoken_at = &r->scene->spoken_at[r->index];
    if (event->kind == FIRN_EVENT_TOKEN) {
        *spoken_at = *spoken_at == 0 ? r->scene->n_spoken : *spoken_at;
    } else if (!r->is_left) {
        atomic_fetch_add(&r->scene->n_answered, 1);
    }
}

static uint64_t submit(scene *s, uint32_t n_prompt, uint32_t n_answer, uint64_t seed,
                       void (*on_event)(void *, const firn_event *), void *ctx)
{
    static firn_token prompt[N_PROMPT_MAX];
    test_rng rng = { .state = seed };
    for (uint32_t i = 0; i < n_prompt; i++) {
        prompt[i] = 5 + test_rng_below(&rng, 250);
    }
    const firn_request request = { .prompt = prompt, .n_prompt = n_prompt, .max_tokens = n_answer,
                                   .ignore_end = true, .on_event = on_event, .ctx = ctx };
    uint64_t id = 0;
    assert_ok(firn_engine_submit(s->stack.engine, &request, &id, NULL));
    return id;
}

/* Lets the engine go on until the row that decodes has heard n_allowed tokens; waits for that. */
static void let_speak(scene *s, uint32_t n_allowed)
{
    (void)pthread_mutex_lock(&s->mutex);
    s->n_allowed = n_allowed;
    (void)pthread_cond_broadcast(&s->changed);
    while (s->n_heard < n_allowed && n_allowed < UINT32_MAX) {
        (void)pthread_cond_wait(&s->changed, &s->mutex);
    }
    (void)pthread_mutex_unlock(&s->mutex);
}

/* One row decodes; then prompts come. Returns when all that are waited for have been answered. */
static void play(scene *s, uint64_t max_itl_ns, const arrival *arrivals, uint32_t n_arrivals)
{
    reader readers[8];
    uint64_t ids[8];
    uint32_t n_awaited = 0;
    *s = (scene){ .clock = { .monotonic_ns = work_clock, .wall_ns = work_clock, .ctx = s },
                  .env = { .clock = &s->clock }, .n_allowed = N_BEGINNING };
    (void)pthread_mutex_init(&s->mutex, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    test_stack_open(&s->stack, &(test_stack_options){
                                   .env = &s->env,
                                   .engine = { .no_prefix_cache = true,
                                               .chunk_tokens_max = N_TEST_CHUNK,
                                               .ctx_tokens_max = N_PROMPT_MAX + N_SPEAKER,
                                               .max_itl_ns = max_itl_ns } });
    atomic_store(&s->model, s->stack.model);
    const uint64_t speaker = submit(s, 8, N_SPEAKER, 1, on_speaker, s);
    for (uint32_t i = 0; i < n_arrivals; i++) {
        let_speak(s, arrivals[i].after);
        readers[i] = (reader){ .scene = s, .index = i, .is_left = arrivals[i].is_left };
        ids[i] = submit(s, arrivals[i].n_prompt, arrivals[i].n_answer, 2 + i, on_reader, &readers[i]);
        n_awaited += !arrivals[i].is_left;
    }
    let_speak(s, UINT32_MAX);
    while (atomic_load(&s->n_answered) < n_awaited) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    firn_engine_cancel(s->stack.engine, speaker);
    for (uint32_t i = 0; i < n_arrivals; i++) {
        firn_engine_cancel(s->stack.engine, ids[i]); /* nothing happens to those that have ended */
    }
    (void)test_stack_close(&s->stack, 10000000000);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->mutex);
    for (uint32_t i = 0; i < n_arrivals; i++) { /* it decoded all the while: each of its tokens is a step */
        assert_true(arrivals[i].is_left || (s->spoken_at[i] > arrivals[i].after && s->spoken_at[i] < N_SPEAKER));
    }
}

static uint64_t longest_wait_ns(const scene *s, uint32_t n_spoken)
{
    uint64_t longest_ns = 0;
    for (uint32_t i = 1; i < n_spoken; i++) {
        const uint64_t ns = s->heard_ns[i] - s->heard_ns[i - 1];
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    return longest_ns;
}

static void a_row_that_decodes_goes_on_while_a_prompt_is_read(void **state)
{
    (void)state;
    static scene s;
    const arrival prompt = { .after = N_BEGINNING, .n_prompt = N_LONG, .n_answer = 1 };
    play(&s, 1, &prompt, 1); /* a bound that is never kept */
    const uint64_t plain_ns = s.heard_ns[3] - s.heard_ns[2];
    /* Here a token costs what a step of one costs: a step has room for the least chunk, and its own token. */
    assert_in_range(longest_wait_ns(&s, s.spoken_at[0]), plain_ns, (1 + FIRNI_PACE_TOKENS_MIN) * plain_ns);
    assert_in_range(s.spoken_at[0], N_LONG / FIRNI_PACE_TOKENS_MIN, N_LONG / FIRNI_PACE_TOKENS_MIN + 8);
    /* With a bound of thirty such steps, and with none to speak of. */
    play(&s, 30 * plain_ns, &prompt, 1);
    assert_in_range(longest_wait_ns(&s, s.spoken_at[0]), 15 * plain_ns, 30 * plain_ns);
    play(&s, FIRNI_PACE_NS_NONE, &prompt, 1);
    assert_in_range(s.spoken_at[0], 4 + N_LONG / N_TEST_CHUNK, 4 + N_LONG / N_TEST_CHUNK + 2);
}

static void a_short_prompt_does_not_wait_for_a_long_one(void **state)
{
    (void)state;
    static scene s;
    const arrival prompts[] = { { .after = N_BEGINNING, .n_prompt = N_LONG, .n_answer = 1 },
                                { .after = N_BEGINNING, .n_prompt = N_SHORT, .n_answer = 1 } };
    play(&s, FIRNI_PACE_NS_NONE, prompts, 2);
    /* Three quarters of each chunk are the short one's, and after it all is the long one's. */
    assert_in_range(s.spoken_at[1], 4 + 2, 4 + 3); /* the first step is a small one, to learn from */
    assert_in_range(s.spoken_at[0], 4 + (N_LONG + N_SHORT) / N_TEST_CHUNK, 4 + (N_LONG + N_SHORT) / N_TEST_CHUNK + 2);
}

/* Of 30,000 tokens 480 have been read; the rest would take 460 steps more. */
static void a_short_prompt_passes_one_of_30000_tokens_that_is_being_read(void **state)
{
    (void)state;
    static scene s;
    const arrival prompts[] = {
        { .after = N_BEGINNING, .n_prompt = N_PROMPT_MAX, .n_answer = 1, .is_left = true },
        { .after = N_BEGINNING + 8, .n_prompt = N_SHORT, .n_answer = 1 },
    };
    play(&s, FIRNI_PACE_NS_NONE, prompts, 2);
    assert_in_range(s.spoken_at[1], prompts[1].after + 2, prompts[1].after + 3);
    assert_int_equal(s.spoken_at[0], 0);
    /* Where rows must hear in time, the chunk is smaller, and the short prompt's share of it the same. */
    const uint64_t plain_ns = s.heard_ns[3] - s.heard_ns[2];
    play(&s, 30 * plain_ns, prompts, 2);
    assert_in_range(s.spoken_at[1], prompts[1].after + 3, prompts[1].after + 6);
}

/* Chunks wait for a plain step of each new size of batch; rows that read are in it too, and bring nothing. */
static void a_prompt_goes_on_when_rows_begin_to_decode_beside_it(void **state)
{
    (void)state;
    static scene s;
    enum { N_JOINED = 300 };
    /* From one row that decodes to two, to four: each of them for far longer than the prompt takes. */
    const arrival prompts[] = {
        { .after = N_BEGINNING, .n_prompt = N_LONG, .n_answer = 1 },
        { .after = N_BEGINNING, .n_prompt = 8, .n_answer = N_JOINED, .is_left = true },
        { .after = N_BEGINNING + 3, .n_prompt = 8, .n_answer = N_JOINED, .is_left = true },
        { .after = N_BEGINNING + 3, .n_prompt = 8, .n_answer = N_JOINED, .is_left = true },
    };
    play(&s, FIRNI_PACE_NS_NONE / 2, prompts, 4); /* a bound that is asked for, and never reached */
    for (uint32_t i = 1; i < 4; i++) {
        assert_in_range(s.spoken_at[i], prompts[i].after + 1, prompts[i].after + 3);
    }
    const uint32_t n_chunks = (N_LONG + 3 * 8 + N_TEST_CHUNK - 1) / N_TEST_CHUNK;
    /* Two of the steps more are plain ones. */
    assert_in_range(s.spoken_at[0], N_BEGINNING + n_chunks + 2, N_BEGINNING + n_chunks + 6);
}

static void a_long_prompt_goes_on_by_its_even_share_beside_short_ones(void **state)
{
    (void)state;
    static scene s;
    /* All but the first have less left at any time: with the whole chunk for the shortest it would come last by far. */
    arrival prompts[8];
    for (uint32_t i = 0; i < 8; i++) {
        prompts[i] = (arrival){ .after = N_BEGINNING, .n_prompt = i == 0 ? 120 : 100, .n_answer = 1 };
    }
    play(&s, FIRNI_PACE_NS_NONE, prompts, 8);
    uint32_t last = 0;
    for (uint32_t i = 1; i < 8; i++) {
        last = s.spoken_at[i] > last ? s.spoken_at[i] : last;
    }
    assert_in_range(s.spoken_at[0], last, last + 2);
    assert_in_range(last, 4 + 820 / N_TEST_CHUNK - 2, 4 + 820 / N_TEST_CHUNK + 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hear_within_four_of_their_steps_and_the_chunk_uses_most_of_that),
        cmocka_unit_test(what_nobody_would_notice_does_not_hold_a_prompt_up),
        cmocka_unit_test(a_given_bound_is_kept_from_the_first_step_on),
        cmocka_unit_test(where_steps_are_interrupted_all_are_planned_shorter_until_the_bound_holds),
        cmocka_unit_test(interrupted_steps_do_not_lengthen_the_rows_bound),
        cmocka_unit_test(no_bound_keeps_a_prompt_from_going_on),
        cmocka_unit_test(without_rows_or_with_time_enough_chunks_are_whole),
        cmocka_unit_test(time_that_has_passed_counts),
        cmocka_unit_test(a_row_that_decodes_goes_on_while_a_prompt_is_read),
        cmocka_unit_test(a_short_prompt_does_not_wait_for_a_long_one),
        cmocka_unit_test(a_short_prompt_passes_one_of_30000_tokens_that_is_being_read),
        cmocka_unit_test(a_prompt_goes_on_when_rows_begin_to_decode_beside_it),
        cmocka_unit_test(a_long_prompt_goes_on_by_its_even_share_beside_short_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
