/*
 * A store whose index is lost: it is not opened as an empty one, and the rebuilt index names the same records with the
 * same books. What is damaged, alone or superseded is left out and counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tier/tier_fixture.h"

#define N_CHAINS   6u
#define LENGTH_MAX 400u

typedef struct state {
    fixture fix;
    char *parent;
    char dir[600];
    firn_token tokens[N_CHAINS][LENGTH_MAX];
    uint32_t lengths[N_CHAINS], n_chains;
} state;

static const char *const namespaces[N_CHAINS] = { NULL, "alice", "alice", "bob's own", NULL, "alice" };

static void set_up_as(state *s, fixture_schema schema)
{
    const fixture_options options = { .schema = schema };
    test_rng rng = test_rng_create("disk_fsck", 20);
    fixture_init(&s->fix, NULL, &options);
    s->parent = test_dir_create();
    (void)snprintf(s->dir, sizeof s->dir, "%s/store", s->parent);
    s->n_chains = N_CHAINS;
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        fixture_random_tokens(&rng, s->tokens[i], LENGTH_MAX);
        s->lengths[i] = 30 + test_rng_below(&rng, LENGTH_MAX - 30);
    }
    /* Two that share a beginning. */
    memcpy(s->tokens[2], s->tokens[1], 128 * sizeof(firn_token));
    s->lengths[2] = LENGTH_MAX;
}

static void tear_down_as(state *s)
{
    fixture_deinit(&s->fix);
    test_dir_remove(s->parent);
    free(s->parent);
}

static const firn_disk_options small_segments = { .segment_bytes = 128u << 10, .durability = FIRN_DURABILITY_NONE };

/* Stores all chains, a part of each first, so that tails are continued and their ranges punched. */
static void fill(state *s)
{
    firn_tier *tier = fixture_open(&s->fix, s->dir, &small_segments);
    for (unsigned part = 0; part < 2; part++) {
        for (uint32_t i = 0; i < s->n_chains; i++) {
            const uint32_t n = part == 0 ? s->lengths[i] / 2 : s->lengths[i];
            assert_int_equal(fixture_store(&s->fix, tier, namespaces[i], s->tokens[i], n), FIRN_REASON_NONE);
        }
    }
    firn_tier_destroy(tier);
}

/* An object at the end of the first chain. */
static void fill_object(state *s)
{
    firn_reason reason;
    const firn_attachment note = { .schema = "note", .metadata = "kept", .n_metadata_bytes = 4 };
    firn_tier *tier = fixture_open(&s->fix, s->dir, &small_segments);
    assert_true(fixture_store_with(&s->fix, tier, namespaces[0], s->tokens[0], s->lengths[0], &note, 1, &reason));
    firn_tier_destroy(tier);
}

static void lose_index(const state *s)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/index", s->dir);
    test_dir_remove(path);
}

static uint64_t segment_bytes(const state *s)
{
    return fixture_disk_bytes(s->dir) - fixture_file_bytes(s->dir, "firn.lock") -
           fixture_file_bytes(s->dir, "index/data.mdb") - fixture_file_bytes(s->dir, "index/lock.mdb");
}

/* What a store says of itself, without what an index adds of its own. */
typedef struct books {
    uint64_t n_records, record_bytes, digests, n_names;
} books;

static bool add_record(void *ctx, const firn_disk_record *record)
{
    books *sum = ctx;
    uint64_t digest;
    memcpy(&digest, record->digest.bytes, sizeof digest);
    uint64_t name = 0;
    for (const char *c = record->ns; *c != '\0'; c++) {
        name = name * 31 + (unsigned char)*c;
    }
    for (const char *c = record->identity_text; *c != '\0'; c++) {
        name = name * 31 + (unsigned char)*c;
    }
    sum->n_records++;
    sum->record_bytes += record->n_bytes;
    /* A sum that does not depend on the order. */
    sum->digests += fixture_mix(digest ^ fixture_mix(record->n_bytes ^ fixture_mix(record->first_token * 64u +
                    record->n_tokens + 4096u * (unsigned)record->kind + 65536u * record->n_full +
                    (1u << 20) * record->n_window + (1u << 24) * record->n_fixed)));
    sum->n_names += fixture_mix(name);
    return true;
}

