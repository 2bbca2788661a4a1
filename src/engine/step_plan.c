/*
 * What each row brings to the next step.
 *
 *      rows that decode    one token each, and its guesses
 *      rows that read      a chunk, divided among them: half of it evenly, the other half to whoever has least left
 *
 * So a short prompt does not wait for a long one that came before it, and a long one goes on by its even share whatever
 * comes after it. The chunk is as large as the rows that decode can wait for (pace_impl.h): all of it when there is
 * none.
 */
#include <assert.h>
#include <string.h>

#include "engine/engine_impl.h"

static uint32_t left_of(const firni_sequence *sequence)
{
    assert(sequence->n_tokens > sequence->n_cached);
    return sequence->n_tokens - sequence->n_cached;
}

/* Its prompt was read, and it has heard at least one token. */
static bool is_decoding(const firni_sequence *sequence)
{
    return sequence->n_tokens > sequence->n_prompt && sequence->n_cached + 1 == sequence->n_tokens;
}

uint32_t firni_step_decoding_rows(const firn_engine *engine)
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        n += is_decoding(engine->rows[row]);
    }
    return n;
}

uint32_t firni_step_chunk_tokens(const firn_engine *engine, uint32_t depth_tokens)
{
    const uint32_t n_rows = firni_step_decoding_rows(engine);
    const uint64_t used_ns = n_rows > 0 ? firni_now_ns(engine->env) - engine->heard_ns : 0;
    return firni_pace_tokens(&engine->pace, n_rows, depth_tokens, engine->options.max_itl_ns, used_ns,
                             engine->options.chunk_tokens_max);
}

/* Most tokens that one row may append in one step. */
static uint32_t append_limit(const firn_engine *engine)
{
    uint32_t limit = engine->options.chunk_tokens_max;
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        const uint32_t layer_limit = firn_cache_max_append_tokens(engine->caches[layer]);
        limit = layer_limit < limit ? layer_limit : limit;
    }
    return limit;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The reading row with least left of those that have not been settled, or n_rows. Ties: the one that came first. */
static uint32_t find_shortest(const firn_engine *engine, const uint32_t *is_settled)
{
    uint32_t found = engine->n_rows;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const uint32_t n_left = left_of(engine->rows[row]);
        if (n_left > 1 && !is_settled[row] && (found == engine->n_rows || n_left < left_of(engine->rows[found]))) {
            found = row;
        }
    }
    return found;
}

/* Fills step_counts of the n_reading rows that read. Each gets something, unless the chunk is empty: that never takes
 * more than the step has room for, because a row that reads brings no token of its own. */
static void divide_chunk(firn_engine *engine, uint32_t n_chunk, uint32_t n_reading)
{
    const uint32_t limit = append_limit(engine);
    const uint32_t n_even = n_chunk / 2 / n_reading;
    const uint32_t n_share = n_even > 0 ? n_even : n_chunk > 0;
    uint32_t *is_settled = engine->step_kept; /* not in use before the forward */
    uint32_t n_given = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        is_settled[row] = 0;
        if (left_of(engine->rows[row]) > 1) {
            engine->step_counts[row] = least(least(n_share, limit), left_of(engine->rows[row]));
            n_given += engine->step_counts[row];
        }
    }
    uint32_t n_rest = n_chunk > n_given ? n_chunk - n_given : 0;
    for (uint32_t i = 0; i < n_reading && n_chunk > 0; i++) {
        const uint32_t row = find_shortest(engine, is_settled);
        const firni_sequence *sequence = engine->rows[row];
        const uint32_t n_offered = engine->step_counts[row] + n_rest;
        const uint32_t count =
            firni_publish_chunk(engine, sequence, least(least(n_offered, limit), left_of(sequence)));
        n_rest = n_offered - count;
        engine->step_counts[row] = count;
        is_settled[row] = 1;
    }
}

void firni_step_plan(firn_engine *engine)
{
    uint32_t n_reading = 0, depth = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const firni_sequence *sequence = engine->rows[row];
        const bool is_reading = left_of(sequence) > 1;
        n_reading += is_reading;
        depth = is_reading && sequence->n_cached > depth ? sequence->n_cached : depth;
        engine->step_counts[row] = is_reading ? 0 : 1 + sequence->draft.n_proposed;
        assert(!is_reading || sequence->draft.n_proposed == 0);
    }
    engine->n_chunk = engine->options.chunk_tokens_max; /* what a drafter reads beside it is as much, or as little */
    if (n_reading > 0) {
        engine->n_chunk = firni_step_chunk_tokens(engine, depth);
        engine->stats.n_paced_steps += engine->n_chunk < engine->options.chunk_tokens_max;
        divide_chunk(engine, engine->n_chunk, n_reading);
    }
    uint32_t n_step = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const firni_sequence *sequence = engine->rows[row];
        const uint32_t count = engine->step_counts[row];
        const uint32_t n_left = left_of(sequence);
        memcpy(engine->step_tokens + n_step, sequence->tokens + sequence->n_cached, count * sizeof(firn_token));
        memset(engine->step_wanted + n_step, 0, count);
        if (count >= n_left) {
            /* The last token's, and those behind each guess. */
            memset(engine->step_wanted + n_step + n_left - 1, 1, 1 + sequence->draft.n_proposed);
        }
        n_step += count;
    }
}

void firni_step_learn(firn_engine *engine, uint32_t n_decoding, uint64_t step_ns)
{
    uint32_t n_tokens = 0;
    uint64_t depth_sum = 0;
    for (uint32_t row = 0; row < engine->n_rows; row++) {
        const firni_sequence *sequence = engine->rows[row];
        const uint32_t before = sequence->n_cached - engine->step_kept[row];
        if (before < sequence->n_prompt) {
            n_tokens += engine->step_counts[row];
            depth_sum += (uint64_t)engine->step_counts[row] * before;
        }
    }
    if (n_tokens > 0) {
        firni_pace_learn_prompt(&engine->pace, n_decoding, n_tokens, (uint32_t)(depth_sum / n_tokens), step_ns);
    } else if (n_decoding > 0) { /* others may have waited for this one, to learn what it takes */
        firni_pace_learn_plain(&engine->pace, n_decoding, step_ns);
    }
}
