/*
 * Objects by key: attachments that are found by a name instead of tokens.
 *
 *      record     an object of no tokens whose parent is SHA-256("firn.object.key.1", identity, namespace, key)
 *      row        the key in words, and until when it is pinned: for lists and for the next start
 *
 * Record and row are named by one transaction. An object that was evicted leaves its row behind: lists pass it over,
 * and delete it. A namespace reads objects of those above it as it reads their tokens; it replaces and removes its own.
 */
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

#define FIND_ATTEMPTS_MAX 8u

bool firni_disk_put_object(firn_tier *tier, const firn_object *object, firn_reason *reason)
{
    firni_disk *disk = firni_disk_of(tier);
    const firn_store_input input = { .ns = object->ns,
                                     .attachments = object->attachments,
                                     .n_attachments = object->n_attachments,
                                     .priority = object->priority };
    const firni_kept row = { .until_wall_ns = object->until_wall_ns,
                             .used_wall_ns = firni_wall_ns(disk->env),
                             .ns = object->ns,
                             .name = object->key };
    if (!firni_disk_store_keyed(tier, &input, &row, reason)) {
        return false;
    }
    firn_reason ignored;
    firn_tier_handle *handle = object->until_wall_ns > row.used_wall_ns
                                   ? firni_disk_find_object(tier, object->ns, object->key, &ignored)
                                   : NULL;
    if (handle != NULL) {
        (void)firni_pin_stand(disk, FIRNI_KEYS, object->ns, object->key, object->until_wall_ns, handle);
    } else {
        (void)firni_pin_end(disk, FIRNI_KEYS, object->ns, object->key);
    }
    return true;
}

/* The entry of the first level that has the object; the handle is without one when nobody has. */
static firni_code find_entry(firni_disk *disk, const firni_volume *volume, const char *ns, const char *key,
                             firn_tier_handle *handle, firn_reason *reason)
{
    firni_levels levels;
    firni_levels_of(ns, &levels);
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&volume->index, true, &txn);
    *reason = FIRN_REASON_NO_PREFIX;
    handle->has_object = false;
    for (uint32_t level = 0; level < levels.n && code == 0 && !handle->has_object; level++) {
        handle->key_root = firni_object_root(&disk->options.schema->identity, levels.names[level], key);
        handle->object_key = firni_object_key(handle, level, 0);
        handle->object_level = (uint8_t)level;
        code = firni_index_get(&volume->index, txn, &handle->object_key, &handle->object);
        handle->has_object = code == 0 && firni_disk_may_serve(disk, &handle->object, reason);
        code = code == MDB_NOTFOUND ? 0 : code;
    }
    mdb_txn_abort(txn);
    return code;
}

/* As for lookups by tokens: what was read may be gone before it is promised, and then is looked for again. */
static firn_tier_handle *find(firni_disk *disk, firni_volume *volume, const char *ns, const char *key,
                              firn_reason *reason)
{
    firn_tier_handle *handle = firni_handle_create(disk->env, 0, 0);
    if (handle == NULL || !firni_handle_set_namespace(handle, &disk->options.schema->identity, ns)) {
        firni_handle_unref(handle);
        *reason = FIRN_REASON_NO_MEMORY;
        return NULL;
    }
    handle->is_keyed = true;
    handle->generation = volume->generation;
    for (unsigned attempt = 0; attempt < FIND_ATTEMPTS_MAX; attempt++) {
        const uint64_t epoch = firni_disk_epoch(disk);
        const firni_code code = find_entry(disk, volume, ns, key, handle, reason);
        if (code != 0) {
            *reason = firni_disk_failed(disk, volume, code, "looking up an object");
            break;
        }
        if (!handle->has_object) {
            if (firni_disk_epoch(disk) == epoch) {
                break;
            }
            continue;
        }
        if (firni_handle_promise(disk, handle, epoch) && handle->is_pinned) {
            *reason = FIRN_REASON_NONE;
            return handle;
        }
        *reason = FIRN_REASON_GONE;
    }
    firni_handle_unref(handle);
    return NULL;
}

