/*
 * The merging of byte pair encoding: of all neighbouring symbols that can merge, the pair of lowest priority number is
 * merged, the leftmost of equals; again, until none is left.
 *
 * Symbols are a doubly linked list in an array; possible merges lie in a binary heap. A merge is never removed from the
 * heap when one of its sides changes: it is recognised when it comes up, by the length of the pair. A symbol only ever
 * grows to the right, so a pair that begins at the same symbol and is as long as it was is the same pair. n symbols
 * make at most 2n entries at a time and 3n in all: O(n log n), for a word of a million equal letters too.
 *
 * Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016), section 3.2;
 * the queue as in SentencePiece (Kudo, Richardson, 2018).
 */
#include <assert.h>

#include "model/tokenizer_impl.h"

/* A binary heap with the lowest order on top. The capacity was reserved before: pushing never fails. */
static void heap_push(firni_encoder *encoder, size_t *n, firni_merge merge)
{
    assert(*n < encoder->cap_heap);
    firni_merge *heap = encoder->heap;
    size_t at = (*n)++;
    while (at > 0 && heap[(at - 1) / 2].order > merge.order) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = merge;
}

/* Moves the hole at the top down to where the last entry fits. */
static firni_merge heap_pop(firni_encoder *encoder, size_t *n)
{
    assert(*n > 0);
    firni_merge *heap = encoder->heap;
    const firni_merge top = heap[0];
    const firni_merge last = heap[--*n];
    size_t at = 0;
    for (size_t child = 1; child < *n; child = 2 * at + 1) {
        child += child + 1 < *n && heap[child + 1].order < heap[child].order;
        if (heap[child].order >= last.order) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Queues the merge of symbol `left` with its right neighbour, if there is one. */
static void consider(firni_encoder *encoder, const char *text, uint32_t left, firni_join join, size_t *n_heap)
{
    const firni_symbol *symbol = &encoder->symbols[left];
    if (symbol->next == FIRN_TOKEN_NONE) {
        return;
    }
    const firni_symbol *right = &encoder->symbols[symbol->next];
    uint32_t priority = 0;
    firni_merge merge = { .len_bytes = symbol->len_bytes + right->len_bytes };
    if (join(encoder->tokenizer, text, symbol, right, &priority, &merge.token)) {
        merge.order = (uint64_t)priority << 32 | left;
        heap_push(encoder, n_heap, merge);
    }
}

firn_status firni_merge_all(firni_encoder *encoder, const char *text, uint32_t n_symbols, firni_join join)
{
    const firn_status status = firni_encoder_reserve(encoder, (void **)&encoder->heap, &encoder->cap_heap, 0,
                                                     (size_t)n_symbols * 2, sizeof *encoder->heap);
    if (status != FIRN_OK) {
        return status;
    }
    firni_symbol *symbols = encoder->symbols;
    size_t n_heap = 0;
    for (uint32_t i = 0; i + 1 < n_symbols; i++) {
        consider(encoder, text, i, join, &n_heap);
    }
    /* Each merge takes an entry out and puts at most two in, for its new left and right pairs. */
    while (n_heap > 0) {
        const firni_merge merge = heap_pop(encoder, &n_heap);
        const uint32_t at = (uint32_t)merge.order;
        firni_symbol *left = &symbols[at];
        if (left->len_bytes == 0 || left->next == FIRN_TOKEN_NONE ||
            left->len_bytes + symbols[left->next].len_bytes != merge.len_bytes) {
            continue;
        }
        /* The left symbol takes the right one's text and place in the list; its index, and so its rank among
         * equals, stays. */
        firni_symbol *right = &symbols[left->next];
        left->len_bytes = merge.len_bytes;
        left->token = merge.token;
        left->next = right->next;
        right->len_bytes = 0;
        if (left->next != FIRN_TOKEN_NONE) {
            symbols[left->next].prev = at;
        }
        if (left->prev != FIRN_TOKEN_NONE) {
            consider(encoder, text, left->prev, join, &n_heap);
        }
        consider(encoder, text, at, join, &n_heap);
    }
    return FIRN_OK;
}
