/*
 * What a store has to write: the records that the index lacks of a prefix.
 *
 *   blocks       of 64 tokens: missing, quarantined, or without blocks of window layers that the rows still hold; the
 *                new record then takes the other one's place
 *   tail         the last partial block, unless a stored record begins with its tokens and has all that it has
 *   checkpoint   the fixed-size states at exactly this count, when the schema has such layers
 *
 *      rows of 300 tokens, one layer with a window of 100:    [0 bare][1 bare][2 bare][3 whole][tail whole]
 *      the same conversation, stored at 100 before:           [0 whole][tail 64..99, whole]
 *      afterwards:     [0 whole][1 bare][2 bare][3 whole][tail whole]    and still [0 whole][tail 64..99, whole]
 *
 * What is there wins unless the new has more families; so a bare record never takes the place of a whole one, and a
 * position that was usable stays so.
 *
 * Checks the caches, computes the chain's digests, reads the index; writes nothing.
 */
#include <assert.h>
#include <string.h>

#include "tier/disk/store_impl.h"

#define COVERS_MAX 16u /* records under one parent that begin with a tail's tokens, looked at for one that has all */

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Whether the row's view has what its layer needs at the store's count; notes from where on its window blocks are. */
static firn_reason check_view(firni_store_job *job, uint32_t layer)
{
    const uint32_t family = job->disk->plan.families[layer];
    const firn_row_view *view = &job->views[layer];
    const uint32_t n_tokens = job->input->n_tokens;
    if (family & (FIRNI_FAMILY_FULL | FIRNI_FAMILY_WINDOW)) {
        const uint32_t first_needed = firn_cache_first_block_needed(job->disk->shapes[layer], n_tokens);
        if (view->first_block > first_needed || view->first_block + view->n_blocks < job->n_blocks) {
            return FIRN_REASON_FAMILY_MISSING;
        }
        if (family & FIRNI_FAMILY_WINDOW) {
            uint32_t *first = &job->first_window[job->disk->families.kinds[layer]];
            *first = view->first_block > *first ? view->first_block : *first;
        }
    }
    if (family & FIRNI_FAMILY_FIXED) {
        /* A state is of one count: under any other key it would be another prefix's. */
        if (view->fixed == NULL) {
            return FIRN_REASON_FAMILY_MISSING;
        }
        if (view->n_tokens != n_tokens) {
            return FIRN_REASON_COUNT_MISMATCH;
        }
    }
    return FIRN_REASON_NONE;
}

/* The dispatcher has checked that each row may be published at this count; here it is the layout that has to be the
 * schema's. describe() is equal exactly when blocks may be exchanged. */
static firn_reason check_caches(firni_store_job *job)
{
    const firni_plan *plan = &job->disk->plan;
    const firn_store_input *input = job->input;
    if (input->n_tokens == 0) {
        return input->n_attachments > 0 ? FIRN_REASON_NONE : FIRN_REASON_BELOW_MIN;
    }
    if (input->n_caches == 0 && input->n_attachments > 0) {
        return FIRN_REASON_NONE; /* the state must be there: firni_store_find_new() sees to it */
    }
    if (input->n_caches != plan->n_layers) {
        return FIRN_REASON_FAMILY_MISSING;
    }
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const firn_cache *cache = input->caches[i];
        if (strcmp(firn_cache_describe(cache), plan->describe[i]) != 0) {
            return FIRN_REASON_WRONG_IDENTITY;
        }
        job->views[i] = firn_cache_view_row(cache, 0);
        const uint32_t reusable_from = firn_cache_minimum_reusable_offset(cache, 0);
        job->reusable_from = reusable_from > job->reusable_from ? reusable_from : job->reusable_from;
        const firn_reason reason = check_view(job, i);
        if (reason != FIRN_REASON_NONE) {
            return reason;
        }
    }
    return FIRN_REASON_NONE;
}

/* Of how many kinds, counted from the longest window, the rows still hold block i. Without rows of none: then any
 * record serves. */
