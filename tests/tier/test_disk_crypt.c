/*
 * Encrypted stores: nothing of tokens, names and state is on disk in the clear; the right key gives back the same bits;
 * another key, or none, is a named miss and never garbage; what was changed or moved is a miss.
 */
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "firn/keep.h"
#include "record/record_impl.h"
#include "tier/tier_fixture.h"

#define N 150u /* two blocks and a tail */

static const firn_disk_options with_key = { .key = fixture_key, .segment_bytes = 1 << 20 };
static const firn_disk_options with_other_key = { .key = fixture_other_key };
static const char *const session_name = "a conversation of somebody", *const object_key = "an object of somebody";

typedef struct state {
    fixture fix;
    char *dir;
    char segment[600];
    firn_token tokens[N + 1];
} state;

static state *create(const fixture_options *options)
{
    state *s = calloc(1, sizeof *s);
    test_rng rng = test_rng_create("disk_crypt", 5);
    fixture_init(&s->fix, NULL, options);
    fixture_random_tokens(&rng, s->tokens, N + 1);
    s->dir = test_dir_create();
    (void)snprintf(s->segment, sizeof s->segment, "%s/seg-00000001.firn", s->dir);
    return s;
}

static void destroy(state *s)
{
    test_dir_remove(s->dir);
    fixture_deinit(&s->fix);
    free(s->dir);
    free(s);
}

static int setup(void **out)
{
    *out = create(NULL);
    return 0;
}

static int teardown(void **in)
{
    destroy(*in);
    return 0;
}

static void store(state *s, const firn_disk_options *options)
{
    firn_tier *tier = fixture_open(&s->fix, s->dir, options);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static uint8_t *read_file(const char *path, size_t *n_bytes)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    *n_bytes = (size_t)st.st_size;
    uint8_t *bytes = malloc(*n_bytes);
    assert_int_equal(read(fd, bytes, *n_bytes), *n_bytes);
    close(fd);
    return bytes;
}

static void write_file(const char *path, const uint8_t *bytes, size_t n_bytes)
{
    const int fd = open(path, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), n_bytes);
    close(fd);
}

static void pause_20_ms(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
}

static firn_status open_with(const state *s, const uint8_t *key, bool has_schema, bool read_only, firn_tier **out)
{
    const firn_disk_options options = { .dir = s->dir,
                                        .schema = has_schema ? &s->fix.schema : NULL,
                                        .pool = s->fix.pool,
                                        .key = key,
                                        .read_only = read_only };
    return firn_disk_open(&options, NULL, out, NULL);
}

/* ---- what is on disk --------------------------------------------------------------------------------------------- */

static bool contains(const uint8_t *bytes, size_t n_bytes, const void *part, size_t n_part)
{
    const uint8_t *at = bytes, *end = bytes + n_bytes;
    while ((size_t)(end - at) >= n_part) {
        at = memchr(at, *(const uint8_t *)part, (size_t)(end - at) - n_part + 1);
        if (at == NULL) {
            return false;
        }
        if (memcmp(at, part, n_part) == 0) {
            return true;
        }
        at++;
    }
    return false;
}

static void assert_absent(const uint8_t *bytes, size_t n_bytes, const void *part, size_t n_part, const char *what)
{
    if (contains(bytes, n_bytes, part, n_part)) {
        fail_msg("%s is on disk in the clear", what);
    }
}

