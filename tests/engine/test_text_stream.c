/*
 * The text stream against a naive model that always has the whole text, and the cases that matter by name.
 */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text_stream.h"

/* ---- a naive model: quadratic, obvious ---- */

typedef struct naive {
    const char *const *stops;
    uint32_t n_stops;
    char text[4096];
    size_t n_bytes;
} naive;

/* The first end position at which some stop is complete; there, the longest stop. */
static bool naive_find_stop(const naive *model, size_t *begin, uint32_t *index)
{
    for (size_t end = 1; end <= model->n_bytes; end++) {
        size_t longest = 0;
        for (uint32_t i = 0; i < model->n_stops; i++) {
            const size_t len = strlen(model->stops[i]);
            if (len <= end && memcmp(model->text + end - len, model->stops[i], len) == 0 && len > longest) {
                longest = len;
                *begin = end - len;
                *index = i;
            }
        }
        if (longest > 0) {
            return true;
        }
    }
    return false;
}

/* Whether text[0..n) has a last sequence that is still incomplete: decoded from the front, as a reader would. */
static size_t naive_complete_len(const char *text, size_t n)
{
    const uint8_t *b = (const uint8_t *)text;
    size_t at = 0;
    while (at < n) {
        size_t need = 1;
        uint8_t low = 0x80, high = 0xBF;
        if (b[at] >= 0xC2 && b[at] <= 0xDF) {
            need = 2;
        } else if (b[at] >= 0xE0 && b[at] <= 0xEF) {
            need = 3;
            low = b[at] == 0xE0 ? 0xA0 : 0x80;
            high = b[at] == 0xED ? 0x9F : 0xBF;
        } else if (b[at] >= 0xF0 && b[at] <= 0xF4) {
            need = 4;
            low = b[at] == 0xF0 ? 0x90 : 0x80;
            high = b[at] == 0xF4 ? 0x8F : 0xBF;
        }
        size_t have = 1;
        while (have < need && at + have < n && b[at + have] >= low && b[at + have] <= high) {
            have++;
            low = 0x80;
            high = 0xBF;
        }
        if (have < need && at + have == n) {
            return at; /* valid so far and cut by the end */
        }
        at += have == need ? need : 1;
    }
    return n;
}

/* How much of the whole text may be shown now. */
static size_t naive_released_len(const naive *model)
{
    size_t begin = model->n_bytes;
    for (uint32_t i = 0; i < model->n_stops; i++) {
        for (size_t len = strlen(model->stops[i]) - 1; len > 0; len--) {
            if (len <= model->n_bytes && memcmp(model->text + model->n_bytes - len, model->stops[i], len) == 0) {
                begin = model->n_bytes - len < begin ? model->n_bytes - len : begin;
                break;
            }
        }
    }
    return naive_complete_len(model->text, begin);
}

/* ---- a stream with what it has released so far ---- */

typedef struct fixture {
    firni_text_stream *stream;
    char out[4096];
    size_t n_out;
    uint32_t stop_index;
} fixture;

static void begin(fixture *f, const char *const *stops, uint32_t n_stops)
{
    *f = (fixture){ .stop_index = 99 };
    assert_ok(firni_text_stream_create(stops, n_stops, NULL, &f->stream, NULL));
}

static void collect(fixture *f, const char *text, size_t len)
{
    assert_non_null(text);
    assert_true(f->n_out + len < sizeof f->out);
    memcpy(f->out + f->n_out, text, len);
    f->n_out += len;
    f->out[f->n_out] = '\0';
}

static bool push(fixture *f, const char *bytes)
{
    const char *text = NULL;
    size_t len = 0;
    const bool stopped = firni_text_stream_push(f->stream, bytes, strlen(bytes), &text, &len, &f->stop_index);
    collect(f, text, len);
    return stopped;
}

static void end(fixture *f)
{
    const char *text = NULL;
    size_t len = 0;
    firni_text_stream_end(f->stream, &text, &len);
    collect(f, text, len);
    firni_text_stream_end(f->stream, &text, &len);
    assert_int_equal(len, 0);
    firni_text_stream_destroy(f->stream);
}

/* ---- tests ---- */