static uint32_t kinds_held(const firni_store_job *job, uint32_t i)
{
    uint32_t n_kinds = 0;
    while (job->input->n_caches > 0 && n_kinds < job->disk->plan.n_kinds && job->first_window[n_kinds] <= i) {
        n_kinds++;
    }
    return n_kinds;
}

/* The entries of the chain as they would be written. */
static void describe_chain(firni_store_job *job)
{
    const firn_store_input *input = job->input;
    const firni_plan *plan = &job->disk->plan;
    firn_tier_handle *handle = job->handle;
    job->origin = firni_disk_origin(job->disk, input->ns);
    for (uint32_t i = 0; i < job->n_blocks; i++) {
        firni_entry *entry = &handle->entries[i];
        const uint32_t first = i * FIRN_BLOCK_TOKENS;
        entry->first_token = first;
        entry->n_tokens = input->n_tokens - first < FIRN_BLOCK_TOKENS ? input->n_tokens - first : FIRN_BLOCK_TOKENS;
        entry->kind = entry->n_tokens == FIRN_BLOCK_TOKENS ? FIRNI_RECORD_BLOCK : FIRNI_RECORD_TAIL;
        entry->digest = firn_chain_extend(firni_handle_parent(handle, 0, i), input->tokens + first, entry->n_tokens);
        entry->root = handle->roots[0];
        entry->priority = (int8_t)input->priority;
        entry->reusable_from = job->reusable_from;
        entry->n_full = (uint16_t)plan->n_full;
        entry->n_window = (uint16_t)plan->n_window[kinds_held(job, i)];
        handle->n_records = i + 1;
        firni_handle_extend(handle, 0, input->tokens + first, entry->n_tokens);
    }
    if (input->n_tokens > 0) {
        memcpy(handle->tokens, input->tokens, input->n_tokens * sizeof *handle->tokens);
    }
}

