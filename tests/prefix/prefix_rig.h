/*
 * What the tests of the RAM tier share: a small schema, rows whose contents say which tokens made them, and a clock
 * that can be moved. The schema has two plain layers unless a test asks for a mixture of families.
 *
 * The key and value of a position are hashes of all tokens up to it, as real state is: a block that came from another
 * prefix cannot go unnoticed, even where the token and the position are the same.
 */
#ifndef FIRN_TESTS_PREFIX_RIG_H
#define FIRN_TESTS_PREFIX_RIG_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "firn/prefix.h"
#include "prefix/prefix_impl.h"
#include "support/support.h"

#define RIG_LAYERS 2u
#define RIG_LAYERS_MAX 4u
#define RIG_DIM 4u
#define RIG_TOKENS_MAX 2048u
#define RIG_BLOCK_BYTES 4096u                       /* 64 tokens x (4 + 4) floats, rounded up */
#define RIG_STATE_BYTES 8192u                       /* of test:state and test:both */
#define RIG_NODE_BYTES (RIG_LAYERS * RIG_BLOCK_BYTES)
#define RIG_MS UINT64_C(1000000)

typedef struct prefix_rig {
    firn_env env;                 /* the given one, with a clock of our own */
    firn_clock clock;
    atomic_ullong clock_ahead_ns; /* added to the real time */
    atomic_uint n_notified;
    uint32_t n_layers;
    firn_cache_options layers[RIG_LAYERS_MAX];
    firn_schema schema;
    firn_pool *pool;
    firn_prefix *prefix;
} prefix_rig;

static inline uint64_t rig_clock_now(void *ctx)
{
    prefix_rig *rig = ctx;
    const firn_clock *real = firn_clock_default();
    return real->monotonic_ns(real->ctx) + atomic_load(&rig->clock_ahead_ns);
}

static inline uint64_t rig_clock_wall(void *ctx)
{
    (void)ctx;
    return firn_clock_default()->wall_ns(NULL);
}

static inline void rig_notify(void *ctx)
{
    atomic_fetch_add(&((prefix_rig *)ctx)->n_notified, 1u);
}

/* A mixture of families, one letter per layer. p: plain; w: a window; v: one twice as long; c: a state of fixed size
 * (test:state); b: both a window and such a state (test:both); h: plain and Mamba-2 side by side (hybrid), whose state
 * takes the RIG_DIM elements of a key as its channels. */
static const firn_cache_options rig_mamba2 = { .layout = "ssm:mamba2", .n_kv_heads = 1, .head_dim = 1, .value_dim = 2,
                                               .n_state_heads = 1, .conv_width = 2 };

static inline firn_cache_options rig_layer(char letter, uint32_t window)
{
    if (letter == 'h') {
        return (firn_cache_options){ .layout = "hybrid",
                                     .attention = "kv:plain",
                                     .recurrent = &rig_mamba2,
                                     .dtype = FIRN_DTYPE_F32,
                                     .n_kv_heads = 1,
                                     .head_dim = RIG_DIM,
                                     .kernel = "scalar" };
    }
    firn_cache_options options = { .n_kv_heads = 1, .head_dim = RIG_DIM, .kernel = "scalar" };
    options.dtype = letter == 'p' || letter == 'w' || letter == 'v' ? FIRN_DTYPE_F32 : FIRN_DTYPE_NONE;
    const bool is_window = letter == 'w' || letter == 'v';
    options.layout = letter == 'p' ? "kv:plain" : is_window ? "kv:window" : letter == 'c' ? "test:state"
                                                                                              : "test:both";
    options.window = letter == 'w' || letter == 'b' ? window : letter == 'v' ? 2 * window : 0;
    return options;
}

/* A pool and a schema, no tree yet. env may be NULL. */
static inline void rig_init_mixture(prefix_rig *rig, const firn_env *env, uint64_t pool_budget_bytes,
                                    const char *mixture, uint32_t window)
{
    memset(rig, 0, sizeof *rig);
    rig->env = env != NULL ? *env : (firn_env){ .allocator = NULL };
    rig->clock = (firn_clock){ .monotonic_ns = rig_clock_now, .wall_ns = rig_clock_wall, .ctx = rig };
    rig->env.clock = &rig->clock;
    rig->n_layers = (uint32_t)strlen(mixture);
    for (uint32_t layer = 0; layer < rig->n_layers; layer++) {
        rig->layers[layer] = rig_layer(mixture[layer], window);
    }
    rig->schema = (firn_schema){ .layers = rig->layers, .n_layers = rig->n_layers, .identity_text = "" };
    const firn_pool_options options = { .budget_bytes = pool_budget_bytes };
    assert_ok(firn_pool_create(&options, &rig->env, &rig->pool, NULL));
}

