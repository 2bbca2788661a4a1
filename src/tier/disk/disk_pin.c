/*
 * Pins by name: paths and objects that are not evicted before their end date.
 *
 *      index            pins: name -> namespace, tokens, end      keys: key -> end
 *                            \ at attach, and when one is made: a lookup of exactly these tokens
 *      memory           standing: handles like those of a reader, held by the tier itself
 *
 * A standing handle pins its records as any handle does, so eviction needs no rule of its own. It differs in one point:
 * what it names may be replaced by a better record of the same tokens, because nobody reads through it. Loading takes
 * as long as the pinned paths are, whatever else is stored.
 *
 * The rows are the truth; what stands in memory follows them. A path that is damaged when the tier opens does not stand
 * until it is pinned again.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/disk_impl.h"

#define PINS_MAX     1024u
#define BUDGET_SHARE 2u /* pins may take one part in so many */

typedef struct firni_standing {
    struct firni_standing *next;
    firni_kept_table table;
    char *ns, *name;
    uint64_t until_wall_ns;
    firn_tier_handle *handle;
} firni_standing;

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static bool is_named(const firni_standing *pin, firni_kept_table table, const char *ns, const char *name)
{
    return pin->table == table && strcmp(pin->name, name) == 0 && (table == FIRNI_PINS || strcmp(pin->ns, ns) == 0);
}

/* Bytes of the handle's records that no standing pin of the list up to `end` names; that one, and what stands under the
 * name that is being replaced, do not count. */
static uint64_t new_bytes_locked(const firni_disk *disk, const firn_tier_handle *handle, const firni_standing *end,
                                 const firni_standing *but)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < handle->n_records + 2; i++) {
        const firni_entry *entry = i < handle->n_records     ? &handle->entries[i]
                                   : i == handle->n_records ? (handle->has_checkpoint ? &handle->checkpoint : NULL)
                                   : handle->has_object     ? &handle->object
                                                            : NULL;
        bool is_counted = entry == NULL;
        for (const firni_standing *pin = disk->standing; pin != end && !is_counted; pin = pin->next) {
            is_counted = pin != but && firni_handle_names(pin->handle, entry) != NULL;
        }
        n_bytes += is_counted ? 0 : entry->place.n_bytes;
    }
    return n_bytes;
}

static void count_locked(firni_disk *disk)
{
    disk->stats.n_pins = 0;
    disk->stats.pinned_bytes = 0;
    for (const firni_standing *pin = disk->standing; pin != NULL; pin = pin->next) {
        disk->stats.n_pins++;
        disk->stats.pinned_bytes += new_bytes_locked(disk, pin->handle, pin, NULL);
    }
}

static void destroy_pin(firni_disk *disk, firni_standing *pin)
{
    if (pin == NULL) {
        return;
    }
    if (pin->handle != NULL) {
        firni_disk_release(&disk->tier, pin->handle);
    }
    firni_free(disk->env, pin->ns);
    firni_free(disk->env, pin->name);
    firni_free(disk->env, pin);
}

/* Takes the first that `wanted` says yes to out of the list. */
static firni_standing *unlink_locked(firni_disk *disk, bool (*wanted)(const firni_standing *pin, const void *ctx),
                                     const void *ctx)
{
    for (firni_standing **link = &disk->standing; *link != NULL; link = &(*link)->next) {
        firni_standing *pin = *link;
        if (wanted(pin, ctx)) {
            *link = pin->next;
            pin->next = NULL;
            return pin;
        }
    }
    return NULL;
}

typedef struct pin_name {
    firni_kept_table table;
    const char *ns, *name;
} pin_name;

static bool has_name(const firni_standing *pin, const void *ctx)
{
    const pin_name *wanted = ctx;
    return is_named(pin, wanted->table, wanted->ns, wanted->name);
}

static bool has_ended(const firni_standing *pin, const void *ctx)
{
    const uint64_t *now_ns = ctx;
    return pin->until_wall_ns <= *now_ns;
}

static bool is_any(const firni_standing *pin, const void *ctx)
{
    (void)pin;
    (void)ctx;
    return true;
}

bool firni_pin_stand(firni_disk *disk, firni_kept_table table, const char *ns, const char *name, uint64_t until_wall_ns,
                     firn_tier_handle *handle)
{
    const pin_name wanted = { .table = table, .ns = ns, .name = name };
    firni_standing *pin = firni_calloc(disk->env, 1, sizeof *pin);
    if (pin != NULL) {
        *pin = (firni_standing){ .table = table,
                                 .ns = firni_strdup(disk->env, ns),
                                 .name = firni_strdup(disk->env, name),
                                 .until_wall_ns = until_wall_ns,
                                 .handle = handle };
    }
    if (pin == NULL || pin->ns == NULL || pin->name == NULL) {
        if (pin == NULL) {
            firni_disk_release(&disk->tier, handle);
        }
        destroy_pin(disk, pin);
        return false;
    }
    pthread_mutex_lock(&disk->mutex);
    firni_standing *before = unlink_locked(disk, has_name, &wanted);
    handle->is_standing = true;
    pin->next = disk->standing;
    disk->standing = pin;
    count_locked(disk);
    pthread_mutex_unlock(&disk->mutex);
    destroy_pin(disk, before); /* after the new one stands: what both name is never without */
    return true;
}

