/*
 * What a rebuild brings back beyond the records themselves: what namespaces stored behind records of those above them,
 * pins, sessions, objects by key, priorities; in plain and encrypted stores, and with packed records. Lists of a store
 * are taken before and after, and compared byte by byte.
 */
#include <fcntl.h>
#include <unistd.h>

#include "firn/keep.h"
#include "tier/tier_fixture.h"

#define N_HOUSE  200u
#define N        330u
#define LIST_MAX 400u
#define HOUR     (UINT64_C(3600) * 1000000000u)

typedef struct state {
    test_world world;
    fixture fix;
    char *dir;
    firn_tier *tier;
    firn_disk_options options;
    char alice[FIRN_NAMESPACE_BYTES_MAX + 1], run[FIRN_NAMESPACE_BYTES_MAX + 1];
    firn_token a[N + 1], b[N + 1]; /* a begins with the house's N_HOUSE tokens */
} state;

typedef enum manner { MANNER_PLAIN, MANNER_SEALED, MANNER_PACKED, MANNER_SEALED_PACKED, MANNERS } manner;

static void open_store(state *s)
{
    s->tier = fixture_open(&s->fix, s->dir, &s->options);
}

static void set_up(state *s, fixture_schema schema, manner how)
{
    test_rng rng = test_rng_create("disk_rebuild", 23);
    memset(s, 0, sizeof *s);
    test_world_init(&s->world);
    fixture_init(&s->fix, &s->world.env, &(fixture_options){ .schema = schema, .n_kv_heads = 8, .head_dim = 32 });
    fixture_random_tokens(&rng, s->a, N + 1);
    fixture_random_tokens(&rng, s->b, N + 1);
    assert_ok(firn_namespace_below("house", "alice", s->alice, NULL));
    assert_ok(firn_namespace_below(s->alice, "run", s->run, NULL));
    s->dir = test_dir_create();
    s->options = (firn_disk_options){ .segment_bytes = 512u << 10, .durability = FIRN_DURABILITY_NONE };
    s->options.key = how == MANNER_SEALED || how == MANNER_SEALED_PACKED ? fixture_key : NULL;
    s->options.demote_idle_ns = how >= MANNER_PACKED ? 1 : 0;
    open_store(s);
}

static void tear_down(state *s)
{
    fixture_check(s->tier);
    firn_tier_destroy(s->tier);
    fixture_deinit(&s->fix);
    test_dir_remove(s->dir);
    free(s->dir);
    test_world_deinit(&s->world);
}

static void store_at(state *s, const char *ns, const firn_token *tokens, uint32_t n, int priority)
{
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX];
    fixture_make_caches(&s->fix, tokens, n, caches);
    for (uint32_t i = 0; i < s->fix.n_layers; i++) {
        borrowed[i] = caches[i];
    }
    const firn_store_input input = {
        .ns = ns, .tokens = tokens, .n_tokens = n, .caches = borrowed, .n_caches = s->fix.n_layers, .priority = priority
    };
    firn_reason reason;
    (void)firn_tier_store(s->tier, &input, &reason);
    fixture_destroy_caches(caches);
    assert_int_equal(reason, FIRN_REASON_NONE);
}

static uint64_t wall_ns(const state *s)
{
    return s->world.clock.wall_ns(s->world.clock.ctx);
}

static void pin_at(state *s, const char *name, const char *ns, const firn_token *tokens, uint32_t n, uint64_t ns_left)
{
    const firn_pin pin = {
        .name = name, .ns = ns, .tokens = tokens, .n_tokens = n, .until_wall_ns = wall_ns(s) + ns_left
    };
    assert_ok(firn_tier_pin(s->tier, &pin, NULL));
}

static void put_session(state *s, const char *id, const char *ns, const firn_token *tokens, uint32_t n)
{
    const firn_session session = { .id = id, .ns = ns, .tokens = tokens, .n_tokens = n };
    assert_ok(firn_tier_put_session(s->tier, &session, NULL));
}

