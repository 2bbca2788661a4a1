/*
 * Demotion: records that nobody has used for long are rewritten packed, while nobody uses the tier.
 *
 *   1. choose the next records that are idle, in the order in which they would be evicted;
 *   2. see that there is room for a second copy of them;
 *   3. of each that nobody was promised: read and verify it, pack it, and append it when that saves a tenth or more;
 *   4. sync, then condemn each, unless it was promised to somebody meanwhile: only for the commit, since a lookup that
 *      comes between finds nothing;
 *   5. in one index transaction: say where each lies now, or that it gains too little; log the old ranges;
 *   6. punch these, once that commit is durable (holes.c).
 *
 *      before   [ plain record                    ]
 *      step 3   [ plain record                    ]   ...   [ packed ]
 *      step 6   [ hole                            ]   ...   [ packed ]
 *
 * Until the commit of 5 the plain record is the one that counts; a failure before it makes holes of what was written.
 * The entry keeps its stamp and priority, so the order of eviction is as it was. A step is bounded in records and
 * bytes, and the writer's lock is free between two of them.
 *
 * Does not unpack anything that is used again: it would be written twice more. Objects stay as they are: they are read
 * into one buffer and decoded from there, and most are smaller than a block of the file system.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

#define STEP_RECORDS 32u
#define STEP_BYTES   (UINT64_C(4) << 20) /* of plain records, but always one */
#define STEP_LOOKS   1024u               /* entries looked at: most may be packed already */
#define GAIN_TENTHS  1u                  /* of a record, that packing has to save */
#define QUIET_NS     UINT64_C(5000000000)

typedef struct candidate {
    firni_key key;
    firni_entry entry;  /* as it is */
    firni_entry packed; /* as it will be */
    bool is_written;    /* a range of a segment was taken */
    bool is_decided;    /* packed or not, the index is to say so */
    bool is_claimed;    /* and may: nobody was promised it */
} candidate;

typedef struct demote_step {
    firni_disk *disk;
    firni_volume *volume;
    firni_coder *coder;
    firn_disk_demote_report *report;
    candidate *list;        /* [STEP_RECORDS] */
    uint32_t n;
    uint64_t n_bytes;       /* of their plain records */
    uint8_t *plain, *packed; /* of one record */
    uint64_t capacity;
    uint32_t segment_before;
    uint32_t emptied[STEP_RECORDS + 1];
    uint32_t n_emptied;
} demote_step;

/* ---- quiet ------------------------------------------------------------------------------------------------------- */

void firni_disk_note_activity(firni_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    disk->active_at_ns = firni_now_ns(disk->env);
    pthread_mutex_unlock(&disk->mutex);
}

bool firni_disk_is_quiet(firni_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    const uint64_t now_ns = firni_now_ns(disk->env), active_at_ns = disk->active_at_ns;
    const bool is_busy = disk->n_inside > 0;
    pthread_mutex_unlock(&disk->mutex);
    return !is_busy && now_ns >= active_at_ns && now_ns - active_at_ns >= QUIET_NS;
}

/* ---- 1. candidates ----------------------------------------------------------------------------------------------- */

static bool is_idle(const firni_disk *disk, uint64_t stamp)
{
    const uint64_t now = firni_wall_ns(disk->env);
    return now > stamp && now - stamp > disk->options.demote_idle_ns;
}

static bool is_wanted(const firni_entry *entry)
{
    return entry->plain_bytes == 0 && !entry->is_incompressible && !entry->is_quarantined &&
           entry->kind != FIRNI_RECORD_OBJECT;
}

/* Candidates from where the last step ended; *at_end: there are no more behind them. */
static firni_code choose(demote_step *step, uint64_t n_bytes_max, bool *at_end)
{
    firni_disk *disk = step->disk;
    firni_rank rank = disk->demote_from;
    MDB_txn *txn = NULL;
    *at_end = false;
    step->n = 0;
    step->n_bytes = 0;
    firni_code code = firni_index_begin(&step->volume->index, true, &txn);
    for (uint32_t i = 0; i < STEP_LOOKS && step->n < STEP_RECORDS && code == 0; i++) {
        candidate *next = &step->list[step->n];
        *next = (candidate){ .is_written = false };
        code = firni_index_oldest(&step->volume->index, txn, rank, &next->key, &next->entry);
        if (code != 0) {
            break;
        }
        const firni_entry *entry = &next->entry;
        if (!is_idle(disk, entry->stamp)) {
            rank = (firni_rank){ .priority = entry->priority + 1 }; /* the rest of this priority was used later */
            continue;
        }
        if (is_wanted(entry)) {
            if (step->n > 0 && step->n_bytes + entry->place.n_bytes > n_bytes_max) {
                break;
            }
            step->n_bytes += entry->place.n_bytes;
            step->n++;
        }
        rank = (firni_rank){ .priority = entry->priority, .stamp = entry->stamp + 1 };
    }
    mdb_txn_abort(txn);
    *at_end = code == MDB_NOTFOUND;
    disk->demote_from = *at_end ? (firni_rank){ .priority = FIRN_PRIORITY_MIN } : rank;
    return *at_end ? 0 : code;
}

