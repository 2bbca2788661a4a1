/*
 * Looking at a store from outside: list every record, read and verify every record, check the books.
 *
 * Owns no state. Works without a schema, and in a second process that is not the writer. Each step uses an index
 * transaction of its own, so that a long inspection does not keep old pages from being reused.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

static firn_status fail_code(firn_error *err, firni_code code, const firni_disk *disk, const char *what)
{
    return firni_fail(err, code == ENOMEM ? FIRN_ERR_NO_MEMORY : FIRN_ERR_IO, "%s in %s: %s", what, disk->dir,
                      mdb_strerror(code));
}

/* The volume, or a status that says why an inspection is not possible now. */
static firni_volume *enter(firni_disk *disk, firn_status *status, firn_error *err)
{
    firn_reason reason;
    firni_volume *volume = firni_disk_enter(disk, false, &reason);
    *status = volume != NULL
                  ? FIRN_OK
                  : firni_fail(err, FIRN_ERR_IO, "%s cannot be read now (%s)", disk->dir, firn_reason_name(reason));
    return volume;
}

/* The entry after *key over all tables, one after the other. */
static firni_code next_entry(const firni_index *index, firni_key *key, firni_entry *entry)
{
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(index, true, &txn);
    if (code == 0) {
        code = firni_index_next(index, txn, key, entry);
        while (code == MDB_NOTFOUND && key->which < FIRNI_WHICH_LAST) {
            *key = (firni_key){ .which = (firni_which)(key->which + 1) };
            code = firni_index_next(index, txn, key, entry);
        }
    }
    mdb_txn_abort(txn);
    return code;
}

/* ---- visit ------------------------------------------------------------------------------------------------------- */

/* Namespace and identity of an entry; the text is allocated. */
static firni_code describe(const firni_disk *disk, const firni_index *index, const firni_entry *entry, char *ns,
                           char **text)
{
    *text = NULL;
    MDB_txn *txn = NULL;
    firn_digest identity;
    uint64_t n_records, n_roots;
    const char *borrowed = "";
    size_t n_text = 0;
    firni_code code = firni_index_begin(index, true, &txn);
    if (code == 0) {
        code = firni_index_get_root(index, txn, &entry->root, &identity, ns, &n_records);
    }
    if (code == 0) {
        code = firni_index_get_identity(index, txn, &identity, &borrowed, &n_text, &n_roots);
    }
    if (code == 0) {
        *text = firni_calloc(disk->env, n_text + 1, 1);
        code = *text == NULL ? ENOMEM : 0;
    }
    if (code == 0) {
        memcpy(*text, borrowed, n_text);
    }
    mdb_txn_abort(txn);
    return code;
}

/* Quarantined in this process, not yet in the index. */
static bool is_suspect(firni_disk *disk, const firni_entry *entry)
{
    bool found = false;
    pthread_mutex_lock(&disk->mutex);
    for (uint32_t i = 0; i < disk->n_suspects && !found; i++) {
        found = firni_place_equal(&disk->suspects[i].place, &entry->place);
    }
    pthread_mutex_unlock(&disk->mutex);
    return found;
}

static firn_disk_kind kind_of(const firni_entry *entry)
{
    switch (entry->kind) {
    case FIRNI_RECORD_CHECKPOINT: return FIRN_DISK_CHECKPOINT;
    case FIRNI_RECORD_OBJECT: return FIRN_DISK_OBJECT;
    default: return FIRN_DISK_TOKENS;
    }
}

firn_status firn_disk_visit(firn_tier *tier, bool (*visit)(void *ctx, const firn_disk_record *record), void *ctx,
                            firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    firn_status status;
    firni_volume *volume = enter(disk, &status, err);
    if (volume == NULL) {
        return status;
    }
    firni_key key = { .which = FIRNI_RECORDS };
    firni_entry entry;
    firni_code code;
    bool go_on = true;
    while (go_on && (code = next_entry(&volume->index, &key, &entry)) == 0) {
        char ns[FIRN_NAMESPACE_BYTES_MAX + 1] = "";
        char *text = NULL;
        code = describe(disk, &volume->index, &entry, ns, &text);
        if (code == 0) {
            const firn_disk_record record = { .digest = entry.digest,
                                              .parent = firni_key_parent(&key),
                                              .first_token = entry.first_token,
                                              .n_tokens = entry.n_tokens,
                                              .kind = kind_of(&entry),
                                              .n_full = entry.n_full,
                                              .n_window = entry.n_window,
                                              .n_fixed = entry.n_fixed,
                                              .n_bytes = entry.place.n_bytes,
                                              .plain_bytes = entry.plain_bytes != 0 ? entry.plain_bytes
                                                                                    : entry.place.n_bytes,
                                              .last_used_wall_ns = entry.stamp,
                                              .priority = entry.priority,
                                              .ns = ns,
                                              .identity_text = text,
                                              .quarantined = entry.is_quarantined || is_suspect(disk, &entry) };
            go_on = visit(ctx, &record);
        } else if (code != MDB_NOTFOUND) { /* evicted between the two looks: not there any more */
            go_on = false;
            status = fail_code(err, code, disk, "cannot list the records");
        }
        firni_free(disk->env, text);
    }
    if (go_on && code != MDB_NOTFOUND) {
        status = fail_code(err, code, disk, "cannot list the records");
    }
    firni_disk_leave(disk, volume);
    return status;
}

/* ---- verify ------------------------------------------------------------------------------------------------------ */

