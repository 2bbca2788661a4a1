/*
 * A new index from segments and ledger, for one that is lost, damaged or of another version.
 *
 *   1. take the writer's lock; open the segments, and not the index;
 *   2. scan: every record that is whole and where it says it is (fsck_scan.c); read the ledger (fsck_ledger.c);
 *   3. of the records under one key keep the one that has most layers, then the newest;
 *   4. keep what has the whole chain before it: in a namespace below another, as far as its own records do not reach,
 *      the chain of the one above that a record names;
 *   5. order by use: the youngest thing that is known to need a record is its last use;
 *   6. remove the old index, and name everything in one transaction, which also makes the new index complete;
 *   7. give back what is not named: logged as holes by that transaction, then punched.
 *
 * Nothing that is stored changes before the commit of 6. A process that ends before leaves no index, or one that is not
 * complete: neither is opened by a tier, and a second run begins at 1.
 *
 * What an index knew and neither segments nor ledger say is lost: when a record was last used (now: when it was
 * written), and whether it was quarantined (now: read again, and left out when it is damaged).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/disk/fsck_impl.h"

#define MAP_BUDGET_BYTES (UINT64_C(1) << 40) /* address space for the new index: more than any store needs */

/* ---- 3. one record for each key ---------------------------------------------------------------------------------- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_keys(const firni_found *a, const firni_found *b)
{
    if (a->which != b->which) {
        return a->which < b->which ? -1 : 1;
    }
    const int parents = memcmp(a->parent.bytes, b->parent.bytes, FIRN_DIGEST_BYTES);
    if (parents != 0) {
        return parents;
    }
    const int counts = compare_u64(a->entry.n_tokens, b->entry.n_tokens);
    return counts != 0 ? counts : memcmp(a->tokens, b->tokens, sizeof a->tokens);
}

/* By key; of one key the best first: no record with more layers is given up for one with fewer. */
static int by_key(const void *a, const void *b)
{
    const firni_found *left = *(firni_found *const *)a, *right = *(firni_found *const *)b;
    int order = compare_keys(left, right);
    order = order != 0 ? order : compare_u64(right->entry.n_window, left->entry.n_window);
    order = order != 0 ? order : compare_u64(right->entry.created_wall_ns, left->entry.created_wall_ns);
    order = order != 0 ? order : compare_u64(right->entry.place.segment, left->entry.place.segment);
    return order != 0 ? order : compare_u64(right->entry.place.offset, left->entry.place.offset);
}

static bool drop(firni_fsck *job, firni_found *found, uint64_t *counter)
{
    found->is_kept = false;
    ++*counter;
    return firni_fsck_add_debris(job, &found->entry.place);
}

static bool choose_best(firni_fsck *job, firni_found **order)
{
    qsort(order, job->n_found, sizeof(firni_found *), by_key);
    for (uint64_t i = 0; i < job->n_found; i++) {
        order[i]->is_kept = i == 0 || compare_keys(order[i - 1], order[i]) != 0;
        if (!order[i]->is_kept && !drop(job, order[i], &job->report.n_superseded)) {
            return false;
        }
    }
    return true;
}

/* ---- 4. whole chains --------------------------------------------------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
    const firni_found *left = *(firni_found *const *)a, *right = *(firni_found *const *)b;
    return memcmp(left->entry.digest.bytes, right->entry.digest.bytes, FIRN_DIGEST_BYTES);
}

static int by_position(const void *a, const void *b)
{
    const firni_found *left = *(firni_found *const *)a, *right = *(firni_found *const *)b;
    return compare_u64(left->entry.first_token, right->entry.first_token);
}

firni_found *firni_fsck_block(const firni_fsck *job, const firn_digest *digest)
{
    firni_found wanted = { .entry = { .digest = *digest } };
    firni_found *key = &wanted;
    firni_found *const *at = bsearch(&key, job->blocks, job->n_blocks, sizeof(firni_found *), by_digest);
    return at != NULL ? *at : NULL;
}

/* Whether a namespace reads the records of another: `below` is named after it. */
static bool reads(const firni_names *below, const firn_digest *root)
{
    firni_levels levels;
    firni_levels_of(below->ns, &levels);
    for (uint32_t level = 1; level < levels.n; level++) {
        const firn_digest above = firn_chain_root(&below->identity, levels.names[level]);
        if (firni_digest_equal(&above, root)) {
            return true;
        }
    }
    return false;
}

/* The block that a record continues: of its own chain, or of one above that it names. */
static firni_found *find_before(const firni_fsck *job, const firni_found *found)
{
    firni_found *own = firni_fsck_block(job, &found->parent);
    if (!found->links.has_before || (own != NULL && own->is_kept)) {
        return own;
    }
    return firni_fsck_block(job, &found->links.before);
}

