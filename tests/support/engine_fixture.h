/*
 * A whole stack for tests of the engine: model, pool, disk tier, engine; and requests whose events are collected.
 */
#ifndef FIRN_TESTS_ENGINE_FIXTURE_H
#define FIRN_TESTS_ENGINE_FIXTURE_H

#include <pthread.h>

#include "firn/disk.h"
#include "firn/engine.h"
#include "support/support.h"

typedef struct test_stack_options {
    const char *model_path;      /* NULL: the built-in model */
    const char *disk_dir;        /* NULL: no tier below RAM */
    uint64_t pool_bytes;         /* 0: 256 MiB */
    firn_dtype kv_dtype;
    firn_kv_scheme kv_scheme;
    uint32_t n_threads;          /* 0: 1 */
    const char *kernel;
    const char *draft_path;      /* a drafter's model file, or NULL */
    const char *draft_disk_dir;  /* of the drafter's tier; NULL: none */
    bool is_gated;               /* the disk is read only where that is faster: with models as small as these, never */
    firn_tier *tier;             /* instead of a disk tier; taken */
    const firn_env *env;         /* of pool, tier and engine; the model uses the defaults */
    firn_engine_options engine;  /* model, pool and tier are filled in */
} test_stack_options;

typedef struct test_stack {
    firn_workers *workers;
    firn_model *model;
    firn_pool *pool;
    firn_tier *tier;
    firn_model *draft_model;
    firn_tier *draft_tier;
    firn_engine *engine;
} test_stack;

void test_stack_open(test_stack *stack, const test_stack_options *options); /* fails the test on error */
firn_flush_report test_stack_close(test_stack *stack, uint64_t bound_ns);

enum { TEST_ANSWER_TOKENS_MAX = 512 };

/* One request and everything that was heard of it. */
typedef struct test_answer {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t id;
    uint32_t n_tokens;
    uint32_t n_ends;
    firn_token tokens[TEST_ANSWER_TOKENS_MAX];
    firn_logprobs logprobs[TEST_ANSWER_TOKENS_MAX]; /* when asked for */
    char text[16384];
    size_t len_text;
    firn_finish finish;
    char stop_string[64];
    firn_usage usage;
    firn_error error;
} test_answer;

/* Submits with callbacks into `answer`, which it initialises. */
firn_status test_submit(test_stack *stack, firn_request request, test_answer *answer, firn_error *err);
void test_wait_tokens(test_answer *answer, uint32_t n_tokens); /* until so many tokens came, or the end */
void test_wait_end(test_answer *answer);
/* Submits, and waits for the end, which must be that of the asked length. */
void test_ask(test_stack *stack, firn_request request, test_answer *answer);
/* The same tokens and the same log-probabilities, to the bit. */
void test_assert_same_answer(const test_answer *a, const test_answer *b);
void test_answer_deinit(test_answer *answer);

#endif
