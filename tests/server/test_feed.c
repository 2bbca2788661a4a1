/*
 * The queue between the engine's thread and a connection's: order, the end, memory, and who may leave first.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "server/feed.h"
#include "support/support.h"

#define SECOND_NS UINT64_C(1000000000)

static void push_token(firni_feed *feed, firn_token token, const char *text)
{
    const firn_event event = { .kind = FIRN_EVENT_TOKEN, .token = token, .text = text, .len_text = strlen(text) };
    firni_feed_on_event(feed, &event);
}

static void push_end(firni_feed *feed, firn_finish finish, const char *text, const firn_error *err)
{
    const firn_usage usage = { .prompt_tokens = 3, .completion_tokens = 2 };
    const firn_event event = { .kind = FIRN_EVENT_END, .text = text, .len_text = strlen(text), .finish = finish,
                               .usage = &usage, .error = err };
    firni_feed_on_event(feed, &event);
}

static void events_arrive_in_order_with_the_held_back_text_last(void **state)
{
    (void)state;
    firni_feed *feed = firni_feed_create(NULL);
    firni_feed_retain(feed);
    firni_pieces pieces;
    firni_pieces_init(&pieces, NULL);
    bool ended = false;
    firni_feed_end end;
    assert_false(firni_feed_take(feed, 1000000, &pieces, &ended, &end)); /* nothing yet: comes back in time */
    push_token(feed, 5, "ab");
    push_token(feed, 6, "");
    assert_true(firni_feed_take(feed, SECOND_NS, &pieces, &ended, &end));
    assert_false(ended);
    assert_int_equal(pieces.n_tokens, 2);
    push_token(feed, 7, "c");
    push_end(feed, FIRN_FINISH_LENGTH, "tail", NULL);
    assert_true(firni_feed_take(feed, SECOND_NS, &pieces, &ended, &end));
    assert_true(ended);
    assert_int_equal(end.finish, FIRN_FINISH_LENGTH);
    assert_int_equal(end.usage.completion_tokens, 2);
    assert_int_equal(pieces.n_tokens, 3);
    assert_int_equal(firni_pieces_at(&pieces, 2).token, 7);
    assert_memory_equal(pieces.text.data, "abctail", 7);
    assert_int_equal(firni_pieces_tail(&pieces).len_text, 4);
    assert_false(firni_feed_take(feed, 1000000, &pieces, &ended, &end)); /* the end comes once */
    firni_pieces_deinit(&pieces);
    firni_feed_release(feed);
}

static void either_side_may_leave_first(void **state)
{
    (void)state;
    firni_feed *feed = firni_feed_create(NULL);
    firni_feed_retain(feed);
    push_token(feed, 1, "x");
    firni_feed_release(feed);                         /* the client went away */
    push_token(feed, 2, "y");
    push_end(feed, FIRN_FINISH_CANCELLED, "", NULL);  /* the engine's reference was the last: freed here */

    feed = firni_feed_create(NULL);
    firni_feed_retain(feed);
    push_end(feed, FIRN_FINISH_STOP, "", NULL);
    firni_feed_release(feed);

    feed = firni_feed_create(NULL);
    firni_feed_retain(feed);
    firni_feed_release(feed); /* a refused submit */
    firni_feed_release(feed);
}

static void lost_memory_ends_in_an_error_not_in_a_shorter_answer(void **state)
{
    (void)state;
    uint64_t n_failed = 0;
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        firni_pieces pieces;
        firni_pieces_init(&pieces, NULL);
        world.fail_alloc_at = n;
        firni_feed *feed = firni_feed_create(&world.env);
        if (feed != NULL) {
            firni_feed_retain(feed);
            for (uint32_t i = 0; i < 200; i++) {
                push_token(feed, i, "some text of it");
            }
            push_end(feed, FIRN_FINISH_STOP, "tail", NULL);
            bool ended = false;
            firni_feed_end end;
            assert_true(firni_feed_take(feed, SECOND_NS, &pieces, &ended, &end));
            assert_true(ended);
            if (world.alloc_failed) {
                assert_int_equal(end.finish, FIRN_FINISH_ERROR);
                assert_status(end.error.status, FIRN_ERR_NO_MEMORY);
                n_failed++;
            } else {
                assert_int_equal(end.finish, FIRN_FINISH_STOP);
                assert_int_equal(pieces.n_tokens, 200);
            }
            firni_feed_release(feed);
        }
        const bool clean = !world.alloc_failed;
        firni_pieces_deinit(&pieces);
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
    assert_true(n_failed > 3);
}

static void *push_many(void *ctx)
{
    firni_feed *feed = ctx;
    for (uint32_t i = 0; i < 20000; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%u ", (unsigned)i);
        push_token(feed, i, text);
    }
    push_end(feed, FIRN_FINISH_STOP, "", NULL);
    return NULL;
}

static void nothing_is_lost_between_two_threads(void **state)
{
    (void)state;
    firni_feed *feed = firni_feed_create(NULL);
    firni_feed_retain(feed);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, push_many, feed), 0);
    firni_pieces pieces;
    firni_pieces_init(&pieces, NULL);
    uint32_t next = 0;
    bool ended = false;
    while (!ended) {
        firni_feed_end end;
        if (!firni_feed_take(feed, SECOND_NS, &pieces, &ended, &end)) {
            continue;
        }
        for (uint32_t i = 0; i < pieces.n_tokens; i++, next++) {
            const firni_piece piece = firni_pieces_at(&pieces, i);
            char text[16];
            (void)snprintf(text, sizeof text, "%u ", (unsigned)next);
            assert_int_equal(piece.token, next);
            assert_int_equal(piece.len_text, strlen(text));
            assert_memory_equal(piece.text, text, piece.len_text);
        }
        firni_pieces_clear(&pieces);
    }
    assert_int_equal(next, 20000);
    assert_int_equal(pthread_join(thread, NULL), 0);
    firni_pieces_deinit(&pieces);
    firni_feed_release(feed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_arrive_in_order_with_the_held_back_text_last),
        cmocka_unit_test(either_side_may_leave_first),
        cmocka_unit_test(lost_memory_ends_in_an_error_not_in_a_shorter_answer),
        cmocka_unit_test(nothing_is_lost_between_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
