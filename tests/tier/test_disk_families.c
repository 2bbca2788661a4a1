/*
 * The disk tier over window layers, fixed-size states and all together: what is stored at a count can be resumed at
 * exactly what every family has there, to the bit; what is not needed is not read; what one family lacks is a miss that
 * says so; and damage to any section of any kind of record is a full miss.
 */
#include <fcntl.h>
#include <unistd.h>

#include "record/record_impl.h"
#include "tier/tier_fixture.h"

#define T FIRN_BLOCK_TOKENS
#define W FIXTURE_WINDOW

typedef struct rig {
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_token tokens[FIXTURE_TOKENS_MAX];
} rig;

static rig *rig_create(fixture_schema schema)
{
    rig *r = calloc(1, sizeof *r);
    test_rng rng = test_rng_create(fixture_schema_names[schema], 31);
    const fixture_options options = { .schema = schema };
    fixture_init(&r->fix, NULL, &options);
    fixture_random_tokens(&rng, r->tokens, FIXTURE_TOKENS_MAX);
    r->dir = test_dir_create();
    r->tier = fixture_open(&r->fix, r->dir, NULL);
    return r;
}

static void rig_reopen(rig *r)
{
    fixture_check(r->tier);
    firn_tier_destroy(r->tier);
    r->tier = fixture_open(&r->fix, r->dir, NULL);
    fixture_check(r->tier);
}

static void rig_destroy(rig *r)
{
    fixture_check(r->tier);
    firn_tier_destroy(r->tier);
    test_dir_remove(r->dir);
    fixture_deinit(&r->fix);
    free(r->dir);
    free(r);
}

static void put(rig *r, uint32_t n)
{
    assert_int_equal(fixture_store(&r->fix, r->tier, NULL, r->tokens, n), FIRN_REASON_NONE);
}

/* Restores what is found of the first n tokens, compares it, and returns how much it is. */
static uint32_t got(rig *r, uint32_t n)
{
    firn_reason reason;
    return fixture_fetch(&r->fix, r->tier, NULL, r->tokens, n, &reason);
}

static firn_tier_stats stats_of(rig *r)
{
    firn_tier_stats stats;
    firn_tier_get_stats(r->tier, &stats);
    return stats;
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

static void a_stored_count_comes_back_in_every_family(void **unused)
{
    (void)unused;
    static const uint32_t counts[] = { 1, T - 1, T, T + 1, W - 1, W, W + 1, 2 * T, W + T, 2 * W + 3, 5 * T - 1, 5 * T,
                                       5 * T + 1 };
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            rig *r = rig_create((fixture_schema)schema);
            put(r, counts[i]);
            for (unsigned round = 0; round < 2; round++) {
                assert_int_equal(got(r, counts[i] + 1), counts[i]);
                assert_int_equal(got(r, counts[i] + 50), counts[i]);
                firn_match match = firn_tier_find_exact(r->tier, r->tokens, counts[i], NULL);
                assert_non_null(match.handle);
                firn_tier_release(r->tier, match.handle);
                rig_reopen(r);
            }
            rig_destroy(r);
        }
    }
}

/* Key n - 1 with state n, or the other way round, must not exist. */
static void a_state_is_found_at_its_own_count_only(void **unused)
{
    (void)unused;
    static const fixture_schema schemas[] = { FIXTURE_STATES, FIXTURE_ALL, FIXTURE_STATES_ONLY };
    static const uint32_t counts[] = { 2 * T - 1, 2 * T, 2 * T + 1 };
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t i = 0; i < 3; i++) {
            rig *r = rig_create(schemas[s]);
            put(r, counts[i]);
            for (uint32_t n = counts[i] - 2; n <= counts[i] + 2; n++) {
                const firn_match match = firn_tier_find_exact(r->tier, r->tokens, n, NULL);
                assert_int_equal(match.handle != NULL, n == counts[i]);
                assert_int_equal(match.matched_len, n < counts[i] ? n : counts[i]);
                firn_tier_release(r->tier, match.handle);
            }
            /* A prompt that leaves before the checkpoint matches, and has nothing to resume. */
            const firn_match match = firn_tier_find(r->tier, r->tokens, counts[i], NULL);
            assert_null(match.handle);
            assert_int_equal(match.reason, FIRN_REASON_FAMILY_MISSING);
            assert_int_equal(match.matched_len, counts[i]);
            rig_destroy(r);
        }
    }
}

