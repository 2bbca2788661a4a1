/*
 * Lines of the ledger, byte by byte (docs/FORMAT.md, "The ledger").
 *
 *      | "FLN1" | n_bytes | XXH3-128 of all behind it | place | payload | zeros up to a multiple of 16 |
 *
 * `place` is the offset of the line XOR the beginning of the file's salt, so that what looks like a line, a name that
 * somebody chose or a part of an older file, is none. In an encrypted store the payload is sealed, and bound to length
 * and place. A reader that comes to a damaged line looks for the next one at each multiple of 16.
 *
 * Knows nothing of files (ledger.c), nor when a line is written (disk_ledger.c).
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "tier/disk/ledger_impl.h"

#define LINE_ALIGN      16u
#define LINE_HEAD_BYTES 32u /* magic, n_bytes, checksum, place */
#define FIXED_BYTES     64u /* of a payload, up to the identity or key */
#define SEAL_BYTES      (FIRNI_CRYPT_NONCE_BYTES + FIRNI_CRYPT_TAG_BYTES)
#define PAYLOAD_BYTES_MAX                                                                                              \
    (FIXED_BYTES + FIRN_NAMESPACE_LEVELS_MAX * FIRN_DIGEST_BYTES + 4u * FIRN_BLOCK_TOKENS + FIRN_NAMESPACE_BYTES_MAX + \
     FIRN_KEEP_NAME_BYTES_MAX)
#define IS_REMOVED 1u

static const uint8_t line_magic[4] = { 'F', 'L', 'N', '1' };

