/*
 * Lookups: from tokens to a pinned handle, through the index alone.
 *
 * A prompt is walked block by block: the key of each record is its parent's digest and its tokens, so a step is one
 * exact search and nothing is hashed. Where the walk ends, the children of the last record are ordered by their tokens,
 * so the one that agrees longest is a neighbour of the key that was looked for.
 *
 *      root --[64 tokens]--> d1 --[64 tokens]--> d2 --?--> { [3 5 8 ..] [3 6 1 ..] [9 ..] }   prompt goes on with 3 6 2
 *
 * A walk that ends early says why: the stored tokens end, they differ (then the first stored token that differs is part
 * of the answer), or the next record may not be served. How much of what agrees can be resumed is asked of disk_path.c.
 * Where a record on the way is bare, a sibling that agrees for a while may still have its window blocks: a tail that
 * was stored when the conversation was shorter.
 *
 *      way       [0 whole][1 bare][2 bare][3 whole]      the prompt agrees for 210 tokens, but has no window there
 *      sibling            [1 whole, 36 tokens]           at 100 it has
 *
 * Does not read records; what a handle is and promises is disk_handle.c.
 */
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

#define ATTEMPTS_MAX   8u
#define NEIGHBOURS_MAX 16u /* unusable neighbours that are skipped to either side */

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

typedef struct prefix_walk {
    firni_disk *disk;
    const firni_index *index;
    MDB_txn *txn;
    const firn_token *tokens;
    uint32_t n_tokens;
    firn_tier_handle *handle; /* receives the records */
    uint32_t matched_len;
    bool is_retry;            /* the index changed under the walk before: nothing remembered is used */
    bool diverged;
    firn_token stored_token;
    firn_reason obstacle; /* the walk ended at a record that may not be served, for this reason */
} prefix_walk;

/* The handle keeps all tokens of a record, also those beyond the match: with them its keys can be made again. */
static void take_record(prefix_walk *walk, uint32_t level, const firni_entry *entry, const firn_token *tokens)
{
    firn_tier_handle *handle = walk->handle;
    memcpy(handle->tokens + (size_t)handle->n_records * FIRN_BLOCK_TOKENS, tokens, entry->n_tokens * sizeof *tokens);
    handle->entries[handle->n_records++] = *entry;
    firni_handle_extend(handle, level, tokens, entry->n_tokens);
}

/* The next full block of the way: the namespace's own, unless one above it has it with more window layers.
 * MDB_NOTFOUND: nobody has it. */
static firni_code find_block(prefix_walk *walk, const firn_token *tokens, uint32_t *level, firni_entry *entry)
{
    bool found = false;
    for (uint32_t l = 0; l < walk->handle->n_levels; l++) {
        const firn_digest *parent = firni_handle_parent(walk->handle, l, walk->handle->n_records);
        const firni_key key = firni_key_make(FIRNI_RECORDS, parent, tokens, FIRN_BLOCK_TOKENS);
        firni_entry other;
        const firni_code code = firni_index_get(walk->index, walk->txn, &key, &other);
        if (code != 0 && code != MDB_NOTFOUND) {
            return code;
        }
        if (code == 0 && firni_disk_may_serve(walk->disk, &other, &walk->obstacle) &&
            (!found || other.n_window > entry->n_window)) {
            *entry = other;
            *level = l;
            found = true;
        }
    }
    return found ? 0 : MDB_NOTFOUND;
}

/* Full blocks that a walk found before, as far as they may be served now. What lies above a namespace is looked at with
 * every lookup: which level has more can change without a record going. */
static void walk_remembered(prefix_walk *walk)
{
    firn_tier_handle *handle = walk->handle;
    const bool may_recall = !walk->is_retry && handle->n_levels == 1;
    uint32_t n = !may_recall ? 0 : firni_memo_recall(walk->disk, walk->tokens, walk->n_tokens, handle);
    if (n > 0 && walk->disk->options.ttl_ns > 0) {
        uint32_t n_live = 0;
        while (n_live < n && !firni_disk_is_expired(walk->disk, handle->entries[n_live].stamp)) {
            n_live++;
        }
        n = n_live;
    }
    handle->n_records = n;
    walk->matched_len = n * FIRN_BLOCK_TOKENS;
}

