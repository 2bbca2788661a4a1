/*
 * Encrypted records: the same header and sections, sealed. Offsets and lengths are those of a plain record.
 *
 *      offset  bytes   plain                           sealed
 *           8     16   checksum                        tag of the header
 *          24    104   version ... ns                  as they are, but the version has bit 16 set   \ what the tag
 *         128     16   parent, first half              salt, random for each record that is written  | covers beside
 *         144     16   parent, second half             which key: its id                             / the rest
 *         160          own digest (32), tokens, ...    parent (32), tokens, ...: encrypted up to header_bytes
 *
 * The own digest is made again from parent and tokens. Each section is sealed as it is stored, packed or not, with a
 * nonce of its number; its tag stands where its checksum would, inside the sealed header. The record's key comes from
 * its salt, so no nonce is used twice, and a section verifies in its own record and place alone.
 *
 * Owns that form. A header that was opened is a plain one, and goes on to record_decode.c.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "record/bytes_impl.h"
#include "record/record_impl.h"

#define TAG_AT     8u
#define CLEAR_AT   24u
#define VERSION_AT 24u
#define SALT_AT    128u
#define ID_AT      144u
#define SECRET_AT  160u /* parent of the sealed, digest of the plain form */
#define PARENT_AT  128u
#define TOKENS_AT  192u

/* The header has number 0. */
static firni_crypt_context context_of(const firni_crypt_key *key, uint32_t number)
{
    firni_crypt_context context = { .key = key };
    firni_put_u32(context.nonce, number);
    return context;
}

bool firni_record_is_sealed(const uint8_t fixed[FIRNI_RECORD_FIXED_BYTES])
{
    return (firni_get_u32(fixed + VERSION_AT) & FIRNI_RECORD_SEALED) != 0;
}

bool firni_record_is_of_key(const uint8_t fixed[FIRNI_RECORD_FIXED_BYTES], const firni_crypt *crypt)
{
    if (crypt == NULL || !firni_record_is_sealed(fixed)) {
        return crypt == NULL && !firni_record_is_sealed(fixed);
    }
    return memcmp(fixed + ID_AT, firni_crypt_id(crypt), FIRNI_CRYPT_ID_BYTES) == 0;
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */

firn_status firni_record_seal_begin(const firni_crypt *crypt, firni_record_seal *seal)
{
    if (!firni_crypt_random(seal->salt, sizeof seal->salt)) {
        return FIRN_ERR_IO;
    }
    return firni_crypt_record_key(crypt, seal->salt, &seal->key) ? FIRN_OK : FIRN_ERR_NO_MEMORY;
}

firn_status firni_record_seal_header(const firni_crypt *crypt, const firni_record_seal *seal, uint8_t *header)
{
    const uint32_t header_bytes = firni_get_u32(header + 32);
    firni_crypt_context context = context_of(&seal->key, 0);
    assert(!firni_record_is_sealed(header) && header_bytes > TOKENS_AT);
    memcpy(header + SECRET_AT, header + PARENT_AT, FIRN_DIGEST_BYTES);
    memcpy(header + SALT_AT, seal->salt, sizeof seal->salt);
    memcpy(header + ID_AT, firni_crypt_id(crypt), FIRNI_CRYPT_ID_BYTES);
    firni_put_u32(header + VERSION_AT, firni_get_u32(header + VERSION_AT) | FIRNI_RECORD_SEALED);
    context.bound[0] = header + CLEAR_AT;
    context.n_bound[0] = SECRET_AT - CLEAR_AT;
    return firni_crypt_seal(crypt, &context, header + SECRET_AT, header_bytes - SECRET_AT, header + SECRET_AT,
                            header + TAG_AT);
}

/* Back into the plain form, as if it had been written so. */
static firn_status make_plain(uint8_t *header, uint32_t header_bytes)
{
    firn_digest parent;
    firn_token tokens[FIRN_BLOCK_TOKENS];
    const uint32_t n_tokens = firni_get_u32(header + 60);
    if (n_tokens > FIRN_BLOCK_TOKENS) {
        return FIRN_ERR_CORRUPT;
    }
    for (uint32_t i = 0; i < n_tokens; i++) {
        tokens[i] = firni_get_u32(header + TOKENS_AT + 4 * (size_t)i);
    }
    memcpy(parent.bytes, header + SECRET_AT, sizeof parent.bytes);
    memcpy(header + PARENT_AT, parent.bytes, sizeof parent.bytes);
    const firn_digest digest =
        firni_chain_record((firni_record_kind)header[28], &parent, tokens, n_tokens);
    memcpy(header + SECRET_AT, digest.bytes, sizeof digest.bytes);
    firni_put_u32(header + VERSION_AT, firni_get_u32(header + VERSION_AT) & ~FIRNI_RECORD_SEALED);
    const firni_checksum checksum = firni_checksum_of(header + CLEAR_AT, header_bytes - CLEAR_AT);
    firni_put_u64(header + TAG_AT, checksum.low);
    firni_put_u64(header + TAG_AT + 8, checksum.high);
    return FIRN_OK;
}

firn_status firni_record_open_header(const firni_crypt *crypt, uint8_t *header, size_t n_bytes, firni_crypt_key *key)
{
    memset(key, 0, sizeof *key);
    uint32_t header_bytes, n_sections;
    if (n_bytes < FIRNI_RECORD_FIXED_BYTES ||
        firni_record_peek(header, &header_bytes, &n_sections, NULL) != FIRN_OK || header_bytes > n_bytes ||
        !firni_record_is_of_key(header, crypt)) {
        return FIRN_ERR_CORRUPT;
    }
    if (crypt == NULL) {
        return FIRN_OK;
    }
    if (!firni_crypt_record_key(crypt, header + SALT_AT, key)) {
        return FIRN_ERR_NO_MEMORY;
    }
    firni_crypt_context context = context_of(key, 0);
    context.bound[0] = header + CLEAR_AT;
    context.n_bound[0] = SECRET_AT - CLEAR_AT;
    const firn_status status = firni_crypt_open(crypt, &context, header + SECRET_AT, header_bytes - SECRET_AT,
                                                header + SECRET_AT, header + TAG_AT);
    return status == FIRN_OK ? make_plain(header, header_bytes) : status;
}

/* ---- sections ---------------------------------------------------------------------------------------------------- */

firn_status firni_record_seal_section(const firni_crypt *crypt, const firni_crypt_key *key, uint32_t index,
                                      const uint8_t *in, size_t n_bytes, uint8_t *out, firni_checksum *tag)
{
    const firni_crypt_context context = context_of(key, 1 + index);
    uint8_t bytes[FIRNI_CRYPT_TAG_BYTES];
    const firn_status status = firni_crypt_seal(crypt, &context, in, n_bytes, out, bytes);
    *tag = (firni_checksum){ .low = firni_get_u64(bytes), .high = firni_get_u64(bytes + 8) };
    return status;
}

firn_status firni_record_open_section(const firni_crypt *crypt, const firni_crypt_key *key, uint32_t index,
                                      uint8_t *bytes, size_t n_bytes, firni_checksum tag)
{
    const firni_crypt_context context = context_of(key, 1 + index);
    uint8_t expected[FIRNI_CRYPT_TAG_BYTES];
    firni_put_u64(expected, tag.low);
    firni_put_u64(expected + 8, tag.high);
    return firni_crypt_open(crypt, &context, bytes, n_bytes, bytes, expected);
}

firn_status firni_record_open_sections(const firni_crypt *crypt, const firni_crypt_key *key,
                                       const firni_record *record, uint8_t *record_start)
{
    if (crypt == NULL) {
        return firni_record_verify_sections(record, record_start) == record->n_sections ? FIRN_OK : FIRN_ERR_CORRUPT;
    }
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < record->n_sections && status == FIRN_OK; i++) {
        const firni_section *section = &record->sections[i];
        const uint64_t n_stored = firni_section_stored(section);
        assert(section->offset + n_stored <= record->record_bytes);
        status = firni_record_open_section(crypt, key, i, record_start + section->offset, (size_t)n_stored,
                                           section->checksum);
    }
    return status;
}

