/*
 * What was to go down when the last process ended. The list of copies was its own, but the upper knows paths by name:
 * pins and sessions are looked at once more when a stack begins. Owns that look; the copying is stack_copy.c's.
 *
 * Most of them are below already, which costs one lookup in the lower each. A session may have been stored in part, or
 * evicted long ago: that is no loss of this process, and not counted as one.
 */
#include "tier/stack/stack_impl.h"

/* Not more than half of the list: the other half is for what is stored now. False: enough. */
static bool note(firni_stacked *stacked, const firni_copy *path)
{
    firni_copy *copy = firni_copy_create(stacked->env, path);
    pthread_mutex_lock(&stacked->mutex);
    const bool has_room = !stacked->is_stopping && stacked->list.n < stacked->options.copies_max / 2 &&
                          stacked->list.n_tokens + path->n_tokens <= stacked->options.copy_tokens_max / 2;
    if (has_room && copy != NULL) {
        firni_copy_append_locked(stacked, copy);
    }
    pthread_mutex_unlock(&stacked->mutex);
    if (!has_room) {
        firni_copy_destroy(stacked->env, copy);
    }
    return has_room && copy != NULL;
}

static bool note_pin(void *ctx, const firn_pin *pin)
{
    const firni_copy path = { .ns = (char *)(uintptr_t)pin->ns,
                              .tokens = (firn_token *)(uintptr_t)pin->tokens,
                              .n_tokens = pin->n_tokens,
                              .pin = (char *)(uintptr_t)pin->name,
                              .until_wall_ns = pin->until_wall_ns,
                              .is_resumed = true };
    return note(ctx, &path);
}

static bool note_session(void *ctx, const firn_session *session)
{
    const firni_copy path = { .ns = (char *)(uintptr_t)session->ns,
                              .tokens = (firn_token *)(uintptr_t)session->tokens,
                              .n_tokens = session->n_tokens,
                              .is_resumed = true };
    return session->n_tokens == 0 || note(ctx, &path);
}

void firni_copy_resume(firni_stacked *stacked)
{
    (void)firn_tier_each_pin(stacked->upper, note_pin, stacked, NULL); /* what cannot be listed is not resumed */
    (void)firn_tier_each_session(stacked->upper, note_session, stacked, NULL);
}