/* Four tokens in either byte order, at any place of the prompt; four of the state's planes; digests of the chain. */
static void assert_nothing_shows(const state *s, const char *path)
{
    size_t n_bytes;
    uint8_t *bytes = read_file(path, &n_bytes);
    uint8_t little[16], big[16];
    for (uint32_t at = 0; at + 4 <= N; at++) {
        for (uint32_t i = 0; i < 16; i++) {
            little[i] = (uint8_t)(s->tokens[at + i / 4] >> (8 * (i % 4)));
            big[i] = (uint8_t)(s->tokens[at + i / 4] >> (24 - 8 * (i % 4)));
        }
        assert_absent(bytes, n_bytes, little, sizeof little, "a prompt");
        assert_absent(bytes, n_bytes, big, sizeof big, "a prompt");
    }
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(&s->fix, s->tokens, N, caches);
    for (uint32_t layer = 0; layer < s->fix.n_layers; layer++) {
        const firn_row_view view = firn_cache_view_row(caches[layer], 0);
        const uint8_t *data = firn_block_data(view.blocks[0]);
        for (size_t at = 0; at + 16 <= firn_block_bytes(view.blocks[0]) && at < 8192; at += 16) {
            static const uint8_t zeros[16] = { 0 };
            if (memcmp(data + at, zeros, sizeof zeros) != 0) {
                assert_absent(bytes, n_bytes, data + at, 16, "state");
            }
        }
    }
    fixture_destroy_caches(caches);
    /* Who guesses a prompt computes its digests, and must not find them. */
    firn_digest digest = firn_chain_root(&s->fix.schema.identity, "");
    for (uint32_t i = 0; i < N / FIRN_BLOCK_TOKENS; i++) {
        digest = firn_chain_extend(&digest, s->tokens + (size_t)i * FIRN_BLOCK_TOKENS, FIRN_BLOCK_TOKENS);
        assert_absent(bytes, n_bytes, digest.bytes, sizeof digest.bytes, "a prompt's digest");
        assert_absent(bytes, n_bytes, digest.bytes, 16, "half of a prompt's digest");
    }
    assert_absent(bytes, n_bytes, session_name, strlen(session_name), "a session's name");
    assert_absent(bytes, n_bytes, object_key, strlen(object_key), "an object's key");
    assert_absent(bytes, n_bytes, "attached to", 11, "an attachment");
    free(bytes);
}

static firn_attachment attachment(void)
{
    return (firn_attachment){ .schema = "test.1", .metadata = (void *)(uintptr_t)"attached to it",
                              .n_metadata_bytes = 14 };
}

static void nothing_of_prompts_names_and_state_is_on_disk(void **in)
{
    state *s = *in;
    firn_tier *tier = fixture_open(&s->fix, s->dir, &with_key);
    const firn_attachment attached = attachment();
    firn_reason reason;
    assert_true(fixture_store_with(&s->fix, tier, NULL, s->tokens, N, &attached, 1, &reason));
    const firn_session session = { .id = session_name, .ns = "", .tokens = s->tokens, .n_tokens = N };
    assert_ok(firn_tier_put_session(tier, &session, NULL));
    const firn_pin pin = { .name = session_name, .ns = "", .tokens = s->tokens, .n_tokens = N,
                           .until_wall_ns = UINT64_MAX / 2 };
    assert_ok(firn_tier_pin(tier, &pin, NULL));
    const firn_object object = { .key = object_key, .ns = "", .attachments = &attached, .n_attachments = 1 };
    assert_true(firn_tier_put_object(tier, &object, &reason));
    fixture_check(tier);
    firn_tier_destroy(tier);
    char index[600];
    (void)snprintf(index, sizeof index, "%s/index/data.mdb", s->dir);
    assert_nothing_shows(s, s->segment);
    assert_nothing_shows(s, index);
}