static books read_books(state *s)
{
    books sum = { 0 };
    const firn_disk_options options = { .read_only = true };
    firn_tier *tier = fixture_open(&s->fix, s->dir, &options);
    assert_ok(firn_disk_visit(tier, add_record, &sum, NULL));
    firn_tier_destroy(tier);
    return sum;
}

/* Every chain is found as far as it was stored, and its bytes are right. */
static void check_hits(state *s)
{
    firn_reason reason;
    firn_tier *tier = fixture_open(&s->fix, s->dir, &small_segments);
    fixture_check(tier);
    for (uint32_t i = 0; i < s->n_chains; i++) {
        const firn_match match = firn_tier_find_exact(tier, s->tokens[i], s->lengths[i], namespaces[i]);
        assert_non_null(match.handle);
        firn_restored restored;
        assert_int_equal(firn_tier_restore(tier, match.handle, 0, &restored), FIRN_REASON_NONE);
        fixture_assert_state(&s->fix, &restored, s->tokens[i], s->lengths[i]);
        firn_restored_deinit(&restored);
        firn_tier_release(tier, match.handle);
        assert_int_equal(fixture_fetch(&s->fix, tier, "carol", s->tokens[i], s->lengths[i], &reason), 0);
    }
    fixture_assert_books(tier, s->dir);
    firn_tier_destroy(tier);
}

static firn_status try_open(state *s, bool read_only, firn_error *err)
{
    const firn_disk_options options = {
        .dir = s->dir, .schema = &s->fix.schema, .pool = s->fix.pool, .read_only = read_only
    };
    firn_tier *tier = NULL;
    const firn_status status = firn_disk_open(&options, NULL, &tier, err);
    firn_tier_destroy(tier);
    return status;
}

static void a_store_without_its_index_is_refused_and_nothing_is_removed(void **unused)
{
    (void)unused;
    state s;
    firn_error err;
    set_up_as(&s, FIXTURE_PLAIN);
    fill(&s);
    const uint64_t n_bytes = segment_bytes(&s);
    lose_index(&s);
    for (unsigned i = 0; i < 3; i++) { /* also the second time: the first must not have left an index behind */
        assert_status(try_open(&s, i == 2, &err), FIRN_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "firn cache fsck"));
        assert_non_null(strstr(err.message, s.dir));
        assert_int_equal(segment_bytes(&s), n_bytes);
    }
    tear_down_as(&s);
}

static void a_rebuilt_index_names_the_same_records(void **unused)
{
    (void)unused;
    for (unsigned schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        for (unsigned quick = 0; quick < (schema == FIXTURE_ALL ? 2u : 1u); quick++) {
            state s;
            set_up_as(&s, (fixture_schema)schema);
            fill(&s);
            fill_object(&s);
            const books before = read_books(&s);
            const uint64_t n_bytes = segment_bytes(&s);
            lose_index(&s);
            const firn_disk_fsck_options options = { .headers_only = quick != 0 };
            firn_disk_fsck_report report;
            firn_error err = { 0 };
            assert_ok(firn_disk_fsck(s.dir, &options, NULL, &report, &err));
            assert_int_equal(report.n_records, before.n_records);
            assert_int_equal(report.record_bytes, before.record_bytes);
            assert_int_equal(report.n_damaged + report.n_orphans + report.n_superseded + report.freed_bytes, 0);
            const books after = read_books(&s);
            assert_memory_equal(&after, &before, sizeof before);
            assert_int_equal(segment_bytes(&s), n_bytes);
            check_hits(&s);
            tear_down_as(&s);
        }
    }
}