/* Whether the bytes at `bytes` are the record that entry and key name, by its own header and checksums. */
static firni_code verify_bytes(const firni_disk *disk, const firni_key *key, const firni_entry *entry,
                               uint8_t *bytes)
{
    uint32_t header_bytes, n_sections;
    if (entry->place.n_bytes < FIRNI_RECORD_FIXED_BYTES ||
        firni_record_peek(bytes, &header_bytes, &n_sections, NULL) != FIRN_OK) {
        return FIRNI_CODE_CORRUPT;
    }
    firni_section *sections = firni_calloc(disk->env, (size_t)n_sections + 1, sizeof *sections);
    firni_coder *coder = firni_coder_create(disk->env);
    firni_record record;
    firni_crypt_key record_key;
    const firn_digest parent = firni_key_parent(key);
    const size_t n_bytes = (size_t)entry->place.n_bytes;
    firn_status status = sections == NULL || coder == NULL ? FIRN_ERR_NO_MEMORY : FIRN_OK;
    if (status == FIRN_OK) {
        status = firni_record_open_header(disk->crypt, bytes, n_bytes, &record_key);
    }
    if (status == FIRN_OK) {
        status = firni_record_decode(bytes, n_bytes, n_bytes, sections, n_sections, &record, NULL);
    }
    if (status == FIRN_OK && (record.record_bytes != entry->place.n_bytes ||
                              record.plain_bytes != entry->plain_bytes ||
                              !firni_digest_equal(&record.digest, &entry->digest) ||
                              !firni_digest_equal(&record.parent, &parent))) {
        status = FIRN_ERR_CORRUPT;
    }
    if (status == FIRN_OK) {
        status = firni_record_open_packed(coder, disk->crypt, &record_key, &record, bytes);
    }
    firni_crypt_forget(&record_key, sizeof record_key);
    firni_coder_destroy(coder);
    firni_free(disk->env, sections);
    return firni_code_of_record(status);
}

/* Reads the whole record into memory of its own; what is read is not trusted before verify_bytes. */
static firni_code verify_entry(const firni_disk *disk, firni_volume *volume, const firni_key *key,
                               const firni_entry *entry)
{
    uint8_t *bytes = firni_alloc_aligned(disk->env, (size_t)entry->place.n_bytes, FIRNI_RECORD_ALIGN);
    int fd;
    firni_code code = bytes == NULL ? ENOMEM : firni_segment_use(&volume->segments, entry->place.segment, &fd);
    if (code == 0) {
        const firn_io *io = firni_io(disk->env);
        const int64_t n = io->pread(io->ctx, fd, bytes, (size_t)entry->place.n_bytes, entry->place.offset);
        firni_segment_leave(&volume->segments, entry->place.segment);
        code = n < 0 ? (firni_code)-n : (uint64_t)n < entry->place.n_bytes ? FIRNI_CODE_CORRUPT : 0;
    }
    if (code == 0) {
        code = verify_bytes(disk, key, entry, bytes);
    }
    firni_free(disk->env, bytes);
    return code;
}

firn_status firn_disk_verify(firn_tier *tier, uint64_t *n_good, uint64_t *n_bad, firn_error *err)
{
    *n_good = 0;
    *n_bad = 0;
    firni_disk *disk = firni_disk_of(tier);
    firn_status status;
    firni_volume *volume = enter(disk, &status, err);
    if (volume == NULL) {
        return status;
    }
    if (volume->index.is_locked) {
        status = firni_fail(err, FIRN_ERR_KEY, "%s is encrypted; its records verify with its key alone", disk->dir);
        firni_disk_leave(disk, volume);
        return status;
    }
    firni_key key = { .which = FIRNI_RECORDS };
    firni_entry entry;
    firni_code code = 0;
    while (status == FIRN_OK && (code = next_entry(&volume->index, &key, &entry)) == 0) {
        if (entry.is_quarantined) {
            ++*n_bad;
            continue;
        }
        code = verify_entry(disk, volume, &key, &entry);
        if (code == EIO) {
            code = verify_entry(disk, volume, &key, &entry); /* a bad sector stays bad; a passing error is no verdict */
        }
        if (code == 0) {
            ++*n_good;
        } else if (code == FIRNI_CODE_CORRUPT || code == ENOENT || code == EIO) {
            /* GONE: evicted while we read it, neither good nor bad. */
            const firn_reason reason = firni_disk_bad_record(disk, volume, &key, &entry, FIRNI_CODE_CORRUPT);
            *n_bad += reason == FIRN_REASON_CORRUPT;
            pthread_mutex_lock(&disk->mutex);
            const bool is_full = disk->n_suspects == FIRNI_SUSPECTS_MAX;
            pthread_mutex_unlock(&disk->mutex);
            if (is_full && !disk->options.read_only) {
                pthread_mutex_lock(&disk->writer);
                (void)firni_disk_upkeep(disk, volume);
                pthread_mutex_unlock(&disk->writer);
            }
        } else {
            status = fail_code(err, code, disk, "cannot verify the records");
        }
    }
    if (status == FIRN_OK && code != MDB_NOTFOUND) {
        status = fail_code(err, code, disk, "cannot list the records");
    }
    if (!disk->options.read_only) {
        pthread_mutex_lock(&disk->writer);
        (void)firni_disk_upkeep(disk, volume);
        pthread_mutex_unlock(&disk->writer);
    }
    firni_disk_leave(disk, volume);
    return status;
}