static void put_object(state *s, const char *key, const char *ns, int priority, uint64_t until_wall_ns)
{
    firn_reason reason;
    const firn_attachment note = { .schema = "note", .metadata = "kept", .n_metadata_bytes = 4 };
    const firn_object object = { .key = key,
                                 .ns = ns,
                                 .attachments = &note,
                                 .n_attachments = 1,
                                 .priority = priority,
                                 .until_wall_ns = until_wall_ns };
    assert_true(firn_tier_put_object(s->tier, &object, &reason));
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* One thing that is stored or kept, without where it lies and when it was used. */
typedef struct item {
    char what[8], name[64], ns[64];
    firn_digest digest, parent;
    uint64_t numbers[8];
    uint64_t tokens; /* a sum of them */
} item;

typedef struct listing {
    item items[LIST_MAX];
    uint32_t n;
} listing;

static item *add(listing *list, const char *what, const char *name, const char *ns)
{
    assert_true(list->n < LIST_MAX);
    item *out = &list->items[list->n++];
    (void)snprintf(out->what, sizeof out->what, "%s", what);
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    (void)snprintf(out->ns, sizeof out->ns, "%s", ns);
    return out;
}

static uint64_t sum_of(const firn_token *tokens, uint32_t n)
{
    uint64_t sum = n;
    for (uint32_t i = 0; i < n; i++) {
        sum = fixture_mix(sum ^ tokens[i]);
    }
    return sum;
}

static bool add_record(void *ctx, const firn_disk_record *record)
{
    item *out = add(ctx, "record", record->identity_text, record->ns);
    out->digest = record->digest;
    out->parent = record->parent;
    const uint64_t numbers[8] = { (uint64_t)record->kind, record->first_token, record->n_tokens, record->n_full,
                                  record->n_window * 65536u + record->n_fixed, record->n_bytes, record->plain_bytes,
                                  (uint64_t)(record->priority + 1000) };
    memcpy(out->numbers, numbers, sizeof numbers);
    return true;
}

static bool add_pin(void *ctx, const firn_pin *pin)
{
    item *out = add(ctx, "pin", pin->name, pin->ns);
    out->numbers[0] = pin->until_wall_ns;
    out->numbers[1] = pin->n_bytes;
    out->tokens = sum_of(pin->tokens, pin->n_tokens);
    return true;
}

static bool add_session(void *ctx, const firn_session *session)
{
    item *out = add(ctx, "session", session->id, session->ns);
    out->numbers[0] = session->used_wall_ns;
    out->tokens = sum_of(session->tokens, session->n_tokens);
    return true;
}

static bool add_object(void *ctx, const firn_object *object)
{
    item *out = add(ctx, "object", object->key, object->ns);
    out->numbers[0] = object->until_wall_ns;
    out->numbers[1] = (uint64_t)(object->priority + 1000);
    out->numbers[2] = object->n_bytes;
    return true;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(item));
}

static listing *list_all(state *s)
{
    listing *list = calloc(1, sizeof *list);
    assert_non_null(list);
    assert_ok(firn_disk_visit(s->tier, add_record, list, NULL));
    assert_ok(firn_tier_each_pin(s->tier, add_pin, list, NULL));
    assert_ok(firn_tier_each_session(s->tier, add_session, list, NULL));
    assert_ok(firn_tier_each_object(s->tier, add_object, list, NULL));
    qsort(list->items, list->n, sizeof list->items[0], by_bytes);
    return list;
}

static void assert_same(const listing *a, const listing *b)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++) {
        if (memcmp(&a->items[i], &b->items[i], sizeof a->items[i]) != 0) {
            fail_msg("entry %u: %s \"%s\" of \"%s\" became %s \"%s\" of \"%s\"; %u were %u", i, a->items[i].what,
                     a->items[i].name, a->items[i].ns, b->items[i].what, b->items[i].name, b->items[i].ns, b->n, a->n);
        }
    }
    assert_int_equal(a->n, b->n);
}

/* ---- rebuilding -------------------------------------------------------------------------------------------------- */

static void lose_index(const state *s)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/index", s->dir);
    test_dir_remove(path);
}

static void lose_ledger(const state *s)
{
    char path[700];
    for (unsigned number = 1; number < 100; number++) {
        (void)snprintf(path, sizeof path, "%s/ledger-%08u.firn", s->dir, number);
        (void)unlink(path);
    }
}