static inline void rig_init(prefix_rig *rig, const firn_env *env, uint64_t pool_budget_bytes)
{
    rig_init_mixture(rig, env, pool_budget_bytes, "pp", 0);
}

/* options: pool, schema and notify are filled in here. */
static inline void rig_start(prefix_rig *rig, firn_prefix_options options)
{
    options.pool = rig->pool;
    options.schema = &rig->schema;
    options.notify = rig_notify;
    options.notify_ctx = rig;
    assert_ok(firn_prefix_create(&options, &rig->env, &rig->prefix, NULL));
}

static inline void rig_stop(prefix_rig *rig)
{
    firn_prefix_destroy(rig->prefix);
    rig->prefix = NULL;
}

/* Asserts that nothing holds a block any more. */
static inline void rig_deinit(prefix_rig *rig)
{
    rig_stop(rig);
    firn_pool_stats stats;
    firn_pool_get_stats(rig->pool, &stats);
    assert_int_equal(stats.n_blocks, 0);
    firn_pool_destroy(rig->pool);
}

static inline firn_prefix_stats rig_stats(const prefix_rig *rig)
{
    firn_prefix_stats stats;
    firn_prefix_get_stats(rig->prefix, &stats);
    return stats;
}

static inline void rig_sleep(uint64_t ns)
{
    const struct timespec pause = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
    (void)nanosleep(&pause, NULL);
}

/* ---- contents ---- */

static inline uint64_t rig_mix(uint64_t hash, uint64_t value)
{
    uint64_t x = (hash ^ value) * UINT64_C(0xbf58476d1ce4e5b9) + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 29)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 32);
}

static inline float rig_element(uint64_t prefix_hash, uint32_t layer, uint32_t i)
{
    return (float)(rig_mix(prefix_hash, layer * 64u + i + 1) >> 40);
}

/* Contents of positions [first, n): k and v are [n - first, RIG_DIM]. */
static inline void rig_contents(const firn_token *tokens, uint32_t first, uint32_t n, uint32_t layer, float *k,
                                float *v)
{
    uint64_t hash = 0;
    for (uint32_t p = 0; p < n; p++) {
        hash = rig_mix(hash, tokens[p] + 1u);
        for (uint32_t i = 0; p >= first && i < RIG_DIM; i++) {
            k[(p - first) * RIG_DIM + i] = rig_element(hash, layer, i);
            v[(p - first) * RIG_DIM + i] = rig_element(hash, layer, RIG_DIM + i);
        }
    }
}

/* ---- rows ---- */

typedef struct rig_row {
    firn_cache *caches[RIG_LAYERS_MAX];
    uint32_t n_layers;
} rig_row;

static inline const firn_cache *const *rig_caches(const rig_row *row)
{
    return (const firn_cache *const *)row->caches;
}

static inline uint32_t rig_row_tokens(const rig_row *row)
{
    return firn_cache_row_tokens(row->caches[0], 0);
}

static inline void rig_append(firn_cache *cache, const float *k, const float *v, uint32_t n)
{
    firn_append_input input = { .k = k, .v = v };
    if (firn_cache_get_options(cache)->recurrent == NULL) {
        assert_ok(firn_cache_append(cache, &input, &n, NULL, NULL));
        return;
    }
    static const float conv_weight[2 * RIG_DIM] = { 0.25F, 0.5F, 0.75F, 1, 1, 1, 1, 1 };
    static const float skip = 0;
    float *x = calloc(n + 1u, RIG_DIM * sizeof *x);
    float *gates = calloc(n + 1u, sizeof *gates);
    float *out = calloc(n + 1u, RIG_DIM * sizeof *out);
    memcpy(x, k, (size_t)n * RIG_DIM * sizeof *x);
    for (uint32_t i = 0; i < n; i++) {
        gates[i] = 0.75F;
    }
    const firn_recur_input recur = { .x = x, .decay = gates, .strength = gates, .out = out, .conv_weight = conv_weight,
                                     .skip = &skip };
    input.recur = &recur;
    assert_ok(firn_cache_append(cache, &input, &n, NULL, NULL));
    free(x);
    free(gates);
    free(out);
}

