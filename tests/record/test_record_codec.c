/* Record headers and attachments: bytes that stay as they are, round trips, and every kind of damage refused. */
#include <stdlib.h>
#include <string.h>

#include "record/bytes_impl.h"
#include "record/record_impl.h"
#include "support/support.h"

#define N_SECTIONS 5u

/* A record of two layers with two planes each, a checkpoint, or an object. */
static void make_record(firni_record *record, firni_section *sections, firni_record_kind kind, uint32_t n_tokens)
{
    memset(record, 0, sizeof *record);
    record->kind = kind;
    record->n_sections = N_SECTIONS;
    record->header_bytes = firni_record_header_bytes(N_SECTIONS, 0);
    record->first_token = 128;
    record->n_tokens = n_tokens;
    record->created_wall_ns = UINT64_C(0x1122334455667788);
    memset(record->identity.bytes, 0x11, 32);
    memset(record->ns.bytes, 0x22, 32);
    memset(record->parent.bytes, 0x33, 32);
    for (uint32_t i = 0; i < n_tokens; i++) {
        record->tokens[i] = 1000 + i;
    }
    record->digest = firni_chain_record(kind, &record->parent, record->tokens, n_tokens);
    const firni_section_kind section_kind = kind == FIRNI_RECORD_OBJECT       ? FIRNI_SECTION_TENSOR
                                            : kind == FIRNI_RECORD_CHECKPOINT ? FIRNI_SECTION_STATE
                                                                              : FIRNI_SECTION_PLANE;
    uint64_t offset = record->header_bytes;
    for (uint32_t i = 0; i < N_SECTIONS; i++) {
        sections[i] = (firni_section){ .kind = section_kind,
                                       .layer = (uint16_t)(i / 2),
                                       .plane = (uint16_t)(i % 2),
                                       .dtype = FIRN_DTYPE_F16,
                                       .n_dims = 3,
                                       .shape = { 2, 8, 64 },
                                       .offset = offset,
                                       .n_bytes = 2048,
                                       .checksum = { .low = i, .high = 77 } };
        offset += i % 2 == 0 ? 2048 : 6144;
    }
    record->record_bytes = (offset + 4095) / 4096 * 4096;
    record->sections = sections;
    memset(record->root.bytes, 0x44, 32);
    record->segment = 0x01020304;
    record->offset = UINT64_C(0x50000) * 4096;
    record->reusable_from = 99;
    record->n_full = 1;
    record->n_window = 2;
    record->n_fixed = 3;
}

static firn_status decode(const uint8_t *bytes, size_t n_bytes, firni_record *out)
{
    static firni_section sections[N_SECTIONS];
    return firni_record_decode(bytes, n_bytes, UINT64_C(1) << 30, sections, N_SECTIONS, out, NULL);
}

/* Makes the header's checksum true again, so that what is behind it gets tested. */
static void reseal(uint8_t *bytes, uint32_t header_bytes)
{
    const firni_checksum checksum = firni_checksum_of(bytes + 24, header_bytes - 24);
    firni_put_u64(bytes + 8, checksum.low);
    firni_put_u64(bytes + 16, checksum.high);
}