static uint64_t place_of(const uint8_t *salt, uint64_t offset)
{
    return firni_get_u64(salt) ^ offset;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool reserve(firni_ledger_batch *batch, size_t n_more)
{
    if (batch->code == 0 && batch->n_bytes + n_more > batch->capacity) {
        const size_t capacity = 2 * batch->capacity + n_more + 4096;
        uint8_t *grown = firni_grow(batch->env, batch->bytes, batch->n_bytes, capacity, 1);
        batch->code = grown == NULL ? ENOMEM : 0;
        batch->bytes = grown != NULL ? grown : batch->bytes;
        batch->capacity = grown != NULL ? capacity : batch->capacity;
    }
    return batch->code == 0;
}

static firni_code seal(const firni_crypt *crypt, const uint8_t *line, uint8_t *payload, size_t n_plain)
{
    firni_crypt_context context = { .key = firni_crypt_row_key(crypt),
                                    .bound = { line, line + 24 },
                                    .n_bound = { 8, 8 } };
    uint8_t *nonce = payload + n_plain;
    if (!firni_crypt_random(nonce, FIRNI_CRYPT_NONCE_BYTES)) {
        return EIO;
    }
    memcpy(context.nonce, nonce, FIRNI_CRYPT_NONCE_BYTES);
    const firn_status status =
        firni_crypt_seal(crypt, &context, payload, n_plain, payload, nonce + FIRNI_CRYPT_NONCE_BYTES);
    return status == FIRN_OK ? 0 : ENOMEM;
}

static void add(firni_ledger_batch *batch, const uint8_t *payload, size_t n_plain)
{
    const size_t n_stored = n_plain + (batch->crypt != NULL ? SEAL_BYTES : 0);
    const size_t n_line = (size_t)firni_round_up(LINE_HEAD_BYTES + n_stored, LINE_ALIGN);
    if (!reserve(batch, n_line)) {
        return;
    }
    uint8_t *line = batch->bytes + batch->n_bytes;
    memset(line, 0, n_line);
    memcpy(line, line_magic, sizeof line_magic);
    firni_put_u32(line + 4, (uint32_t)n_stored);
    firni_put_u64(line + 24, place_of(batch->salt, batch->begin + batch->n_bytes));
    memcpy(line + LINE_HEAD_BYTES, payload, n_plain);
    if (batch->crypt != NULL) {
        batch->code = seal(batch->crypt, line, line + LINE_HEAD_BYTES, n_plain);
    }
    const firni_checksum checksum = firni_checksum_of(line + 24, 8 + n_stored);
    firni_put_u64(line + 8, checksum.low);
    firni_put_u64(line + 16, checksum.high);
    batch->n_bytes += n_line;
}

static firni_ledger_kind kind_of(firni_kept_table table)
{
    return table == FIRNI_PINS ? FIRNI_LEDGER_PIN : table == FIRNI_SESSIONS ? FIRNI_LEDGER_SESSION : FIRNI_LEDGER_KEY;
}

/* The chain of all full blocks, under one root. */
static firn_digest chain_of(const firn_digest *root, const uint8_t *tokens, uint32_t n_tokens)
{
    firn_digest digest = *root;
    firn_token block[FIRN_BLOCK_TOKENS];
    for (uint32_t first = 0; first + FIRN_BLOCK_TOKENS <= n_tokens; first += FIRN_BLOCK_TOKENS) {
        for (uint32_t i = 0; i < FIRN_BLOCK_TOKENS; i++) {
            block[i] = firni_get_u32(tokens + 4 * (size_t)(first + i));
        }
        digest = firn_chain_extend(&digest, block, FIRN_BLOCK_TOKENS);
    }
    return digest;
}

void firni_ledger_add_kept(firni_ledger_batch *batch, firni_kept_table table, const firn_digest *identity,
                           const firni_kept *row)
{
    uint8_t payload[PAYLOAD_BYTES_MAX] = { (uint8_t)kind_of(table) };
    const size_t n_ns = strlen(row->ns), n_name = strlen(row->name);
    const uint32_t n_rest = row->n_tokens % FIRN_BLOCK_TOKENS;
    firni_levels levels = { .n = 0 };
    assert(n_ns <= FIRN_NAMESPACE_BYTES_MAX && n_name <= FIRN_KEEP_NAME_BYTES_MAX);
    if (row->n_tokens >= FIRN_BLOCK_TOKENS) {
        firni_levels_of(row->ns, &levels);
    }
    firni_put_u16(payload + 2, (uint16_t)levels.n);
    firni_put_u32(payload + 4, row->n_tokens);
    firni_put_u64(payload + 8, row->until_wall_ns);
    firni_put_u64(payload + 16, row->used_wall_ns);
    firni_put_u16(payload + 24, (uint16_t)n_ns);
    firni_put_u16(payload + 26, (uint16_t)n_name);
    memcpy(payload + 32, identity->bytes, FIRN_DIGEST_BYTES);
    uint8_t *at = payload + FIXED_BYTES;
    for (uint32_t level = 0; level < levels.n; level++) {
        const firn_digest root = firn_chain_root(identity, levels.names[level]);
        const firn_digest chain = chain_of(&root, row->tokens, row->n_tokens);
        memcpy(at, chain.bytes, FIRN_DIGEST_BYTES);
        at += FIRN_DIGEST_BYTES;
    }
    if (n_rest > 0) {
        memcpy(at, row->tokens + 4 * (size_t)(row->n_tokens - n_rest), 4 * (size_t)n_rest);
        at += 4 * (size_t)n_rest;
    }
    memcpy(at, row->ns, n_ns);
    memcpy(at + n_ns, row->name, n_name);
    add(batch, payload, (size_t)(at - payload) + n_ns + n_name);
}

void firni_ledger_add_removed(firni_ledger_batch *batch, firni_kept_table table, const firn_digest *key)
{
    uint8_t payload[FIXED_BYTES] = { (uint8_t)kind_of(table), IS_REMOVED };
    memcpy(payload + 32, key->bytes, FIRN_DIGEST_BYTES);
    add(batch, payload, sizeof payload);
}

void firni_ledger_add_priority(firni_ledger_batch *batch, const firn_digest *record, int8_t priority)
{
    uint8_t payload[FIXED_BYTES] = { FIRNI_LEDGER_PRIORITY };
    payload[2] = (uint8_t)priority;
    memcpy(payload + 32, record->bytes, FIRN_DIGEST_BYTES);
    add(batch, payload, sizeof payload);
}

void firni_ledger_batch_free(firni_ledger_batch *batch)
{
    firni_free(batch->env, batch->bytes);
    batch->bytes = NULL;
    batch->n_bytes = batch->capacity = 0;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* A row's line: every length is compared with what there is. */
static bool decode_kept(const uint8_t *payload, size_t n_bytes, firni_ledger_line *out)
{
    const uint32_t n_levels = firni_get_u16(payload + 2);
    const size_t n_ns = firni_get_u16(payload + 24), n_name = firni_get_u16(payload + 26);
    out->n_tokens = firni_get_u32(payload + 4);
    out->n_levels = n_levels;
    const uint32_t n_rest = out->n_tokens % FIRN_BLOCK_TOKENS;
    if (n_levels > FIRN_NAMESPACE_LEVELS_MAX || (n_levels > 0) != (out->n_tokens >= FIRN_BLOCK_TOKENS) ||
        n_ns > FIRN_NAMESPACE_BYTES_MAX || n_name > FIRN_KEEP_NAME_BYTES_MAX ||
        n_bytes != FIXED_BYTES + (size_t)n_levels * FIRN_DIGEST_BYTES + 4 * (size_t)n_rest + n_ns + n_name) {
        return false;
    }
    out->until_wall_ns = firni_get_u64(payload + 8);
    out->used_wall_ns = firni_get_u64(payload + 16);
    memcpy(out->identity.bytes, payload + 32, FIRN_DIGEST_BYTES);
    const uint8_t *at = payload + FIXED_BYTES;
    for (uint32_t level = 0; level < n_levels; level++) {
        memcpy(out->chains[level].bytes, at, FIRN_DIGEST_BYTES);
        at += FIRN_DIGEST_BYTES;
    }
    for (uint32_t i = 0; i < n_rest; i++) {
        out->rest[i] = firni_get_u32(at);
        at += 4;
    }
    memcpy(out->ns, at, n_ns);
    memcpy(out->name, at + n_ns, n_name);
    const firni_kept_table table = out->kind == FIRNI_LEDGER_PIN       ? FIRNI_PINS
                                   : out->kind == FIRNI_LEDGER_SESSION ? FIRNI_SESSIONS
                                                                       : FIRNI_KEYS;
    out->key = firni_kept_key(table, &out->identity, out->ns, out->name);
    return true;
}

static bool decode(const uint8_t *payload, size_t n_bytes, firni_ledger_line *out)
{
    memset(out, 0, sizeof *out);
    if (n_bytes < FIXED_BYTES || payload[0] < FIRNI_LEDGER_PIN || payload[0] > FIRNI_LEDGER_PRIORITY ||
        payload[1] > IS_REMOVED) {
        return false;
    }
    out->kind = (firni_ledger_kind)payload[0];
    out->is_removed = payload[1] == IS_REMOVED;
    if (out->kind != FIRNI_LEDGER_PRIORITY && !out->is_removed) {
        return decode_kept(payload, n_bytes, out);
    }
    memcpy(out->key.bytes, payload + 32, FIRN_DIGEST_BYTES);
    out->priority = (int8_t)payload[2];
    return n_bytes == FIXED_BYTES && out->priority >= FIRN_PRIORITY_MIN && out->priority <= FIRN_PRIORITY_MAX;
}

/* Into `plain`, which has room. */
static bool open_payload(const firni_ledger_text *text, const uint8_t *line, size_t n_stored, uint8_t *plain,
                         size_t *n_plain)
{
    const uint8_t *payload = line + LINE_HEAD_BYTES;
    *n_plain = n_stored;
    if (text->crypt == NULL) {
        memcpy(plain, payload, n_stored);
        return true;
    }
    if (n_stored < SEAL_BYTES) {
        return false;
    }
    *n_plain = n_stored - SEAL_BYTES;
    const uint8_t *nonce = payload + *n_plain;
    firni_crypt_context context = { .key = firni_crypt_row_key(text->crypt),
                                    .bound = { line, line + 24 },
                                    .n_bound = { 8, 8 } };
    memcpy(context.nonce, nonce, FIRNI_CRYPT_NONCE_BYTES);
    return firni_crypt_open(text->crypt, &context, payload, *n_plain, plain, nonce + FIRNI_CRYPT_NONCE_BYTES) ==
           FIRN_OK;
}

static bool read_line(const firni_ledger_text *text, uint64_t at, firni_ledger_line *out, uint64_t *n_bytes)
{
    const uint8_t *line = text->bytes + at;
    const uint64_t n_left = text->n_bytes - at;
    uint8_t plain[PAYLOAD_BYTES_MAX + SEAL_BYTES];
    size_t n_plain;
    if (n_left < LINE_HEAD_BYTES || memcmp(line, line_magic, sizeof line_magic) != 0) {
        return false;
    }
    const uint32_t n_stored = firni_get_u32(line + 4);
    if (n_stored > sizeof plain || n_stored > n_left - LINE_HEAD_BYTES ||
        firni_get_u64(line + 24) != place_of(text->salt, at)) {
        return false;
    }
    const firni_checksum stored = { .low = firni_get_u64(line + 8), .high = firni_get_u64(line + 16) };
    *n_bytes = firni_round_up(LINE_HEAD_BYTES + n_stored, LINE_ALIGN);
    return firni_checksum_equal(stored, firni_checksum_of(line + 24, 8 + n_stored)) &&
           open_payload(text, line, n_stored, plain, &n_plain) && decode(plain, n_plain, out);
}

bool firni_ledger_next(firni_ledger_text *text, uint64_t *at, firni_ledger_line *out)
{
    static const uint8_t zeros[LINE_ALIGN];
    bool is_damaged = false;
    while (*at < text->n_bytes) {
        uint64_t n_bytes = 0;
        const uint64_t n_left = text->n_bytes - *at;
        if (read_line(text, *at, out, &n_bytes)) {
            out->at = *at;
            *at += n_bytes < n_left ? n_bytes : n_left;
            text->n_damaged += is_damaged;
            return true;
        }
        /* Zeros are what a line that was taken back leaves, or a page that did not arrive. */
        const size_t n_step = n_left < LINE_ALIGN ? (size_t)n_left : LINE_ALIGN;
        is_damaged = is_damaged || memcmp(text->bytes + *at, zeros, n_step) != 0;
        *at += n_step;
    }
    text->n_damaged += is_damaged;
    return false;
}