static firn_disk_fsck_report fsck(state *s)
{
    firn_disk_fsck_report report;
    firn_error err = { 0 };
    const firn_disk_fsck_options options = { .key = s->options.key };
    if (firn_disk_fsck(s->dir, &options, &s->world.env, &report, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
    return report;
}

/* Returns how many records were packed: of states alone there may be none that is worth it. */
static uint64_t demote(state *s)
{
    firn_disk_demote_report report;
    s->world.clock_offset_ns += HOUR;
    assert_ok(firn_disk_demote(s->tier, &report, NULL));
    return report.n_demoted;
}

/* Destroys and opens: flushed, and the pins of before stand again. */
static firn_disk_fsck_report rebuild(state *s)
{
    (void)firn_tier_flush(s->tier, HOUR);
    firn_tier_destroy(s->tier);
    lose_index(s);
    const firn_disk_fsck_report report = fsck(s);
    open_store(s);
    fixture_check(s->tier);
    return report;
}

static uint32_t fetch(state *s, const char *ns, const firn_token *tokens, uint32_t n)
{
    firn_reason reason;
    return fixture_fetch(&s->fix, s->tier, ns, tokens, n, &reason);
}

/* A house, two levels below it, of which the lower never wrote a record at token 0; an object by key; and an object
 * that lies on the house's tokens alone. */
static void fill_levels(state *s)
{
    firn_reason reason;
    const firn_attachment note = { .schema = "note", .metadata = "kept", .n_metadata_bytes = 4 };
    store_at(s, "house", s->a, N_HOUSE, 0);
    store_at(s, s->alice, s->a, 280, 0);
    store_at(s, s->run, s->a, N, 0);
    store_at(s, "", s->b, N, 0);
    assert_true(fixture_store_with(&s->fix, s->tier, s->run, s->a, N_HOUSE, &note, 1, &reason));
    put_object(s, "object", s->alice, 0, 0);
}

static void what_namespaces_stored_behind_those_above_them_comes_back(void **unused)
{
    (void)unused;
    for (unsigned schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        for (unsigned how = 0; how < MANNERS; how++) {
            state s;
            set_up(&s, (fixture_schema)schema, (manner)how);
            fill_levels(&s);
            if (how >= MANNER_PACKED) {
                (void)demote(&s);
            }
            listing *before = list_all(&s);
            const firn_disk_fsck_report report = rebuild(&s);
            listing *after = list_all(&s);
            assert_same(before, after);
            assert_int_equal(report.n_orphans + report.n_damaged + report.n_superseded, 0);
            assert_int_equal(fetch(&s, "house", s.a, N + 1), N_HOUSE);
            assert_int_equal(fetch(&s, s.alice, s.a, N + 1), 280);
            assert_int_equal(fetch(&s, s.run, s.a, N + 1), N);
            assert_int_equal(fetch(&s, "alice", s.a, N + 1), 0);
            free(before);
            free(after);
            tear_down(&s);
        }
    }
}

static void fill_names(state *s)
{
    fill_levels(s);
    store_at(s, s->alice, s->b, 100, -5);
    pin_at(s, "house prompt", "house", s->a, N_HOUSE, HOUR * 1000);
    pin_at(s, "below", s->alice, s->a, 280, HOUR * 1000);
    pin_at(s, "removed", s->alice, s->b, 100, HOUR * 1000);
    pin_at(s, "moved", "", s->b, N, HOUR * 500);
    pin_at(s, "moved", s->run, s->a, N, HOUR * 700);
    pin_at(s, "ends", "", s->b, N, HOUR / 2);
    assert_ok(firn_tier_unpin(s->tier, "removed", NULL));
    put_session(s, "s1", s->alice, s->a, 100);
    put_session(s, "s1", s->alice, s->a, 280);
    put_session(s, "s2", s->run, s->a, N);
    put_session(s, "short", "", s->b, 30);
    put_session(s, "gone", "", s->b, N);
    assert_ok(firn_tier_remove_session(s->tier, "", "gone", NULL));
    put_object(s, "pinned", "", 7, wall_ns(s) + HOUR * 1000);
    put_object(s, "twice", "house", 3, 0);
    put_object(s, "twice", "house", 5, 0);
    put_object(s, "removed", s->run, 0, 0);
    assert_ok(firn_tier_remove_object(s->tier, s->run, "removed", NULL));
}

static void pins_sessions_and_keys_come_back(void **unused)
{
    (void)unused;
    for (unsigned how = 0; how < MANNERS; how++) {
        state s;
        set_up(&s, FIXTURE_ALL, (manner)how);
        fill_names(&s);
        s.world.clock_offset_ns += HOUR; /* one pin ends */
        if (how >= MANNER_PACKED) {
            assert_true(demote(&s) > 0);
        }
        (void)firn_tier_flush(s.tier, HOUR);
        listing *before = list_all(&s);
        firn_tier_stats stats_before, stats_after;
        firn_tier_get_stats(s.tier, &stats_before);
        const firn_disk_fsck_report report = rebuild(&s);
        listing *after = list_all(&s);
        assert_same(before, after);
        assert_true(report.has_ledger);
        assert_int_equal(report.n_pins, 3);
        assert_int_equal(report.n_sessions, 3);
        assert_int_equal(report.n_keys, 3);
        assert_int_equal(report.n_names_lost + report.n_ledger_damaged, 0);
        firn_tier_get_stats(s.tier, &stats_after); /* they stand again */
        assert_int_equal(stats_after.n_pins, stats_before.n_pins);
        assert_int_equal(stats_after.pinned_bytes, stats_before.pinned_bytes);
        /* A second loss, with a ledger that went on with the rebuilt store. */
        put_session(&s, "s3", "", s.b, 70);
        free(before);
        before = list_all(&s);
        (void)rebuild(&s);
        free(after);
        after = list_all(&s);
        assert_same(before, after);
        free(before);
        free(after);
        tear_down(&s);
    }
}

/* Written with one, raised by a store that continues it, by one that writes nothing, and by a namespace below. */
static void priorities_come_back(void **unused)
{
    (void)unused;
    for (unsigned schema = 0; schema < FIXTURE_SCHEMAS; schema++) {
        for (unsigned how = 0; how < MANNERS; how++) {
            state s;
            set_up(&s, (fixture_schema)schema, (manner)how);
            store_at(&s, "", s.b, 150, -20);
            store_at(&s, "", s.b, 150, 3);
            store_at(&s, "", s.b, 260, 2);
            store_at(&s, "house", s.a, N_HOUSE, -100);
            store_at(&s, s.alice, s.a, N_HOUSE, -7);
            store_at(&s, s.alice, s.a, 280, 100);
            store_at(&s, s.run, s.a, N, 1);
            (void)firn_tier_flush(s.tier, HOUR);
            if (how >= MANNER_PACKED) {
                (void)demote(&s);
            }
            listing *before = list_all(&s);
            (void)rebuild(&s);
            listing *after = list_all(&s);
            assert_same(before, after);
            free(before);
            free(after);
            tear_down(&s);
        }
    }
}

static void without_a_ledger_the_report_says_so_and_the_records_are_there(void **unused)
{
    (void)unused;
    state s;
    set_up(&s, FIXTURE_ALL, MANNER_PLAIN);
    fill_names(&s);
    (void)firn_tier_flush(s.tier, HOUR);
    firn_tier_destroy(s.tier);
    lose_index(&s);
    lose_ledger(&s);
    firn_disk_fsck_report report = fsck(&s);
    assert_false(report.has_ledger);
    assert_int_equal(report.n_pins + report.n_sessions + report.n_keys + report.n_orphans, 0);
    open_store(&s);
    assert_int_equal(fetch(&s, s.run, s.a, N + 1), N);
    tear_down(&s);
}

/* The index of a store as an earlier build made it: with names, and without a ledger. */
static void a_store_without_a_ledger_gets_one(void **unused)
{
    (void)unused;
    for (unsigned how = 0; how < MANNER_PACKED; how++) {
        state s;
        set_up(&s, FIXTURE_ALL, (manner)how);
        fill_names(&s);
        (void)firn_tier_flush(s.tier, HOUR);
        firn_tier_destroy(s.tier);
        lose_ledger(&s);
        open_store(&s);
        listing *before = list_all(&s);
        const firn_disk_fsck_report report = rebuild(&s); /* the flush makes it */
        assert_true(report.has_ledger);
        listing *after = list_all(&s);
        assert_same(before, after);
        free(before);
        free(after);
        tear_down(&s);
    }
}

/* Offset of the last nonzero byte. */
static off_t last_byte(int fd)
{
    off_t at = lseek(fd, 0, SEEK_END);
    uint8_t byte = 0;
    while (at > 0 && byte == 0) {
        assert_int_equal(pread(fd, &byte, 1, --at), 1);
    }
    return at;
}

static void a_damaged_line_costs_what_it_says_and_no_more(void **unused)
{
    (void)unused;
    for (unsigned how = 0; how < MANNER_PACKED; how++) {
        state s;
        char path[700];
        set_up(&s, FIXTURE_PLAIN, (manner)how);
        store_at(&s, "", s.a, N, 0);
        put_session(&s, "first", "", s.a, 100);
        (void)snprintf(path, sizeof path, "%s/ledger-00000001.firn", s.dir);
        const int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        put_session(&s, "damaged", "", s.a, N);
        const off_t at = last_byte(fd);
        put_session(&s, "last", "", s.a, 200);
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x40;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        const firn_disk_fsck_report report = rebuild(&s);
        assert_int_equal(report.n_sessions, 2);
        assert_int_equal(report.n_ledger_damaged, 1);
        tear_down(&s);
    }
}

static void a_path_that_is_not_all_stored_has_lost_its_name(void **unused)
{
    (void)unused;
    state s;
    set_up(&s, FIXTURE_PLAIN, MANNER_PLAIN);
    store_at(&s, "", s.a, N, 0);
    put_session(&s, "whole", "", s.a, 128);
    put_session(&s, "elsewhere", "", s.b, N);
    const firn_disk_fsck_report report = rebuild(&s);
    assert_int_equal(report.n_sessions, 1);
    assert_int_equal(report.n_names_lost, 1);
    tear_down(&s);
}

/* A wipe leaves no word of the namespace in the ledger, and none of an encrypted one without its key. */
static void what_is_wiped_is_not_in_the_ledger(void **unused)
{
    (void)unused;
    for (unsigned locked = 0; locked < 2; locked++) {
        state s;
        set_up(&s, FIXTURE_PLAIN, locked ? MANNER_SEALED : MANNER_PLAIN);
        store_at(&s, "kept", s.a, N, 0);
        store_at(&s, "wiped", s.b, N, 0);
        put_session(&s, "session of one", "kept", s.a, N);
        put_session(&s, "session of another", "wiped", s.b, N);
        firn_tier_destroy(s.tier);
        const firn_disk_options options = { .dir = s.dir };
        assert_ok(firn_disk_open(&options, &s.world.env, &s.tier, NULL));
        firn_disk_prune_report pruned;
        assert_ok(firn_disk_prune(s.tier, &(firn_disk_prune_options){ .ns = "wiped", .wipe = true }, &pruned, NULL));
        firn_tier_destroy(s.tier);
        char path[700];
        for (unsigned number = 1; number < 9; number++) {
            (void)snprintf(path, sizeof path, "%s/ledger-%08u.firn", s.dir, number);
            const int fd = open(path, O_RDONLY);
            static char text[65536];
            const ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;
            for (ssize_t i = 0; i + 18 <= n; i++) {
                assert_memory_not_equal(text + i, "session of another", 18);
            }
            if (fd >= 0) {
                assert_false(locked); /* what cannot be read cannot be chosen from: it went as a whole */
                close(fd);
            }
        }
        open_store(&s);
        listing *before = list_all(&s);
        const firn_disk_fsck_report report = rebuild(&s);
        listing *after = list_all(&s);
        assert_int_equal(report.n_sessions, 1);
        assert_same(before, after);
        free(before);
        free(after);
        tear_down(&s);
    }
}

/* A session is used again and again: lines of some hundred bytes, and a file that is made anew before it is large. */
static void the_ledger_grows_by_lines_and_stays_small(void **unused)
{
    (void)unused;
    state s;
    set_up(&s, FIXTURE_PLAIN, MANNER_PLAIN);
    store_at(&s, "", s.a, N, 0);
    uint64_t n_largest = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        put_session(&s, "s", "", s.a, N);
        if (i % 100 == 99) {
            uint64_t n_bytes = 0;
            for (unsigned number = 1; number < 99; number++) {
                char name[32];
                (void)snprintf(name, sizeof name, "ledger-%08u.firn", number);
                n_bytes += fixture_file_bytes(s.dir, name);
            }
            assert_true(n_bytes <= (i + 1) * UINT64_C(300) + 8192);
            n_largest = n_bytes > n_largest ? n_bytes : n_largest;
        }
    }
    assert_true(n_largest < 320u << 10);
    (void)fixture_assert_books(s.tier, s.dir);
    const firn_disk_fsck_report report = rebuild(&s);
    assert_int_equal(report.n_sessions, 1);
    tear_down(&s);
}

int main(void)
{
    fixture_use_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_namespaces_stored_behind_those_above_them_comes_back),
        cmocka_unit_test(pins_sessions_and_keys_come_back),
        cmocka_unit_test(priorities_come_back),
        cmocka_unit_test(without_a_ledger_the_report_says_so_and_the_records_are_there),
        cmocka_unit_test(a_store_without_a_ledger_gets_one),
        cmocka_unit_test(a_damaged_line_costs_what_it_says_and_no_more),
        cmocka_unit_test(a_path_that_is_not_all_stored_has_lost_its_name),
        cmocka_unit_test(what_is_wiped_is_not_in_the_ledger),
        cmocka_unit_test(the_ledger_grows_by_lines_and_stays_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