static void headers_come_back_as_they_were(void **unused)
{
    (void)unused;
    const struct {
        firni_record_kind kind;
        uint32_t n_tokens;
    } cases[] = { { FIRNI_RECORD_BLOCK, 64 },  { FIRNI_RECORD_TAIL, 1 },    { FIRNI_RECORD_TAIL, 63 },
                  { FIRNI_RECORD_OBJECT, 0 },  { FIRNI_RECORD_OBJECT, 63 },
                  { FIRNI_RECORD_CHECKPOINT, 1 }, { FIRNI_RECORD_CHECKPOINT, 64 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        firni_section sections[N_SECTIONS];
        firni_record record, found;
        uint8_t bytes[4096];
        make_record(&record, sections, cases[i].kind, cases[i].n_tokens);
        firni_record_encode(&record, bytes);
        assert_ok(decode(bytes, sizeof bytes, &found));
        assert_int_equal(found.kind, record.kind);
        assert_int_equal(found.record_bytes, record.record_bytes);
        assert_int_equal(found.created_wall_ns, record.created_wall_ns);
        assert_int_equal(found.first_token, 128);
        assert_int_equal(found.n_tokens, cases[i].n_tokens);
        assert_memory_equal(found.tokens, record.tokens, sizeof record.tokens);
        assert_memory_equal(&found.identity, &record.identity, 5 * sizeof record.identity);
        assert_int_equal(found.segment, record.segment);
        assert_int_equal(found.offset, record.offset);
        assert_int_equal(found.reusable_from, 99);
        assert_int_equal(found.n_full * 100 + found.n_window * 10 + found.n_fixed, 123);
        assert_int_equal(found.n_ns + found.n_text, 0);
        for (uint32_t s = 0; s < N_SECTIONS; s++) {
            assert_int_equal(found.sections[s].offset, sections[s].offset);
            assert_int_equal(found.sections[s].checksum.low, s);
            assert_int_equal(found.sections[s].shape[2], 64);
        }
    }
}

static void the_bytes_of_a_header_are_those_of_the_format(void **unused)
{
    (void)unused;
    firni_section sections[N_SECTIONS];
    firni_record record;
    uint8_t bytes[4096];
    make_record(&record, sections, FIRNI_RECORD_TAIL, 3);
    firni_record_encode(&record, bytes);
    const uint8_t magic[8] = { 0x89, 0x46, 0x49, 0x52, 0x4e, 0x0d, 0x0a, 0x1a };
    assert_memory_equal(bytes, magic, 8);
    const uint8_t fixed[40] = { 1, 0, 0, 0, 2, 0, 0, 0, 0, 0x10, 0, 0, 5, 0, 0, 0, /* version, kind, sizes */
                                0, 0x60, 0, 0, 0, 0, 0, 0,                         /* 24,576 bytes */
                                0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,    /* created */
                                128, 0, 0, 0, 3, 0, 0, 0 };                        /* first token, tokens */
    assert_memory_equal(bytes + 24, fixed, sizeof fixed);
    assert_int_equal(bytes[64], 0x11);
    assert_int_equal(bytes[96], 0x22);
    assert_int_equal(bytes[128], 0x33);
    assert_memory_equal(bytes + 160, record.digest.bytes, 32);
    const uint8_t tokens[16] = { 0xe8, 3, 0, 0, 0xe9, 3, 0, 0, 0xea, 3, 0, 0, 0, 0, 0, 0 };
    assert_memory_equal(bytes + 192, tokens, sizeof tokens);
    const uint8_t section[64] = { 1, 0, 0, 0, 1, 0, 2, 3, 2, 0, 0, 0, 8, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0,
                                  0, 0x18, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 77 };
    assert_memory_equal(bytes + 448 + 64, section, sizeof section);
    const uint8_t *annex = bytes + 448 + 64 * N_SECTIONS;
    const uint8_t place[32] = { 4, 3, 2, 1, 99, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 1, 0, 2, 0, 3 };
    assert_int_equal(annex[0], 0x44);
    assert_memory_equal(annex + 32, place, sizeof place);
}

/* The first records of a chain say what it belongs to, in as many pages as that takes. */
static void names_come_back_where_a_chain_begins(void **unused)
{
    (void)unused;
    static char text[FIRNI_RECORD_TEXT_BYTES_MAX];
    memset(text, 'x', sizeof text);
    static const uint32_t sizes[][2] = { { 0, 0 }, { 1, 0 }, { 0, 1 }, { 255, 3000 }, { 255, sizeof text } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        firni_section sections[N_SECTIONS];
        firni_record record, found;
        static uint8_t bytes[65536];
        make_record(&record, sections, FIRNI_RECORD_BLOCK, 64);
        const uint32_t header_bytes = firni_record_header_bytes(N_SECTIONS, sizes[i][0] + sizes[i][1]);
        for (uint32_t s = 0; s < N_SECTIONS; s++) {
            sections[s].offset += header_bytes - record.header_bytes;
        }
        record.record_bytes += header_bytes - record.header_bytes;
        record.header_bytes = header_bytes;
        record.first_token = 0;
        record.ns_name = text;
        record.text = text;
        record.n_ns = sizes[i][0];
        record.n_text = sizes[i][1];
        firni_record_encode(&record, bytes);
        assert_ok(decode(bytes, sizeof bytes, &found));
        assert_int_equal(found.header_bytes, header_bytes);
        assert_int_equal(found.n_ns, sizes[i][0]);
        assert_int_equal(found.n_text, sizes[i][1]);
        assert_memory_equal(found.ns_name, text, found.n_ns);
        assert_memory_equal(found.text, text, found.n_text);
        /* Anywhere else, larger than it is, or with a NUL: no header. */
        uint8_t *annex = bytes + 448 + 64 * N_SECTIONS;
        if (record.n_ns > 0) {
            annex[64] = 0;
            reseal(bytes, header_bytes);
            assert_status(decode(bytes, sizeof bytes, &found), FIRN_ERR_CORRUPT);
        }
        firni_record_encode(&record, bytes);
        firni_put_u32(annex + 56, 65536);
        reseal(bytes, header_bytes);
        assert_status(decode(bytes, sizeof bytes, &found), FIRN_ERR_CORRUPT);
        firni_record_encode(&record, bytes);
        firni_put_u32(bytes + 56, 64);
        reseal(bytes, header_bytes);
        assert_status(decode(bytes, sizeof bytes, &found), i == 0 ? FIRN_OK : FIRN_ERR_CORRUPT);
    }
}

/* Blocks of a model without token blocks are headers alone; nothing else may be empty, and nothing follows them. */
static void only_records_of_tokens_may_be_headers_alone(void **unused)
{
    (void)unused;
    static const firni_record_kind kinds[] = { FIRNI_RECORD_BLOCK, FIRNI_RECORD_TAIL, FIRNI_RECORD_CHECKPOINT,
                                               FIRNI_RECORD_OBJECT };
    for (size_t i = 0; i < 4; i++) {
        firni_section sections[N_SECTIONS];
        firni_record record, found;
        uint8_t bytes[4096];
        make_record(&record, sections, kinds[i], kinds[i] == FIRNI_RECORD_BLOCK ? 64 : 20);
        record.n_sections = 0;
        record.record_bytes = record.header_bytes;
        firni_record_encode(&record, bytes);
        assert_status(decode(bytes, sizeof bytes, &found), i < 2 ? FIRN_OK : FIRN_ERR_CORRUPT);
        assert_int_equal(found.n_sections, 0);
        record.record_bytes += 4096;
        firni_record_encode(&record, bytes);
        assert_status(decode(bytes, sizeof bytes, &found), FIRN_ERR_CORRUPT);
    }
}

/* A checkpoint has the tokens of a tail; as neither of them does it pass for the other. */
static void kinds_do_not_pass_for_each_other(void **unused)
{
    (void)unused;
    static const firni_record_kind kinds[] = { FIRNI_RECORD_TAIL, FIRNI_RECORD_CHECKPOINT, FIRNI_RECORD_OBJECT };
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 3; k++) {
            firni_section sections[N_SECTIONS];
            firni_record record, found;
            uint8_t bytes[4096];
            make_record(&record, sections, kinds[i], 20);
            firni_record_encode(&record, bytes);
            firni_put_u32(bytes + 28, (uint32_t)kinds[k]);
            reseal(bytes, sizeof bytes);
            assert_status(decode(bytes, sizeof bytes, &found), i == k ? FIRN_OK : FIRN_ERR_CORRUPT);
            /* Nor with the other's sections. */
            make_record(&record, sections, kinds[i], 20);
            sections[2].kind = kinds[k] == FIRNI_RECORD_OBJECT       ? FIRNI_SECTION_METADATA
                               : kinds[k] == FIRNI_RECORD_CHECKPOINT ? FIRNI_SECTION_STATE
                                                                     : FIRNI_SECTION_PLANE;
            firni_record_encode(&record, bytes);
            assert_status(decode(bytes, sizeof bytes, &found), i == k ? FIRN_OK : FIRN_ERR_CORRUPT);
        }
    }
}