/* ---- 2. room ----------------------------------------------------------------------------------------------------- */

/* In a cache that is full the oldest records make room for one copy at a time; what each saves is room for the next. */
static firn_reason make_room(demote_step *step, bool *at_end)
{
    firni_disk *disk = step->disk;
    const firni_rank from = disk->demote_from;
    if (step->n == 0 || firni_disk_has_room(disk, step->volume, step->n_bytes, 2 * step->n)) {
        return FIRN_REASON_NONE;
    }
    const candidate *first = &step->list[0];
    disk->demote_from = (firni_rank){ .priority = first->entry.priority, .stamp = first->entry.stamp };
    const firn_reason reason =
        firni_disk_make_room(disk, step->volume, first->entry.place.n_bytes, 2, first->entry.priority);
    if (reason != FIRN_REASON_NONE) {
        disk->demote_from = from;
        step->n = 0;
        return reason;
    }
    const firni_code code = choose(step, 0, at_end); /* one: the first may just have been evicted */
    if (code == 0 && step->n > 0 && !firni_disk_has_room(disk, step->volume, step->n_bytes, 2)) {
        step->n = 0; /* larger than that one; the next step begins behind it */
    }
    return code == 0 ? FIRN_REASON_NONE : firni_disk_failed(disk, step->volume, code, "reading the index");
}

/* ---- 3. one record ---------------------------------------------------------------------------------------- */

/* A use that is noted but not written down would not find the record at its new place, and the chain would lose its
 * order of stamps. Once condemned nobody can note another. */
static bool has_touch(firni_disk *disk, const firni_entry *entry)
{
    bool found = false;
    pthread_mutex_lock(&disk->mutex);
    for (uint32_t i = 0; i < disk->n_touches && !found; i++) {
        found = firni_handle_names(disk->touches[i].handle, entry) != NULL;
    }
    pthread_mutex_unlock(&disk->mutex);
    return found;
}

static bool is_in_use(firni_disk *disk, const firni_entry *entry)
{
    pthread_mutex_lock(&disk->mutex);
    const bool is_pinned = firni_disk_is_pinned_locked(disk, entry, NULL, false);
    pthread_mutex_unlock(&disk->mutex);
    return is_pinned || has_touch(disk, entry);
}

static bool reserve(demote_step *step, uint64_t n_bytes)
{
    const firn_env *env = step->disk->env;
    if (n_bytes > step->capacity) {
        firni_free(env, step->plain);
        firni_free(env, step->packed);
        step->plain = firni_alloc_aligned(env, (size_t)n_bytes, FIRNI_RECORD_ALIGN);
        step->packed = firni_alloc_aligned(env, (size_t)n_bytes, FIRNI_RECORD_ALIGN);
        step->capacity = step->plain != NULL && step->packed != NULL ? n_bytes : 0;
    }
    return step->capacity >= n_bytes;
}

static firni_code read_plain(demote_step *step, const firni_place *place)
{
    const firn_io *io = firni_io(step->disk->env);
    int fd;
    if (!reserve(step, place->n_bytes)) {
        return ENOMEM;
    }
    const firni_code code = firni_segment_use(&step->volume->segments, place->segment, &fd);
    if (code != 0) {
        return code;
    }
    const int64_t n = io->pread(io->ctx, fd, step->plain, (size_t)place->n_bytes, place->offset);
    firni_segment_leave(&step->volume->segments, place->segment);
    return n < 0 ? (firni_code)-n : (uint64_t)n < place->n_bytes ? FIRNI_CODE_CORRUPT : 0;
}

/* The record of the candidate, verified. Its own header says what it is made of, so that records of other models than
 * this process's can be packed too. */