/* "Computes" tokens from where the row stands up to n. */
static inline void rig_row_extend(rig_row *row, const firn_token *tokens, uint32_t n)
{
    const uint32_t first = rig_row_tokens(row);
    const uint32_t n_new = n - first;
    float *k = calloc(n_new + 1u, RIG_DIM * sizeof *k);
    float *v = calloc(n_new + 1u, RIG_DIM * sizeof *v);
    for (uint32_t layer = 0; layer < row->n_layers; layer++) {
        rig_contents(tokens, first, n, layer, k, v);
        rig_append(row->caches[layer], k, v, n_new);
        firn_cache_settle(row->caches[layer]);
    }
    free(k);
    free(v);
}

static inline rig_row rig_row_empty(const prefix_rig *rig)
{
    rig_row row = { .n_layers = rig->n_layers };
    for (uint32_t layer = 0; layer < row.n_layers; layer++) {
        assert_ok(firn_cache_create(&rig->layers[layer], rig->pool, NULL, &row.caches[layer], NULL));
        assert_ok(firn_cache_add_row(row.caches[layer], NULL));
    }
    return row;
}

static inline rig_row rig_row_of(const prefix_rig *rig, const firn_token *tokens, uint32_t n)
{
    rig_row row = rig_row_empty(rig);
    rig_row_extend(&row, tokens, n);
    return row;
}

static inline void rig_row_free(rig_row *row)
{
    for (uint32_t layer = 0; layer < row->n_layers; layer++) {
        firn_cache_destroy(row->caches[layer]);
        row->caches[layer] = NULL;
    }
}

/* One layer's blocks, as far back as the row has them: keys lie dimension-major, values token-major behind them. */
static inline void rig_blocks_verify(const firn_row_view *view, const float *k, const float *v)
{
    for (uint32_t p = view->first_block * 64; p < view->n_tokens; p++) {
        const uint8_t *data = firn_block_data(view->blocks[p / 64 - view->first_block]);
        for (uint32_t dim = 0; dim < RIG_DIM; dim++) {
            assert_memory_equal(data + (dim * 64u + p % 64) * sizeof(float), &k[p * RIG_DIM + dim], sizeof(float));
        }
        assert_memory_equal(data + (RIG_DIM * 64u + p % 64 * RIG_DIM) * sizeof(float), &v[p * RIG_DIM],
                            RIG_DIM * sizeof(float));
    }
}

/* As test_layout.c defines it: a chain over all keys; a lane of a block repeats it for its own position. */
static inline uint64_t rig_state_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline void rig_state_verify(const firn_row_view *view, const float *k)
{
    uint64_t chain = 0;
    for (uint32_t p = 0; p < view->n_tokens; p++) {
        for (uint32_t i = 0; i < RIG_DIM; i++) {
            uint32_t bits;
            memcpy(&bits, &k[p * RIG_DIM + i], sizeof bits);
            chain = rig_state_mix(chain + UINT64_C(0x9e3779b97f4a7c15) + bits);
        }
        if (view->n_blocks > 0 && p / 64 >= view->first_block) {
            const uint8_t *data = firn_block_data(view->blocks[p / 64 - view->first_block]);
            assert_memory_equal(data + p % 64 * 64, &chain, sizeof chain);
        }
    }
    const uint64_t last = rig_state_mix(chain + RIG_STATE_BYTES / 8 - 1);
    assert_memory_equal(firn_block_data(view->fixed), &chain, sizeof chain);
    assert_memory_equal(firn_block_data(view->fixed) + RIG_STATE_BYTES - 8, &last, sizeof last);
}

/* The state is that of a row that has taken all tokens at once. */
static inline void rig_hybrid_verify(const firn_cache *cache, const firn_row_view *view, const float *k, const float *v)
{
    firn_cache *fresh;
    assert_ok(firn_cache_make_empty(cache, &fresh, NULL));
    assert_ok(firn_cache_add_row(fresh, NULL));
    rig_append(fresh, k, v, view->n_tokens);
    const firn_row_view alone = firn_cache_view_row(fresh, 0);
    assert_memory_equal(firn_block_data(view->fixed), firn_block_data(alone.fixed), firn_cache_fixed_bytes(cache));
    firn_cache_destroy(fresh);
}

