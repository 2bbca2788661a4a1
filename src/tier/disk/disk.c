/*
 * The disk tier itself: options, opening and closing, the attached volume and its state, statistics.
 *
 *      attached --directory gone, index broken--> detached --after a pause, when the path is back--> attached
 *          |                                          |
 *          |  ENOSPC, EROFS, EIO ...: a named state,   '-- lookups miss, stores are refused, both with the reason
 *          '- reading goes on, the next store tries again
 *
 * Owns which volume is attached and when it is given up or looked for again. What the operations do is in the files of
 * their own; disk_impl.h is the map.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bounded.h"
#include "tier/disk/ledger_impl.h"

#define BUDGET_BYTES_DEFAULT  (UINT64_C(16) << 30)
#define SEGMENT_BYTES_DEFAULT (UINT64_C(256) << 20)
#define RETRY_PAUSE_NS_MIN    UINT64_C(100000000) /* 100 ms, doubled after each vain attempt */
#define RETRY_PAUSE_NS_MAX    UINT64_C(30000000000)
#define FULL_BYTES         (UINT64_C(64) << 10) /* of a file system: with less it is full */
#define STOP_NS_DEFAULT       UINT64_C(5000000000)

firni_disk *firni_disk_of(firn_tier *tier)
{
    return (firni_disk *)tier;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

firn_reason firni_disk_reason_of(firni_code code)
{
    switch (code) {
    case 0: return FIRN_REASON_NONE;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case MDB_MAP_FULL: return FIRN_REASON_DISK_FULL;
    case EACCES:
    case EPERM:
    case EROFS: return FIRN_REASON_READ_ONLY;
    case ENOENT:
    case ENOTDIR:
    case ESTALE: return FIRN_REASON_GONE;
    case ENOMEM: return FIRN_REASON_NO_MEMORY;
    default: return FIRN_REASON_IO_ERROR;
    }
}

/* Which failures end the use of an attached directory, and which are only this operation's. A full disk or a device
 * error leaves the volume attached: what is stored can still be read. */
static bool is_fatal(firni_code code)
{
    return code == MDB_PANIC || code == MDB_CORRUPTED || code == MDB_PAGE_NOTFOUND || code == MDB_MAP_RESIZED ||
           code == MDB_INVALID || firni_disk_reason_of(code) == FIRN_REASON_GONE;
}

/* Gives the volume up. It is closed by whoever uses it last: here nobody can know who still reads. */
static void detach_locked(firni_disk *disk, firni_volume *volume)
{
    if (disk->volume == volume) {
        disk->volume = NULL;
        volume->is_detached = true;
        disk->retry_pause_ns = RETRY_PAUSE_NS_MIN;
        disk->retry_at_ns = firni_now_ns(disk->env) + RETRY_PAUSE_NS_MIN;
    }
}

/* LMDB says EIO of a write that a full disk cut short. A file system without a page to give is the better guess. */
static firni_code tell_full(const firni_disk *disk, firni_code code)
{
    const firn_io *io = firni_io(disk->env);
    firn_io_fs fs;
    return code == EIO && io->stat_fs(io->ctx, disk->dir, &fs) == 0 && fs.free_bytes < FULL_BYTES ? ENOSPC : code;
}

firn_reason firni_disk_failed(firni_disk *disk, firni_volume *volume, firni_code code, const char *what)
{
    assert(code != 0);
    code = tell_full(disk, code);
    const firn_reason reason = firni_disk_reason_of(code);
    /* Allocation failures come through here too, because they end an operation in the same places. */
    if (reason == FIRN_REASON_NO_MEMORY) {
        return reason; /* this process is short, not the disk */
    }
    pthread_mutex_lock(&disk->mutex);
    const bool is_news = disk->stats.state != reason;
    disk->stats.state = reason;
    if (is_fatal(code)) {
        detach_locked(disk, volume);
    }
    pthread_mutex_unlock(&disk->mutex);
    if (is_news) {
        firni_log(disk->env, FIRN_LOG_WARN, "disk tier %s: %s failed (%s); serving goes on without it", disk->dir, what,
                  mdb_strerror(code));
    }
    return reason;
}

void firni_disk_healthy(firni_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    const bool is_news = disk->stats.state != FIRN_REASON_NONE;
    disk->stats.state = FIRN_REASON_NONE;
    pthread_mutex_unlock(&disk->mutex);
    if (is_news) {
        firni_log(disk->env, FIRN_LOG_INFO, "disk tier %s: works again", disk->dir);
    }
}

/* ---- attaching --------------------------------------------------------------------------------------------------- */

/* Opens the directory and makes it the tier's. `create`: also when it does not exist, which only the first time may
 * mean a new store; later it means that somebody took it away, and to make it anew could fill the wrong file system. */
static firn_status attach(firni_disk *disk, bool create, firn_error *err)
{
    const firni_volume_options options = { .dir = disk->dir,
                                           .create = create,
                                           .read_only = disk->options.read_only,
                                           .buffered = disk->options.buffered,
                                           .sync_always = disk->options.durability == FIRN_DURABILITY_ALWAYS,
                                           .budget_bytes = disk->options.budget_bytes,
                                           .unlock = { .crypt = disk->crypt,
                                                       .may_be_locked = disk->options.schema == NULL } };
    firni_volume *volume = NULL;
    uint64_t last_stamp = 0;
    const firn_status status = firni_volume_open(&options, disk->env, &volume, &last_stamp, err);
    if (status != FIRN_OK) {
        return status;
    }
    pthread_mutex_lock(&disk->mutex);
    assert(disk->volume == NULL);
    volume->generation = ++disk->generation;
    disk->stamp_last = last_stamp > disk->stamp_last ? last_stamp : disk->stamp_last;
    disk->n_suspects = 0; /* they were of another generation */
    disk->is_locked = volume->index.is_locked;
    firni_memo_forget_all_locked(disk);
    disk->volume = volume;
    pthread_mutex_unlock(&disk->mutex);
    firni_disk_load_pins(disk);
    return FIRN_OK;
}

/* Looks for the directory again when its time has come. True when a volume is attached afterwards. */
static bool try_attach(firni_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    const bool due = disk->volume == NULL && !disk->is_attaching && firni_now_ns(disk->env) >= disk->retry_at_ns;
    disk->is_attaching = disk->is_attaching || due;
    pthread_mutex_unlock(&disk->mutex);
    if (!due) {
        return false;
    }
    firn_error err = { 0 };
    const firn_status status = attach(disk, false, &err);
    pthread_mutex_lock(&disk->mutex);
    disk->is_attaching = false;
    if (status == FIRN_OK) {
        disk->stats.state = FIRN_REASON_NONE;
    } else {
        disk->retry_pause_ns =
            2 * disk->retry_pause_ns < RETRY_PAUSE_NS_MAX ? 2 * disk->retry_pause_ns : RETRY_PAUSE_NS_MAX;
        disk->retry_at_ns = firni_now_ns(disk->env) + disk->retry_pause_ns;
        if (status == FIRN_ERR_BUSY) {
            disk->stats.state = FIRN_REASON_READ_ONLY; /* another process was faster */
        } else if (status == FIRN_ERR_CORRUPT) {
            disk->stats.state = FIRN_REASON_CORRUPT; /* the index: until it has been made anew */
        } else if (status == FIRN_ERR_KEY) {
            disk->stats.state = FIRN_REASON_WRONG_KEY; /* another store has taken the name */
        } else if (err.os_error != 0) {
            disk->stats.state = firni_disk_reason_of(err.os_error);
        }
    }
    pthread_mutex_unlock(&disk->mutex);
    if (status == FIRN_OK) {
        firni_log(disk->env, FIRN_LOG_INFO, "disk tier %s: attached again", disk->dir);
    }
    return status == FIRN_OK;
}

firni_volume *firni_disk_enter(firni_disk *disk, bool by_path, firn_reason *reason)
{
    for (;;) {
        pthread_mutex_lock(&disk->mutex);
        firni_volume *volume = disk->volume;
        if (volume != NULL) {
            volume->n_users++;
        }
        *reason = volume != NULL ? FIRN_REASON_NONE : disk->stats.state;
        pthread_mutex_unlock(&disk->mutex);
        if (volume == NULL && try_attach(disk)) {
            continue;
        }
        if (volume == NULL) {
            *reason = *reason != FIRN_REASON_NONE ? *reason : FIRN_REASON_GONE;
            return NULL;
        }
        /* An open file outlives its name: reading on would work, and would hide that nothing is kept any more. */
        const firni_code code = firni_volume_check(volume, by_path);
        if (code == 0) {
            return volume;
        }
        *reason = firni_disk_failed(disk, volume, code, "finding the directory");
        firni_disk_leave(disk, volume);
        return NULL;
    }
}

void firni_disk_leave(firni_disk *disk, firni_volume *volume)
{
    pthread_mutex_lock(&disk->mutex);
    assert(volume->n_users > 0);
    volume->n_users--;
    const bool is_last = volume->n_users == 0 && volume->is_detached;
    pthread_mutex_unlock(&disk->mutex);
    if (is_last) {
        firni_volume_close(volume);
    }
}

/* ---- recency, expiry, suspects ----------------------------------------------------------------------------------- */

uint64_t firni_disk_epoch(firni_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    const uint64_t epoch = disk->epoch;
    pthread_mutex_unlock(&disk->mutex);
    return epoch;
}

uint64_t firni_disk_take_stamps(firni_disk *disk, uint32_t n)
{
    /* Wall time, so that a time to live can be told from a stamp after a restart; never less than the last one, so that
     * a clock that was set back does not reorder uses. */
    const uint64_t now = firni_wall_ns(disk->env);
    const uint64_t first = now > disk->stamp_last ? now : disk->stamp_last + 1;
    disk->stamp_last = first + n;
    return first;
}

bool firni_disk_is_expired(const firni_disk *disk, uint64_t stamp)
{
    const uint64_t now = firni_wall_ns(disk->env);
    return disk->options.ttl_ns > 0 && now > stamp && now - stamp > disk->options.ttl_ns;
}

void firni_disk_suspect(firni_disk *disk, const firni_key *key, const firni_place *place)
{
    pthread_mutex_lock(&disk->mutex);
    /* Noted in RAM at once, which keeps lookups away from it; the index learns of it with the next upkeep. Marking it
     * here would make a restore wait for the writer. */
    firni_memo_forget_all_locked(disk); /* rare, and by place there is no quick way */
    bool is_known = false; /* two restores may have read it at once */
    for (uint32_t i = 0; i < disk->n_suspects && !is_known; i++) {
        is_known = firni_place_equal(&disk->suspects[i].place, place);
    }
    disk->stats.n_quarantined += !is_known;
    if (!is_known && disk->n_suspects < FIRNI_SUSPECTS_MAX) {
        disk->suspects[disk->n_suspects++] = (firni_suspect){ .key = *key, .place = *place };
    }
    pthread_mutex_unlock(&disk->mutex);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* Also the call that notices, on an idle server, that the directory went or came back. */
static void get_stats(firn_tier *tier, firn_tier_stats *out)
{
    firni_disk *disk = firni_disk_of(tier);
    firn_reason reason;
    firni_volume *volume = firni_disk_enter(disk, false, &reason);
    pthread_mutex_lock(&disk->mutex);
    *out = disk->stats;
    pthread_mutex_unlock(&disk->mutex);
    out->budget_bytes = disk->options.budget_bytes;
    if (volume != NULL) {
        firni_volume_measure_all(volume); /* file systems and LMDB add blocks of their own at times of their own */
        out->n_records = atomic_load(&volume->n_entries);
        out->physical_bytes = firni_volume_physical_bytes(volume);
        firni_disk_leave(disk, volume);
    }
}

/* Stores are durable when they return, but for what the durability leaves open: recency, and with NONE the data. True
 * when all of it is durable now. */
static bool flush_now(firni_disk *disk)
{
    firn_reason reason = FIRN_REASON_NONE;
    firni_volume *volume = disk->options.read_only ? NULL : firni_disk_enter(disk, true, &reason);
    if (volume != NULL) {
        pthread_mutex_lock(&disk->writer);
        firni_code code = firni_segments_sync_all(&volume->segments);
        reason = firni_disk_upkeep(disk, volume);
        if (code == 0) {
            code = firni_ledger_sync(volume);
        }
        if (code == 0) {
            code = firni_volume_settle(volume);
        }
        if (code == 0) {
            firni_volume_punch(volume);
        }
        pthread_mutex_unlock(&disk->writer);
        if (code != 0) {
            reason = firni_disk_failed(disk, volume, code, "flushing");
        }
        firni_disk_leave(disk, volume);
    }
    return disk->options.read_only || (volume != NULL && reason == FIRN_REASON_NONE);
}

/* One flush, and who waits for it. Freed by whichever side is the last. */
typedef struct flush_job {
    firni_disk *disk;
    atomic_uint refs;
    bool is_durable;
} flush_job;

static void flush_job_unref(flush_job *job)
{
    if (atomic_fetch_sub(&job->refs, 1) == 1) {
        firni_free(job->disk->env, job);
    }
}

static void run_flush(void *ctx)
{
    flush_job *job = ctx;
    firni_disk *disk = job->disk;
    job->is_durable = flush_now(disk);
    flush_job_unref(job);
    pthread_mutex_lock(&disk->mutex);
    disk->n_inside--;
    pthread_cond_broadcast(&disk->left);
    pthread_mutex_unlock(&disk->mutex);
}

/* One transaction and a sync of what was written take no longer than the device does, which may be for ever. */
static firn_flush_report flush(firn_tier *tier, uint64_t bound_ns)
{
    firni_disk *disk = firni_disk_of(tier);
    const uint64_t started_ns = firni_now_ns(disk->env);
    firn_flush_report report = { .durable = false };
    flush_job *job = firni_calloc(disk->env, 1, sizeof *job);
    if (job != NULL) {
        job->disk = disk;
        atomic_init(&job->refs, 2);
        pthread_mutex_lock(&disk->mutex);
        disk->n_inside++;
        pthread_mutex_unlock(&disk->mutex);
        report.durable = firni_run_bounded(disk->env, bound_ns, run_flush, job) && job->is_durable;
        flush_job_unref(job);
    }
    report.elapsed_ns = firni_now_ns(disk->env) - started_ns;
    return report;
}

/* Also the end of a failed open: each part may be missing. Order: no more lookups, no more reads, then recency to the
 * index, then the directory. */
static void destroy_now(void *ctx)
{
    firni_disk *disk = ctx;
    pthread_mutex_lock(&disk->mutex);
    disk->is_closing = true;
    while (disk->n_finding > 0) { /* left behind by whoever asked: there is nobody to give its handle back */
        (void)pthread_cond_wait(&disk->left, &disk->mutex);
    }
    pthread_mutex_unlock(&disk->mutex);
    firni_worker_destroy(disk->worker);
    pthread_mutex_lock(&disk->mutex);
    while (disk->n_inside > 0) {
        (void)pthread_cond_wait(&disk->left, &disk->mutex);
    }
    pthread_mutex_unlock(&disk->mutex);
    if (disk->volume != NULL) {
        (void)flush_now(disk);
    }
    for (uint32_t i = 0; i < disk->n_touches; i++) {
        firni_handle_unref(disk->touches[i].handle);
    }
    firni_disk_release_pins(disk);
    assert(disk->handles == NULL); /* all handles were released before */
    firni_memo_forget_all_locked(disk); /* nobody else is here any more */
    firni_volume_close(disk->volume);
    firni_crypt_destroy(disk->crypt);
    firni_plan_deinit(&disk->plan);
    firni_families_deinit(&disk->families);
    for (uint32_t i = 0; i < disk->n_shapes; i++) {
        firn_cache_destroy(disk->shapes[i]);
    }
    firni_free(disk->env, disk->shapes);
    firni_free(disk->env, disk->condemned);
    (void)pthread_mutex_destroy(&disk->writer);
    (void)pthread_mutex_destroy(&disk->mutex);
    (void)pthread_cond_destroy(&disk->left);
    firni_free(disk->env, disk->dir);
    firni_free(disk->env, disk);
}

/* Of a disk that does not answer only the waiting can be ended: see firni_run_bounded. */
static void destroy(firn_tier *tier)
{
    firni_disk *disk = firni_disk_of(tier);
    const firn_env *env = disk->env;
    const uint64_t stop_ns = disk->options.stop_ns;
    if (!firni_run_bounded(env, stop_ns, destroy_now, disk)) {
        firni_log(env, FIRN_LOG_ERROR, "a disk tier does not answer for %.1f s; it is left behind with its threads and "
                  "its memory, and what it had not stored is lost", (double)stop_ns * 1e-9);
    }
}

static const firn_schema *schema_of(firn_tier *tier)
{
    return firni_disk_of(tier)->options.schema;
}

static const firn_tier_ops disk_ops = {
    .name = "disk",
    .find = firni_disk_find,
    .find_exact = firni_disk_find_exact,
    .restore = firni_disk_restore,
    .restore_async = firni_disk_restore_async,
    .restore_object_async = firni_disk_restore_object_async,
    .restore_request = firni_disk_restore_request,
    .restore_into = firni_disk_restore_into,
    .store = firni_disk_store,
    .release = firni_disk_release,
    .flush = flush,
    .get_stats = get_stats,
    .schema = schema_of,
    .keep = &firni_disk_keep,
    .destroy = destroy,
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Everything about the options that can be wrong without looking at the disk. */
static firn_status check_options(const firn_disk_options *options, firn_error *err)
{
    if (options->dir == NULL || options->dir[0] == '\0' || strlen(options->dir) + 64 > FIRNI_DISK_PATH_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "the disk tier needs a directory");
    }
    if (options->schema != NULL && options->pool == NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "the disk tier needs a pool to restore into");
    }
    if (options->budget_bytes != 0 && options->budget_bytes < FIRNI_DISK_BUDGET_MIN) {
        return firni_fail(err, FIRN_ERR_INVALID, "a disk budget of %llu bytes is too small; use 64 MiB or more",
                          (unsigned long long)options->budget_bytes);
    }
    if (options->schema != NULL && options->schema->n_layers >= FIRNI_IOV_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "%u layers; the disk tier writes at most %u at once",
                          options->schema->n_layers, FIRNI_IOV_MAX - 1);
    }
    if (options->durability > FIRN_DURABILITY_ALWAYS) {
        return firni_fail(err, FIRN_ERR_INVALID, "durability %d does not exist", (int)options->durability);
    }
    return FIRN_OK;
}