static firni_code decode_plain(demote_step *step, const candidate *one, firni_section *sections, uint32_t n_sections,
                               firni_record *record)
{
    const firni_crypt *crypt = step->disk->crypt;
    const firni_place *place = &one->entry.place;
    const firn_digest parent = firni_key_parent(&one->key);
    firni_crypt_key key;
    firn_status status = firni_record_open_header(crypt, step->plain, (size_t)place->n_bytes, &key);
    if (status == FIRN_OK) {
        status = firni_record_decode(step->plain, (size_t)place->n_bytes, place->n_bytes, sections, n_sections, record,
                                     NULL);
    }
    if (status == FIRN_OK &&
        (record->record_bytes != place->n_bytes || record->plain_bytes != 0 || record->kind != one->entry.kind ||
         record->segment != place->segment || record->offset != place->offset ||
         !firni_digest_equal(&record->digest, &one->entry.digest) || !firni_digest_equal(&record->parent, &parent))) {
        status = FIRN_ERR_CORRUPT;
    }
    if (status == FIRN_OK) {
        status = firni_record_open_sections(crypt, &key, record, step->plain);
    }
    firni_crypt_forget(&key, sizeof key);
    return firni_code_of_record(status);
}

/* In an encrypted store what is packed is sealed then, with a key that was drawn for this write. record->sections are
 * those of the packed record, and get their tags. */
static firni_code seal_packed(const demote_step *step, firni_record *record)
{
    const firni_crypt *crypt = step->disk->crypt;
    firni_record_seal seal;
    firn_status status = crypt != NULL ? firni_record_seal_begin(crypt, &seal) : FIRN_OK;
    if (crypt != NULL && status == FIRN_OK) {
        status = firni_record_seal_sections(crypt, &seal.key, record->n_sections, record->sections, step->packed);
    }
    if (status == FIRN_OK) {
        firni_record_encode(record, step->packed);
    }
    if (crypt != NULL && status == FIRN_OK) {
        status = firni_record_seal_header(crypt, &seal, step->packed);
    }
    if (crypt != NULL) {
        firni_crypt_forget(&seal, sizeof seal);
    }
    return status == FIRN_OK ? 0 : status == FIRN_ERR_NO_MEMORY ? ENOMEM : EIO;
}

/* Appends the packed record, which lies in step->packed behind the room for its header. */
static firni_code append(demote_step *step, candidate *one, firni_record *record)
{
    firni_volume *volume = step->volume;
    firni_code code = firni_disk_choose_segment(step->disk, volume, record->record_bytes);
    if (code != 0) {
        return code;
    }
    record->segment = volume->segment_id;
    record->offset = firni_segment_end(&volume->segments, volume->segment_id);
    one->packed.place = (firni_place){ .segment = record->segment,
                                       .offset = record->offset,
                                       .n_bytes = record->record_bytes };
    one->packed.plain_bytes = record->plain_bytes;
    record->priority = one->entry.priority; /* what later users made of it */
    code = seal_packed(step, record);
    if (code != 0) {
        return code;
    }
    one->is_written = true;
    const struct iovec iov = { .iov_base = step->packed, .iov_len = (size_t)record->record_bytes };
    uint64_t offset = 0;
    code = firni_segment_append(&volume->segments, volume->segment_id, &iov, 1, record->record_bytes, &offset);
    assert(offset == record->offset || code != 0);
    return code;
}

/* Packs what was read, and appends it where that is worth it. */
static firni_code pack(demote_step *step, candidate *one, firni_section *sections, uint32_t n_sections)
{
    firni_record plain, packed;
    firni_code code = decode_plain(step, one, sections, n_sections, &plain);
    if (code != 0) {
        return code;
    }
    if (firni_record_pack(step->coder, &plain, step->plain, sections + n_sections, step->packed, &packed) != FIRN_OK) {
        return ENOMEM;
    }
    one->is_decided = true;
    one->packed = one->entry;
    one->packed.is_incompressible = packed.record_bytes > plain.record_bytes / 10 * (10 - GAIN_TENTHS);
    return one->packed.is_incompressible ? 0 : append(step, one, &packed);
}

/* 0 also where the record stays as it is: it is in use, or damaged. */
static firni_code demote_one(demote_step *step, candidate *one)
{
    firni_disk *disk = step->disk;
    if (is_in_use(disk, &one->entry)) {
        return 0;
    }
    uint32_t header_bytes, n_sections = 0;
    firni_section *sections = NULL;
    firni_code code = read_plain(step, &one->entry.place);
    if (code == 0 && firni_record_peek(step->plain, &header_bytes, &n_sections, NULL) != FIRN_OK) {
        code = FIRNI_CODE_CORRUPT;
    }
    if (code == 0) {
        sections = firni_calloc(disk->env, 2 * (size_t)n_sections + 1, sizeof *sections);
        code = sections != NULL ? pack(step, one, sections, n_sections) : ENOMEM;
    }
    firni_free(disk->env, sections);
    if (code == FIRNI_CODE_CORRUPT) {
        (void)firni_disk_bad_record(disk, step->volume, &one->key, &one->entry, code);
        return 0;
    }
    return code;
}