static void a_row_with_a_state_is_stored_under_its_own_count_only(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_ALL);
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX];
    fixture_make_caches(&r->fix, r->tokens, 100, caches);
    for (uint32_t i = 0; i < r->fix.n_layers; i++) {
        borrowed[i] = caches[i];
    }
    firn_store_input input = { .tokens = r->tokens, .caches = borrowed, .n_caches = r->fix.n_layers };
    for (uint32_t n = 99; n <= 101; n++) {
        firn_reason reason;
        input.n_tokens = n;
        assert_int_equal(firn_tier_store(r->tier, &input, &reason), n == 100);
        assert_int_equal(reason, n == 100 ? FIRN_REASON_NONE : FIRN_REASON_COUNT_MISMATCH);
    }
    fixture_destroy_caches(caches);
    rig_destroy(r);
}

static void nothing_is_resumed_before_its_first_reusable_offset(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_LATE);
    put(r, 70);
    for (unsigned round = 0; round < 2; round++) {
        const firn_match match = firn_tier_find(r->tier, r->tokens, 90, NULL);
        assert_null(match.handle);
        assert_int_equal(match.reason, FIRN_REASON_FAMILY_MISSING);
        assert_int_equal(match.matched_len, 70);
        rig_reopen(r);
    }
    put(r, 90);
    rig_reopen(r);
    assert_int_equal(got(r, 100), 90);
    assert_int_equal(got(r, 90), 0);
    rig_destroy(r);
}

static void a_divergence_is_explained_without_token_blocks_too(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_STATES_ONLY);
    put(r, 70);
    put(r, 200);
    r->tokens[150] ^= 1;
    const firn_match match = firn_tier_find(r->tier, r->tokens, 201, NULL);
    assert_int_equal(match.matched_len, 150);
    assert_int_equal(match.prefix_len, 70);
    assert_int_equal(match.reason, FIRN_REASON_FAMILY_MISSING);
    assert_true(match.diverged);
    assert_int_equal(match.stored_token, r->tokens[150] ^ 1);
    firn_tier_release(r->tier, match.handle);
    rig_destroy(r);
}

/* ---- shorter than what was promised ------------------------------------------------------------------------------ */

static void a_restore_of_less_needs_a_usable_position(void **unused)
{
    (void)unused;
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        rig *r = rig_create((fixture_schema)schema);
        put(r, 70);
        put(r, 128);
        put(r, 300);
        const firn_match match = firn_tier_find(r->tier, r->tokens, 301, NULL);
        assert_int_equal(match.prefix_len, 300);
        for (uint32_t n = 1; n <= 300; n++) {
            firn_restored restored;
            const firn_reason reason = firn_tier_restore(r->tier, match.handle, n, &restored);
            const bool is_checkpoint = n == 70 || n == 128 || n == 300;
            /* Block 0 and 1 were stored with their windows, block 2 too: 300 tokens see from 200 on. */
            assert_true(reason == FIRN_REASON_NONE || reason == FIRN_REASON_FAMILY_MISSING);
            assert_true(!r->fix.has_states || is_checkpoint == (reason == FIRN_REASON_NONE));
            assert_true(r->fix.has_states || r->fix.has_windows || reason == FIRN_REASON_NONE);
            assert_true(n != 300 || reason == FIRN_REASON_NONE);
            if (reason == FIRN_REASON_NONE) {
                fixture_assert_state(&r->fix, &restored, r->tokens, n);
            } else {
                assert_null(restored.caches);
                assert_int_equal(restored.n_tokens, 0);
            }
            firn_restored_deinit(&restored);
        }
        firn_tier_release(r->tier, match.handle);
        rig_destroy(r);
    }
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static bool add_bytes(void *ctx, const firn_disk_record *record)
{
    *(uint64_t *)ctx += record->n_bytes;
    return true;
}

