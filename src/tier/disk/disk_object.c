/*
 * Attachments on disk: object records, bound to the exact chain of tokens they belong to.
 *
 * An object's key is made of the digest of all full blocks before its count and the tokens that remain, so it is found
 * at exactly that count and nowhere else, whichever record holds those remaining tokens:
 *
 *      records   root --[0..63]--> d1 --[64..149]   (a tail or a block: it may be replaced by a longer one)
 *      objects                     d1 --[64..99]    attachments at 100 tokens
 *
 * A use of an object also uses its chain and gives the object the lowest stamp, so it is evicted before its records.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

/* ---- storing ----------------------------------------------------------------------------------------------------- */

uint64_t firni_object_bytes_max(const firn_attachment *attachments, uint32_t n_attachments)
{
    const uint32_t n_names = FIRN_NAMESPACE_BYTES_MAX + FIRNI_RECORD_TEXT_BYTES_MAX + FIRNI_RECORD_LINKS_BYTES_MAX;
    uint64_t n_bytes = firni_record_header_bytes(FIRNI_ATTACHMENT_SECTIONS_MAX, n_names);
    for (uint32_t a = 0; a < n_attachments; a++) {
        n_bytes += FIRNI_RECORD_ALIGN + FIRNI_ATTACHMENT_SCHEMA_MAX + 4u + attachments[a].n_metadata_bytes;
        for (uint32_t t = 0; t < attachments[a].n_tensors; t++) {
            n_bytes += attachments[a].tensors[t].n_bytes + FIRNI_RECORD_ALIGN;
        }
    }
    return n_bytes;
}

firni_key firni_object_key(const firn_tier_handle *handle, uint32_t level, uint32_t n_tokens)
{
    const uint32_t n_full = n_tokens / FIRN_BLOCK_TOKENS;
    assert(n_full <= handle->n_records);
    if (handle->is_keyed) {
        return firni_key_make(FIRNI_OBJECTS, &handle->key_root, NULL, 0);
    }
    return firni_key_make(FIRNI_OBJECTS, firni_handle_parent(handle, level, n_full),
                          handle->tokens + (size_t)n_full * FIRN_BLOCK_TOKENS, n_tokens % FIRN_BLOCK_TOKENS);
}

firni_code firni_object_plan(const firni_disk *disk, const firni_volume *volume, MDB_txn *txn,
                             const firn_tier_handle *handle, uint32_t n_tokens, firni_pending *out)
{
    const uint32_t first = n_tokens / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS;
    *out = (firni_pending){ .key = firni_object_key(handle, 0, n_tokens), .tokens = handle->tokens + first };
    out->parent = firni_key_parent(&out->key);
    out->entry = (firni_entry){ .kind = FIRNI_RECORD_OBJECT,
                                .first_token = first,
                                .n_tokens = n_tokens - first,
                                .created_wall_ns = firni_wall_ns(disk->env),
                                .digest = firni_chain_object(&out->parent, out->tokens, n_tokens - first),
                                .root = handle->roots[0],
                                .priority = handle->priority };
    const firni_code code = firni_index_get(&volume->index, txn, &out->key, &out->old);
    out->replaces = code == 0;
    return code == MDB_NOTFOUND ? 0 : code;
}

/* ---- restoring --------------------------------------------------------------------------------------------------- */

/* Decodes and checks the record at `bytes`, all of it, and makes attachments of it. */
static firni_code decode(firni_disk *disk, const firn_digest *ns, const firni_key *key,
                         const firni_entry *entry, uint8_t *bytes, firn_restored *out)
{
    firni_section *sections = firni_calloc(disk->env, FIRNI_ATTACHMENT_SECTIONS_MAX, sizeof *sections);
    if (sections == NULL) {
        return ENOMEM;
    }
    firni_record record;
    firni_crypt_key record_key;
    const size_t n_bytes = (size_t)entry->place.n_bytes;
    firn_status status = firni_record_open_header(disk->crypt, bytes, n_bytes, &record_key);
    if (status == FIRN_OK) {
        status = firni_record_decode(bytes, n_bytes, n_bytes, sections, FIRNI_ATTACHMENT_SECTIONS_MAX, &record, NULL);
    }
    if (status == FIRN_OK && (record.record_bytes != entry->place.n_bytes ||
                              !firni_disk_header_fits(disk, &record, entry, key, ns))) {
        status = FIRN_ERR_CORRUPT;
    }
    if (status == FIRN_OK) {
        status = firni_record_open_sections(disk->crypt, &record_key, &record, bytes);
    }
    if (status == FIRN_OK) {
        status = firni_attachments_decode(&record, bytes + record.header_bytes, disk->env, &out->attachments,
                                          &out->n_attachments, NULL);
    }
    firni_crypt_forget(&record_key, sizeof record_key);
    firni_free(disk->env, sections);
    return firni_code_of_record(status);
}