bool firni_pin_end(firni_disk *disk, firni_kept_table table, const char *ns, const char *name)
{
    const pin_name wanted = { .table = table, .ns = ns, .name = name };
    pthread_mutex_lock(&disk->mutex);
    firni_standing *pin = unlink_locked(disk, has_name, &wanted);
    count_locked(disk);
    pthread_mutex_unlock(&disk->mutex);
    destroy_pin(disk, pin);
    return pin != NULL;
}

bool firni_disk_has_pins(firni_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    const bool has_pins = disk->standing != NULL;
    pthread_mutex_unlock(&disk->mutex);
    return has_pins;
}

bool firni_disk_is_kept_locked(const firni_disk *disk, const firni_entry *entry)
{
    const uint64_t now_ns = disk->standing != NULL ? firni_wall_ns(disk->env) : 0;
    for (const firni_standing *pin = disk->standing; pin != NULL; pin = pin->next) {
        if (pin->until_wall_ns > now_ns && firni_handle_names(pin->handle, entry) != NULL) {
            return true;
        }
    }
    return false;
}

/* The rows of those that ended go one by one: they are few, and one that could not be deleted is passed over when the
 * tier opens the next time. An object's row stays: only its pin has ended. */
void firni_disk_expire_pins(firni_disk *disk, firni_volume *volume)
{
    const uint64_t now_ns = firni_wall_ns(disk->env);
    for (;;) {
        pthread_mutex_lock(&disk->mutex);
        firni_standing *pin = unlink_locked(disk, has_ended, &now_ns);
        if (pin != NULL) {
            count_locked(disk);
        }
        pthread_mutex_unlock(&disk->mutex);
        MDB_txn *txn = NULL;
        if (pin == NULL) {
            return;
        }
        if (pin->table == FIRNI_PINS && !disk->options.read_only &&
            firni_index_begin(&volume->index, false, &txn) == 0) {
            const firn_digest key =
                firni_kept_key(FIRNI_PINS, &disk->options.schema->identity, pin->ns, pin->name);
            (void)firni_index_del_kept(&volume->index, txn, FIRNI_PINS, &key);
            (void)mdb_txn_commit(txn);
        }
        destroy_pin(disk, pin);
    }
}

/* ---- pin and unpin ----------------------------------------------------------------------------------------------- */

/* The share of the budget that pins may take, with this one and without the one that it replaces. */
static firn_status check_share(firni_disk *disk, const firn_pin *pin, const firn_tier_handle *handle, firn_error *err)
{
    const uint64_t share = disk->options.budget_bytes / BUDGET_SHARE;
    pthread_mutex_lock(&disk->mutex);
    const firni_standing *but = disk->standing;
    while (but != NULL && !is_named(but, FIRNI_PINS, pin->ns, pin->name)) {
        but = but->next;
    }
    const uint64_t n_bytes = new_bytes_locked(disk, handle, NULL, but);
    uint64_t n_pinned = 0, n_pins = 1;
    for (const firni_standing *other = disk->standing; other != NULL; other = other->next) {
        n_pinned += other != but ? new_bytes_locked(disk, other->handle, other, but) : 0;
        n_pins += other != but;
    }
    pthread_mutex_unlock(&disk->mutex);
    if (n_pins > PINS_MAX) {
        return firni_fail(err, FIRN_ERR_CAPACITY, "there are %u pins already, which is the most", PINS_MAX);
    }
    if (n_pinned + n_bytes > share) {
        return firni_fail(err, FIRN_ERR_CAPACITY,
                          "pin \"%.60s\" would keep %" PRIu64 " bytes beside the %" PRIu64 " that are pinned; pins may "
                          "take %" PRIu64 ", one half of the disk budget: remove a pin, or raise --disk-budget",
                          pin->name, n_bytes, n_pinned, share);
    }
    return FIRN_OK;
}

/* Tokens as the index has them. */
static uint8_t *encode_tokens(const firni_disk *disk, const firn_token *tokens, uint32_t n_tokens)
{
    uint8_t *bytes = firni_calloc(disk->env, n_tokens, 4);
    for (uint32_t i = 0; bytes != NULL && i < n_tokens; i++) {
        firni_put_u32(bytes + 4 * (size_t)i, tokens[i]);
    }
    return bytes;
}