/* Full blocks along the prompt. */
static firni_code walk_blocks(prefix_walk *walk)
{
    while (walk->matched_len + FIRN_BLOCK_TOKENS <= walk->n_tokens) {
        const firn_token *tokens = walk->tokens + walk->matched_len;
        uint32_t level = 0;
        firni_entry entry;
        const firni_code code = find_block(walk, tokens, &level, &entry);
        if (code != 0) {
            return code == MDB_NOTFOUND ? 0 : code;
        }
        walk->obstacle = FIRN_REASON_NONE; /* of one level's record; another's serves */
        take_record(walk, level, &entry, tokens);
        walk->matched_len += FIRN_BLOCK_TOKENS;
    }
    return 0;
}

/* The best child found so far, and the one that agrees longest of those that may not be used. */
typedef struct candidate {
    bool found;
    uint32_t level;
    firni_entry entry;
    firn_token tokens[FIRN_BLOCK_TOKENS];
    uint32_t n_common;
} candidate;

typedef struct child_search {
    const firni_key *wanted;
    uint32_t level;        /* whose chain it is in */
    uint32_t n_window_min; /* children with fewer window layers are passed over */
    candidate best;
    uint32_t n_common_blocked;
    firn_reason obstacle;
} child_search;

/* Looks at the child under the cursor. True when the search in this direction is over. */
static bool consider(const prefix_walk *walk, const MDB_val *key, const MDB_val *value, child_search *search)
{
    const firni_key *wanted = search->wanted;
    firni_key found;
    if (key->mv_size <= FIRN_DIGEST_BYTES ||
        firni_index_open_key(walk->index, FIRNI_RECORDS, key->mv_data, key->mv_size, &found) != 0 ||
        memcmp(found.bytes, wanted->bytes, FIRN_DIGEST_BYTES) != 0) {
        return true; /* another parent's child */
    }
    candidate child = { .found = true, .level = search->level };
    firn_token wanted_tokens[FIRN_BLOCK_TOKENS];
    const uint32_t n_wanted = firni_key_tokens(wanted, wanted_tokens);
    const uint32_t n_found = firni_key_tokens(&found, child.tokens);
    while (child.n_common < n_wanted && child.n_common < n_found &&
           child.tokens[child.n_common] == wanted_tokens[child.n_common]) {
        child.n_common++;
    }
    firn_reason obstacle = FIRN_REASON_CORRUPT;
    if (firni_index_open_entry(walk->index, value, &child.entry) != 0 || child.entry.n_tokens != n_found ||
        !firni_disk_may_serve(walk->disk, &child.entry, &obstacle)) {
        if (child.n_common > search->n_common_blocked) {
            search->n_common_blocked = child.n_common;
            search->obstacle = obstacle;
        }
        return false;
    }
    if (child.entry.n_window < search->n_window_min) {
        return false;
    }
    if (!search->best.found || child.n_common > search->best.n_common) {
        search->best = child;
    }
    return true; /* farther away nothing agrees longer */
}

/* From the wanted key outwards, first to larger keys, then to smaller ones. Keys are sorted by their tokens, so the
 * agreement only shrinks with the distance; an unusable neighbour is the one reason to look further. */
