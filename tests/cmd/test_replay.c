/*
 * The simulator against a definition: a cache that keeps a stamp for each block and throws the oldest out, one by one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/replay_impl.h"
#include "support/support.h"

enum { SESSIONS = 5, REQUESTS = 120, DEPTH_MAX = 40, IDS_MAX = SESSIONS * REQUESTS * DEPTH_MAX };

typedef struct request {
    uint32_t session, n;
    uint32_t ids[DEPTH_MAX];
} request;

typedef struct rig {
    char *dir, path[512];
    request requests[SESSIONS * REQUESTS]; /* by session, then by time */
} rig;

/* Conversations that grow, branch off and come back: each takes a beginning of an earlier one and goes on with new
 * ids, now and then with a gap between them. */
static void make_trace(rig *r, uint64_t seed)
{
    test_rng rng = test_rng_create("replay", seed);
    r->dir = test_dir_create();
    (void)snprintf(r->path, sizeof r->path, "%s/trace.jsonl", r->dir);
    FILE *file = fopen(r->path, "w");
    assert_non_null(file);
    for (uint32_t s = 0; s < SESSIONS; s++) {
        uint32_t next_id = 1;
        (void)fprintf(file, "{\"block_size\":64,\"requests\":[");
        for (uint32_t i = 0; i < REQUESTS; i++) {
            request *to = &r->requests[s * REQUESTS + i];
            *to = (request){ .session = s };
            if (i > 0) {
                const request *from = &r->requests[s * REQUESTS + i - 1 - test_rng_below(&rng, i < 4 ? i : 4)];
                to->n = from->n - test_rng_below(&rng, from->n / 2 + 1);
                memcpy(to->ids, from->ids, to->n * sizeof to->ids[0]);
            }
            next_id += test_rng_below(&rng, 3);
            for (uint32_t k = 1 + test_rng_below(&rng, 4); k > 0 && to->n < DEPTH_MAX; k--) {
                to->ids[to->n++] = next_id++;
            }
            (void)fprintf(file, "%s{\"t\":%u,\"runs\":[", i > 0 ? "," : "", i * 10);
            for (uint32_t k = 0; k < to->n; k++) {
                (void)fprintf(file, "%s[%u,1]", k > 0 ? "," : "", to->ids[k]);
            }
            (void)fprintf(file, "]}");
        }
        (void)fprintf(file, "]}\n");
    }
    assert_int_equal(fclose(file), 0);
}

static void remove_trace(rig *r)
{
    test_dir_remove(r->dir);
    free(r->dir);
}

static uint64_t stamps[IDS_MAX];

/* Hits and takings-in of the definition. */
static void define(const rig *r, const firni_replay_event *events, uint64_t capacity, uint64_t *hits, uint64_t *written)
{
    memset(stamps, 0, sizeof stamps); /* 0: not there */
    uint64_t stamp = 0, n_held = 0;
    *hits = *written = 0;
    for (uint32_t e = 0; e < SESSIONS * REQUESTS; e++) {
        const request *q = &r->requests[events[e].request];
        uint64_t *own = stamps + (size_t)q->session * REQUESTS * DEPTH_MAX;
        uint32_t n = 0;
        while (n < q->n && own[q->ids[n]] != 0) {
            n++;
        }
        *hits += n;
        for (uint32_t i = q->n; i-- > 0;) {
            n_held += own[q->ids[i]] == 0;
            *written += own[q->ids[i]] == 0;
            own[q->ids[i]] = ++stamp;
        }
        while (n_held > capacity) {
            uint64_t *oldest = NULL;
            for (uint32_t i = 0; i < IDS_MAX; i++) {
                oldest = stamps[i] != 0 && (oldest == NULL || stamps[i] < *oldest) ? &stamps[i] : oldest;
            }
            *oldest = 0;
            n_held--;
        }
    }
}

