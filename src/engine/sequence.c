/*
 * One request: its copy, its tokens, its events. Knows nothing of rows, memory or other requests.
 */
#include <assert.h>
#include <string.h>

#include "engine/engine_impl.h"

firn_status firni_sequence_create(firn_engine *engine, const firn_request *request, uint32_t max_tokens, uint64_t id,
                                  firni_sequence **out, firn_error *err)
{
    const firn_env *env = engine->env;
    const firn_tokenizer *tokenizer = firn_model_tokenizer(engine->options.model);
    *out = NULL;
    firn_status status = FIRN_ERR_NO_MEMORY;
    firni_sequence *sequence = firni_calloc(env, 1, sizeof *sequence);
    if (sequence == NULL) {
        goto fail;
    }
    *sequence = (firni_sequence){
        .id = id,
        .env = env,
        .n_prompt = request->n_prompt,
        .n_tokens = request->n_prompt,
        .max_tokens = max_tokens,
        .ignore_end = request->ignore_end,
        .cache = request->no_cache ? (firn_cache_policy){ .no_read = true, .store = FIRN_STORE_NONE } : request->cache,
        .only_prefill = request->only_prefill,
        .pin_until_wall_ns = request->pin_until_wall_ns,
        .n_logprobs = request->n_logprobs,
        .on_event = request->on_event,
        .ctx = request->ctx,
        .submitted_ns = firni_now_ns(env),
        .usage = { .prompt_tokens = request->n_prompt },
    };
    sequence->tokens = firni_calloc(env, (size_t)request->n_prompt + max_tokens, sizeof *sequence->tokens);
    sequence->ns = firni_strdup(env, request->ns != NULL ? request->ns : "");
    sequence->stops = firni_calloc(env, (size_t)request->n_stops + 1, sizeof *sequence->stops);
    sequence->pin = request->pin != NULL ? firni_strdup(env, request->pin) : NULL;
    sequence->session = request->session != NULL ? firni_strdup(env, request->session) : NULL;
    if (sequence->tokens == NULL || sequence->ns == NULL || sequence->stops == NULL ||
        (request->pin != NULL && sequence->pin == NULL) || (request->session != NULL && sequence->session == NULL)) {
        goto fail;
    }
    memcpy(sequence->tokens, request->prompt, request->n_prompt * sizeof *sequence->tokens);
    for (uint32_t i = 0; i < request->n_stops; i++) {
        sequence->stops[i] = firni_strdup(env, request->stops[i]);
        if (sequence->stops[i] == NULL) {
            goto fail;
        }
        sequence->n_stops++;
    }
    firn_sampling sampling = request->sampling;
    if (!sampling.has_seed) {
        sampling.has_seed = true;
        sampling.seed = sequence->submitted_ns ^ (id * 0x9e3779b97f4a7c15u);
    }
    firni_session_begin(engine, sequence);
    firni_generation_begin(engine, request, sequence, &sampling.seed);
    status = firn_sampler_create(&sampling, engine->n_vocab, env, &sequence->sampler, err);
    if (status == FIRN_OK) {
        status = firni_text_stream_create((const char *const *)sequence->stops, sequence->n_stops, env,
                                          &sequence->stream, err);
    }
    if (status != FIRN_OK) {
        firni_sequence_destroy(sequence);
        return status;
    }
    if (request->is_new_text && firn_tokenizer_strips_leading_space(tokenizer)) {
        firni_text_stream_strip_leading_space(sequence->stream);
    }
    for (uint32_t i = 0; i < sequence->n_prompt; i++) {
        firn_sampler_accept(sequence->sampler, sequence->tokens[i], true);
    }
    *out = sequence;
    return FIRN_OK;

fail:
    firni_sequence_destroy(sequence);
    return firni_fail(err, status, "no memory for a request of %u prompt tokens and %u to generate", request->n_prompt,
                      max_tokens);
}

