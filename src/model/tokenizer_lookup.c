/*
 * The two hash tables of a tokenizer: bytes to piece, and pair of pieces to merge. Built once, then only read.
 *
 *   piece_slots: [token | none | token | ...]           key: the token's bytes, hashed with XXH3
 *   pair_slots:  [left, right, rank, merged | none...]  key: left and right
 *
 * A merge is stored by the tokens of its two sides, so merging compares numbers, never strings.
 *
 * Only pieces that text can become are in the first (tokenizer_pieces.c decides), so no text and no merge can ever
 * produce a control token.
 */
#include <string.h>

#include <xxhash.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

/* ---- finding ---- */

/* The capacity that holds n entries at most 3/4 full; 0 when that is no 32-bit number. */
static uint32_t capacity_for(uint32_t n)
{
    uint64_t capacity = 16;
    while (capacity * 3 / 4 < n) {
        capacity *= 2;
    }
    return capacity <= UINT32_MAX ? (uint32_t)capacity : 0;
}

/* Tables hold at most 2^25 slots: the low 32 bits of either hash are enough. */
static uint32_t hash_bytes(const char *bytes, uint32_t len_bytes)
{
    return (uint32_t)XXH3_64bits(bytes, len_bytes);
}

/* Multiplication by 2^64 over the golden ratio spreads the key; its high half is the hash (Knuth, TAOCP 3, 6.4). */
static uint32_t hash_pair(firn_token left, firn_token right)
{
    const uint64_t key = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(key >> 32);
}

/* Linear probing; at most 3/4 full, so an empty slot always ends the search. */
firn_token firni_lookup_piece(const firn_tokenizer *tokenizer, const char *bytes, uint32_t len_bytes)
{
    for (uint32_t i = hash_bytes(bytes, len_bytes) & tokenizer->piece_mask;; i = (i + 1) & tokenizer->piece_mask) {
        const firn_token token = tokenizer->piece_slots[i];
        if (token == FIRN_TOKEN_NONE) {
            return FIRN_TOKEN_NONE;
        }
        uint32_t len = 0;
        const char *piece = firni_piece_bytes(tokenizer, token, &len);
        if (len == len_bytes && memcmp(piece, bytes, len) == 0) {
            return token;
        }
    }
}

const firni_pair_slot *firni_lookup_pair(const firn_tokenizer *tokenizer, firn_token left, firn_token right)
{
    for (uint32_t i = hash_pair(left, right) & tokenizer->pair_mask;; i = (i + 1) & tokenizer->pair_mask) {
        const firni_pair_slot *slot = &tokenizer->pair_slots[i];
        if (slot->merged == FIRN_TOKEN_NONE) {
            return NULL;
        }
        if (slot->left == left && slot->right == right) {
            return slot;
        }
    }
}

/* ---- building ---- */

static firn_status build_pieces(firn_tokenizer *tokenizer, const uint8_t *formed, firn_error *err)
{
    const uint32_t capacity = capacity_for(tokenizer->n_tokens);
    tokenizer->piece_slots = firni_calloc(tokenizer->env, capacity, sizeof *tokenizer->piece_slots);
    if (tokenizer->piece_slots == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the table of %u pieces", tokenizer->n_tokens);
    }
    memset(tokenizer->piece_slots, 0xFF, capacity * sizeof *tokenizer->piece_slots);
    tokenizer->piece_mask = capacity - 1;
    for (firn_token token = 0; token < tokenizer->n_tokens; token++) {
        uint32_t len = 0;
        const char *bytes = firni_piece_bytes(tokenizer, token, &len);
        /* Of pieces that are spelled alike the first is the one that text becomes. */
        if (formed[token] == 0 || firni_lookup_piece(tokenizer, bytes, len) != FIRN_TOKEN_NONE) {
            continue;
        }
        uint32_t i = hash_bytes(bytes, len) & tokenizer->piece_mask;
        while (tokenizer->piece_slots[i] != FIRN_TOKEN_NONE) {
            i = (i + 1) & tokenizer->piece_mask;
        }
        tokenizer->piece_slots[i] = token;
    }
    return FIRN_OK;
}

/* The tokens of "left right"; false when it is not two pieces whose concatenation is a piece. scratch has room for the
 * whole merge. */