static void the_simulator_finds_what_the_definition_finds(void **state)
{
    (void)state;
    static rig r;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        make_trace(&r, seed);
        firni_replay_trace trace;
        assert_ok(firni_replay_load(r.path, NULL, &trace, NULL));
        assert_int_equal(trace.n_requests, SESSIONS * REQUESTS);
        firni_replay_event *events = firni_replay_interleave(&trace, 3, 15);
        assert_non_null(events);
        static const uint64_t capacities[] = { 20, 60, 150, 100000 };
        for (size_t c = 0; c < sizeof capacities / sizeof capacities[0]; c++) {
            uint64_t hits, written;
            define(&r, events, capacities[c], &hits, &written);
            firni_replay_result result;
            const firni_replay_options options = { .capacity_blocks = capacities[c] };
            assert_ok(firni_replay_simulate(&trace, events, &options, &result, NULL));
            assert_int_equal(result.hit_blocks, hits);
            assert_int_equal(result.written_blocks, written);
            assert_true(hits > 0);
        }
        firni_free(NULL, events);
        firni_replay_unload(&trace);
        remove_trace(&r);
    }
}

static void with_room_for_all_every_choice_is_the_same(void **state)
{
    (void)state;
    static rig r;
    make_trace(&r, 3);
    firni_replay_trace trace;
    assert_ok(firni_replay_load(r.path, NULL, &trace, NULL));
    firni_replay_event *events = firni_replay_interleave(&trace, 2, 100);
    firni_replay_writes writes;
    assert_ok(firni_replay_writes_of(&trace, &writes, NULL));
    static const firni_replay_options choices[] = {
        { .policy = "lru", .capacity_blocks = UINT64_MAX },
        { .policy = "cost", .capacity_blocks = UINT64_MAX },
        { .policy = "cost", .admission = "second", .capacity_blocks = UINT64_MAX },
    };
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        firni_replay_result result;
        assert_ok(firni_replay_simulate(&trace, events, &choices[i], &result, NULL));
        assert_int_equal(result.written_blocks, writes.unique_blocks);
        assert_int_equal(result.hit_blocks + result.written_blocks, trace.n_blocks);
        assert_int_equal(result.evicted_blocks, 0);
    }
    firni_free(NULL, events);
    firni_replay_unload(&trace);
    remove_trace(&r);
}

/* Every allocation fails in turn: an error, and nothing left behind. */
static void without_memory_there_is_an_error_and_no_leak(void **state)
{
    (void)state;
    static rig r;
    make_trace(&r, 4);
    for (uint64_t n = 1;; n += n < 40 ? 1 : 97) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firni_replay_trace trace;
        firni_replay_writes writes;
        firni_replay_result result;
        firni_replay_keep keeps[FIRNI_REPLAY_KEEPS];
        firn_error err = { 0 };
        firn_status status = firni_replay_load(r.path, &world.env, &trace, &err);
        firni_replay_event *events = status == FIRN_OK ? firni_replay_interleave(&trace, 2, 100) : NULL;
        const firni_replay_options options = { .policy = "cost", .admission = "second", .capacity_blocks = 50 };
        if (events != NULL) {
            status = firni_replay_simulate(&trace, events, &options, &result, &err);
            status = status == FIRN_OK ? firni_replay_writes_of(&trace, &writes, &err) : status;
            status = status == FIRN_OK ? firni_replay_checkpoints(&trace, keeps, &err) : status;
        } else {
            status = FIRN_ERR_NO_MEMORY;
        }
        const bool clean = !world.alloc_failed;
        assert_status(status, clean ? FIRN_OK : FIRN_ERR_NO_MEMORY);
        if (events != NULL) {
            firni_free(&world.env, events);
        }
        firni_replay_unload(&trace);
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
    remove_trace(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_simulator_finds_what_the_definition_finds),
        cmocka_unit_test(with_room_for_all_every_choice_is_the_same),
        cmocka_unit_test(without_memory_there_is_an_error_and_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