/* Stored in steps shorter than the window, so that each block was written with its window blocks. */
static void window_blocks_before_the_window_are_not_read(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_WINDOWS);
    uint64_t stored_bytes = 0, skipped_bytes = 0;
    for (uint32_t n = 32; n <= 1024; n += 32) {
        put(r, n);
    }
    assert_ok(firn_disk_visit(r->tier, add_bytes, &stored_bytes, NULL));
    const uint64_t before = stats_of(r).read_bytes;
    assert_int_equal(got(r, 1025), 1024);
    for (uint32_t layer = 0; layer < r->fix.n_layers; layer++) {
        firn_cache *cache;
        assert_ok(firn_cache_create(&r->fix.layers[layer], r->fix.pool, NULL, &cache, NULL));
        skipped_bytes += (uint64_t)firn_cache_first_block_needed(cache, 1024) * firn_cache_block_bytes(cache);
        firn_cache_destroy(cache);
    }
    assert_true(skipped_bytes > 0);
    assert_int_equal(stats_of(r).read_bytes - before, stored_bytes - skipped_bytes);
    /* All positions are usable, for all windows are there. */
    for (uint32_t n = 2; n < 1024; n += 31) {
        assert_int_equal(got(r, n), n - 1);
    }
    rig_destroy(r);
}

static void a_prefix_whose_window_was_let_go_is_a_miss_that_says_so(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_WINDOWS_ONLY);
    put(r, 1000); /* holds the blocks from (1000 - 100) / 64 = 14 on: positions from 14 * 64 + 100 on */
    for (uint32_t n = 900; n <= 1001; n++) {
        const firn_match match = firn_tier_find(r->tier, r->tokens, n, NULL);
        const bool is_usable = n - 1 >= 14 * T + W;
        assert_int_equal(match.matched_len, n < 1000 ? n : 1000);
        assert_int_equal(match.prefix_len, is_usable ? n - 1 : 0);
        assert_int_equal(match.reason, is_usable ? FIRN_REASON_NONE : FIRN_REASON_FAMILY_MISSING);
        firn_tier_release(r->tier, match.handle);
    }
    rig_destroy(r);
}

/* The next turn is tried again with another message: the end of the turn before must still be usable. */
static void the_end_of_a_turn_stays_usable_when_the_next_one_is_stored(void **unused)
{
    (void)unused;
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        static const uint32_t ends[] = { 90, 500, 513, 1100 };
        rig *r = rig_create((fixture_schema)schema);
        for (uint32_t i = 0; i < 4; i++) {
            put(r, ends[i]);
        }
        for (unsigned round = 0; round < 2; round++) {
            for (uint32_t i = 0; i < 4; i++) {
                firn_token prompt[1200];
                memcpy(prompt, r->tokens, sizeof prompt);
                prompt[ends[i]] ^= 1;
                firn_reason reason;
                assert_int_equal(fixture_fetch(&r->fix, r->tier, NULL, prompt, 1200, &reason), ends[i]);
            }
            rig_reopen(r);
        }
        uint64_t n_good, n_bad;
        assert_ok(firn_disk_verify(r->tier, &n_good, &n_bad, NULL)); /* headers alone among them */
        assert_int_equal(n_good, stats_of(r).n_records);
        assert_int_equal(n_bad, 0);
        rig_destroy(r);
    }
}

static void a_record_with_windows_takes_the_place_of_one_without(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_WINDOWS);
    put(r, 1000);
    const firn_tier_stats before = stats_of(r);
    assert_int_equal(got(r, 2 * T + 1), 0);
    put(r, 2 * T);
    assert_int_equal(got(r, 2 * T + 1), 2 * T);
    assert_int_equal(got(r, 1001), 1000);
    const firn_tier_stats after = stats_of(r);
    assert_int_equal(after.n_records, before.n_records); /* the same blocks, two of them written anew */
    const uint64_t n_written = after.written_bytes - before.written_bytes;
    assert_true(after.unique_bytes - before.unique_bytes < n_written); /* of which the windows are new */
    put(r, 2 * T);
    put(r, 1000);
    assert_int_equal(stats_of(r).written_bytes, after.written_bytes);
    rig_destroy(r);
}

