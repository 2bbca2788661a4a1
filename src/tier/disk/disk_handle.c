/*
 * Handles: what a lookup promises, and how the promise is kept and given back.
 *
 *      lookup --promise--> pinned --release--> unpinned      references: the caller, jobs in the queue, pending touches
 *                             ^                              pins:       the caller, jobs in the queue
 *                             | eviction asks, and condemns what is not pinned
 *
 * Owns their memory, the list of pinned ones, and the touches that lookups leave behind. Knows nothing of files or the
 * index: it compares digests and places.
 */
#include <assert.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

/* ---- life and pins ----------------------------------------------------------------------------------------------- */

/* References keep the memory, pins keep the records on disk: a pending touch needs the first without the second. */
firn_tier_handle *firni_handle_create(const firn_env *env, uint32_t n_records, uint32_t n_tokens)
{
    firn_tier_handle *handle = firni_calloc(env, 1, sizeof *handle);
    if (handle == NULL) {
        return NULL;
    }
    handle->env = env;
    atomic_init(&handle->refs, 1);
    handle->entries = firni_calloc(env, (size_t)n_records + 1, sizeof *handle->entries);
    handle->tokens = firni_calloc(env, (size_t)n_tokens + 1, sizeof *handle->tokens);
    handle->n_records_max = n_records + 1;
    handle->priority = FIRN_PRIORITY_MIN; /* of a lookup: it raises nothing */
    if (handle->entries == NULL || handle->tokens == NULL) {
        firni_handle_unref(handle);
        return NULL;
    }
    return handle;
}

void firni_handle_unref(firn_tier_handle *handle)
{
    if (handle != NULL && atomic_fetch_sub(&handle->refs, 1) == 1) {
        assert(!handle->is_pinned);
        firni_free(handle->env, handle->entries);
        firni_free(handle->env, handle->tokens);
        firni_free(handle->env, handle->chains);
        firni_free(handle->env, handle->level_of);
        firni_free(handle->env, handle);
    }
}

bool firni_handle_set_namespace(firn_tier_handle *handle, const firn_digest *identity, const char *ns)
{
    firni_levels levels;
    firni_levels_of(ns, &levels);
    handle->n_levels = levels.n;
    for (uint32_t level = 0; level < levels.n; level++) {
        handle->roots[level] = firn_chain_root(identity, levels.names[level]);
        handle->nss[level] = firni_namespace_digest(levels.names[level]);
    }
    if (levels.n > 1) {
        handle->chains = firni_calloc(handle->env, (size_t)levels.n * handle->n_records_max, sizeof *handle->chains);
        handle->level_of = firni_calloc(handle->env, handle->n_records_max, sizeof *handle->level_of);
    }
    return levels.n == 1 || (handle->chains != NULL && handle->level_of != NULL);
}

const firn_digest *firni_handle_parent(const firn_tier_handle *handle, uint32_t level, uint32_t record)
{
    assert(level < handle->n_levels && record <= handle->n_records_max);
    if (record == 0) {
        return &handle->roots[level];
    }
    return handle->chains == NULL ? &handle->entries[record - 1].digest
                                  : &handle->chains[(size_t)level * handle->n_records_max + record - 1];
}

uint32_t firni_handle_level(const firn_tier_handle *handle, uint32_t record)
{
    return handle->level_of != NULL ? handle->level_of[record] : 0;
}

/* With one level nothing is hashed: the entry says what its digest is. */
void firni_handle_extend(firn_tier_handle *handle, uint32_t level, const firn_token *tokens, uint32_t n_tokens)
{
    assert(handle->n_records > 0);
    const uint32_t record = handle->n_records - 1;
    if (handle->chains == NULL) {
        return;
    }
    handle->level_of[record] = (uint8_t)level;
    for (uint32_t l = 0; l < handle->n_levels; l++) {
        handle->chains[(size_t)l * handle->n_records_max + record] =
            l == level ? handle->entries[record].digest
                       : firn_chain_extend(firni_handle_parent(handle, l, record), tokens, n_tokens);
    }
}

/* The list has one element per prefix that somebody holds, not per record: a victim is compared with a few handles, at
 * the one position where its depth in the chain puts it. */
void firni_handle_pin_locked(firni_disk *disk, firn_tier_handle *handle)
{
    if (handle->n_pins++ == 0) {
        handle->is_pinned = true;
        handle->prev = NULL;
        handle->next = disk->handles;
        if (disk->handles != NULL) {
            disk->handles->prev = handle;
        }
        disk->handles = handle;
    }
}

void firni_handle_unpin_locked(firni_disk *disk, firn_tier_handle *handle)
{
    assert(handle->n_pins > 0 && handle->is_pinned);
    if (--handle->n_pins == 0) {
        handle->is_pinned = false;
        if (handle->prev != NULL) {
            handle->prev->next = handle->next;
        } else {
            disk->handles = handle->next;
        }
        if (handle->next != NULL) {
            handle->next->prev = handle->prev;
        }
    }
}