static void the_search_finds_what_a_plain_store_has(void **in)
{
    state *s = *in;
    store(s, NULL);
    size_t n_bytes;
    uint8_t *bytes = read_file(s->segment, &n_bytes), little[16];
    for (uint32_t i = 0; i < 16; i++) {
        little[i] = (uint8_t)(s->tokens[i / 4] >> (8 * (i % 4)));
    }
    assert_true(contains(bytes, n_bytes, little, sizeof little));
    free(bytes);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static bool note_name(void *ctx, const firn_pin *pin)
{
    const state *s = ctx;
    assert_string_equal(pin->name, session_name);
    assert_int_equal(pin->n_tokens, N);
    assert_memory_equal(pin->tokens, s->tokens, N * sizeof s->tokens[0]);
    return true;
}

static void note_session(void *ctx, const firn_session *session)
{
    const state *s = ctx;
    assert_int_equal(session->n_tokens, N);
    assert_memory_equal(session->tokens, s->tokens, N * sizeof s->tokens[0]);
}

static void the_right_key_gives_back_the_same_bits(void **in)
{
    (void)in;
    for (fixture_schema schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        const fixture_options options = { .schema = schema };
        state *s = create(&options);
        firn_tier *tier = fixture_open(&s->fix, s->dir, &with_key);
        const firn_attachment attached = attachment();
        firn_reason reason;
        assert_true(fixture_store_with(&s->fix, tier, "ns", s->tokens, N, &attached, 1, &reason));
        const firn_session session = { .id = session_name, .ns = "ns", .tokens = s->tokens, .n_tokens = N };
        assert_ok(firn_tier_put_session(tier, &session, NULL));
        const firn_pin pin = { .name = session_name, .ns = "ns", .tokens = s->tokens, .n_tokens = N,
                               .until_wall_ns = UINT64_MAX / 2 };
        assert_ok(firn_tier_pin(tier, &pin, NULL));
        firn_tier_destroy(tier);
        tier = fixture_open(&s->fix, s->dir, &with_key);
        assert_int_equal(fixture_fetch(&s->fix, tier, "ns", s->tokens, N + 1, &reason), N);
        assert_ok(firn_tier_each_pin(tier, note_name, s, NULL));
        assert_ok(firn_tier_get_session(tier, "ns", session_name, note_session, s, NULL));
        uint64_t n_good, n_bad;
        assert_ok(firn_disk_verify(tier, &n_good, &n_bad, NULL));
        assert_true(n_good > 0 && n_bad == 0);
        fixture_check(tier);
        firn_tier_destroy(tier);
        destroy(s);
    }
}

/* The first token that differs is found among siblings in whatever order their sealed keys have. */
static void a_lookup_finds_the_longest_beginning_and_what_differs(void **in)
{
    state *s = *in;
    test_rng rng = test_rng_create("disk_crypt_siblings", 8);
    firn_tier *tier = fixture_open(&s->fix, s->dir, &with_key);
    for (uint32_t i = 0; i < 40; i++) { /* siblings that leave the prompt at many places inside its second block */
        firn_token other[N];
        memcpy(other, s->tokens, sizeof other);
        for (uint32_t k = 70 + i; k < N; k++) {
            other[k] = 1000000 + 100 * i + test_rng_below(&rng, 50);
        }
        assert_int_equal(fixture_store(&s->fix, tier, NULL, other, 128), FIRN_REASON_NONE);
    }
    const firn_match match = firn_tier_find(tier, s->tokens, 128, NULL);
    assert_int_equal(match.matched_len, 109);
    assert_int_equal(match.reason, FIRN_REASON_DIVERGED);
    assert_true(match.stored_token >= 1003900 && match.stored_token < 1003950);
    firn_tier_release(tier, match.handle);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static void another_key_or_none_is_refused_and_changes_nothing(void **in)
{
    state *s = *in;
    store(s, &with_key);
    size_t n_before, n_after;
    uint8_t *before = read_file(s->segment, &n_before);
    firn_tier *tier = NULL;
    assert_status(open_with(s, fixture_other_key, true, false, &tier), FIRN_ERR_KEY);
    assert_null(tier);
    assert_status(open_with(s, NULL, true, false, &tier), FIRN_ERR_KEY);
    assert_status(open_with(s, NULL, true, true, &tier), FIRN_ERR_KEY);
    assert_status(open_with(s, fixture_other_key, false, true, &tier), FIRN_ERR_KEY);
    uint8_t *after = read_file(s->segment, &n_after);
    assert_int_equal(n_after, n_before);
    assert_memory_equal(after, before, n_before);
    free(before);
    free(after);
    firn_reason reason;
    tier = fixture_open(&s->fix, s->dir, &with_key);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    firn_tier_destroy(tier);
}

static void a_plain_store_is_not_opened_with_a_key(void **in)
{
    state *s = *in;
    store(s, NULL);
    firn_tier *tier = NULL;
    assert_status(open_with(s, fixture_key, true, false, &tier), FIRN_ERR_KEY);
    assert_status(open_with(s, fixture_key, false, true, &tier), FIRN_ERR_KEY);
    firn_reason reason;
    tier = fixture_open(&s->fix, s->dir, NULL);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    firn_tier_destroy(tier);
}

/* The directory is replaced, while it is served, by one of another key. */
static void a_store_of_another_key_is_a_miss_that_says_so(void **in)
{
    state *s = *in;
    state *other = create(NULL);
    store(other, &with_other_key);
    firn_tier *tier = fixture_open(&s->fix, s->dir, &with_key);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    char command[1400];
    (void)snprintf(command, sizeof command, "mv '%s' '%s.away' && cp -a '%s' '%s'", s->dir, s->dir, other->dir, s->dir);
    assert_int_equal(system(command), 0);
    firn_reason reason = FIRN_REASON_NONE;
    for (uint32_t i = 0; i < 100 && reason != FIRN_REASON_WRONG_KEY; i++) {
        (void)fixture_store(&s->fix, tier, NULL, s->tokens, N); /* notices by path that it is another directory */
        assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), 0);
        pause_20_ms();
    }
    assert_int_equal(reason, FIRN_REASON_WRONG_KEY);
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    assert_int_equal(stats.state, FIRN_REASON_WRONG_KEY);
    /* Its own comes back, and so does its state. */
    (void)snprintf(command, sizeof command, "rm -rf '%s' && mv '%s.away' '%s'", s->dir, s->dir, s->dir);
    assert_int_equal(system(command), 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 200 && n == 0; i++) {
        pause_20_ms();
        n = fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason);
    }
    assert_int_equal(n, N);
    firn_tier_destroy(tier);
    destroy(other);
}