/* The row holds exactly what n of these tokens make: every element that it must have, to the bit. */
static inline void rig_row_verify(const rig_row *row, const firn_token *tokens, uint32_t n)
{
    float *k = calloc(n + 1u, RIG_DIM * sizeof *k);
    float *v = calloc(n + 1u, RIG_DIM * sizeof *v);
    for (uint32_t layer = 0; layer < row->n_layers; layer++) {
        const firn_cache *cache = row->caches[layer];
        firn_cache_check(cache);
        const firn_row_view view = firn_cache_view_row(cache, 0);
        assert_int_equal(view.n_tokens, n);
        if (firn_cache_block_bytes(cache) > 0) {
            assert_true(n == 0 || view.first_block <= firn_cache_first_block_needed(cache, n));
            assert_int_equal(view.first_block + view.n_blocks, (n + 63) / 64);
        }
        rig_contents(tokens, 0, n, layer, k, v);
        const bool is_hybrid = firn_cache_get_options(cache)->recurrent != NULL;
        if (firn_cache_fixed_bytes(cache) == 0 || is_hybrid) {
            rig_blocks_verify(&view, k, v);
        }
        if (is_hybrid && n > 0) {
            rig_hybrid_verify(cache, &view, k, v);
        } else if (firn_cache_fixed_bytes(cache) > 0 && n > 0) {
            rig_state_verify(&view, k);
        }
    }
    free(k);
    free(v);
}

/* ---- the tree ---- */

/* Puts a freshly computed row. */
static inline bool rig_put(prefix_rig *rig, const firn_token *tokens, uint32_t n, const char *ns, firn_reason *reason)
{
    rig_row row = rig_row_of(rig, tokens, n);
    const bool kept = firn_prefix_put(rig->prefix, tokens, n, ns, rig_caches(&row), reason);
    rig_row_free(&row);
    firn_prefix_check(rig->prefix);
    return kept;
}

/* Until the tier has answered. The lease's own clock does not run meanwhile: nothing expires. */
static inline void rig_wait_found(prefix_rig *rig, const firn_lease *lease)
{
    while (lease->find != NULL) {
        firni_inbox_wait(rig->prefix, RIG_MS);
        firni_inbox_drain(rig->prefix);
    }
}

/* A lease whose lookup in the tier has ended: it is ready, or a read is in flight for it. */
static inline firn_lease *rig_acquire(prefix_rig *rig, const firn_token *tokens, uint32_t n, const char *ns)
{
    firn_lease *lease;
    assert_ok(firn_prefix_acquire(rig->prefix, tokens, n, ns, &lease, NULL));
    firn_prefix_check(rig->prefix);
    rig_wait_found(rig, lease);
    firn_prefix_check(rig->prefix);
    return lease;
}

static inline firn_lease_info rig_wait(prefix_rig *rig, firn_lease *lease)
{
    for (uint32_t i = 0; !firn_lease_ready(lease); i++) {
        assert_true(i < 20000);
        rig_sleep(RIG_MS / 2);
    }
    firn_prefix_check(rig->prefix);
    return firn_lease_result(lease);
}

static inline rig_row rig_lend(firn_lease *lease)
{
    rig_row row = { .n_layers = lease->prefix->n_layers };
    assert_ok(firn_lease_lend(lease, row.caches, NULL));
    return row;
}

/* Lookup, lend, verification, release. */
static inline firn_lease_info rig_lookup(prefix_rig *rig, const firn_token *tokens, uint32_t n, const char *ns)
{
    firn_lease *lease = rig_acquire(rig, tokens, n, ns);
    const firn_lease_info info = rig_wait(rig, lease);
    assert_int_equal(info.n_tokens, info.ram_tokens + info.disk_tokens);
    rig_row row = rig_lend(lease);
    rig_row_verify(&row, tokens, info.n_tokens);
    rig_row_free(&row);
    firn_lease_release(lease);
    firn_prefix_check(rig->prefix);
    return info;
}

/* Puts a row that was computed in chunks and put after each, as a running request is: the tree sees every block of
 * every window, and a state at each end of a chunk. */
static inline void rig_put_in_chunks(prefix_rig *rig, const firn_token *tokens, uint32_t n, uint32_t chunk,
                                     const char *ns)
{
    rig_row row = rig_row_empty(rig);
    for (uint32_t at = chunk < n ? chunk : n;; at = at + chunk < n ? at + chunk : n) {
        rig_row_extend(&row, tokens, at);
        firn_reason reason;
        assert_true(firn_prefix_put(rig->prefix, tokens, at, ns, rig_caches(&row), &reason));
        firn_prefix_check(rig->prefix);
        if (at == n) {
            break;
        }
    }
    rig_row_free(&row);
}

/* tokens[0..n) of a conversation of its own. */
static inline void rig_tokens(firn_token *tokens, uint32_t n, uint32_t conversation)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = conversation * 1000003u + i;
    }
}

#define assert_reason(actual, expected) assert_string_equal(firn_reason_name(actual), firn_reason_name(expected))

#endif
