/*
 * Sampled answers have the model's own distribution: the first tokens of many seeds, decoded plainly, with guesses from
 * the text and with guesses from a drafter, against probabilities computed from the model's logits alone.
 *
 * A bias leaves four tokens to choose from, so three tokens of an answer have 64 outcomes. The prompt is a de Bruijn
 * sequence of these four: whatever two tokens come last, they stood in it before, so that there always is a guess.
 */
#include <math.h>

#include "engine/draft_rig.h"

#define DRAFTER "models/firn-tiny-draft-q8_0.gguf"

enum {
    LETTERS = 4,
    OUTCOMES = LETTERS * LETTERS * LETTERS,
    N_PROMPT = 1 + LETTERS * LETTERS + 1,
    N_SAMPLES = 1024,
    AT_ONCE = 16
};

static const firn_token letters[LETTERS] = { 262, 280, 300, 320 };
static const float temperature = 4.0f;

static void fill_prompt(firn_token *prompt)
{
    static const uint8_t sequence[LETTERS * LETTERS + 1] = { 0, 0, 1, 0, 2, 0, 3, 1, 1, 2, 1, 3, 2, 2, 3, 3, 0 };
    prompt[0] = 1;
    for (uint32_t i = 0; i < sizeof sequence; i++) {
        prompt[1 + i] = letters[sequence[i]];
    }
}

/* Probabilities of the four tokens after n tokens, from one plain forward. */
static void next_probabilities(firn_model *model, const firn_token *tokens, uint32_t n, double heat, double *out)
{
    enum { LAYERS_MAX = 16 };
    const firn_schema *schema = firn_model_schema(model);
    firn_pool *pool;
    firn_error err;
    firn_cache *caches[LAYERS_MAX];
    assert_true(schema->n_layers <= LAYERS_MAX);
    assert_ok(firn_pool_create(&(firn_pool_options){ .budget_bytes = UINT64_C(64) << 20 }, NULL, &pool, &err));
    for (uint32_t layer = 0; layer < schema->n_layers; layer++) {
        assert_ok(firn_cache_create(&schema->layers[layer], pool, NULL, &caches[layer], &err));
        assert_ok(firn_cache_add_row(caches[layer], &err));
    }
    float *logits = calloc(firn_model_get_info(model)->n_vocab, sizeof *logits);
    const firn_forward_input input = {
        .tokens = tokens, .counts = &n, .n_rows = 1, .caches = caches, .logits = logits
    };
    assert_ok(firn_model_forward(model, &input, &err));
    double sum = 0.0;
    for (uint32_t i = 0; i < LETTERS; i++) {
        out[i] = exp(((double)logits[letters[i]] - (double)logits[letters[0]]) / heat);
        sum += out[i];
    }
    for (uint32_t i = 0; i < LETTERS; i++) {
        out[i] /= sum;
    }
    free(logits);
    for (uint32_t layer = 0; layer < schema->n_layers; layer++) {
        firn_cache_destroy(caches[layer]);
    }
    firn_pool_destroy(pool);
}

/* Of all three-token outcomes. */
static void exact_probabilities(firn_model *model, double heat, double out[OUTCOMES])
{
    firn_token tokens[N_PROMPT + 2];
    double first[LETTERS], second[LETTERS], third[LETTERS];
    fill_prompt(tokens);
    next_probabilities(model, tokens, N_PROMPT, heat, first);
    for (uint32_t a = 0; a < LETTERS; a++) {
        tokens[N_PROMPT] = letters[a];
        next_probabilities(model, tokens, N_PROMPT + 1, heat, second);
        for (uint32_t b = 0; b < LETTERS; b++) {
            tokens[N_PROMPT + 1] = letters[b];
            next_probabilities(model, tokens, N_PROMPT + 2, heat, third);
            for (uint32_t c = 0; c < LETTERS; c++) {
                out[(a * LETTERS + b) * LETTERS + c] = first[a] * second[b] * third[c];
            }
        }
    }
}

/* Pearson's statistic over its critical value at 0.1 % (Wilson and Hilferty's approximation); outcomes that are
 * expected less than five times are one cell. */