static void an_index_that_is_garbage_or_of_another_version_is_made_anew(void **unused)
{
    (void)unused;
    state s;
    firn_error err;
    set_up_as(&s, FIXTURE_ALL);
    fill(&s);
    const books before = read_books(&s);
    char path[700];
    (void)snprintf(path, sizeof path, "%s/index/data.mdb", s.dir);
    static const char *const contents[] = { "", "this is not an index", NULL };
    for (unsigned i = 0; i < 3; i++) {
        const int fd = open(path, O_RDWR | (contents[i] != NULL ? O_TRUNC : 0));
        assert_true(fd >= 0);
        if (contents[i] != NULL) {
            const size_t n = strlen(contents[i]);
            assert_int_equal(write(fd, contents[i], n), n);
        } else {
            for (off_t page = 0; page < 2; page++) { /* the format number of both meta pages */
                const uint32_t other = 77;
                assert_int_equal(pwrite(fd, &other, 4, page * 4096 + 20), 4);
            }
        }
        close(fd);
        assert_status(try_open(&s, false, &err), FIRN_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "firn cache fsck"));
        firn_disk_fsck_report report;
        assert_ok(firn_disk_fsck(s.dir, NULL, NULL, &report, &err));
        const books after = read_books(&s);
        assert_memory_equal(&after, &before, sizeof before);
    }
    check_hits(&s);
    tear_down_as(&s);
}

static void eviction_goes_on_in_order_after_a_rebuild(void **unused)
{
    (void)unused;
    const fixture_options geometry = { .dtype = FIRN_DTYPE_F32, .n_kv_heads = 16, .head_dim = 64 };
    const firn_disk_options options = {
        .budget_bytes = 64u << 20, .segment_bytes = 8u << 20, .durability = FIRN_DURABILITY_NONE
    };
    state s;
    set_up_as(&s, FIXTURE_PLAIN);
    fixture_deinit(&s.fix);
    fixture_init(&s.fix, NULL, &geometry);
    test_rng rng = test_rng_create("disk_fsck_evict", 21);
    firn_tier *tier = fixture_open(&s.fix, s.dir, &options);
    for (unsigned i = 0; i < 8; i++) {
        fixture_random_tokens(&rng, s.tokens[i % N_CHAINS], LENGTH_MAX);
        assert_int_equal(fixture_store(&s.fix, tier, NULL, s.tokens[i % N_CHAINS], LENGTH_MAX), FIRN_REASON_NONE);
    }
    firn_tier_destroy(tier);
    lose_index(&s);
    firn_disk_fsck_report report;
    assert_ok(firn_disk_fsck(s.dir, NULL, NULL, &report, NULL));
    tier = fixture_open(&s.fix, s.dir, &options);
    for (unsigned i = 0; i < 8; i++) {
        fixture_check(tier);
        fixture_random_tokens(&rng, s.tokens[i % N_CHAINS], LENGTH_MAX);
        assert_int_equal(fixture_store(&s.fix, tier, NULL, s.tokens[i % N_CHAINS], LENGTH_MAX), FIRN_REASON_NONE);
        assert_true(fixture_assert_books(tier, s.dir).physical_bytes <= options.budget_bytes);
    }
    firn_tier_destroy(tier);
    tear_down_as(&s);
}

/* Offset of the nth record of the segment, found by its first bytes. */
static off_t nth_record(int fd, uint32_t n)
{
    uint8_t page[8];
    for (off_t at = 0; pread(fd, page, sizeof page, at) == sizeof page; at += 4096) {
        if (memcmp(page, "\x89""FIRN\r\n\x1a", 8) == 0 && n-- == 0) {
            return at;
        }
    }
    return -1;
}

