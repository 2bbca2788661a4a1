/*
 * Generated tokens with their text, in growing arrays that are reused from chunk to chunk.
 */
#include <assert.h>

#include "base/base_impl.h"
#include "server/transcript.h"

#define PIECES_MIN 32u

void firni_pieces_init(firni_pieces *pieces, const firn_env *env)
{
    *pieces = (firni_pieces){ .env = env };
    firni_buffer_init(&pieces->text, env);
}

void firni_pieces_deinit(firni_pieces *pieces)
{
    firni_free(pieces->env, pieces->tokens);
    firni_free(pieces->env, pieces->text_ends);
    firni_free(pieces->env, pieces->logprobs);
    firni_buffer_deinit(&pieces->text);
    *pieces = (firni_pieces){ .env = pieces->env };
}

void firni_pieces_clear(firni_pieces *pieces)
{
    pieces->n_tokens = 0;
    pieces->text.len = 0;
}

/* Grows one array; the old one stays when memory is refused. */
static bool grow(const firni_pieces *pieces, void **array, uint32_t n_new, size_t element_bytes)
{
    void *grown = firni_grow(pieces->env, *array, pieces->n_tokens, n_new, element_bytes);
    if (grown == NULL) {
        return false;
    }
    *array = grown;
    return true;
}

/* Room for one more token. An array that grew before another failed is merely larger than cap says. */
static bool reserve_token(firni_pieces *pieces, bool with_logprobs)
{
    if (with_logprobs && pieces->logprobs == NULL) {
        assert(pieces->n_tokens == 0); /* all tokens of an answer have logprobs, or none */
        pieces->cap = 0;
    }
    if (pieces->n_tokens < pieces->cap) {
        return true;
    }
    const uint32_t cap = pieces->cap == 0 ? PIECES_MIN : pieces->cap * 2;
    void *tokens = pieces->tokens, *ends = pieces->text_ends, *logprobs = pieces->logprobs;
    bool ok = grow(pieces, &tokens, cap, sizeof *pieces->tokens);
    pieces->tokens = tokens;
    ok = ok && grow(pieces, &ends, cap, sizeof *pieces->text_ends);
    pieces->text_ends = ends;
    ok = ok && (!with_logprobs || grow(pieces, &logprobs, cap, sizeof *pieces->logprobs));
    pieces->logprobs = logprobs;
    pieces->cap = ok ? cap : pieces->cap;
    return ok;
}

bool firni_pieces_add(firni_pieces *pieces, firn_token token, const char *text, size_t len_text,
                      const firn_logprobs *logprobs)
{
    if (!reserve_token(pieces, logprobs != NULL)) {
        return false;
    }
    firni_buffer_append(&pieces->text, text, len_text);
    if (pieces->text.failed) {
        return false;
    }
    pieces->tokens[pieces->n_tokens] = token;
    pieces->text_ends[pieces->n_tokens] = pieces->text.len;
    if (logprobs != NULL) {
        pieces->logprobs[pieces->n_tokens] = *logprobs;
    }
    pieces->n_tokens++;
    return true;
}

/* Token by token rather than by whole arrays: it runs once per wake-up of a connection, over a handful of tokens. */
bool firni_pieces_append(firni_pieces *pieces, const firni_pieces *from)
{
    for (uint32_t i = 0; i < from->n_tokens; i++) {
        const firni_piece piece = firni_pieces_at(from, i);
        if (!firni_pieces_add(pieces, piece.token, piece.text, piece.len_text, piece.logprobs)) {
            return false;
        }
    }
    const firni_piece tail = firni_pieces_tail(from);
    firni_buffer_append(&pieces->text, tail.text, tail.len_text);
    return !pieces->text.failed;
}

firni_piece firni_pieces_at(const firni_pieces *pieces, uint32_t index)
{
    assert(index < pieces->n_tokens);
    const size_t start = index > 0 ? pieces->text_ends[index - 1] : 0;
    return (firni_piece){
        .token = pieces->tokens[index],
        .text = pieces->text.data != NULL ? pieces->text.data + start : "",
        .len_text = pieces->text_ends[index] - start,
        .logprobs = pieces->logprobs != NULL ? &pieces->logprobs[index] : NULL,
    };
}

firni_piece firni_pieces_tail(const firni_pieces *pieces)
{
    const size_t start = pieces->n_tokens > 0 ? pieces->text_ends[pieces->n_tokens - 1] : 0;
    return (firni_piece){
        .token = FIRN_TOKEN_NONE,
        .text = pieces->text.data != NULL ? pieces->text.data + start : "",
        .len_text = pieces->text.len - start,
    };
}