firn_status firni_record_open_packed(firni_coder *coder, const firni_crypt *crypt, const firni_crypt_key *key,
                                     const firni_record *record, uint8_t *record_start)
{
    return crypt == NULL ? firni_record_verify(coder, record, record_start)
                         : firni_record_open_sections(crypt, key, record, record_start);
}

firn_status firni_record_seal_sections(const firni_crypt *crypt, const firni_crypt_key *key, uint32_t n_sections,
                                       firni_section *sections, uint8_t *record_start)
{
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < n_sections && status == FIRN_OK; i++) {
        uint8_t *at = record_start + sections[i].offset;
        const size_t n_stored = (size_t)firni_section_stored(&sections[i]);
        status = firni_record_seal_section(crypt, key, i, at, n_stored, at, &sections[i].checksum);
    }
    return status;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

/* What no section covers of a block's memory is not written: nobody says what may stand there. */
firn_status firni_form_seal(const firni_plan_form *form, uint32_t image, const firni_crypt *crypt,
                            const firni_crypt_key *key, const uint8_t *bytes, uint8_t *out, firni_section *sections)
{
    const firni_plan_image *at = &form->images[image];
    firn_status status = FIRN_OK;
    size_t covered = 0;
    for (uint32_t i = at->first_section; i < at->first_section + at->n_sections && status == FIRN_OK; i++) {
        const size_t offset = (size_t)(form->sections[i].offset - at->offset);
        const size_t n_bytes = (size_t)form->sections[i].n_bytes;
        memset(out + covered, 0, offset - covered);
        status = firni_record_seal_section(crypt, key, i, bytes + offset, n_bytes, out + offset,
                                           &sections[i].checksum);
        covered = offset + n_bytes;
    }
    memset(out + covered, 0, at->n_bytes - covered);
    return status;
}

firn_status firni_form_open(const firni_plan_form *form, uint32_t image, const firni_crypt *crypt,
                            const firni_crypt_key *key, uint8_t *bytes, const firni_section *sections)
{
    if (crypt == NULL) {
        return firni_form_verify(form, image, bytes, sections) ? FIRN_OK : FIRN_ERR_CORRUPT;
    }
    const firni_plan_image *at = &form->images[image];
    firn_status status = FIRN_OK;
    for (uint32_t i = at->first_section; i < at->first_section + at->n_sections && status == FIRN_OK; i++) {
        const size_t offset = (size_t)(form->sections[i].offset - at->offset);
        status = firni_record_open_section(crypt, key, i, bytes + offset, (size_t)form->sections[i].n_bytes,
                                           sections[i].checksum);
    }
    if (status == FIRN_OK) {
        firni_form_zero_gaps(form, image, bytes);
    }
    return status;
}

void firni_form_zero_gaps(const firni_plan_form *form, uint32_t image, uint8_t *bytes)
{
    const firni_plan_image *at = &form->images[image];
    size_t covered = 0;
    for (uint32_t i = at->first_section; i < at->first_section + at->n_sections; i++) {
        const size_t offset = (size_t)(form->sections[i].offset - at->offset);
        memset(bytes + covered, 0, offset - covered);
        covered = offset + (size_t)form->sections[i].n_bytes;
    }
    memset(bytes + covered, 0, at->n_bytes - covered);
}