static void what_somebody_reads_is_not_replaced(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_WINDOWS);
    put(r, 1000);
    const firn_match match = firn_tier_find(r->tier, r->tokens, 1001, NULL);
    assert_int_equal(match.prefix_len, 1000);
    assert_int_equal(fixture_store(&r->fix, r->tier, NULL, r->tokens, 2 * T), FIRN_REASON_LOADING);
    fixture_check(r->tier);
    assert_int_equal(got(r, 2 * T + 1), 0); /* refused means that nothing changed */
    firn_restored restored;
    assert_int_equal(firn_tier_restore(r->tier, match.handle, 0, &restored), FIRN_REASON_NONE);
    fixture_assert_state(&r->fix, &restored, r->tokens, 1000);
    firn_restored_deinit(&restored);
    firn_tier_release(r->tier, match.handle);
    put(r, 2 * T);
    assert_int_equal(got(r, 2 * T + 1), 2 * T);
    rig_destroy(r);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

static void a_growing_conversation_writes_little_more_than_is_new(void **unused)
{
    (void)unused;
    for (uint32_t schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        rig *r = rig_create((fixture_schema)schema);
        for (uint32_t n = 700; n <= 3500; n += 700) {
            put(r, n);
        }
        const firn_tier_stats stats = stats_of(r);
        const double ratio = (double)stats.written_bytes / (double)stats.unique_bytes;
        print_message("%s: written %llu, unique %llu: %.3f\n", fixture_schema_names[schema],
                      (unsigned long long)stats.written_bytes, (unsigned long long)stats.unique_bytes, ratio);
        assert_true(ratio <= 1.1);
        assert_int_equal(got(r, 3501), 3500);
        rig_destroy(r);
    }
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static bool count_old(void *ctx, const firn_disk_record *record)
{
    *(uint32_t *)ctx += record->kind == FIRN_DISK_CHECKPOINT && strcmp(record->ns, "old") == 0;
    return true;
}

static uint32_t old_checkpoints(rig *r)
{
    uint32_t n = 0;
    assert_ok(firn_disk_visit(r->tier, count_old, &n, NULL));
    return n;
}

/* One conversation of sixty turns, then others that need the room: its superseded checkpoints go first, the last one
 * stays with the path that it lies on. */
static void superseded_checkpoints_leave_before_the_path(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_STATES_ONLY);
    const firn_disk_options tight = { .budget_bytes = 64u << 20,
                                      .segment_bytes = 4u << 20,
                                      .durability = FIRN_DURABILITY_NONE };
    firn_tier_destroy(r->tier);
    r->tier = fixture_open(&r->fix, r->dir, &tight);
    for (uint32_t n = 2; n <= 120; n += 2) {
        assert_int_equal(fixture_store(&r->fix, r->tier, "old", r->tokens, n), FIRN_REASON_NONE);
    }
    assert_int_equal(old_checkpoints(r), 60);
    uint32_t n_after = 0;
    for (uint32_t i = 0; n_after < 40; i++) { /* more conversations, each token a turn */
        char ns[16];
        (void)snprintf(ns, sizeof ns, "%u", i / 100);
        assert_int_equal(fixture_store(&r->fix, r->tier, ns, r->tokens, i % 100 + 1), FIRN_REASON_NONE);
        n_after += stats_of(r).n_evicted > 0;
        assert_true(i < 10000);
    }
    assert_true(old_checkpoints(r) < 30);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&r->fix, r->tier, "old", r->tokens, 121, &reason), 120);
    rig_destroy(r);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

typedef struct segment_bytes {
    char path[600];
    uint8_t *bytes;
    size_t n_bytes;
} segment_bytes;