/* ---- without the key --------------------------------------------------------------------------------------------- */

typedef struct listed {
    uint32_t n_records, n_tokens;
    firn_digest first;
} listed;

static bool note_record(void *ctx, const firn_disk_record *record)
{
    listed *list = ctx;
    assert_string_equal(record->ns, "ns");
    list->n_records++;
    list->n_tokens += record->n_tokens;
    list->first = record->first_token == 0 ? record->digest : list->first;
    return true;
}

static void without_its_key_a_store_is_listed_and_wiped_but_not_read(void **in)
{
    state *s = *in;
    firn_tier *tier = fixture_open(&s->fix, s->dir, &with_key);
    assert_int_equal(fixture_store(&s->fix, tier, "ns", s->tokens, N), FIRN_REASON_NONE);
    const firn_pin pin = { .name = "p", .ns = "ns", .tokens = s->tokens, .n_tokens = N,
                           .until_wall_ns = UINT64_MAX / 2 };
    assert_ok(firn_tier_pin(tier, &pin, NULL));
    listed with = { 0 }, without = { 0 };
    assert_ok(firn_disk_visit(tier, note_record, &with, NULL));
    firn_tier_destroy(tier);
    assert_ok(open_with(s, NULL, false, false, &tier));
    assert_ok(firn_disk_visit(tier, note_record, &without, NULL));
    assert_int_equal(without.n_records, with.n_records);
    assert_int_equal(without.n_tokens, with.n_tokens);
    assert_false(firni_digest_equal(&without.first, &with.first));
    fixture_check(tier);
    uint64_t n_good, n_bad;
    assert_status(firn_disk_verify(tier, &n_good, &n_bad, NULL), FIRN_ERR_KEY);
    firn_disk_prune_report report;
    firn_disk_prune_options prune = { .to_bytes = 1 };
    assert_status(firn_disk_prune(tier, &prune, &report, NULL), FIRN_ERR_KEY);
    prune = (firn_disk_prune_options){ .ns = "ns", .wipe = true };
    assert_ok(firn_disk_prune(tier, &prune, &report, NULL));
    assert_int_equal(report.n_records, with.n_records);
    fixture_check(tier);
    firn_tier_destroy(tier);
    firn_reason reason;
    tier = fixture_open(&s->fix, s->dir, &with_key);
    assert_int_equal(fixture_fetch(&s->fix, tier, "ns", s->tokens, N + 1, &reason), 0);
    firn_tier_destroy(tier);
}

/* ---- rebuilding -------------------------------------------------------------------------------------------------- */

static void remove_index(const state *s)
{
    char command[1400];
    (void)snprintf(command, sizeof command, "rm -rf '%s/index'", s->dir);
    assert_int_equal(system(command), 0);
}