firn_reason firni_store_prepare(firni_store_job *job)
{
    firni_disk *disk = job->disk;
    const firn_store_input *input = job->input;
    job->n_blocks = (input->n_tokens + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS;
    if (firni_attachments_check(input->attachments, input->n_attachments, NULL) != FIRN_OK) {
        return FIRN_REASON_DISABLED; /* outside of what a tier keeps */
    }
    job->views = firni_calloc(disk->env, disk->plan.n_layers, sizeof *job->views);
    job->first_window = firni_calloc(disk->env, (size_t)disk->plan.n_kinds + 1, sizeof *job->first_window);
    job->handle = firni_handle_create(disk->env, job->n_blocks, job->n_blocks * FIRN_BLOCK_TOKENS);
    job->touched = firni_calloc(disk->env, (size_t)job->n_blocks + 1, sizeof *job->touched);
    job->pending = firni_calloc(disk->env, (size_t)job->n_blocks + 2, sizeof *job->pending);
    if (job->views == NULL || job->first_window == NULL || job->handle == NULL || job->touched == NULL ||
        job->pending == NULL ||
        !firni_handle_set_namespace(job->handle, &disk->options.schema->identity, input->ns)) {
        return FIRN_REASON_NO_MEMORY;
    }
    job->handle->priority = (int8_t)input->priority;
    if (job->keyed != NULL) {
        job->handle->is_keyed = true;
        job->handle->key_root = firni_object_root(&disk->options.schema->identity, input->ns, job->keyed->name);
    }
    const firn_reason reason = check_caches(job);
    if (reason == FIRN_REASON_NONE) {
        describe_chain(job);
    }
    return reason;
}

/* ---- what is new ------------------------------------------------------------------------------------------------- */

/* An entry becomes a new record. `old`: what is there under the same key, and is replaced. */
static void add_pending(firni_store_job *job, const firni_key *key, const firni_entry *entry,
                        const firni_plan_form *form, const firni_entry *old)
{
    firni_pending *pending = &job->pending[job->n_pending++];
    *pending = (firni_pending){ .key = *key,
                                .entry = *entry,
                                .form = form,
                                .tokens = job->handle->tokens + entry->first_token,
                                .parent = firni_key_parent(key),
                                .replaces = old != NULL };
    pending->entry.created_wall_ns = firni_wall_ns(job->disk->env);
}

/* Whether an entry that is there serves in the place of one that would be written: it has all that one has. */
static bool serves(const firni_entry *there, const firni_entry *wanted)
{
    return !there->is_quarantined && there->n_window >= wanted->n_window;
}

/* A stored record that begins with the tail's tokens and serves for it: with the keys in order, they come next. */
static firni_code find_cover(const firni_store_job *job, MDB_txn *txn, const firni_key *tail,
                             const firni_entry *wanted, firni_key *key, firni_entry *entry, bool *found)
{
    *key = *tail;
    *found = false;
    for (uint32_t i = 0; i < COVERS_MAX && !*found; i++) {
        const firni_code code = firni_index_next(&job->volume->index, txn, key, entry);
        if (code != 0 || key->n_bytes <= tail->n_bytes || memcmp(key->bytes, tail->bytes, tail->n_bytes) != 0) {
            return code == MDB_NOTFOUND ? 0 : code;
        }
        *found = serves(entry, wanted);
    }
    return 0;
}

/* What serves for block i in one level's chain: the record of its tokens, or one that covers a tail. *is_there: a
 * record has the block's own key, whether it serves or not; *found is that one then, unless another serves. */
static firni_code find_serving(const firni_store_job *job, MDB_txn *txn, uint32_t level, uint32_t i, firni_key *key,
                               firni_entry *found, bool *is_there, bool *is_served)
{
    const firn_tier_handle *handle = job->handle;
    const firni_entry *wanted = &handle->entries[i];
    *key = firni_key_make(FIRNI_RECORDS, firni_handle_parent(handle, level, i), handle->tokens + wanted->first_token,
                          wanted->n_tokens);
    firni_code code = firni_index_get(&job->volume->index, txn, key, found);
    *is_there = code == 0;
    *is_served = *is_there && serves(found, wanted);
    if (code != 0 && code != MDB_NOTFOUND) {
        return code;
    }
    if (!*is_served && wanted->kind == FIRNI_RECORD_TAIL) {
        firni_key cover;
        firni_entry cover_entry;
        code = find_cover(job, txn, key, wanted, &cover, &cover_entry, is_served);
        if (code != 0) {
            return code;
        }
        if (*is_served) {
            *key = cover;
            *found = cover_entry;
        }
    }
    return 0;
}

/* Block i of the chain: served by what is there, of the namespace's own or of one above it, or new. */
static firni_code find_new_block(firni_store_job *job, MDB_txn *txn, uint32_t i)
{
    firn_tier_handle *handle = job->handle;
    firni_entry *wanted = &handle->entries[i];
    firni_entry own, found;
    firni_key own_key, key;
    bool is_there = false, is_other, is_served = false;
    firni_code code = find_serving(job, txn, 0, i, &own_key, &own, &is_there, &is_served);
    key = own_key;
    found = own;
    uint32_t level = 0;
    while (code == 0 && !is_served && ++level < handle->n_levels) {
        code = find_serving(job, txn, level, i, &key, &found, &is_other, &is_served);
    }
    if (code != 0) {
        return code;
    }
    if (is_served) {
        *wanted = found;
        (void)firni_key_tokens(&key, handle->tokens + found.first_token); /* a cover has more of them */
        job->touched[i] = key;
        if (handle->level_of != NULL) {
            handle->level_of[i] = (uint8_t)level;
        }
    } else {
        const firni_plan *plan = &job->disk->plan;
        const uint32_t n_kinds = firni_plan_kinds_held(plan, wanted->n_window);
        add_pending(job, &own_key, wanted, &plan->blocks[n_kinds], is_there ? &own : NULL);
    }
    return 0;
}

/* The states of the fixed layers at exactly the store's count. */
static firni_code find_new_checkpoint(firni_store_job *job, MDB_txn *txn)
{
    firn_tier_handle *handle = job->handle;
    const uint32_t n_tokens = job->input->n_tokens;
    if (job->disk->plan.n_fixed == 0 || n_tokens == 0) {
        return 0;
    }
    firni_entry found = { 0 };
    firni_code code = MDB_NOTFOUND;
    handle->has_checkpoint = true;
    for (uint32_t level = handle->n_levels; level-- > 0;) { /* the own one last, for its key */
        handle->checkpoint_key = firni_checkpoint_key(handle, level, n_tokens);
        handle->checkpoint_level = (uint8_t)level;
        code = firni_index_get(&job->volume->index, txn, &handle->checkpoint_key, &found);
        if (code == 0 && !found.is_quarantined) {
            handle->checkpoint = found;
            job->touches_checkpoint = true;
            return 0;
        }
        if (code != 0 && code != MDB_NOTFOUND) {
            return code;
        }
    }
    const uint32_t first = (n_tokens - 1) / FIRN_BLOCK_TOKENS * FIRN_BLOCK_TOKENS;
    const firn_digest parent = firni_key_parent(&handle->checkpoint_key);
    handle->checkpoint = (firni_entry){
        .kind = FIRNI_RECORD_CHECKPOINT,
        .first_token = first,
        .n_tokens = n_tokens - first,
        .reusable_from = job->reusable_from,
        .n_fixed = (uint16_t)job->disk->plan.n_fixed,
        .digest = firni_chain_record(FIRNI_RECORD_CHECKPOINT, &parent, handle->tokens + first, n_tokens - first),
        .root = handle->roots[0],
        .priority = (int8_t)job->input->priority,
    };
    add_pending(job, &handle->checkpoint_key, &handle->checkpoint, &job->disk->plan.checkpoint,
                code == 0 ? &found : NULL);
    return 0;
}

/* A gap in the middle of the chain is possible: a record that was quarantined has live children, which become reachable
 * again when it is written anew. */
static firni_code find_new_records(firni_store_job *job, MDB_txn *txn)
{
    firni_code code = 0;
    for (uint32_t i = 0; i < job->n_blocks && code == 0; i++) {
        code = find_new_block(job, txn, i);
    }
    return code == 0 ? find_new_checkpoint(job, txn) : code;
}

/* What a new record goes on from, or lies on, in a namespace above; and then what all of them take. */
static void find_links(firni_store_job *job)
{
    const firn_tier_handle *handle = job->handle;
    for (uint32_t i = 0; i < job->n_pending + job->has_object; i++) {
        firni_pending *pending = &job->pending[i];
        const uint32_t record = pending->entry.first_token / FIRN_BLOCK_TOKENS;
        const bool lies_on = pending->entry.kind > FIRNI_RECORD_TAIL && record < handle->n_records;
        const uint32_t before = handle->level_of != NULL && record > 0 ? handle->level_of[record - 1] : 0;
        const uint32_t under = handle->level_of != NULL && lies_on ? handle->level_of[record] : 0;
        if (before > 0) {
            pending->links.has_before = true;
            pending->links.before = *firni_handle_parent(handle, before, record);
        }
        if (under > 0) {
            pending->links.has_under = true;
            pending->links.under = *firni_handle_parent(handle, under, record);
        }
        if (i < job->n_pending) {
            job->n_pending_bytes += pending->form->record_bytes +
                                    firni_form_names_bytes(pending->form, firni_origin_names(&job->origin, pending));
        }
    }
}

firni_code firni_store_find_new(firni_store_job *job)
{
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&job->volume->index, true, &txn);
    if (code == 0) {
        code = find_new_records(job, txn);
    }
    if (code == 0 && job->input->n_attachments > 0) {
        job->has_object = true;
        job->n_pending_bytes += firni_object_bytes_max(job->input->attachments, job->input->n_attachments);
        code = firni_object_plan(job->disk, job->volume, txn, job->handle, job->input->n_tokens,
                                 &job->pending[job->n_pending]);
    }
    mdb_txn_abort(txn);
    if (code == 0) {
        find_links(job);
    }
    return code;
}