static void any_flipped_bit_of_a_header_is_noticed(void **unused)
{
    (void)unused;
    firni_section sections[N_SECTIONS];
    firni_record record, found;
    uint8_t bytes[4096];
    make_record(&record, sections, FIRNI_RECORD_BLOCK, 64);
    firni_record_encode(&record, bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        const uint8_t mask = (uint8_t)(1u << i % 8);
        bytes[i] ^= mask;
        const firn_status status = decode(bytes, sizeof bytes, &found);
        assert_true(status == FIRN_ERR_CORRUPT || status == FIRN_ERR_FORMAT);
        bytes[i] ^= mask;
    }
    assert_ok(decode(bytes, sizeof bytes, &found));
}

static void a_header_cut_anywhere_is_noticed(void **unused)
{
    (void)unused;
    firni_section sections[N_SECTIONS];
    firni_record record, found;
    uint8_t bytes[4096];
    make_record(&record, sections, FIRNI_RECORD_BLOCK, 64);
    firni_record_encode(&record, bytes);
    for (size_t n = 0; n < sizeof bytes; n++) {
        /* Own memory of exactly this size, so that reading past it is seen by the sanitizer. */
        uint8_t *cut = malloc(n + 1);
        memcpy(cut, bytes, n);
        assert_status(decode(cut, n, &found), FIRN_ERR_CORRUPT);
        free(cut);
    }
    assert_status(firni_record_decode(bytes, sizeof bytes, record.record_bytes - 1, sections, N_SECTIONS, &found, NULL),
                  FIRN_ERR_CORRUPT); /* more record than file */
    assert_status(firni_record_decode(bytes, sizeof bytes, UINT64_MAX, sections, N_SECTIONS - 1, &found, NULL),
                  FIRN_ERR_INVALID);
}

