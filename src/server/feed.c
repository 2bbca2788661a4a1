/*
 * The queue between the engine's thread and a connection's. Guard of all members but the constant ones: `mutex`.
 */
#include <assert.h>
#include <pthread.h>

#include "base/base_impl.h"
#include "base/condition.h"
#include "server/feed.h"

struct firni_feed {
    const firn_env *env;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t n_refs;        /* 1..2 while alive */
    firni_pieces pieces;    /* pushed and not yet taken */
    bool ended, taken_end;
    bool out_of_memory;     /* an event was lost: the answer can not be completed */
    firni_feed_end end;
};

firni_feed *firni_feed_create(const firn_env *env)
{
    firni_feed *feed = firni_calloc(env, 1, sizeof *feed);
    if (feed == NULL) {
        return NULL;
    }
    const bool ok = firni_condition_init(&feed->changed) == 0;
    if (!ok || pthread_mutex_init(&feed->mutex, NULL) != 0) {
        if (ok) {
            (void)pthread_cond_destroy(&feed->changed);
        }
        firni_free(env, feed);
        return NULL;
    }
    feed->env = env;
    feed->n_refs = 1;
    firni_pieces_init(&feed->pieces, env);
    return feed;
}

void firni_feed_retain(firni_feed *feed)
{
    (void)pthread_mutex_lock(&feed->mutex);
    assert(feed->n_refs == 1);
    feed->n_refs++;
    (void)pthread_mutex_unlock(&feed->mutex);
}

void firni_feed_release(firni_feed *feed)
{
    if (feed == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&feed->mutex);
    assert(feed->n_refs > 0);
    const bool last = --feed->n_refs == 0;
    (void)pthread_mutex_unlock(&feed->mutex);
    if (last) {
        firni_pieces_deinit(&feed->pieces);
        (void)pthread_cond_destroy(&feed->changed);
        (void)pthread_mutex_destroy(&feed->mutex);
        firni_free(feed->env, feed);
    }
}

void firni_feed_on_event(void *ctx, const firn_event *event)
{
    /* An event that finds no memory is not an error of the engine's: the answer is marked, and its end says so. */
    firni_feed *feed = ctx;
    const bool is_end = event->kind == FIRN_EVENT_END;
    (void)pthread_mutex_lock(&feed->mutex);
    assert(!feed->ended);
    if (is_end) {
        firni_buffer_append(&feed->pieces.text, event->text, event->len_text); /* behind the last token: the tail */
        feed->out_of_memory = feed->out_of_memory || feed->pieces.text.failed;
        feed->end.finish = event->finish;
        feed->end.usage = event->usage != NULL ? *event->usage : (firn_usage){ 0 };
        if (event->finish == FIRN_FINISH_ERROR && event->error != NULL) {
            feed->end.error = *event->error;
        }
        if (feed->out_of_memory) {
            feed->end.finish = FIRN_FINISH_ERROR;
            (void)firni_fail(&feed->end.error, FIRN_ERR_NO_MEMORY, "no memory for the answer");
        }
        feed->ended = true;
    } else if (!feed->out_of_memory && !firni_pieces_add(&feed->pieces, event->token, event->text, event->len_text,
                                                         event->logprobs)) {
        feed->out_of_memory = true;
    }
    (void)pthread_cond_signal(&feed->changed);
    (void)pthread_mutex_unlock(&feed->mutex);
    if (is_end) {
        firni_feed_release(feed);
    }
}

/* Text alone is no news: it belongs to a token, or comes with the end. */
static bool has_news(const firni_feed *feed)
{
    return feed->pieces.n_tokens > 0 || (feed->ended && !feed->taken_end);
}

bool firni_feed_take(firni_feed *feed, uint64_t wait_ns, firni_pieces *into, bool *ended, firni_feed_end *end)
{
    const struct timespec deadline = firni_condition_deadline(wait_ns);
    (void)pthread_mutex_lock(&feed->mutex);
    while (!has_news(feed)) {
        if (pthread_cond_timedwait(&feed->changed, &feed->mutex, &deadline) != 0) {
            break;
        }
    }
    const bool news = has_news(feed);
    if (news) {
        if (!firni_pieces_append(into, &feed->pieces)) {
            feed->out_of_memory = true;
            into->text.failed = false; /* the taker goes on to the END event, which says what happened */
            if (feed->ended) {
                feed->end.finish = FIRN_FINISH_ERROR;
                (void)firni_fail(&feed->end.error, FIRN_ERR_NO_MEMORY, "no memory for the answer");
            }
        }
        firni_pieces_clear(&feed->pieces);
        if (feed->ended) {
            feed->taken_end = true;
            *end = feed->end;
            *ended = true;
        }
    }
    (void)pthread_mutex_unlock(&feed->mutex);
    return news;
}