/* Objects are small beside blocks, and are unpacked into tensors of their own: one plain read into one buffer. */
static firni_code read_whole(firni_disk *disk, firni_volume *volume, const firni_place *place, uint8_t *bytes)
{
    int fd;
    firni_code code = firni_segment_use(&volume->segments, place->segment, &fd);
    if (code != 0) {
        return code;
    }
    const firn_io *io = firni_io(disk->env);
    const int64_t n_read = io->pread(io->ctx, fd, bytes, (size_t)place->n_bytes, place->offset);
    firni_segment_leave(&volume->segments, place->segment);
    if (n_read < 0) {
        return (firni_code)-n_read;
    }
    return (uint64_t)n_read == place->n_bytes ? 0 : FIRNI_CODE_CORRUPT;
}

/* Reads, verifies and unpacks; a damaged object is a failure of the whole restore, not of the attachments alone. */
static firn_reason read_object(firni_disk *disk, firni_volume *volume, const firn_digest *ns,
                               const firni_key *key, const firni_entry *entry, firn_restored *out)
{
    uint8_t *bytes = firni_alloc_aligned(disk->env, (size_t)entry->place.n_bytes, FIRNI_RECORD_ALIGN);
    if (bytes == NULL) {
        return FIRN_REASON_NO_MEMORY;
    }
    firni_code code = read_whole(disk, volume, &entry->place, bytes);
    if (code == 0) {
        code = decode(disk, ns, key, entry, bytes, out);
    }
    firni_free(disk->env, bytes);
    if (code != 0) {
        return firni_disk_bad_record(disk, volume, key, entry, code);
    }
    out->n_bytes_read += entry->place.n_bytes;
    return FIRN_REASON_NONE;
}

/* A shorter count than the one that was looked up: its object is not pinned, and may vanish. */
static firni_code find_shorter(firni_disk *disk, firni_volume *volume, const firn_tier_handle *handle,
                               uint32_t n_tokens, uint32_t *level, firni_key *key, firni_entry *entry)
{
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&volume->index, true, &txn);
    bool found = false;
    for (*level = 0; code == 0 && !found && *level < handle->n_levels; *level += !found) {
        *key = firni_object_key(handle, *level, n_tokens);
        code = firni_index_get(&volume->index, txn, key, entry);
        found = code == 0 && !entry->is_quarantined && !firni_disk_is_expired(disk, entry->stamp);
        code = code == MDB_NOTFOUND ? 0 : code;
    }
    mdb_txn_abort(txn);
    return code == 0 && !found ? MDB_NOTFOUND : code;
}

firn_reason firni_object_restore(firni_disk *disk, firni_volume *volume, const firn_tier_handle *handle,
                                 uint32_t n_tokens, firn_restored *out)
{
    if (n_tokens == handle->prefix_len) {
        return handle->has_object ? read_object(disk, volume, &handle->nss[handle->object_level], &handle->object_key,
                                                &handle->object, out)
                                  : FIRN_REASON_NONE;
    }
    uint32_t level;
    firni_key key;
    firni_entry entry;
    const firni_code code = find_shorter(disk, volume, handle, n_tokens, &level, &key, &entry);
    if (code == MDB_NOTFOUND) {
        return FIRN_REASON_NONE;
    }
    if (code != 0) {
        return firni_disk_failed(disk, volume, code, "reading the index");
    }
    const firn_reason reason = read_object(disk, volume, &handle->nss[level], &key, &entry, out);
    return reason == FIRN_REASON_GONE ? FIRN_REASON_NONE : reason;
}

firn_reason firni_disk_restore_object(firni_disk *disk, firn_tier_handle *handle, firn_restored *out)
{
    *out = (firn_restored){ .env = disk->env, .n_tokens = handle->prefix_len };
    firn_reason reason;
    firni_volume *volume = firni_disk_enter(disk, false, &reason);
    if (volume != NULL) {
        if (volume->generation != handle->generation) {
            reason = FIRN_REASON_GONE;
        } else if (!handle->has_object) {
            reason = FIRN_REASON_FAMILY_MISSING;
        } else {
            reason = firni_object_restore(disk, volume, handle, handle->prefix_len, out);
        }
        firni_disk_leave(disk, volume);
    }
    if (reason == FIRN_REASON_NONE && handle->prefix_len > 0) {
        out->tokens = firni_calloc(disk->env, handle->prefix_len, sizeof *out->tokens);
        reason = out->tokens == NULL ? FIRN_REASON_NO_MEMORY : FIRN_REASON_NONE;
    }
    if (reason != FIRN_REASON_NONE) {
        firn_restored_deinit(out);
        return reason;
    }
    if (handle->prefix_len > 0) {
        memcpy(out->tokens, handle->tokens, handle->prefix_len * sizeof *out->tokens);
    }
    return FIRN_REASON_NONE;
}