static void a_well_sealed_lie_is_refused_field_by_field(void **unused)
{
    (void)unused;
    const struct {
        size_t offset;
        uint32_t n_bytes;
        uint64_t value;
    } lies[] = {
        { 24, 4, 2 },                          /* version */
        { 28, 4, 0 }, { 28, 4, 3 }, { 28, 4, 4 }, { 28, 4, 9 }, /* kind: none, others with planes, unknown */
        { 32, 4, 0 }, { 32, 4, 8192 },         /* header_bytes */
        { 36, 4, 0 }, { 36, 4, 0xffffffff },   /* n_sections */
        { 40, 8, 0 }, { 40, 8, 24575 }, { 40, 8, UINT64_MAX }, { 40, 8, UINT64_C(1) << 40 }, /* record_bytes */
        { 56, 4, 127 },                        /* first_token */
        { 60, 4, 0 }, { 60, 4, 63 }, { 60, 4, 65 }, { 60, 4, 0xffffffff }, /* n_tokens */
        { 128, 1, 0x34 }, { 160, 1, 0 }, { 192, 4, 5 }, /* chain */
        { 448, 2, 0 }, { 448, 2, 3 }, { 448, 2, 4 }, { 448, 2, 5 }, /* section kind */
        { 454, 1, 0 }, { 454, 1, 200 },        /* dtype */
        { 455, 1, 0 }, { 455, 1, 5 },          /* n_dims */
        { 456, 4, 0 }, { 456, 4, 0xffffffff }, { 468, 4, 1 },   /* shape */
        { 472, 8, 0 }, { 472, 8, 4095 }, { 472, 8, 24576 }, { 472, 8, UINT64_MAX }, /* offset */
        { 480, 8, 0 }, { 480, 8, 2047 }, { 480, 8, UINT64_MAX - 4095 },             /* length */
        { 504, 8, 1 },                         /* reserved */
        { 448 + 64 + 24, 8, 4096 },            /* the second section lies on the first */
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        firni_section sections[N_SECTIONS];
        firni_record record, found;
        uint8_t bytes[4096];
        make_record(&record, sections, FIRNI_RECORD_BLOCK, 64);
        firni_record_encode(&record, bytes);
        for (uint32_t b = 0; b < lies[i].n_bytes; b++) {
            bytes[lies[i].offset + b] = (uint8_t)(lies[i].value >> (8 * b));
        }
        reseal(bytes, sizeof bytes);
        if (decode(bytes, sizeof bytes, &found) == FIRN_OK) {
            fail_msg("lie %zu at offset %zu was believed", i, lies[i].offset);
        }
    }
}