/* ---- 4. to 6. --------------------------------------------------------------------------------------------------- */

/* Whatever the durability: what takes the place of a durable record must be as durable. */
static firni_code sync_written(demote_step *step)
{
    uint32_t synced = 0;
    firni_code code = 0;
    for (uint32_t i = 0; i < step->n && code == 0; i++) {
        const candidate *one = &step->list[i];
        if (one->is_written && one->packed.place.segment != synced) {
            synced = one->packed.place.segment;
            code = firni_segment_sync(&step->volume->segments, synced);
        }
    }
    return code;
}

/* Whether any may change its place. */
static bool claim(demote_step *step)
{
    bool any = false;
    for (uint32_t i = 0; i < step->n; i++) {
        candidate *one = &step->list[i];
        one->is_claimed = one->is_decided && firni_disk_condemn(step->disk, &one->entry, NULL) &&
                          !has_touch(step->disk, &one->entry);
        any = any || one->is_claimed;
    }
    return any;
}

static firni_code drop_if_empty(demote_step *step, MDB_txn *txn, uint32_t segment)
{
    bool dropped = false;
    const firni_code code = firni_volume_drop_if_empty(step->volume, txn, segment, &dropped);
    if (dropped) {
        step->emptied[step->n_emptied++] = segment;
    }
    return code;
}

/* The writer's lock keeps the entries as they were chosen. */
static firni_code write_index(demote_step *step, MDB_txn *txn)
{
    firni_volume *volume = step->volume;
    firni_code code = 0;
    for (uint32_t i = 0; i < step->n && code == 0; i++) {
        const candidate *one = &step->list[i];
        if (one->is_claimed) {
            code = firni_index_move(&volume->index, txn, &one->key, &one->entry, &one->packed);
        }
        if (one->is_written) {
            firni_volume_add_hole(volume, one->is_claimed ? &one->entry.place : &one->packed.place);
        }
    }
    for (uint32_t i = 0; i < step->n && code == 0; i++) {
        code = step->list[i].is_claimed ? drop_if_empty(step, txn, step->list[i].entry.place.segment) : 0;
    }
    if (code == 0 && step->segment_before != volume->segment_id) {
        code = drop_if_empty(step, txn, step->segment_before);
    }
    if (code == 0) {
        code = firni_index_set_next_segment(&volume->index, txn, volume->next_segment);
    }
    return code == 0 ? firni_volume_log_holes(volume, txn) : code;
}

static firni_code commit(demote_step *step)
{
    firni_volume *volume = step->volume;
    const uint32_t n_holes_before = volume->n_holes;
    MDB_txn *txn = NULL;
    firni_code code = firni_index_begin(&volume->index, false, &txn);
    if (code != 0) {
        return code;
    }
    code = write_index(step, txn);
    if (code == 0) {
        code = mdb_txn_commit(txn);
    } else {
        mdb_txn_abort(txn);
    }
    if (code != 0) {
        volume->n_holes = n_holes_before;
        return code;
    }
    firni_disk_absolve(step->disk, true); /* lookups find them again, at their new places */
    firni_volume_holes_committed(volume);
    const bool is_settled = firni_volume_settle(volume) == 0; /* else the room of both copies stays taken till then */
    for (uint32_t i = 0; i < step->n_emptied && is_settled; i++) {
        firni_volume_unlink_segment(volume, step->emptied[i]);
    }
    firni_volume_punch(volume);
    firni_volume_measure(volume);
    return 0;
}

/* What was written and will not be named. */
static void give_up_written(demote_step *step)
{
    for (uint32_t i = 0; i < step->n; i++) {
        if (step->list[i].is_written) {
            firni_volume_add_hole(step->volume, &step->list[i].packed.place);
        }
    }
    firni_volume_punch(step->volume);
}