static void without_stops_text_passes_at_once(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL, 0);
    assert_false(push(&f, "Hello"));
    assert_string_equal(f.out, "Hello");
    assert_false(push(&f, ""));
    assert_false(push(&f, " world"));
    assert_string_equal(f.out, "Hello world");
    end(&f);
    assert_string_equal(f.out, "Hello world");
}

static void incomplete_utf8_is_held_until_complete(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL, 0);
    assert_false(push(&f, "a\xE2"));
    assert_string_equal(f.out, "a");
    assert_false(push(&f, "\x82"));
    assert_string_equal(f.out, "a");
    assert_false(push(&f, "\xAC\xF0\x9F"));
    assert_string_equal(f.out, "a\xE2\x82\xAC");
    assert_false(push(&f, "\x98\x80"));
    assert_string_equal(f.out, "a\xE2\x82\xAC\xF0\x9F\x98\x80");
    end(&f);
}

static void bytes_that_can_never_be_utf8_are_not_held(void **state)
{
    (void)state;
    static const char *const never[] = { "\x80", "\xBF\xBF", "\xC0", "\xC1\xBF", "\xE0\x9F", "\xED\xA0", "\xF0\x8F",
                                         "\xF4\x90", "\xF5", "\xFF", "\xE2\x28" };
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        fixture f;
        begin(&f, NULL, 0);
        assert_false(push(&f, never[i]));
        assert_string_equal(f.out, never[i]);
        end(&f);
        assert_string_equal(f.out, never[i]);
    }
}

static void the_end_releases_an_incomplete_sequence_as_it_is(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL, 0);
    assert_false(push(&f, "x\xF0\x9F\x98"));
    assert_string_equal(f.out, "x");
    end(&f);
    assert_string_equal(f.out, "x\xF0\x9F\x98");
}

static void a_stop_across_many_pieces_is_found_and_dropped(void **state)
{
    (void)state;
    const char *stops[] = { "</answer>" };
    fixture f;
    begin(&f, stops, 1);
    assert_false(push(&f, "42 <"));
    assert_string_equal(f.out, "42 ");
    assert_false(push(&f, "/an"));
    assert_false(push(&f, "s"));
    assert_false(push(&f, "wer"));
    assert_string_equal(f.out, "42 ");
    assert_true(push(&f, "> and more"));
    assert_int_equal(f.stop_index, 0);
    assert_true(push(&f, "nothing after a stop"));
    end(&f);
    assert_string_equal(f.out, "42 ");
}

static void a_false_start_is_released_in_full(void **state)
{
    (void)state;
    const char *stops[] = { "aab" };
    fixture f;
    begin(&f, stops, 1);
    assert_false(push(&f, "aaaa"));
    assert_string_equal(f.out, "aa"); /* the last "aa" may still become the stop */
    assert_false(push(&f, "c"));
    assert_string_equal(f.out, "aaaac");
    assert_false(push(&f, "a"));
    assert_true(push(&f, "ab"));
    end(&f);
    assert_string_equal(f.out, "aaaac");
}

static void the_first_completed_stop_wins_and_the_longest_among_equals(void **state)
{
    (void)state;
    const char *stops[] = { "bc", "abc", "zabcd", "abc" };
    fixture f;
    begin(&f, stops, 4);
    assert_true(push(&f, "zabcd"));
    assert_int_equal(f.stop_index, 1);
    end(&f);
    assert_string_equal(f.out, "z");
}

static void held_text_before_a_stop_comes_out_with_it(void **state)
{
    (void)state;
    const char *stops[] = { "STOP", "ab cd" };
    fixture f;
    begin(&f, stops, 2);
    assert_false(push(&f, "ab "));
    assert_string_equal(f.out, "");
    assert_true(push(&f, "STOP"));
    assert_int_equal(f.stop_index, 0);
    end(&f);
    assert_string_equal(f.out, "ab ");
}

static void a_stop_that_never_completes_comes_out_at_the_end(void **state)
{
    (void)state;
    const char *stops[] = { "\n\nUser:" };
    fixture f;
    begin(&f, stops, 1);
    assert_false(push(&f, "fine\n\nUser"));
    assert_string_equal(f.out, "fine");
    end(&f);
    assert_string_equal(f.out, "fine\n\nUser");
}