static bool resolve_merge(const firn_tokenizer *tokenizer, const firni_gguf_string *merge, char *scratch,
                          firni_pair_slot *out)
{
    /* The alphabet holds no space, so the only one is the separator. */
    const char *space = merge->len_bytes == 0 ? NULL : memchr(merge->data, ' ', merge->len_bytes);
    if (space == NULL) {
        return false;
    }
    const size_t len_left_stored = (size_t)(space - merge->data);
    size_t len_left = 0;
    size_t len_right = 0;
    if (!firni_alphabet_decode(merge->data, len_left_stored, scratch, &len_left) ||
        !firni_alphabet_decode(space + 1, merge->len_bytes - len_left_stored - 1, scratch + len_left, &len_right)) {
        return false;
    }
    out->left = firni_lookup_piece(tokenizer, scratch, (uint32_t)len_left);
    out->right = firni_lookup_piece(tokenizer, scratch + len_left, (uint32_t)len_right);
    out->merged = firni_lookup_piece(tokenizer, scratch, (uint32_t)(len_left + len_right));
    return out->left != FIRN_TOKEN_NONE && out->right != FIRN_TOKEN_NONE && out->merged != FIRN_TOKEN_NONE;
}

/* Ranks are the places in the list. A merge that joins no two pieces into a third is a contradiction, not skipped: all
 * later ids would be those of another vocabulary. */
static firn_status build_pairs(firn_tokenizer *tokenizer, const firni_vocab_spec *spec, firn_error *err)
{
    const uint32_t capacity = capacity_for(spec->n_merges);
    size_t len_max = 1;
    for (uint32_t i = 0; i < spec->n_merges; i++) {
        len_max = spec->merges[i].len_bytes > len_max ? spec->merges[i].len_bytes : len_max;
    }
    char *scratch = firni_calloc(tokenizer->env, len_max, 1);
    tokenizer->pair_slots = firni_calloc(tokenizer->env, capacity, sizeof *tokenizer->pair_slots);
    firn_status status = FIRN_OK;
    if (scratch == NULL || tokenizer->pair_slots == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the table of %u merges", spec->n_merges);
        goto done;
    }
    for (uint32_t i = 0; i < capacity; i++) {
        tokenizer->pair_slots[i].merged = FIRN_TOKEN_NONE;
    }
    tokenizer->pair_mask = capacity - 1;
    for (uint32_t rank = 0; rank < spec->n_merges; rank++) {
        firni_pair_slot slot = { .rank = rank };
        if (!resolve_merge(tokenizer, &spec->merges[rank], scratch, &slot)) {
            const int shown = spec->merges[rank].len_bytes < 64 ? (int)spec->merges[rank].len_bytes : 64;
            status = firni_fail(err, FIRN_ERR_FORMAT,
                                "tokenizer.ggml.merges: merge %u \"%.*s\" does not join two pieces into a third", rank,
                                shown, shown == 0 ? "" : spec->merges[rank].data);
            goto done;
        }
        if (firni_lookup_pair(tokenizer, slot.left, slot.right) != NULL) {
            continue; /* said twice: the first rank holds */
        }
        uint32_t i = hash_pair(slot.left, slot.right) & tokenizer->pair_mask;
        while (tokenizer->pair_slots[i].merged != FIRN_TOKEN_NONE) {
            i = (i + 1) & tokenizer->pair_mask;
        }
        tokenizer->pair_slots[i] = slot;
    }
done:
    firni_free(tokenizer->env, scratch);
    return status;
}

firn_status firni_lookup_create(firn_tokenizer *tokenizer, const firni_vocab_spec *spec, const uint8_t *formed,
                                firn_error *err)
{
    firn_status status = build_pieces(tokenizer, formed, err);
    if (status == FIRN_OK && spec->kind == FIRNI_VOCAB_BPE) {
        status = build_pairs(tokenizer, spec, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    for (uint32_t byte = 0; byte < 256 && spec->kind == FIRNI_VOCAB_BPE; byte++) {
        const char text = (char)byte;
        tokenizer->byte_tokens[byte] = firni_lookup_piece(tokenizer, &text, 1);
    }
    return FIRN_OK;
}