static firni_code search_neighbours(const prefix_walk *walk, child_search *search)
{
    MDB_cursor *cursor = NULL;
    firni_code code = mdb_cursor_open(walk->txn, walk->index->records, &cursor);
    if (code != 0) {
        return code;
    }
    firni_key start;
    code = firni_index_seal_key(walk->index, search->wanted, &start);
    if (code != 0) {
        mdb_cursor_close(cursor);
        return code;
    }
    MDB_val key = { .mv_size = start.n_bytes, .mv_data = start.bytes }, value;
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    for (uint32_t i = 0; code == 0 && i < NEIGHBOURS_MAX && !consider(walk, &key, &value, search); i++) {
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    key = (MDB_val){ .mv_size = start.n_bytes, .mv_data = start.bytes };
    code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    code = mdb_cursor_get(cursor, &key, &value, code == 0 ? MDB_PREV : MDB_LAST);
    for (uint32_t i = 0; code == 0 && i < NEIGHBOURS_MAX && !consider(walk, &key, &value, search); i++) {
        code = mdb_cursor_get(cursor, &key, &value, MDB_PREV);
    }
    mdb_cursor_close(cursor);
    return code == MDB_NOTFOUND ? 0 : code;
}

/* In the chains of all levels, where they stand before this record; the first of equals is the nearest. */
static firni_code search_levels(const prefix_walk *walk, uint32_t record, const firn_token *tokens, uint32_t n_wanted,
                                child_search *search)
{
    firni_code code = 0;
    for (uint32_t level = 0; level < walk->handle->n_levels && code == 0; level++) {
        const firni_key wanted =
            firni_key_make(FIRNI_RECORDS, firni_handle_parent(walk->handle, level, record), tokens, n_wanted);
        search->wanted = &wanted;
        search->level = level;
        code = search_neighbours(walk, search);
    }
    search->wanted = NULL;
    return code;
}

/* The part of a block after the last full one that matched. */
static firni_code walk_partial(prefix_walk *walk)
{
    const uint32_t n_left = walk->n_tokens - walk->matched_len;
    const uint32_t n_wanted = n_left < FIRN_BLOCK_TOKENS ? n_left : FIRN_BLOCK_TOKENS;
    if (n_wanted == 0) {
        return 0;
    }
    child_search search = { .wanted = NULL };
    const firni_code code =
        search_levels(walk, walk->handle->n_records, walk->tokens + walk->matched_len, n_wanted, &search);
    const candidate *best = &search.best;
    if (code != 0) {
        return code;
    }
    if (walk->obstacle == FIRN_REASON_NONE && search.n_common_blocked > best->n_common) {
        walk->obstacle = search.obstacle;
    }
    if (best->n_common > 0) {
        take_record(walk, best->level, &best->entry, best->tokens);
        walk->matched_len += best->n_common;
    }
    if (best->found && best->n_common < n_wanted && best->n_common < best->entry.n_tokens) {
        walk->diverged = true;
        walk->stored_token = best->tokens[best->n_common];
    }
    return 0;
}

/* ---- how far it is usable ---------------------------------------------------------------------------------------- */

/* Puts the child that agrees longest and has all window blocks, which a last record needs, in the place of record i,
 * when the path can then be resumed in it. */
static firni_code try_sibling(prefix_walk *walk, firni_path *path, uint32_t i, uint32_t n_max, uint32_t *n_usable)
{
    firn_tier_handle *handle = walk->handle;
    const uint32_t first = i * FIRN_BLOCK_TOKENS;
    const uint32_t n_wanted = n_max - first < FIRN_BLOCK_TOKENS ? n_max - first : FIRN_BLOCK_TOKENS;
    child_search search = { .n_window_min = walk->disk->families.n_window };
    const firni_code code = search_levels(walk, i, walk->tokens + first, n_wanted, &search);
    if (code != 0 || search.best.n_common == 0) {
        return code;
    }
    candidate own = { .entry = handle->entries[i], .level = firni_handle_level(handle, i) };
    memcpy(own.tokens, handle->tokens + first, own.entry.n_tokens * sizeof own.tokens[0]);
    handle->n_records = i;
    take_record(walk, search.best.level, &search.best.entry, search.best.tokens);
    const uint32_t n = firni_path_usable(path, i + 1, first + search.best.n_common);
    if (n > first) {
        *n_usable = n;
    } else {
        handle->n_records = i;
        take_record(walk, own.level, &own.entry, own.tokens);
    }
    return path->code;
}

/* From the end of the way up: the first record with such a sibling wins. */
static firni_code search_siblings(prefix_walk *walk, firni_path *path, uint32_t n_max, uint32_t *n_usable)
{
    const firn_tier_handle *handle = walk->handle;
    const firni_families *families = &walk->disk->families;
    const uint32_t n_before = *n_usable;
    firni_code code = 0;
    for (uint32_t i = handle->n_records; i-- > 0 && *n_usable == n_before && code == 0;) {
        const uint32_t first = i * FIRN_BLOCK_TOKENS;
        if (first + FIRN_BLOCK_TOKENS <= n_before) {
            break;
        }
        /* A window that begins before a sibling needs the blocks of the record before it. */
        const bool is_reached = firni_families_first_window(families, first + FIRN_BLOCK_TOKENS) == i || i == 0 ||
                                handle->entries[i - 1].n_window > 0;
        if (first < n_max && handle->entries[i].n_window < families->n_window && is_reached) {
            code = try_sibling(walk, path, i, n_max, n_usable);
        }
    }
    return code;
}

/* How much of the n_max tokens on the handle's records can be resumed; the handle is cut to it. */
static firni_code find_usable(prefix_walk *walk, uint32_t n_max, uint32_t *n_usable, firn_reason *obstacle)
{
    firn_tier_handle *handle = walk->handle;
    firni_path path = { .disk = walk->disk, .index = walk->index, .txn = walk->txn, .handle = handle };
    *n_usable = firni_path_usable(&path, handle->n_records, n_max);
    firni_code code = path.code;
    if (code == 0 && *n_usable < n_max && walk->disk->plan.n_kinds > 0) {
        code = search_siblings(walk, &path, n_max, n_usable);
    }
    handle->n_records = (*n_usable + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS;
    if (code == 0 && *n_usable > 0 && walk->disk->plan.n_fixed > 0) {
        uint32_t level;
        code = firni_path_checkpoint(&path, *n_usable, &handle->checkpoint_key, &handle->checkpoint, &level);
        handle->has_checkpoint = code == 0;
        handle->checkpoint_level = (uint8_t)level;
        code = code == MDB_NOTFOUND ? EAGAIN : code;
    }
    *obstacle = path.obstacle != FIRN_REASON_NONE ? path.obstacle : FIRN_REASON_FAMILY_MISSING;
    return code;
}

/* The object bound to exactly n tokens of the handle, if there is one. */
static firni_code find_object(const prefix_walk *walk, firn_tier_handle *handle, uint32_t n_tokens)
{
    firni_code code = 0;
    handle->has_object = false;
    for (uint32_t level = 0; level < handle->n_levels && !handle->has_object && code == 0; level++) {
        handle->object_key = firni_object_key(handle, level, n_tokens);
        handle->object_level = (uint8_t)level;
        code = firni_index_get(walk->index, walk->txn, &handle->object_key, &handle->object);
        firn_reason ignored;
        handle->has_object = code == 0 && firni_disk_may_serve(walk->disk, &handle->object, &ignored);
        code = code == MDB_NOTFOUND ? 0 : code;
    }
    return code;
}

/* Nothing begins like this: is there anything of this identity at all? */
static firni_code explain_nothing(const prefix_walk *walk, firn_reason *reason)
{
    const char *text;
    size_t n_text;
    uint64_t n_roots, n_entries = 0;
    firni_code code = firni_index_get_identity(walk->index, walk->txn, &walk->disk->options.schema->identity, &text,
                                               &n_text, &n_roots);
    if (code == MDB_NOTFOUND) {
        code = firni_index_count(walk->index, walk->txn, &n_entries);
    }
    *reason = n_entries > 0 ? FIRN_REASON_WRONG_IDENTITY : FIRN_REASON_NO_PREFIX;
    return code;
}

/* ---- find -------------------------------------------------------------------------------------------------------- */

/* One snapshot of the index: fills handle and match. */
static firni_code look_up(prefix_walk *walk, bool exact, firn_match *match)
{
    firn_tier_handle *handle = walk->handle;
    walk_remembered(walk);
    firni_code code = walk_blocks(walk);
    if (code == 0) {
        code = walk_partial(walk);
    }
    if (code != 0) {
        return code;
    }
    const uint32_t n_wanted = exact ? walk->n_tokens : walk->n_tokens - 1;
    const uint32_t n_max = walk->matched_len < n_wanted ? walk->matched_len : n_wanted;
    *match = (firn_match){
        .matched_len = walk->matched_len, .diverged = walk->diverged, .stored_token = walk->stored_token
    };
    firn_reason lacking;
    code = find_usable(walk, n_max, &match->prefix_len, &lacking);
    if (code != 0) {
        return code;
    }
    if (match->prefix_len >= n_wanted) {
        match->reason = FIRN_REASON_NONE;
    } else if (walk->obstacle != FIRN_REASON_NONE) {
        match->reason = walk->obstacle;
    } else if (match->prefix_len < n_max) {
        match->reason = lacking;
    } else if (walk->matched_len > 0) {
        match->reason = walk->diverged ? FIRN_REASON_DIVERGED : FIRN_REASON_NO_PREFIX;
    } else {
        code = explain_nothing(walk, &match->reason);
    }
    return code == 0 ? find_object(walk, handle, match->prefix_len) : code;
}

/* A handle is worth something when it promises tokens, or (exact, zero tokens) an object. */
static bool is_hit(const firn_match *match, const firn_tier_handle *handle, uint32_t n_tokens, bool exact)
{
    if (exact) {
        return match->prefix_len == n_tokens && (n_tokens > 0 || handle->has_object);
    }
    return match->prefix_len > 0;
}

/* The read transaction is closed before the promise is made: it must not keep old pages alive while it waits for the
 * mutex. What may have changed in between is what the epoch is for. */
static firn_match find(firni_disk *disk, const firn_token *tokens, uint32_t n_tokens, const char *ns, bool exact)
{
    firn_match match = { .reason = FIRN_REASON_DISABLED };
    if (disk->options.schema == NULL) {
        return match;
    }
    firni_volume *volume = firni_disk_enter(disk, false, &match.reason);
    if (volume == NULL) {
        return match;
    }
    const uint32_t n_records_max = n_tokens / FIRN_BLOCK_TOKENS + 1;
    firn_tier_handle *handle = firni_handle_create(disk->env, n_records_max, n_records_max * FIRN_BLOCK_TOKENS);
    if (handle != NULL && !firni_handle_set_namespace(handle, &disk->options.schema->identity, ns)) {
        firni_handle_unref(handle);
        handle = NULL;
    }
    match.reason = handle == NULL ? FIRN_REASON_NO_MEMORY : FIRN_REASON_GONE;
    for (uint32_t attempt = 0; handle != NULL && attempt < ATTEMPTS_MAX; attempt++) {
        handle->generation = volume->generation;
        handle->n_records = 0;
        handle->has_checkpoint = false;
        const uint64_t epoch = firni_disk_epoch(disk);
        prefix_walk walk = {
            .disk = disk, .index = &volume->index, .tokens = tokens, .n_tokens = n_tokens, .handle = handle,
            .is_retry = attempt > 0
        };
        firni_code code = firni_index_begin(&volume->index, true, &walk.txn);
        if (code == 0) {
            code = look_up(&walk, exact, &match);
            mdb_txn_abort(walk.txn);
        }
        if (code == EAGAIN) { /* a checkpoint became suspect, or expired, between two looks */
            match = (firn_match){ .reason = FIRN_REASON_GONE };
            continue;
        }
        if (code != 0) {
            match = (firn_match){ .reason = firni_disk_failed(disk, volume, code, "looking up a prefix") };
            break;
        }
        if (!is_hit(&match, handle, n_tokens, exact)) {
            if (firni_disk_epoch(disk) == epoch) {
                break;
            }
            continue;
        }
        if (firni_handle_promise(disk, handle, epoch)) {
            match.handle = handle->is_pinned ? handle : NULL; /* not pinned: an object alone, and that is going */
            if (match.handle != NULL) {
                firni_memo_keep(disk, handle, epoch);
            }
            break;
        }
        match = (firn_match){ .reason = FIRN_REASON_GONE };
    }
    if (match.handle == NULL) {
        firni_handle_unref(handle);
    } else {
        handle->prefix_len = match.prefix_len;
    }
    firni_disk_leave(disk, volume);
    return match;
}

firn_match firni_disk_look_up(firni_disk *disk, const firn_token *tokens, uint32_t n_tokens, const char *ns, bool exact)
{
    return find(disk, tokens, n_tokens, ns, exact);
}

/* The end of every lookup: a miss always has a reason, and is counted under it. */
static firn_match find_and_count(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns,
                                 bool exact)
{
    firni_disk *disk = firni_disk_of(tier);
    pthread_mutex_lock(&disk->mutex);
    disk->n_finding++;
    pthread_mutex_unlock(&disk->mutex);
    firn_match match = find(disk, tokens, n_tokens, ns, exact);
    if (match.handle == NULL) {
        match.prefix_len = 0;
        if (match.reason == FIRN_REASON_NONE) {
            match.reason = match.matched_len > 0 ? FIRN_REASON_BELOW_MIN : FIRN_REASON_NO_PREFIX;
        }
    }
    pthread_mutex_lock(&disk->mutex);
    disk->stats.n_hits += match.handle != NULL;
    disk->stats.n_misses += match.handle == NULL;
    disk->stats.miss_reasons[match.reason] += match.handle == NULL;
    disk->n_finding--;
    pthread_cond_broadcast(&disk->left);
    pthread_mutex_unlock(&disk->mutex);
    return match;
}

firn_match firni_disk_find(firn_tier *tier, const firn_token *prompt, uint32_t n_tokens, const char *ns)
{
    return find_and_count(tier, prompt, n_tokens, ns, false);
}

firn_match firni_disk_find_exact(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens, const char *ns)
{
    return find_and_count(tier, tokens, n_tokens, ns, true);
}
