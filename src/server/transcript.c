/*
 * The parts of an answer that all wire formats share: usage, the explanation of the cache, log-probabilities.
 */
#include <math.h>
#include <string.h>

#include "server/transcript.h"

/* What the API's servers send for a probability of zero, which JSON's numbers can not express as a logarithm. */
#define LOGPROB_MIN (-9999.0)

const char *firni_finish_name(firn_finish finish)
{
    return finish == FIRN_FINISH_STOP ? "stop" : "length";
}

json_t *firni_usage_json(const firn_usage *usage)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}}",
                     "prompt_tokens", (json_int_t)usage->prompt_tokens,
                     "completion_tokens", (json_int_t)usage->completion_tokens,
                     "total_tokens", (json_int_t)usage->prompt_tokens + (json_int_t)usage->completion_tokens,
                     "prompt_tokens_details",
                     "cached_tokens", (json_int_t)usage->cache.n_tokens);
}

json_t *firni_usage_chunk_json(const firni_answer *answer, const char *object)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:[], s:o, s:o}", "id", answer->id, "object", object,
                     "created", (json_int_t)answer->created_s, "model", answer->model,
                     "system_fingerprint", answer->fingerprint, "choices",
                     "usage", firni_usage_json(&answer->usage), "firn", firni_cache_json(answer));
}

/* Microsecond resolution: what is below is noise, and would be printed with all its digits. */
static double milliseconds(uint64_t ns)
{
    return (double)(ns / 1000u) / 1000.0;
}

/* How the request stood to its session, and what it did not generate again. */
static bool add_kept(json_t *object, const firn_usage *usage)
{
    static const char *const states[] = { "none", "new", "continued", "branched" };
    bool ok = true;
    if (usage->session != FIRN_SESSION_NONE) {
        ok = json_object_set_new(object, "session",
                                 json_pack("{s:s, s:I}", "state", states[usage->session], "tokens",
                                           (json_int_t)usage->session_tokens)) == 0;
    }
    return ok && (usage->resumed_tokens == 0 ||
                  json_object_set_new(object, "resumed_tokens", json_integer((json_int_t)usage->resumed_tokens)) == 0);
}

json_t *firni_cache_json(const firni_answer *answer)
{
    const firn_usage *usage = &answer->usage;
    const firn_lease_info *cache = &usage->cache;
    const firn_draft_usage *draft = &usage->draft;
    json_t *object = json_pack("{s:I, s:I, s:I, s:I, s:s, s:I, s:b, s:f, s:f, s:f, s:f, s:{s:I, s:I, s:I, s:f}}",
                               "ram", (json_int_t)cache->ram_tokens,
                               "disk", (json_int_t)cache->disk_tokens,
                               "below", (json_int_t)cache->below_tokens,
                               "computed", (json_int_t)usage->prompt_tokens - (json_int_t)cache->n_tokens,
                               "reason", firn_reason_name(cache->reason),
                               "first_divergence", (json_int_t)cache->first_divergence,
                               "diverged", (int)cache->diverged,
                               "restore_ms", milliseconds(cache->restore_ns),
                               "prefill_ms", milliseconds(usage->prefill_ns),
                               "first_token_ms", milliseconds(usage->first_token_ns),
                               "total_ms", milliseconds(usage->total_ns),
                               "draft", "rounds", (json_int_t)draft->n_rounds,
                               "drafted", (json_int_t)draft->drafted_tokens,
                               "accepted", (json_int_t)draft->accepted_tokens,
                               "tokens_per_round",
                               draft->n_rounds > 0 ? (double)draft->round_tokens / (double)draft->n_rounds : 0.0);
    if (object != NULL && !add_kept(object, usage)) {
        json_decref(object);
        return NULL;
    }
    if (object != NULL && cache->diverged && cache->first_divergence < answer->n_prompt) {
        /* Both sides of the first difference, readable: the answer to "why was this prompt not cached?" */
        const firn_token asked = answer->prompt[cache->first_divergence];
        json_t *tokens = json_pack("{s:{s:I, s:o}, s:{s:I, s:o}}", "stored", "id", (json_int_t)cache->stored_token,
                                   "text", firni_token_text(answer->tokenizer, cache->stored_token), "prompt", "id",
                                   (json_int_t)asked, "text", firni_token_text(answer->tokenizer, asked));
        if (tokens == NULL || json_object_set_new(object, "difference", tokens) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

json_t *firni_logprob_json(float logprob)
{
    return json_real(isfinite(logprob) && (double)logprob > LOGPROB_MIN ? (double)logprob : LOGPROB_MIN);
}

json_t *firni_token_text(const firn_tokenizer *tokenizer, firn_token token)
{
    uint32_t n_bytes = 0;
    const char *bytes = firn_tokenizer_piece(tokenizer, token, &n_bytes);
    return bytes != NULL ? firni_valid_text(bytes, n_bytes) : json_string("");
}

void firni_sse_data_new(firni_buffer *out, json_t *value)
{
    firni_buffer_text(out, "data: ");
    firni_buffer_json_new(out, value); /* compact JSON has no newline, so one data line is enough */
    firni_buffer_text(out, "\n\n");
}
