/*
 * Damaged files: a bit flipped anywhere that counts, a file cut at every class of place, a range of zeros, a record in
 * another's place. Always a complete miss that says corrupt, never other bytes; then the state is stored anew and
 * found.
 */
#include <fcntl.h>
#include <unistd.h>

#include "record/record_impl.h"
#include "tier/tier_fixture.h"

#define N 150u /* two blocks and a tail */

typedef struct state {
    fixture fix;
    char *dir;
    char segment[600];
    firn_token tokens[N + 1];
    uint8_t *bytes; /* the segment as it was written */
    size_t n_bytes;
    size_t record_bytes, header_bytes;
    uint32_t n_sections;
} state;

static int setup(void **out)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_damage", 3);
    fixture_init(&s->fix, NULL, NULL);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    s->dir = test_dir_create();
    (void)snprintf(s->segment, sizeof s->segment, "%s/seg-00000001.firn", s->dir);
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    firn_tier_destroy(tier);
    struct stat st;
    assert_int_equal(stat(s->segment, &st), 0);
    s->n_bytes = (size_t)st.st_size;
    s->bytes = malloc(s->n_bytes);
    const int fd = open(s->segment, O_RDONLY);
    assert_int_equal(read(fd, s->bytes, s->n_bytes), s->n_bytes);
    close(fd);
    uint32_t header_bytes;
    assert_ok(firni_record_peek(s->bytes, &header_bytes, &s->n_sections, NULL));
    s->header_bytes = header_bytes;
    s->record_bytes = s->n_bytes / 3;
    *out = s;
    return 0;
}

static int teardown(void **in)
{
    state *s = *in;
    test_dir_remove(s->dir);
    fixture_deinit(&s->fix);
    free(s->bytes);
    free(s->dir);
    free(s);
    return 0;
}

/* Puts these bytes where the segment was, in place. */
static void write_segment(const state *s, const uint8_t *bytes, size_t n_bytes)
{
    const int fd = open(s->segment, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), n_bytes);
    close(fd);
}

/* Opens the damaged store, looks, stores anew, looks again. `n_good`: tokens before the damaged record. */
static void assert_miss_then_heals(state *s, uint32_t n_good)
{
    firn_reason reason;
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    const firn_match match = firn_tier_find(tier, s->tokens, N + 1, NULL);
    assert_int_equal(match.prefix_len, N);
    firn_restored restored;
    assert_int_equal(firn_tier_restore(tier, match.handle, 0, &restored), FIRN_REASON_CORRUPT);
    assert_null(restored.caches);
    firn_tier_release(tier, match.handle);
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    assert_int_equal(stats.n_quarantined, 1);
    assert_int_equal(stats.miss_reasons[FIRN_REASON_CORRUPT], 1);
    /* Quarantined: not tried again, and what lies before it is still good. */
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), n_good);
    const firn_match again = firn_tier_find(tier, s->tokens, N + 1, NULL);
    assert_int_equal(again.reason, FIRN_REASON_CORRUPT);
    firn_tier_release(tier, again.handle);
    fixture_check(tier);
    firn_tier_destroy(tier);
    /* The quarantine outlives the process; a new store heals it. */
    tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), n_good);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

/* A fresh copy of the store for each damage. */
static void with_damage(void **in, size_t offset, uint8_t mask)
{
    state *s = *in;
    char *original = s->dir;
    char command[1400];
    s->dir = test_dir_create();
    (void)snprintf(command, sizeof command, "cp -a '%s/.' '%s/'", original, s->dir);
    assert_int_equal(system(command), 0);
    (void)snprintf(s->segment, sizeof s->segment, "%s/seg-00000001.firn", s->dir);
    uint8_t *damaged = malloc(s->n_bytes);
    memcpy(damaged, s->bytes, s->n_bytes);
    damaged[offset] ^= mask;
    write_segment(s, damaged, s->n_bytes);
    const uint32_t record = (uint32_t)(offset / s->record_bytes);
    assert_miss_then_heals(s, record * FIRN_BLOCK_TOKENS);
    free(damaged);
    test_dir_remove(s->dir);
    free(s->dir);
    s->dir = original;
}

static void a_flipped_bit_in_any_section_is_a_miss(void **in)
{
    const state *s = *in;
    firni_section sections[64];
    firni_record record;
    for (uint32_t r = 0; r < 3; r++) {
        const size_t start = r * s->record_bytes;
        assert_ok(firni_record_decode(s->bytes + start, s->header_bytes, s->record_bytes, sections, 64, &record, NULL));
        for (uint32_t i = 0; i < record.n_sections; i++) {
            with_damage(in, start + sections[i].offset + (r * 37 + i * 101) % sections[i].n_bytes,
                        (uint8_t)(1u << i % 8));
        }
    }
}

