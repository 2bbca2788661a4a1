/*
 * The ledger's file: found, begun, appended to, given up. What a line says is ledger_line.c, when one is written
 * disk_ledger.c, and the map ledger_impl.h.
 *
 *      head   magic | XXH3-128 of the rest | version | flags | salt | id of the key
 *
 * A new file gets its lines, a sync, its head, a sync, and then its name is made durable; so a file with a head is
 * whole, and of two such files, which a crash may leave, the one with the higher number is the ledger.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/ledger_impl.h"

#define LEDGER_VERSION 1u
#define FLAG_SEALED    1u
#define FILE_BYTES_MAX (UINT64_C(1) << 30) /* more than any ledger has: a reader takes all of it into memory */

static const uint8_t head_magic[8] = { 0x89, 'F', 'I', 'R', 'N', 'L', '\r', '\n' };

uint32_t firni_ledger_number_of(const char *name)
{
    uint32_t number = 0;
    if (strncmp(name, "ledger-", 7) != 0 || strlen(name) != 20 || strcmp(name + 15, ".firn") != 0) {
        return 0;
    }
    for (unsigned i = 7; i < 15; i++) {
        if (name[i] < '0' || name[i] > '9') {
            return 0;
        }
        number = number * 10 + (uint32_t)(name[i] - '0');
    }
    return number;
}

static void ledger_path(const firni_volume *volume, uint32_t number, char path[FIRNI_DISK_PATH_MAX])
{
    (void)snprintf(path, FIRNI_DISK_PATH_MAX, "%s/ledger-%08" PRIu32 ".firn", volume->dir, number);
}

static void unlink_number(const firni_volume *volume, uint32_t number)
{
    const firn_io *io = firni_io(volume->env);
    char path[FIRNI_DISK_PATH_MAX];
    ledger_path(volume, number, path);
    (void)io->unlink(io->ctx, path); /* what stays is unlinked by the next process */
}

/* What the file occupies, by path: another thread may be closing it. */
void firni_ledger_measure(firni_volume *volume)
{
    const firn_io *io = firni_io(volume->env);
    const uint32_t number = atomic_load(&volume->ledger.number);
    char path[FIRNI_DISK_PATH_MAX];
    firn_io_stat stat;
    ledger_path(volume, number, path);
    if (number != 0 && io->stat_path(io->ctx, path, &stat) == 0) {
        atomic_store(&volume->ledger.physical_bytes, stat.physical_bytes);
    }
}

uint64_t firni_ledger_physical_bytes(firni_volume *volume)
{
    return atomic_load(&volume->ledger.number) != 0 ? atomic_load(&volume->ledger.physical_bytes) : 0;
}

/* ---- head -------------------------------------------------------------------------------------------------------- */

static void encode_head(const uint8_t *salt, const uint8_t *key_id, uint8_t head[FIRNI_LEDGER_HEAD_BYTES])
{
    memset(head, 0, FIRNI_LEDGER_HEAD_BYTES);
    memcpy(head, head_magic, sizeof head_magic);
    firni_put_u32(head + 24, LEDGER_VERSION);
    firni_put_u32(head + 28, key_id != NULL ? FLAG_SEALED : 0);
    memcpy(head + 32, salt, 16);
    if (key_id != NULL) {
        memcpy(head + 48, key_id, FIRNI_CRYPT_ID_BYTES);
    }
    const firni_checksum checksum = firni_checksum_of(head + 24, FIRNI_LEDGER_HEAD_BYTES - 24);
    firni_put_u64(head + 8, checksum.low);
    firni_put_u64(head + 16, checksum.high);
}

static const uint8_t *id_of(const firni_crypt *crypt)
{
    return crypt != NULL ? firni_crypt_id(crypt) : NULL;
}

/* Whether these bytes are the head of a ledger of this key, or of none; is_locked: or of any. */
static bool is_head(const uint8_t head[FIRNI_LEDGER_HEAD_BYTES], const firni_crypt *crypt, bool is_locked)
{
    uint8_t expected[FIRNI_LEDGER_HEAD_BYTES];
    encode_head(head + 32, is_locked ? head + 48 : id_of(crypt), expected);
    return memcmp(head, expected, sizeof expected) == 0;
}

/* ---- finding ----------------------------------------------------------------------------------------------------- */