void firni_sequence_destroy(firni_sequence *sequence)
{
    if (sequence == NULL) {
        return;
    }
    const firn_env *env = sequence->env;
    assert(sequence->lease == NULL && sequence->draft.lease == NULL && sequence->started == NULL);
    firni_free(env, sequence->first_logits);
    firn_sampler_destroy(sequence->sampler);
    firni_text_stream_destroy(sequence->stream);
    for (uint32_t i = 0; i < sequence->n_stops; i++) {
        firni_free(env, sequence->stops[i]);
    }
    firni_free(env, sequence->stops);
    firni_generation_destroy_keep(sequence);
    firni_free(env, sequence->pin);
    firni_free(env, sequence->session);
    firni_free(env, sequence->ns);
    firni_free(env, sequence->tokens);
    firni_free(env, sequence);
}

void firni_sequence_end(firni_sequence *sequence, firn_finish finish, const char *stop_string, const char *text,
                        size_t len_text, const firn_error *error)
{
    if (sequence->state == FIRNI_SEQUENCE_ENDED) {
        return;
    }
    sequence->state = FIRNI_SEQUENCE_ENDED;
    sequence->finish = finish;
    sequence->usage.total_ns = firni_now_ns(sequence->env) - sequence->submitted_ns;
    const firn_event event = {
        .kind = FIRN_EVENT_END,
        .token = FIRN_TOKEN_NONE,
        .text = text != NULL ? text : "",
        .len_text = len_text,
        .finish = finish,
        .stop_string = stop_string,
        .usage = &sequence->usage,
        .error = error,
    };
    sequence->on_event(sequence->ctx, &event);
}

static void end_with_held_text(firni_sequence *sequence, firn_finish finish)
{
    const char *text;
    size_t len_text;
    firni_text_stream_end(sequence->stream, &text, &len_text);
    firni_sequence_end(sequence, finish, NULL, text, len_text, NULL);
}

static void take(firni_sequence *sequence, firn_token token, const firn_logprobs *logprobs,
                 const firn_tokenizer *tokenizer)
{
    if (sequence->usage.completion_tokens == 0) {
        sequence->usage.first_token_ns = firni_now_ns(sequence->env) - sequence->submitted_ns;
    }
    if (!sequence->ignore_end && firn_tokenizer_is_end(tokenizer, token)) {
        end_with_held_text(sequence, FIRN_FINISH_STOP);
        return;
    }
    sequence->tokens[sequence->n_tokens++] = token;
    sequence->usage.completion_tokens++;
    firn_sampler_accept(sequence->sampler, token, false);

    uint32_t len_piece = 0;
    const char *piece = "";
    if (!firn_tokenizer_is_control(tokenizer, token)) {
        piece = firn_tokenizer_piece(tokenizer, token, &len_piece);
    }
    firn_event event = {
        .kind = FIRN_EVENT_TOKEN,
        .token = token,
        .logprobs = sequence->n_logprobs > 0 ? logprobs : NULL,
    };
    uint32_t stop_index = 0;
    const bool stopped =
        firni_text_stream_push(sequence->stream, piece, len_piece, &event.text, &event.len_text, &stop_index);
    sequence->on_event(sequence->ctx, &event);
    if (stopped) {
        firni_sequence_end(sequence, FIRN_FINISH_STOP, sequence->stops[stop_index], NULL, 0, NULL);
    } else if (sequence->usage.completion_tokens >= sequence->max_tokens) {
        end_with_held_text(sequence, FIRN_FINISH_LENGTH);
    }
}

void firni_sequence_take_token(firni_sequence *sequence, firn_token token, const firn_logprobs *logprobs,
                               const firn_tokenizer *tokenizer)
{
    assert(sequence->n_cached == sequence->n_tokens);
    take(sequence, token, logprobs, tokenizer);
}

void firni_sequence_replay_token(firni_sequence *sequence, firn_token token, const firn_tokenizer *tokenizer)
{
    assert(sequence->state == FIRNI_SEQUENCE_WAITING && sequence->n_logprobs == 0);
    take(sequence, token, NULL, tokenizer);
}
