/*
 * What tests of stacks share: two disks, each behind a gate, and the stack over them.
 */
#ifndef FIRN_TESTS_STACK_RIG_H
#define FIRN_TESTS_STACK_RIG_H

#include <unistd.h>

#include "firn/keep.h"
#include "firn/stack.h"
#include "support/gate_tier.h"
#include "tier/tier_fixture.h"

#define RIG_SECOND_NS UINT64_C(1000000000)
#define RIG_LONG_NS   (60 * RIG_SECOND_NS)
#define RIG_IDLE_NS   (3600 * RIG_SECOND_NS) /* so idle that nothing is copied down but by a flush or in need */

typedef struct stack_rig {
    fixture fix;
    char *dirs[2];
    firn_tier *disks[2]; /* upper, lower */
    gate_tier *upper, *lower;
    firn_tier *tier;
    firn_token tokens[FIXTURE_TOKENS_MAX];
    test_rng rng;
} stack_rig;

/* Many commits, and none of them the point: on a file system in memory a sync costs nothing. */
static inline void rig_use_memory(void)
{
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
}

static inline void rig_open(stack_rig *rig, const firn_stack_options *more, const firn_disk_options *upper_options)
{
    rig->disks[0] = fixture_open(&rig->fix, rig->dirs[0], upper_options);
    rig->disks[1] = fixture_open(&rig->fix, rig->dirs[1], NULL);
    rig->upper = gate_create(rig->disks[0]);
    rig->lower = gate_create(rig->disks[1]);
    firn_stack_options options = more != NULL ? *more : (firn_stack_options){ 0 };
    options.upper = &rig->upper->tier;
    options.lower = &rig->lower->tier;
    options.demote_idle_ns = options.demote_idle_ns != 0 ? options.demote_idle_ns : RIG_IDLE_NS;
    options.lower_deadline_ns = options.lower_deadline_ns != 0 ? options.lower_deadline_ns : RIG_LONG_NS;
    assert_ok(firn_stack_create(&options, rig->fix.env, &rig->tier, NULL));
}

static inline void rig_init(stack_rig *rig, const char *name, const firn_stack_options *more, fixture_schema schema)
{
    const fixture_options geometry = { .schema = schema };
    rig->rng = test_rng_create(name, 5);
    fixture_init(&rig->fix, NULL, &geometry);
    rig->dirs[0] = test_dir_create();
    rig->dirs[1] = test_dir_create();
    rig_open(rig, more, NULL);
    fixture_random_tokens(&rig->rng, rig->tokens, FIXTURE_TOKENS_MAX);
}

static inline void rig_deinit(stack_rig *rig)
{
    firn_tier_destroy(rig->tier);
    fixture_deinit(&rig->fix);
    for (int i = 0; i < 2; i++) {
        test_dir_remove(rig->dirs[i]);
        free(rig->dirs[i]);
    }
}

static inline firn_stack_stats rig_stats(const stack_rig *rig)
{
    firn_stack_stats stats;
    assert_true(firn_stack_get_stats(rig->tier, &stats));
    return stats;
}

/* Whether a tier alone has all of these tokens. */
static inline bool rig_has(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens)
{
    const firn_match match = firn_tier_find_exact(tier, tokens, n_tokens, "");
    firn_tier_release(tier, match.handle);
    return match.handle != NULL;
}

static inline void rig_nap(void)
{
    const struct timespec pause = { .tv_nsec = 2000000 };
    (void)nanosleep(&pause, NULL);
}

/* Waits until a tier alone has the tokens. */
static inline void rig_wait_for(firn_tier *tier, const firn_token *tokens, uint32_t n_tokens)
{
    for (unsigned look = 0; !rig_has(tier, tokens, n_tokens); look++) {
        assert_true(look < 10000);
        rig_nap();
    }
}

/* The answer of an asynchronous restore, and who waits for it. */
typedef struct rig_answer {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned n_answers, n_progress;
    firn_reason reason;
    firn_restored restored;
    bool is_unwanted;
} rig_answer;

static inline void rig_answer_init(rig_answer *answer)
{
    *answer = (rig_answer){ .n_answers = 0 };
    pthread_mutex_init(&answer->mutex, NULL);
    pthread_cond_init(&answer->changed, NULL);
}

static inline void rig_answer_deinit(rig_answer *answer)
{
    firn_restored_deinit(&answer->restored);
    pthread_mutex_destroy(&answer->mutex);
    pthread_cond_destroy(&answer->changed);
}

static inline void rig_done(void *ctx, firn_restored *restored, firn_reason reason)
{
    rig_answer *answer = ctx;
    pthread_mutex_lock(&answer->mutex);
    answer->n_answers++;
    answer->reason = reason;
    if (restored != NULL) {
        answer->restored = *restored;
        *restored = (firn_restored){ 0 };
    }
    pthread_cond_signal(&answer->changed);
    pthread_mutex_unlock(&answer->mutex);
}

static inline void rig_progress(void *ctx, const firn_restore_progress *progress)
{
    (void)progress;
    rig_answer *answer = ctx;
    pthread_mutex_lock(&answer->mutex);
    answer->n_progress++;
    pthread_mutex_unlock(&answer->mutex);
}

static inline bool rig_is_wanted(void *ctx)
{
    rig_answer *answer = ctx;
    pthread_mutex_lock(&answer->mutex);
    const bool wanted = !answer->is_unwanted;
    pthread_mutex_unlock(&answer->mutex);
    return wanted;
}

static inline firn_reason rig_wait_answer(rig_answer *answer)
{
    pthread_mutex_lock(&answer->mutex);
    while (answer->n_answers == 0) {
        pthread_cond_wait(&answer->changed, &answer->mutex);
    }
    assert_int_equal(answer->n_answers, 1);
    pthread_mutex_unlock(&answer->mutex);
    return answer->reason;
}

#endif