firn_status firni_disk_pin(firn_tier *tier, const firn_pin *pin, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    if (disk->options.read_only) {
        return firni_fail(err, FIRN_ERR_IO, "%s is open for reading only", disk->dir);
    }
    if (pin->until_wall_ns <= firni_wall_ns(disk->env)) {
        return firni_fail(err, FIRN_ERR_INVALID, "the end of pin \"%.60s\" has passed already", pin->name);
    }
    const firn_match match = firni_disk_look_up(disk, pin->tokens, pin->n_tokens, pin->ns, true);
    if (match.handle == NULL) {
        return firni_fail(err, FIRN_ERR_NOT_FOUND,
                          "pin \"%.60s\": of its %u tokens %u are stored, and they cannot be resumed at their end (%s)",
                          pin->name, pin->n_tokens, match.matched_len,
                          firn_reason_name(match.reason != FIRN_REASON_NONE ? match.reason : FIRN_REASON_NO_PREFIX));
    }
    firn_status status = check_share(disk, pin, match.handle, err);
    uint8_t *tokens = status == FIRN_OK ? encode_tokens(disk, pin->tokens, pin->n_tokens) : NULL;
    if (status == FIRN_OK && tokens == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to pin %u tokens", pin->n_tokens);
    }
    if (status == FIRN_OK) {
        const firni_kept row = { .until_wall_ns = pin->until_wall_ns,
                                 .used_wall_ns = firni_wall_ns(disk->env),
                                 .ns = pin->ns,
                                 .name = pin->name,
                                 .tokens = tokens,
                                 .n_tokens = pin->n_tokens };
        const firn_digest key = firni_kept_key(FIRNI_PINS, &disk->options.schema->identity, pin->ns, pin->name);
        status = firni_kept_write(disk, FIRNI_PINS, &key, &row, err);
    }
    firni_free(disk->env, tokens);
    if (status != FIRN_OK) {
        firni_disk_release(tier, match.handle);
        return status;
    }
    return firni_pin_stand(disk, FIRNI_PINS, pin->ns, pin->name, pin->until_wall_ns, match.handle)
               ? FIRN_OK
               : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a pin; it holds from the next start on");
}

firn_status firni_disk_unpin(firn_tier *tier, const char *name, firn_error *err)
{
    firni_disk *disk = firni_disk_of(tier);
    if (disk->options.schema == NULL) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED, "pins belong to a model; %s is open without one", disk->dir);
    }
    const firn_digest key = firni_kept_key(FIRNI_PINS, &disk->options.schema->identity, "", name);
    const firn_status status = firni_kept_write(disk, FIRNI_PINS, &key, NULL, err);
    if (status == FIRN_OK) {
        (void)firni_pin_end(disk, FIRNI_PINS, "", name);
    }
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

typedef struct load {
    firni_disk *disk;
    firni_kept_table table;
    uint64_t now_ns;
} load;

static bool load_row(void *ctx, const firni_kept *row, const firn_token *tokens)
{
    const load *job = ctx;
    firn_tier_handle *handle = NULL;
    if (row->until_wall_ns <= job->now_ns) {
        return true;
    }
    firn_reason reason;
    if (job->table == FIRNI_PINS) {
        handle = firni_disk_look_up(job->disk, tokens, row->n_tokens, row->ns, true).handle;
    } else {
        handle = firni_disk_find_object(&job->disk->tier, row->ns, row->name, &reason);
    }
    if (handle != NULL) {
        (void)firni_pin_stand(job->disk, job->table, row->ns, row->name, row->until_wall_ns, handle);
    } else {
        firni_log(job->disk->env, FIRN_LOG_WARN, "disk tier %s: what \"%.60s\" pins is not whole any more",
                  job->disk->dir, row->name);
    }
    return true;
}

void firni_disk_load_pins(firni_disk *disk)
{
    firni_disk_release_pins(disk); /* of another generation */
    load job = { .disk = disk, .now_ns = firni_wall_ns(disk->env) };
    for (job.table = FIRNI_PINS; disk->options.schema != NULL && job.table <= FIRNI_KEYS; job.table++) {
        if (job.table != FIRNI_SESSIONS) {
            (void)firni_kept_each(disk, job.table, load_row, &job, NULL);
        }
    }
}

void firni_disk_release_pins(firni_disk *disk)
{
    for (;;) {
        pthread_mutex_lock(&disk->mutex);
        firni_standing *pin = unlink_locked(disk, is_any, NULL);
        count_locked(disk);
        pthread_mutex_unlock(&disk->mutex);
        if (pin == NULL) {
            return;
        }
        destroy_pin(disk, pin);
    }
}
