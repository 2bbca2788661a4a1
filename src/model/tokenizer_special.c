/*
 * Finding special tokens in text: leftmost, longest.
 *
 * The tokens are kept in the order of their bytes. Those that agree with the text so far are then one contiguous range,
 * which each further byte narrows by two binary searches; so the array works as a trie, whatever the number of tokens
 * (Gemma has thousands that begin alike).
 */
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

#define START_USER_DEFINED 1u
#define START_OTHER        2u

/* What sorting needs of one token. */
typedef struct special {
    const char *bytes;
    uint32_t len_bytes;
    firn_token token;
} special;

/* By bytes as unsigned numbers, shorter first, then by id: what lower_bound() and match() rely on. */
static int compare_specials(const void *a, const void *b)
{
    const special *left = a;
    const special *right = b;
    const uint32_t shorter = left->len_bytes < right->len_bytes ? left->len_bytes : right->len_bytes;
    const int order = memcmp(left->bytes, right->bytes, shorter);
    if (order != 0) {
        return order;
    }
    if (left->len_bytes != right->len_bytes) {
        return left->len_bytes < right->len_bytes ? -1 : 1;
    }
    return left->token < right->token ? -1 : left->token > right->token;
}

static bool is_matched_in_text(const firn_tokenizer *tokenizer, firn_token token)
{
    const uint8_t type = tokenizer->types[token];
    return (type == FIRNI_PIECE_CONTROL || type == FIRNI_PIECE_UNKNOWN || type == FIRNI_PIECE_USER_DEFINED) &&
           tokenizer->starts[token + 1] > tokenizer->starts[token];
}

firn_status firni_special_create(firn_tokenizer *tokenizer, firn_error *err)
{
    uint32_t n = 0;
    for (firn_token token = 0; token < tokenizer->n_tokens; token++) {
        n += is_matched_in_text(tokenizer, token);
    }
    if (n == 0) {
        return FIRN_OK;
    }
    special *sorted = firni_calloc(tokenizer->env, n, sizeof *sorted);
    tokenizer->specials = firni_calloc(tokenizer->env, n, sizeof *tokenizer->specials);
    if (sorted == NULL || tokenizer->specials == NULL) {
        firni_free(tokenizer->env, sorted);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %u special tokens", n);
    }
    for (firn_token token = 0; token < tokenizer->n_tokens; token++) {
        if (!is_matched_in_text(tokenizer, token)) {
            continue;
        }
        special *entry = &sorted[tokenizer->n_specials++];
        entry->token = token;
        entry->bytes = firni_piece_bytes(tokenizer, token, &entry->len_bytes);
        tokenizer->special_starts[(unsigned char)entry->bytes[0]] |=
            tokenizer->types[token] == FIRNI_PIECE_USER_DEFINED ? START_USER_DEFINED : START_OTHER;
    }
    qsort(sorted, n, sizeof *sorted, compare_specials);
    for (uint32_t i = 0; i < n; i++) {
        tokenizer->specials[i] = sorted[i].token;
    }
    firni_free(tokenizer->env, sorted);
    return FIRN_OK;
}

/* The first index in [low, high) whose byte at `depth` is at least `least`; all in the range agree before depth, and
 * one that ends there sorts first. */
static uint32_t lower_bound(const firn_tokenizer *tokenizer, uint32_t low, uint32_t high, uint32_t depth,
                            uint32_t least)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        uint32_t len = 0;
        const char *bytes = firni_piece_bytes(tokenizer, tokenizer->specials[middle], &len);
        if (len > depth && (unsigned char)bytes[depth] >= least) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

firn_token firni_special_match(const firn_tokenizer *tokenizer, const char *text, size_t len_bytes, bool parse_special)
{
    /* Nearly every position of a text is done with here. */
    const unsigned wanted = parse_special ? START_USER_DEFINED | START_OTHER : START_USER_DEFINED;
    if (len_bytes == 0 || (tokenizer->special_starts[(unsigned char)text[0]] & wanted) == 0) {
        return FIRN_TOKEN_NONE;
    }
    firn_token found = FIRN_TOKEN_NONE;
    uint32_t low = 0;
    uint32_t high = tokenizer->n_specials;
    for (uint32_t depth = 0; low < high && depth < len_bytes; depth++) {
        const unsigned char byte = (unsigned char)text[depth];
        low = lower_bound(tokenizer, low, high, depth, byte);
        high = lower_bound(tokenizer, low, high, depth, (uint32_t)byte + 1);
        if (low == high) {
            break;
        }
        /* A token that ends here stands first in the range; of two spelled alike, the lower id. */
        const firn_token first = tokenizer->specials[low];
        const bool ends = tokenizer->starts[first + 1] - tokenizer->starts[first] == depth + 1;
        if (ends && (parse_special || tokenizer->types[first] == FIRNI_PIECE_USER_DEFINED)) {
            found = first;
        }
    }
    return found;
}

firn_token firni_special_exact(const firn_tokenizer *tokenizer, const char *text)
{
    const size_t len_bytes = strlen(text);
    const firn_token token = firni_special_match(tokenizer, text, len_bytes, true);
    if (token == FIRN_TOKEN_NONE || tokenizer->starts[token + 1] - tokenizer->starts[token] != len_bytes) {
        return FIRN_TOKEN_NONE;
    }
    return token;
}