static void count(demote_step *step)
{
    uint64_t n_written = 0, n_demoted = 0, n_saved = 0;
    for (uint32_t i = 0; i < step->n; i++) {
        const candidate *one = &step->list[i];
        const bool is_demoted = one->is_written && one->is_claimed;
        n_demoted += is_demoted;
        n_saved += is_demoted ? one->packed.plain_bytes - one->packed.place.n_bytes : 0;
        step->report->n_incompressible += one->is_claimed && !one->is_written;
        step->report->plain_bytes += is_demoted ? one->packed.plain_bytes : 0;
        step->report->n_bytes += is_demoted ? one->packed.place.n_bytes : 0;
        n_written += one->is_written ? one->packed.place.n_bytes : 0;
    }
    step->report->n_demoted += n_demoted;
    pthread_mutex_lock(&step->disk->mutex);
    step->disk->stats.written_bytes += n_written;
    step->disk->stats.n_demoted += n_demoted;
    step->disk->stats.demoted_saved_bytes += n_saved;
    pthread_mutex_unlock(&step->disk->mutex);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static firni_code demote_all(demote_step *step)
{
    firni_disk *disk = step->disk;
    /* Each may become a hole, once as it is or once as it was written. */
    if (!firni_volume_reserve_holes(step->volume, STEP_RECORDS) || !firni_disk_reserve_condemned(disk, STEP_RECORDS)) {
        return ENOMEM;
    }
    step->segment_before = step->volume->segment_id;
    firni_code code = 0;
    for (uint32_t i = 0; i < step->n && code == 0; i++) {
        code = demote_one(step, &step->list[i]);
    }
    if (code == 0) {
        code = sync_written(step);
    }
    const bool any = code == 0 && claim(step);
    if (any) {
        code = commit(step);
    }
    if (code != 0 || !any) {
        firni_disk_absolve(disk, false);
        give_up_written(step);
    }
    if (code == 0) {
        count(step);
    }
    return code;
}

firn_reason firni_disk_demote_step(firni_disk *disk, firni_volume *volume, firn_disk_demote_report *report, bool *more)
{
    demote_step step = { .disk = disk, .volume = volume, .report = report };
    bool at_end = false;
    *more = false;
    step.list = firni_calloc(disk->env, STEP_RECORDS, sizeof *step.list);
    step.coder = firni_coder_create(disk->env);
    firni_code code = step.list == NULL || step.coder == NULL ? ENOMEM : choose(&step, STEP_BYTES, &at_end);
    firn_reason reason = FIRN_REASON_NONE;
    if (code == 0) {
        reason = make_room(&step, &at_end);
    }
    if (code == 0 && reason == FIRN_REASON_NONE && step.n > 0) {
        code = demote_all(&step);
    }
    firni_coder_destroy(step.coder);
    firni_free(disk->env, step.list);
    firni_free(disk->env, step.plain);
    firni_free(disk->env, step.packed);
    if (code != 0) {
        return firni_disk_failed(disk, volume, code, "packing idle records");
    }
    *more = reason == FIRN_REASON_NONE && !at_end;
    return reason;
}

firn_status firn_disk_demote(firn_tier *tier, firn_disk_demote_report *report, firn_error *err)
{
    *report = (firn_disk_demote_report){ 0 };
    firni_disk *disk = firni_disk_of(tier);
    if (disk->options.read_only || disk->options.demote_idle_ns == 0) {
        return firni_fail(err, FIRN_ERR_STATE, "%s was opened %s", disk->dir,
                          disk->options.read_only ? "for reading only" : "without a time after which records are idle");
    }
    if (disk->is_locked) {
        return firni_fail(err, FIRN_ERR_KEY, "%s is encrypted; its records are packed with its key alone", disk->dir);
    }
    firn_reason reason;
    firni_volume *volume = firni_disk_enter(disk, true, &reason);
    if (volume == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "%s cannot be written now (%s)", disk->dir, firn_reason_name(reason));
    }
    pthread_mutex_lock(&disk->writer);
    disk->demote_from = (firni_rank){ .priority = FIRN_PRIORITY_MIN };
    pthread_mutex_unlock(&disk->writer);
    bool more = true;
    while (more) { /* each step looks further, up to the youngest that is idle */
        pthread_mutex_lock(&disk->writer);
        (void)firni_disk_upkeep(disk, volume);
        reason = firni_disk_demote_step(disk, volume, report, &more);
        pthread_mutex_unlock(&disk->writer);
    }
    firni_disk_leave(disk, volume);
    if (reason == FIRN_REASON_NO_MEMORY) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to pack records of %s", disk->dir);
    }
    return reason == FIRN_REASON_NONE ? FIRN_OK
                                      : firni_fail(err, FIRN_ERR_IO, "cannot pack records of %s (%s)", disk->dir,
                                                   firn_reason_name(reason));
}
