/*
 * A row that goes on before its restore has ended: the next chunk of its prompt, forwarded alone, each layer as soon as
 * its state is there.
 *
 *      tier    | layer 0 | layer 1 | layer 2 | layer 3 |
 *      engine             | 0 | 1 .....| 2 ....| 3 .....|  joined when all has been verified: the answer begins
 *
 * Bits do not depend on company, so running the chunk alone changes none. Other rows wait for the forward as they do
 * for any chunk, which is made as small for them, and for what the restore still takes: so it is started only when that
 * is expected to be little. If a layer does not come, the row is forgotten and the prompt takes the ordinary way:
 * nothing of it was published.
 *
 * Owns the decision and the forward; the lease owns what arrives.
 */
#include <assert.h>
#include <string.h>

#include "engine/engine_impl.h"

/* Longest expected wait inside the forward: alone, and with other rows in the batch. */
#define WAIT_NS_ALONE  UINT64_C(1000000000)
#define WAIT_NS_SHARED UINT64_C(30000000)
/* The bound of the wait itself, against what was expected. */
#define WAIT_FACTOR 4u
#define WAIT_NS_MIN UINT64_C(100000000)

typedef struct arrival {
    firn_engine *engine;
    firn_lease *lease;
    uint64_t until_ns;
} arrival;

static bool cache_ready(void *ctx, uint32_t cache)
{
    arrival *a = ctx;
    if (!firn_lease_await_layer(a->lease, cache, a->until_ns)) {
        return false;
    }
    a->engine->stats.early_layers += firn_lease_is_arriving(a->lease);
    return true;
}

/* How many of the tokens after the first `start` the chunk has. */
static uint32_t chunk_tokens(const firn_engine *engine, firni_sequence *sequence, firn_cache *const *caches,
                             uint32_t start, uint32_t n_chunk)
{
    uint32_t count = sequence->n_prompt - start;
    count = count < n_chunk ? count : n_chunk;
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        const uint32_t limit = firn_cache_max_append_tokens(caches[layer]);
        count = limit < count ? limit : count;
    }
    sequence->n_cached = start;
    return firni_publish_chunk(engine, sequence, count);
}

/* The step's room, from the tree alone: what other waiting requests were promised is not taken for a head start. */
static bool make_room(const firn_engine *engine, firn_cache *const *caches, uint32_t start, uint32_t count)
{
    uint64_t need_bytes = 0;
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        need_bytes += firni_row_need_bytes(caches[layer], start, count);
    }
    return firn_pool_room(engine->options.pool) >= need_bytes || firn_prefix_make_room(engine->prefix, need_bytes);
}

static firn_status forward(firn_engine *engine, firni_sequence *sequence, firn_cache *const *caches, uint32_t count,
                           const firn_lease_start *start)
{
    const bool is_last = start->n_tokens + count == sequence->n_prompt;
    if (is_last) {
        sequence->first_logits = firni_calloc(engine->env, engine->n_vocab, sizeof *sequence->first_logits);
        if (sequence->first_logits == NULL) {
            return FIRN_ERR_NO_MEMORY;
        }
    }
    memset(engine->step_wanted, 0, count);
    engine->step_wanted[count - 1] = is_last;
    const uint64_t wait_ns = WAIT_NS_MIN + WAIT_FACTOR * start->remaining_ns;
    arrival a = { .engine = engine, .lease = sequence->lease, .until_ns = firni_now_ns(engine->env) + wait_ns };
    const firn_forward_input input = {
        .tokens = sequence->tokens + start->n_tokens,
        .counts = &count,
        .n_rows = 1,
        .caches = caches,
        .want_logits = engine->step_wanted,
        .logits = sequence->first_logits,
        .cache_ready = cache_ready,
        .cache_ctx = &a,
    };
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        (void)firn_cache_prefill_begin(caches[layer], NULL);
    }
    const firn_status status = firn_model_forward(engine->options.model, &input, NULL);
    for (uint32_t layer = 0; layer < engine->schema->n_layers; layer++) {
        (void)firn_cache_prefill_end(caches[layer], NULL);
    }
    return status;
}

void firni_early_start(firn_engine *engine, firni_sequence *sequence)
{
    firn_lease_start start;
    if (sequence->lease == NULL || sequence->started != NULL || sequence->may_not_start ||
        !firn_lease_may_start(sequence->lease, &start) ||
        start.remaining_ns > (engine->n_rows > 0 ? WAIT_NS_SHARED : WAIT_NS_ALONE)) {
        return;
    }
    /* As many tokens as the rows that decode can wait for; what this takes, the next step's chunk does without. */
    const uint32_t n_chunk = firni_step_chunk_tokens(engine, start.n_tokens);
    if (n_chunk == 0) {
        return;
    }
    sequence->may_not_start = true; /* once: a second try would be made of the same read */
    firn_cache **caches = firni_calloc(engine->env, engine->schema->n_layers, sizeof *caches);
    if (caches == NULL || firn_lease_start_caches(sequence->lease, caches, NULL) != FIRN_OK) {
        firni_free(engine->env, caches);
        return;
    }
    sequence->started = caches;
    sequence->n_start = start.n_tokens;
    const uint32_t count = chunk_tokens(engine, sequence, caches, start.n_tokens, n_chunk);
    const uint64_t begin_ns = firni_now_ns(engine->env);
    firn_status status = FIRN_ERR_NO_MEMORY;
    if (make_room(engine, caches, start.n_tokens, count)) {
        engine->stats.n_early_starts++;
        status = forward(engine, sequence, caches, count, &start);
        engine->stats.n_early_failed += status != FIRN_OK;
    }
    if (status != FIRN_OK) {
        firni_started_drop(engine, sequence);
        return;
    }
    sequence->n_cached = start.n_tokens + count;
    sequence->usage.prefill_ns += firni_now_ns(engine->env) - begin_ns;
}