/* A record stands on kept ones: those before it were judged before it, in the order of positions. */
static bool has_chain(const firni_fsck *job, const firni_found *found)
{
    const firni_entry *entry = &found->entry;
    const firni_names *names = firni_fsck_names(job, &entry->root);
    if (entry->first_token == 0) {
        /* Or an object by key: it has no tokens, and its parent is the digest of its key. */
        const bool is_first = firni_digest_equal(&found->parent, &entry->root) ||
                              (found->which == FIRNI_OBJECTS && entry->n_tokens == 0);
        return is_first && names != NULL;
    }
    const firni_found *before = found->before;
    if (before == NULL || !before->is_kept || before->entry.first_token + FIRN_BLOCK_TOKENS != entry->first_token) {
        return false;
    }
    return firni_digest_equal(&before->entry.root, &entry->root) ||
           (names != NULL && reads(names, &before->entry.root));
}

/* `order` and job->blocks have room for all; afterwards order is by position. */
static bool keep_chains(firni_fsck *job, firni_found **order)
{
    for (uint64_t i = 0; i < job->n_found; i++) {
        if (order[i]->is_kept && order[i]->entry.kind == FIRNI_RECORD_BLOCK) {
            job->blocks[job->n_blocks++] = order[i];
        }
    }
    qsort(job->blocks, job->n_blocks, sizeof(firni_found *), by_digest);
    qsort(order, job->n_found, sizeof(firni_found *), by_position);
    for (uint64_t i = 0; i < job->n_found; i++) {
        if (order[i]->is_kept) {
            order[i]->before = order[i]->entry.first_token > 0 ? find_before(job, order[i]) : NULL;
            if (!has_chain(job, order[i]) && !drop(job, order[i], &job->report.n_orphans)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- 5. recency and priority ------------------------------------------------------------------------------------- */

/* In the order in which eviction takes them: what depends on a record goes before it. */
static int by_use(const void *a, const void *b)
{
    const firni_found *left = *(firni_found *const *)a, *right = *(firni_found *const *)b;
    int order = compare_u64(left->used_wall_ns, right->used_wall_ns);
    order = order != 0 ? order : compare_u64(right->entry.first_token, left->entry.first_token);
    /* Objects, then checkpoints, then records. */
    static const uint8_t ranks[] = { [FIRNI_RECORDS] = 2, [FIRNI_OBJECTS] = 0, [FIRNI_CHECKPOINTS] = 1 };
    order = order != 0 ? order : compare_u64(ranks[left->which], ranks[right->which]);
    return order != 0 ? order : memcmp(left->entry.digest.bytes, right->entry.digest.bytes, FIRN_DIGEST_BYTES);
}

/* `order` is by position; afterwards by use. A block is at least as young as what continues it, and then comes later,
 * so that stamps, which only rise, keep every parent above its children. Whoever stored with a priority gave it to the
 * whole chain, so a block is also of the priority of what continues it. */
static void give_stamps(const firni_fsck *job, firni_found **order)
{
    for (uint64_t i = job->n_found; i-- > 0;) {
        firni_found *before = order[i]->is_kept ? order[i]->before : NULL;
        if (before != NULL && before->used_wall_ns < order[i]->used_wall_ns) {
            before->used_wall_ns = order[i]->used_wall_ns;
        }
        if (before != NULL && before->entry.priority < order[i]->entry.priority) {
            before->entry.priority = order[i]->entry.priority;
        }
    }
    qsort(order, job->n_found, sizeof(firni_found *), by_use);
    uint64_t last = 0;
    for (uint64_t i = 0; i < job->n_found; i++) {
        last = order[i]->used_wall_ns > last ? order[i]->used_wall_ns : last + 1;
        order[i]->entry.stamp = last;
    }
}

/* ---- 6. the index ------------------------------------------------------------------------------------------------ */

/* A checkpoint that lies on a record: with the keys in order, one that begins with its tokens is it or comes next. */
static firni_code lies_on_record(const firni_index *index, MDB_txn *txn, const firni_key *checkpoint, bool *out)
{
    firni_key key = *checkpoint;
    firni_entry entry;
    key.which = FIRNI_RECORDS;
    firni_code code = firni_index_get(index, txn, &key, &entry);
    *out = code == 0;
    if (code == MDB_NOTFOUND) {
        code = firni_index_next(index, txn, &key, &entry);
        *out = code == 0 && key.n_bytes > checkpoint->n_bytes &&
               memcmp(key.bytes, checkpoint->bytes, checkpoint->n_bytes) == 0;
    }
    return code == MDB_NOTFOUND ? 0 : code;
}

/* Or on one of a namespace above, below the parent that it names. */
static firni_code check_checkpoint(const firni_index *index, MDB_txn *txn, const firni_found *found,
                                   const firni_key *key, bool *lies)
{
    firni_code code = lies_on_record(index, txn, key, lies);
    if (code == 0 && !*lies && found->links.has_under) {
        const firni_key above = firni_key_make(FIRNI_CHECKPOINTS, &found->links.under, found->tokens,
                                               found->entry.n_tokens);
        code = lies_on_record(index, txn, &above, lies);
    }
    return code;
}

static firni_code add_links(const firni_index *index, MDB_txn *txn, const firni_found *found)
{
    firni_code code = 0;
    if (found->links.has_before) {
        code = firni_index_put_link(index, txn, &found->links.before, &found->parent);
    }
    if (found->links.has_under && code == 0) {
        code = firni_index_put_link(index, txn, &found->links.under, &found->parent);
    }
    return code;
}

/* What the index says of an identity: records at token 0 do, whichever namespace's. */
static const char *identity_text(const firni_fsck *job, const firni_names *names)
{
    for (uint32_t i = 0; names->text == NULL && i < job->n_names; i++) {
        if (job->names[i].text != NULL && firni_digest_equal(&job->names[i].identity, &names->identity)) {
            return job->names[i].text;
        }
    }
    return names->text;
}

static firni_code add_found(firni_fsck *job, MDB_txn *txn, firni_found *found)
{
    const firni_index *index = &job->volume->index;
    const firni_key key = firni_key_make(found->which, &found->parent, found->tokens, found->entry.n_tokens);
    if (found->which == FIRNI_CHECKPOINTS) {
        bool lies;
        const firni_code code = check_checkpoint(index, txn, found, &key, &lies);
        if (code != 0 || !lies) {
            return code != 0 ? code : drop(job, found, &job->report.n_orphans) ? 0 : ENOMEM;
        }
    }
    const firni_names *names = firni_fsck_names(job, &found->entry.root);
    assert(names != NULL); /* or the chain would not have been kept */
    const firn_schema schema = { .identity = names->identity, .identity_text = identity_text(job, names) };
    job->report.n_records++;
    job->report.record_bytes += found->entry.place.n_bytes;
    const firni_code code = firni_index_add(index, txn, &key, &found->entry, &schema, names->ns);
    return code == 0 ? add_links(index, txn, found) : code;
}

/* Records first: checkpoints have to find them. */
static firni_code add_all(firni_fsck *job, MDB_txn *txn, firni_found *const *order)
{
    firni_code code = 0;
    for (unsigned which = FIRNI_RECORDS; which <= FIRNI_WHICH_LAST && code == 0; which++) {
        for (uint64_t i = 0; i < job->n_found && code == 0; i++) {
            if (order[i]->is_kept && order[i]->which == which) {
                code = add_found(job, txn, order[i]);
            }
        }
    }
    return code;
}

/* What is given back lies in segments that remain; the others go as a whole. */
static firni_code log_debris(firni_fsck *job, MDB_txn *txn)
{
    if (job->n_debris > UINT32_MAX / 4 || !firni_volume_reserve_holes(job->volume, (uint32_t)job->n_debris)) {
        return ENOMEM;
    }
    for (uint64_t i = 0; i < job->n_debris; i++) {
        firni_segment_info info;
        job->report.freed_bytes += job->debris[i].n_bytes;
        if (firni_index_get_segment(&job->volume->index, txn, job->debris[i].segment, &info) == 0) {
            firni_volume_add_hole(job->volume, &job->debris[i]);
        }
    }
    return firni_volume_log_holes(job->volume, txn);
}

static firni_code commit(firni_fsck *job, firni_found *const *order)
{
    const firni_index *index = &job->volume->index;
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(index, false, &txn);
    if (code != 0) {
        return code;
    }
    code = add_all(job, txn, order);
    if (code == 0) {
        code = firni_fsck_add_names(job, txn);
    }
    if (code == 0) {
        code = log_debris(job, txn);
    }
    if (code == 0) {
        code = firni_index_set_next_segment(index, txn, job->volume->next_segment);
    }
    if (code == 0) {
        code = firni_index_complete(index, txn);
    }
    if (code != 0) {
        mdb_txn_abort(txn);
        return code;
    }
    return mdb_txn_commit(txn);
}

/* 7. A file that cannot be unlinked now is unknown to the index, and goes when the store is opened. */
static firni_code give_back(firni_fsck *job)
{
    firni_volume *volume = job->volume;
    firni_volume_holes_committed(volume);
    firni_code code = firni_volume_settle(volume); /* nothing goes before the index that does not name it is durable */
    if (code != 0) {
        return code;
    }
    firni_volume_punch(volume);
    MDB_txn *txn = NULL;
    code = firni_index_begin(&volume->index, true, &txn);
    for (uint32_t id = firni_segment_next(&volume->segments, 0); id != 0 && code == 0;) {
        const uint32_t next = firni_segment_next(&volume->segments, id);
        firni_segment_info info;
        code = firni_index_get_segment(&volume->index, txn, id, &info);
        if (code == MDB_NOTFOUND) {
            code = firni_segment_unlink(&volume->segments, id);
        }
        id = next;
    }
    mdb_txn_abort(txn);
    return code;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static firn_status rebuild(firni_fsck *job, firn_error *err)
{
    const char *dir = job->volume->dir;
    firni_found **order = firni_calloc(job->env, job->n_found + 1, sizeof(firni_found *));
    job->blocks = firni_calloc(job->env, job->n_found + 1, sizeof(firni_found *));
    for (uint64_t i = 0; i < job->n_found && order != NULL; i++) {
        order[i] = &job->found[i];
    }
    firn_status status = FIRN_OK;
    if (order == NULL || job->blocks == NULL || firni_fsck_read_ledger(job) != 0 || !choose_best(job, order) ||
        !keep_chains(job, order)) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the records of %s", dir);
    }
    if (status == FIRN_OK) {
        firni_fsck_raise(job);
        give_stamps(job, order);
        status = firni_volume_new_index(job->volume, MAP_BUDGET_BYTES, job->crypt, err);
    }
    if (status == FIRN_OK) {
        firni_code code = commit(job, order);
        if (code == 0) {
            code = give_back(job);
        }
        if (code > 0) {
            status = firni_fail_os(err, code, "cannot write the index of %s", dir);
        } else if (code != 0) {
            status = firni_fail(err, FIRN_ERR_IO, "cannot write the index of %s: %s", dir, mdb_strerror(code));
        }
    }
    firni_free(job->env, order);
    return status;
}

static void deinit(firni_fsck *job)
{
    for (uint32_t i = 0; i < job->n_names; i++) {
        firni_free(job->env, job->names[i].ns);
        firni_free(job->env, job->names[i].text);
    }
    firni_free(job->env, job->names);
    firni_free(job->env, job->found);
    firni_free(job->env, job->blocks);
    firni_free(job->env, job->lines);
    firni_free(job->env, job->ledger.bytes);
    firni_free(job->env, job->debris);
    firni_volume_close(job->volume);
    firni_crypt_destroy(job->crypt);
}

firn_status firn_disk_fsck(const char *dir, const firn_disk_fsck_options *options, const firn_env *env,
                           firn_disk_fsck_report *out, firn_error *err)
{
    *out = (firn_disk_fsck_report){ 0 };
    firni_fsck job = { .env = env, .headers_only = options != NULL && options->headers_only };
    if (dir == NULL || strlen(dir) + 64 > FIRNI_DISK_PATH_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "a store to rebuild needs a directory");
    }
    firni_volume_options volume_options = { .dir = dir, .without_index = true, .budget_bytes = MAP_BUDGET_BYTES };
    uint64_t last_stamp;
    firn_status status = FIRN_OK;
    if (options != NULL && options->key != NULL) {
        status = firni_crypt_create(options->key, env, &job.crypt, err);
        volume_options.unlock.crypt = job.crypt;
    }
    if (status == FIRN_OK) {
        status = firni_volume_open(&volume_options, env, &job.volume, &last_stamp, err);
    }
    if (status == FIRN_OK) {
        status = firni_fsck_scan(&job, err);
    }
    if (status == FIRN_OK && job.n_found == 0 && job.n_other_version > 0) {
        status = firni_fail(err, FIRN_ERR_FORMAT, "the records in %s are of another version", dir);
    }
    /* With one record of another key the index would lose what cannot be made again. */
    if (status == FIRN_OK && job.n_other_key > 0) {
        status = firni_fail(err, FIRN_ERR_KEY, "%s %s", dir, job.crypt == NULL
                                ? "is encrypted; its index cannot be made without its key (--cache-key-file FILE)"
                                : "holds records that are not of the key that was given");
    }
    if (status == FIRN_OK) {
        status = rebuild(&job, err);
    }
    if (status == FIRN_OK) {
        *out = job.report;
    }
    deinit(&job);
    return status;
}