static void segment_read(segment_bytes *segment, const char *dir)
{
    struct stat st;
    (void)snprintf(segment->path, sizeof segment->path, "%s/seg-00000001.firn", dir);
    const int fd = open(segment->path, O_RDONLY);
    assert_int_equal(fstat(fd, &st), 0);
    segment->n_bytes = (size_t)st.st_size;
    segment->bytes = malloc(segment->n_bytes);
    assert_int_equal(read(fd, segment->bytes, segment->n_bytes), segment->n_bytes);
    close(fd);
}

static void segment_write(const segment_bytes *segment, const uint8_t *bytes, size_t n_bytes)
{
    const int fd = open(segment->path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, bytes, n_bytes), n_bytes);
    close(fd);
}

/* Opens the damaged store: the restore is a full miss that says corrupt, what is left is found, a new store heals. */
static void assert_miss_then_heals(rig *r, uint32_t n, uint32_t n_left)
{
    firn_reason reason;
    r->tier = fixture_open(&r->fix, r->dir, NULL);
    assert_int_equal(fixture_fetch(&r->fix, r->tier, NULL, r->tokens, n + 1, &reason), 0);
    assert_int_equal(reason, FIRN_REASON_CORRUPT);
    for (unsigned round = 0; round < 2; round++) { /* the quarantine outlives the process */
        assert_int_equal(fixture_fetch(&r->fix, r->tier, NULL, r->tokens, n + 1, &reason), n_left);
        const firn_match match = firn_tier_find(r->tier, r->tokens, n + 1, NULL);
        assert_int_equal(match.reason, FIRN_REASON_CORRUPT);
        firn_tier_release(r->tier, match.handle);
        rig_reopen(r);
    }
    put(r, n);
    assert_int_equal(got(r, n + 1), n);
    rig_reopen(r);
    assert_int_equal(got(r, n + 1), n);
}

/* Whether a restore at n tokens reads this section of a block. */
static bool is_needed(const rig *r, const firni_record *record, const firni_section *section, uint32_t n)
{
    firn_cache *cache;
    assert_ok(firn_cache_create(&r->fix.layers[section->layer], r->fix.pool, NULL, &cache, NULL));
    const uint32_t first = firn_cache_block_bytes(cache) > 0 ? firn_cache_first_block_needed(cache, n) : 0;
    firn_cache_destroy(cache);
    return record->first_token / T >= first;
}

/* Every section of every record that the restore at 150 reads, and its header. Block 0 was stored by itself before,
 * with all its windows and a checkpoint, which the restore does not read. */
static void a_flipped_bit_in_any_section_is_a_full_miss(void **unused)
{
    (void)unused;
    for (uint32_t schema = 1; schema < FIXTURE_SCHEMAS; schema++) {
        rig *r = rig_create((fixture_schema)schema);
        put(r, T);
        put(r, 150);
        firn_tier_destroy(r->tier);
        segment_bytes segment;
        segment_read(&segment, r->dir);
        uint32_t n_checkpoints = 0;
        for (size_t at = 0; at < segment.n_bytes;) {
            firni_section sections[64];
            firni_record record;
            assert_ok(firni_record_decode(segment.bytes + at, segment.n_bytes - at, segment.n_bytes - at, sections, 64,
                                          &record, NULL));
            n_checkpoints += record.kind == FIRNI_RECORD_CHECKPOINT;
            const bool is_read = record.kind != FIRNI_RECORD_CHECKPOINT || record.first_token > 0;
            for (uint32_t s = 0; s <= record.n_sections && is_read; s++) {
                if (s < record.n_sections && !is_needed(r, &record, &sections[s], 150)) {
                    continue;
                }
                const bool is_header = s == record.n_sections;
                const size_t place = at + (is_header ? 100 : sections[s].offset + sections[s].n_bytes / 2);
                char *pristine = r->dir;
                char command[1400];
                r->dir = test_dir_create();
                (void)snprintf(command, sizeof command, "cp -a '%s/.' '%s/'", pristine, r->dir);
                assert_int_equal(system(command), 0);
                segment_bytes copy = segment;
                (void)snprintf(copy.path, sizeof copy.path, "%s/seg-00000001.firn", r->dir);
                segment.bytes[place] ^= 4;
                segment_write(&copy, segment.bytes, segment.n_bytes);
                segment.bytes[place] ^= 4;
                const bool is_first = record.first_token == 0;
                assert_miss_then_heals(r, 150, is_first ? 0 : r->fix.has_states ? T : record.first_token);
                firn_tier_destroy(r->tier);
                test_dir_remove(r->dir);
                free(r->dir);
                r->dir = pristine;
            }
            at += record.record_bytes;
        }
        assert_int_equal(n_checkpoints, r->fix.has_states ? 2 : 0);
        free(segment.bytes);
        r->tier = fixture_open(&r->fix, r->dir, NULL);
        assert_int_equal(got(r, 151), 150);
        rig_destroy(r);
    }
}