firn_tier_handle *firni_disk_find_object(firn_tier *tier, const char *ns, const char *key, firn_reason *reason)
{
    firni_disk *disk = firni_disk_of(tier);
    *reason = FIRN_REASON_DISABLED;
    firni_volume *volume = disk->options.schema != NULL ? firni_disk_enter(disk, false, reason) : NULL;
    if (volume == NULL) {
        return NULL;
    }
    firn_tier_handle *handle = find(disk, volume, ns, key, reason);
    firni_disk_leave(disk, volume);
    return handle;
}

firn_status firni_disk_remove_object(firn_tier *tier, const char *ns, const char *key, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    firn_reason reason = FIRN_REASON_READ_ONLY;
    firni_volume *volume = disk->options.read_only ? NULL : firni_disk_enter(disk, true, &reason);
    if (volume == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "%s cannot be written now (%s)", disk->dir, firn_reason_name(reason));
    }
    (void)firni_pin_end(disk, FIRNI_KEYS, ns, key);
    const firn_digest *identity = &disk->options.schema->identity;
    const firn_digest root = firni_object_root(identity, ns, key);
    const firni_key object = firni_key_make(FIRNI_OBJECTS, &root, NULL, 0);
    uint32_t n_removed = 0;
    pthread_mutex_lock(&disk->writer);
    const firni_code code = firni_disk_remove_keys(disk, volume, &object, 1, &n_removed);
    pthread_mutex_unlock(&disk->writer);
    firn_status status = FIRN_OK;
    if (code != 0) {
        reason = firni_disk_failed(disk, volume, code, "removing an object");
        status = firni_fail(err, FIRN_ERR_IO, "%s cannot be written now (%s)", disk->dir, firn_reason_name(reason));
    } else if (n_removed == 0) {
        firn_tier_handle *held = find(disk, volume, ns, key, &reason);
        status = held != NULL && held->object_level == 0
                     ? firni_fail(err, FIRN_ERR_BUSY, "object \"%.60s\" is being read", key)
                     : firni_fail(err, FIRN_ERR_NOT_FOUND, "there is no object \"%.60s\"", key);
        if (held != NULL) {
            firni_disk_release(tier, held);
        }
    }
    firni_disk_leave(disk, volume);
    if (status == FIRN_OK || status == FIRN_ERR_NOT_FOUND) {
        const firn_digest row = firni_kept_key(FIRNI_KEYS, identity, ns, key);
        (void)firni_kept_write(disk, FIRNI_KEYS, &row, NULL, NULL);
    }
    return status;
}

typedef struct object_list {
    firni_disk *disk;
    bool (*visit)(void *ctx, const firn_object *object);
    void *ctx;
} object_list;

/* A row whose object was evicted is deleted on the way: the list is what notices. */
static bool visit_object(void *ctx, const firni_kept *row, const firn_token *tokens)
{
    const object_list *list = ctx;
    firn_reason reason;
    (void)tokens;
    firn_tier_handle *handle = firni_disk_find_object(&list->disk->tier, row->ns, row->name, &reason);
    if (handle == NULL || handle->object_level != 0) {
        const firn_digest key = firni_kept_key(FIRNI_KEYS, &list->disk->options.schema->identity, row->ns, row->name);
        if (reason == FIRN_REASON_NO_PREFIX || handle != NULL) {
            (void)firni_kept_write(list->disk, FIRNI_KEYS, &key, NULL, NULL);
        }
        if (handle != NULL) {
            firni_disk_release(&list->disk->tier, handle);
        }
        return true;
    }
    const firn_object object = { .key = row->name,
                                 .ns = row->ns,
                                 .until_wall_ns = row->until_wall_ns,
                                 .priority = handle->object.priority,
                                 .n_bytes = handle->object.place.n_bytes };
    firni_disk_release(&list->disk->tier, handle);
    return list->visit(list->ctx, &object);
}

firn_status firni_disk_each_object(firn_tier *tier, bool (*visit)(void *ctx, const firn_object *object), void *ctx,
                                   firn_error *err)
{
    object_list list = { .disk = firni_disk_of(tier), .visit = visit, .ctx = ctx };
    return firni_kept_each(list.disk, FIRNI_KEYS, visit_object, &list, err);
}