static void a_sequence_cut_by_a_held_stop_is_held_too(void **state)
{
    (void)state;
    const char *stops[] = { "\xAC!" }; /* not UTF-8 by itself, yet allowed */
    fixture f;
    begin(&f, stops, 1);
    assert_false(push(&f, "a\xE2\x82\xAC"));
    assert_string_equal(f.out, "a");
    assert_false(push(&f, "?"));
    assert_string_equal(f.out, "a\xE2\x82\xAC?");
    end(&f);
}

static void one_leading_space_is_stripped_only_when_asked(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL, 0);
    assert_false(push(&f, " x"));
    end(&f);
    assert_string_equal(f.out, " x");

    begin(&f, NULL, 0);
    firni_text_stream_strip_leading_space(f.stream);
    assert_false(push(&f, ""));
    assert_false(push(&f, "  x"));
    assert_false(push(&f, " y"));
    end(&f);
    assert_string_equal(f.out, " x y");

    begin(&f, NULL, 0);
    firni_text_stream_strip_leading_space(f.stream);
    assert_false(push(&f, "x"));
    assert_false(push(&f, " y"));
    end(&f);
    assert_string_equal(f.out, "x y");
}

static void hostile_stops_are_refused(void **state)
{
    (void)state;
    firni_text_stream *stream = (firni_text_stream *)&state;
    firn_error err = { 0 };
    const char *empty[] = { "ok", "" };
    assert_status(firni_text_stream_create(empty, 2, NULL, &stream, &err), FIRN_ERR_INVALID);
    assert_null(stream);
    assert_non_null(strstr(err.message, "stop string 1"));

    char *long_stop = malloc(FIRNI_STOP_BYTES_MAX + 2);
    assert_non_null(long_stop);
    memset(long_stop, 'a', FIRNI_STOP_BYTES_MAX + 1);
    long_stop[FIRNI_STOP_BYTES_MAX + 1] = '\0';
    const char *too_long[] = { long_stop };
    assert_status(firni_text_stream_create(too_long, 1, NULL, &stream, &err), FIRN_ERR_INVALID);
    long_stop[FIRNI_STOP_BYTES_MAX] = '\0';
    assert_ok(firni_text_stream_create(too_long, 1, NULL, &stream, &err));
    firni_text_stream_destroy(stream);
    free(long_stop);

    const char *many[FIRNI_STOPS_MAX + 1];
    for (uint32_t i = 0; i <= FIRNI_STOPS_MAX; i++) {
        many[i] = "x";
    }
    assert_status(firni_text_stream_create(many, FIRNI_STOPS_MAX + 1, NULL, &stream, &err), FIRN_ERR_INVALID);
    firni_text_stream_destroy(NULL);
}

static void the_longest_piece_fits_and_a_longer_one_is_cut(void **state)
{
    (void)state;
    char *piece = malloc(FIRNI_PIECE_BYTES_MAX + 10);
    assert_non_null(piece);
    memset(piece, 'p', FIRNI_PIECE_BYTES_MAX + 10);
    const char *stops[] = { "pq" };
    firni_text_stream *stream;
    assert_ok(firni_text_stream_create(stops, 1, NULL, &stream, NULL));
    const char *text;
    size_t len;
    uint32_t index;
    assert_false(firni_text_stream_push(stream, piece, FIRNI_PIECE_BYTES_MAX + 10, &text, &len, &index));
    assert_int_equal(len, FIRNI_PIECE_BYTES_MAX - 1);
    assert_false(firni_text_stream_push(stream, piece, FIRNI_PIECE_BYTES_MAX, &text, &len, &index));
    assert_int_equal(len, FIRNI_PIECE_BYTES_MAX);
    firni_text_stream_end(stream, &text, &len);
    assert_int_equal(len, 1);
    firni_text_stream_destroy(stream);
    free(piece);
}

/* Few letters and a euro sign, so that stops and their beginnings really occur; some raw bytes. */
static size_t random_piece(test_rng *rng, char *out, size_t n_max)
{
    static const char *const atoms[] = { "a", "b", "c", "ab", "\xE2\x82\xAC", "\xE2", "\x82", "\xAC",
                                         "\xF0\x9F\x98\x80", "\xC3", " " };
    size_t n = 0;
    for (uint32_t left = test_rng_below(rng, 4); left > 0; left--) {
        const char *atom = atoms[test_rng_below(rng, sizeof atoms / sizeof atoms[0])];
        if (n + strlen(atom) >= n_max) {
            break;
        }
        memcpy(out + n, atom, strlen(atom));
        n += strlen(atom);
    }
    out[n] = '\0';
    return n;
}

