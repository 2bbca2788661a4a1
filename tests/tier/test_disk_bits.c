/*
 * Records as the tier really writes them, of every kind and form: one bit flipped anywhere in a header, one in every
 * section, every header field set to every kind of lie. The lies go through the fuzzer's own target, which also seals
 * them, and so does its corpus.
 *
 * What the tier makes of damaged records is test_disk_damage.c's and test_disk_families.c's.
 */
#include "../../fuzz/fuzz_record.c"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "tier/tier_fixture.h"

#define N_TOKENS 340u /* block 0 is far behind all windows when it is stored again: a bare record */
#define N_TURN   150u

/* Forms of records; which of them were seen is asserted at the end. */
enum { FORM_BLOCK, FORM_TAIL, FORM_CHECKPOINT, FORM_OBJECT, FORM_HEADER_ALONE, FORM_BARE, FORMS };

typedef struct segment_file {
    uint8_t *bytes;
    size_t n_bytes;
} segment_file;

/* Some turns of a conversation in a store of its own, and the segment that they make. */
static segment_file make_segment(fixture_schema schema)
{
    test_rng rng = test_rng_create("disk_bits", 91);
    const fixture_options geometry = { .schema = schema };
    fixture fix;
    fixture_init(&fix, NULL, &geometry);
    firn_token tokens[N_TOKENS], other[N_TOKENS];
    fixture_random_tokens(&rng, tokens, N_TOKENS);
    fixture_random_tokens(&rng, other, N_TOKENS);
    char *dir = test_dir_create();
    firn_tier *tier = fixture_open(&fix, dir, NULL);
    uint32_t numbers[3] = { 1, 2, 3 };
    const firn_tensor tensor = {
        .dtype = FIRN_DTYPE_I32, .n_dims = 1, .shape = { 3 }, .data = numbers, .n_bytes = sizeof numbers
    };
    const firn_attachment attachment = { .schema = "test.numbers.1", .metadata = "meta", .n_metadata_bytes = 4,
                                         .tensors = &tensor, .n_tensors = 1 };
    firn_reason reason;
    assert_true(fixture_store_with(&fix, tier, "space", tokens, N_TURN, &attachment, 1, &reason));
    assert_int_equal(fixture_store(&fix, tier, "space", tokens, N_TOKENS), FIRN_REASON_NONE);
    assert_int_equal(fixture_store(&fix, tier, NULL, other, N_TOKENS), FIRN_REASON_NONE);
    firn_tier_destroy(tier);
    char path[700];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", dir);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    segment_file file = { .bytes = malloc((size_t)st.st_size), .n_bytes = (size_t)st.st_size };
    const int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, file.bytes, file.n_bytes), file.n_bytes);
    close(fd);
    test_dir_remove(dir);
    free(dir);
    fixture_deinit(&fix);
    return file;
}

/* The next record at or after *at; false at the end. What was replaced meanwhile is a hole. */
static bool next_record(const segment_file *file, size_t *at, firni_section sections[SECTIONS_MAX], firni_record *out)
{
    for (; *at + FIRNI_RECORD_ALIGN <= file->n_bytes; *at += FIRNI_RECORD_ALIGN) {
        if (firni_record_decode(file->bytes + *at, file->n_bytes - *at, file->n_bytes - *at, sections, SECTIONS_MAX,
                                out, NULL) == FIRN_OK) {
            return true;
        }
    }
    return false;
}

static unsigned form_of(const firni_record *record, uint32_t n_sections_max)
{
    switch (record->kind) {
    case FIRNI_RECORD_CHECKPOINT: return FORM_CHECKPOINT;
    case FIRNI_RECORD_OBJECT: return FORM_OBJECT;
    default: break;
    }
    return record->n_sections == 0               ? FORM_HEADER_ALONE
           : record->n_sections < n_sections_max ? FORM_BARE
           : record->kind == FIRNI_RECORD_TAIL   ? FORM_TAIL
                                                 : FORM_BLOCK;
}

/* Each record's form; of token records the most sections that one has. */
static uint32_t most_sections(const segment_file *file)
{
    firni_section sections[SECTIONS_MAX];
    firni_record record;
    uint32_t most = 0;
    for (size_t at = 0; next_record(file, &at, sections, &record); at += (size_t)record.record_bytes) {
        const bool is_tokens = record.kind == FIRNI_RECORD_BLOCK || record.kind == FIRNI_RECORD_TAIL;
        most = is_tokens && record.n_sections > most ? record.n_sections : most;
    }
    return most;
}