static double excess(const uint32_t counts[OUTCOMES], const double p[OUTCOMES])
{
    double statistic = 0.0, rare = 0.0;
    uint32_t n_rare = 0, n_cells = 0;
    for (uint32_t i = 0; i < OUTCOMES; i++) {
        const double expected = p[i] * N_SAMPLES;
        if (expected < 5.0) {
            rare += expected;
            n_rare += counts[i];
        } else {
            statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
            n_cells++;
        }
    }
    if (rare > 0.0) {
        statistic += (n_rare - rare) * (n_rare - rare) / rare;
        n_cells++;
    }
    assert_true(n_cells > 16);
    const double df = n_cells - 1.0;
    const double root = 1.0 - 2.0 / (9.0 * df) + 3.0902 * sqrt(2.0 / (9.0 * df));
    return statistic / (df * root * root * root);
}

static uint32_t letter_of(firn_token token)
{
    for (uint32_t i = 0; i < LETTERS; i++) {
        if (letters[i] == token) {
            return i;
        }
    }
    fail_msg("token %u was forbidden", token);
    return 0;
}

/* The outcomes of seeds 1 .. N_SAMPLES. */
static firn_draft_usage sample(const test_stack_options *options, uint8_t outcomes[N_SAMPLES])
{
    static test_answer answers[AT_ONCE];
    firn_logit_bias biases[LETTERS];
    firn_token prompt[N_PROMPT];
    fill_prompt(prompt);
    for (uint32_t i = 0; i < LETTERS; i++) {
        biases[i] = (firn_logit_bias){ .token = letters[i], .bias = 99.0f };
    }
    test_stack stack;
    test_stack_open(&stack, options);
    for (uint32_t first = 0; first < N_SAMPLES; first += AT_ONCE) {
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            /* One token more than is looked at: guesses reach to the one before the last. */
            firn_request request = { .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 4 };
            request.sampling = (firn_sampling){ .temperature = temperature, .has_seed = true, .seed = 1 + first + i,
                                                .n_biases = LETTERS, .biases = biases };
            firn_error err;
            assert_ok(test_submit(&stack, request, &answers[i], &err));
        }
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            test_wait_end(&answers[i]);
            assert_int_equal(answers[i].n_tokens, 4);
            const firn_token *t = answers[i].tokens;
            outcomes[first + i] =
                (uint8_t)((letter_of(t[0]) * LETTERS + letter_of(t[1])) * LETTERS + letter_of(t[2]));
        }
    }
    const firn_draft_usage usage = wait_idle(&stack).draft;
    (void)test_stack_close(&stack, 1000000000);
    return usage;
}

static void sampled_tokens_have_the_models_distribution(void **state)
{
    (void)state;
    static uint8_t outcomes[3][N_SAMPLES];
    static const test_stack_options options[3] = {
        { .engine = { .chunk_tokens_max = 64 } },
        { .engine = { .chunk_tokens_max = 64, .draft_ngram = true, .draft_always = true } },
        { .engine = { .chunk_tokens_max = 64, .draft_always = true }, .draft_path = DRAFTER },
    };
    double exact[OUTCOMES], hotter[OUTCOMES];
    firn_model *model;
    firn_error err;
    assert_ok(firn_model_open(&(firn_model_options){ .path = "models/firn-tiny-q8_0.gguf" }, NULL, &model, &err));
    exact_probabilities(model, (double)temperature, exact);
    exact_probabilities(model, 1.3 * (double)temperature, hotter);
    firn_model_close(model);
    for (uint32_t kind = 0; kind < 3; kind++) {
        const firn_draft_usage usage = sample(&options[kind], outcomes[kind]);
        uint32_t counts[OUTCOMES] = { 0 };
        for (uint32_t i = 0; i < N_SAMPLES; i++) {
            counts[outcomes[kind][i]]++;
        }
        const double of_model = excess(counts, exact), of_another = excess(counts, hotter);
        print_message("kind %u: %.2f of the critical value, %.2f for another temperature; %u drafted, %u accepted\n",
                      kind, of_model, of_another, (unsigned)usage.drafted_tokens, (unsigned)usage.accepted_tokens);
        assert_true(of_model < 1.0);
        assert_true(of_another > 1.0); /* the test can tell */
        if (kind > 0) {
            /* Both verdicts took part often. */
            assert_true(usage.accepted_tokens > N_SAMPLES / 8);
            assert_true(usage.drafted_tokens - usage.accepted_tokens > N_SAMPLES / 8);
            assert_memory_equal(outcomes[kind], outcomes[0], N_SAMPLES);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampled_tokens_have_the_models_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