static void flip(int fd, off_t at)
{
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void what_is_damaged_is_left_out_and_what_continues_it_goes_too(void **unused)
{
    (void)unused;
    /* A bit of the third record's header, one of its sections, a section of the tail, and the names of the first. */
    static const struct {
        uint32_t record;
        off_t at;
        uint32_t n_damaged, n_orphans, n_left;
    } cases[] = { { 2, 200, 1, 3, 2 }, { 2, 9000, 1, 3, 2 }, { 5, 4096 + 100, 1, 0, 5 }, { 0, 700, 1, 5, 0 } };
    for (unsigned i = 0; i < 4; i++) {
        state s;
        firn_reason reason;
        set_up_as(&s, FIXTURE_PLAIN);
        firn_tier *tier = fixture_open(&s.fix, s.dir, NULL);
        assert_int_equal(fixture_store(&s.fix, tier, "x", s.tokens[0], 350), FIRN_REASON_NONE); /* 5 blocks, a tail */
        firn_tier_destroy(tier);
        char path[700];
        (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", s.dir);
        const int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        flip(fd, nth_record(fd, cases[i].record) + cases[i].at);
        close(fd);
        lose_index(&s);
        firn_disk_fsck_report report;
        assert_ok(firn_disk_fsck(s.dir, NULL, NULL, &report, NULL));
        assert_int_equal(report.n_damaged, cases[i].n_damaged);
        assert_int_equal(report.n_orphans, cases[i].n_orphans);
        assert_int_equal(report.n_records, cases[i].n_left);
        tier = fixture_open(&s.fix, s.dir, NULL);
        fixture_check(tier);
        assert_int_equal(fixture_fetch(&s.fix, tier, "x", s.tokens[0], 351, &reason), cases[i].n_left * 64u);
        assert_int_equal(fixture_store(&s.fix, tier, "x", s.tokens[0], 350), FIRN_REASON_NONE);
        assert_int_equal(fixture_fetch(&s.fix, tier, "x", s.tokens[0], 351, &reason), 350);
        fixture_check(tier);
        firn_tier_destroy(tier);
        tear_down_as(&s);
    }
}

static void a_copy_of_a_record_in_another_place_is_no_record(void **unused)
{
    (void)unused;
    state s;
    set_up_as(&s, FIXTURE_PLAIN);
    fill(&s);
    const books before = read_books(&s);
    char path[700];
    (void)snprintf(path, sizeof path, "%s/seg-00000001.firn", s.dir);
    const int fd = open(path, O_RDWR);
    static uint8_t bytes[16384];
    const off_t from = nth_record(fd, 1), end = lseek(fd, 0, SEEK_END);
    assert_int_equal(pread(fd, bytes, sizeof bytes, from), sizeof bytes);
    assert_int_equal(pwrite(fd, bytes, sizeof bytes, end), sizeof bytes);
    close(fd);
    lose_index(&s);
    firn_disk_fsck_report report;
    assert_ok(firn_disk_fsck(s.dir, NULL, NULL, &report, NULL));
    assert_true(report.n_damaged > 0);
    assert_true(report.freed_bytes >= 12288);
    const books after = read_books(&s);
    assert_memory_equal(&after, &before, sizeof before);
    check_hits(&s);
    tear_down_as(&s);
}

static void a_store_in_use_is_not_rebuilt(void **unused)
{
    (void)unused;
    state s;
    set_up_as(&s, FIXTURE_PLAIN);
    fill(&s);
    firn_tier *tier = fixture_open(&s.fix, s.dir, NULL);
    firn_disk_fsck_report report;
    firn_error err;
    assert_status(firn_disk_fsck(s.dir, NULL, NULL, &report, &err), FIRN_ERR_BUSY);
    firn_tier_destroy(tier);
    check_hits(&s);
    assert_status(firn_disk_fsck(s.parent, NULL, NULL, &report, &err), FIRN_ERR_FORMAT);
    tear_down_as(&s);
}

/* Every allocation and every call fails once: the store is as it was, or has no index and says so; a second run
 * works. */
static void a_rebuild_that_fails_anywhere_can_be_repeated(void **unused)
{
    (void)unused;
    for (unsigned kind = 0; kind < 2; kind++) {
        state s;
        set_up_as(&s, FIXTURE_STATES);
        s.n_chains = 1;
        fill(&s);
        const books before = read_books(&s);
        bool clean = false;
        for (uint64_t n = 1; !clean; n++) {
            test_world world;
            firn_disk_fsck_report report;
            firn_error err = { 0 };
            test_world_init(&world);
            *(kind == 0 ? &world.fail_alloc_at : &world.fail_io_at) = n;
            const firn_status status = firn_disk_fsck(s.dir, NULL, &world.env, &report, &err);
            clean = !world.alloc_failed && !world.io_failed;
            assert_true(clean || status == FIRN_OK || err.message[0] != '\0');
            test_world_deinit(&world);
            if (status != FIRN_OK) {
                const firn_status opened = try_open(&s, true, &err);
                assert_true(opened == FIRN_OK || (opened == FIRN_ERR_CORRUPT && strstr(err.message, "fsck") != NULL));
                assert_ok(firn_disk_fsck(s.dir, NULL, NULL, &report, &err));
            }
            /* A read that failed once with EIO is damage that cost its record; nothing else does. */
            if (kind == 0) {
                const books after = read_books(&s);
                assert_memory_equal(&after, &before, sizeof before);
            } else if (read_books(&s).n_records != before.n_records) {
                test_dir_remove(s.dir);
                fill(&s);
            }
        }
        check_hits(&s);
        tear_down_as(&s);
    }
}

/* ---- killed ------------------------------------------------------------------------------------------------------ */

typedef struct bomb {
    firn_io io;
    const firn_io *real;
    uint64_t n_left;
} bomb;

static void tick(bomb *b)
{
    if (b->n_left-- == 1) {
        _exit(9); /* as SIGKILL does: nothing is cleaned up */
    }
}

static int bomb_unlink(void *ctx, const char *path)
{
    tick(ctx);
    const firn_io *real = ((bomb *)ctx)->real;
    return real->unlink(real->ctx, path);
}

static int bomb_punch(void *ctx, int fd, uint64_t offset, uint64_t n_bytes)
{
    tick(ctx);
    const firn_io *real = ((bomb *)ctx)->real;
    return real->punch(real->ctx, fd, offset, n_bytes);
}

static int64_t bomb_pwritev(void *ctx, int fd, const struct iovec *iov, uint32_t n_iov, uint64_t offset)
{
    tick(ctx);
    const firn_io *real = ((bomb *)ctx)->real;
    return real->pwritev(real->ctx, fd, iov, n_iov, offset);
}

static int64_t bomb_pread(void *ctx, int fd, void *buf, size_t n_bytes, uint64_t offset)
{
    tick(ctx);
    const firn_io *real = ((bomb *)ctx)->real;
    return real->pread(real->ctx, fd, buf, n_bytes, offset);
}

#define FORWARD(name) wrapped.name = real->name
static int run_and_die(const char *dir, uint64_t n)
{
    const firn_io *real = firn_io_default();
    static bomb b;
    b = (bomb){ .real = real, .n_left = n };
    firn_io wrapped = *real;
    wrapped.ctx = &b;
    wrapped.unlink = bomb_unlink;
    wrapped.punch = bomb_punch;
    wrapped.pwritev = bomb_pwritev;
    wrapped.pread = bomb_pread;
    b.io = wrapped;
    const firn_env env = { .io = &b.io };
    firn_disk_fsck_report report;
    return firn_disk_fsck(dir, NULL, &env, &report, NULL) == FIRN_OK ? 0 : 1;
}

static void a_killed_rebuild_is_repeated_with_the_same_result(void **unused)
{
    (void)unused;
    state s;
    set_up_as(&s, FIXTURE_WINDOWS);
    s.n_chains = 2;
    fill(&s);
    const books before = read_books(&s);
    for (uint64_t n = 1, status = 9; status == 9; n++) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            _exit(run_and_die(s.dir, n));
        }
        int wait_status;
        assert_int_equal(waitpid(child, &wait_status, 0), child);
        assert_true(WIFEXITED(wait_status));
        status = (uint64_t)WEXITSTATUS(wait_status);
        assert_int_not_equal(status, 1);
        firn_error err;
        const firn_status opened = try_open(&s, false, &err);
        assert_true(opened == FIRN_OK || (opened == FIRN_ERR_CORRUPT && strstr(err.message, "fsck") != NULL));
        firn_disk_fsck_report report;
        assert_ok(firn_disk_fsck(s.dir, NULL, NULL, &report, &err));
        const books after = read_books(&s);
        assert_memory_equal(&after, &before, sizeof before);
    }
    check_hits(&s);
    tear_down_as(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_without_its_index_is_refused_and_nothing_is_removed),
        cmocka_unit_test(a_rebuilt_index_names_the_same_records),
        cmocka_unit_test(an_index_that_is_garbage_or_of_another_version_is_made_anew),
        cmocka_unit_test(eviction_goes_on_in_order_after_a_rebuild),
        cmocka_unit_test(what_is_damaged_is_left_out_and_what_continues_it_goes_too),
        cmocka_unit_test(a_copy_of_a_record_in_another_place_is_no_record),
        cmocka_unit_test(a_store_in_use_is_not_rebuilt),
        cmocka_unit_test(a_rebuild_that_fails_anywhere_can_be_repeated),
        cmocka_unit_test(a_killed_rebuild_is_repeated_with_the_same_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