/* Opens one file as the ledger. False: it is none, or cannot be read. */
static bool take(firni_volume *volume, uint32_t number, const firni_crypt *crypt, bool is_locked, bool look_only)
{
    const firn_io *io = firni_io(volume->env);
    firni_ledger *ledger = &volume->ledger;
    uint8_t head[FIRNI_LEDGER_HEAD_BYTES];
    char path[FIRNI_DISK_PATH_MAX];
    firn_io_stat stat;
    ledger_path(volume, number, path);
    const int fd = io->open(io->ctx, path, look_only ? O_RDONLY : O_RDWR, 0600);
    if (fd < 0) {
        return false;
    }
    if (io->pread(io->ctx, fd, head, sizeof head, 0) != (int64_t)sizeof head ||
        !is_head(head, crypt, is_locked) || io->stat(io->ctx, fd, &stat) < 0) {
        (void)io->close(io->ctx, fd);
        return false;
    }
    ledger->fd = fd;
    ledger->number = number;
    ledger->end = firni_round_up(stat.size_bytes, 16);
    ledger->is_unsynced = true; /* a former process may have left it so */
    memcpy(ledger->salt, head + 32, sizeof ledger->salt);
    atomic_store(&ledger->physical_bytes, stat.physical_bytes);
    return true;
}

void firni_ledger_open(firni_volume *volume, const uint32_t *numbers, uint32_t n_numbers, const firni_crypt *crypt,
                       bool is_locked, bool look_only)
{
    firni_ledger *ledger = &volume->ledger;
    uint32_t below = UINT32_MAX;
    for (uint32_t i = 0; i < n_numbers; i++) {
        ledger->last_number = numbers[i] > ledger->last_number ? numbers[i] : ledger->last_number;
    }
    while (ledger->number == 0) {
        uint32_t newest = 0;
        for (uint32_t i = 0; i < n_numbers; i++) {
            newest = numbers[i] < below && numbers[i] > newest ? numbers[i] : newest;
        }
        if (newest == 0) {
            break;
        }
        (void)take(volume, newest, crypt, is_locked, look_only);
        below = newest;
    }
    for (uint32_t i = 0; i < n_numbers && !look_only; i++) {
        if (numbers[i] != ledger->number) {
            unlink_number(volume, numbers[i]);
        }
    }
}

void firni_ledger_close(firni_volume *volume)
{
    const firn_io *io = firni_io(volume->env);
    if (volume->ledger.fd >= 0) {
        (void)io->close(io->ctx, volume->ledger.fd);
        volume->ledger.fd = -1;
    }
}

firni_code firni_ledger_read(firni_volume *volume, const firni_crypt *crypt, firni_ledger_text *out)
{
    const firn_io *io = firni_io(volume->env);
    const firni_ledger *ledger = &volume->ledger;
    firn_io_stat stat;
    *out = (firni_ledger_text){ .crypt = crypt, .salt = ledger->salt };
    if (ledger->number == 0) {
        return 0;
    }
    const int code = io->stat(io->ctx, ledger->fd, &stat);
    if (code < 0) {
        return -code;
    }
    if (stat.size_bytes > FILE_BYTES_MAX) {
        return EFBIG;
    }
    out->bytes = firni_calloc(volume->env, (size_t)stat.size_bytes, 1);
    if (out->bytes == NULL) {
        return ENOMEM;
    }
    const int64_t n = io->pread(io->ctx, ledger->fd, out->bytes, (size_t)stat.size_bytes, 0);
    out->n_bytes = n > 0 ? (uint64_t)n : 0;
    return n < 0 ? (firni_code)-n : 0;
}

/* ---- changing ---------------------------------------------------------------------------------------------------- */

void firni_ledger_give_up(firni_volume *volume)
{
    firni_ledger *ledger = &volume->ledger;
    firni_ledger_close(volume);
    if (ledger->number != 0) {
        unlink_number(volume, ledger->number);
    }
    ledger->number = 0;
    ledger->is_unsynced = false;
    atomic_store(&ledger->physical_bytes, 0);
}

firni_ledger_batch firni_ledger_begin(const firni_volume *volume, const firni_crypt *crypt)
{
    return (firni_ledger_batch){
        .env = volume->env, .crypt = crypt, .salt = volume->ledger.salt, .begin = volume->ledger.end
    };
}

