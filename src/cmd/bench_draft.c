/*
 * Speculation's speed-up: the same greedy answer, decoded plainly and with guesses, on a text that repeats itself and
 * on one that does not.
 *
 *   1. both ways must give the same tokens, or nothing is timed; this also warms everything up
 *   2. then they alternate, n_runs times each, so that both see the same weather on the machine; what is reported is
 *      the median of the pairs' ratios
 *
 * Timed is the answer after its first token: a prompt is read no faster by guessing. A model with random weights, which
 * writes noise, shows the cost of guesses that fail, not their use.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"

#define STOP_NS UINT64_C(1000000000)

/* A list with one form, as agents read and write all day; and prose. Both are written for this. */
static const char *const texts[FIRNI_BENCH_DRAFT_TEXTS] = {
    "The first son of the king was a lord of the land, and the land of the first son was in the north of the kingdom. "
    "The second son of the king was a lord of the land, and the land of the second son was in the south of the "
    "kingdom. "
    "The third son of the king was a lord of the land, and the land of the third son was in the east of the kingdom. "
    "The fourth son of the king was a lord of the land, and the land of the fourth son was in the west of the kingdom. "
    "The fifth son of the king was a lord of the land, and",
    "When the rain had stopped she opened the window and looked across the garden to the road, where nobody had passed "
    "since the morning, and asked herself whether the letter could have been delayed by the weather,",
};

static const char *const names[FIRNI_BENCH_DRAFT_TEXTS] = { "repeating text", "prose" };

/* One request on an engine of its own; the models stay. */
static firn_status decode(const firni_bench *bench, const firn_token *prompt, uint32_t n_prompt, bool drafts,
                          firni_bench_answer *a, firn_error *err)
{
    const firni_stack *stack = bench->stack;
    const firn_engine_options options = {
        .model = stack->model,
        .pool = stack->pool,
        .batch_rows_max = 1,
        .chunk_tokens_max = bench->options.n_chunk,
        .no_prefix_cache = true,
        .draft_ngram = drafts && stack->draft_model == NULL,
        .draft_model = drafts ? stack->draft_model : NULL,
        .draft_always = bench->options.draft_always,
        .draft_tokens_max = bench->options.n_draft_max,
    };
    firn_engine *engine = NULL;
    firn_status status = firn_engine_create(&options, bench->env, &engine, err);
    if (status == FIRN_OK) {
        status = firni_bench_ask(engine, prompt, n_prompt, a, err);
    }
    firn_engine_destroy(engine, STOP_NS, NULL);
    return status;
}

static double tokens_per_second(const firni_bench_answer *a)
{
    return (double)(a->n_tokens - 1) / ((double)(a->usage.total_ns - a->usage.first_token_ns) * 1e-9);
}

static firn_status measure_text(firni_bench *bench, const firn_token *prompt, uint32_t n_prompt,
                                firni_bench_answer both[2], firni_bench_draft *out, firn_error *err)
{
    /* Run 0 is the comparison. */
    for (uint32_t run = 0; run <= bench->options.n_runs; run++) {
        for (uint32_t on = 0; on < 2; on++) {
            const firn_status status = decode(bench, prompt, n_prompt, on == 1, &both[on], err);
            if (status != FIRN_OK) {
                return status;
            }
        }
        if (both[0].n_tokens != both[0].n_max || both[1].n_tokens != both[0].n_tokens ||
            memcmp(both[0].tokens, both[1].tokens, both[0].n_tokens * sizeof(firn_token)) != 0) {
            return firni_fail(err, FIRN_ERR_STATE, "the answer with guesses differs from the plain one (%s)",
                              out->name);
        }
        if (run > 0) {
            firni_sample_add(&out->plain_rate, tokens_per_second(&both[0]));
            firni_sample_add(&out->drafted_rate, tokens_per_second(&both[1]));
            firni_sample_add(&out->ratio, tokens_per_second(&both[1]) / tokens_per_second(&both[0]));
        }
    }
    out->usage = both[1].usage.draft;
    return FIRN_OK;
}

firn_status firni_bench_measure_draft(firni_bench *bench, firn_error *err)
{
    firni_bench_answer both[2];
    bool has_memory = true;
    for (uint32_t on = 0; on < 2; on++) {
        both[on] = (firni_bench_answer){ .n_max = bench->options.n_draft };
        both[on].tokens = firni_calloc(bench->env, both[on].n_max, sizeof *both[on].tokens);
        has_memory = has_memory && both[on].tokens != NULL;
    }
    firn_status status = has_memory ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for two answers");
    for (uint32_t i = 0; i < FIRNI_BENCH_DRAFT_TEXTS && status == FIRN_OK; i++) {
        const firn_encode_options encode = { .add_bos = true };
        firn_token *prompt = NULL;
        uint32_t n_prompt = 0;
        bench->draft[i] = (firni_bench_draft){ .name = names[i] };
        status = firn_tokenizer_encode(firn_model_tokenizer(bench->stack->model), texts[i], strlen(texts[i]), &encode,
                                       &prompt, &n_prompt, err);
        if (status == FIRN_OK) {
            status = measure_text(bench, prompt, n_prompt, both, &bench->draft[i], err);
        }
        free(prompt);
    }
    for (uint32_t on = 0; on < 2; on++) {
        firni_free(bench->env, both[on].tokens);
    }
    return status;
}