static void a_flipped_bit_in_any_header_field_is_a_miss(void **in)
{
    const state *s = *in;
    const size_t offsets[] = { 0,   7,   8,   23,  24,  28,  32,  36,  40,  47,  48,  56,  60,  64,  95,  96,
                               128, 160, 192, 447, 448, 450, 454, 455, 456, 472, 480, 488, 496, 504, 4095 };
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        with_damage(in, (i % 3) * s->record_bytes + offsets[i], (uint8_t)(1u << i % 8));
    }
}

static void a_file_cut_anywhere_is_a_miss(void **in)
{
    state *s = *in;
    const size_t r = s->record_bytes, h = s->header_bytes;
    const struct {
        size_t n_bytes;
        uint32_t n_good;
    } cuts[] = { { 0, 0 },          { 1, 0 },       { 447, 0 },         { h - 1, 0 },      { h, 0 },
                 { h + 5, 0 },      { r - 1, 0 },   { r, 64 },          { r + 100, 64 },   { r + h, 64 },
                 { 2 * r - 1, 64 }, { 2 * r, 128 }, { 2 * r + h, 128 }, { 3 * r - 1, 128 } };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        firn_reason reason;
        firn_tier *tier;
        write_segment(s, s->bytes, s->n_bytes);
        write_segment(s, s->bytes, cuts[i].n_bytes);
        tier = fixture_open(&s->fix, s->dir, NULL);
        /* One miss finds all that is damaged; then what is whole is served. */
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), 0);
        assert_int_equal(reason, FIRN_REASON_CORRUPT);
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), cuts[i].n_good);
        assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
        fixture_check(tier);
        firn_tier_destroy(tier);
        /* Start over with an intact store. */
        test_dir_remove(s->dir);
        free(s->dir);
        s->dir = test_dir_create();
        (void)snprintf(s->segment, sizeof s->segment, "%s/seg-00000001.firn", s->dir);
        tier = fixture_open(&s->fix, s->dir, NULL);
        assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
        firn_tier_destroy(tier);
    }
}

static void a_valid_record_in_the_wrong_place_is_a_miss(void **in)
{
    state *s = *in;
    uint8_t *damaged = malloc(s->n_bytes);
    memcpy(damaged, s->bytes, s->n_bytes);
    memcpy(damaged + s->record_bytes, s->bytes, s->record_bytes); /* the first block again, where the second was */
    write_segment(s, damaged, s->n_bytes);
    free(damaged);
    assert_miss_then_heals(s, 64);
}

static void zeros_where_a_record_was_are_a_miss(void **in)
{
    state *s = *in;
    uint8_t *damaged = malloc(s->n_bytes);
    memcpy(damaged, s->bytes, s->n_bytes);
    memset(damaged + 2 * s->record_bytes, 0, s->record_bytes);
    write_segment(s, damaged, s->n_bytes);
    free(damaged);
    assert_miss_then_heals(s, 128);
}

static void a_missing_segment_file_is_a_miss(void **in)
{
    state *s = *in;
    firn_reason reason;
    assert_int_equal(unlink(s->segment), 0);
    firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
    for (unsigned look = 0; look < 3; look++) {
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), 0);
        assert_int_equal(reason, FIRN_REASON_CORRUPT);
    }
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    firn_tier_destroy(tier);
}

static void verify_finds_what_is_damaged_and_nothing_else(void **in)
{
    state *s = *in;
    uint64_t n_good, n_bad;
    uint8_t *damaged = malloc(s->n_bytes);
    memcpy(damaged, s->bytes, s->n_bytes);
    damaged[s->record_bytes + s->header_bytes + 10] ^= 4;
    write_segment(s, damaged, s->n_bytes);
    free(damaged);
    for (unsigned round = 0; round < 2; round++) { /* the second time the quarantine is counted */
        firn_tier *tier = fixture_open(&s->fix, s->dir, NULL);
        assert_ok(firn_disk_verify(tier, &n_good, &n_bad, NULL));
        assert_int_equal(n_good, 2);
        assert_int_equal(n_bad, 1);
        fixture_check(tier);
        firn_tier_destroy(tier);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_flipped_bit_in_any_section_is_a_miss, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flipped_bit_in_any_header_field_is_a_miss, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_cut_anywhere_is_a_miss, setup, teardown),
        cmocka_unit_test_setup_teardown(a_valid_record_in_the_wrong_place_is_a_miss, setup, teardown),
        cmocka_unit_test_setup_teardown(zeros_where_a_record_was_are_a_miss, setup, teardown),
        cmocka_unit_test_setup_teardown(a_missing_segment_file_is_a_miss, setup, teardown),
        cmocka_unit_test_setup_teardown(verify_finds_what_is_damaged_and_nothing_else, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