static firni_code write_at(const firni_volume *volume, int fd, const void *bytes, size_t n_bytes, uint64_t offset)
{
    const firn_io *io = firni_io(volume->env);
    const struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes };
    const int64_t n = n_bytes > 0 ? io->pwritev(io->ctx, fd, &iov, 1, offset) : 0;
    return n == (int64_t)n_bytes ? 0 : n < 0 ? (firni_code)-n : EIO;
}

firni_code firni_ledger_sync(firni_volume *volume)
{
    const firn_io *io = firni_io(volume->env);
    firni_ledger *ledger = &volume->ledger;
    const int code = ledger->is_unsynced ? io->datasync(io->ctx, ledger->fd) : 0;
    ledger->is_unsynced = ledger->is_unsynced && code < 0;
    return -code;
}

void firni_ledger_append(firni_volume *volume, firni_ledger_batch *batch, bool sync)
{
    firni_ledger *ledger = &volume->ledger;
    firni_code code = batch->code;
    if (ledger->number != 0 && code == 0) {
        assert(batch->begin == ledger->end);
        code = write_at(volume, ledger->fd, batch->bytes, batch->n_bytes, ledger->end);
        ledger->end += batch->n_bytes;
        ledger->is_unsynced = true;
        firni_ledger_measure(volume);
    }
    if (ledger->number != 0 && code == 0 && sync) {
        code = firni_ledger_sync(volume);
    }
    firni_ledger_batch_free(batch);
    if (ledger->number == 0 || code != 0) {
        firni_ledger_give_up(volume);
    }
}

void firni_ledger_take_back(firni_volume *volume, uint64_t end)
{
    static const uint8_t zeros[4096];
    firni_ledger *ledger = &volume->ledger;
    firni_code code = 0;
    for (uint64_t at = end; ledger->number != 0 && at < ledger->end && code == 0;) {
        const size_t n = ledger->end - at < sizeof zeros ? (size_t)(ledger->end - at) : sizeof zeros;
        code = write_at(volume, ledger->fd, zeros, n, at);
        at += n;
    }
    if (code != 0) {
        firni_ledger_give_up(volume);
    } else if (end < ledger->end) {
        ledger->end = end;
    }
}

/* Lines, head, name: each durable before the next. */
static firni_code write_new(const firni_volume *volume, int fd, const firni_ledger_batch *batch)
{
    const firn_io *io = firni_io(volume->env);
    uint8_t head[FIRNI_LEDGER_HEAD_BYTES];
    encode_head(batch->salt, id_of(batch->crypt), head);
    firni_code code = write_at(volume, fd, batch->bytes, batch->n_bytes, FIRNI_LEDGER_HEAD_BYTES);
    if (code == 0) {
        code = -io->datasync(io->ctx, fd);
    }
    if (code == 0) {
        code = write_at(volume, fd, head, sizeof head, 0);
    }
    if (code == 0) {
        code = -io->datasync(io->ctx, fd);
    }
    return code == 0 ? -io->sync_dir(io->ctx, volume->dir) : code;
}

firni_code firni_ledger_create(firni_volume *volume, const firni_ledger_batch *batch)
{
    const firn_io *io = firni_io(volume->env);
    firni_ledger *ledger = &volume->ledger;
    const uint32_t number = ledger->last_number + 1;
    char path[FIRNI_DISK_PATH_MAX];
    assert(batch->begin == FIRNI_LEDGER_HEAD_BYTES && batch->code == 0 && number < 100000000u);
    ledger_path(volume, number, path);
    const int fd = io->open(io->ctx, path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        return -fd;
    }
    ledger->last_number = number;
    const firni_code code = write_new(volume, fd, batch);
    if (code != 0) {
        (void)io->close(io->ctx, fd);
        (void)io->unlink(io->ctx, path);
        return code;
    }
    firni_ledger_give_up(volume);
    ledger->fd = fd;
    ledger->number = number;
    ledger->end = ledger->begun_bytes = FIRNI_LEDGER_HEAD_BYTES + batch->n_bytes;
    memcpy(ledger->salt, batch->salt, sizeof ledger->salt);
    ledger->is_unsynced = false;
    firni_ledger_measure(volume);
    return 0;
}