static void a_file_cut_anywhere_is_a_full_miss(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_ALL);
    put(r, 150);
    firn_tier_destroy(r->tier);
    segment_bytes segment;
    segment_read(&segment, r->dir);
    for (size_t n = 0; n < segment.n_bytes; n += segment.n_bytes / 9) {
        segment_write(&segment, segment.bytes, n);
        r->tier = fixture_open(&r->fix, r->dir, NULL);
        firn_reason reason;
        assert_int_equal(fixture_fetch(&r->fix, r->tier, NULL, r->tokens, 151, &reason), 0);
        assert_int_equal(reason, FIRN_REASON_CORRUPT);
        firn_tier_destroy(r->tier);
        test_dir_remove(r->dir);
        free(r->dir);
        r->dir = test_dir_create();
        r->tier = fixture_open(&r->fix, r->dir, NULL);
        put(r, 150);
        firn_tier_destroy(r->tier);
        (void)snprintf(segment.path, sizeof segment.path, "%s/seg-00000001.firn", r->dir);
    }
    free(segment.bytes);
    r->tier = fixture_open(&r->fix, r->dir, NULL);
    assert_int_equal(got(r, 151), 150);
    rig_destroy(r);
}

/* A checkpoint that is damaged takes nothing else with it: an older one serves. */
static void an_older_checkpoint_serves_when_the_last_is_damaged(void **unused)
{
    (void)unused;
    rig *r = rig_create(FIXTURE_STATES_ONLY);
    put(r, 100);
    put(r, 150);
    firn_tier_destroy(r->tier);
    segment_bytes segment;
    segment_read(&segment, r->dir);
    segment.bytes[segment.n_bytes - 1] ^= 1; /* the last state of the last record, the checkpoint at 150 */
    segment_write(&segment, segment.bytes, segment.n_bytes);
    free(segment.bytes);
    assert_miss_then_heals(r, 150, 100);
    rig_destroy(r);
}

int main(void)
{
    /* Hundreds of small stores: in memory where the system has a place for it. */
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stored_count_comes_back_in_every_family),
        cmocka_unit_test(a_state_is_found_at_its_own_count_only),
        cmocka_unit_test(a_row_with_a_state_is_stored_under_its_own_count_only),
        cmocka_unit_test(nothing_is_resumed_before_its_first_reusable_offset),
        cmocka_unit_test(a_divergence_is_explained_without_token_blocks_too),
        cmocka_unit_test(a_restore_of_less_needs_a_usable_position),
        cmocka_unit_test(window_blocks_before_the_window_are_not_read),
        cmocka_unit_test(a_prefix_whose_window_was_let_go_is_a_miss_that_says_so),
        cmocka_unit_test(the_end_of_a_turn_stays_usable_when_the_next_one_is_stored),
        cmocka_unit_test(a_record_with_windows_takes_the_place_of_one_without),
        cmocka_unit_test(what_somebody_reads_is_not_replaced),
        cmocka_unit_test(a_growing_conversation_writes_little_more_than_is_new),
        cmocka_unit_test(superseded_checkpoints_leave_before_the_path),
        cmocka_unit_test(a_flipped_bit_in_any_section_is_a_full_miss),
        cmocka_unit_test(a_file_cut_anywhere_is_a_full_miss),
        cmocka_unit_test(an_older_checkpoint_serves_when_the_last_is_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
