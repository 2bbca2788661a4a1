/*
 * Promise G1 through the whole cache: the logits of every position after a restored prefix are the bits of a run that
 * never saw a cache, at every prefix length around block edges, from RAM and from disk after a restart.
 */
#include <stdlib.h>
#include <string.h>

#include "firn/disk.h"
#include "firn/model.h"
#include "firn/prefix.h"
#include "support/support.h"

enum { N_TOKENS = 200, LAYERS_MAX = 64 };

static void check(firn_status status, const firn_error *err)
{
    if (status != FIRN_OK) {
        fail_msg("%s: %s", firn_status_name(status), err->message);
    }
}

/* Forwards tokens into the caches in chunks; logits of all positions into out. */
static void feed(firn_model *model, firn_cache **caches, const firn_token *tokens, uint32_t n, uint32_t chunk,
                 float *out)
{
    const uint32_t n_vocab = firn_model_get_info(model)->n_vocab;
    uint8_t want[N_TOKENS];
    memset(want, 1, sizeof want);
    for (uint32_t i = 0; i < n; i += chunk) {
        const uint32_t count = n - i < chunk ? n - i : chunk;
        firn_error err;
        const firn_forward_input input = {
            .tokens = tokens + i,
            .counts = &count,
            .n_rows = 1,
            .caches = caches,
            .want_logits = want,
            .logits = out + (size_t)i * n_vocab,
        };
        check(firn_model_forward(model, &input, &err), &err);
    }
}

static void destroy_all(firn_cache **caches, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        firn_cache_destroy(caches[i]);
    }
}

static firn_lease *acquire_and_wait(firn_prefix *prefix, const firn_token *tokens, uint32_t n)
{
    firn_lease *lease;
    firn_error err;
    check(firn_prefix_acquire(prefix, tokens, n, NULL, &lease, &err), &err);
    while (!firn_lease_ready(lease)) {
        (void)firn_prefix_poll(prefix);
    }
    return lease;
}

typedef struct world {
    firn_pool *pool;
    firn_tier *tier;
    firn_prefix *prefix;
} world;

static world open_world(const firn_schema *schema, const char *dir)
{
    world w = { 0 };
    firn_error err;
    check(firn_pool_create(&(firn_pool_options){ .budget_bytes = 64u << 20 }, NULL, &w.pool, &err), &err);
    check(firn_disk_open(&(firn_disk_options){ .dir = dir, .schema = schema, .pool = w.pool }, NULL, &w.tier, &err),
          &err);
    check(firn_prefix_create(&(firn_prefix_options){ .pool = w.pool, .schema = schema, .tier = w.tier }, NULL,
                             &w.prefix, &err),
          &err);
    return w;
}

static void close_world(world *w)
{
    const firn_flush_report report = firn_prefix_flush(w->prefix, 10000000000);
    assert_true(report.durable);
    firn_prefix_destroy(w->prefix);
    firn_tier_destroy(w->tier);
    firn_pool_destroy(w->pool);
}

static void continues_exactly(const char *model_path, firn_dtype dtype)
{
    static const uint32_t lengths[] = {
        16, 17, 31, 62, 63, 64, 65, 66, 100, 126, 127, 128, 129, 130, 191, 192, 193, 198
    };
    firn_error err;
    firn_model *model;
    check(firn_model_open(&(firn_model_options){ .path = model_path, .kv_dtype = dtype }, NULL, &model, &err), &err);
    const firn_schema *schema = firn_model_schema(model);
    const uint32_t n_vocab = firn_model_get_info(model)->n_vocab;
    assert_true(schema->n_layers <= LAYERS_MAX);
    float *cold = calloc((size_t)N_TOKENS * n_vocab, sizeof *cold);
    float *warm = calloc((size_t)N_TOKENS * n_vocab, sizeof *warm);
    firn_token tokens[N_TOKENS];
    test_rng rng = { .state = 5 };
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = test_rng_below(&rng, 500);
    }
    char *dir = test_dir_create();
    world w = open_world(schema, dir);

    firn_cache *caches[LAYERS_MAX] = { 0 };
    firn_lease *lease = acquire_and_wait(w.prefix, tokens, N_TOKENS);
    assert_int_equal(firn_lease_result(lease).n_tokens, 0);
    check(firn_lease_lend(lease, caches, &err), &err);
    firn_lease_release(lease);
    feed(model, caches, tokens, N_TOKENS, 48, cold);
    firn_reason reason;
    assert_true(firn_prefix_put(w.prefix, tokens, N_TOKENS, NULL, (const firn_cache *const *)caches, &reason));
    destroy_all(caches, schema->n_layers);

    for (int source = 0; source < 2; source++) {
        const bool from_disk = source == 1;
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            if (from_disk) {
                /* A new process for all that RAM knows. */
                close_world(&w);
                w = open_world(schema, dir);
            }
            const uint32_t n_prefix = lengths[i];
            lease = acquire_and_wait(w.prefix, tokens, n_prefix + 1);
            const firn_lease_info info = firn_lease_result(lease);
            assert_int_equal(info.n_tokens, n_prefix);
            assert_int_equal(from_disk ? info.disk_tokens : info.ram_tokens, n_prefix);
            check(firn_lease_lend(lease, caches, &err), &err);
            firn_lease_release(lease);
            memset(warm, 0, (size_t)N_TOKENS * n_vocab * sizeof *warm);
            feed(model, caches, tokens + n_prefix, N_TOKENS - n_prefix, 1 + (uint32_t)i * 5, warm);
            assert_memory_equal(warm, cold + (size_t)n_prefix * n_vocab,
                                (size_t)(N_TOKENS - n_prefix) * n_vocab * sizeof *warm);
            destroy_all(caches, schema->n_layers);
            firn_prefix_check(w.prefix);
        }
    }
    close_world(&w);
    test_dir_remove(dir);
    free(dir);
    free(cold);
    free(warm);
    firn_model_close(model);
}

