/*
 * Last logits: what the model said behind the last token of a prompt. With them the same prompt again needs no forward:
 * its state is in the tree, and its first token is sampled from these numbers.
 *
 * A short list, the latest first, bounded by count and bytes. Tokens are compared, never only hashed. Entries are
 * immutable and counted, because a lease or a store may hold one that the list has let go of. Whether the state is
 * still there is the lookup's question: logits without state serve nobody, and leave the list in their turn. How they
 * get to the tier and back is logits_tier.c's.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

enum { LOGITS_MAX = 64 };

static uint64_t bytes_of(const firni_logits *logits)
{
    return sizeof *logits + (uint64_t)logits->n_logits * sizeof *logits->values +
           (uint64_t)logits->n_tokens * sizeof *logits->tokens;
}

/* A state of fixed size is kept at the count that the logits belong to: firni_checkpoints_retain asks for the mark. */
static void mark_checkpoint(const firn_prefix *prefix, const firni_logits *logits, bool is_kept)
{
    if (prefix->families.n_fixed == 0) {
        return;
    }
    const firni_match match =
        firni_match_tokens(firni_root_find(prefix, logits->ns), logits->tokens, logits->n_tokens);
    firni_checkpoint *checkpoint = match.n_matched == logits->n_tokens && match.node != NULL
                                       ? firni_checkpoint_find(match.node, logits->n_tokens)
                                       : NULL;
    if (checkpoint != NULL) {
        checkpoint->has_logits = is_kept;
    }
}

static void logits_free(const firn_env *env, firni_logits *logits)
{
    firni_free(env, logits->ns);
    firni_free(env, logits->tokens);
    firni_free(env, logits->values);
    firni_free(env, logits);
}

firni_logits *firni_logits_create(const firn_env *env, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                                  uint32_t n_logits)
{
    firni_logits *logits = firni_calloc(env, 1, sizeof *logits);
    if (logits == NULL) {
        return NULL;
    }
    *logits = (firni_logits){ .n_refs = 1, .n_tokens = n_tokens, .n_logits = n_logits };
    logits->ns = firni_strdup(env, ns);
    logits->tokens = firni_calloc(env, n_tokens, sizeof *logits->tokens);
    logits->values = firni_calloc(env, n_logits, sizeof *logits->values);
    if (logits->ns == NULL || logits->tokens == NULL || logits->values == NULL) {
        logits_free(env, logits);
        return NULL;
    }
    memcpy(logits->tokens, tokens, n_tokens * sizeof *tokens);
    return logits;
}

firni_logits *firni_logits_retain(firni_logits *logits)
{
    logits->n_refs++;
    return logits;
}

void firni_logits_release(const firn_env *env, firni_logits *logits)
{
    if (logits != NULL && --logits->n_refs == 0) {
        logits_free(env, logits);
    }
}

static bool is_of(const firni_logits *logits, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    return logits->n_tokens == n_tokens && strcmp(logits->ns, ns) == 0 &&
           memcmp(logits->tokens, tokens, n_tokens * sizeof *tokens) == 0;
}

static firni_logits **find_link(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    firni_logits **link = &prefix->logits;
    while (*link != NULL && !is_of(*link, tokens, n_tokens, ns)) {
        link = &(*link)->next;
    }
    return link;
}

firni_logits *firni_logits_find(const firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    firni_logits *logits = prefix->logits;
    while (logits != NULL && !is_of(logits, tokens, n_tokens, ns)) {
        logits = logits->next;
    }
    return logits != NULL ? firni_logits_retain(logits) : NULL;
}

void firni_logits_mark(const firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    for (const firni_logits *logits = prefix->logits; logits != NULL; logits = logits->next) {
        if (is_of(logits, tokens, n_tokens, ns)) {
            mark_checkpoint(prefix, logits, true);
        }
    }
}

static void drop(firn_prefix *prefix, firni_logits **link)
{
    firni_logits *logits = *link;
    *link = logits->next;
    prefix->stats.n_logits--;
    prefix->stats.logits_bytes -= bytes_of(logits);
    mark_checkpoint(prefix, logits, false);
    firni_logits_release(prefix->env, logits);
}

void firni_logits_destroy_all(firn_prefix *prefix)
{
    while (prefix->logits != NULL) {
        drop(prefix, &prefix->logits);
    }
}

/* From the end, until what is there and one more of n_bytes are within both bounds. */
static void make_room(firn_prefix *prefix, uint64_t n_bytes)
{
    while (prefix->logits != NULL &&
           (prefix->stats.n_logits >= LOGITS_MAX ||
            prefix->stats.logits_bytes + n_bytes > prefix->options.logits_bytes_max)) {
        firni_logits **link = &prefix->logits;
        while ((*link)->next != NULL) {
            link = &(*link)->next;
        }
        drop(prefix, link);
    }
}

static void put_first(firn_prefix *prefix, firni_logits *logits)
{
    logits->next = prefix->logits;
    prefix->logits = logits;
}

void firni_logits_list(firn_prefix *prefix, firni_logits *logits)
{
    const uint64_t n_bytes = bytes_of(logits);
    if (n_bytes > prefix->options.logits_bytes_max ||
        *find_link(prefix, logits->tokens, logits->n_tokens, logits->ns) != NULL) {
        return;
    }
    make_room(prefix, n_bytes);
    put_first(prefix, firni_logits_retain(logits));
    prefix->stats.n_logits++;
    prefix->stats.logits_bytes += n_bytes;
    mark_checkpoint(prefix, logits, true);
}

void firn_prefix_keep_logits(firn_prefix *prefix, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                             const float *values, uint32_t n_logits, firn_store_where where)
{
    assert(n_tokens > 0 && n_logits > 0 && where != FIRN_STORE_NONE);
    ns = ns != NULL ? ns : "";
    if (n_tokens < prefix->options.min_tokens) {
        return; /* neither is its state kept */
    }
    firni_logits **link = find_link(prefix, tokens, n_tokens, ns);
    firni_logits *logits = *link;
    if (logits != NULL) {
        /* The same bits, whoever computed them. One who may have them stored is enough. */
        assert(logits->n_logits == n_logits);
        *link = logits->next;
        put_first(prefix, logits);
        logits->ram_only = logits->ram_only && where == FIRN_STORE_RAM;
        mark_checkpoint(prefix, logits, true);
        return;
    }
    logits = firni_logits_create(prefix->env, tokens, n_tokens, ns, n_logits);
    if (logits == NULL) {
        return;
    }
    memcpy(logits->values, values, n_logits * sizeof *values);
    logits->ram_only = where == FIRN_STORE_RAM;
    firni_logits_list(prefix, logits);
    firni_logits_release(prefix->env, logits);
}