/* Calls visit with one record of each form that the schemas make, in memory of its own. */
static void each_form(void (*visit)(uint8_t *bytes, const firni_record *record))
{
    bool seen[FORMS] = { false };
    for (unsigned schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        segment_file file = make_segment((fixture_schema)schema);
        const uint32_t most = most_sections(&file);
        firni_section sections[SECTIONS_MAX];
        firni_record record;
        for (size_t at = 0; next_record(&file, &at, sections, &record); at += (size_t)record.record_bytes) {
            const unsigned form = form_of(&record, most);
            if (!seen[form]) {
                seen[form] = true;
                uint8_t *copy = malloc((size_t)record.record_bytes);
                memcpy(copy, file.bytes + at, (size_t)record.record_bytes);
                visit(copy, &record);
                free(copy);
            }
        }
        free(file.bytes);
    }
    for (unsigned form = 0; form < FORMS; form++) {
        if (!seen[form]) {
            fail_msg("no record of form %u was made", form);
        }
    }
}

static void flip_bits(uint8_t *bytes, const firni_record *record)
{
    firni_section sections[SECTIONS_MAX];
    firni_record found;
    const size_t n_bytes = (size_t)record->record_bytes;
    for (size_t bit = 0; bit < 8 * (size_t)record->header_bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (firni_record_decode(bytes, n_bytes, n_bytes, sections, SECTIONS_MAX, &found, NULL) == FIRN_OK) {
            fail_msg("bit %zu of a header of kind %d is not noticed", bit, (int)record->kind);
        }
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_ok(firni_record_decode(bytes, n_bytes, n_bytes, sections, SECTIONS_MAX, &found, NULL));
    assert_int_equal(firni_record_verify_sections(&found, bytes), found.n_sections);
    for (uint32_t s = 0; s < found.n_sections; s++) {
        const size_t n_bits = 8 * (size_t)sections[s].n_bytes;
        for (size_t bit = 0; bit < n_bits; bit += n_bits < 4096 ? 1 : 257) {
            uint8_t *byte = bytes + sections[s].offset + bit / 8;
            *byte ^= (uint8_t)(1u << bit % 8);
            if (firni_record_verify_sections(&found, bytes) != s) {
                fail_msg("bit %zu of section %u of kind %d is not noticed", bit, s, (int)record->kind);
            }
            *byte ^= (uint8_t)(1u << bit % 8);
        }
    }
}

static void a_flipped_bit_in_a_record_of_any_kind_is_noticed(void **unused)
{
    (void)unused;
    each_form(flip_bits);
}

/* The target asserts that what is believed is consistent. */
static void tell_lies(uint8_t *bytes, const firni_record *record)
{
    const size_t n_bytes = (size_t)record->record_bytes;
    const size_t end = FIRNI_RECORD_FIXED_BYTES + (size_t)record->n_sections * FIRNI_SECTION_BYTES + 64;
    assert_int_equal(LLVMFuzzerTestOneInput(bytes, n_bytes), 0);
    for (size_t at = 24; at < end && at < record->header_bytes; at++) {
        const uint8_t was = bytes[at];
        const uint8_t lies[] = {
            0, 1, 0x7f, 0x80, 0xff, (uint8_t)(was + 1), (uint8_t)(was - 1), (uint8_t)(was ^ 0x40)
        };
        for (size_t i = 0; i < sizeof lies; i++) {
            bytes[at] = lies[i];
            /* Short as a file that was cut, too. */
            (void)LLVMFuzzerTestOneInput(bytes, i % 2 == 0 || n_bytes < 8192 ? n_bytes : n_bytes - 4096);
        }
        bytes[at] = was;
    }
}

static void every_header_field_may_lie(void **unused)
{
    (void)unused;
    each_form(tell_lies);
}

static void the_fuzzers_corpus_is_replayed(void **unused)
{
    (void)unused;
    static const char folder[] = "fuzz/seeds/fuzz_record";
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        fail_msg("%s is not here: run the tests from the project's folder", folder);
    }
    uint32_t n = 0;
    for (const struct dirent *found = readdir(dir); found != NULL; found = readdir(dir)) {
        char path[600];
        uint8_t bytes[32768];
        (void)snprintf(path, sizeof path, "%s/%s", folder, found->d_name);
        const int fd = open(path, O_RDONLY);
        const ssize_t n_bytes = fd >= 0 ? read(fd, bytes, sizeof bytes) : -1;
        (void)close(fd);
        if (n_bytes > 0) {
            assert_int_equal(LLVMFuzzerTestOneInput(bytes, (size_t)n_bytes), 0);
            n++;
        }
    }
    closedir(dir);
    print_message("%u inputs\n", n);
    assert_true(n >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_in_a_record_of_any_kind_is_noticed),
        cmocka_unit_test(every_header_field_may_lie),
        cmocka_unit_test(the_fuzzers_corpus_is_replayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