/* Where a layer's state is a checkpoint, a prefix continues at the counts at which it was put, and at no other. */
static void continues_from_checkpoints(const char *model_path)
{
    static const uint32_t lengths[] = { 63, 64, 65, 127, 128, 129, 192 };
    enum { N = sizeof lengths / sizeof lengths[0] };
    firn_error err;
    firn_reason reason;
    firn_model *model;
    check(firn_model_open(&(firn_model_options){ .path = model_path }, NULL, &model, &err), &err);
    const firn_schema *schema = firn_model_schema(model);
    const uint32_t n_vocab = firn_model_get_info(model)->n_vocab;
    float *cold = calloc((size_t)N_TOKENS * n_vocab, sizeof *cold);
    float *warm = calloc((size_t)N_TOKENS * n_vocab, sizeof *warm);
    firn_token tokens[N_TOKENS];
    test_rng rng = { .state = 6 };
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = test_rng_below(&rng, 500);
    }
    for (uint32_t i = 0; i < N; i++) {
        char *dir = test_dir_create();
        world w = open_world(schema, dir);
        const uint32_t n_prefix = lengths[i];
        firn_cache *caches[LAYERS_MAX] = { 0 };
        firn_lease *lease = acquire_and_wait(w.prefix, tokens, N_TOKENS);
        check(firn_lease_lend(lease, caches, &err), &err);
        firn_lease_release(lease);
        feed(model, caches, tokens, n_prefix, 48, cold);
        /* Not under another count: that state would be of no prefix. */
        assert_false(firn_cache_can_publish_row(caches[0], 0, n_prefix - 1));
        assert_true(firn_prefix_put(w.prefix, tokens, n_prefix, NULL, (const firn_cache *const *)caches, &reason));
        feed(model, caches, tokens + n_prefix, N_TOKENS - n_prefix, 48, cold + (size_t)n_prefix * n_vocab);
        destroy_all(caches, schema->n_layers);
        for (int source = 0; source < 2; source++) {
            if (source == 1) {
                close_world(&w);
                w = open_world(schema, dir);
            }
            lease = acquire_and_wait(w.prefix, tokens, N_TOKENS);
            const firn_lease_info info = firn_lease_result(lease);
            assert_int_equal(info.n_tokens, n_prefix);
            assert_int_equal(source == 1 ? info.disk_tokens : info.ram_tokens, n_prefix);
            check(firn_lease_lend(lease, caches, &err), &err);
            firn_lease_release(lease);
            feed(model, caches, tokens + n_prefix, N_TOKENS - n_prefix, 1 + i * 5, warm);
            assert_memory_equal(warm, cold + (size_t)n_prefix * n_vocab,
                                (size_t)(N_TOKENS - n_prefix) * n_vocab * sizeof *warm);
            destroy_all(caches, schema->n_layers);
            firn_prefix_check(w.prefix);
        }
        close_world(&w);
        test_dir_remove(dir);
        free(dir);
    }
    free(cold);
    free(warm);
    firn_model_close(model);
}

static void recurrent_models(void **state)
{
    (void)state;
    continues_from_checkpoints("tests/oracle/qwen35.gguf");
    continues_from_checkpoints("tests/oracle/qwen3next.gguf");
    continues_from_checkpoints("tests/oracle/mamba2.gguf");
}

static void llama_f32(void **state)
{
    (void)state;
    continues_exactly("tests/oracle/llama.gguf", FIRN_DTYPE_F32);
}

static void llama_f16(void **state)
{
    (void)state;
    continues_exactly("tests/oracle/llama.gguf", FIRN_DTYPE_F16);
}

static void qwen3_bf16(void **state)
{
    (void)state;
    continues_exactly("tests/oracle/qwen3.gguf", FIRN_DTYPE_BF16);
}

static void llama_q8_0_weights_f16(void **state)
{
    (void)state;
    continues_exactly("tests/oracle/llama256-q8_0.gguf", FIRN_DTYPE_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_f32),
        cmocka_unit_test(llama_f16),
        cmocka_unit_test(qwen3_bf16),
        cmocka_unit_test(llama_q8_0_weights_f16),
        cmocka_unit_test(recurrent_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