firni_key firni_handle_key(const firn_tier_handle *handle, uint32_t record)
{
    assert(record < handle->n_records);
    return firni_key_make(FIRNI_RECORDS, firni_handle_parent(handle, firni_handle_level(handle, record), record),
                          handle->tokens + (size_t)record * FIRN_BLOCK_TOKENS, handle->entries[record].n_tokens);
}

bool firni_place_equal(const firni_place *a, const firni_place *b)
{
    return a->segment == b->segment && a->offset == b->offset;
}

bool firni_disk_is_pinned_locked(const firni_disk *disk, const firni_entry *entry, const firn_tier_handle *own,
                                 bool but_standing)
{
    for (const firn_tier_handle *handle = disk->handles; handle != NULL; handle = handle->next) {
        if (handle != own && !(but_standing && handle->is_standing) && firni_handle_names(handle, entry) != NULL) {
            return true;
        }
    }
    return false;
}

void firni_disk_release(firn_tier *tier, firn_tier_handle *handle)
{
    firni_disk *disk = firni_disk_of(tier);
    pthread_mutex_lock(&disk->mutex);
    firni_handle_unpin_locked(disk, handle);
    pthread_mutex_unlock(&disk->mutex);
    firni_handle_unref(handle);
}

/* ---- promising --------------------------------------------------------------------------------------------------- */

/* Notes one use of the chain. When the list is full the use is forgotten: recency is a hint, and the worker has been
 * woken long before. */
static void add_touch_locked(firni_disk *disk, firn_tier_handle *handle, firn_tier_handle **dropped)
{
    const uint64_t stamp = firni_disk_take_stamps(disk, handle->n_records + 2);
    int8_t priority = handle->priority;
    for (uint32_t i = 0; i < disk->n_touches; i++) {
        firni_touch *touch = &disk->touches[i];
        if (touch->handle->n_records == handle->n_records && handle->n_records > 0 &&
            touch->handle->has_object == handle->has_object &&
            (!handle->has_checkpoint || firni_handle_names(touch->handle, &handle->checkpoint) != NULL) &&
            firni_handle_names(touch->handle, &handle->entries[handle->n_records - 1]) != NULL) {
            /* The same chain again: the later use counts, at the end, where the order of stamps wants it. */
            *dropped = touch->handle;
            priority = touch->priority > priority ? touch->priority : priority;
            memmove(touch, touch + 1, (disk->n_touches - i - 1) * sizeof *touch);
            disk->n_touches--;
            break;
        }
    }
    if (disk->n_touches < FIRNI_TOUCHES_MAX) {
        atomic_fetch_add(&handle->refs, 1);
        disk->touches[disk->n_touches++] = (firni_touch){ .handle = handle, .stamp = stamp, .priority = priority };
    }
}

void firni_handle_note_use(firni_disk *disk, firn_tier_handle *handle)
{
    firn_tier_handle *dropped = NULL;
    pthread_mutex_lock(&disk->mutex);
    add_touch_locked(disk, handle, &dropped);
    const bool wake = disk->n_touches > FIRNI_TOUCHES_MAX / 2;
    pthread_mutex_unlock(&disk->mutex);
    firni_handle_unref(dropped);
    if (wake) {
        firni_worker_wake(disk->worker);
    }
}

bool firni_handle_promise(firni_disk *disk, firn_tier_handle *handle, uint64_t epoch)
{
    firn_tier_handle *dropped = NULL;
    bool wake = false;
    firn_reason ignored;
    pthread_mutex_lock(&disk->mutex);
    bool is_good = disk->epoch == epoch && !disk->is_closing;
    for (uint32_t i = 0; is_good && i < handle->n_records; i++) {
        is_good = firni_disk_may_promise_locked(disk, &handle->entries[i], &ignored);
    }
    if (is_good && handle->has_checkpoint) {
        is_good = firni_disk_may_promise_locked(disk, &handle->checkpoint, &ignored);
    }
    handle->has_object = handle->has_object && firni_disk_may_promise_locked(disk, &handle->object, &ignored);
    if (is_good && (handle->n_records > 0 || handle->has_object)) {
        firni_handle_pin_locked(disk, handle);
        if (!disk->options.read_only) {
            add_touch_locked(disk, handle, &dropped);
            wake = disk->n_touches > FIRNI_TOUCHES_MAX / 2;
        }
    }
    pthread_mutex_unlock(&disk->mutex);
    firni_handle_unref(dropped);
    if (wake) {
        firni_worker_wake(disk->worker);
    }
    return is_good;
}