static void attachments_round_trip_and_their_limits_hold(void **unused)
{
    (void)unused;
    float values[12];
    for (int i = 0; i < 12; i++) {
        values[i] = (float)i / 7;
    }
    const firn_tensor tensors[2] = {
        { .dtype = FIRN_DTYPE_F32, .n_dims = 2, .shape = { 3, 4 }, .data = values, .n_bytes = 48 },
        { .dtype = FIRN_DTYPE_U8, .n_dims = 1, .shape = { 5 }, .data = values, .n_bytes = 5 },
    };
    const firn_attachment attachments[2] = {
        { .schema = "a", .metadata = "xyz", .n_metadata_bytes = 3, .tensors = tensors, .n_tensors = 2 },
        { .schema = "b.2" },
    };
    assert_ok(firni_attachments_check(attachments, 2, NULL));
    assert_status(firni_attachments_check(attachments, 17, NULL), FIRN_ERR_INVALID);
    firni_section sections[FIRNI_ATTACHMENT_SECTIONS_MAX];
    uint32_t header_bytes;
    uint64_t record_bytes;
    const uint32_t n_sections = firni_attachments_layout(attachments, 2, 0, sections, &header_bytes, &record_bytes);
    assert_int_equal(n_sections, 4);
    assert_int_equal(record_bytes, header_bytes + 4 * 4096);
    uint8_t *payload = malloc(record_bytes - header_bytes);
    firni_attachments_encode(attachments, 2, header_bytes, record_bytes, sections, payload);
    firni_record record = { .kind = FIRNI_RECORD_OBJECT,
                            .header_bytes = header_bytes,
                            .record_bytes = record_bytes,
                            .sections = sections,
                            .n_sections = n_sections };
    firn_attachment *found;
    uint32_t n_found;
    for (uint64_t n = 1;; n++) { /* with each allocation failing once */
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        const firn_status status = firni_attachments_decode(&record, payload, &world.env, &found, &n_found, NULL);
        if (status == FIRN_OK) {
            assert_int_equal(n_found, 2);
            assert_string_equal(found[0].schema, "a");
            assert_memory_equal(found[0].metadata, "xyz", 3);
            assert_int_equal(found[0].n_tensors, 2);
            assert_memory_equal(found[0].tensors[0].data, values, 48);
            assert_memory_equal(found[0].tensors[1].data, values, 5);
            assert_string_equal(found[1].schema, "b.2");
            firni_attachments_free(&world.env, found, n_found);
        } else {
            assert_int_equal(status, FIRN_ERR_NO_MEMORY);
            assert_null(found);
        }
        test_world_deinit(&world);
        if (status == FIRN_OK) {
            break;
        }
    }
    /* Sealed lies about what lies where. */
    sections[1].plane = 1;
    assert_status(firni_attachments_decode(&record, payload, NULL, &found, &n_found, NULL), FIRN_ERR_CORRUPT);
    sections[1].plane = 0;
    firni_put_u32(payload, 64); /* a name longer than names may be */
    assert_status(firni_attachments_decode(&record, payload, NULL, &found, &n_found, NULL), FIRN_ERR_CORRUPT);
    firni_put_u32(payload, 60); /* and longer than the section */
    assert_status(firni_attachments_decode(&record, payload, NULL, &found, &n_found, NULL), FIRN_ERR_CORRUPT);
    free(payload);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_come_back_as_they_were),
        cmocka_unit_test(the_bytes_of_a_header_are_those_of_the_format),
        cmocka_unit_test(names_come_back_where_a_chain_begins),
        cmocka_unit_test(only_records_of_tokens_may_be_headers_alone),
        cmocka_unit_test(kinds_do_not_pass_for_each_other),
        cmocka_unit_test(any_flipped_bit_of_a_header_is_noticed),
        cmocka_unit_test(a_header_cut_anywhere_is_noticed),
        cmocka_unit_test(a_well_sealed_lie_is_refused_field_by_field),
        cmocka_unit_test(attachments_round_trip_and_their_limits_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
