/*
 * The list of paths that the lower may lack: names and tokens, no state. Owns the entries and their order, which is
 * that of their stores; the copying is stack_copy.c's.
 *
 * A path takes the place of one of the same tokens, and of one that it continues when its state includes that one's: a
 * conversation that grows is one entry. State that can be resumed at its own count alone, or within a window, includes
 * nothing but itself.
 *
 * The list is bounded. The coldest leaves it first, and is then in the upper alone.
 */
#include <assert.h>
#include <string.h>

#include "tier/stack/stack_impl.h"

firni_copy *firni_copy_create(const firn_env *env, const firni_copy *from)
{
    firni_copy *copy = firni_calloc(env, 1, sizeof *copy);
    if (copy == NULL) {
        return NULL;
    }
    *copy = *from;
    copy->next = NULL;
    copy->ns = firni_strdup(env, from->ns);
    copy->tokens = firni_tokens_copy(env, from->tokens, from->n_tokens);
    copy->pin = from->pin != NULL ? firni_strdup(env, from->pin) : NULL;
    if (copy->ns == NULL || copy->tokens == NULL || (from->pin != NULL && copy->pin == NULL)) {
        firni_copy_destroy(env, copy);
        return NULL;
    }
    return copy;
}

void firni_copy_destroy(const firn_env *env, firni_copy *copy)
{
    if (copy != NULL) {
        firni_free(env, copy->ns);
        firni_free(env, copy->tokens);
        firni_free(env, copy->pin);
        firni_free(env, copy);
    }
}

/* Unlinks what *link points to; `before` is the one whose `next` that is, or NULL. */
static firni_copy *unlink_locked(firni_copy_list *list, firni_copy **link, firni_copy *before)
{
    firni_copy *copy = *link;
    *link = copy->next;
    list->last = list->last == copy ? before : list->last;
    copy->next = NULL;
    assert(list->n > 0 && list->n_tokens >= copy->n_tokens && list->n_bytes >= copy->n_bytes);
    list->n--;
    list->n_tokens -= copy->n_tokens;
    list->n_bytes -= copy->n_bytes;
    return copy;
}

static void link_last(firni_copy_list *list, firni_copy *copy)
{
    if (list->last == NULL) {
        list->first = copy;
    } else {
        list->last->next = copy;
    }
    list->last = copy;
    list->n++;
    list->n_tokens += copy->n_tokens;
    list->n_bytes += copy->n_bytes;
}

static bool begins_with(const firni_copy *path, const firn_token *tokens, uint32_t n_tokens)
{
    return n_tokens <= path->n_tokens &&
           (n_tokens == 0 || memcmp(path->tokens, tokens, n_tokens * sizeof *tokens) == 0);
}

/* Whether `old` need not be copied any more once `copy` is. */
static bool makes_needless(const firni_copy *copy, const firni_copy *old)
{
    if (strcmp(copy->ns, old->ns) != 0 || !begins_with(copy, old->tokens, old->n_tokens)) {
        return false;
    }
    return copy->n_tokens == old->n_tokens || (copy->is_whole && !old->has_attachments && old->pin == NULL);
}

/* What the older entry asks for beyond the newer one of its path. */
static void inherit(firni_copy *copy, firni_copy *old)
{
    copy->priority = old->priority > copy->priority ? old->priority : copy->priority;
    copy->n_bytes = old->n_bytes > copy->n_bytes ? old->n_bytes : copy->n_bytes;
    if (old->n_tokens != copy->n_tokens) {
        return;
    }
    copy->has_attachments = copy->has_attachments || old->has_attachments;
    copy->is_resumed = copy->is_resumed && old->is_resumed;
    copy->is_whole = copy->is_whole || old->is_whole;
    if (copy->pin == NULL) {
        copy->pin = old->pin;
        copy->until_wall_ns = old->until_wall_ns;
        old->pin = NULL;
    }
}

void firni_copy_append_locked(firni_stacked *stacked, firni_copy *copy)
{
    firni_copy_list *list = &stacked->list;
    firni_copy *before = NULL;
    for (firni_copy **link = &list->first; *link != NULL;) {
        if (!makes_needless(copy, *link)) {
            before = *link;
            link = &before->next;
            continue;
        }
        firni_copy *old = unlink_locked(list, link, before);
        inherit(copy, old);
        firni_copy_destroy(stacked->env, old);
    }
    while (list->n > 0 && (list->n >= stacked->options.copies_max ||
                           list->n_tokens + copy->n_tokens > stacked->options.copy_tokens_max)) {
        firni_copy_destroy(stacked->env, unlink_locked(list, &list->first, NULL));
        stacked->counts.n_copies_dropped++;
    }
    link_last(list, copy);
}

void firni_copy_return_locked(firni_stacked *stacked, firni_copy *copy)
{
    firni_copy_list *list = &stacked->list;
    /* What has come meanwhile of the same path is to be copied anyway. */
    for (firni_copy *other = list->first; other != NULL; other = other->next) {
        if (makes_needless(other, copy)) {
            list->n_bytes -= other->n_bytes;
            inherit(other, copy);
            list->n_bytes += other->n_bytes;
            firni_copy_destroy(stacked->env, copy);
            return;
        }
    }
    link_last(list, copy); /* so that one that is refused again and again does not hold up the others */
}

firni_copy *firni_copy_take_locked(firni_stacked *stacked)
{
    firni_copy_list *list = &stacked->list;
    firni_copy **best = NULL, *before = NULL, *before_best = NULL;
    for (firni_copy **link = &list->first; *link != NULL; before = *link, link = &before->next) {
        if (best == NULL || (*link)->priority < (*best)->priority) {
            best = link;
            before_best = before;
        }
    }
    return best == NULL ? NULL : unlink_locked(list, best, before_best);
}

void firni_copy_forget(firni_stacked *stacked, const char *ns, const firn_token *tokens, uint32_t n_tokens)
{
    firni_copy_list *list = &stacked->list;
    firni_copy *before = NULL;
    pthread_mutex_lock(&stacked->mutex);
    for (firni_copy **link = &list->first; *link != NULL;) {
        firni_copy *copy = *link;
        const bool is_on_path = copy->n_tokens > 0 && copy->n_tokens <= n_tokens &&
                                memcmp(copy->tokens, tokens, copy->n_tokens * sizeof *tokens) == 0;
        if (is_on_path && copy->pin == NULL && strcmp(copy->ns, ns) == 0) {
            firni_copy_destroy(stacked->env, unlink_locked(list, link, before));
        } else {
            before = copy;
            link = &copy->next;
        }
    }
    pthread_mutex_unlock(&stacked->mutex);
}

bool firni_copy_unpin(firni_stacked *stacked, const char *name)
{
    bool found = false;
    pthread_mutex_lock(&stacked->mutex);
    for (firni_copy *copy = stacked->list.first; copy != NULL; copy = copy->next) {
        if (copy->pin != NULL && strcmp(copy->pin, name) == 0) {
            firni_free(stacked->env, copy->pin);
            copy->pin = NULL;
            found = true;
        }
    }
    firni_copy *now = stacked->copying;
    if (now != NULL && now->pin != NULL && strcmp(now->pin, name) == 0) {
        now->is_unpinned = true; /* it may be being pinned right now: its thread undoes that */
        found = true;
    }
    pthread_mutex_unlock(&stacked->mutex);
    return found;
}