static void an_index_is_made_anew_with_the_key_alone(void **in)
{
    state *s = *in;
    store(s, &with_key);
    remove_index(s);
    size_t n_before, n_after;
    uint8_t *before = read_file(s->segment, &n_before);
    firn_disk_fsck_report report;
    const firn_disk_fsck_options other = { .key = fixture_other_key }, right = { .key = fixture_key };
    assert_status(firn_disk_fsck(s->dir, NULL, NULL, &report, NULL), FIRN_ERR_KEY);
    assert_status(firn_disk_fsck(s->dir, &other, NULL, &report, NULL), FIRN_ERR_KEY);
    uint8_t *after = read_file(s->segment, &n_after);
    assert_int_equal(n_after, n_before);
    assert_memory_equal(after, before, n_before);
    free(before);
    free(after);
    assert_ok(firn_disk_fsck(s->dir, &right, NULL, &report, NULL));
    assert_int_equal(report.n_records, 3);
    assert_int_equal(report.n_damaged, 0);
    firn_reason reason;
    firn_tier *tier = NULL;
    assert_status(open_with(s, fixture_other_key, true, false, &tier), FIRN_ERR_KEY);
    tier = fixture_open(&s->fix, s->dir, &with_key);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

static void a_plain_store_is_not_rebuilt_with_a_key(void **in)
{
    state *s = *in;
    store(s, NULL);
    firn_disk_fsck_report report;
    const firn_disk_fsck_options options = { .key = fixture_key };
    assert_status(firn_disk_fsck(s->dir, &options, NULL, &report, NULL), FIRN_ERR_KEY);
    store(s, NULL);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* Looks once: it must be a miss that says corrupt, and the record must be quarantined. */
static void assert_corrupt(const state *s, const char *what)
{
    firn_tier *tier = fixture_open(&s->fix, s->dir, &with_key);
    firn_reason reason;
    const uint32_t n = fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason);
    firn_tier_stats stats;
    firn_tier_get_stats(tier, &stats);
    if (n != 0 || reason != FIRN_REASON_CORRUPT || stats.n_quarantined != 1) {
        fail_msg("%s: %u tokens, %s, %llu quarantined", what, n, firn_reason_name(reason),
                 (unsigned long long)stats.n_quarantined);
    }
    /* A new store heals it. */
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    fixture_check(tier);
    firn_tier_destroy(tier);
}

/* Each damage on a copy of its own of the store. */
static void with_bytes(state *s, const uint8_t *bytes, size_t n_bytes, const char *what)
{
    char *original = s->dir;
    char command[1400], segment[600];
    s->dir = test_dir_create();
    (void)snprintf(command, sizeof command, "cp -a '%s/.' '%s/'", original, s->dir);
    assert_int_equal(system(command), 0);
    (void)snprintf(segment, sizeof segment, "%s/seg-00000001.firn", s->dir);
    write_file(segment, bytes, n_bytes);
    assert_corrupt(s, what);
    test_dir_remove(s->dir);
    free(s->dir);
    s->dir = original;
}

static void one_flipped_bit_anywhere_is_a_miss(void **in)
{
    state *s = *in;
    store(s, &with_key);
    size_t n_bytes;
    uint8_t *bytes = read_file(s->segment, &n_bytes);
    uint32_t header_bytes, n_sections;
    assert_ok(firni_record_peek(bytes, &header_bytes, &n_sections, NULL));
    const struct {
        size_t offset;
        const char *what;
    } places[] = {
        { 8, "tag of the header" },    { 48, "time in the clear" },     { 60, "count in the clear" },
        { 64, "identity" },            { 100, "namespace" },            { 130, "salt" },
        { 150, "id of the key" },      { 170, "sealed parent" },        { 200, "sealed tokens" },
        { 448 + 40, "a section's tag" }, { header_bytes - 1u, "end of the header" },
        { header_bytes, "first byte of a section" }, { header_bytes + 700, "inside of a section" },
        { 24, "version" },             { 26, "bit of the sealed form" },
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        bytes[places[i].offset] ^= 1;
        with_bytes(s, bytes, n_bytes, places[i].what);
        bytes[places[i].offset] ^= 1;
    }
    free(bytes);
}

/* A valid record in the place of another, and a valid section in the place of its neighbour's. */
static void what_was_moved_is_a_miss(void **in)
{
    state *s = *in;
    store(s, &with_key);
    size_t n_bytes;
    uint8_t *bytes = read_file(s->segment, &n_bytes);
    uint8_t *changed = malloc(n_bytes);
    uint32_t header_bytes, n_sections;
    assert_ok(firni_record_peek(bytes, &header_bytes, &n_sections, NULL));
    const size_t n_record = n_bytes / 3;
    memcpy(changed, bytes, n_bytes);
    memcpy(changed, bytes + n_record, n_record);
    with_bytes(s, changed, n_bytes, "a record in the place of another");
    memcpy(changed, bytes, n_bytes);
    memcpy(changed + header_bytes, bytes + n_record + header_bytes, n_record - header_bytes);
    with_bytes(s, changed, n_bytes, "sections of another record");
    const size_t n_image = (n_record - header_bytes) / s->fix.n_layers;
    memcpy(changed, bytes, n_bytes);
    memcpy(changed + header_bytes, bytes + header_bytes + n_image, n_image);
    with_bytes(s, changed, n_bytes, "a section of another layer");
    free(changed);
    free(bytes);
}

/* ---- packed ------------------------------------------------------------------------------------------------------ */

/* Records that nobody has used for long are compressed, then encrypted with keys that were not used before. */
static void packed_records_are_encrypted_and_come_back_to_the_bit(void **in)
{
    (void)in;
    const firn_disk_options at_once = { .key = fixture_key, .demote_idle_ns = 1 };
    const fixture_options options = { .head_dim = 64 };
    state *s = create(&options);
    firn_tier *tier = fixture_open(&s->fix, s->dir, &at_once);
    assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
    firn_disk_demote_report report;
    assert_ok(firn_disk_demote(tier, &report, NULL));
    assert_true(report.n_demoted > 0);
    firn_reason reason;
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    uint64_t n_good, n_bad;
    assert_ok(firn_disk_verify(tier, &n_good, &n_bad, NULL));
    assert_true(n_good == 3 && n_bad == 0);
    fixture_check(tier);
    firn_tier_destroy(tier);
    assert_nothing_shows(s, s->segment);
    remove_index(s);
    firn_disk_fsck_report rebuilt;
    const firn_disk_fsck_options right = { .key = fixture_key };
    assert_ok(firn_disk_fsck(s->dir, &right, NULL, &rebuilt, NULL));
    assert_int_equal(rebuilt.n_records, 3);
    tier = fixture_open(&s->fix, s->dir, &at_once);
    assert_int_equal(fixture_fetch(&s->fix, tier, NULL, s->tokens, N + 1, &reason), N);
    firn_tier_destroy(tier);
    destroy(s);
}

/* ---- nonces ------------------------------------------------------------------------------------------------------ */

static int by_salt(const void *a, const void *b)
{
    return memcmp(a, b, FIRNI_CRYPT_SALT_BYTES);
}

/* The same state, written again and again: other salts, and so other keys and other bytes. */
static void no_record_is_written_with_the_key_of_another(void **in)
{
    state *s = *in;
    enum { ROUNDS = 20 };
    uint8_t salts[3 * ROUNDS][FIRNI_CRYPT_SALT_BYTES];
    uint32_t n_salts = 0;
    uint8_t first_section[64] = { 0 };
    for (uint32_t round = 0; round < ROUNDS; round++) {
        char *dir = test_dir_create();
        firn_tier *tier = fixture_open(&s->fix, dir, &with_key);
        assert_int_equal(fixture_store(&s->fix, tier, NULL, s->tokens, N), FIRN_REASON_NONE);
        firn_tier_destroy(tier);
        char segment[600];
        (void)snprintf(segment, sizeof segment, "%s/seg-00000001.firn", dir);
        size_t n_bytes;
        uint8_t *bytes = read_file(segment, &n_bytes);
        for (uint32_t i = 0; i < 3; i++) {
            const uint8_t *record = bytes + i * (n_bytes / 3);
            assert_true(firni_record_is_sealed(record));
            memcpy(salts[n_salts++], record + 128, FIRNI_CRYPT_SALT_BYTES);
        }
        uint32_t header_bytes, n_sections;
        assert_ok(firni_record_peek(bytes, &header_bytes, &n_sections, NULL));
        assert_true(memcmp(first_section, bytes + header_bytes, sizeof first_section) != 0);
        memcpy(first_section, bytes + header_bytes, sizeof first_section);
        free(bytes);
        test_dir_remove(dir);
        free(dir);
    }
    qsort(salts, n_salts, sizeof salts[0], by_salt);
    for (uint32_t i = 1; i < n_salts; i++) {
        assert_true(memcmp(salts[i - 1], salts[i], sizeof salts[i]) != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_of_prompts_names_and_state_is_on_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(the_search_finds_what_a_plain_store_has, setup, teardown),
        cmocka_unit_test(the_right_key_gives_back_the_same_bits),
        cmocka_unit_test_setup_teardown(a_lookup_finds_the_longest_beginning_and_what_differs, setup, teardown),
        cmocka_unit_test_setup_teardown(another_key_or_none_is_refused_and_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_plain_store_is_not_opened_with_a_key, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_of_another_key_is_a_miss_that_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(without_its_key_a_store_is_listed_and_wiped_but_not_read, setup, teardown),
        cmocka_unit_test_setup_teardown(an_index_is_made_anew_with_the_key_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_plain_store_is_not_rebuilt_with_a_key, setup, teardown),
        cmocka_unit_test_setup_teardown(one_flipped_bit_anywhere_is_a_miss, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_moved_is_a_miss, setup, teardown),
        cmocka_unit_test(packed_records_are_encrypted_and_come_back_to_the_bit),
        cmocka_unit_test_setup_teardown(no_record_is_written_with_the_key_of_another, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
