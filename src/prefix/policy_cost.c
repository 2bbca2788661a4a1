/*
 * Leaves go first that save the least computation for the memory they take, aged by a clock.
 *
 * GreedyDual-Size (Cao and Irani, Cost-Aware WWW Proxy Caching Algorithms, USITS 1997, section 4): each thing has the
 * rank  clock at its last use + cost / bytes, the smallest leaves, and the clock is then set to its rank. So what is
 * not used again sinks below all that is used, however dear it once was.
 *
 * The cost is what computing the tokens again takes. A token's share of the matrix products is the same at every depth,
 * its attention grows with the tokens before it; both are equal at about DEPTH_EQUAL tokens (products take 24 w^2
 * operations a layer, attention 4 w per token before it, which gives 6 w for a model of width w). A checkpoint saves
 * all tokens since the one before it, and takes as many bytes as thousands of tokens do.
 */
#include "prefix/tree_impl.h"

#define DEPTH_EQUAL 16384u
#define RANK_UNIT   1024.0 /* rank of a whole block at the very beginning: ranks are whole numbers */
#define RANK_MAX    9007199254740992.0 /* of one use: 2^53, so that a double holds it exactly */

static uint64_t rank(const firni_use *use)
{
    const double n = use->n_tokens, middle = use->first_token + n / 2;
    const double cost = n / FIRN_BLOCK_TOKENS * (1.0 + middle / DEPTH_EQUAL);
    const double bytes = (double)(use->bytes > 0 ? use->bytes : 1);
    const double worth = cost * RANK_UNIT * ((double)use->unit_bytes / bytes);
    const uint64_t added = (uint64_t)(worth < RANK_MAX ? worth : RANK_MAX);
    return use->clock < UINT64_MAX - added ? use->clock + added : UINT64_MAX;
}

/* Equal ranks are common, since the clock stands still between two evictions. */
static bool leaves_before(const firni_node *a, const firni_node *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->used < b->used;
}

const firni_policy firni_policy_cost = { .name = "cost", .leaves_before = leaves_before, .rank = rank };
