/*
 * One store: which position of a path it ends at, what it takes along, what it has saved. Owns the job's copies; when
 * jobs are made and how often is writer.c's concern.
 *
 * State can be stored only where it can be resumed. Blocks that can be cut are stored to the end of the node that is
 * wanted. Where layers keep a fixed-size state the path must end at a checkpoint: one of the node's, or one further
 * down the path. A few more window blocks go along than the end needs, so that positions between two stores can be
 * resumed from the tier too.
 */
#include <assert.h>
#include <string.h>

#include "prefix/prefix_impl.h"

void firni_job_destroy(firn_prefix *prefix, firni_job *job)
{
    if (job->caches != NULL) {
        firni_caches_destroy(prefix, job->caches);
        firni_free(prefix->env, job->caches);
    }
    firni_logits_release(prefix->env, job->logits);
    firni_free(prefix->env, job->tokens);
    firni_free(prefix->env, job->ns);
    firni_free(prefix->env, job);
}

static bool is_usable(const firn_prefix *prefix, firni_node *node, uint32_t n_tokens)
{
    firni_node *last;
    return firni_node_usable(prefix, node, n_tokens, &last) == n_tokens;
}

/* The position in `node` at which a store of the wanted node may end; 0: none. */
static uint32_t end_in(const firn_prefix *prefix, firni_node *node, bool is_wanted)
{
    const uint32_t end = node->first_token + node->n_tokens;
    if (prefix->families.n_fixed == 0) {
        return prefix->families.n_window == 0 || is_usable(prefix, node, end) ? end : 0;
    }
    /* One that is unsaved first. Another serves when the wanted node's blocks are wholly before it. */
    for (const firni_checkpoint *c = node->checkpoints; c != NULL; c = c->next) {
        if (c->unsaved && is_usable(prefix, node, c->n_tokens)) {
            return c->n_tokens;
        }
    }
    const firni_checkpoint *last = node->checkpoints;
    return last != NULL && (!is_wanted || last->n_tokens == end) && is_usable(prefix, node, last->n_tokens)
               ? last->n_tokens
               : 0;
}

void firni_job_give_up(firn_prefix *prefix, firni_node *node)
{
    firni_checkpoint *next;
    for (firni_checkpoint *c = node->checkpoints; c != NULL; c = next) {
        next = c->next;
        if (c->unsaved && !is_usable(prefix, node, c->n_tokens)) {
            firni_checkpoint_drop(prefix, node, c);
        }
    }
}

static firni_node *newest_child(const firni_node *node)
{
    firni_node *newest = node->children[0];
    for (uint32_t i = 1; i < node->n_children; i++) {
        newest = node->children[i]->used > newest->used ? node->children[i] : newest;
    }
    return newest;
}

/* The wanted node, or the first one down the path in newest use at which a store may end. */
static uint32_t find_end(const firn_prefix *prefix, firni_node *wanted, firni_node **out)
{
    firni_node *node = wanted;
    uint32_t end = end_in(prefix, node, true);
    while (end == 0 && node->n_children > 0) {
        node = newest_child(node);
        end = end_in(prefix, node, false);
    }
    *out = node;
    return end;
}

/* Everything the worker will read is made here, on the engine thread: it never looks at the tree. */
firni_job *firni_job_create(firn_prefix *prefix, firni_node *wanted, firn_reason *reason)
{
    firni_node *node;
    const uint32_t n_tokens = find_end(prefix, wanted, &node);
    *reason = FIRN_REASON_FAMILY_MISSING;
    if (n_tokens == 0) {
        return NULL;
    }
    *reason = FIRN_REASON_NO_MEMORY;
    firni_job *job = firni_calloc(prefix->env, 1, sizeof *job);
    if (job == NULL) {
        return NULL;
    }
    job->message.kind = FIRNI_MESSAGE_STORED;
    job->prefix = prefix;
    job->leaf = node;
    job->priority = node->priority;
    job->n_tokens = n_tokens;
    job->ns = firni_strdup(prefix->env, firni_node_namespace(node));
    job->tokens = firni_calloc(prefix->env, n_tokens, sizeof *job->tokens);
    job->caches = firni_calloc(prefix->env, prefix->n_layers, sizeof(firn_cache *));
    const firni_path_end end = { .node = node, .n_tokens = n_tokens, .for_store = true };
    if (job->ns == NULL || job->tokens == NULL || job->caches == NULL ||
        firni_adopt_path(prefix, &end, job->caches, &job->first_window, NULL) != FIRN_OK) {
        firni_job_destroy(prefix, job);
        return NULL;
    }
    for (; node->parent != NULL; node = node->parent) {
        const uint32_t n_left = n_tokens - node->first_token;
        const uint32_t n = n_left < node->n_tokens ? n_left : node->n_tokens;
        memcpy(&job->tokens[node->first_token], node->tokens, n * sizeof node->tokens[0]);
    }
    *reason = FIRN_REASON_NONE;
    return job;
}

/* The tier has no room for what is of so little priority: it stays in RAM as long as that has. */
void firni_job_keep_in_ram(firn_prefix *prefix, const firni_job *job)
{
    firni_checkpoint *checkpoint = firni_checkpoint_find(job->leaf, job->n_tokens);
    if (checkpoint != NULL) {
        firni_checkpoint_mark_saved(prefix, job->leaf, checkpoint);
    }
    for (firni_node *node = job->leaf; node->parent != NULL; node = node->parent) {
        if (node->blocks_unsaved && node->first_token + node->n_tokens <= job->n_tokens) {
            node->ram_only = true;
            firni_mark_saved(prefix, node);
        }
    }
}

/* The path may have got new leaves and its tail may have grown, but no node of it can have gone: the leaf was pinned,
 * and the others have a child. Checkpoints of the path other than the one at its end are none of this store's. */
void firni_job_mark_saved(firn_prefix *prefix, const firni_job *job)
{
    firni_checkpoint *checkpoint = firni_checkpoint_find(job->leaf, job->n_tokens);
    if (checkpoint != NULL) {
        firni_checkpoint_mark_saved(prefix, job->leaf, checkpoint);
    }
    for (firni_node *node = job->leaf; node->parent != NULL; node = node->parent) {
        if (node->first_token + node->n_tokens <= job->n_tokens) {
            if (node->first_token / FIRN_BLOCK_TOKENS >= job->first_window && firni_has_windows(prefix, node)) {
                node->windows_saved = true;
            }
            firni_mark_saved(prefix, node);
        }
    }
}