/* A budget that was lowered since the last time holds from the start. */
static firn_status fit_budget(firni_disk *disk, firn_error *err)
{
    firn_reason reason;
    firni_volume *volume = firni_disk_enter(disk, false, &reason);
    if (volume == NULL) {
        return firni_fail(err, FIRN_ERR_IO, "%s vanished while it was opened", disk->dir);
    }
    pthread_mutex_lock(&disk->writer);
    if (firni_volume_physical_bytes(volume) > disk->options.budget_bytes) {
        (void)firni_disk_make_room(disk, volume, 0, 0, FIRN_PRIORITY_MAX);
    }
    pthread_mutex_unlock(&disk->writer);
    firni_disk_leave(disk, volume);
    return FIRN_OK;
}

/* What the layers keep: an empty cache of each is asked, and stays to be asked again. */
static firn_status learn_schema(firni_disk *disk, firn_error *err)
{
    const firn_schema *schema = disk->options.schema;
    firn_status status = FIRN_OK;
    disk->shapes = firni_calloc(disk->env, schema->n_layers, sizeof(firn_cache *));
    if (disk->shapes == NULL && schema->n_layers > 0) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a disk tier of %u layers", schema->n_layers);
    }
    for (; disk->n_shapes < schema->n_layers; disk->n_shapes++) {
        status = firn_cache_create(&schema->layers[disk->n_shapes], disk->options.pool, disk->env,
                                   &disk->shapes[disk->n_shapes], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    const firn_cache *const *layers = (const firn_cache *const *)disk->shapes;
    status = firni_families_init(&disk->families, layers, disk->n_shapes, disk->env, err);
    const firni_plan_kinds kinds = { .of_layer = disk->families.kinds, .n = disk->families.n_windows };
    return status == FIRN_OK ? firni_plan_init(schema, layers, kinds, disk->env, &disk->plan, err) : status;
}

firn_status firn_disk_open(const firn_disk_options *options, const firn_env *env, firn_tier **out, firn_error *err)
{
    *out = NULL;
    firn_status status = check_options(options, err);
    if (status != FIRN_OK) {
        return status;
    }
    firni_disk *disk = firni_calloc(env, 1, sizeof *disk);
    if (disk == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a disk tier");
    }
    disk->tier.ops = &disk_ops;
    disk->env = env;
    disk->options = *options;
    disk->options.budget_bytes = options->budget_bytes != 0 ? options->budget_bytes : BUDGET_BYTES_DEFAULT;
    disk->options.segment_bytes = options->segment_bytes != 0 ? options->segment_bytes : SEGMENT_BYTES_DEFAULT;
    disk->options.stop_ns = options->stop_ns != 0 ? options->stop_ns : STOP_NS_DEFAULT;
    (void)pthread_mutex_init(&disk->writer, NULL);
    (void)pthread_mutex_init(&disk->mutex, NULL);
    (void)pthread_cond_init(&disk->left, NULL);
    disk->dir = firni_strdup(env, options->dir);
    disk->options.dir = disk->dir;
    disk->options.key = NULL; /* the caller's */
    if (disk->dir == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a disk tier");
    } else if (options->schema != NULL) {
        status = learn_schema(disk, err);
    }
    if (status == FIRN_OK && options->key != NULL) {
        status = firni_crypt_create(options->key, env, &disk->crypt, err);
    }
    if (status == FIRN_OK) {
        status = attach(disk, !options->read_only, err);
    }
    if (status == FIRN_OK && !options->read_only) {
        status = fit_budget(disk, err);
    }
    if (status == FIRN_OK && options->schema != NULL) {
        status = firni_worker_create(disk, &disk->worker, err);
    }
    if (status != FIRN_OK) {
        destroy_now(disk);
        return status;
    }
    *out = &disk->tier;
    return FIRN_OK;
}
