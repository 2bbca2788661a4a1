/*
 * The mailbox through which other threads tell the engine thread what they have finished. Owns the list and its mutex;
 * what a message means is decided by the file that sent it.
 */
#include <assert.h>
#include <errno.h>

#include "base/condition.h"
#include "prefix/prefix_impl.h"

/* Longest sleep at a time: bounds are measured on the caller's clock, which may run differently. */
#define WAIT_NS_MAX UINT64_C(20000000)

firn_status firni_inbox_init(firn_prefix *prefix, firn_error *err)
{
    firni_inbox *inbox = &prefix->inbox;
    int error = firni_condition_init(&inbox->posted);
    if (error == 0) {
        error = pthread_mutex_init(&inbox->mutex, NULL);
        if (error != 0) {
            (void)pthread_cond_destroy(&inbox->posted);
        }
    }
    if (error != 0) {
        return firni_fail_os(err, error, "cannot create the mailbox of the RAM tier");
    }
    inbox->ready = true;
    return FIRN_OK;
}

void firni_inbox_deinit(firn_prefix *prefix)
{
    firni_inbox *inbox = &prefix->inbox;
    assert(inbox->head == NULL && inbox->n_posting == 0);
    if (inbox->ready) {
        (void)pthread_mutex_destroy(&inbox->mutex);
        (void)pthread_cond_destroy(&inbox->posted);
        inbox->ready = false;
    }
}

/* A message is posted by its intrusive link, so that a finished store or read can always be told. The receiver may free
 * it as soon as the mutex is released; nothing of it is touched afterwards. */
void firni_inbox_post(firn_prefix *prefix, firni_message *message)
{
    firni_inbox *inbox = &prefix->inbox;
    message->next = NULL;
    (void)pthread_mutex_lock(&inbox->mutex);
    if (inbox->tail != NULL) {
        inbox->tail->next = message;
    } else {
        inbox->head = message;
    }
    inbox->tail = message;
    inbox->n_posting++;
    (void)pthread_cond_broadcast(&inbox->posted);
    (void)pthread_mutex_unlock(&inbox->mutex);
    /* The message may be gone by now. The tree may not: destroying it waits for n_posting. */
    if (prefix->options.notify != NULL) {
        prefix->options.notify(prefix->options.notify_ctx);
    }
    (void)pthread_mutex_lock(&inbox->mutex);
    inbox->n_posting--;
    (void)pthread_cond_broadcast(&inbox->posted);
    (void)pthread_mutex_unlock(&inbox->mutex);
}

/* Called at the start of every public function that changes the tree, so that it always works on the latest state. */
void firni_inbox_drain(firn_prefix *prefix)
{
    firni_inbox *inbox = &prefix->inbox;
    (void)pthread_mutex_lock(&inbox->mutex);
    firni_message *message = inbox->head; /* all of them at once: handling one may take long */
    inbox->head = inbox->tail = NULL;
    (void)pthread_mutex_unlock(&inbox->mutex);
    while (message != NULL) {
        firni_message *next = message->next;
        if (message->kind == FIRNI_MESSAGE_STORED) {
            firni_job_ended(prefix, (firni_job *)message);
        } else if (message->kind == FIRNI_MESSAGE_FOUND) {
            firni_find_ended(prefix, (firni_find *)message);
        } else {
            firni_read_ended(prefix, (firni_read *)message);
        }
        message = next;
    }
}

void firni_inbox_wait(firn_prefix *prefix, uint64_t wait_ns)
{
    firni_inbox *inbox = &prefix->inbox;
    const struct timespec until = firni_condition_deadline(wait_ns < WAIT_NS_MAX ? wait_ns : WAIT_NS_MAX);
    (void)pthread_mutex_lock(&inbox->mutex);
    int error = 0;
    while (inbox->head == NULL && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&inbox->posted, &inbox->mutex, &until);
    }
    (void)pthread_mutex_unlock(&inbox->mutex);
}

/* After the last message has been taken, its sender may still be in notify, or on its way out of this file. */
void firni_inbox_wait_idle(firn_prefix *prefix)
{
    firni_inbox *inbox = &prefix->inbox;
    (void)pthread_mutex_lock(&inbox->mutex);
    while (inbox->n_posting > 0) {
        (void)pthread_cond_wait(&inbox->posted, &inbox->mutex);
    }
    (void)pthread_mutex_unlock(&inbox->mutex);
}