static void random_pieces_and_stops_agree_with_the_naive_model(void **state)
{
    (void)state;
    test_rng rng = test_rng_create("text_stream", 20260601);
    uint32_t n_stopped = 0;
    for (uint32_t round = 0; round < 4000; round++) {
        char stop_text[4][24];
        const char *stops[4];
        const uint32_t n_stops = test_rng_below(&rng, 5);
        for (uint32_t i = 0; i < n_stops; i++) {
            do {
                (void)random_piece(&rng, stop_text[i], sizeof stop_text[i]);
            } while (stop_text[i][0] == '\0');
            stops[i] = stop_text[i];
        }
        naive model = { .stops = stops, .n_stops = n_stops };
        fixture f;
        begin(&f, stops, n_stops);
        bool stopped = false;
        for (uint32_t step = 0; step < 40 && !stopped; step++) {
            char piece[24];
            const size_t n = random_piece(&rng, piece, sizeof piece);
            memcpy(model.text + model.n_bytes, piece, n);
            model.n_bytes += n;
            stopped = push(&f, piece);
            size_t stop_begin = 0;
            uint32_t index = 0;
            assert_int_equal(stopped, naive_find_stop(&model, &stop_begin, &index));
            if (stopped) {
                assert_int_equal(f.stop_index, index);
            }
            const size_t released = stopped ? stop_begin : naive_released_len(&model);
            assert_int_equal(f.n_out, released);
            assert_memory_equal(f.out, model.text, released);
        }
        const size_t at_stop = f.n_out;
        end(&f);
        assert_int_equal(f.n_out, stopped ? at_stop : model.n_bytes);
        assert_memory_equal(f.out, model.text, f.n_out);
        n_stopped += stopped;
    }
    assert_in_range(n_stopped, 500, 3900); /* both endings are exercised */
}

static void pushing_allocates_nothing_and_every_refused_allocation_is_an_error(void **state)
{
    (void)state;
    const char *stops[] = { "one", "two" };
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firni_text_stream *stream = NULL;
        const firn_status status = firni_text_stream_create(stops, 2, &world.env, &stream, NULL);
        const bool clean = !world.alloc_failed;
        assert_status(status, clean ? FIRN_OK : FIRN_ERR_NO_MEMORY);
        assert_int_equal(stream != NULL, clean);
        if (clean) {
            const uint64_t n_allocs = world.n_allocs;
            const char *text;
            size_t len;
            uint32_t index;
            for (uint32_t i = 0; i < 100; i++) {
                assert_false(firni_text_stream_push(stream, "on tw ", 6, &text, &len, &index));
            }
            firni_text_stream_end(stream, &text, &len);
            assert_int_equal(world.n_allocs, n_allocs);
        }
        firni_text_stream_destroy(stream);
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_stops_text_passes_at_once),
        cmocka_unit_test(incomplete_utf8_is_held_until_complete),
        cmocka_unit_test(bytes_that_can_never_be_utf8_are_not_held),
        cmocka_unit_test(the_end_releases_an_incomplete_sequence_as_it_is),
        cmocka_unit_test(a_stop_across_many_pieces_is_found_and_dropped),
        cmocka_unit_test(a_false_start_is_released_in_full),
        cmocka_unit_test(the_first_completed_stop_wins_and_the_longest_among_equals),
        cmocka_unit_test(held_text_before_a_stop_comes_out_with_it),
        cmocka_unit_test(a_stop_that_never_completes_comes_out_at_the_end),
        cmocka_unit_test(a_sequence_cut_by_a_held_stop_is_held_too),
        cmocka_unit_test(one_leading_space_is_stripped_only_when_asked),
        cmocka_unit_test(hostile_stops_are_refused),
        cmocka_unit_test(the_longest_piece_fits_and_a_longer_one_is_cut),
        cmocka_unit_test(random_pieces_and_stops_agree_with_the_naive_model),
        cmocka_unit_test(pushing_allocates_nothing_and_every_refused_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
